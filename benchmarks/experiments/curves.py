"""Errors at several learning rates: the best rate, the regret of other rates, and which rates to try next."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.interpolate import PchipInterpolator

from neuralop_mup.lab.statistics import Optimum, find_optimum

# The parabola is fitted to rates within exactly this many factors of 2 of the best; ``tune`` uses slightly more. Rates are
# rounded, so this range includes 0.03 and 0.06 but not 0.02121 and 0.04243. The published tables use it.
_RANGE = 1 + 1e-6
_ROUNDING = 0.05  # tolerance for rounded rates, in factors of 2


@dataclass(frozen=True)
class Curve:
    """Errors of one setting at several learning rates.

    Attributes
    ----------
    errors : mapping of float to sequence of float
        Learning rate → errors of the seeds, infinite if the training failed.
    """

    errors: Mapping[float, Sequence[float]]

    @property
    def seeds(self) -> int:
        """Return the number of seeds that all rates have."""
        return min(map(len, self.errors.values()))

    def by_seed(self) -> list[Curve]:
        """Return a curve for each seed."""
        return [Curve({lr: [errors[seed]] for lr, errors in self.errors.items()}) for seed in range(self.seeds)]

    @cached_property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """Return log2 of the rates without failed trainings, and the means of the logarithms of their errors."""
        trained = {lr: errors for lr, errors in sorted(self.errors.items()) if all(map(math.isfinite, errors))}
        return np.log2(list(trained)), np.array([np.log(errors).mean() for errors in trained.values()])

    @cached_property
    def _parabola(self) -> Optimum | None:
        return find_optimum(self.errors, _RANGE)

    @property
    def best(self) -> float:
        """Return log2 of the best rate: the vertex of the parabola, or the best rate that was tried."""
        x, y = self.points
        return float(x[y.argmin()]) if self._parabola is None else math.log2(self._parabola.value)

    @property
    def curvature(self) -> float:
        """Return the second derivative of log error by log2 of the rate at the best one, or 0 if it is unknown."""
        return 0.0 if self._parabola is None else self._parabola.curvature

    @property
    def inside(self) -> bool:
        """Return whether lower and higher rates than the best one were tried."""
        x, y = self.points
        rates = np.log2(list(self.errors))
        return bool(rates.min() < x[y.argmin()] < rates.max())

    def regret(self, at: float) -> float:
        """Return by how much the error at a rate (given as its log2) exceeds the lowest error, as a share of it.

        The parabola gives the regret near the best rate, so that noise does not count. Elsewhere the errors are
        interpolated. Beyond the rates that were tried, the error is extrapolated from the last two or from the parabola,
        whichever is higher. The regret is infinite from the first rate with a failed training.
        """
        failed = [math.log2(lr) for lr, errors in self.errors.items() if not all(map(math.isfinite, errors))]
        x, y = self.points
        if any(at >= bad > self.best for bad in failed) or any(at <= bad < self.best for bad in failed):
            return math.inf
        fitted = self.curvature * (at - self.best) ** 2 / 2
        parabola = self._parabola
        if parabola is not None and math.log2(parabola.low) <= at <= math.log2(parabola.high):
            return math.expm1(fitted)
        interpolated = max(0.0, self._interpolated(at) - y.min())
        inside = x[0] - _ROUNDING < at < x[-1] + _ROUNDING
        return math.expm1(interpolated if inside else max(fitted, interpolated))

    def _interpolated(self, at: float) -> float:
        """Return the logarithm of the error at a rate, extrapolated linearly beyond the rates that were tried."""
        x, y = self.points
        if len(x) < 2:
            return float(y[0])
        if x[0] <= at <= x[-1]:
            return float(PchipInterpolator(x, y)(at))
        last, previous = (0, 1) if at < x[0] else (-1, -2)
        return float(y[last] + (y[last] - y[previous]) / (x[last] - x[previous]) * (at - x[last]))


class Search(NamedTuple):
    """The state of a search for the best learning rate.

    Attributes
    ----------
    errors : dict of float to float
        Learning rate → error.
    missing : list of float
        Learning rates to measure next; empty at the end of the search.
    """

    errors: dict[float, float]
    missing: list[float]

    @property
    def best(self) -> float | None:
        """Return the rate with the lowest error, or None while the search is not finished."""
        return None if self.missing else min(self.errors, key=self.errors.__getitem__, default=None)


def searched(
    error_of: Callable[[float], float | None],
    start: float | None,
    most: int = 12,
    spread: float = 4.0,
    factors: Sequence[float] | None = None,
) -> Search:
    """Search the best learning rate.

    The search begins at ``start`` and at a factor to either side. Then it tries half and twice the best rate until both were
    tried, so that the best rate is not at an edge.

    Parameters
    ----------
    error_of : callable
        Learning rate → error, infinite if the training failed, None if it was not measured.
    start : float or None
        None while it depends on another search that is not finished.
    most : int
        Largest number of rates, for errors without a minimum.
    spread : float
        First factor. Pass 2 if the best rate is close to ``start``.
    factors : sequence of float, optional
        All first factors, instead of 1, 1/``spread`` and ``spread``.
    """
    found: dict[float, float] = {}
    first = (factors or (1.0, 1 / spread, spread))[:most]
    requested = [] if start is None else [rounded(start * factor) for factor in first]
    while requested:
        errors = {lr: error_of(lr) for lr in requested}
        found.update({lr: error for lr, error in errors.items() if error is not None})
        if unmeasured := [lr for lr in requested if errors[lr] is None]:
            return Search(found, unmeasured)
        best = min(found, key=found.__getitem__)
        neighbours = (rounded(best / 2), rounded(best * 2))
        requested = [lr for lr in neighbours if lr not in found][: max(0, most - len(found))]
    return Search(found, [])


def rounded(lr: float) -> float:
    """Return a learning rate with the three digits that records have."""
    return float(f"{lr:.3g}")
