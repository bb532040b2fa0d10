"""Optima between values that were tried, and what a few seeds tell of a difference."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuralop_mup.lab.statistics import find_optimum, ratio_between, student

GRID = [2.0**k for k in range(-10, -3)]


def bowl(at, shifts=(0.0,)):
    """log loss = (log2 lr - at - shift)² / 10, a shift a seed."""
    return {lr: [math.exp(0.1 * (math.log2(lr) - at - shift) ** 2) for shift in shifts] for lr in GRID}


@pytest.mark.parametrize(
    ("losses", "at"),
    [
        (bowl(-7), -7),
        (bowl(-6.7), -6.7),
        (bowl(-7, (-0.2, 0.3)), -6.95),  # of the mean of logarithms: of the seeds' own vertices
        # Log losses 1, 0, 2 are beyond log 2; 0.5, 0, 0.3 at -8, -7, -6: slope -0.1, curvature 0.4, so -7 + 0.1 / 0.8.
        ({2.0**-8: [math.exp(0.5)], 2.0**-7: [1.0], 2.0**-6: [math.exp(0.3)]}, -7 + 0.125),
        (bowl(-7) | {2.0**-4: [None]}, -7),  # far from the lowest: nothing changes
        ({0.0839: [math.exp(0.1)], 0.168: [1.0], 0.335: [math.exp(0.1)]}, math.log2(0.168)),  # rates are rounded
    ],
)
def test_the_vertex_lies_between_grid_points(losses, at):
    found = find_optimum(losses)
    assert math.log2(found.value) == pytest.approx(at, abs=4e-3)
    assert found.low <= found.value <= found.high and {found.low, found.high} <= losses.keys()


def test_the_curvature_is_that_of_the_bowl():
    assert find_optimum(bowl(-6.7)).curvature == pytest.approx(0.2)


@pytest.mark.parametrize(
    "losses",
    [
        bowl(-12),  # at an edge
        bowl(0),
        bowl(-7) | {2.0**-6: [None]},  # beside a run that failed
        bowl(-7) | {2.0**-6: [math.inf]},
        bowl(-7) | {2.0**-6: [50.0]},  # or beyond a cliff
        dict.fromkeys(GRID, [1.0, 1.0]),  # level
        {1e-3: [1.0]},
        {0.1: [None], 0.2: [], 0.4: [1.0]},
        {1.0: [-1.0], 2.0: [-2.0], 4.0: [-1.0]},  # no logarithms
        {0.0: [1.0], 1.0: [0.5], 2.0: [1.0]},
        {},
    ],
)
def test_where_there_is_no_parabola_nothing_is_said(losses):
    assert find_optimum(losses) is None


@given(st.lists(st.lists(st.floats(1e-3, 10), min_size=3, max_size=3), min_size=3, max_size=7))
def test_whatever_the_losses_it_lies_beside_the_lowest(rows):
    found = find_optimum({2.0 ** (i - 8): row for i, row in enumerate(rows)})
    means = [np.log(row).mean() for row in rows]
    assert found is None or abs(math.log2(found.value) + 8 - np.argmin(means)) <= 1 + 1e-9


@pytest.mark.parametrize("shared", [0.0, 0.3], ids=["seeds of their own", "seeds that both have"])
@pytest.mark.parametrize("seeds", [3, 5])
def test_how_often_a_difference_is_told_where_none_is(seeds, shared):
    """Two ways whose losses spread by 10 %: 5 % of intervals miss 0, whatever the seeds have in common."""
    draw = np.random.default_rng(0)
    false = 0
    for _ in range(2000):
        common = shared * draw.standard_normal(seeds)
        ours, other = np.exp(common + 0.1 * draw.standard_normal((2, seeds)))
        _, low, high = ratio_between(ours, other)
        false += not low <= 1 <= high
    assert false / 2000 <= 0.06


def test_a_difference_that_is_there_is_told():
    draw = np.random.default_rng(0)
    pairs = [np.exp(0.1 * draw.standard_normal((2, 3))) for _ in range(500)]
    assert sum(ratio_between(2 * ours, other)[1] > 1 for ours, other in pairs) / 500 > 0.9


def test_the_ratio_is_paired_by_seed():
    """Each seed loses 10 %, so there is no spread, though the seeds differ. Logs of 2, 2, 4: mean (4/3) log 2, spread
    log 2 / √3, so t(2) = 4.303 times log 2 / 3 to either side, 0.9942.
    """
    ratio, low, high = ratio_between([1.1, 1.21, 1.32], [1.0, 1.1, 1.2])
    assert ratio == pytest.approx(1.1) and 1 < low <= high < low + 1e-9
    ends = [math.exp(4 / 3 * math.log(2) + side * 0.9942) for side in (0, -1, 1)]
    assert ratio_between([2.0, 2.0, 4.0], [1.0] * 3) == pytest.approx(ends, abs=1e-3)
    assert ratio_between([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == (1.0, 1.0, 1.0)
    assert ratio_between([1e300] * 3, [1e-300] * 3)[1] > 1


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        ([1.1], [1.0]),
        ([2.0, 2.0], [1.0, 1.0]),  # two seeds
        ([1.1, math.inf, 1.0], [1.0] * 3),
        ([1.0] * 3, [1.0, math.nan, 1.0]),
        ([1.0] * 4, [1.0] * 3),
        ([0.0, 1.0, 1.0], [1.0] * 3),
        ([-1.0] * 3, [-2.0] * 3),
        ([], []),
    ],
)
def test_what_seeds_cannot_tell_is_not_said(ours, other):
    assert ratio_between(ours, other) is None


def test_student():
    assert [student(n) for n in (1, 10, 30)] == pytest.approx([12.706, 2.228, 2.0423], abs=1e-3)
