"""MuSOAP(model, steps=…): the learning rate that follows from the length of a training."""

from __future__ import annotations

import inspect
import warnings

import pytest

import neuralop_mup as nm
from neuralop_mup.optim.matrix.soap import usual_lr
from neuralop_mup.tuning.settings import build_optimizer
from support import small_fno

# -------------------------------------------------------------------------------------------------------- the rule


@pytest.mark.parametrize(
    ("steps", "lr"),
    [
        (None, 0.03),
        (1000, 0.03),
        (4000, 0.015),  # √(1000/4000) = 1/2
        (3000, 0.0173205),  # 0.03 · √(1/3) = 0.03 · 0.5773503
        (250, 0.06),  # √(1000/250) = 2
        (1, 0.948683),  # √1000 = 31.62278
    ],
)
def test_the_rate_by_hand(steps, lr):
    """Of 4 layers, which is base_depth, so that lr is that of the group."""
    assert usual_lr(steps) == pytest.approx(lr, rel=1e-6)
    optimizer = nm.MuSOAP(small_fno(width=4, n_layers=4), steps=steps)
    kernels, *_, rest = optimizer.param_groups
    assert kernels["lr"] == pytest.approx(lr, rel=1e-6) and kernels["base_lr"] == usual_lr(steps)
    assert rest["base_lr"] == 4e-3


def test_it_is_the_rule_of_lengths_and_never_more_than_one(monkeypatch):
    monkeypatch.setattr("neuralop_mup.optim.matrix.soap.length_factor", lambda size, base: base.steps / size.steps)
    assert (usual_lr(3000), usual_lr(10)) == (pytest.approx(0.01), 1.0)  # 0.03 / 3; 0.03 · 100 = 3
    assert nm.MuSOAP(small_fno(width=4), steps=10).param_groups[0]["base_lr"] == 1.0


def test_lr_as_before():
    model = small_fno(width=4)
    for optimizer, lr in ((nm.MuSOAP(model, 0.02), 0.02), (nm.MuSOAP(model), 0.03), (nm.MuSOAP(model, None, 5e-3), 0.03)):
        assert optimizer.param_groups[0]["base_lr"] == lr and optimizer.param_groups[0]["steps"] is None
    defaults = {p.name: p.default for p in inspect.signature(nm.MuSOAP).parameters.values()}
    assert (defaults["lr"], defaults["steps"]) == (None, None)
    run_of_tune = build_optimizer(model, {"optimizer": "soap", "soap": {"period": 1}})
    assert run_of_tune.param_groups[0]["base_lr"] == 0.03 and run_of_tune.param_groups[0]["steps"] is None


def test_a_rate_of_a_long_training_is_small_on_purpose():
    """0.03 · √(1/1000) = 0.00095, under a tenth of 0.03, and under aux_lr."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nm.MuSOAP(small_fno(width=4), steps=1_000_000, aux_lr=3e-3)
    with pytest.warns(UserWarning, match="lr = 0.00095 is small for MuSOAP"):
        nm.MuSOAP(small_fno(width=4), 0.00095)


@pytest.mark.parametrize(
    ("arguments", "training", "message"),
    [
        ({"lr": 0.02, "steps": 3000}, None, "lr is 0.02 and steps is 3000.*leave out steps if lr was tuned, or lr"),
        ({"steps": 0}, None, "steps is 0; give a whole number of optimizer steps, 1 or more"),
        ({"steps": 3e3}, None, "steps is 3000.0; give a whole number"),
        ({"steps": True}, None, "steps is True; give a whole number"),
        ({"steps": "3000"}, None, "steps is '3000'; give a whole number"),
        ({"steps": 3000}, {"steps": (300, 3000)}, r"training=\{'steps': \(300, 3000\)\}.*leave out steps and give the lr"),
    ],
)
def test_what_cannot_work(arguments, training, message):
    model = small_fno(width=4)
    if training is not None:
        model = nm.parametrize(nm.unparametrize(model), base={}, init=False, training=training)
        nm.MuSOAP(model, 0.02)
    with pytest.raises(nm.MupError, match=message):
        nm.MuSOAP(model, **arguments)


def test_a_model_without_a_plan():
    with pytest.raises(nm.MupError, match="not parametrized"):
        nm.MuSOAP(nm.unparametrize(small_fno(width=4)), steps=3000)


def test_the_plan_is_followed():
    model = small_fno(width=4)
    optimizer = nm.MuSOAP(model, steps=4000, lr_mult={"spectral": 0.5})
    nm.check_optimizer(model, optimizer)
    assert "size 0.01061" in str(nm.summary(model, optimizer))  # 0.015 · ½ · √(4/2 layers)
