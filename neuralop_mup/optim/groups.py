"""A plan as an optimizer's param groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from neuralop_mup.core.multipliers import check_multipliers
from neuralop_mup.core.plan import Row
from neuralop_mup.core.rules import ROLES
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.optim.binding import Binding, bind
from neuralop_mup.validation import check_number

# Of optimizers whose updates do not scale with the gradient, and of those whose do.
FAMILIES = ("adam", "sgd")


def param_groups(
    model: nn.Module,
    lr: float,
    optimizer: str = "adam",
    *,
    weight_decay: float | None = None,
    lr_mult: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Param groups that give each parameter its μP learning rate, for any optimizer of that family.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    lr : float
        The learning rate at base: what was tuned on the proxy.
    optimizer : {"adam", "sgd"}, default "adam"
        Family. ``adam``: updates do not scale with the gradient (Adam, AdamW, RMSprop, Adagrad, Lion, …). ``sgd``: they
        do (SGD, momentum); the width rule alone, since the paper's mode rule is for Adam.
    weight_decay : float, optional
        At base. Each group's is divided by the rule's factor, so that lr · weight_decay is what it is at base
        (independent decay: under a decoupled optimizer such as AdamW every weight shrinks at the rate it does at base).
        If not given, groups carry none and the optimizer's own applies to each as it stands.
    lr_mult : mapping, optional
        Multipliers of the learning rate by role, e.g. ``{"spectral": 2.0}``, on top of the rule.

    Returns
    -------
    list of dict
        One group for each distinct setting, in a fixed order, with keys ``params``, ``name`` (its roles), ``lr``,
        ``lr_mult`` (lr over the base lr), ``rule_mult`` (the rule's part of it) and, where given, ``weight_decay``. At base
        there is one group. A kernel whose modes may change (the model has ``max_n_modes``) has one of its own, with
        ``mode_mult`` (see :func:`follow_plan`). (mup's optimizers scale by themselves: give them ``model.parameters()``.)

    Raises
    ------
    MupError
        If the model is not parametrized, or a number or role is not usable.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 16})
    >>> groups = nm.param_groups(model, lr=8e-3, lr_mult={"spectral": 2.0})
    >>> {group["name"]: round(group["lr"], 5) for group in groups}
    {'input+vector': 0.008, 'spectral': 0.00789, 'hidden+readout': 0.004}
    >>> optimizer = torch.optim.RMSprop(groups)
    >>> nm.follow_plan(model, optimizer)
    """
    return groups_of(bind(model), lr, optimizer, weight_decay=weight_decay, lr_mult=lr_mult)


def groups_of(
    binding: Binding,
    lr: float,
    family: str = "adam",
    *,
    weight_decay: float | None = None,
    lr_mult: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """:func:`param_groups` of a model that was read already."""
    check_family(family)
    check_number("lr", lr, tensor=True)
    if weight_decay is not None:
        check_number("weight_decay", weight_decay, tensor=True)
    multipliers = check_multipliers(lr_mult, "lr_mult")
    growing = binding.growing if family == "adam" else {}

    groups: dict[tuple, dict[str, Any]] = {}
    for row in binding.plan.rows:
        # Divided by the inverse rather than multiplied, as mup does, so that the two agree to the last bit.
        divisor = 1 / rule_mult(row, family)
        multiplier, convolution = multipliers.get(row.role, 1.0), growing.get(row.name)
        settings: dict[str, Any] = {
            "lr": lr / divisor * multiplier,
            "lr_mult": 1 / divisor * multiplier,
            "rule_mult": 1 / divisor,
        }
        if weight_decay is not None:
            settings["weight_decay"] = weight_decay * divisor
        key = (convolution, *map(float, settings.values()))
        if convolution is not None:
            settings |= {"mode_mult": 1.0, "step_mults": ("mode_mult",)}
        group = groups.setdefault(key, {"params": [], "name": [], **settings})
        group["params"].append(binding.parameters[row.name])
        if row.role not in group["name"]:
            group["name"].append(row.role)
    for (convolution, *_), group in groups.items():
        roles = "+".join(sorted(group["name"], key=ROLES.index))
        group["name"] = f"{roles} {convolution}" if convolution else roles
    return number_equal_names(list(groups.values()))


def rule_mult(row: Row, family: str) -> float:
    """The rule's factor on a learning rate."""
    return row.lr_mult if family == "adam" else row.sgd_lr_mult


def check_family(family: str) -> str:
    """Refuse what is no column of a plan."""
    if family not in FAMILIES:
        raise MupError(f"There is no optimizer family {family!r}: {nearest(str(family), FAMILIES)}")
    return family


def number_equal_names(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups, of which those with one name are told apart by numbers behind it."""
    names = [group["name"] for group in groups]
    for i, (group, name) in enumerate(zip(groups, names, strict=True)):
        if names.count(name) > 1:
            group["name"] = f"{name} {names[: i + 1].count(name)}"
    return groups
