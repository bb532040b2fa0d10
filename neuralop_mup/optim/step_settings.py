"""A step that is made with other learning rates than the groups', which no scheduler and no checkpoint ever see.

A group names the factors of its learning rate in ``step_mults``: keys of its own, such as ``mode_mult``. Whoever adds a
factor owns its value. ``lr`` stays the scheduler's, closed-form ones included, and the step is made with their product.

torch hands ``step`` the arguments that a pre-hook returns, the optimizer first among them (``tests/test_torch_private.py``
holds it to that). So the step is called on a *stand-in*: another object of the optimizer's class that shares its state and
all else, and has groups of its own with the learning rates of this step. The optimizer's own groups are not touched. Hence a
step that raises leaves nothing to be undone, and a scheduler, a copy or a checkpoint finds the user's learning rates at any
time, the middle of a step included. (Borrowing ``lr`` for the step needs code that runs after a step that raised, and torch
has no hook there. Multiplying ``lr`` once, when modes change, does not survive a scheduler of closed form, which writes its
own.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from neuralop_mup.errors import MupError

__all__ = ["become", "finish", "set_mult", "step_lr", "step_mult"]

# What a step's groups have for themselves; all else that a step writes into them is the group's.
_OF_THE_STEP = ("lr", "weight_decay", "step_mults")


def set_mult(group: dict[str, Any], name: str, value: float) -> None:
    """Make ``group[name]`` one of the factors of the group's learning rate."""
    group[name] = value
    if name not in group.get("step_mults", ()):
        group["step_mults"] = (*group.get("step_mults", ()), name)


def step_mult(group: Mapping[str, Any]) -> float:
    """What the group's learning rate is multiplied by at a step."""
    return math.prod(group[name] for name in group.get("step_mults", ()))


def step_lr(group: Mapping[str, Any]) -> float:
    """The learning rate that the group's step is made with; also of a step's own groups."""
    return float(group["lr"]) * step_mult(group)


def become(stand_in: torch.optim.Optimizer, optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """Make ``stand_in``, an empty object of its class, what ``optimizer`` is but for its groups.

    Raises
    ------
    MupError
        If ``optimizer`` only passes its own groups on to another one, which would step with the learning rates in them.
    """
    for name, inner in vars(optimizer).items():
        if isinstance(inner, torch.optim.Optimizer) and any(
            a is b for a in inner.param_groups for b in optimizer.param_groups
        ):
            raise MupError(
                f"{type(optimizer).__name__} leaves the step to its own {name!r}, so learning rates of this step (of grown "
                f"modes, or learned ones) cannot reach it: build it from neuralop_mup.param_groups(model, lr=…), and call "
                f"neuralop_mup.follow_plan(model, optimizer.{name})."
            )
    vars(stand_in).update(vars(optimizer), param_groups=groups)


def finish(optimizer: torch.optim.Optimizer, stepped: torch.optim.Optimizer) -> None:
    """Take over what a step wrote into its stand-in, attributes and entries of groups, and empty it: it keeps no weights."""
    if stepped is optimizer:
        return
    for group, used in zip(optimizer.param_groups, stepped.param_groups, strict=True):
        group.update((key, value) for key, value in used.items() if key not in _OF_THE_STEP)
        used.clear()
    vars(optimizer).update((key, value) for key, value in vars(stepped).items() if key != "param_groups")
    vars(stepped).clear()
