"""``neuralop-mup compare``: four ways to train one target, and what is said of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from neuralop_mup.lab import plots
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.comparison import ADAM_LR, WAYS, Comparison, Way
from neuralop_mup.lab.summary import Results


def ways(*errors):
    """Ways with these errors, one second a training and two under MuSOAP."""
    times = (1.0, 1.0, 2.0, 2.0)
    return {n: Way(n, 0.01, own, took) for n, own, took in zip(WAYS, errors, times, strict=True)}


def test_medians_decide_and_ranges_that_overlap_are_level(tmp_path):
    """Medians 0.4, 0.2, 0.1, 0.11: a quarter, a half, and level with each other; one seed that failed decides nothing."""
    found = Comparison(ways((0.4, 0.5, 0.3), (0.2, math.inf, 0.15), (0.1, 0.12, 0.09), (0.11, 0.1, 0.13)), "t", tmp_path)
    first, second, third, time = found.sentences()
    assert "0.1 against 0.4 in the median, 0.25 times" in first and "0.1 against 0.2 in the median, 0.50 times" in second
    assert "level within the seeds" in third and "2.00 times as long" in time
    assert "0.15 to –" in found.table()
    assert found.plot(tmp_path / "w.png").stat().st_size > 5000


def test_the_figure_draws_what_did_not_train(tmp_path):
    drawn = plots.plot_ways({"a": ([math.inf] * 3, 0.1), "b": ([0.1, 0.2, math.inf], 0.1)}, tmp_path / "w.svg")
    assert "failed" in drawn.read_text()


def test_the_command(tmp_path, monkeypatch, capsys):
    """Adam without μP at its usual rate and at that of the proxy's width, MuSOAP by the law for its steps and checked."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(50, 1, 32)).cumsum(-1).astype("float32")
    np.savez("heat.npz", x=x, y=2 * np.roll(x, 1, -1))
    line = "compare --data heat.npz --seeds 0,1 --epochs 2 --batch_size 10 --n_workers 1 --folder out"
    line += " --target.hidden_channels 8 --target.n_modes 8 --target.n_layers 2"
    assert main(line.split()) == 0
    out = capsys.readouterr().out
    assert all(f"| {name}" in out for name in WAYS) and "MuSOAP, as it comes, against Adam" in out
    assert f"| {ADAM_LR:.3g} " in out
    # 40 samples are 4 batches, 8 steps in 2 epochs: 0.03 √(1000/8).
    assert f"| {0.03 * math.sqrt(125):.3g} " in out
    assert {"comparison.png", "comparison.md"} <= {path.name for path in (tmp_path / "out").iterdir()}
    checked = Results.load("out")  # the last study
    trained = [(run["rule"], run["seed"], run["metrics"]["steps"]) for run in checked.records]
    assert trained == [(way, seed, 8) for way in WAYS for seed in (0, 1)]
    before = (tmp_path / "out" / "results.jsonl").read_text()
    assert main(line.split()) == 0  # everything is there
    assert (tmp_path / "out" / "results.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("compare --data nowhere.npz", "nowhere.npz"),
        ("compare burger", "'burgers'"),
        ("compare --sedes 3", "--sedes"),
        ("compare burgers --target.n_modes 500", "beyond the grid"),
    ],
)
def test_mistakes_take_one_line(line, told, capsys):
    assert main(line.split()) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1
