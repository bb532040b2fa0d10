"""Whether an optimizer, or the saved state of one, belongs to a model's plan."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn

from neuralop_mup.errors import MupError
from neuralop_mup.optim.binding import bind
from neuralop_mup.optim.lr_ratios import off_plan, off_rule
from neuralop_mup.optim.step_hooks import check_family, follower_of, rule_mult
from neuralop_mup.validation import check_number

__all__ = ["check_optimizer", "check_optimizer_state"]


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, family: str = "adam") -> None:
    """Refuse an optimizer whose learning rates do not follow the model's plan.

    Catches an optimizer that was built before :func:`~neuralop_mup.parametrize` or from ``model.parameters()``, and
    learning rates that a scheduler (``OneCycleLR(max_lr=0.01)``) or a callback made equal. Multipliers by role are allowed
    for: a group's learning rate must stand to the others' as its ``lr_mult`` does. ``MuSOAP(model, steps=…)`` is checked
    as with the ``lr`` that follows. That a schedule is not as long as ``steps`` no learning rate tells: ``MuSOAP`` warns of
    it while it trains.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    optimizer : torch.optim.Optimizer
        The optimizer that is to train it.
    family : {"adam", "sgd"}, default "adam"
        Which of the plan's learning-rate columns applies.

    Raises
    ------
    MupError
        If there is no such family, a parameter is missing from the optimizer, a learning rate is not a number of 0 or more,
        or learning rates are not in the plan's ratios.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 16})
    >>> nm.check_optimizer(model, nm.MuAdam(model, lr=8e-3))
    >>> try:
    ...     nm.check_optimizer(model, torch.optim.Adam(model.parameters(), lr=8e-3))
    ... except nm.MupError as error:
    ...     print("does not follow the plan" in str(error))
    True
    """
    check_family(family)
    for i, group in enumerate(optimizer.param_groups):
        check_number(f"lr of the optimizer's group {group.get('name', i)!r}", group["lr"], tensor=True)
    binding = bind(model)
    plan, parameters = binding.plan, binding.parameters
    group_of = {p: group for group in optimizer.param_groups for p in group["params"]}
    follower = follower_of(optimizer)
    factors = follower.mode_mults(optimizer) if follower is not None else [1.0] * len(optimizer.param_groups)
    now = [
        {**group, "rule_mult": group["rule_mult"] * factor} if "rule_mult" in group else group
        for group, factor in zip(optimizer.param_groups, factors, strict=True)
    ]
    mults = {row.name: rule_mult(row, family) for row in plan.rows}
    for name in mults:
        if parameters[name] not in group_of:
            raise MupError(f"The optimizer does not hold {name!r}: build it from this model, after parametrize.")
    if off := off_rule(now, parameters, mults):
        name = min(off)
        raise MupError(
            f"The optimizer gives {name!r} a learning rate of {float(group_of[parameters[name]]['lr']):.4g}, which does not "
            f"follow the plan (lr × {mults[name]:.4g}): it was built before parametrize or from plain model.parameters(). "
            "Build it with neuralop_mup.MuAdam(model, lr=…) or from param_groups."
        )
    if problem := off_plan(optimizer.param_groups):
        raise MupError(problem)


def check_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping) -> None:
    """Refuse the saved state of an optimizer whose groups are not those of ``optimizer``.

    torch compares the numbers of groups and parameters alone, and then takes every learning rate from the file.

    Raises
    ------
    MupError
        If groups differ in number, parameters, name, or the multipliers of the rule or of the roles.
    """
    ours, theirs = optimizer.param_groups, state.get("param_groups") if isinstance(state, Mapping) else None
    if not isinstance(theirs, list):
        raise MupError("This is not the state dict of an optimizer (it has no param_groups): save optimizer.state_dict().")
    if problem := _different(ours, theirs):
        raise MupError(
            f"This optimizer state belongs to other groups ({problem}): build the optimizer as it was, with the same base, "
            "rule and lr_mult (and base_depth of MuMuon), from neuralop_mup's optimizers or param_groups."
        )


def _different(ours: list[dict], theirs: list[dict]) -> str | None:
    """What the groups of an optimizer and of a state differ in."""
    if len(ours) != len(theirs):
        return f"{len(theirs)} groups were saved, the optimizer has {len(ours)}"
    for a, b in zip(ours, theirs, strict=True):
        if len(a["params"]) != len(b["params"]):
            return f"group {a.get('name')!r} has {len(a['params'])} parameters, {len(b['params'])} were saved"
        if a.get("name") != b.get("name"):
            return f"group {a.get('name')!r} was saved as {b.get('name')!r}"
        # Where modes may have grown since, the rule's part is right in its time. What was tuned is not of the time.
        grows = "mode_mult" in a and all(group.get(key) for group in (a, b) for key in ("rule_mult", "lr_mult"))
        for key in ("lr_mult / rule_mult",) if grows else ("rule_mult", "lr_mult"):
            x, y = (g["lr_mult"] / g["rule_mult"] if grows else g.get(key) for g in (a, b))
            if x != y and (x is None or y is None or not math.isclose(x, y, rel_tol=1e-9)):
                return f"{key} of group {a.get('name')!r} is {x}, saved was {y}"
    return None
