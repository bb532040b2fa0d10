"""What the price of tuning is made of: searches on curves that are known, and what a proxy's runs are."""

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
price = importlib.import_module("price")  # a skip would hide a benchmark that no longer imports
suite_runs = importlib.import_module("suite_runs")


def up(lrs):
    return np.asarray(lrs, dtype=float)


def down(lrs):
    return -np.asarray(lrs, dtype=float)


def test_halving_pays_for_further_steps_alone():
    # 9 for 1 step, 3 of them for 2 more, 1 of them for 6 more: 9 + 6 + 6.
    assert price.halving(np.arange(1.0, 10), {1: up, 3: up, 9: up}) == (1.0, 21)


def test_halving_goes_by_what_it_sees_on_the_way():
    # At the end 9 is best, but after one step 1, 2 and 3 are; of these 3 is best after three steps and at the end.
    assert price.halving(np.arange(1.0, 10), {1: up, 3: down, 9: down}) == (3.0, 21)
    # Two that are left at the last rung: the better one there is taken.
    assert price.halving(np.arange(1.0, 7), {3: up, 9: down}) == (2.0, 6 * 3 + 2 * 6)


def test_hyperband_has_a_bracket_from_each_rung():
    # 9, ⌈3/2 · 3⌉ = 5 and 3 learning rates: 21 steps, 5 · 3 + 1 · 6 = 21, and 3 · 9 = 27.
    asked = []

    def draw(n):
        asked.append(n)
        return np.arange(1.0, n + 1) + 10 * len(asked)

    assert price.hyperband(draw, {1: up, 3: up, 9: down}) == (33.0, 69)  # brackets end with 11, 21 and 33
    assert asked == [9, 5, 3]


def test_landscape_between_grid_points():
    end = price.Landscape({1.0: [2.0], 2.0: [1.5, 0.5], 4.0: [1.0], 8.0: [math.e]})
    assert end([1.0, 2.0, 8.0]) == pytest.approx([2.0, 1.0, math.e])
    assert end(math.sqrt(8)) == pytest.approx(1.0)  # no overshoot between two that are level
    assert end.regret([1.0, 3.0]) == pytest.approx([1.0, 0.0])


def test_landscape_goes_on_beyond_its_grid_up_to_1():
    end = price.Landscape({1.0: [0.4], 2.0: [0.1], 4.0: [0.2]})
    assert end([8.0, 0.8]) == pytest.approx([0.4, 0.4 * 0.8**-2])  # twice for a factor of 2; a quarter for a factor of 2
    assert end([64.0, 0.1]) == pytest.approx([1.0, 1.0])


def test_proxies_join_what_makes_them_cheaper():
    t = price.proxy("korteweg-de-vries", "all four", 0.02)
    assert (t["width"], t["steps"], t["data"]) == (16, 125, {"stride": 4, "samples": 200})
    assert t["lr"] == pytest.approx(0.02 * math.sqrt(8), rel=1e-4)  # 8 times fewer steps
    t = price.proxy("korteweg-de-vries", "all but coarser", 0.02)
    assert t["data"] == {"samples": 200}
    assert "data" not in price.proxy("gray-scott", "shorter", 0.02)
    assert price.proxy("gray-scott", "shorter", 0.02)["width"] == price.PROBLEMS["gray-scott"][0]


@pytest.fixture
def records(tmp_path):
    """A problem whose target has its least error at 0.02, ln error = 0.1 · (log2 lr/0.02)², and two proxies."""
    records = price.Records(tmp_path / "price.jsonl")
    problem = "gray-scott"

    def add(t, lr, best):
        error = math.exp(0.1 * math.log2(lr / best) ** 2)
        records.add(t, {"loss": 0.8 * error, "test": 1.2 * error, "seconds": 9.0})

    for lr in price.LRS:
        add(price.target(problem, lr), lr, 0.02)
        add(price.proxy(problem, "all four", lr), lr, 0.04)
        add(price.proxy(problem, "shorter", lr), lr, 0.02)
    for (width, stride), turns in {(48, 1): (80, 200), (16, 2): (30, 20)}.items():
        for turn, milliseconds in enumerate(turns):
            t = price.timed(problem, width, stride, turn)
            records.add(t, {"loss": 1.0, "seconds": price.TIMED_STEPS * milliseconds / 1000})
    return records


def test_price_and_regret_of_a_proxy(records):
    end = price.Landscape(price.target_curve("gray-scott", records))
    found = price.carried("gray-scott", "all four", records, end)
    assert found.lr == pytest.approx(0.04, rel=1e-3)  # in the target's units, not the proxy's
    assert found.regret == pytest.approx(math.expm1(0.1), rel=1e-2)
    assert found.cost == pytest.approx(125 * 20 / (1000 * 80))
    right = price.carried("gray-scott", "shorter", records, end)
    assert right.lr == pytest.approx(0.02, rel=1e-3)
    assert right.regret == pytest.approx(0, abs=1e-3)
    assert price.carried("gray-scott", "narrower", records, end) is None


def test_marks_leave_a_run_as_it_is(monkeypatch):
    small = {"n_train": 8, "n_val": 2, "n_test": 2, "grid": 32}
    monkeypatch.setitem(suite_runs.PROBLEMS, "burgers", (small, (4,), 4, 4))
    plain = suite_runs.train(suite_runs.task("burgers", "MuSOAP", 0.02, 3, depth=1))
    marked = suite_runs.train(suite_runs.task("burgers", "MuSOAP", 0.02, 3, depth=1, marks=[1, 3]))
    assert {"at 1", "at 3"} <= set(marked)
    assert marked["at 3"] == marked["loss"] == plain["loss"]
    assert marked["at 1"] != marked["loss"]
