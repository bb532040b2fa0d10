"""Searches at a target, simulated on its curves: its error at any learning rate, successive halving and Hyperband."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator

# ----------------------------------------------------------------------------------------- what a target's curves say


Curve = dict[float, list[float]]  # learning rate at the target → errors of its seeds


class Landscape:
    """The target's error at any learning rate of the grid's range: its logarithm, interpolated over log lr.

    Between grid points it is a cubic without overshoot (Fritsch & Carlson 1980), so that the least value is that of a grid
    point. Beyond them it goes on as the line through the last two, up to 1: the error of a model that predicts nothing.
    Grid points are means over their seeds.
    """

    def __init__(self, curve: Curve) -> None:
        self._x = np.log(sorted(curve))
        self._y = np.log([fmean(curve[lr]) for lr in sorted(curve)])
        self._inside = PchipInterpolator(self._x, self._y)
        self.least = min(fmean(errors) for errors in curve.values())

    def __call__(self, lr: Any) -> Any:
        """Errors at learning rates."""
        x, y, at = self._x, self._y, np.log(lr)
        below, above = (y[i] + (at - x[i]) * (y[j] - y[i]) / (x[j] - x[i]) for i, j in ((0, 1), (-1, -2)))
        within = self._inside(np.clip(at, x[0], x[-1]))
        log = np.where(at < x[0], below, np.where(at > x[-1], above, within))
        return np.exp(np.minimum(log, max(0.0, y.max())))

    def regret(self, lr: Any) -> Any:
        """What these learning rates lose against the best one, as a share of its error."""
        return self(lr) / self.least - 1


# ------------------------------------------------------------------------------- searches at the target, simulated


Rungs = Mapping[int, Callable[[Any], Any]]  # steps → error after so many, by learning rate


def halving(lrs: np.ndarray, rungs: Rungs, keep: int = 3) -> tuple[float, int]:
    """Successive halving: the learning rate it ends with, and the steps that it paid for.

    All are trained to the first rung; the better ones, one in ``keep``, go on from there to the next. A run that goes on
    pays for its further steps alone.
    """
    paid, last = 0, 0
    order = np.arange(len(lrs))
    for steps, error in rungs.items():
        if last:
            order = order[: max(1, len(order) // keep)]
        paid += len(order) * (steps - last)
        last = steps
        order = order[np.argsort(error(lrs[order]), kind="stable")]
    return float(lrs[order[0]]), paid


def hyperband(draw: Callable[[int], np.ndarray], rungs: Rungs, keep: int = 3) -> tuple[float, int]:
    """Hyperband (Li et al. 2018): a bracket of successive halving from each rung, and the best of what they end with.

    Of B brackets the one with s + 1 rungs starts with ⌈B/(s + 1) · keep^s⌉ learning rates.
    """
    steps = list(rungs)
    found, paid = [], 0
    for s in range(len(steps) - 1, -1, -1):
        first = math.ceil(len(steps) / (s + 1) * keep**s)
        lr, cost = halving(draw(first), {at: rungs[at] for at in steps[-s - 1 :]}, keep)
        found.append(lr)
        paid += cost
    found = np.array(found)
    return float(found[np.argmin(rungs[steps[-1]](found))]), paid
