"""One run through neuralop's Trainer: what goes in arrives, what comes out is right, what is wrong is said."""

import pytest
from neuralop.models import FNO
from torch.optim.optimizer import register_optimizer_step_post_hook

import neuralop_mup as nm
from neuralop_mup.lab.problems import get_problem
from neuralop_mup.lab.settings import OPTIMIZERS, Settings, build_optimizer
from support.models import small_fno
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
    longer = train_run({**TINY, "epochs": 30})
    assert 0 < longer["loss"] < 0.9 * a["loss"]
    assert train_run({**TINY, "seed": 1})["loss"] != a["loss"]


def test_reported_loss_is_the_relative_error_of_physical_fields():
    """A model that outputs zeros in normalised units predicts the mean field: its relative error is known."""
    config = {**TINY, "lr": 0.0, "init_mult.readout": 1e-12, "epochs": 1}
    problem = get_problem("burgers", **TINY["problem_args"])
    data = problem.load()
    y_train, y = data.train[1].double(), data.val[1]
    sizes = {"model": TINY["model"], "base": {**TINY["model"], **TINY["base"]}}
    bias = training_of("burgers", **TINY["problem_args"]).model(Settings.of(sizes)).projection.fcs[1].bias.item()
    prediction = y_train.mean() + y_train.std() * bias  # fields are normalised by one mean and spread a channel
    error = ((prediction - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean()
    got = train_run(config)["loss"]
    assert got == pytest.approx(error.item(), rel=1e-3)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_trains(optimizer):
    decay = 0.0 if optimizer == "adam" else 1e-4
    assert train_run({**TINY, "optimizer": optimizer, "weight_decay": decay})["loss"] > 0


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
    ):
        assert train_run({**TINY, **change})["loss"] != base, change


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"learning_rate": 1.0}, "no setting 'learning_rate'"),
        ({"epoch": 1}, "did you mean 'epochs'"),
        ({"optimizer": "adm"}, "did you mean 'adam"),
        ({"aux_lr": 0.01}, "aux_lr is 0.01, but the optimizer is 'adam'"),
        ({"soap": {"period": 3}}, "belongs to the optimizer soap"),
        ({"optimizer": "soap", "soap": {"perod": 2}}, "no argument 'perod'; did you mean 'period'"),
        ({"schedule": "linear"}, "schedule"),
        ({"problem": "burger"}, "burgers"),
        ({"lr_mult.kernel": 2.0}, "no role 'kernel'"),
        ({"model": {"n_modes": (8, 8), "hidden_channels": 8}}, "one number of modes an axis"),
        ({"model": {"n_modes": (8,), "hiden_channels": 8}}, "FNO.* fails: .*unexpected keyword argument 'hiden_channels'"),
    ],
)
def test_wrong_settings(change, match):
    with pytest.raises(nm.MupError, match=match):
        train_run({**TINY, **change})


@pytest.mark.parametrize(("optimizer", "decay"), [("soap", 0.01), ("adam", 0.0)])
def test_a_run_that_is_given_no_weight_decay_has_its_optimizers(optimizer, decay):
    model = small_fno()
    groups = build_optimizer(model, Settings.of({"optimizer": optimizer})).param_groups
    made = {"soap": nm.MuSOAP, "adam": nm.MuAdam}[optimizer](model).param_groups
    for group, own in zip(groups, made, strict=True):
        # Independent of the factor on the rate: at the base size of four layers both are what was given.
        assert group["weight_decay"] * group.get("rule_mult", 1) == pytest.approx(decay)
        assert group["weight_decay"] == own["weight_decay"]
    (without,) = {
        g["weight_decay"]
        for g in build_optimizer(model, Settings.of({"optimizer": "soap", "weight_decay": 0.0})).param_groups
    }
    assert without == 0


def test_divergence_is_a_kind_of_its_own():
    with pytest.raises(nm.errors.Diverged, match="Training diverged"):
        train_run({**TINY, "lr": 1e6, "epochs": 4})


def test_losses_by_name():
    l2, h1 = (train_run({**TINY, "epochs": 1, "loss": loss})["loss"] for loss in ("l2", "h1"))
    assert l2 != h1


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1, 1, 1]),
        ("cosine", [1, 0.904508, 0.654508, 0.345492, 0.095492]),  # (1 + cos(πt/5)) / 2
        ("halve:2", [1, 1, 0.5, 0.5, 0.25]),
        ("halve:1,3", [1, 0.5, 0.5, 0.25, 0.25]),
        ("halve:3,9", [1, 1, 1, 0.5, 0.5]),
    ],
)
def test_learning_rate_of_each_epoch(schedule, expected):
    """Read off the optimizer at every step of a real run; two steps make an epoch."""
    lrs = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: lrs.append(optimizer.param_groups[0]["lr"]))
    try:
        train_run({**TINY, "schedule": schedule, "epochs": 5, "optimizer": "sgd", "lr": 1e-3})
    finally:
        hook.remove()
    assert [lr / lrs[0] for lr in lrs[::2]] == pytest.approx(expected, rel=1e-5)
    assert lrs[::2] == lrs[1::2] and len(lrs) == 10


@pytest.mark.parametrize(
    "schedule",
    ["halve", "halve:", "halve:0", "halve:-5", "halve:1.5", "halve:2,", "halve:5,3", "halve:3,3", "half:5", 50, None],
)
def test_schedules_that_do_not_exist(schedule):
    with pytest.raises(nm.MupError, match="expected cosine, constant, halve:50"):
        train_run({**TINY, "schedule": schedule})


def test_soap_has_a_learning_rate_and_settings_of_its_own():
    """Four layers, so that √(4 / depth) is 1; Adam's 0.001 would be a thirtieth of soap's."""
    model = nm.parametrize(FNO((8,), 1, 1, 8, n_layers=4), base={"hidden_channels": 4})
    assert build_optimizer(model, Settings.of({"optimizer": "soap"})).param_groups[0]["lr"] == pytest.approx(0.03)
    assert build_optimizer(model, Settings.of({"optimizer": "adam"})).param_groups[0]["lr"] == pytest.approx(1e-3)
    soap = {"period": 3, "momentum": 0.7, "base_depth": 1}
    group = build_optimizer(model, Settings.of({"optimizer": "soap", "lr": 0.04, "soap": soap})).param_groups[0]
    assert (group["period"], group["momentum"], group["lr"]) == (3, 0.7, pytest.approx(0.02))
