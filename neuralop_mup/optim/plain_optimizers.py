"""A word to whoever trains a parametrized model with an optimizer that does not know its plan.

``AdamW(model.parameters())`` after ``parametrize`` is the likeliest mistake there is, and nothing else in a training script
shows it. A hook that torch runs before the step of every optimizer looks at each one once. It holds neither models nor
optimizers: what it has to know stands in the ``infshape`` of the parameters, also of a copied model's.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from neuralop_mup.core.infshape import MupShape
from neuralop_mup.core.planned import ON_PLAN
from neuralop_mup.optim.lr_ratios import readable

__all__ = ["watch_optimizers"]

_LOOKED_AT: WeakKeyDictionary[torch.optim.Optimizer, tuple[int, int]] = WeakKeyDictionary()
_WARNED: WeakSet[torch.optim.Optimizer] = WeakSet()
_plans = 0
_handle: Any = None


def watch_optimizers() -> None:
    """Look at every optimizer of this process at its next step, since a model was just given a plan."""
    global _plans, _handle
    _plans += 1
    if _handle is None:
        _handle = register_optimizer_step_pre_hook(_look)


ON_PLAN.append(watch_optimizers)


def _look(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
    # Once for each optimizer, unless there is another plan, or another group, since then.
    now = (_plans, len(optimizer.param_groups))
    if torch.compiler.is_compiling() or _LOOKED_AT.get(optimizer) == now:
        return
    if all(readable(group["lr"]) and group["lr"] == 0 for group in optimizer.param_groups):
        return  # a warm-up from zero: the next step says more
    _LOOKED_AT[optimizer] = now
    if optimizer not in _WARNED and not _follows_plan(optimizer):
        _WARNED.add(optimizer)
        warnings.warn(_message(optimizer), UserWarning, stacklevel=_level_of_the_caller())


def _follows_plan(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer's learning rates stand in the ratios of the plan, or no plan can be meant."""
    groups = optimizer.param_groups
    plain = [p for group in groups if "rule_mult" not in group for p in group["params"]]  # the others are of param_groups
    if isinstance(optimizer, torch.optim.LBFGS):
        return True  # it has one group and finds its scale by itself
    if not any(_has_plan(p) for p in plain):
        return True
    held = [(group, p) for group in groups for p in group["params"] if _has_plan(p)]
    ours = [p for _, p in held if not p.infshape.frozen]
    # Part of a model, or a model with frozen parts, is finetuned: with which learning rates is for the user to say.
    is_whole = len(ours) >= max((p.infshape.of for p in ours), default=math.inf)
    if not is_whole or not all(p.requires_grad for p in ours) or not all(readable(group["lr"]) for group, _ in held):
        return True
    held = [(group, p) for group, p in held if not group.get("layouts")]  # MuMuon's and MuSOAP's own have no rule
    return any(
        _is_one_number(
            float(group["lr"]) / (group["lr_mult"] if "rule_mult" in group else getattr(p.infshape, mult))
            for group, p in held
        )
        for mult in ("adam_lr", "sgd_lr")
    )


def _has_plan(p: Any) -> bool:
    return isinstance(getattr(p, "infshape", None), MupShape)


def _is_one_number(values: Iterable[float]) -> bool:
    values = [value for value in values if value]
    return not values or math.isclose(min(values), max(values), rel_tol=1e-5)


def _message(optimizer: torch.optim.Optimizer) -> str:
    cls, settings = type(optimizer), optimizer.param_groups[0]
    ours = {torch.optim.Adam: "MuAdam", torch.optim.AdamW: "MuAdamW", torch.optim.SGD: "MuSGD"}
    arguments = ["model", f"lr={float(settings['lr']):g}"]
    arguments += [f"{key}={settings[key]:g}" for key in ("momentum", "weight_decay") if settings.get(key)]
    if cls not in ours:
        arguments.append(f"impl={cls.__module__.removesuffix('.adamw')}.{cls.__qualname__}")
    return (
        f"{cls.__name__} trains a parametrized model with learning rates that do not follow its plan, so nothing that was "
        f"tuned at base carries over to it. Build it as neuralop_mup.{ours.get(cls, 'MuAdam')}({', '.join(arguments)}), or "
        "from neuralop_mup.param_groups(model, lr=…), where lr is the learning rate at base. For the standard "
        "parametrization pass rule='standard' to parametrize. (Said once for each optimizer.)"
    )


def _level_of_the_caller() -> int:
    """How far up ``optimizer.step()`` was written, past this module and torch's wrappers of a step."""
    skipped = ("torch", __name__.partition(".")[0])
    level, frame = 0, sys._getframe().f_back
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in skipped:
        level, frame = level + 1, frame.f_back
    return level + 1
