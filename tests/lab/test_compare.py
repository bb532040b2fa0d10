"""``neuralop-mup compare``: ways to train one target, and what their errors show."""

import json
import math
import re
from pathlib import Path

import pytest

from neuralop_mup.errors import MupError
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.compare import ADAM_LR, TUNED, WAYS, Comparison, Way, compare
from neuralop_mup.lab.results import Results
from support.studies import build, fields, save_pair

DEFAULT = [name for name in WAYS if name != TUNED]


def compared(*errors):
    """The text on ways with these errors."""
    names = DEFAULT if len(errors) == 4 else WAYS
    ways = {name: Way(name, 0.01, own, 1.0, 5.0) for name, own in zip(names, errors, strict=True)}
    found = Comparison(ways, "title", "about")
    return "\n".join([*found.sentences(), found.table()])


def test_ratios_need_three_seeds_that_trained():
    """Adam, Adam tuned at a proxy, MuSOAP, and MuSOAP checked. Ratios of MuSOAP to Adam are 1/4 in each seed."""
    text = compared((0.4, 0.8, 1.6), (0.2, 0.2, 0.2), (0.1, 0.2, 0.4), (0.11, math.inf, 0.13))
    assert text.count("0.25 times") == 1
    assert text.count("95 %") == 1  # the others differ by noise, or failed
    assert "0.11 to –" in text
    assert "95 %" not in compared((0.4, 0.4), (0.2, 0.2), (0.1, 0.1), (0.1, 0.1))
    assert "0.50 times" in compared((0.4,) * 3, (0.3,) * 3, (0.2,) * 3, (0.1,) * 3, (0.1,) * 3)


def test_the_command_trains_resumes_and_tunes_at_the_target(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_pair(fields(50), "data.npz")
    line = "compare --data data.npz --seeds 0,1 --epochs 2 --batch_size 10 --n_workers 1 --folder out"
    line += " --target.hidden_channels 8 --target.n_modes 8 --target.n_layers 2"
    assert main(line.split()) == 0
    out = capsys.readouterr().out
    lrs = {name: float(lr) for name, lr in re.findall(r"^\| (\S.*?) +\| +([\d.]+)", out, re.M)}
    assert list(lrs) == DEFAULT
    # 40 samples are 4 batches, 8 steps in 2 epochs: 0.03 √(1000/8).
    assert lrs[DEFAULT[0]] == ADAM_LR
    assert lrs[DEFAULT[2]] == pytest.approx(0.03 * math.sqrt(125), rel=1e-2)
    records = Results.load("out").records
    trained = [(run["rule"], run["seed"], run["metrics"]["steps"]) for run in records]
    assert trained == [(way, seed, 8) for way in DEFAULT for seed in (0, 1)]
    results = Path("out/results.jsonl").read_text()
    assert (main(line.split()), Path("out/results.jsonl").read_text()) == (0, results)

    # With --tuned the same runs, and five learning rates for Adam at the target.
    assert main([*line.split(), "--tuned"]) == 0
    tuned = Results.load("out").records
    assert [run["rule"] for run in tuned] == [way for way in WAYS for _ in (0, 1)]
    assert [run for run in tuned if run["rule"] != TUNED] == records
    assert not list(Path("out").rglob("weights.pt"))


def test_a_search_without_a_result_is_an_error_and_leaves_its_table(tmp_path):
    def diverge(prediction, **sample):
        return math.nan * prediction.sum()

    settings = {
        "target": {"hidden_channels": 8, "n_modes": (4,)},
        "loss": diverge,
        "seeds": (0,),
        "epochs": 1,
        "n_workers": 1,
        "progress": False,
    }
    with pytest.raises(MupError, match="completed"):
        compare(build, fields(40), folder=tmp_path, **settings)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row["outcome"] for row in rows] == ["diverged"] * 7
