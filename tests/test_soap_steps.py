"""MuSOAP(model, steps=…): the learning rate that follows from the length of a training."""

from __future__ import annotations

import warnings

import pytest

import neuralop_mup as nm
from neuralop_mup.optim.musoap.optimizer import usual_lr
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
    hidden, kernels, *rest = optimizer.param_groups
    assert (hidden["name"], kernels["name"]) == ("hidden", "spectral")
    for group in (hidden, kernels):
        assert group["lr"] == pytest.approx(lr, rel=1e-6) and group["base_lr"] == usual_lr(steps)
    assert {group["base_lr"] for group in rest} == {4e-3}


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
