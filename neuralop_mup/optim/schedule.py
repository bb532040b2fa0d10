r"""How a training ends: each step's factor on the learning rate, a pure function of a group and the number of steps taken.

With t steps taken, each step is made with ``lr · schedule_factor``, where

    lr · schedule_factor = min(h · lr,  h · p · (1 + cos π (t − m)/(N − m)) / 2,  c · (1 − √((t − b)/n))).

``lr`` is the group's rate with its other factors (:mod:`neuralop_mup.optim.learning_rate`). The second term ends a training
of N steps: a cosine from the largest rate so far, p, which falls to zero at step N. Under a schedule that itself falls to
zero at N it is the larger one, and changes nothing. The third term is a cooldown of n steps that began after b steps at the
rate c. h is 1, except for a default rate whose number of steps was not known at first.

The cosine begins at step m, where p was reached. A rise of the rate from p to lr gives it back a part of its length,

    N − m  ←  (N − m) · (p / lr)^10,  at most to the present step,

so that the factor is continuous in lr: a warm-up moves m to its last step, and a rise by rounding moves it by nothing. A
relative change ε of one rate changes later ones by at most about 16 ε of the largest rate; if ``set_steps`` shortens the
training afterwards, by that times the ratio of the lengths.

Every number that a step needs stands in the group, so that it is saved, loaded and copied with it: ``taken``, ``steps`` (N),
``base_scale`` (h; "anytime" where it follows from the steps taken, None where the user gave the rate), ``peak`` (p, m) and
``cooldown`` (b, n, c).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from neuralop_mup.core.rules import length_factor
from neuralop_mup.errors import MupError
from neuralop_mup.optim.learning_rate import effective_lr, unscheduled_lr
from neuralop_mup.validation import check_count, check_positive

#: Default learning rate of a training of 1,000 steps, under a schedule that ends with it.
LR = 3e-2
USUAL_STEPS = 1000
#: The part of the largest rate that remains after the end.
FLOOR = 0.01
# With an unknown length: this part of the default rate of a training that ends 100 steps from now.
_ANYTIME_SHARE, _ANYTIME_STEPS = 0.7, 100
# Trained weights: the largest rate, the steps counted as taken before, and the largest rate over the error at the start.
_TRAINED_MOST, _TRAINED_STEPS, _TRAINED_SHARE = 0.06, 3000, 0.25
_LARGEST_ERROR = 3.0
# A rise of the rate by 7 % halves the part of the cosine that is over.
_RESTART = 10
_ROUNDING = 1e-6

#: What a group stores at the beginning of a training.
BEGINNING: dict[str, Any] = {
    "taken": 0,
    "steps": None,
    "base_scale": None,
    "peak": None,
    "cooldown": None,
    "depth_mult": 1.0,
    "schedule_factor": 1.0,
}

# Keys that release 0.3.0 saved under other names.
_RENAMED = {"length_mult": "schedule_factor", "period": "mode_stride"}

Group = dict[str, Any]


def default_lr(steps: int | None = None, lr: float = LR) -> float:
    """Return the default learning rate of a training of ``steps`` steps: ``lr`` · √(1000 / steps), at most 1.

    No update may be larger than the weights that it changes.
    """
    return lr if steps is None else min(1.0, lr * length_factor(steps, USUAL_STEPS))


def trained_lr(steps: int | None, start_error: float | None) -> float:
    """Return the default learning rate for trained weights, from their relative error e on the new data.

        min(0.06, e / 4, max(e · lr(steps), lr(steps + 3000))),

    where lr is that of fresh weights. A rate above e / 4 raises the error to a multiple of e first. Otherwise the rate is
    that of a training with 3,000 steps behind it, which is the whole rule if e is not known, or a higher rate if the new
    problem is far from the old one and steps are few (benchmarks/results/fine-tuning.md).
    """
    later = default_lr((USUAL_STEPS if steps is None else steps) + _TRAINED_STEPS)
    if start_error is None:
        return later
    return min(_TRAINED_MOST, _TRAINED_SHARE * start_error, max(start_error * default_lr(steps), later))


def check_start_error(start_error: Any, lr: float | None) -> float:
    """Return a relative error as a number; raise MupError if it is not above 0, in percent, or combined with ``lr``."""
    error = float(start_error) if isinstance(start_error, torch.Tensor) and start_error.numel() == 1 else start_error
    check_positive("start_error", error)
    if error > _LARGEST_ERROR:
        raise MupError(
            f"start_error is {error!r}, and predicting zero has a relative error of 1. Give a fraction, 0.06 for 6 %, "
            "or train fresh weights."
        )
    if lr is not None:
        raise MupError(
            f"lr is {lr!r} and start_error is {error!r}, but start_error determines the learning rate. Leave out one."
        )
    return float(error)


def anytime_lr(taken: int) -> float:
    """Return the rate after ``taken`` steps of a training of unknown length: 0.7 · 0.03 · √(1000 / (taken + 100)).

    It is the default rate of a training that ends soon, reduced because no schedule has lowered the rate yet
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
    """Return the factor on a group's learning rate for the step that follows ``taken`` steps (module docstring)."""
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
    """Errors under 1 − √x were 2 % lower than under 1 − x on three problems, and 5 % lower than under a cosine on two."""
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
    """Return the warning for a step after the end; None before it."""
    if group["cooldown"] is not None and taken >= sum(group["cooldown"][:2]):
        end, instead = "its cooldown ended", ", or load a state from before the cooldown"
    elif group["steps"] is not None and taken >= group["steps"]:
        end, instead = f"steps={group['steps']}", ""
    else:
        return None
    return (
        f"Step {taken + 1:,} comes after the end of this training ({end}), so its learning rate is at most {FLOOR:.0%} of "
        f"the largest one. To train on, call optimizer.set_steps(n) with the number of all steps{instead}. (This warning "
        "appears once per optimizer.)"
    )


def move_end(groups: Sequence[Group], steps: Any) -> None:
    """Implement ``MuSOAP.set_steps``."""
    taken = groups[0]["taken"]
    check_count("steps", steps, "optimizer steps")
    if steps <= taken:
        raise MupError(
            f"set_steps({steps}): {taken:,} steps were already taken. Give the number of all steps, including those, or end "
            "the training with optimizer.cooldown(n)."
        )
    for group in groups:
        if group["base_scale"] is not None:
            scale = default_lr(steps) / group["base_lr"] if group["base_lr"] else 1.0
            # The rate of a running training does not rise.
            group["base_scale"] = min(scale, _base_scale(group, taken)) if taken > 0 else scale
        group.update(steps=int(steps), cooldown=None)
    set_factors(groups, taken)


def begin_cooldown(groups: Sequence[Group], steps: Any) -> None:
    """Implement ``MuSOAP.cooldown``."""
    taken = groups[0]["taken"]
    check_count("the length of a cooldown", steps, "optimizer steps")
    if (former := groups[0]["cooldown"]) is not None:
        raise MupError(
            f"A cooldown of {former[1]:,} steps already began after step {former[0]:,}. To train on, call "
            "optimizer.set_steps(n) with the number of all steps, or load a state from before the cooldown."
        )
    if steps > taken:
        raise MupError(
            f"cooldown({steps}) is longer than the training so far, {taken:,} steps. Give at most {taken:,}, or build "
            "MuSOAP(model, steps=…) if the length is known from the start."
        )
    set_factors(groups, taken)
    for group in groups:
        group["cooldown"] = (taken, int(steps), group["step_lr"])


def upgraded(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved group with the keys of this release, from a state of release 0.3.0 or an earlier one."""
    group = {_RENAMED.get(key, key): value for key, value in group.items() if key != "step_mults"}
    steps = group.get("steps")
    if "base_scale" in group:
        return group
    follows = group.get("lr_follows", None if steps is None else "steps") if group.get("layouts") else None
    scale: Any = "anytime" if follows == "progress" or (follows and steps is None) else None
    if follows and scale is None:
        scale = min(default_lr(steps), group.get("most", math.inf)) / group["base_lr"] if group["base_lr"] else 1.0
    return {**BEGINNING, **group, "base_scale": scale}
