"""A word to whoever trains a parametrized model with an optimizer that does not know its plan.

``AdamW(model.parameters())`` after ``parametrize`` is the likeliest mistake there is, and nothing else in a training script
shows it. A hook that torch runs before the step of every optimizer looks at each one once. It holds neither models nor
optimizers: what it has to know stands in the ``infshape`` of the parameters, also of a copied model's.
"""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from neuralop_mup.core.infshape import MupShape
from neuralop_mup.core.planned import CopiesShapes
from neuralop_mup.optim.lr_ratios import off_rule, readable

__all__: list[str] = []

# On the optimizer: what there was when it was looked at, or that it was warned of. torch leaves it out of copies.
_LOOKED_AT = "_neuralop_mup_looked_at"
_WARNED = "warned"


def _look(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
    # Once for each optimizer, unless there is another plan, or another group, since then.
    now = (CopiesShapes.made, len(optimizer.param_groups))
    if not CopiesShapes.made or torch.compiler.is_compiling() or getattr(optimizer, _LOOKED_AT, None) in (now, _WARNED):
        return
    if all(readable(group["lr"]) and group["lr"] == 0 for group in optimizer.param_groups):
        return  # a warm-up from zero: the next step says more
    follows = _follows_plan(optimizer)
    setattr(optimizer, _LOOKED_AT, now if follows else _WARNED)
    if not follows:
        warnings.warn(_message(optimizer), UserWarning, stacklevel=_level_of_the_caller())


register_optimizer_step_pre_hook(_look)


def _follows_plan(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer's learning rates stand in the ratios of the plan, or no plan can be meant."""
    groups = optimizer.param_groups
    plain = [p for group in groups if "rule_mult" not in group for p in group["params"]]  # the others are of param_groups
    if isinstance(optimizer, torch.optim.LBFGS):
        return True  # it has one group and finds its scale by itself
    shapes = {str(i): p.infshape for i, p in enumerate(plain) if _has_plan(p)}
    ours = [p for group in groups for p in group["params"] if _has_plan(p) and not p.infshape.frozen]
    # Part of a model, or a model with frozen parts, is finetuned: with which learning rates is for the user to say.
    is_whole = len(ours) >= max((p.infshape.of for p in ours), default=math.inf)
    told = all(p.requires_grad for p in ours) and all(readable(group["lr"]) for group in groups)
    if not (shapes and is_whole and told):
        return True
    parameters = {str(i): p for i, p in enumerate(plain)}
    families = ({name: getattr(shape, lr) for name, shape in shapes.items()} for lr in ("adam_lr", "sgd_lr"))
    return any(not off_rule(groups, parameters, mults) for mults in families)


def _has_plan(p: Any) -> bool:
    return isinstance(getattr(p, "infshape", None), MupShape)


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
