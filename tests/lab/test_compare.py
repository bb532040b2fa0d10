"""``neuralop-mup compare``: methods to train one target, and what their errors show."""

import json
import math
import re
from pathlib import Path

import pytest

from neuralop_mup.errors import MupError
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.compare import ADAM, ADAM_LR, METHODS, SOAP, TARGET_ADAM, Comparison, Method, compare
from neuralop_mup.lab.results import Results
from support.studies import build, fields, save_pair

DEFAULT = [name for name in METHODS if name != TARGET_ADAM]


def compared(*errors):
    """The text on methods with these errors."""
    methods = {name: Method(0.01, own, 1.0, 5.0) for name, own in zip(METHODS, errors, strict=False)}
    return str(Comparison(methods, "title", "about"))


def test_differences_need_three_seeds_that_trained():
    """MuSOAP's errors are 1/4 of Adam's in each seed, so 75 % lower. The tuned Adam differs by noise."""
    text = compared((0.4, 0.8, 1.6), (0.1, 0.2, 0.4), (0.2, 0.2, 0.2), (0.11, math.inf, 0.13))
    first, *_, hint, result = text.split("\n\n")
    assert first == "about" and "--tuned" in hint
    first, second = result.split("; ")
    assert first.endswith("relative to Adam (default): 75 % lower (95 % interval: 75 to 75 %)")
    assert "no clear difference" in second
    assert "0.11 to –" in text
    assert "at least 3 seeds" in compared((0.4, 0.4), (0.1, 0.1), (0.2, 0.2), (0.1, 0.1))
    text = compared((0.1,) * 3, (0.2,) * 3, (0.3,) * 3, (0.2,) * 3, (0.4,) * 3)
    assert "100 % higher" in text and "33 % lower" in text and "50 % lower" in text and "--tuned" not in text


def test_the_command_trains_resumes_and_tunes_at_the_target(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_pair(fields(50), "data.npz")
    line = "compare --data data.npz --seeds 0,1 --epochs 2 --batch_size 10 --n_workers 1 --folder out"
    line += " --target.hidden_channels 8 --target.n_modes 8 --target.n_layers 2"
    assert main(line.split()) == 0
    out = capsys.readouterr().out
    rows = re.findall(r"^\| ((?:Adam|MuSOAP).*?) +\|.*?\|.*?\| +([\d.]+)", out, re.M)
    lrs = {name: float(lr) for name, lr in rows}
    assert list(lrs) == DEFAULT
    # 40 samples are 4 batches, 8 steps in 2 epochs: 0.03 √(1000/8).
    assert lrs[ADAM] == ADAM_LR
    assert lrs[SOAP] == pytest.approx(0.03 * math.sqrt(125), rel=1e-2)
    records = Results.load("out").records
    trained = [(run["rule"], run["seed"], run["metrics"]["steps"]) for run in records]
    assert trained == [(name, seed, 8) for name in DEFAULT for seed in (0, 1)]
    results = Path("out/results.jsonl").read_text()
    assert (main(line.split()), Path("out/results.jsonl").read_text()) == (0, results)
    assert "replaced" not in capsys.readouterr().out

    # With --tuned the same runs, and five learning rates for Adam at the target.
    assert main([*line.split(), "--tuned"]) == 0
    tuned = Results.load("out").records
    assert [run["rule"] for run in tuned] == [name for name in METHODS for _ in (0, 1)]
    assert [run for run in tuned if run["rule"] != TARGET_ADAM] == records
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
