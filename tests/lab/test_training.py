"""One run through neuralop's Trainer: its settings, its errors, and what is refused."""

import pytest
from neuralop.models import FNO
from torch.optim.optimizer import register_optimizer_step_post_hook

import neuralop_mup as nm
from neuralop_mup.lab.problems import get_problem
from neuralop_mup.lab.settings import OPTIMIZERS, Settings, build_optimizer
from support.training import train_run, training_of

TINY = {
    "problem": "burgers",
    "problem_args": {"grid": 32, "n_train": 20, "n_val": 10, "n_test": 10, "viscosity": 0.1},
    "model": {"n_modes": (8,), "hidden_channels": 8, "n_layers": 2},
    "base": {"hidden_channels": 4},
    "epochs": 2,
    "batch_size": 10,
    "lr": 5e-3,
}


def test_a_run_is_deterministic_and_learns():
    a, b = train_run(TINY), train_run(TINY)
    assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}
    assert 0 < train_run({**TINY, "epochs": 30})["loss"] < 0.9 * a["loss"]
    assert train_run({**TINY, "seed": 1})["loss"] != a["loss"]


def test_reported_loss_is_the_relative_error_of_physical_fields():
    """A model that outputs zeros in normalised units predicts the mean field: its relative error is known."""
    problem = get_problem("burgers", **TINY["problem_args"])
    data = problem.load()
    y_train, y = data.train[1].double(), data.val[1]
    sizes = {"model": TINY["model"], "base": {**TINY["model"], **TINY["base"]}}
    bias = training_of("burgers", **TINY["problem_args"]).model(Settings.of(sizes)).projection.fcs[1].bias.item()
    prediction = y_train.mean() + y_train.std() * bias  # fields are normalised by one mean and spread per channel
    error = ((prediction - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean()
    loss = train_run({**TINY, "lr": 0.0, "init_mult.readout": 1e-12, "epochs": 1})["loss"]
    assert loss == pytest.approx(error.item(), rel=1e-3)


def test_settings_reach_the_run():
    base = train_run(TINY)["loss"]
    for change in (
        {"rule": "standard"},
        {"lr": 1e-3},
        {"beta2": 0.9},
        {"schedule": "constant"},
        {"clip_spectral": 1e-5},
        {"lr_mult.spectral": 4.0},
        {"init_mult.readout": 4.0},
        {"batch_size": 5},
        {"epochs": 3},
        {"loss": "h1"},
        *({"optimizer": name, "weight_decay": 1e-4} for name in OPTIMIZERS if name != "adam"),
    ):
        assert train_run({**TINY, **change})["loss"] != base, change


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"learning_rate": 1.0}, "'learning_rate'"),
        ({"optimizer": "adm"}, "'adam"),
        ({"aux_lr": 0.01}, "aux_lr.*'adam'"),
        ({"soap": {"period": 3}}, "soap"),
        ({"optimizer": "soap", "soap": {"perod": 2}}, "'perod'.*'period'"),
        ({"lr_mult.kernel": 2.0}, "'kernel'"),
        ({"model": {"n_modes": (8,), "hiden_channels": 8}}, "'hiden_channels'.*'hidden_channels'"),
        *(({"schedule": name}, "schedule") for name in ("linear", "halve:", "halve:0", "halve:3,3", 50)),
    ],
)
def test_wrong_settings(change, names):
    with pytest.raises(nm.MupError, match=names):
        train_run({**TINY, **change})


SOAP = {"optimizer": "soap", "lr": 0.04, "soap": {"period": 3, "base_depth": 1}}


@pytest.mark.parametrize(
    ("settings", "lr", "decay"),
    [({"optimizer": "soap"}, 0.03, 0.01), ({"optimizer": "adam"}, 1e-3, 0.0), (SOAP, 0.02, 0.01)],
)
def test_settings_of_the_optimizers(settings, lr, decay):
    """The model has four layers: √(4 / depth) is 1 by default, and √(1 / depth) is 1/2."""
    model = nm.parametrize(FNO((8,), 1, 1, 8, n_layers=4), base={"hidden_channels": 4})
    groups = build_optimizer(model, Settings.of(settings)).param_groups
    assert groups[0]["lr"] == pytest.approx(lr)
    assert settings is not SOAP or groups[0]["mode_stride"] == 3
    assert [group["weight_decay"] * group.get("rule_mult", 1) for group in groups] == pytest.approx([decay] * len(groups))
    without = build_optimizer(model, Settings.of({**settings, "weight_decay": 0.0})).param_groups
    assert {group["weight_decay"] for group in without} == {0}


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1, 1, 1]),
        ("cosine", [1, 0.904508, 0.654508, 0.345492, 0.095492]),  # (1 + cos(πt/5)) / 2
        ("halve:2", [1, 1, 0.5, 0.5, 0.25]),
        ("halve:1,3", [1, 0.5, 0.5, 0.25, 0.25]),
    ],
)
def test_learning_rate_of_each_epoch(schedule, expected):
    """At each step of a run. Two steps are an epoch."""
    lrs = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: lrs.append(optimizer.param_groups[0]["lr"]))
    try:
        train_run({**TINY, "schedule": schedule, "epochs": 5, "optimizer": "sgd", "lr": 1e-3})
    finally:
        hook.remove()
    assert [lr / lrs[0] for lr in lrs[::2]] == pytest.approx(expected, rel=1e-5)
    assert lrs[::2] == lrs[1::2] and len(lrs) == 10
