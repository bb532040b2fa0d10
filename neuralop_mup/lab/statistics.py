"""What losses of a few seeds say: where a loss is least over a hyperparameter, and whether one way is worse than another."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

#: With fewer seeds nothing is said of a difference: a spread that two runs have tells too little.
SEEDS = 3
_NEAR = 1.05  # in factors of 2: what the parabola is fitted to; rates are rounded
_STEEP = math.log(2)  # and no loss more than twice the least one: beyond, curves are no parabolas
_FLAT = 1e-9  # a curvature that rounding makes


@dataclass(frozen=True)
class Optimum:
    """The vertex of a parabola through losses over a hyperparameter.

    Attributes
    ----------
    value : float
        The hyperparameter there.
    curvature : float
        Second derivative of the loss's logarithm by log2 of the value.
    low, high : float
        The least and the greatest value that were fitted; the vertex lies between them.
    """

    value: float
    curvature: float
    low: float
    high: float


def find_optimum(losses: Mapping[float, Sequence[float | None]], near: float = _NEAR) -> Optimum | None:
    """The best value of a hyperparameter between those that were tried.

    A parabola through the logarithms of losses (their mean over seeds) as a function of log2 of the value, fitted by least
    squares within a factor of 2 of the lowest one, to losses that are at most twice as large.

    Parameters
    ----------
    losses : mapping of float to sequence
        Value → losses of its runs, one a seed; None or not finite where a run failed. A value with a failed seed counts as
        one that was not tried.
    near : float, default 1.05
        How far from the lowest one values are fitted, in factors of 2.

    Returns
    -------
    Optimum or None
        None where fewer than three values are near, as beside an edge or a failed run, where the parabola has no minimum
        among them, or where a value or a loss has no logarithm.
    """
    whole = {x: own for x, own in sorted(losses.items()) if own and all(y is not None and math.isfinite(y) for y in own)}
    if len(whole) < 3 or min(whole) <= 0 or min(map(min, whole.values())) <= 0:
        return None
    values = list(whole)
    x = np.log2(values)
    y = np.array([np.log(own).mean() for own in whole.values()])
    lowest = x[y.argmin()]
    fitted = np.flatnonzero((abs(x - lowest) <= near) & (y <= y.min() + _STEEP))
    if len(fitted) < 3:
        return None
    a, b, _ = np.polyfit(x[fitted] - lowest, y[fitted], 2)
    vertex = lowest - b / (2 * a) if a > _FLAT else math.nan
    if not x[fitted[0]] <= vertex <= x[fitted[-1]]:
        return None
    return Optimum(float(2.0**vertex), float(2 * a), values[fitted[0]], values[fitted[-1]])


def ratio_between(ours: Sequence[float], other: Sequence[float]) -> tuple[float, float, float] | None:
    """How many times as large the losses of one way are as those of another, paired by seed, and the ends of its 95 %
    interval over seeds.

    The mean of the logarithms of their ratios, ± Student's t times its standard error, so that a seed that ends far off
    counts as a factor. Where nothing differs, 1 lies outside in 5 % of cases.

    Parameters
    ----------
    ours, other : sequence of float
        Losses, one a seed and in the same order.

    Returns
    -------
    tuple of float or None
        None with fewer than three seeds, where a run failed (a loss that is not finite) and where a loss is zero or below.
    """
    every = [*ours, *other]
    if len(ours) != len(other) or len(ours) < SEEDS or not all(map(math.isfinite, every)) or min(every) <= 0:
        return None
    ratios = [math.log(a) - math.log(b) for a, b in zip(ours, other, strict=True)]
    mean = fmean(ratios)
    reach = student(len(ratios) - 1) * stdev(ratios) / math.sqrt(len(ratios))
    ratio, low, high = (math.exp(min(end, 700.0)) for end in (mean, mean - reach, mean + reach))  # of more it is no float
    return ratio, low, high


def told_apart(ours: Sequence[float], other: Sequence[float]) -> str:
    """What :func:`ratio_between` finds, as the end of a sentence that names the two; empty where it finds nothing."""
    found = ratio_between(ours, other)
    if found is None:
        return ""
    ratio, low, high = found
    if low <= 1 <= high:
        return f", which {len(ours)} seeds do not tell apart"
    return f", {ratio:.2f} times (95 % interval over {len(ours)} seeds {low:.2f} to {high:.2f})"


def student(freedom: int) -> float:
    """97.5 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))
