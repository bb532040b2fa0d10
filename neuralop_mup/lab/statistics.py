"""Statistics over a few seeds: the optimum of a hyperparameter, and ratios of losses with confidence intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

#: Minimum number of seeds for a difference to be reported. Two runs are too few to estimate a spread.
SEEDS = 3
_RANGE = 1.05  # distance from the best value, in factors of 2; slightly above 1 because learning rates are rounded
_STEEP = math.log(2)  # losses up to twice the lowest one are fitted; above that, curves are not parabolic
_FLAT = 1e-9  # smaller curvatures may result from rounding


@dataclass(frozen=True)
class Optimum:
    """The vertex of a parabola fitted to the loss as a function of a hyperparameter.

    Attributes
    ----------
    value : float
        Value of the hyperparameter at the vertex.
    curvature : float
        Second derivative of the logarithm of the loss with respect to log2 of the value.
    low, high : float
        The lowest and highest fitted values, between which the vertex lies.
    """

    value: float
    curvature: float
    low: float
    high: float


def find_optimum(losses: Mapping[float, Sequence[float | None]], reach: float = _RANGE) -> Optimum | None:
    """Estimate the optimum of a hyperparameter between the values that were tried.

    A parabola is fitted by least squares to the mean of the log losses over seeds, as a function of log2 of the value. The
    fit uses the values within a factor of 2 of the best one whose loss is at most twice the lowest loss.

    Parameters
    ----------
    losses : mapping of float to sequence
        Maps each value to its losses, one per seed. A loss that is None or not finite marks a failed run. Values with a
        failed seed are ignored.
    reach : float, default 1.05
        Largest distance of fitted values from the best one, in factors of 2.

    Returns
    -------
    Optimum or None
        None if fewer than three values are available (for example at an edge or next to a failed run), if the parabola has
        no minimum between them, or if any value or loss is not positive.
    """
    whole = {x: own for x, own in sorted(losses.items()) if own and all(y is not None and math.isfinite(y) for y in own)}
    if not whole or min(whole) <= 0 or min(map(min, whole.values())) <= 0:
        return None
    values = list(whole)
    x = np.log2(values)
    y = np.array([np.log(own).mean() for own in whole.values()])
    lowest = x[y.argmin()]
    fitted = np.flatnonzero((abs(x - lowest) <= reach) & (y <= y.min() + _STEEP))
    if len(fitted) < 3:
        return None
    a, b, _ = np.polyfit(x[fitted] - lowest, y[fitted], 2)
    vertex = lowest - b / (2 * a) if a > _FLAT else math.nan
    if not x[fitted[0]] <= vertex <= x[fitted[-1]]:
        return None
    return Optimum(float(2.0**vertex), float(2 * a), values[fitted[0]], values[fitted[-1]])


def ratio_between(ours: Sequence[float], other: Sequence[float]) -> tuple[float, float, float] | None:
    """Return the ratio of the losses of two methods, paired by seed, and the ends of its 95 % confidence interval.

    The ratio is the geometric mean over seeds. The half-width of the interval, in logarithms, is Student's t times the
    standard error.

    Parameters
    ----------
    ours, other : sequence of float
        Losses, one per seed, in the same order.

    Returns
    -------
    tuple of float or None
        None if there are fewer than three seeds, if a run failed (its loss is not finite), or if any loss is not positive.
    """
    if len(ours) != len(other) or len(ours) < SEEDS or not all(0 < loss < math.inf for loss in [*ours, *other]):
        return None
    ratios = np.log(ours) - np.log(other)
    half = student(len(ratios) - 1) * ratios.std(ddof=1) / math.sqrt(len(ratios))
    ends = ratios.mean() + half * np.array([0, -1, 1])
    ratio, low, high = np.exp(np.minimum(ends, 700)).tolist()  # exp overflows above 709
    return ratio, low, high


def difference(ours: Sequence[float], other: Sequence[float]) -> str:
    """Describe the result of :func:`ratio_between` in words. The text is empty if there is no result."""
    found = ratio_between(ours, other)
    if found is None:
        return ""
    ratio, low, high = found
    if low <= 1 <= high:
        return f"no clear difference (95 % interval of the ratio: {low:.2f} to {high:.2f})"
    least, most = sorted(100 * abs(1 - end) for end in (low, high))
    return f"{100 * abs(1 - ratio):.0f} % {'lower' if ratio < 1 else 'higher'} (95 % interval: {least:.0f} to {most:.0f} %)"


def student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t-distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))
