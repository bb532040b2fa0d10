"""A plan as an optimizer's param groups, and the three usual optimizers made of them: Adam, AdamW, SGD."""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.rules import ROLES, check_multipliers
from neuralop_mup.errors import MupError
from neuralop_mup.optim.checks import check_optimizer_state, family_of
from neuralop_mup.optim.learning_rate import renamed
from neuralop_mup.optim.lr_hooks import attach_lr_hooks
from neuralop_mup.optim.resolved_model import ResolvedModel, needs_model, resolve, rule_mult
from neuralop_mup.validation import check_names, check_number

_UPDATES = {"adam": "do not scale", "sgd": "scale"}
_BUILDERS = {"adam": "MuAdam", "sgd": "MuSGD"}

# torch's optimizers that add weight decay to the gradient before they divide it by its size.
_COUPLED = (
    torch.optim.Adam,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
)


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
        Multipliers of the learning rate by role, e.g. ``{"spectral": 2.0}``, on top of the rule. What does not grow takes
        none.

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
    return groups_of(resolve(model), lr, optimizer, weight_decay=weight_decay, lr_mult=lr_mult)


def groups_of(
    resolved: ResolvedModel,
    lr: float,
    family: str = "adam",
    *,
    weight_decay: float | None = None,
    lr_mult: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """:func:`param_groups` of a model that was read already."""
    check_number("lr", lr, tensor=True)
    if weight_decay is not None:
        check_number("weight_decay", weight_decay, tensor=True)
    # Numbers of NumPy would keep torch.load from reading the optimizer's state.
    lr, weight_decay = _plain(lr), _plain(weight_decay)
    multipliers = check_multipliers(lr_mult, "lr_mult")
    growing = resolved.growing if family == "adam" else {}

    groups: dict[tuple, dict[str, Any]] = {}
    for row in resolved.plan.rows:
        # Divided by the inverse rather than multiplied, as mup does, so that the two agree to the last bit.
        divisor = 1 / rule_mult(row, family)
        multiplier, convolution = multipliers.get(row.tuned_as, 1.0), growing.get(row.name)
        settings: dict[str, Any] = {
            "lr": lr / divisor * multiplier,
            "lr_mult": 1 / divisor * multiplier,
            "rule_mult": 1 / divisor,
        }
        if weight_decay is not None:
            settings["weight_decay"] = weight_decay * divisor
        key = (convolution, *map(float, settings.values()))
        if convolution is not None:
            settings["mode_mult"] = 1.0
        group = groups.setdefault(key, {"params": [], "name": [], **settings})
        group["params"].append(resolved.parameters[row.name])
        if row.role not in group["name"]:
            group["name"].append(row.role)
    for (convolution, *_), group in groups.items():
        roles = "+".join(sorted(group["name"], key=ROLES.index))
        group["name"] = f"{roles} {convolution}" if convolution else roles
    return number_equal_names(list(groups.values()))


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, torch.Tensor) else float(value)


def number_equal_names(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups, of which those with one name are told apart by numbers behind it."""
    names = [group["name"] for group in groups]
    for i, (group, name) in enumerate(zip(groups, names, strict=True)):
        if names.count(name) > 1:
            group["name"] = f"{name} {names[: i + 1].count(name)}"
    return groups


@needs_model
def MuAdam(
    model: nn.Module,
    lr: float = 1e-3,
    *,
    impl: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    weight_decay: float = 0.0,
    lr_mult: Mapping[str, float] | None = None,
    **kwargs: Any,
) -> torch.optim.Optimizer:
    """Adam, or any Adam-like ``impl``, with μP learning rates.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    lr : float, default 1e-3
        Learning rate at base. torch's Adam moves the real and the imaginary part of a kernel by lr each, neuralop's
        AdamW its modulus: a learning rate tuned with one does not carry over to the other.
    impl : callable, default torch.optim.Adam
        ``impl(groups, lr=…, **kwargs)`` builds the optimizer, e.g. ``neuralop.training.AdamW``. A ``functools.partial`` may
        set all but lr and weight_decay, which belong to the groups.
    weight_decay : float, default 0.0
        At base (see :func:`param_groups`). It is independent of width only where ``impl`` decouples it: torch's Adam
        adds it to the gradient and then normalises both, so that its effect grows with width. A warning says so; use
        :func:`MuAdamW`.
    lr_mult : mapping, optional
        Multipliers of the learning rate by role.
    **kwargs
        Passed on: ``betas``, ``eps``, … (torch's ``fused=True`` takes no complex kernels.)

    Returns
    -------
    torch.optim.Optimizer
        What ``impl`` returns.

    Raises
    ------
    MupError
        If the model is not parametrized, a number is not usable, or ``impl`` is of the other family, or a partial that sets
        lr or weight_decay.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 16})
    >>> optimizer = nm.MuAdam(model, lr=8e-3, betas=(0.9, 0.98))
    >>> {group["name"]: round(group["lr"], 5) for group in optimizer.param_groups}
    {'input+vector': 0.008, 'spectral': 0.00394, 'hidden+readout': 0.004}

    With neuralop's own AdamW:

    >>> from neuralop.training import AdamW
    >>> optimizer = nm.MuAdam(model, lr=8e-3, impl=AdamW, weight_decay=1e-4)
    """
    built = _built(model, impl, lr, "adam", weight_decay, lr_mult, kwargs)
    # Newer AdamWs are Adams, too, and say that they decouple.
    coupled = isinstance(built, _COUPLED) and not isinstance(built, torch.optim.AdamW)
    if weight_decay and coupled and not any(group.get("decoupled_weight_decay") for group in built.param_groups):
        warnings.warn(
            f"torch.optim.{type(built).__name__} adds weight decay to the gradient and normalises both, so its effect "
            "changes with width: use MuAdamW for decay that transfers.",
            stacklevel=3,
        )
    return built


@needs_model
def MuAdamW(
    model: nn.Module,
    lr: float = 1e-3,
    *,
    impl: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    weight_decay: float = 1e-2,
    **kwargs: Any,
) -> torch.optim.Optimizer:
    """AdamW, or any ``impl`` like it, with μP learning rates and independent weight decay.

    Parameters
    ----------
    model, lr
        As for :func:`MuAdam`.
    impl : callable, default torch.optim.AdamW
        ``impl(groups, lr=…, **kwargs)`` builds the optimizer, e.g. ``neuralop.training.AdamW``.
    weight_decay : float, default 0.01
        At base (see :func:`param_groups`).
    **kwargs
        As for :func:`MuAdam`, ``lr_mult`` included.

    Returns
    -------
    torch.optim.Optimizer
        What ``impl`` returns.

    Raises
    ------
    MupError
        If the model is not parametrized, a number is not usable, or ``impl`` is of the other family, or a partial that sets
        lr or weight_decay.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 16})
    >>> optimizer = nm.MuAdamW(model, lr=8e-3, weight_decay=0.1)
    >>> {group["lr"] * group["weight_decay"] for group in optimizer.param_groups}
    {0.0008}
    """
    return MuAdam(model, lr, impl=impl, weight_decay=weight_decay, **kwargs)


@needs_model
def MuSGD(
    model: nn.Module,
    lr: float = 1e-3,
    *,
    impl: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    weight_decay: float = 0.0,
    lr_mult: Mapping[str, float] | None = None,
    **kwargs: Any,
) -> torch.optim.Optimizer:
    """SGD, or any SGD-like ``impl``, with μP learning rates.

    They follow the width rule alone, since the mode rules are for Adam: parametrize with ``rule="none"`` for SGD, or
    the kernels' initialisation alone follows the modes.

    Parameters
    ----------
    model, lr, weight_decay, lr_mult
        As for :func:`MuAdam`.
    impl : callable, default torch.optim.SGD
        ``impl(groups, lr=…, **kwargs)`` builds the optimizer.
    **kwargs
        Passed on: ``momentum``, ``nesterov``, …

    Returns
    -------
    torch.optim.Optimizer
        What ``impl`` returns.

    Raises
    ------
    MupError
        If the model is not parametrized, a number is not usable, or ``impl`` is of the other family, or a partial that sets
        lr or weight_decay.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 16}, rule="none")
    >>> optimizer = nm.MuSGD(model, lr=0.1, momentum=0.9)
    """
    return _built(model, impl, lr, "sgd", weight_decay, lr_mult, kwargs)


def _built(
    model: nn.Module,
    impl: Callable[..., torch.optim.Optimizer],
    lr: float,
    family: str,
    weight_decay: float,
    lr_mult: Mapping[str, float] | None,
    kwargs: Mapping[str, Any],
) -> torch.optim.Optimizer:
    """What ``impl`` makes of the plan's groups, held to the plan."""
    for key in ("lr", "weight_decay"):
        if isinstance(impl, partial) and key in impl.keywords:
            raise MupError(
                f"impl is a partial with {key}={impl.keywords[key]!r}, which every group's own {key}, scaled by the plan, "
                f"would replace: leave it out of the partial and give {key}={impl.keywords[key]!r} beside impl."
            )
    resolved = resolve(model)
    groups = groups_of(resolved, lr, family, weight_decay=weight_decay, lr_mult=lr_mult)
    try:
        optimizer = impl(groups, lr=_plain(lr), **kwargs)
    except (TypeError, ValueError) as error:  # of a name, of a number, or, as LBFGS, of groups
        check_names([name for name in kwargs if repr(name) in str(error)], MuAdam, impl)
        raise MupError(
            f"{getattr(impl, '__name__', 'impl')} does not take the plan's param groups, or not these arguments: {error}. "
            "Give an optimizer that takes groups, and arguments of its own."
        ) from error
    theirs = family_of(optimizer)
    if theirs not in (None, family):
        raise MupError(
            f"These learning rates are for updates that {_UPDATES[family]} with the gradient, and those of torch's "
            f"{type(optimizer).__name__} {_UPDATES[theirs]}: use neuralop_mup.{_BUILDERS[theirs]}(model, lr=…, impl=…), "
            "with a learning rate that was tuned for it."
        )
    if hasattr(optimizer, "register_step_pre_hook"):  # what ``impl`` returns may be a wrapper of its own kind
        attach_lr_hooks(resolved, optimizer, family)
        optimizer.register_load_state_dict_pre_hook(_take_state)
        optimizer.register_load_state_dict_post_hook(_bring_to_precision)
    return optimizer


def _bring_to_precision(optimizer: torch.optim.Optimizer) -> None:
    """Averages of complex parameters in these parameters' precision: torch does so for real ones alone."""
    for p, state in optimizer.state.items():
        for name, value in state.items() if p.is_complex() else ():
            if torch.is_tensor(value) and value.is_complex():
                state[name] = value.to(p.dtype)


def _take_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """A state to load, checked. How its steps were computed is not taken over: 0.2.0 had ``fused`` for complex kernels."""
    check_optimizer_state(optimizer, state)
    pairs = zip(state["param_groups"], optimizer.param_groups, strict=True)
    groups = [{**renamed(saved), **({"fused": ours["fused"]} if "fused" in ours else {})} for saved, ours in pairs]
    return {**state, "param_groups": groups}
