"""``neuralop-mup compare``: four ways to train one target, and what is said of them."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from neuralop_mup.lab import plots
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.compare import ADAM_LR, TUNED, WAYS, Comparison, Way
from neuralop_mup.lab.results import Results

USUAL = [name for name in WAYS if name != TUNED]


def said(*errors):
    """What is said of ways with these errors, one second a training and two under MuSOAP."""
    ways = {
        n: Way(n, 0.01, own, 2.0 if "SOAP" in n else 1.0)
        for n, own in zip(USUAL if len(errors) == 4 else WAYS, errors, strict=True)
    }
    ways["Adam, tuned small"] = Way("Adam, tuned small", 0.032, errors[1], 1.0, 5.0, "best of 7 at width 16, one seed")
    found = Comparison(ways, "t", "The target trains for 160 steps.")
    return found, found.sentences()


def test_three_seeds_tell_what_they_tell():
    """Ratios 1/4 in each seed; 2 to 1/2 about none; and where a run failed, or with two seeds, nothing is told."""
    found, (about, first, second, third, small, time) = said(
        (0.4, 0.8, 1.6), (0.2, 0.2, 0.2), (0.1, 0.2, 0.4), (0.11, math.inf, 0.13)
    )
    assert about == "The target trains for 160 steps." and "2.00 times as long" in time
    assert first.endswith("0.2 against 0.8 in the median, 0.25 times (95 % interval over 3 seeds 0.25 to 0.25).")
    assert second.endswith("0.2 against 0.2 in the median, which 3 seeds do not tell apart.")
    assert third.endswith("error 0.13 against 0.2 in the median.")
    assert "is at 0.032, best of 7 at width 16, one seed." in small and "no learning rate of Adam's was tuned at" in small
    assert "0.11 to –" in found.table() and "| best of 7 at width 16, one seed |" in found.table()
    _, few = said((0.4, 0.4), (0.2, 0.2), (0.1, 0.1), (0.1, 0.1))
    assert few[1].endswith("0.1 against 0.4 in the median.") and "fewer than 3 seeds nothing is said" in few[4]
    _, five = said((0.4,) * 3, (0.3,) * 3, (0.2,) * 3, (0.1,) * 3, (0.1,) * 3)
    assert five[3].startswith(f"MuSOAP, as it comes, against {TUNED}: error 0.1 against 0.2 in the median, 0.50 times")
    assert "was tuned at the target itself" not in " ".join(five)


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
    assert all(f"| {name}" in out for name in USUAL) and "MuSOAP, as it comes, against Adam" in out
    assert "target   width 8, modes 8; " in out and TUNED not in out
    assert f"| {ADAM_LR:.3g} " in out
    # 40 samples are 4 batches, 8 steps in 2 epochs: 0.03 √(1000/8).
    assert f"| {0.03 * math.sqrt(125):.3g} " in out
    assert {"comparison.png", "comparison.md"} <= {path.name for path in (tmp_path / "out").iterdir()}
    text = (tmp_path / "out" / "comparison.md").read_text()
    assert "trains for 8 steps (2 epochs of batches of 10) on the loss l2; errors are of" in text
    assert "width 8, modes 8" in text and text.count("best of ") == 3  # twice in the table
    checked = Results.load("out")  # the last study
    trained = [(run["rule"], run["seed"], run["metrics"]["steps"]) for run in checked.records]
    assert trained == [(way, seed, 8) for way in USUAL for seed in (0, 1)]
    before = (tmp_path / "out" / "results.jsonl").read_text()
    assert main(line.split()) == 0  # everything is there
    assert (tmp_path / "out" / "results.jsonl").read_text() == before

    # With --tuned the same runs, and five learning rates of Adam's at the target.
    assert main([*line.split(), "--tuned"]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith(f"| {TUNED} "))
    lr, where = float(row.split("|")[2]), row.split("|")[3]
    count, low, high = re.search(
        r"best of (\d) from (\S+) to ([\d.]+).*, at width 8, modes 8, 8 steps, one seed", where
    ).groups()
    assert count == "5" and float(high) == pytest.approx(16 * float(low), rel=0.02)
    assert (float(low) < lr < float(high)) != (", the lowest" in where or ", the highest" in where)
    trained = [(run["rule"], run["seed"]) for run in Results.load("out").records]
    assert trained == [(way, seed) for way in WAYS for seed in (0, 1)]
    assert {json.loads(text)["loss"] for text in before.splitlines()} <= {run["loss"] for run in Results.load("out").records}
    assert not list((tmp_path / "out").rglob("weights.pt"))
