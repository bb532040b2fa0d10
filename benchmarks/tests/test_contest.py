"""Contests: who trains a problem best by planted records; the optimizers of others; the models and the baseline."""

import dataclasses
import math

import pytest
import torch
from kept import Kept, filled, rows
from neuralop.models import FNO

import neuralop_mup as nm
import run
from experiments import contenders, contest_page, nets, training
from experiments import contest as contests
from neuralop_mup.optim.musoap.optimizer import usual_lr


def contested(config):
    """MuSOAP is best at the law's rate, with 0.1; Adam at 0.004, with 0.2; stock SOAP at 0.016, with 0.15; 10 % a seed."""
    best, least = {"soap": (None, 0.1), "adam": (0.004, 0.2), "stock-soap": (0.016, 0.15)}.get(
        config["optimizer"], (0.004, 0.4)
    )
    best = best or usual_lr(config["steps"])
    loss = least * 1.5 ** abs(math.log2(config["lr"] / best)) * 1.1 ** config["seed"]
    return {
        "loss": loss,
        "metrics": {"test_loss": 2 * loss, "train_loss": loss / 2, "seconds": 2.0 if config["optimizer"] == "soap" else 1.0},
    }


@pytest.mark.parametrize(("name", "times"), [("apebench", 1), ("optimizers", 2)])
def test_a_contest_tells_who_is_best(name, times, tmp_path):
    """Medians of three seeds: 0.11 and 0.22, half. Each search ends with its best between two others."""
    full = run.EXPERIMENTS[name]
    few = dict(list(full.fields.items())[:2])
    experiment = dataclasses.replace(full, fields=few, contenders=("MuSOAP", "Adam", "stock SOAP"))
    kept = filled(experiment, contested)
    # The first three rates hold each best one, and its two neighbours by a factor of 2 follow.
    rates = {who: len(experiment.searched(kept, next(iter(few)), who)[0]) for who in ("MuSOAP", "Adam", "stock SOAP")}
    assert rates == {"MuSOAP": 5, "Adam": 5, "stock SOAP": 5}
    text = experiment.table(kept)
    assert "6 of 6 searches are done" in text
    assert f"{0.22 * times:.3g} [{0.2 * times:.3g}, {0.242 * times:.3g}] at 0.004" in text
    against = rows(text.split("that of Adam")[1])
    assert against["MuSOAP, untuned"] == "| MuSOAP, untuned | 2 | 0.50 (0.50 to 0.50) | 0.50 | 0.50 to 0.50 |"
    assert (
        rows(text.split("that of stock SOAP")[1])["MuSOAP"] == "| MuSOAP | 2 | 0.67 (0.67 to 0.67) | 0.67 | 0.67 to 0.67 |"
    )
    assert "0 of 6 searches" in experiment.table(Kept())
    said = experiment.numbers(kept)
    assert (said["MuSOAP.untuned.over.Adam.mean"], said["MuSOAP.over.SOAP.most"]) == ("0.50", "0.67")
    # Seeds reach from 0.1 to 0.121, from 0.2 to 0.242 and, of the untuned MuSOAP, from 0.1 as well.
    assert (said["MuSOAP.untuned.over.Adam.apart"], said["MuSOAP.untuned.over.Adam.behind"]) == ("2", "0")
    assert (said["Adam.over.SOAP.apart"], said["Adam.over.SOAP.behind"]) == ("0", "2")
    first = next(iter(few))
    grouped = dataclasses.replace(experiment, groups={"first": (first,), "none": ()}).numbers(kept)
    assert (grouped["MuSOAP.over.Adam.first.mean"], grouped["MuSOAP.over.Adam.first.of"]) == ("0.50", "1")
    assert "MuSOAP.over.Adam.none.mean" not in grouped
    # Pages have the medians without ranges, and who all are compared with: the ratio is 0.5 on both problems.
    assert f"| {0.11 * times:.3g} | {0.11 * times:.3g} | {0.22 * times:.3g} |" in said["medians"]
    assert "| Adam | 2 | 0.50 | 0.50 to 0.50 | 0.50 to 0.50 |" in said["over"]
    experiment.draw(kept, tmp_path / "who.svg")
    assert "stock SOAP, tuned" in (tmp_path / "who.svg").read_text()


def test_adamw_is_searched_from_adams_best_rate():
    """Nothing of it before Adam's search is done, and then three rates around it suffice: here both are best at 0.004."""
    full = run.EXPERIMENTS["apebench"]
    few = dict(list(full.fields.items())[:1])
    warm = contests.USUAL[-1]
    experiment = dataclasses.replace(full, fields=few, contenders=(warm, "Adam"), untuned={}, seeds=(0,))
    assert {one.config["optimizer"] for one in experiment.wanted(Kept())} == {"adam"}
    kept = filled(experiment, contested)
    assert list(experiment.searched(kept, *few, warm)[0]) == [0.004, 0.002, 0.008]
    # Of what is tuned on a field the best is the baseline: Adam with 0.2, where all others end at 0.4.
    assert experiment.ends(kept)[contests.BASELINE] == experiment.ends(kept)["Adam"]


def test_the_interval_of_a_mean_over_problems_is_students():
    """Of 1/2, 1 and 2 the logarithms have mean 0 and standard deviation log 2; t of two degrees of freedom is 4.3027, so
    that the interval reaches 4.3027 · log 2 / √3 = 1.7219 to either side, a factor of 5.595."""
    assert contest_page._interval([0.5, 1.0, 2.0]) == "0.18 to 5.59"
    assert contest_page._interval([0.5]) == contest_page._interval([0.5, math.inf]) == "–"


def test_a_contest_that_nobody_wins_says_so():
    experiment = dataclasses.replace(run.EXPERIMENTS["apebench"], contenders=("Adam",), seeds=(0,))
    kept = filled(experiment, lambda config: {"loss": training.LOST, "metrics": {"seconds": 1.0}})
    text = experiment.table(kept)
    assert "0 of 10 searches are done" in text and "| inf at 0.00949 |" in text and "| Adam" not in text


def test_what_others_reached_stands_beside():
    """APEBench's own runs, which no record of ours has: 0.0731, 0.0789, 0.0855 on Burgers; ours end at half of that."""
    full = run.EXPERIMENTS["apebench"]
    few = {"diff_burgers 1D": full.fields["diff_burgers 1D"]}
    experiment = dataclasses.replace(full, fields=few, contenders=(), seeds=(0,))
    kept = filled(experiment, lambda config: {"loss": 0.0394670, "metrics": {"seconds": 1.0, "train_loss": 0.01}})
    assert "| `diff_burgers 1D` | 0.0789 [0.0731, 0.0855] | 0.0395 |" in experiment.numbers(kept)["table"]
    assert experiment.numbers(kept)["MuSOAP.untuned.over.theirs.mean"] == "0.50"
    assert experiment.numbers(kept)["MuSOAP.untuned.over.theirs.of"] == "1"


def test_stock_optimizers_move_what_they_are_given():
    """SOAP all of it, complex kernels as two reals; Muon the matrices by updates of AdamW's size, AdamW the rest."""
    for make in (contenders.stock_soap, contenders.stock_muon):
        torch.manual_seed(0)
        model = FNO((4,), 1, 1, 8)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer = make(model, lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.0)
        x = torch.randn(4, 1, 16)
        for _ in range(3):  # SOAP's first step makes its bases alone; the schedule stops both after two
            optimizer.zero_grad()
            (model(x) - x).square().mean().backward()
            optimizer.step()
            moved = {name: p.detach().clone() for name, p in model.named_parameters()}
        assert all((moved[name] - before[name]).abs().max() > 0 for name in before)
        scheduler.step()
        optimizer.step()
        assert all(torch.equal(p, moved[name]) for name, p in model.named_parameters())


def test_adamw_of_the_baseline_warms_up():
    """A hundred steps: the first five at 1/5, 2/5, … of what the schedule says, which stays the group's."""
    model = nm.parametrize(FNO((4,), 1, 1, 8), rule="standard", base=lambda: FNO((4,), 1, 1, 8))
    optimizer = contenders.warmed_adamw(model, 1e-2, 100, 0.1)
    schedule = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.5 if step == 4 else 1.0)
    used = []
    optimizer.register_step_pre_hook(lambda *_: used.append(optimizer.param_groups[0]["lr"]))
    for _ in range(7):
        model(torch.randn(2, 1, 16)).square().mean().backward()
        optimizer.step()
        schedule.step()
    assert used == pytest.approx([0.002, 0.004, 0.006, 0.008, 0.005, 0.005, 0.005])
    assert {(group["lr"], group["weight_decay"]) for group in optimizer.param_groups} == {(0.005, 0.1)}


def test_the_baseline_is_on_each_field_the_best_of_adam_and_adamw():
    """Decay of 0.1 is made the best on the first field, Adam on the second; one search that is not done leaves it out.

    With 1.4 times the steps it has its own rate and three seeds, whose errors are made 10 times lower on the first field,
    and higher on the second.
    """
    full = run.EXPERIMENTS["optimizers"]
    few = dict(list(full.fields.items())[:2])
    experiment = dataclasses.replace(full, fields=few, contenders=("MuSOAP", *contests.USUAL), once=())

    def unlike(config):
        one = contested({**config, "optimizer": "adam"} if config["optimizer"].startswith("adamw") else config)
        favoured = "adamw-warm-0.1" if config["problem"] == next(iter(few)) else "adam"
        longer = 10 if favoured == "adamw-warm-0.1" else 0.1
        over = (2 if config["optimizer"] == favoured else 1) * (longer if config["steps"] == 1400 else 1)
        return {**one, "loss": one["loss"] / over, "metrics": {k: v / over for k, v in one["metrics"].items()}}

    kept = filled(experiment, unlike)
    ends = experiment.ends(kept)
    first, second = few
    assert ends[contests.BASELINE][first] == ends["AdamW, warm-up, decay 0.1"][first] != ends["Adam"][first]
    assert ends[contests.BASELINE][second] == ends["Adam"][second] != ends["AdamW"][second]
    assert experiment.numbers(kept)["MuSOAP.untuned.over.best.of"] == "2"
    best, longer = ends[contests.BASELINE], ends[contests.LONGER]
    assert longer[second] == best[second] and longer[first].lr == best[first].lr
    assert longer[first].errors == pytest.approx([error / 10 for error in best[first].errors])
    assert experiment.rated(kept, first, contests.LONGER) == ("AdamW, warm-up, decay 0.1", 0.004, 1.4)
    del kept[experiment.run(second, "AdamW", ends["AdamW"][second].lr, 0).id]
    assert list(experiment.ends(kept)[contests.BASELINE]) == [first]
    partly = dataclasses.replace(experiment, few={"AdamW": (first,)})
    assert partly.ends(kept)[contests.BASELINE] == ends[contests.BASELINE]


def test_every_model_of_the_layouts_maps_fields_to_fields():
    """Each of neuralop's kernels and UNO, for the channels of the data and in the shape of the data."""
    for on in run.EXPERIMENTS["layouts"].fields.values():
        d = len(on.modes)
        build = nets.NETS[on.config.get("net", "FNO")](2, 3, d)
        model = build(n_modes=on.modes, hidden_channels=8, n_layers=4, **on.model)
        assert model(torch.randn(2, 2, *(20,) * d)).shape == (2, 3, *(20,) * d)
