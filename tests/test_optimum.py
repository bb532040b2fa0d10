"""Optima between grid points, their intervals over seeds, and what is said where there is none."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuralop_mup.lab.optimum import drift_between, find_optimum, regret_between, student

GRID = [2.0**k for k in range(-10, -3)]


def bowl(at, shifts=(0.0,), grid=GRID, curvature=0.1):
    """log loss = curvature (log2 lr - at - shift)², a shift a seed."""
    return {lr: [math.exp(curvature * (math.log2(lr) - at - s) ** 2) for s in shifts] for lr in grid}


@pytest.mark.parametrize("at", [-7.0, -6.7, -7.45])
def test_the_vertex_lies_between_grid_points(at):
    found = find_optimum(bowl(at))
    assert math.log2(found.value) == pytest.approx(at, abs=1e-6)
    assert found.low is None and found.high is None and "one seed" in found.note


def test_three_points_by_hand():
    """log losses 1, 0, 2 at log2 lr = -8, -7, -6: a = 1.5, b = 0.5, vertex -7 - 0.5 / 3."""
    losses = {2.0**-8: [math.e], 2.0**-7: [1.0], 2.0**-6: [math.e**2]}
    assert math.log2(find_optimum(losses).value) == pytest.approx(-7 - 1 / 6)


def test_the_jackknife_of_a_mean_by_hand():
    """Quadratic losses below zero are fitted as they are, so the vertex of the mean is the mean of the seeds' vertices.

    Vertices -7.2, -7.0, -6.8: its standard error is 0.2 / √3, t of 2 degrees 4.303, so ± 0.4969 in log2.
    """
    losses = {2.0**k: [0.01 * (k - at) ** 2 - 1 for at in (-7.2, -7.0, -6.8)] for k in range(-9, -4)}
    found = find_optimum(losses)
    assert (found.value, found.error) == (pytest.approx(2.0**-7), pytest.approx(0.2 / 3**0.5))
    assert (found.low, found.high) == pytest.approx((2.0**-7.4969, 2.0**-6.5031), rel=1e-3)


def test_a_lopsided_curve_widens_the_interval_by_hand():
    """Log losses 0.5, 0.1, 0, 0.3, 1 at log2 lr = -9 to -5, two seeds alike, so that seeds add nothing.

    1 is beyond log 2 and not fitted. About their centre -7.5 the other four have the slope
    (-1.5·0.5 - 0.5·0.1 + 1.5·0.3) / 5 = -0.07 and the curvature (0.5 - 0.1 - 0 + 0.3) / 4 = 0.175, so the vertex -7.3.
    Through three neighbours y0, y1, y2 the vertex is (y0 - y2) / (2 (y0 - 2 y1 + y2)) from the middle one: -8 + 5/6,
    -7 - 1/4 and -6 - 5/4. None lies below -7.3.
    """
    logs = [0.5, 0.1, 0.0, 0.3, 1.0]
    found = find_optimum({2.0 ** (k - 9): [math.exp(y)] * 2 for k, y in enumerate(logs)})
    assert [math.log2(v) for v in (found.value, found.low, found.high)] == pytest.approx([-7.3, -7.3, -8 + 5 / 6])
    assert found.error == pytest.approx(0)


@pytest.mark.parametrize(
    ("curve", "step", "least"),
    [
        (lambda u: 0.1 * u**2, 1.0, 0.9),
        (lambda u: 0.02 * u**2, 0.5, 0.85),
        (lambda u: 0.1 * u**2 + 0.3 * max(u, 0) ** 3, 1.0, 0.8),
    ],
    ids=["a parabola", "a flat one", "a lopsided curve"],
)
@pytest.mark.parametrize("n_seeds", [3, 5])
def test_how_often_the_interval_holds_the_minimum(curve, step, least, n_seeds):
    """5 % of noise; the minimum lies anywhere between grid points."""
    draw = np.random.default_rng(0)
    held = 0
    for _ in range(150):
        at = draw.uniform(-0.5, 0.5) * step
        noise = draw.standard_normal((11, n_seeds))
        grid = [step * k for k in range(-5, 6)]
        found = find_optimum({2.0**x: list(np.exp(curve(x - at) + 0.05 * noise[i])) for i, x in enumerate(grid)})
        held += math.log2(found.low) <= at <= math.log2(found.high)
    assert held / 150 >= least


@pytest.mark.parametrize("step", [1.0, 2.0])
def test_three_values_do_not_tell_how_far_a_parabola_is_off(step):
    """Lopsided, with the minimum at 0.09 of a step; seeds that agree say nothing of the curve between its values."""
    at = 0.09 * step
    grid = [2.0 ** (step * k) for k in (-1, 0, 1)]
    losses = {lr: [np.exp(0.1 * (u := math.log2(lr) - at) ** 2 + 0.3 * max(u, 0) ** 3)] * 3 for lr in grid}
    found = find_optimum(losses)
    assert found.low <= 2.0**at <= found.high
    assert (found.low, found.high) == (pytest.approx(grid[0]), pytest.approx(grid[-1]))


def test_where_a_seed_decides_the_interval_is_at_least_what_was_fitted():
    """Without the second seed losses fall up to the highest value, so there is no minimum inside."""
    losses = {1.0: [1.2, 1.2], 2.0: [1.1, 1.0], 4.0: [1.0, 1.4]}
    found = find_optimum(losses)
    assert found.low <= 1 and found.high >= 4


def test_an_edge_is_a_bound():
    low, high = find_optimum(bowl(-12)), find_optimum(bowl(0))
    assert low.is_bound and (low.low, low.high) == (0, GRID[1]) and "downwards" in low.note
    assert high.is_bound and (high.low, high.high) == (GRID[-2], math.inf) and "upwards" in high.note
    assert find_optimum({1e-3: [1.0]}).is_bound and drift_between(low, high) is None


def test_runs_that_fail():
    losses = bowl(-7, (0, 0.1))
    losses[2.0**-4] = [None, 5.0]  # far from the minimum: nothing changes
    found = find_optimum(losses)
    assert math.log2(found.value) == pytest.approx(-6.95, abs=0.01) and found.low < found.value < found.high
    losses = {**bowl(-5, (0, 0.1)), 2.0**-4: [None, math.inf]}
    found = find_optimum(losses)  # next to it: bracketed, not an edge
    assert (found.value, found.low, found.high) == (2.0**-5, 2.0**-6, 2.0**-4) and "failed" in found.note
    assert find_optimum({0.1: [None], 0.2: []}) is None


def test_level_neighbours_are_no_parabola():
    found = find_optimum(dict.fromkeys((0.01, 0.02, 0.04), [1.0, 1.0]) | {0.005: [1.0, 1.0], 0.08: [1.0, 1.0]})
    assert found.is_bound or "same loss" in found.note


def test_a_cliff_does_not_pull_the_vertex():
    """Beyond twice the lowest loss nothing is fitted."""
    losses = bowl(-7) | {2.0**-5: [50.0]}
    assert math.log2(find_optimum(losses).value) == pytest.approx(-7, abs=1e-6)


def test_drift():
    base, here = find_optimum(bowl(-7, (-0.1, 0, 0.1))), find_optimum(bowl(-6, (-0.1, 0, 0.1)))
    drift = drift_between(base, here)
    assert drift.value == pytest.approx(2, rel=0.01) and not drift.level
    # Each has a standard error of 0.1 / √3 in log2; t of 2 degrees is 4.303.
    assert math.log2(drift.high / drift.value) == pytest.approx(4.303 * 0.1 * (2 / 3) ** 0.5, rel=0.05)
    assert math.log2(drift.value / drift.low) == pytest.approx(4.303 * 0.1 * (2 / 3) ** 0.5, rel=0.05)
    assert drift_between(base, base).level
    assert drift_between(find_optimum(bowl(-7)), find_optimum(bowl(-6))).level is None


def test_regret_is_paired_by_seed():
    """Each seed loses 10 %, so the regret has no spread, though the seeds differ."""
    regret = regret_between([1.1, 1.21, 1.32], [1.0, 1.1, 1.2])
    assert regret.value == pytest.approx(0.1) and regret.high - regret.low < 1e-9 and not regret.level
    assert regret_between([1.1, 0.9], [1.0, 1.0]).level
    assert regret_between([1.1], [1.0]).level is None and regret_between([math.inf], [1.0]).value == math.inf
    assert regret_between([1.0], [math.inf]) is None and regret_between([1.0, 1.0], [1.0]) is None


def test_regret_is_a_factor():
    """Logs of 2, 2 and 16: mean 2 log 2, so four times the loss, 300 %; t(2) = 4.303 times √3 log 2 / √3 to either side
    would reach a factor of 19.7. With 2, 2 and 4 it reaches 4.303 (log 2 / √3) / √3 = 0.994 about (4/3) log 2."""
    wide = regret_between([2.0, 2.0, 16.0], [1.0] * 3)
    assert (wide.value, wide.low, wide.level) == (pytest.approx(3.0), None, None)
    regret = regret_between([2.0, 2.0, 4.0], [1.0] * 3)
    ends = [math.exp(4 / 3 * math.log(2) + side * 0.9942) - 1 for side in (0, -1, 1)]
    assert [regret.value, regret.low, regret.high] == pytest.approx(ends, abs=1e-3)
    assert regret_between([2.0, 2.0, 16.0], [1.0, 1.0, 8.0]).low == pytest.approx(1.0)


def test_regret_of_losses_below_zero_is_a_share_of_their_size():
    """-0.9 and -1.1 against -1: differences 0.1 and -0.1 of a mean of size 1."""
    regret = regret_between([-0.9, -1.1], [-1.0, -1.0])
    assert regret.value == pytest.approx(0.0) and regret.high == pytest.approx(12.706 * 0.1, rel=1e-3)


def test_student():
    assert [student(n) for n in (1, 10, 30)] == pytest.approx([12.706, 2.228, 2.0423], abs=1e-3)


@given(st.lists(st.lists(st.floats(1e-3, 10), min_size=3, max_size=3), min_size=3, max_size=7))
def test_whatever_the_losses(rows):
    losses = {2.0 ** (i - 8): row for i, row in enumerate(rows)}
    found = find_optimum(losses)
    means = [sum(row) for row in rows]
    if found.is_bound:
        assert found.low < found.high
    else:
        assert (
            abs(math.log2(found.value) + 8 - means.index(min(means))) <= 1 + 1e-9 and found.low <= found.value <= found.high
        )
