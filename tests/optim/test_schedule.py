"""Learning rates of MuSOAP: how they follow from the length of a training, and how they end."""

from __future__ import annotations

import copy
import json
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from neuralop.models import FNO
from torch.optim import lr_scheduler as S

import neuralop_mup as nm
from neuralop_mup.optim import schedule as ending
from neuralop_mup.optim.learning_rate import effective_lrs
from neuralop_mup.optim.schedule import (
    begin_cooldown,
    default_lr,
    move_end,
    note_peaks,
    set_factors,
    trained_lr,
    upgraded,
    warning_past_the_end,
)
from support.comparing import differing
from support.errors import of_category, refused, warned
from support.models import small_fno
from support.schedulers import advance
from support.training import random_gradients

COSINE_OF_4 = [1, 0.8535534, 0.5, 0.1464466, 0.01]  # (1 + cos(45° t)) / 2, then the floor


def param_group(**settings):
    """A param group of kernels at the start of a training."""
    return {**ending.BEGINNING, "layouts": ["iob"], "lr": 0.03, "base_lr": 0.03, **settings}


def rate_at(taken, **settings):
    group = param_group(**settings)
    set_factors([group], taken)
    return group["step_lr"]


def rates(group, schedule):
    """Learning rates of the steps, where ``schedule`` has the group's ``lr`` at each."""
    result = []
    for taken, lr in enumerate(schedule):
        group["lr"] = lr
        note_peaks([group], taken)
        set_factors([group], taken)
        result.append(group["step_lr"])
    return result


def built(**arguments):
    """MuSOAP of a model in which every layer has the learning rate ``lr``."""
    model = small_fno(width=4, modes=(4,), n_layers=1)
    return model, nm.MuSOAP(model, base_depth=None, **arguments)


def run(optimizer, steps, scheduler=None):
    """Learning rates of kernels at steps without gradients."""
    result = []
    for _ in range(steps):
        optimizer.step()
        result.append(effective_lrs(optimizer)["spectral"])
        if scheduler is not None:
            advance(scheduler)
    return result


def train(model, optimizer, seeds):
    """Learning rates of kernels at steps with gradients."""
    result = []
    for seed in seeds:
        random_gradients(model, seed)
        result += run(optimizer, 1)
    return result


# ------------------------------------------------------------------------------------------ numbers worked out by hand


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
def test_learning_rate_for_a_number_of_steps(steps, lr):
    assert default_lr(steps) == pytest.approx(lr, rel=1e-6)
    assert default_lr(250, lr=0.6) == 1.0  # the largest
    hidden, kernels, *rest = built(steps=steps)[1].param_groups
    assert hidden["lr"] == kernels["lr"] == default_lr(steps)
    assert {group["base_lr"] for group in rest} == {4e-3}


@pytest.mark.parametrize(
    ("steps", "start_error", "lr"),
    [
        (30, 0.1, 0.0173205),  # 0.03 · √(1000/30) · 0.1
        (4000, 0.2, 0.0113389),  # 0.03 · √(1000/7000), above 0.2 · 0.015
        (1000, 0.6, 0.018),  # 0.6 · 0.03, above 0.03 · √(1000/4000) = 0.015
        (1000, 0.02, 0.005),  # a quarter of 0.02, below 0.015
        (30, 0.5, 0.06),  # 0.0866 would be too much
        (30, None, 0.0172345),  # 0.03 · √(1000/3030)
        (None, None, 0.015),
        (None, 0.6, 0.018),
    ],
)
def test_learning_rate_of_a_trained_model(steps, start_error, lr):
    """The formula for fresh weights (0.17 at 30 steps) raised the error to 12 times its value."""
    assert trained_lr(steps, start_error) == pytest.approx(lr, rel=1e-5)


def test_trained_models_get_the_learning_rate_of_trained_models():
    model = nm.parametrize(FNO((4,), 1, 1, 4), init=False)
    hidden, kernels, *rest = nm.MuSOAP(model, steps=30).param_groups
    assert hidden["lr"] == kernels["lr"] == trained_lr(30, None)
    assert rest[0]["base_lr"] == pytest.approx(0.004 * 0.0172345 / 0.03, rel=1e-5)
    assert nm.MuSOAP(model, adamw_lr=0.001).param_groups[-1]["base_lr"] == 0.001
    assert nm.MuSOAP(model, 0.02).param_groups[-1]["base_lr"] == 0.004
    # Fresh weights with an error: load_plan may have restored them.
    assert built(steps=1000, start_error=torch.tensor([0.02]))[1].param_groups[0]["base_lr"] == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"start_error": 0}, "start_error 0"),
        ({"start_error": 3.1}, "start_error 3.1 0.06"),  # in percent
        ({"lr": 0.02, "start_error": 0.1}, "lr 0.02 start_error 0.1"),
    ],
)
def test_start_errors_that_are_refused(arguments, names):
    with refused(names):
        built(**arguments)
    ending.check_start_error(3.0, None)


def test_only_small_learning_rates_of_the_user_are_warned_of(recwarn):
    built(steps=1_000_000, adamw_lr=3e-3)  # its rate is 0.03 · √(1/1000) = 0.00095
    built(lr=3.1e-3)
    assert not of_category(recwarn)
    with pytest.warns(UserWarning, match="lr = 0.003 .*adamw_lr"):
        built(lr=3e-3)


def test_a_constant_learning_rate_ends_by_a_cosine():
    want = pytest.approx([0.03 * part for part in COSINE_OF_4], rel=1e-6)
    assert rates(param_group(steps=4), [0.03] * 5) == want
    with_modes = param_group(steps=4, mode_mult=0.3)
    assert rates(with_modes, [0.1] * 5) == want


def test_the_cosine_begins_where_the_largest_learning_rate_was_first_reached():
    group = param_group(steps=6)
    want = [0.01, 0.02, *(0.03 * part for part in COSINE_OF_4)]
    assert rates(group, [0.01, 0.02, *[0.03] * 5]) == pytest.approx(want, rel=1e-6)
    assert group["peak"] == (0.03, 2)


def test_a_rise_gives_back_a_part_of_the_cosine():
    """After 40 of 100 steps: 1.02^-10 = 0.820348 leaves 82.0348 steps from step 17.9652; 1.1^-10 = 0.385543 would leave less
    than the 60 that remain.
    """
    for rise, begin in ((1.02, 17.9652), (1.1, 40)):
        group = param_group(steps=100)
        found = rates(group, [*[0.03] * 40, *[0.03 * rise] * 60])
        assert group["peak"] == (0.03 * rise, pytest.approx(begin, abs=1e-3))
        part = (1 + math.cos(math.pi * (40 - begin) / (100 - begin))) / 2
        assert found[40] == pytest.approx(0.03 * rise * part, rel=1e-4)


EVENTS = st.one_of(
    st.tuples(st.just("lr"), st.floats(0.2, 5)),
    st.tuples(st.just("wait"), st.integers(1, 40)),
    st.tuples(st.just("set_steps"), st.integers(1, 60)),
    st.tuples(st.just("cooldown"), st.floats(0.1, 1)),
    st.tuples(st.just("resume"), st.none()),
)


@settings(max_examples=200, deadline=None)
@given(events=st.lists(EVENTS, min_size=1, max_size=8), at=st.integers(0, 199), steps=st.sampled_from([None, 40, 200]))
def test_the_end_is_continuous_in_the_learning_rate(events, at, steps):
    """A rate that differs by ε = 1e-6 at one step changes no later rate by more than 50 ε of the largest one, times the
    factor by which set_steps shortens what is left.
    """
    found, lengths = [], [1]
    for change in (0, 1e-6):
        group, taken, lrs = param_group(steps=steps, base_scale=1.0 if steps else "anytime"), 0, []
        for what, value in [*events, ("wait", 200)]:
            if what == "lr":
                group["lr"] *= value
            elif what == "set_steps":
                move_end([group], taken + value)
                lengths.append(value)
            elif what == "cooldown" and taken > 9 and group["cooldown"] is None:
                begin_cooldown([group], int(value * taken))
            elif what == "resume":
                group = upgraded(json.loads(json.dumps(group)))
            for _ in range(value if what == "wait" else 0):
                lr = group["lr"]
                group["lr"] = lr * (1 + change * (taken == at))
                note_peaks([group], taken)
                set_factors([group], taken)
                lrs.append(group["step_lr"])
                taken += 1
                group.update(lr=lr, taken=taken)
        found.append(lrs)
    shorter = max(1, (steps or 1), *lengths) / min(lengths[1:], default=max(1, steps or 1))
    assert max(abs(a - b) for a, b in zip(*found, strict=True)) <= 50e-6 * max(1.0, shorter) * max(found[0])


@pytest.mark.parametrize(("taken", "lr"), [(0, 0.0664078), (300, 0.0332039), (900, 0.021)])
def test_learning_rate_where_the_length_is_unknown(taken, lr):
    """0.7 · 0.03 · √(1000 / (t + 100)): √10 = 3.162278, √2.5 = 1.581139, 1."""
    assert rate_at(taken, base_scale="anytime") == pytest.approx(lr, rel=1e-6)
    assert rate_at(taken, base_scale="anytime", lr=0.015) == pytest.approx(lr / 2, rel=1e-6)  # of a schedule


@pytest.mark.parametrize(
    ("settings", "lr"),
    [
        ({"base_scale": 0.5, "steps": 4000}, 0.015),
        ({"base_scale": None, "steps": 4000}, 0.03),
        ({"base_scale": "anytime", "lr": 0.0, "base_lr": 0.0}, 0.0),
        ({"steps": 4000, "lr": 0.0, "peak": (0.0, 0)}, 0.0),
        ({"lr": 0.02, "mode_mult": 0.5, "cooldown": (6, 4, 0.008)}, 0.004),
    ],
)
def test_learning_rate_after_seven_steps(settings, lr):
    assert rate_at(7, **settings) == pytest.approx(lr)


def test_a_cooldown_by_hand():
    """1 − √(t / 16) of the rate at its beginning."""
    found = [rate_at(taken, cooldown=(10, 16, 0.04), lr=0.04) for taken in (10, 11, 14, 25, 26, 40)]
    assert found == pytest.approx([0.04, 0.03, 0.02, 0.04 * (1 - math.sqrt(15) / 4), 0.0004, 0.0004])
    assert rate_at(14, cooldown=(10, 16, 0.04), lr=0.01) == 0.01  # a schedule is lower
    assert rate_at(14, cooldown=(10, 16, 0.04), lr=0.04, steps=28, peak=(0.03, 0)) == pytest.approx(0.015)


def test_steps_past_the_end_are_known():
    assert warning_past_the_end(param_group(), 99) is None
    for group, first, names in (
        (param_group(steps=10), 10, ("Step 11", "steps=10")),
        (param_group(steps=10, cooldown=(2, 5, 0.1)), 7, ("Step 8", "cooldown")),
    ):
        assert warning_past_the_end(group, first - 1) is None
        message = warning_past_the_end(group, first)
        assert all(name in message for name in (*names, "1%", "optimizer.set_steps(n)")), message


# ---------------------------------------------------------------------------------------------- schedules of torch

STEPS = 12
ENDING = {
    "cosine": lambda o: S.CosineAnnealingLR(o, STEPS),
    "warm-up from zero": lambda o: S.LambdaLR(o, lambda t: t / 4 if t < 4 else ending.cosine(t, 4, STEPS)),
    "OneCycleLR": lambda o: S.OneCycleLR(o, [g["lr"] for g in o.param_groups], STEPS),
    "early line": lambda o: S.LinearLR(o, 1.0, 0.0, STEPS // 2),
}
OTHERS = {
    "none": lambda o: None,
    "StepLR": lambda o: S.StepLR(o, 4, 0.5),
    "ReduceLROnPlateau": lambda o: S.ReduceLROnPlateau(o, patience=4),
    "restarts": lambda o: S.CosineAnnealingWarmRestarts(o, 4),
    "a cosine that is too long": lambda o: S.CosineAnnealingLR(o, 3 * STEPS),
}


@pytest.mark.parametrize("schedule", ENDING)
def test_a_schedule_that_ends_is_left_alone(schedule, recwarn):
    (_, ours), (_, theirs) = built(steps=STEPS), built(lr=default_lr(STEPS))
    found = run(ours, STEPS, ENDING[schedule](ours))
    assert found == run(theirs, STEPS, ENDING[schedule](theirs))
    assert {group["schedule_factor"] for group in ours.param_groups} == {1.0}
    assert not of_category(recwarn)


@pytest.mark.parametrize("schedule", OTHERS)
def test_every_other_schedule_is_brought_to_zero(schedule):
    (_, ours), (_, theirs) = built(steps=STEPS, lr=0.05), built(lr=0.05)
    lrs = run(theirs, STEPS, OTHERS[schedule](theirs))
    want = [min(lr, 0.05 * ending.cosine(t, 0, STEPS)) for t, lr in enumerate(lrs)]
    assert run(ours, STEPS, OTHERS[schedule](ours)) == pytest.approx(want, rel=2e-6)
    assert [group["lr"] for group in ours.param_groups] == [group["lr"] for group in theirs.param_groups]


def test_training_past_the_end_goes_on_at_a_floor_with_one_warning():
    _, optimizer = built(steps=4)
    with warned("Step 5") as caught:
        found = run(optimizer, 7)
    assert found[4:] == pytest.approx([found[0] / 100] * 3) and len(caught) == 1


def test_steps_count_while_kernels_are_frozen():
    model, optimizer = built(steps=STEPS)
    run(optimizer, 6)
    train(model, optimizer, range(2))
    mults = [group["schedule_factor"] for group in optimizer.param_groups]
    assert mults == pytest.approx([ending.cosine(7, 0, STEPS)] * len(mults))
    assert f"size {optimizer.param_groups[0]['step_lr']:.4g}" in str(nm.summary(model, optimizer))


def test_the_rate_of_the_last_step_is_kept_where_a_scheduler_moves_on():
    """After a restart the group's lr is that of the next step, and its factor that of the last one."""
    _, optimizer = built(steps=STEPS)
    group = optimizer.param_groups[0]
    assert group["step_lr"] == group["lr"]
    lrs = run(optimizer, 8, S.CosineAnnealingWarmRestarts(optimizer, T_0=4))
    assert group["step_lr"] == lrs[-1] < group["lr"] * group["schedule_factor"]
    assert copy.deepcopy(optimizer).param_groups[0]["step_lr"] == lrs[-1]


# ---------------------------------------------------------------------------------------------- saved and copied


def loaded(model, optimizer):
    other, resumed = built()
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return other, resumed


@pytest.mark.parametrize(
    "again", [loaded, lambda *both: copy.deepcopy(both), lambda *both: pickle.loads(pickle.dumps(both))]
)
@pytest.mark.parametrize("arguments", [{"steps": STEPS}, {}])
def test_a_resumed_training_goes_on_to_its_end(again, arguments):
    """torch drops hooks from copies, so that none may be needed."""
    model, optimizer = built(**arguments)
    train(model, optimizer, range(6))
    if not arguments:
        optimizer.cooldown(6)
    other, resumed = again(model, optimizer)
    assert train(model, optimizer, range(6)) == train(other, resumed, range(6))
    assert differing(model, other) == 0


def test_states_and_copies_do_not_change_with_the_optimizer():
    """``state_dict`` has the groups' own objects: nothing in them may change in place."""
    _, optimizer = built()
    run(optimizer, 3)
    state, copied = optimizer.state_dict(), copy.deepcopy(optimizer.state_dict())
    run(optimizer, 1)
    optimizer.cooldown(2)
    assert state == copied


@pytest.mark.parametrize("steps", [STEPS, None])
def test_an_older_state_goes_on_from_where_it_is(steps):
    """It had at most steps: a constant rate is brought down from its present value."""
    _, optimizer = built(lr=default_lr(STEPS))
    state = copy.deepcopy(optimizer.state_dict())
    for group in state["param_groups"]:
        for key in ending.BEGINNING.keys() - {"taken"}:
            del group[key]
        group.update({"taken": 6} | ({"steps": steps} if steps else {}))
    _, resumed = built()
    resumed.load_state_dict(state)
    want = [ending.cosine(t, 0, 6) if steps else 1 for t in range(6)]
    assert run(resumed, 6) == pytest.approx([default_lr(STEPS) * part for part in want])


@pytest.mark.parametrize("saved", [None, 30])
def test_a_state_with_another_end_is_warned_of(saved):
    """It would train on at a rate that never falls, or end at another step than was written."""
    state = built(steps=saved)[1].state_dict()
    _, optimizer = built(steps=20)
    with pytest.warns(UserWarning, match=rf"steps={saved}.*optimizer.set_steps\(20\)"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["steps"] == saved


@pytest.mark.parametrize(
    ("saved", "scale"),
    [
        ({"lr_follows": "progress"}, "anytime"),
        ({"lr_follows": "steps", "steps": 4000, "most": math.inf}, 0.5),  # 0.03 · √(1000/4000) over the base lr 0.03
        ({"lr_follows": "steps", "steps": 4000, "most": 0.006}, 0.2),
        ({"lr_follows": None, "steps": 4000}, None),
        ({"lr_follows": "steps", "steps": 4000, "layouts": None}, None),  # AdamW's
    ],
)
def test_a_state_of_0_3_goes_on(saved, scale):
    group = {"layouts": ["iob"], "lr": 0.03, "base_lr": 0.03, "length_mult": 1.0, "mode_mult": 0.5, **saved}
    found = upgraded(group)
    assert found["base_scale"] == scale and found["mode_mult"] == 0.5 and found["schedule_factor"] == 1.0


# ------------------------------------------------------------------------------------------------- an end that moves


def test_the_end_moves_and_the_height_with_it():
    _, optimizer = built(steps=STEPS)
    run(optimizer, 6)
    for wrong, names in (
        (6, "set_steps(6) 6steps optimizer.cooldown"),
        (0, "0"),
        (7.5, "7.5"),
        (None, "None"),
    ):
        with refused(f"steps {names}"):
            optimizer.set_steps(wrong)
    optimizer.set_steps(24)
    assert run(optimizer, 2) == pytest.approx([default_lr(24) * ending.cosine(t, 0, 24) for t in (6, 7)])
    for steps in (24, 30):  # the end may also move after it
        optimizer.set_steps(steps)
        with pytest.warns(UserWarning, match=f"steps={steps}"):
            run(optimizer, 17)


@pytest.mark.parametrize(("taken", "steps"), [(0, 35), (5, 40), (30, 9000)])
def test_a_length_that_becomes_known_does_not_raise_the_rate(taken, steps):
    """It rose to that of a fresh training of so few steps, by 2.5 times after 5 of 40."""
    model, optimizer = built()
    run(optimizer, taken)
    optimizer.set_steps(steps)
    most = 0.021 * math.sqrt(1000 / (taken + 100)) if taken else math.inf
    for own in (optimizer, loaded(model, optimizer)[1]):
        lrs = run(own, 35)
        assert lrs[0] == pytest.approx(min(default_lr(steps), most))
        assert lrs == sorted(lrs, reverse=True)
        assert steps == 9000 or lrs[-1] < 0.01 * lrs[0]


def test_a_learning_rate_of_the_user_keeps_its_height():
    _, optimizer = built(lr=0.02)
    optimizer.set_steps(4000)
    assert run(optimizer, 1) == [0.02]


@pytest.mark.parametrize("arguments", [{}, {"steps": 100}])
def test_a_cooldown_ends_a_training(arguments):
    _, optimizer = built(**arguments)
    before = run(optimizer, 20)[-1]
    optimizer.cooldown(10)
    with pytest.warns(UserWarning, match=r"Step 31 .*cooldown"):
        lrs = run(optimizer, 12)
    parts = [1, *(1 - math.sqrt(t / 10) for t in range(10)), 0.01, 0.01]
    assert [before, *lrs] == pytest.approx([lrs[0] * part for part in parts], rel=0.03)
    ends = [group["cooldown"][2] / 100 for group in optimizer.param_groups]
    assert [group["step_lr"] for group in optimizer.param_groups] == pytest.approx(ends)


def test_cooldowns_that_are_refused():
    _, optimizer = built()
    run(optimizer, 20)
    for wrong, names in ((0, "0"), (2.5, "2.5"), ("1h", "'1h'"), (21, "cooldown(21) 20steps")):
        with refused(f"cooldown {names}"):
            optimizer.cooldown(wrong)
    optimizer.cooldown(20)
    run(optimizer, 3)
    with refused("20steps step20 optimizer.set_steps"):
        optimizer.cooldown(5)
    optimizer.set_steps(60)  # ends the cooldown
    assert run(optimizer, 1)[0] == pytest.approx(0.021 * math.sqrt(1000 / 123))


def test_a_group_that_is_added_ends_with_the_others():
    """It was trained on at its full rate."""
    _, optimizer = built(steps=10)
    optimizer.set_steps(STEPS)
    run(optimizer, 4)
    optimizer.cooldown(4)
    new = {"params": [torch.nn.Parameter(torch.ones(3))], "param_names": ["new"], "name": "new", "lr": 0.01}
    optimizer.add_param_group(new)
    run(optimizer, 2)
    assert effective_lrs(optimizer)["new"] == pytest.approx(0.01 * (1 - math.sqrt(1 / 4)))
    assert optimizer.param_groups[-1]["steps"] == STEPS
