"""Compute the effective learning rate of a param group, which its next step uses.

Only the user and the scheduler change ``group["lr"]``. The package does not modify it after construction. Instead, it stores
factors under separate keys, so that closed-form schedulers, copies and checkpoints keep working:

    effective rate = lr · mode_mult · learned_mult · depth_mult · schedule_factor(base_scale, steps, peak, cooldown; taken).

====================  ================================================================================================
key                   meaning
====================  ================================================================================================
``mode_mult``         ratio of the rule's current multiplier to ``rule_mult`` if modes grow during training
                      (:mod:`neuralop_mup.optim.lr_hooks`)
``learned_mult``      factor learned by :class:`neuralop_mup.LearnedRates`
``depth_mult``        MuSOAP: correction of ``rule_mult``, which uses an estimate, for the measured depth
                      (:mod:`neuralop_mup.optim.musoap.depth`)
``base_scale``        MuSOAP: factor of a default rate whose number of steps changed, or "anytime"
``steps``             MuSOAP: step at which training ends
``peak``              MuSOAP: largest rate so far, and the step at which its cosine begins
``cooldown``          MuSOAP: first step, length and first rate of a cooldown
====================  ================================================================================================

The effective rate depends on the keys in this table. Other keys describe the group. ``rule_mult`` is the rule's multiplier,
and ``lr_mult`` is its product with the user's multiplier. ``lr`` already includes both. ``base_lr`` is the learning rate of
the base model. ``own_rule`` marks groups with a multiplier that does not come from the plan (MuSOAP's matrices). ``taken``
counts steps. Two keys are results for loggers: ``schedule_factor``, and ``step_lr``, which is the effective rate of the last
step.
"""

from collections.abc import Mapping
from typing import Any

import torch

#: Keys of a group that hold factors of its learning rate.
FACTORS = ("mode_mult", "learned_mult", "depth_mult", "schedule_factor")


def factors(group: Mapping[str, Any]) -> dict[str, float]:
    """Return the factors that multiply a group's ``lr``, by name."""
    return {name: float(group[name]) for name in FACTORS if name in group}


def unscheduled_lr(group: Mapping[str, Any]) -> Any:
    """Return :func:`effective_lr` without ``schedule_factor``."""
    return group["lr"] * (group.get("mode_mult", 1.0) * group.get("learned_mult", 1.0) * group.get("depth_mult", 1.0))


def effective_lr(group: Mapping[str, Any]) -> Any:
    """Return the learning rate of a group's next step, which is a tensor if ``lr`` is a tensor."""
    return unscheduled_lr(group) * group.get("schedule_factor", 1.0)


def effective_decay(group: Mapping[str, Any]) -> float:
    """Return the weight decay of a group's next step, which is divided by ``depth_mult`` to keep decay independent."""
    return group["weight_decay"] / group["depth_mult"]


def effective_lrs(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return :func:`effective_lr` of each param group, by the group's name or index."""
    return {group.get("name", str(i)): float(effective_lr(group)) for i, group in enumerate(optimizer.param_groups)}
