"""The two lines in programs of neuralop: what replaces which text, and the experiment's page."""

import hashlib
import math
import shutil
from pathlib import Path

import neuralop
import pytest
import torch
from planted import PlantedRecords, planted_records

import neuralop_mup as nm
from experiments import programs

_HEAD = """# größer als ASCII
import torch
from torch.utils.data import DataLoader
from neuralop import LpLoss, Trainer
from neuralop.models import FNO
from neuralop.training import AdamW
data = [{"x": torch.randn(1, 8, 8), "y": torch.randn(1, 8, 8)} for _ in range(8)]
train_loader = DataLoader(data, batch_size=2)
"""
#: Like neuralop's examples.
TRAINER = (
    _HEAD
    + """model = FNO(
    n_modes=(4, 4),
    in_channels=1, out_channels=1, hidden_channels=8,
)
model = model.to("cpu")
optimizer = AdamW(model.parameters(), lr=1e-2, weight_decay=1e-4)  # its own
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
trainer = Trainer(model=model, n_epochs=2, verbose=True)
trainer.train(train_loader=train_loader, test_loaders={}, optimizer=optimizer, scheduler=scheduler)
test_loaders, eval_losses = {8: train_loader}, {"l2": LpLoss(d=2)}
"""
)


def changed(**config):
    """Return the lines of a program that a run changes."""
    lines = programs.edited(TRAINER, {"epochs": None, "times": 1.0, **config}).splitlines()
    return [line for line in lines if line not in TRAINER.splitlines()]


def test_the_two_lines_replace_the_optimizer():
    assert changed(how="two lines", epochs=5) == [
        "import neuralop_mup as nm; nm.parametrize(model)",
        "optimizer = nm.MuSOAP(model, steps=(5) * len(train_loader))  # its own",
        "trainer = Trainer(model=model, n_epochs=5, verbose=True)",
    ]


def test_the_own_optimizer_has_another_rate_and_schedule():
    assert changed(how="own", times=0.5) == [
        "optimizer = AdamW(model.parameters(), lr=(1e-2) * 0.5, weight_decay=1e-4)  # its own"
    ]
    assert changed(how="cosine", times=2.0) == [
        "optimizer = AdamW(model.parameters(), lr=(1e-2) * 2.0, weight_decay=1e-4)  # its own",
        "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)",
    ]


def test_a_program_without_an_optimizer_is_rejected():
    with pytest.raises(nm.MupError, match="by hand"):
        programs.edited(TRAINER.replace("AdamW(", "Adam("), {"how": "two lines", "epochs": 5, "times": 1.0})


def test_a_program_runs_in_a_copy_of_its_checkout(tmp_path, monkeypatch):
    """The errors are those of its own losses at its end. Burgers' data is converted to single precision."""
    shutil.copytree(Path(neuralop.__file__).parent, tmp_path / "neuralop", ignore=shutil.ignore_patterns("tests"))
    path = tmp_path / "scripts" / "train_burgers.py"
    for folder in (tmp_path / "config", tmp_path / programs._DATA, path.parent):
        folder.mkdir()
    torch.save({"x": torch.ones(2, dtype=torch.double)}, tmp_path / programs._DATA / "burgers_test_16.pt")
    monkeypatch.setenv(programs.CHECKOUT, str(tmp_path))
    text = TRAINER + ("assert torch.load('../neuralop/data/datasets/data/burgers_test_16.pt')['x'].dtype == torch.float32\n")
    path.write_text(text, encoding="utf-8")
    sha = hashlib.sha256(text.encode()).hexdigest()[:12]
    monkeypatch.setitem(programs.PROGRAMS, "small", programs.Program("scripts/train_burgers.py", sha, 1))
    measured = programs.measured(programs.Programs(("small",)).run("small", "two lines", 1.0, 0).config)
    assert measured["loss"] == measured["errors"]["8_l2"] > 0


def test_a_run_needs_the_checkout_of_the_right_commit(monkeypatch, tmp_path):
    path = tmp_path / "scripts" / "train_burgers.py"
    path.parent.mkdir()
    monkeypatch.setenv(programs.CHECKOUT, str(tmp_path))
    with pytest.raises(nm.MupError, match=r"NEURALOP_CHECKOUT.*scripts/train_burgers\.py"):
        programs.checkout()
    path.write_text("print()")
    with pytest.raises(nm.MupError, match="93d3f06"):
        programs.text_of(programs.PROGRAMS["train_burgers"])


def measured(config):
    """Best at 4 times the rate: 0.2 under the own schedule, 0.1 under a cosine. The two lines reach 0.08."""
    least = {"two lines": 0.08, "own": 0.2, "cosine": 0.1}[config["how"]]
    off = 0 if config["how"] == "two lines" else abs(math.log2(config["times"] / 4))
    loss = least * 2**off
    return {"loss": loss, "metrics": {"errors": {"16_h1": 2 * loss, "16_l2": loss, "32_l2": 0.05}, "seconds": 1.0}}


def test_a_search_continues_beyond_its_edge():
    experiment = programs.Programs(("train_burgers",), (0,))
    records = planted_records(experiment, measured)
    tried = [times for times in (0.5, 1, 2, 4, 8, 16) if records.get(experiment.run("train_burgers", "own", times, 0))]
    assert tried == [1, 2, 4, 8]
    assert experiment.tuned(records, "train_burgers") == ("cosine", 4.0)
    numbers = experiment.numbers(records)
    assert (numbers["tuned.mean"], numbers["tuned.all.mean"]) == ("0.80", "0.86")
    assert "tuned.mean" not in experiment.numbers(PlantedRecords())
    assert experiment.table(records.diverged()).startswith("# ")
    assert not list(experiment.missing_runs(records.diverged()))


def test_a_second_seed_trains_what_was_tuned_with_the_first():
    experiment = programs.Programs(("train_burgers",), (0, 1))
    records, second = planted_records(experiment, measured), {("two lines", 1.0), ("cosine", 4.0), ("own", 1.0)}
    assert all(records.get(experiment.run("train_burgers", *setting, 1)) for setting in second)
    assert len(records) == 2 * 4 + 1 + len(second)
    row = "| `train_burgers` | 0.08, 0.08 | 0.8, 0.8 | 0.1, 0.1 | 0.10 (0.10 to 1.00) | 0.80 (0.80 to 1.00) |"
    assert row in experiment.table(records)


def test_a_failed_seed_counts_in_the_ratio():
    """Means of errors over seeds: (1.0 + 0.08) / (0.1 + 0.1)."""

    def one_fails(config):
        failed = config["how"] == "two lines" and config["seed"] == 0
        return {"loss": 1.0, "metrics": {"errors": {"16_l2": 1.0}, "seconds": 1.0}} if failed else measured(config)

    experiment = programs.Programs(("train_burgers",), (0, 1))
    ratios = experiment.ratios(planted_records(experiment, one_fails), "train_burgers", ("cosine", 4.0))
    assert ratios["16_l2"] == pytest.approx(5.4)
