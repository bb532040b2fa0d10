"""What errors over a few rates say: where the least one is, what another rate loses, and which rate to try next."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.interpolate import PchipInterpolator

from neuralop_mup.lab.statistics import Optimum, find_optimum

# In factors of 2, what a parabola is fitted to: exactly one, where ``tune`` takes a little more. Rates are rounded, so that
# this takes 0.03 and 0.06, and not 0.02121 and 0.04243; the published tables were made so.
_NEAR = 1 + 1e-6
_BESIDE = 0.05  # in factors of 2; rates are rounded


@dataclass(frozen=True)
class Curve:
    """Errors over rates, one setting's.

    Attributes
    ----------
    errors : mapping of float to sequence of float
        Rate → errors of its seeds, infinite where a run did not train.
    """

    errors: Mapping[float, Sequence[float]]

    @property
    def seeds(self) -> int:
        """How many each rate has at least."""
        return min(map(len, self.errors.values()))

    def alone(self) -> list[Curve]:
        """Each seed's own."""
        return [Curve({lr: [own[seed]] for lr, own in self.errors.items()}) for seed in range(self.seeds)]

    @cached_property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """log2 of the rates that trained, and the means of the logarithms of their errors."""
        trained = {lr: own for lr, own in sorted(self.errors.items()) if all(map(math.isfinite, own))}
        return np.log2(list(trained)), np.array([np.log(own).mean() for own in trained.values()])

    @cached_property
    def _parabola(self) -> Optimum | None:
        return find_optimum(self.errors, _NEAR)

    @property
    def best(self) -> float:
        """log2 of the best rate: the vertex of the parabola, or the best one that was tried."""
        x, y = self.points
        return float(x[y.argmin()]) if self._parabola is None else math.log2(self._parabola.value)

    @property
    def curvature(self) -> float:
        """Second derivative of log error by log2 of the rate at the best one; 0 where it is not known."""
        return 0.0 if self._parabola is None else self._parabola.curvature

    @property
    def inside(self) -> bool:
        """Whether lower and higher rates were tried than the best of them."""
        x, y = self.points
        rates = np.log2(list(self.errors))
        return bool(rates.min() < x[y.argmin()] < rates.max())

    def regret(self, at: float) -> float:
        """What a rate (log2 of it) loses, as a share of the least error.

        Near the best one by the parabola, so that the lowest of some errors with noise is not taken for the least; further
        off between the errors themselves, and beyond them by the slope at their end or the parabola, whichever is more.
        Infinite from the first rate that did not train.
        """
        failed = [math.log2(lr) for lr, own in self.errors.items() if not all(map(math.isfinite, own))]
        x, y = self.points
        if any(at >= bad > self.best for bad in failed) or any(at <= bad < self.best for bad in failed):
            return math.inf
        near = self.curvature * (at - self.best) ** 2 / 2
        fitted = self._parabola
        if fitted is not None and math.log2(fitted.low) <= at <= math.log2(fitted.high):
            return math.expm1(near)
        far = max(0.0, self._between(at) - y.min())
        return math.expm1(far if x[0] - _BESIDE < at < x[-1] + _BESIDE else max(near, far))

    def _between(self, at: float) -> float:
        x, y = self.points
        if len(x) < 2:
            return float(y[0])
        if x[0] <= at <= x[-1]:
            return float(PchipInterpolator(x, y)(at))
        end, before = (0, 1) if at < x[0] else (-1, -2)
        return float(y[end] + (y[end] - y[before]) / (x[end] - x[before]) * (at - x[end]))


def searched(
    error_of: Callable[[float], float | None], start: float, most: int = 12, spread: float = 4.0
) -> tuple[dict[float, float], list[float]]:
    """A search of the best rate as far as it is done: a factor to either side of where it starts, then a factor of 2 to
    either side of the best, until both neighbours of the best are measured, so that no best rate lies at an edge.

    Parameters
    ----------
    error_of : callable
        Rate → error, infinite where it did not train; None where that is not measured.
    most : int
        Rates that are tried at most, where errors have no least.
    spread : float
        The first factor: 2 where the start is known to be near.

    Returns
    -------
    dict of float to float
        Rate → error.
    list of float
        Rates that are wanted next; none where the search is done.
    """
    found: dict[float, float] = {}
    asked = [rounded(start * factor) for factor in (1.0, 1 / spread, spread)]
    while asked:
        errors = {lr: error_of(lr) for lr in asked}
        found.update({lr: error for lr, error in errors.items() if error is not None})
        if left := [lr for lr in asked if errors[lr] is None]:
            return found, left
        best = min(found, key=found.__getitem__)
        beside = (rounded(best / 2), rounded(best * 2))
        asked = [lr for lr in beside if lr not in found][: max(0, most - len(found))]
    return found, []


def ninth_decile(values: Sequence[float]) -> float:
    """The least of them that nine of ten do not exceed."""
    return float(np.quantile(values, 0.9, method="higher"))


def rounded(lr: float) -> float:
    """A rate as records name it."""
    return float(f"{lr:.3g}")
