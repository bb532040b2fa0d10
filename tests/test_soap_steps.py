"""MuSOAP(model, steps=…): the learning rate that follows from the length of a training, and who departs from that length."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from neuralop.models import FNO
from torch.optim import lr_scheduler as S

import neuralop_mup as nm
from neuralop_mup.optim.musoap.optimizer import usual_lr
from support import random_gradients, small_fno

STEPS = 60
TOO_LONG, TOO_SOON = "whose learning rate was chosen for steps=60", "the schedule has brought the learning rate below 1%"


def run(optimizer, steps, scheduler=None, every=1):
    """What is told in so many steps, each on the gradients that are there."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1, steps + 1):
            optimizer.step()
            if scheduler is not None and step % every == 0:
                scheduler.step()
    return [str(w.message) for w in caught]


def built(steps=STEPS, **arguments):
    model = small_fno(width=4)
    random_gradients(model)
    return nm.MuSOAP(model, steps=steps, **arguments)


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
        ({"steps": 30, "error": 0.1}, 0.0173205),  # 0.03 · √(1000/30) · 0.1
        ({"steps": 4000, "error": 0.2}, 0.003),
        ({"steps": 30, "error": 0.5}, 0.06),  # 0.0866, which is too much
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
    assert nm.MuSOAP(model, steps=1000, error=0.1).param_groups[0]["base_lr"] == pytest.approx(0.003)  # by load_plan
    with pytest.raises(nm.MupError, match="error is 0; give a finite number above 0"):
        nm.MuSOAP(model, error=0)
    with pytest.raises(nm.MupError, match="lr is 0.02 and error is 0.1, but the learning rate of a trained model follows"):
        nm.MuSOAP(model, 0.02, error=0.1)


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


# ------------------------------------------------------------------------------------------------------ the length


@pytest.mark.parametrize(
    ("schedule", "every"),
    [
        (None, 1),
        (lambda o: S.CosineAnnealingLR(o, STEPS), 1),
        (lambda o: S.CosineAnnealingLR(o, STEPS // 5), 5),
        (lambda o: S.OneCycleLR(o, [g["lr"] for g in o.param_groups], STEPS), 1),
        (lambda o: S.LinearLR(o, 1e-3, 1.0, STEPS // 3), 1),  # begins far below 1 %
        (lambda o: S.CosineAnnealingLR(o, STEPS * 9 // 10), 1),  # its last steps are after the half of the training
    ],
)
def test_trainings_of_the_right_length_are_told_nothing(schedule, every):
    optimizer = built()
    assert run(optimizer, STEPS, schedule and schedule(optimizer), every) == []


@pytest.mark.parametrize("every", [1, 5])
def test_a_cosine_of_a_third_of_the_length_is_told_once(every):
    """Step by step: (1 + cos π x) / 2 < 0.01 from x = 0.936 on, after 19 of its 20 steps. By epochs: after the fourth."""
    optimizer = built(lr_mult={"spectral": 0.3, "hidden": 0.3})  # of what was chosen for each group
    (message,) = run(optimizer, STEPS, S.CosineAnnealingLR(optimizer, STEPS // 3 // every), every)
    assert TOO_SOON in message and "steps=60" in message and f"After {20 if every == 5 else 19} steps" in message


@pytest.mark.parametrize("how", ["loaded", "copied", "pickled"])
def test_a_resumed_training_goes_on_counting(how):
    """From the half of it on: to its end nothing is told, and what goes beyond is."""
    optimizer = built()
    scheduler = S.CosineAnnealingLR(optimizer, STEPS)
    run(optimizer, STEPS // 2, scheduler)
    if how == "loaded":
        resumed = built()
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    else:
        resumed = copy.deepcopy(optimizer) if how == "copied" else pickle.loads(pickle.dumps(optimizer))
        for p in (p for group in resumed.param_groups for p in group["params"]):  # copies, too
            p.grad = torch.ones_like(p)
    again = S.CosineAnnealingLR(resumed, STEPS, last_epoch=STEPS // 2 - 1)
    again.load_state_dict(scheduler.state_dict())
    assert run(resumed, STEPS // 2, again) == []
    (message,) = run(resumed, 2, again)
    assert TOO_LONG in message


def test_a_loaded_state_brings_its_steps_with_its_rate():
    """That of 240 steps into an optimizer for 60, and one whose lr was given: the rate in force is theirs."""
    for theirs in ({"steps": 240}, {"steps": None, "lr": 0.02}):
        other, optimizer = built(**theirs), built()
        run(other, 1)
        optimizer.load_state_dict(copy.deepcopy(other.state_dict()))
        assert optimizer.param_groups[0]["steps"] == theirs["steps"]
        assert run(optimizer, STEPS + 2) == []


def test_learning_rates_that_are_tensors_are_not_read():
    """Of the two lengths the schedule's is left out; steps are counted, and what goes beyond is told once."""
    optimizer = built(capturable=True)
    assert run(optimizer, STEPS, S.CosineAnnealingLR(optimizer, STEPS // 3)) == []
    (message,) = run(optimizer, 3)
    assert TOO_LONG in message and "This is step 61" in message
