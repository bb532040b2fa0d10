r"""Schedule for the end of training: compute each step's factor on the learning rate.

The factor is a pure function of a group and the number of steps taken, t. Each step uses ``lr · schedule_factor``, where

    lr · schedule_factor = min(h · lr,  h · p · (1 + cos π (t − m)/(N − m)) / 2,  c · (1 − √((t − b)/n))).

``lr`` is the group's rate including its other factors (:mod:`neuralop_mup.optim.learning_rate`). The second term ends a run
of N steps with a cosine that falls from p, the largest rate so far, to zero at step N. If a schedule itself falls to zero at
step N, this term is larger than the schedule and has no effect. The third term is a cooldown of n steps that began after b
steps at rate c. h is 1, unless the rate is a default rate and the number of steps was not known when the optimizer was
built.

The cosine begins at step m, when the rate reached p. If the rate rises from p to lr, m is moved later by the update

    N − m  ←  (N − m) · (p / lr)^10,  at most to the present step,

so that the factor is continuous in lr. A warm-up moves m to its last step, whereas an increase within rounding errors hardly
moves it. A relative change ε of one rate changes later rates by at most about 16 ε of the largest rate. If ``set_steps``
shortens the run afterwards, this bound is multiplied by the ratio of the lengths.

All numbers that a step needs are stored in the group, so that they are saved, loaded and copied with it: ``taken``,
``steps`` (N), ``base_scale`` (h), ``peak`` (p, m) and ``cooldown`` (b, n, c). ``base_scale`` is "anytime" if h depends on
the number of steps taken, and None if the user set the rate.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from neuralop_mup.core.rules import length_factor
from neuralop_mup.errors import MupError
from neuralop_mup.optim.learning_rate import effective_lr, unscheduled_lr
from neuralop_mup.validation import check_count, check_positive

#: Default learning rate for a run of 1,000 steps with a schedule that ends when the run does.
LR = 3e-2
USUAL_STEPS = 1000
#: Fraction of the largest rate that is used after the last step.
FLOOR = 0.01
# If the number of steps is unknown, use this fraction of the default rate for a run that ends 100 steps from now.
_ANYTIME_SHARE, _ANYTIME_STEPS = 0.7, 100
# For trained weights: the largest learning rate, the number of steps that is added to the length of the run, and the largest
# ratio of learning rate to initial error.
_TRAINED_MOST, _TRAINED_STEPS, _TRAINED_SHARE = 0.06, 3000, 0.25
_LARGEST_ERROR = 3.0
# Exponent in the update of m (see the module docstring). If the rate rises by 7 %, N − m is halved.
_RESTART = 10
_ROUNDING = 1e-6

#: Entries of a group at the beginning of training.
BEGINNING: dict[str, Any] = {
    "taken": 0,
    "steps": None,
    "base_scale": None,
    "peak": None,
    "cooldown": None,
    "depth_mult": 1.0,
    "schedule_factor": 1.0,
}

# Keys that release 0.3.0 saved under different names.
_RENAMED = {"length_mult": "schedule_factor", "period": "mode_stride"}

Group = dict[str, Any]


def default_lr(steps: int | None = None, lr: float = LR) -> float:
    """Return the default learning rate for a run of ``steps`` steps, ``lr`` · √(1000 / steps), at most 1.

    The limit ensures that an update is not larger than the weights that it changes.
    """
    return lr if steps is None else min(1.0, lr * length_factor(steps, USUAL_STEPS))


def trained_lr(steps: int | None, start_error: float | None) -> float:
    """Return the default learning rate for trained weights with relative error e on the new data.

        min(0.06, e / 4, max(e · lr(steps), lr(steps + 3000))),

    where lr(steps) is the default for fresh weights. With a rate above e / 4, the error first increases to a multiple of e.
    Otherwise, the rate is the default for a run that is 3,000 steps longer. It is higher if the new problem differs strongly
    from the old one and there are few steps. If e is not known, the rate is lr(steps + 3000)
    (benchmarks/results/fine-tuning.md).
    """
    later = default_lr((USUAL_STEPS if steps is None else steps) + _TRAINED_STEPS)
    if start_error is None:
        return later
    return min(_TRAINED_MOST, _TRAINED_SHARE * start_error, max(start_error * default_lr(steps), later))


def check_start_error(start_error: Any, lr: float | None) -> float:
    """Return a relative error as a float; raise MupError if it is not a positive fraction or if ``lr`` is given."""
    error = float(start_error) if isinstance(start_error, torch.Tensor) and start_error.numel() == 1 else start_error
    check_positive("start_error", error)
    if error > _LARGEST_ERROR:
        raise MupError(
            f"start_error must be a fraction such as 0.06 for 6 %, got {error!r}. Predicting zero already has a relative "
            "error of 1. Pass a fraction, or train fresh weights."
        )
    if lr is not None:
        raise MupError(
            f"start_error determines the learning rate, so it cannot be combined with lr. Got start_error={error!r} and "
            f"lr={lr!r}. Pass only one of them."
        )
    return float(error)


def anytime_lr(taken: int) -> float:
    """Return the rate after ``taken`` steps of a run of unknown length, 0.7 · 0.03 · √(1000 / (taken + 100)).

    It is the default rate for a run that ends soon, reduced because no schedule has lowered the rate yet
    (docs/evidence/learning_rate.md).
    """
    return _ANYTIME_SHARE * default_lr(taken + _ANYTIME_STEPS)


def cosine(step: float, begin: float, end: float) -> float:
    """Return a factor that falls from 1 at ``begin`` to 0 at ``end``."""
    return (1 + math.cos(math.pi * (step - begin) / (end - begin))) / 2


def note_peaks(groups: Sequence[Group], taken: int) -> None:
    """Update each group's ``peak`` before the step that follows ``taken`` steps."""
    for group in groups:
        if group["steps"] is None:
            continue
        lr, (peak, begin) = float(unscheduled_lr(group)), group["peak"] or (0.0, taken)
        if lr > peak:
            left = (group["steps"] - begin) * (peak / lr) ** _RESTART
            group["peak"] = (lr, min(taken, group["steps"] - left))


def schedule_factor(group: Mapping[str, Any], taken: int) -> float:
    """Return the factor on a group's learning rate for the step that follows ``taken`` steps (see the module docstring)."""
    lr, scale = float(unscheduled_lr(group)), _base_scale(group, taken)
    most = min(scale * _cosine_bound(group, taken), _cooldown_bound(group, taken))
    return scale if lr <= 0 or scale * lr <= most * (1 + _ROUNDING) else most / lr


def _base_scale(group: Mapping[str, Any], taken: int) -> float:
    scale = group["base_scale"]
    return anytime_lr(taken) / LR if scale == "anytime" else 1.0 if scale is None else scale


def _cosine_bound(group: Mapping[str, Any], taken: int) -> float:
    if group["steps"] is None or group["peak"] is None:
        return math.inf
    peak, begin = group["peak"]
    return peak * (cosine(taken, begin, group["steps"]) if taken < group["steps"] else FLOOR)


def _cooldown_bound(group: Mapping[str, Any], taken: int) -> float:
    """Return the rate of the cooldown, which decreases as 1 − √x.

    Errors were 2 % lower than with 1 − x on three problems, and 5 % lower than with a cosine on two problems.
    """
    if group["cooldown"] is None:
        return math.inf
    begin, length, lr = group["cooldown"]
    return lr * (1 - math.sqrt((taken - begin) / length) if taken < begin + length else FLOOR)


def set_factors(groups: Sequence[Group], taken: int) -> None:
    """Store the next step's ``schedule_factor`` and effective rate ``step_lr`` in each group."""
    for group in groups:
        group["schedule_factor"] = schedule_factor(group, taken)
        group["step_lr"] = float(effective_lr(group))


def warning_past_the_end(group: Mapping[str, Any], taken: int) -> str | None:
    """Return a warning message if the step comes after the end of training, otherwise None."""
    if group["cooldown"] is not None and taken >= sum(group["cooldown"][:2]):
        end, instead = "its cooldown ended", ", or load a state from before the cooldown"
    elif group["steps"] is not None and taken >= group["steps"]:
        end, instead = f"steps={group['steps']}", ""
    else:
        return None
    return (
        f"Step {taken + 1:,} comes after the end of training ({end}), so its learning rate is at most {FLOOR:.0%} of the "
        "largest learning rate. To continue training, call optimizer.set_steps(n) with the total number of "
        f"steps{instead}. (This warning appears once per optimizer.)"
    )


def move_end(groups: Sequence[Group], steps: Any) -> None:
    """Implement ``MuSOAP.set_steps``."""
    taken = groups[0]["taken"]
    check_count("steps", steps, "optimizer steps")
    if steps <= taken:
        raise MupError(
            f"set_steps({steps}) is not possible because {taken:,} steps were already taken. Pass the total number of "
            "steps, including these, or end training with optimizer.cooldown(n)."
        )
    for group in groups:
        if group["base_scale"] is not None:
            scale = default_lr(steps) / group["base_lr"] if group["base_lr"] else 1.0
            # Do not raise the rate during a run.
            group["base_scale"] = min(scale, _base_scale(group, taken)) if taken > 0 else scale
        group.update(steps=int(steps), cooldown=None)
    set_factors(groups, taken)


def begin_cooldown(groups: Sequence[Group], steps: Any) -> None:
    """Implement ``MuSOAP.cooldown``."""
    taken = groups[0]["taken"]
    check_count("the length of a cooldown", steps, "optimizer steps")
    if (former := groups[0]["cooldown"]) is not None:
        raise MupError(
            f"A cooldown of {former[1]:,} steps already began after step {former[0]:,}. To continue training, call "
            "optimizer.set_steps(n) with the total number of steps, or load a state from before the cooldown."
        )
    if steps > taken:
        raise MupError(
            f"A cooldown cannot be longer than the run so far, which has {taken:,} steps, got cooldown({steps}). Pass at "
            f"most {taken:,}, or build MuSOAP(model, steps=…) if the total number of steps is known."
        )
    set_factors(groups, taken)
    for group in groups:
        group["cooldown"] = (taken, int(steps), group["step_lr"])


def upgraded(group: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a group that release 0.3.0 or earlier saved to the keys of this release."""
    group = {_RENAMED.get(key, key): value for key, value in group.items() if key != "step_mults"}
    steps = group.get("steps")
    if "base_scale" in group:
        return group
    follows = group.get("lr_follows", None if steps is None else "steps") if group.get("layouts") else None
    scale: Any = "anytime" if follows == "progress" or (follows and steps is None) else None
    if follows and scale is None:
        scale = min(default_lr(steps), group.get("most", math.inf)) / group["base_lr"] if group["base_lr"] else 1.0
    return {**BEGINNING, **group, "base_scale": scale}
