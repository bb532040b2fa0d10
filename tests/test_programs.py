"""The two lines put into programs of others: what is found in their texts and what is refused; and the experiment's page."""

import importlib
import math
import os
import sys
from pathlib import Path

import pytest

import neuralop_mup as nm

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
two_lines = importlib.import_module("experiments.two_lines")
programs = importlib.import_module("experiments.programs")
with_two_lines, with_own_optimizer = two_lines.with_two_lines, two_lines.with_own_optimizer

#: As neuralop's examples are.
TRAINED = """# größer als ASCII
import torch
from neuralop import Trainer
model = FNO(
    n_modes=(8, 8),
    in_channels=1, out_channels=1, hidden_channels=8,
)
model = model.to("cpu")
name = "µ"; optimizer = AdamW(model.parameters(), lr=1e-2, weight_decay=1e-4)  # its own
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
trainer = Trainer(model=model, n_epochs=2, verbose=True)
trainer.train(train_loader=train_loader, test_loaders={}, optimizer=optimizer, scheduler=scheduler)
"""
#: As its scripts are; the losses' weights are given the parameters, too.
LOOPED = """
def main():
    core = get_model(config)
    model = Adapter(core).to(device)
    if config.distributed:
        model = DDP(model)
    optimizer = AdamW(
        model.parameters(),
        lr=config.opt.learning_rate,
    )
    weights = Relobralo(params=model.parameters())
    if config.plateau:
        scheduler = ReduceLROnPlateau(optimizer, patience=50)
    else:
        scheduler = StepLR(optimizer, 10)
    for epoch in range(config.opt.n_epochs):
        for i, batch in enumerate(train_loader):
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
        scheduler.step()
main()"""


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
        "    optimizer = nm.MuSOAP(model, steps=(config.opt.n_epochs) * len(train_loader))",
    ]
    compile(with_two_lines(LOOPED), "looped", "exec")


def test_its_own_optimizer_may_have_another_rate_and_a_cosine():
    assert with_own_optimizer(TRAINED) == TRAINED
    _, new = changed(LOOPED, with_own_optimizer(LOOPED, 0.5, cosine=True))
    assert new == [
        "        lr=(config.opt.learning_rate) * 0.5,",
        "    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=config.opt.n_epochs)",
    ]
    compile(with_own_optimizer(LOOPED, 0.5, cosine=True), "looped", "exec")
    _, new = changed(LOOPED, two_lines.with_epochs(LOOPED, 3))
    assert new == ["    for epoch in range(3):"]


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
        ("range(config.opt.n_epochs)", "range(1, config.opt.n_epochs)", "has none"),
        ("for epoch in range(config.opt.n_epochs)", "while True", "has none"),
        ("enumerate(train_loader)", "zip(one, other)", r"zip\(one, other\), whose length"),
    ],
)
def test_loops_that_are_not_understood_are_refused(old, new, told):
    assert old in LOOPED
    with pytest.raises(nm.MupError, match=told):
        with_two_lines(LOOPED.replace(old, new, 1))


@pytest.mark.skipif(programs.CHECKOUT not in os.environ, reason=f"{programs.CHECKOUT} names no checkout of neuraloperator")
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


class Kept(dict):
    """Records by a run's identity."""

    def get(self, run):
        return super().get(run.id)


def planted(config):
    """Best at 4 times the rate, 0.2 under its own schedule and 0.1 under a cosine; 0.08 with the two lines."""
    least = {"two lines": 0.08, "own": 0.2, "cosine": 0.1}[config["how"]]
    off = 0 if config["how"] == "two lines" else abs(math.log2(config["times"] / 4))
    loss = least * 2**off
    return {"loss": loss, "metrics": {"errors": {"16_h1": 2 * loss, "16_l2": loss, "32_l2": 0.05}, "seconds": 1.0}}


def test_a_search_goes_on_beyond_its_edge_and_its_end_is_on_the_page():
    experiment = programs.Programs(("train_burgers",), (0,))
    assert "–" in experiment.table(Kept()) and experiment.numbers(Kept()) == {"programs": "0"}
    kept, rounds = Kept(), 0
    while runs := list(experiment.wanted(kept)):
        rounds += 1
        kept |= {run.id: {"outcome": "complete", **planted(run.config)} for run in runs}
    tried = [run.config["times"] for run in [experiment.run("train_burgers", "own", t, 0) for t in (0.5, 1, 2, 4, 8, 16)]]
    assert [t for t in tried if kept.get(experiment.run("train_burgers", "own", t, 0))] == [0.5, 1, 2, 4, 8] and rounds == 3
    assert experiment.tuned(kept, "train_burgers", 0) == ("cosine", 4.0)
    assert (
        "| train_burgers | 12 | 0.08 | 0.8 | 0.1 (4 ×, cosine) | 16_h1 0.80, 16_l2 0.80, 32_l2 1.00 |"
        in experiment.table(kept)
    )
    assert experiment.numbers(kept)["mean"] == "0.80"
    lost = Kept({key: {"outcome": "diverged", "loss": None, "metrics": {}} for key in kept})
    assert experiment.table(lost).startswith("# ") and not list(experiment.wanted(lost))
