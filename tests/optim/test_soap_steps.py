"""MuSOAP(model, steps=…): the learning rate that follows from the length of a training."""

from __future__ import annotations

import warnings

import pytest
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.optim.musoap.optimizer import usual_lr
from support.models import small_fno

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
    hidden, kernels, *rest = optimizer.param_groups
    assert (hidden["name"], kernels["name"]) == ("hidden", "spectral")
    for group in (hidden, kernels):
        assert group["lr"] == pytest.approx(lr, rel=1e-6) and group["base_lr"] == usual_lr(steps)
    assert {group["base_lr"] for group in rest} == {4e-3}


@pytest.mark.parametrize(
    ("given", "lr"),
    [
        ({"steps": 30, "start_error": 0.1}, 0.0173205),  # 0.03 · √(1000/30) · 0.1
        ({"steps": 4000, "start_error": 0.2}, 0.0113389),  # 0.03 · √(1000/7000), above 0.2 · 0.015
        ({"steps": 1000, "start_error": 0.6}, 0.018),  # 0.6 · 0.03, above 0.03 · √(1000/4000) = 0.015
        ({"steps": 1000, "start_error": 0.02}, 0.005),  # a quarter of 0.02, below 0.015
        ({"steps": 30, "start_error": 0.5}, 0.06),  # 0.0866, which is too much
        ({"steps": 30}, 0.0172345),  # 0.03 · √(1000/3030)
        ({"steps": 1000}, 0.015),
        ({}, 0.015),
    ],
)
def test_the_rates_of_a_trained_model_by_hand(given, lr):
    """The formula's for fresh weights throws a trained model: 0.17 at 30 steps, to 12 times its error."""
    model = nm.parametrize(FNO((8,), 1, 1, 8), init=False)
    hidden, kernels, *rest = nm.MuSOAP(model, **given).param_groups
    assert hidden["lr"] == kernels["lr"] == pytest.approx(lr, rel=1e-5)
    assert [group["base_lr"] for group in rest] == pytest.approx([0.004 * lr / 0.03] * len(rest), rel=1e-5)
    assert nm.MuSOAP(model, aux_lr=0.001, **given).param_groups[-1]["base_lr"] == 0.001
    assert nm.MuSOAP(model, 0.02).param_groups[-1]["base_lr"] == 0.004


def test_an_error_is_above_zero_and_stands_for_the_rate():
    model = small_fno(width=4)
    assert nm.MuSOAP(model, steps=1000, start_error=0.1).param_groups[0]["base_lr"] == pytest.approx(0.015)  # by load_plan
    with pytest.raises(nm.MupError, match="start_error is 0; give a finite number above 0"):
        nm.MuSOAP(model, start_error=0)
    with pytest.raises(nm.MupError, match="start_error is 6, .* give it as a fraction, 0.06 for 6 %"):
        nm.MuSOAP(model, steps=30, start_error=6)
    with pytest.raises(
        nm.MupError, match="lr is 0.02 and start_error is 0.1, but the learning rate of a trained model follows"
    ):
        nm.MuSOAP(model, 0.02, start_error=0.1)


def test_a_resumed_training_keeps_the_rates_of_its_state():
    """Its model is parametrized with init=False, too."""
    first = nm.MuSOAP(nm.parametrize(FNO((8,), 1, 1, 8)), steps=30)
    again = nm.MuSOAP(nm.parametrize(FNO((8,), 1, 1, 8), init=False), steps=30)
    again.load_state_dict(first.state_dict())
    assert [group["lr"] for group in again.param_groups] == [group["lr"] for group in first.param_groups]
    assert [group["base_lr"] for group in again.param_groups] == [group["base_lr"] for group in first.param_groups]


def test_a_rate_of_a_long_training_is_small_on_purpose():
    """0.03 · √(1/1000) = 0.00095, under a tenth of 0.03, and under aux_lr."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nm.MuSOAP(small_fno(width=4), steps=1_000_000, aux_lr=3e-3)
        nm.MuSOAP(small_fno(width=4), lr=5e-3)
    with pytest.warns(
        UserWarning, match="lr = 0.00095 is small for MuSOAP.*size of an update, not Adam's learning rate, which is aux_lr"
    ):
        nm.MuSOAP(small_fno(width=4), 0.00095)
