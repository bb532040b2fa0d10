"""Optima between grid points, and the ratio of two losses with its interval over seeds."""

import math

import numpy as np
import pytest

from neuralop_mup.lab.statistics import find_optimum, ratio_between

GRID = [2.0**k for k in range(-10, -3)]


def bowl(at, shifts=(0.0,)):
    """log loss = (log2 lr - at - shift)² / 10, with a shift for each seed."""
    return {lr: [math.exp(0.1 * (math.log2(lr) - at - shift) ** 2) for shift in shifts] for lr in GRID}


@pytest.mark.parametrize(
    ("losses", "at"),
    [
        (bowl(-7), -7),
        (bowl(-6.7), -6.7),
        (bowl(-7, (-0.2, 0.3)), -6.95),  # the mean of the vertices of the seeds
        # Log losses 1, 0, 2 are beyond log 2; 0.5, 0, 0.3 at -8, -7, -6: slope -0.1, curvature 0.4, so -7 + 0.1 / 0.8.
        ({2.0**-8: [math.exp(0.5)], 2.0**-7: [1.0], 2.0**-6: [math.exp(0.3)]}, -7 + 0.125),
        (bowl(-7) | {2.0**-4: [None]}, -7),  # a failed run far from the lowest changes nothing
        ({0.0839: [math.exp(0.1)], 0.168: [1.0], 0.335: [math.exp(0.1)]}, math.log2(0.168)),  # rates are rounded
    ],
)
def test_the_vertex_lies_between_grid_points(losses, at):
    found = find_optimum(losses)
    assert math.log2(found.value) == pytest.approx(at, abs=4e-3)
    assert found.low <= found.value <= found.high
    assert {found.low, found.high} <= losses.keys()


@pytest.mark.parametrize(
    "losses",
    [
        bowl(-12),  # at an edge
        bowl(0),
        bowl(-7) | {2.0**-6: [None]},  # beside a run that failed
        bowl(-7) | {2.0**-6: [50.0]},  # beside a cliff
        dict.fromkeys(GRID, [1.0, 1.0]),  # level
        {1.0: [-1.0], 2.0: [-2.0], 4.0: [-1.0]},  # no logarithms
        {0.0: [1.0], 1.0: [0.5], 2.0: [1.0]},
        {},
    ],
)
def test_there_is_no_optimum_without_a_parabola(losses):
    assert find_optimum(losses) is None


@pytest.mark.parametrize("shared", [0.0, 0.3], ids=["independent seeds", "shared seeds"])
def test_intervals_miss_a_ratio_in_five_percent_of_cases(shared):
    """Losses of two ways spread by 10 %. A shared seed adds the same to both."""
    draw = np.random.default_rng(0)
    missed, found = 0, 0
    for _ in range(1000):
        common = shared * draw.standard_normal(3)
        ours, other = np.exp(common + 0.1 * draw.standard_normal((2, 3)))
        _, low, high = ratio_between(2 * ours, other)
        missed += not low <= 2 <= high
        found += low > 1
    assert missed / 1000 <= 0.065
    assert found / 1000 > 0.9


def test_the_ratio_is_paired_by_seed():
    """Each seed loses 10 %, so there is no spread, though the seeds differ. Logs of 2, 2, 4: mean (4/3) log 2, spread
    log 2 / √3, so t(2) = 4.303 times log 2 / 3 to either side, 0.9942.
    """
    ratio, low, high = ratio_between([1.1, 1.21, 1.32], [1.0, 1.1, 1.2])
    assert (ratio, low, high) == pytest.approx((1.1, 1.1, 1.1), abs=1e-9)
    ends = [math.exp(4 / 3 * math.log(2) + side * 0.9942) for side in (0, -1, 1)]
    assert ratio_between([2.0, 2.0, 4.0], [1.0] * 3) == pytest.approx(ends, abs=1e-3)
    assert ratio_between([1e300] * 3, [1e-300] * 3)[1] > 1


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        ([2.0, 2.0], [1.0, 1.0]),  # two seeds
        ([1.1, math.inf, 1.0], [1.0] * 3),
        ([1.0] * 4, [1.0] * 3),
        ([0.0, 1.0, 1.0], [1.0] * 3),
        ([], []),
    ],
)
def test_there_is_no_ratio(ours, other):
    assert ratio_between(ours, other) is None
