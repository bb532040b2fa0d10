"""Comparisons of optimizers: numbers from planted records, the optimizers of other packages, the models and the baseline."""

import dataclasses
import math

import pytest
import torch
from neuralop.models import FNO
from planted import PlantedRecords, planted_records, rows

import neuralop_mup as nm
import run
from experiments import comparison, contenders, nets
from neuralop_mup.optim.musoap.optimizer import default_lr


def smaller(name, n_tasks, **changes):
    """Return the comparison on its first problems, with other changes."""
    full = run.EXPERIMENTS[name]
    return dataclasses.replace(full, tasks=dict(list(full.tasks.items())[:n_tasks]), **changes)


def error_by_optimizer(config):
    """MuSOAP reaches 0.1 at its default rate, Adam 0.2 at 0.004, stock SOAP 0.15 at 0.016. Each seed adds 10 %."""
    best, least = {"soap": (default_lr(config["steps"]), 0.1), "stock-soap": (0.016, 0.15), "adam": (0.004, 0.2)}.get(
        config["optimizer"], (0.004, 0.4)
    )
    loss = least * 1.5 ** abs(math.log2(config["lr"] / best)) * 1.1 ** config["seed"]
    return {"loss": loss, "metrics": {"test_loss": 2 * loss, "train_loss": loss / 2, "seconds": 1.0}}


@pytest.mark.parametrize(("name", "times"), [("apebench", 1), ("optimizers", 2)])
def test_errors_and_ratios_of_a_comparison(name, times, tmp_path):
    """The medians of three seeds are 0.11, 0.22 and 0.165. A search ends with its best rate between two others."""
    experiment = smaller(name, 2, contenders=("MuSOAP", "Adam", "stock SOAP"))
    records = planted_records(experiment, error_by_optimizer)
    # The first three rates include each best one. Its two neighbours follow.
    rates = [len(experiment.searched(records, next(iter(experiment.tasks)), who)[0]) for who in experiment.contenders]
    assert rates == [5, 5, 5]
    text = experiment.table(records)
    assert f"{0.22 * times:.3g} [{0.2 * times:.3g}, {0.242 * times:.3g}] at 0.004" in text
    assert rows(text.split("relative to |")[1])["Adam"] == "| Adam | 2 | 0.50 | 0.50 to 0.50 | 0.50 to 0.50 |"
    numbers = experiment.numbers(records)
    assert (numbers["MuSOAP.untuned.over.Adam.mean"], numbers["MuSOAP.over.SOAP.most"]) == ("0.50", "0.67")
    assert f"| {0.11 * times:.3g} | {0.11 * times:.3g} | {0.22 * times:.3g} |" in numbers["medians"]
    experiment.draw(records, tmp_path / "figure.svg")
    assert "stock SOAP, tuned" in (tmp_path / "figure.svg").read_text()


def test_the_search_for_adamw_starts_at_the_best_rate_of_adam():
    """It starts after Adam's search. Three rates are enough, because both are best at 0.004."""
    warm = comparison.BASELINES[-1]
    experiment = smaller("apebench", 1, contenders=(warm, "Adam"), untuned={}, seeds=(0,))
    assert {wanted.config["optimizer"] for wanted in experiment.missing_runs(PlantedRecords())} == {"adam"}
    records = planted_records(experiment, error_by_optimizer)
    assert list(experiment.searched(records, *experiment.tasks, warm)[0]) == [0.004, 0.002, 0.008]


def test_the_baseline_is_the_best_of_adam_and_adamw_on_each_problem():
    """AdamW with a decay of 0.1 is best on the first problem, Adam on the second.

    With 1.4 times the steps, errors are 10 times lower on the first problem and higher on the second.
    """
    experiment = smaller("optimizers", 2, contenders=("MuSOAP", *comparison.BASELINES), one_seed=())
    first, second = experiment.tasks

    def measured(config):
        best = {first: "adamw-warm-0.1", second: "adam"}[config["problem"]]
        by = 2 if config["optimizer"] == best else 1
        if config["steps"] == 1400:
            by *= 10 if config["problem"] == first else 0.1
        usual = error_by_optimizer({**config, "optimizer": config["optimizer"].replace("adamw", "adam").split("-")[0]})
        return {"loss": usual["loss"] / by, "metrics": {name: value / by for name, value in usual["metrics"].items()}}

    records = planted_records(experiment, measured)
    results = experiment.results(records)
    best, longer = results[comparison.BEST_BASELINE], results[comparison.LONGER_BASELINE]
    assert best[first] == results["AdamW, warm-up, decay 0.1"][first] != results["Adam"][first]
    assert best[second] == results["Adam"][second] != results["AdamW"][second]
    assert longer[first].errors == pytest.approx([error / 10 for error in best[first].errors])
    assert longer[second] == best[second]
    # A problem without all searches has no baseline, unless the optimizer is not tuned there.
    del records[experiment.run(second, "AdamW", results["AdamW"][second].lr, 0).id]
    assert list(experiment.results(records)[comparison.BEST_BASELINE]) == [first]
    assert dataclasses.replace(experiment, only_on={"AdamW": (first,)}).results(records)[comparison.BEST_BASELINE] == best


def test_the_interval_of_a_mean_over_problems_is_students():
    """The logarithms of 1/2, 1 and 2 have mean 0 and standard deviation log 2; t with two degrees of freedom is 4.3027.

    The interval is ±4.3027 · log 2 / √3 = ±1.7219, a factor of 5.595.
    """
    assert comparison._interval([0.5, 1.0, 2.0]) == "0.18 to 5.59"
    assert comparison._interval([0.5]) == comparison._interval([0.5, math.inf]) == "–"


@pytest.mark.parametrize("make", [contenders.stock_soap, contenders.stock_muon])
def test_stock_optimizers_update_every_parameter_and_follow_schedulers(make):
    """SOAP's first step only initializes its bases."""
    torch.manual_seed(0)
    model = FNO((4,), 1, 1, 4, n_layers=1)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = make(model, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.0)
    for _ in range(2):
        model(torch.randn(2, 1, 8)).square().mean().backward()
        optimizer.step()
    assert not any(map(torch.equal, model.parameters(), before))
    scheduler.step()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert all(map(torch.equal, model.parameters(), before))


def test_adamw_of_the_baseline_warms_up():
    """A hundred steps: the first five have 1/5, 2/5, … of the scheduled rate."""
    model = nm.parametrize(FNO((4,), 1, 1, 4, n_layers=1), rule="standard")
    optimizer = contenders.warmed_adamw(model, 1e-2, 100, 0.1)
    scheduler = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.5 if step == 4 else 1.0)
    used = []
    optimizer.register_step_pre_hook(lambda *_: used.append(optimizer.param_groups[0]["lr"]))
    for _ in range(7):
        optimizer.step()
        scheduler.step()
    assert used == pytest.approx([0.002, 0.004, 0.006, 0.008, 0.005, 0.005, 0.005])
    assert {(group["lr"], group["weight_decay"]) for group in optimizer.param_groups} == {(0.005, 0.1)}


@pytest.mark.parametrize("name", run.EXPERIMENTS["layouts"].tasks)
def test_models_of_the_layouts_map_fields_to_fields(name):
    task = run.EXPERIMENTS["layouts"].tasks[name]
    d = len(task.modes)
    build = nets.NETS[task.config.get("net", "FNO")](2, 3, d)
    model = build(n_modes=task.modes, hidden_channels=8, n_layers=4, **task.model)
    assert model(torch.randn(2, 2, *(20,) * d)).shape == (2, 3, *(20,) * d)
