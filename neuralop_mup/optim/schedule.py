"""How learning rates follow the length of a training: their height by its steps, and their end by a cosine or a cooldown.

What a group says, ``group["lr"]``, stays the schedule's. Each step is made with ``lr · length_mult``, where

    lr · length_mult = min(h · lr, h · p · (1 + cos π (t − m)/(N − m)) / 2, cooldown).

t is the number of steps before this one, N that of the whole training, p the largest ``lr`` so far and m the step at which
it was reached first. Under a cosine to zero at N, with a warm-up or not, the second is the first, so that nothing changes;
every other schedule is brought to zero. h is 1, but where the rate follows from a length that was not known at first.

Everything that is remembered are numbers in the groups, so that it is saved, loaded and copied with them: ``taken`` (t),
``steps`` (N or None), ``lr_follows`` (what the rate follows from: "steps", "progress", or None for a rate that was given),
``most`` (of a rate that follows),
``peak`` (p and m), ``cooldown`` (its first step, its length, and the rate at its beginning), ``seconds`` (that are left) and
``budget`` (that were given). ``lr`` is meant with its other factors (``step_mults``), which a step's own groups have in it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from neuralop_mup.core.rules import length_factor
from neuralop_mup.errors import MupError
from neuralop_mup.optim.learning_rate import step_lr, step_mult
from neuralop_mup.validation import check_count, check_positive

#: The learning rate of trainings of so many steps, under a schedule that ends with them.
LR = 3e-2
USUAL_STEPS = 1000
#: What of the largest rate is left after the end.
FLOOR = 0.01
# Of an unknown length: this much of the rate of a training that ends after so many steps more than there were.
_SHARE, _MORE = 0.7, 100
# Of trained weights: the largest rate, the steps that lie behind them, and the largest rate over the error at the start.
_TRAINED_MOST, _TRAINED_STEPS, _TRAINED_SHARE = 0.06, 3000, 0.25
_LARGEST_ERROR = 3.0
# Relative differences that are rounding.
_ROUNDING = 1e-6
# So many steps are timed before their time is trusted, and between two looks at the clock of all.
TIMED = 20
_BUDGET = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")

#: What a group remembers of a training that begins.
BEGINNING: dict[str, Any] = {
    "taken": 0,
    "steps": None,
    "lr_follows": None,
    "most": math.inf,
    "peak": None,
    "cooldown": None,
    "seconds": None,
    "budget": None,
    "length_mult": 1.0,
}

Group = dict[str, Any]
clock = time.perf_counter


def usual_lr(steps: int | None = None, lr: float = LR) -> float:
    """The learning rate of a training that was tuned nowhere: ``lr``, carried to ``steps`` by the rule for lengths.

    No update is larger than the weights that it moves, so that it is at most 1.
    """
    return lr if steps is None else min(1.0, lr * length_factor(steps, USUAL_STEPS))


def trained_lr(steps: int | None, start_error: float | None) -> float:
    """The learning rate of a trained model on other data, from its relative error e there before the first step.

        min(0.06, e / 4, max(e · lr(steps), lr(steps + 3000))),

    where lr is that of fresh weights. A higher rate than e / 4 throws the model to a multiple of its error. Below that the
    rate is that of a training that has 3,000 steps behind it, which is the whole rule where e is not known, or a higher one
    where the new problem is far from the old one and steps are few (benchmarks/results/fine-tuning.md).
    """
    later = usual_lr((USUAL_STEPS if steps is None else steps) + _TRAINED_STEPS)
    if start_error is None:
        return later
    return min(_TRAINED_MOST, _TRAINED_SHARE * start_error, max(start_error * usual_lr(steps), later))


def check_start_error(start_error: Any, lr: float | None) -> None:
    """Refuse an error that is none, or is in percent, and one beside a rate."""
    check_positive("start_error", start_error)
    if start_error > _LARGEST_ERROR:
        raise MupError(
            f"start_error is {start_error!r}, and a relative error of 1 is that of predicting zero: give it as a fraction, "
            "0.06 for 6 %, or train fresh weights if it is that large."
        )
    if lr is not None:
        raise MupError(
            f"lr is {lr!r} and start_error is {start_error!r}, but the learning rate of a trained model follows from its "
            "error: leave out one of them."
        )


def progress_lr(taken: int) -> float:
    """The learning rate after so many steps of a training whose length is not known: 0.7 · 0.03 · √(1000 / (t + 100)).

    It goes as the rule for lengths, as if the training were to end soon, and is lower than that rule's since nothing has
    brought it down yet (docs/evidence/learning_rate.md).
    """
    return _SHARE * usual_lr(taken + _MORE)


def cosine(step: int, begin: int, end: int) -> float:
    """From 1 at ``begin`` to 0 at ``end``."""
    return (1 + math.cos(math.pi * (step - begin) / (end - begin))) / 2


def seconds_of(given: str, of: str = "steps") -> float:
    """The seconds of ``"3h"``, ``"90m"``, ``"45s"`` or ``"1h30m"``; ``of``: the argument that it was given as."""
    found = _BUDGET.fullmatch(given)
    hours, minutes, seconds = (float(part or 0) for part in (found.groups() if found else ("0", "0", "0")))
    total = 3600 * hours + 60 * minutes + seconds
    if not 0 < total < math.inf:
        raise MupError(
            f"{of} is {given!r}; give the number of {of} of the whole training, or the time that it may take as '3h', "
            "'90m', '45s' or '1h30m'."
        )
    return total


def height(group: Mapping[str, Any], taken: int) -> float:
    """h: the rate that follows from what is known of the length, over that which the group was built with."""
    follows, base_lr = group.get("lr_follows"), group.get("base_lr")
    if follows is None or group["layouts"] is None or not base_lr:  # AdamW's does not follow the length
        return 1.0
    lr = progress_lr(taken) if follows == "progress" or group["steps"] is None else usual_lr(group["steps"])
    return min(lr, group.get("most", math.inf)) / base_lr


def note_peaks(groups: Sequence[Group], taken: int) -> None:
    """Remember the largest learning rates that schedules have come to, at a step that is taken now."""
    for group in groups:
        lr, peak = group["lr"] * step_mult(group), group.get("peak")
        if group["steps"] is not None and (peak is None or lr > peak[0] * (1 + _ROUNDING)):
            group["peak"] = (lr, taken)


def follow_length(groups: Sequence[Group], taken: int) -> None:
    """Set each group's ``length_mult``, and with it ``step_lr``, for the step that comes after ``taken`` steps."""
    for group in groups:
        group["length_mult"] = _mult(group, taken)
        group["step_lr"] = step_lr(group)


def _mult(group: Mapping[str, Any], taken: int) -> float:
    lr, h = group["lr"] * step_mult(group), height(group, taken)
    most = min(h * _ending(group, taken), _cooling(group, taken))
    return h if lr <= 0 or h * lr <= most * (1 + _ROUNDING) else most / lr


def _ending(group: Mapping[str, Any], taken: int) -> float:
    """The cosine to the last step, of ``lr``; infinite where there is none."""
    if group["steps"] is None or group.get("peak") is None:
        return math.inf
    lr, begin = group["peak"]
    return lr * (cosine(taken, begin, group["steps"]) if taken < group["steps"] else FLOOR)


def _cooling(group: Mapping[str, Any], taken: int) -> float:
    """What a cooldown leaves of the effective learning rate, 1 − √(its part that is over); infinite where there is none.

    Errors were 2 % below those of a line on three problems, and 5 % below those of a cosine on two, with one seed.
    """
    if group.get("cooldown") is None:
        return math.inf
    begin, length, lr = group["cooldown"]
    return lr * (1 - math.sqrt((taken - begin) / length) if taken < begin + length else FLOOR)


def past_the_end(group: Mapping[str, Any], taken: int) -> str | None:
    """What is said of a step after the end; None before it."""
    if group.get("cooldown") is not None and taken >= sum(group["cooldown"][:2]):
        ended, instead = "its cooldown", ", or load a state from before the cooldown"
    elif group["steps"] is not None and taken >= group["steps"]:
        ended = f"steps={group['steps']}" if group.get("seconds") is None else "the time that was given as steps"
        instead = ", after a state is loaded if one is"
    else:
        return None
    return (
        f"This is step {taken + 1:,} of a training that {ended} has ended: it goes on with at most {FLOOR:.0%} of its "
        f"largest learning rate. To train on, call optimizer.set_steps(n) with the number of all its steps{instead}. (Said "
        "once for each optimizer.)"
    )


def say_whose_end(ours: Group, theirs: Group) -> str | None:
    """What is said of a state that has another end than the optimizer that it is loaded into; None if it has not."""
    if theirs["seconds"] is not None and theirs["budget"] is None:  # a state of 0.3.0, which has what is left alone
        return None
    built, saved = (g["steps"] if g["seconds"] is None else f"{g['budget'] / 3600:.6g}h" for g in (ours, theirs))
    if built in (None, saved):
        return None
    n = built if isinstance(built, int) else "n"
    return (
        f"This optimizer was built with steps={built!r}, and the state that it loads has {saved!r}, which holds, as all "
        "settings of a state do. If the training is to end otherwise, give the number of all its steps: call "
        f"optimizer.set_steps({n}) now."
    )


def move_end(groups: Sequence[Group], steps: Any, taken: int) -> None:
    """``MuSOAP.set_steps``."""
    check_count("steps", steps, "optimizer steps")
    if steps <= taken:
        raise MupError(
            f"set_steps({steps}) lies in the past: {taken:,} steps were taken, so give the number of all steps, those "
            "included, or bring the training to its end by optimizer.cooldown(n)."
        )
    for group in groups:
        follows = "steps" if group.get("lr_follows") else None
        if group.get("lr_follows") == "progress" and taken > 0:  # the rest is no fresh training, at the rate of a short one
            group["most"] = progress_lr(taken)
        group.update(steps=int(steps), seconds=None, cooldown=None, lr_follows=follows)
    follow_length(groups, taken)


def begin_cooldown(groups: Sequence[Group], steps: Any, taken: int) -> None:
    """``MuSOAP.cooldown``."""
    check_count("the length of a cooldown", steps, "optimizer steps")
    if (former := groups[0].get("cooldown")) is not None:
        raise MupError(
            f"A cooldown of {former[1]:,} steps began after step {former[0]:,} already: to train on, call "
            "optimizer.set_steps(n) with the number of all steps, or load a state from before it."
        )
    if steps > taken:
        raise MupError(
            f"cooldown({steps}) is longer than the training so far, which has {taken:,} steps: give at most these, or "
            "MuSOAP(model, steps=…) where the length is known from the start."
        )
    follow_length(groups, taken)
    for group in groups:
        group["cooldown"] = (taken, int(steps), step_lr(group))


class Stopwatch:
    """Makes steps of a time: ``steps`` of groups with ``seconds``. Time between two runs does not count."""

    def __init__(self) -> None:
        self._before: float | None = None
        self._timed, self._seconds = 0, 0.0

    def before_step(self, groups: Sequence[Group], taken: int) -> None:
        """Count the last step's time, and now and then what is left in steps."""
        now, first = clock(), groups[0]
        if self._before is not None:
            self._timed += 1
            self._seconds += now - self._before
            first["seconds"] -= now - self._before
        self._before = now
        # At steps that all processes have in common. Of a time for few steps the first tell as much as there is.
        if self._timed == 0 or (self._timed % TIMED and self._timed not in (1, 2, 5, 10)):
            return
        spent, left = _of_the_first(self._seconds, first["seconds"], first["params"][0].device)
        for group in groups:
            group["seconds"] = left
            if self._timed >= TIMED or spent >= 0.1 * (spent + left):
                group["steps"] = max(taken + (1 if left > 0 else 0), taken + round(left / (spent / self._timed)))


def _of_the_first(spent: float, left: float, device: torch.device) -> tuple[float, float]:
    """The times of the first process, so that all have the same learning rate."""
    if not (dist.is_available() and dist.is_initialized()):
        return spent, left
    times = torch.tensor([spent, left], dtype=torch.float64, device=device)
    dist.broadcast(times, 0)
    spent, left = times.tolist()
    return spent, left
