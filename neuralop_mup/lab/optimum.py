"""Where a loss is least over a hyperparameter, with an interval over seeds: not a grid point, but what the grid says.

The best value is the vertex of a parabola through the logarithm of the mean loss, as a function of log2 of the value,
fitted by least squares near the grid's minimum. Its interval has two parts, added as squares on either side:

- over seeds, given a parabola: a jackknife (Efron & Stein 1981) with Student's t, since seeds are few. Everything is chosen
  anew when a seed is left out, the lowest value first: on a flat curve that choice is most of what seeds decide.
- of the parabola itself: how far the vertices of parabolas through three neighbouring values lie to that side. At its three
  points a parabola p through a curve f has f′ − p′ = f‴(ξ) ω′ / 6, with ω the product of the distances to the points, which
  falls at the middle one and rises at the outer ones. So where f‴ keeps its sign, the minimum lies between the vertex of the
  three points around it and that of three at whose end it is. Where there are no such three, as on a grid of three values,
  the interval spans at least the lowest value's neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

__all__ = ["Interval", "Optimum", "drift_between", "find_optimum", "regret_between", "student"]

_REACH = 2  # grid points to either side of the lowest one that may be fitted
_FAR = math.log(10)  # an interval that reaches further is not worth saying
_NEAR = math.log(2)  # and only where the loss is at most twice the lowest: beyond, curves are no parabolas


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval; ``low`` and ``high`` are None where there is one seed only.

    ``level``: whether the interval holds ``nothing`` (1 of a factor, 0 of a share), so that the seeds do not tell the
    estimate from that.
    """

    value: float
    low: float | None = None
    high: float | None = None
    nothing: float = 0.0

    @property
    def level(self) -> bool | None:
        return None if self.low is None or self.high is None else self.low <= self.nothing <= self.high


@dataclass(frozen=True)
class Optimum:
    """The best value of a hyperparameter, as far as a grid shows it.

    Attributes
    ----------
    value : float or None
        The vertex; None where the grid gives a bound alone.
    low, high : float or None
        95 % interval over seeds, given a parabola, and wider by what parabolas through fewer points say, or by the lowest
        value's neighbours where these say nothing; at least the values that were fitted where a seed decides whether there
        is a minimum. Or the bound: at the lower edge of a grid
        ``low`` is 0 and ``high`` the next value, at the upper edge ``high`` is infinite. None where there is one seed and so
        no interval.
    error : float or None
        Standard error over seeds of log2 of the value; None for a bound or one seed.
    seeds : int
        Seeds behind it.
    note : str
        What to know: an edge, runs that failed beside the best value, one seed, a fit that is not convex.
    """

    value: float | None
    low: float | None
    high: float | None
    error: float | None
    seeds: int
    note: str = ""

    @property
    def is_bound(self) -> bool:
        return self.value is None


def find_optimum(losses: Mapping[float, Sequence[float | None]]) -> Optimum | None:
    """The optimum of losses over a grid.

    Parameters
    ----------
    losses : mapping of float to sequence
        Value → losses of its runs, one a seed and in the same order everywhere; None or not finite where a run failed. A
        value with a failed seed is not fitted, but a neighbour that fails says that the optimum is not at the grid's edge.

    Returns
    -------
    Optimum or None
        None where no value has every seed.
    """
    grid = sorted(losses)
    whole = [x for x in grid if losses[x] and all(loss is not None and math.isfinite(loss) for loss in losses[x])]
    if not whole:
        return None
    n = min(len(losses[x]) for x in whole)
    seeds = np.array([[losses[x][s] for s in range(n)] for x in whole], dtype=float)  # (values, seeds)
    middle = int(seeds.mean(1).argmin())
    best, at = whole[middle], grid.index(whole[middle])
    if len(grid) == 1:
        return Optimum(None, 0.0, math.inf, None, n, "one value was tried: nothing is known of the optimum")
    if at == 0:
        return Optimum(None, 0.0, grid[1], None, n, "the lowest value of the grid: extend the grid downwards")
    if at == len(grid) - 1:
        return Optimum(None, grid[-2], math.inf, None, n, "the highest value of the grid: extend the grid upwards")
    low, high = grid[at - 1], grid[at + 1]
    if low not in whole or high not in whole:
        failing = " and ".join(f"{x:.4g}" for x in (low, high) if x not in whole)
        return Optimum(best, low, high, None, n, f"runs at {failing}, next to it, failed: it lies between its neighbours")
    vertex, chosen = _fit(grid, whole, seeds.mean(1))
    if vertex is None:
        return Optimum(best, low, high, None, n, "its neighbours have the same loss: it lies between them")
    if n == 1:
        return Optimum(2.0**vertex, None, None, None, 1, "one seed: no interval can be given")
    left_out = [_fit(grid, whole, np.delete(seeds, seed, axis=1).mean(1))[0] for seed in range(n)]
    x = np.log2(whole)
    there = [v for v in left_out if v is not None]
    error = math.sqrt((n - 1) / n * sum((v - fmean(there)) ** 2 for v in there)) if there else 0.0
    reach = student(n - 1) * error
    local = [vertex, *_local_vertices(grid, whole, seeds.mean(1))]
    ends = [vertex - math.hypot(reach, vertex - min(local)), vertex + math.hypot(reach, max(local) - vertex)]
    if len(there) < n:  # without one of the seeds there is no minimum among these values
        ends = [min(ends[0], x[chosen[0]]), max(ends[1], x[chosen[-1]])]
    return Optimum(2.0**vertex, 2.0 ** ends[0], 2.0 ** ends[1], error, n)


def _fit(grid: Sequence[float], whole: Sequence[float], means: np.ndarray) -> tuple[float | None, list[int]]:
    """The vertex near the lowest mean, None where there is no minimum inside the grid; and which values were near it."""
    x, middle = np.log2(whole), int(means.argmin())
    chosen = _window(grid, whole, means, middle)
    around = [i for i in chosen if abs(i - middle) <= 1]
    if len(around) < 3:
        return None, chosen
    vertex, convex = _vertex(x[chosen], means[chosen])
    if not (convex and x[middle - 1] <= vertex <= x[middle + 1]):
        vertex, convex = _vertex(x[around], means[around])  # through three points around the lowest it is convex, or level
    return (vertex if convex else None), chosen


def _local_vertices(grid: Sequence[float], whole: Sequence[float], means: np.ndarray) -> list[float]:
    """Vertices of the parabolas through the lowest value and two more in a row, as far as they lie between its neighbours.

    Those at the far side count however large their loss is: it is no more than the one grid step that is not known. Where
    only the three around the lowest value make a parabola, nothing tells how far its vertex is off: then its neighbours.
    """
    x, middle, vertices = np.log2(whole), int(means.argmin()), []
    for first in range(max(0, middle - 2), min(middle, len(whole) - 3) + 1):
        if first != middle - 1 and grid.index(whole[first + 2]) - grid.index(whole[first]) == 2:
            vertex, convex = _vertex(x[first : first + 3], means[first : first + 3])
            vertices += [float(np.clip(vertex, x[middle - 1], x[middle + 1]))] if convex else []
    if not vertices:
        return [x[middle - 1], x[middle + 1]]
    around, convex = _vertex(x[middle - 1 : middle + 2], means[middle - 1 : middle + 2])
    return [around, *vertices] if convex else vertices


def _window(grid: Sequence[float], whole: Sequence[float], means: np.ndarray, middle: int) -> list[int]:
    """Which values are fitted: the lowest one, its neighbours, and others near it in value and loss without a gap."""
    chosen = [middle]
    for step in (-1, 1):
        for distance in range(1, _REACH + 1):
            i = middle + step * distance
            if not 0 <= i < len(whole) or abs(grid.index(whole[i]) - grid.index(whole[middle])) != distance:
                break
            if distance > 1 and means[i] - means[middle] > (math.expm1(_NEAR)) * abs(means[middle]):
                break
            chosen.append(i)
    return sorted(chosen)


def _vertex(x: np.ndarray, mean: np.ndarray) -> tuple[float, bool]:
    """Where the fitted parabola is least, and whether it opens upwards."""
    y = np.log(mean) if (mean > 0).all() else mean
    centre = x.mean()
    a, b, _ = np.polyfit(x - centre, y, 2)
    convex = bool(a > 1e-9 * max(1.0, float(np.abs(y).max())))
    return (float(centre - b / (2 * a)) if convex else math.nan), convex


def drift_between(base: Optimum | None, here: Optimum | None) -> Interval | None:
    """The factor from one optimum to another. None unless both are values."""
    if base is None or here is None or base.is_bound or here.is_bound:
        return None
    drift = here.value / base.value
    if base.error is None or here.error is None:
        return Interval(drift, nothing=1.0)
    base_down, base_up = (abs(math.log2(end / base.value)) for end in (base.low, base.high))
    here_down, here_up = (abs(math.log2(end / here.value)) for end in (here.low, here.high))
    return Interval(drift, drift / 2 ** math.hypot(here_down, base_up), drift * 2 ** math.hypot(here_up, base_down), 1.0)


def regret_between(carried: Sequence[float], best: Sequence[float]) -> Interval | None:
    """What the carried value costs over the best one, as a fraction of the best one's loss, paired by seed.

    Losses above zero are compared by their logarithms, so a seed that ends far off counts as a factor and the interval stays
    above -1. Infinite where a run of the carried value failed; without an interval where the seeds differ so much (a factor
    of 10 to either side) that it says nothing; None where there is no best value, or its loss is 0.
    """
    if not best or len(carried) != len(best) or not all(map(math.isfinite, best)) or fmean(best) == 0:
        return None
    if not all(map(math.isfinite, carried)):
        return Interval(math.inf)
    if min(*carried, *best) > 0:
        differences, share = [math.log(a / b) for a, b in zip(carried, best, strict=True)], math.expm1
    else:
        scale = abs(fmean(best))
        differences, share = [(a - b) / scale for a, b in zip(carried, best, strict=True)], float
    value = fmean(differences)
    if len(differences) == 1:
        return Interval(share(value))
    reach = student(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
    if reach > _FAR:
        return Interval(share(value))
    return Interval(share(value), share(value - reach), share(value + reach))


def student(freedom: int) -> float:
    """97.5 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))
