"""The effective learning rate of a param group: what its next step is made with.

``group["lr"]`` belongs to the user and the scheduler. The package never writes it after construction; it stores factors
beside it, so that schedulers of closed form, copies and checkpoints keep working:

    effective rate = lr · mode_mult · learned_mult · depth_mult · schedule_factor(base_scale, steps, peak, cooldown; taken).

====================  ================================================================================================
key                   meaning
====================  ================================================================================================
``mode_mult``         the rule's multiplier now over ``rule_mult``, where modes grow in training
                      (:mod:`neuralop_mup.optim.lr_hooks`)
``learned_mult``      factor that :class:`neuralop_mup.LearnedRates` learns
``depth_mult``        MuSOAP: the same for depth: the first step measures it, ``rule_mult`` has an estimate
                      (:mod:`neuralop_mup.optim.musoap.depth`)
``base_scale``        MuSOAP: factor of a default rate whose number of steps changed, or "anytime"
``steps``             MuSOAP: step at which the training ends
``peak``              MuSOAP: largest rate so far, and the step at which its cosine begins
``cooldown``          MuSOAP: first step, length and first rate of a cooldown
====================  ================================================================================================

These enter the rate: six, and ``learned_mult`` of contrib. Others describe the group: ``rule_mult`` is the rule's multiplier
and ``lr_mult`` that times the user's, both already in ``lr``; ``base_lr`` is the rate at base; ``own_rule`` marks groups
whose multiplier does not come from the plan (MuSOAP's matrices); ``taken`` counts steps. Two are results for loggers:
``schedule_factor``, and ``step_lr``, the effective rate of the last step.
"""

from collections.abc import Mapping
from typing import Any

import torch

#: Keys of a group that are factors of its rate.
FACTORS = ("mode_mult", "learned_mult", "depth_mult", "schedule_factor")


def factors(group: Mapping[str, Any]) -> dict[str, float]:
    """Return the factors on a group's ``lr``, by name."""
    return {name: float(group[name]) for name in FACTORS if name in group}


def unscheduled_lr(group: Mapping[str, Any]) -> Any:
    """Return :func:`effective_lr` without the factor that ends the training."""
    return group["lr"] * (group.get("mode_mult", 1.0) * group.get("learned_mult", 1.0) * group.get("depth_mult", 1.0))


def effective_lr(group: Mapping[str, Any]) -> Any:
    """Return the learning rate of a group's next step: a number, or a tensor if ``lr`` is one."""
    return unscheduled_lr(group) * group.get("schedule_factor", 1.0)


def effective_decay(group: Mapping[str, Any]) -> float:
    """Return the weight decay of a group's next step. Decay is independent: ``depth_mult`` is divided out."""
    return group["weight_decay"] / group["depth_mult"]


def effective_lrs(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return :func:`effective_lr` of each param group, by the group's name or index."""
    return {group.get("name", str(i)): float(effective_lr(group)) for i, group in enumerate(optimizer.param_groups)}
