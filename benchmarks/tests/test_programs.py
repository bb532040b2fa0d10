"""The two lines put into programs of others: what is found in their texts and what is refused; and the experiment's page."""

import hashlib
import importlib
import math
import os
import runpy
import shutil
import sys
from pathlib import Path

import neuralop
import pytest
import torch
from kept import Kept

import neuralop_mup as nm

sys.path.insert(0, str(Path(__file__).parents[1]))
two_lines = importlib.import_module("experiments.two_lines")
programs = importlib.import_module("experiments.programs")
with_two_lines, with_own_optimizer = two_lines.with_two_lines, two_lines.with_own_optimizer

_HEAD = """# größer als ASCII
import torch
from torch.utils.data import DataLoader
from neuralop import LpLoss, Trainer
from neuralop.models import FNO
from neuralop.training import AdamW
data = [{"x": torch.randn(1, 8, 8), "y": torch.randn(1, 8, 8)} for _ in range(8)]
train_loader = DataLoader(data, batch_size=2)
"""
#: As neuralop's examples are.
TRAINED = (
    _HEAD
    + """model = FNO(
    n_modes=(4, 4),
    in_channels=1, out_channels=1, hidden_channels=8,
)
model = model.to("cpu")
name = "µ"; optimizer = AdamW(model.parameters(), lr=1e-2, weight_decay=1e-4)  # its own
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
trainer = Trainer(model=model, n_epochs=2, verbose=True)
trainer.train(train_loader=train_loader, test_loaders={}, optimizer=optimizer, scheduler=scheduler)
test_loaders, eval_losses = {8: train_loader}, {"l2": LpLoss(d=2)}
"""
)
#: As its scripts are, with loops of their own; the losses' weights are given the parameters, too.
LOOPED = (
    _HEAD
    + """
def main(n_epochs=3, rate=1e-2, plateau=True, wrapped=False):
    core = FNO((4, 4), 1, 1, 8)
    model = torch.nn.Sequential(core).to("cpu")
    if wrapped:
        model = torch.nn.DataParallel(model)
    optimizer = AdamW(
        model.parameters(),
        lr=rate,
    )
    weights = dict(params=model.parameters())
    if plateau:
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=50)
    else:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for epoch in range(n_epochs):
        for i, batch in enumerate(train_loader):
            optimizer.zero_grad()
            (model(batch["x"]) - batch["y"]).square().mean().backward()
            optimizer.step()
        scheduler.step(1.0)
    return optimizer
optimizer = main()"""
)


HAS_CHECKOUT = pytest.mark.skipif(
    programs.CHECKOUT not in os.environ, reason=f"{programs.CHECKOUT} names no checkout of neuraloperator"
)


def changed(before, after):
    """Lines that are gone, and lines that are new."""
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


def test_a_program_with_a_trainer_has_its_two_lines():
    gone, new = changed(TRAINED, with_two_lines(TRAINED))
    assert gone == ['name = "µ"; optimizer = AdamW(model.parameters(), lr=1e-2, weight_decay=1e-4)  # its own']
    assert new == [
        "import neuralop_mup as nm; nm.parametrize(model)",
        'name = "µ"; optimizer = nm.MuSOAP(model, steps=(2) * len(train_loader))  # its own',
    ]
    lines = with_two_lines(TRAINED).splitlines()
    assert lines.index(new[0]) == lines.index('model = model.to("cpu")') - 1


def test_a_program_with_loops_has_its_two_lines():
    _, new = changed(LOOPED, with_two_lines(LOOPED))
    assert new == [
        "    import neuralop_mup as nm; nm.parametrize(model)",
        "    optimizer = nm.MuSOAP(model, steps=(n_epochs) * len(train_loader))",
    ]


@pytest.mark.parametrize(("source", "steps"), [(TRAINED, 2 * 4), (LOOPED, 3 * 4)])
@pytest.mark.filterwarnings("ignore:LpLoss", "ignore:.*pin_memory", "ignore:FNO.forward")
def test_what_is_trained_so_ends_with_its_steps(tmp_path, source, steps):
    path = tmp_path / "program.py"
    path.write_text(with_two_lines(source), encoding="utf-8")
    optimizer = runpy.run_path(str(path))["optimizer"]
    assert isinstance(optimizer, nm.MuSOAP)
    assert {group["steps"] for group in optimizer.param_groups} == {steps}
    assert all(group["length_mult"] < 0.1 for group in optimizer.param_groups)


def test_a_run_is_the_program_in_a_copy_of_its_checkout(tmp_path, monkeypatch):
    """Its errors are those of its own losses at its end."""
    shutil.copytree(Path(neuralop.__file__).parent, tmp_path / "neuralop", ignore=shutil.ignore_patterns("tests"))
    path = tmp_path / "scripts" / "train_burgers.py"
    for folder in (tmp_path / "config", tmp_path / programs._DATA, path.parent):
        folder.mkdir()
    torch.save({"x": torch.ones(2, dtype=torch.double)}, tmp_path / programs._DATA / "burgers_test_16.pt")
    monkeypatch.setenv(programs.CHECKOUT, str(tmp_path))
    read = "assert torch.load('../neuralop/data/datasets/data/burgers_test_16.pt')['x'].dtype == torch.float32\n"
    path.write_text(TRAINED + read, encoding="utf-8")
    sha = hashlib.sha256((TRAINED + read).encode()).hexdigest()[:12]
    monkeypatch.setitem(programs.PROGRAMS, "small", programs.Other("scripts/train_burgers.py", sha, 1))
    told = programs.measured(programs.Programs(("small",)).run("small", "two lines", 1.0, 0).config)
    assert told["loss"] == told["errors"]["8_l2"] > 0 and told["seconds"] > 0


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("optimizer = AdamW(model.parameters(),", "optimizer = AdamW([{}],", "has none"),
        ("name = ", "nm = ", "a name nm of its own"),
        ("model = FNO(", "other = FNO(", "makes model"),
        ("n_epochs=2, ", "", "one n_epochs"),
        ("scheduler = torch", "train_loader = smaller\nscheduler = torch", "needs train_loader, which is set after"),
        ("trainer.train(", "trainer.train(train_loader, {}, optimizer)\ntrainer.train(", "trains in 2 places"),
        ("trainer = ", "trainer := ", "no Python"),
        ("trainer = ", "second = AdamW(model.parameters())\nsecond.step()\ntrainer = ", "and has 2"),
    ],
)
def test_what_is_not_understood_is_refused(old, new, told):
    assert old in TRAINED
    with pytest.raises(nm.MupError, match=told):
        with_two_lines(TRAINED.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "            optimizer.step()",
            "            if i % 2:\n                optimizer.step()",
            "only under a condition",
        ),
        ("range(n_epochs)", "range(1, n_epochs)", "has none"),
        ("for epoch in range(n_epochs)", "while True", "has none"),
        ("enumerate(train_loader)", "zip(one, other)", r"zip\(one, other\), whose length"),
    ],
)
def test_loops_that_are_not_understood_are_refused(old, new, told):
    assert old in LOOPED
    with pytest.raises(nm.MupError, match=told):
        with_two_lines(LOOPED.replace(old, new, 1))


@HAS_CHECKOUT
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_the_programs_of_a_checkout_are_understood(name):
    text = programs.text_of(programs.PROGRAMS[name])
    _, new = changed(text, with_two_lines(text))
    assert [line.split("(")[0].strip() for line in new] == [
        "import neuralop_mup as nm; nm.parametrize",
        "optimizer = nm.MuSOAP",
    ]
    for made in (with_two_lines(text), with_own_optimizer(text, 2.0, cosine=True), two_lines.with_epochs(text, 1)):
        compile(made, name, "exec")


@HAS_CHECKOUT
@pytest.mark.parametrize("how", ["own", "two lines"])
def test_the_quickest_program_of_a_checkout_runs(how):
    experiment = programs.Programs().tiny()
    told = programs.measured(experiment.run(*experiment.names, how, 1.0, 0).config)
    assert told["errors"].keys() == {"16_h1", "16_l2", "32_h1", "32_l2"} and 0 < told["loss"] < 2


def test_without_a_checkout_a_run_says_what_to_set(monkeypatch, tmp_path):
    (first, *_) = programs.Programs().tiny().wanted(Kept())
    monkeypatch.delenv(programs.CHECKOUT, raising=False)
    with pytest.raises(nm.MupError, match="NEURALOP_CHECKOUT is not set: set it to the folder of a checkout"):
        programs.measured(first.config)
    monkeypatch.setenv(programs.CHECKOUT, str(tmp_path))
    with pytest.raises(nm.MupError, match="has no scripts/train_burgers.py"):
        programs.measured(first.config)
    path = tmp_path / "scripts" / "train_burgers.py"
    path.parent.mkdir()
    path.write_text("print()")
    with pytest.raises(nm.MupError, match="is not the program of neuraloperator's commit 93d3f06"):
        programs.text_of(programs.PROGRAMS["train_burgers"])


def planted(config):
    """Best at 4 times the rate, 0.2 under its own schedule and 0.1 under a cosine; 0.08 with the two lines."""
    least = {"two lines": 0.08, "own": 0.2, "cosine": 0.1}[config["how"]]
    off = 0 if config["how"] == "two lines" else abs(math.log2(config["times"] / 4))
    loss = least * 2**off
    return {"loss": loss, "metrics": {"errors": {"16_h1": 2 * loss, "16_l2": loss, "32_l2": 0.05}, "seconds": 1.0}}


def test_a_search_goes_on_beyond_its_edge_and_its_end_is_on_the_page():
    experiment = programs.Programs(("train_burgers",), (0,))
    assert "–" in experiment.table(Kept()) and experiment.numbers(Kept())["tuned.programs"] == "0"
    kept, rounds = Kept(), 0
    while runs := list(experiment.wanted(kept)):
        rounds += 1
        kept |= {run.id: {"outcome": "complete", **planted(run.config)} for run in runs}
    tried = [run.config["times"] for run in [experiment.run("train_burgers", "own", t, 0) for t in (0.5, 1, 2, 4, 8, 16)]]
    assert [t for t in tried if kept.get(experiment.run("train_burgers", "own", t, 0))] == [1, 2, 4, 8] and rounds == 3
    assert experiment.tuned(kept, "train_burgers") == ("cosine", 4.0)
    assert (
        "| train_burgers | 12 | 0.08 | 0.8 | 0.1 (4 ×, cosine) | 16_h1 0.10, 16_l2 0.10, 32_l2 1.00 | "
        "16_h1 0.80, 16_l2 0.80, 32_l2 1.00 |" in experiment.table(kept)
    )
    numbers = experiment.numbers(kept)
    assert (numbers["tuned.mean"], numbers["tuned.most"], numbers["written.mean"]) == ("0.86", "1.00", "0.22")
    lost = Kept({key: {"outcome": "diverged", "loss": None, "metrics": {}} for key in kept})
    assert experiment.table(lost).startswith("# ") and not list(experiment.wanted(lost))


def test_a_second_seed_trains_what_was_tuned_with_the_first():
    experiment = programs.Programs(("train_burgers",), (0, 1))
    kept, second = Kept(), set()
    while runs := list(experiment.wanted(kept)):
        kept |= {run.id: {"outcome": "complete", **planted(run.config)} for run in runs}
        second |= {(run.config["how"], run.config["times"]) for run in runs if run.config["seed"] == 1}
    assert second == {("two lines", 1.0), ("cosine", 4.0), ("own", 1.0)}
    assert "| train_burgers | 12 | 0.08, 0.08 | 0.8, 0.8 | 0.1, 0.1 (4 ×, cosine) |" in experiment.table(kept)
