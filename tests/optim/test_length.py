"""How MuSOAP's learning rates follow the length of a training: its end, a time, and one that nobody knows."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch.optim import lr_scheduler as S

import neuralop_mup as nm
from neuralop_mup.optim.follow import effective_lrs
from neuralop_mup.optim.musoap import length
from neuralop_mup.optim.musoap.length import usual_lr
from neuralop_mup.optim.on_plan import broken_ratios
from support.comparing import differing
from support.models import small_fno
from support.processes import in_processes
from support.training import random_gradients, step

STEPS = 40


def built(**arguments):
    model = small_fno(width=4)
    return model, nm.MuSOAP(model, **arguments)


def run(model, optimizer, steps=STEPS, scheduler=None, every=1, first=0):
    """Effective learning rates of the steps, by group, and what was told."""
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(first, first + steps):
            random_gradients(model, t)
            optimizer.step()
            found.append(effective_lrs(optimizer))
            if scheduler is not None and (t + 1) % every == 0:
                scheduler.step(*(1.0,) * isinstance(scheduler, S.ReduceLROnPlateau))
    return found, [str(w.message) for w in caught if "lr_scheduler" not in str(w.message)]


def of_kernels(found):
    return [lrs["spectral"] for lrs in found]


# ---------------------------------------------------------------------------------------------------- steps end it

ENDING = {
    "cosine": lambda o: S.CosineAnnealingLR(o, STEPS),
    "warm-up": lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.01, 1, 8), S.CosineAnnealingLR(o, STEPS - 8)], [8]),
    "warm-up from zero": lambda o: S.LambdaLR(
        o, lambda t: t / 7 if t < 7 else (1 + math.cos(math.pi * (t - 7) / (STEPS - 7))) / 2
    ),
    "OneCycleLR": lambda o: S.OneCycleLR(o, [g["lr"] for g in o.param_groups], STEPS),
    "short cosine": lambda o: S.SequentialLR(o, [S.CosineAnnealingLR(o, 20), S.ConstantLR(o, 0.0, 100)], [20]),
    "early line": lambda o: S.LinearLR(o, 1.0, 0.0, STEPS // 2),
}
OTHERS = {
    "none": lambda o: None,
    "StepLR": lambda o: S.StepLR(o, 10, 0.5),
    "ReduceLROnPlateau": lambda o: S.ReduceLROnPlateau(o, patience=10),
    "restarts": lambda o: S.CosineAnnealingWarmRestarts(o, 10),
    "a cosine that is too long": lambda o: S.CosineAnnealingLR(o, 3 * STEPS),
}


@pytest.mark.parametrize("schedule", ENDING)
def test_a_schedule_that_ends_is_left_alone(schedule):
    """Bit for bit the training with the same rate and without ``steps``."""
    ours, theirs = built(steps=STEPS), built(lr=usual_lr(STEPS))
    lrs, told = run(*ours, scheduler=ENDING[schedule](ours[1]))
    assert (lrs, told) == run(*theirs, scheduler=ENDING[schedule](theirs[1])) and not told
    assert differing(ours[0], theirs[0]) == 0


@pytest.mark.parametrize(("schedule", "every"), [*((key, 1) for key in OTHERS), ("epochs", 5)])
@pytest.mark.parametrize("rate", [{}, {"lr": 0.05}], ids=["follows", "given"])
def test_every_other_schedule_is_brought_to_zero(schedule, every, rate):
    """The smaller of what the group says, which stays the schedule's, and a cosine."""
    model, optimizer = built(steps=STEPS, **rate)
    plain = torch.optim.SGD([{"params": [torch.ones(1)], "lr": g["lr"]} for g in optimizer.param_groups])
    make = OTHERS.get(schedule, lambda o: S.CosineAnnealingLR(o, STEPS // 5))
    both = make(optimizer), make(plain)
    for t in range(STEPS):
        lrs, told = run(model, optimizer, 1, first=t)
        assert not told
        for group, other in zip(optimizer.param_groups, plain.param_groups, strict=True):
            most = (usual_lr(STEPS) if not rate else 0.05) if group["layouts"] else 4e-3
            cosine = group["lr_mult"] * most * (1 + math.cos(math.pi * t / STEPS)) / 2
            assert group["lr"] == other["lr"]
            assert lrs[0][group["name"]] == pytest.approx(min(group["lr"], cosine), rel=2e-6)
        if (t + 1) % every == 0:
            plain.step()
            for scheduler in filter(None, both):
                scheduler.step(*(1.0,) * isinstance(scheduler, S.ReduceLROnPlateau))


def test_beyond_the_end_it_goes_on_at_a_floor_and_says_so_once():
    model, optimizer = built(steps=10)
    lrs, told = run(model, optimizer, 14)
    top = of_kernels(lrs)[0]
    assert of_kernels(lrs)[10:] == pytest.approx([top / 100] * 4)
    (message,) = told
    assert "step 11 of a training that steps=10 has ended" in message and "optimizer.set_steps(n)" in message


def again(how, model, optimizer):
    """The training in the middle, taken up in another way, with its own scheduler."""
    if how == "loaded":
        other, resumed = built(steps=7)
        other.load_state_dict(model.state_dict())
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        return other, resumed
    if how == "compiled":
        other, resumed = copy.deepcopy((model, optimizer))
        resumed.step = torch.compile(resumed.step, backend="eager")
        return other, resumed
    return copy.deepcopy((model, optimizer)) if how == "copied" else pickle.loads(pickle.dumps((model, optimizer)))


@pytest.mark.filterwarnings("ignore:.*dynamo", "ignore:.*torch.compile")
@pytest.mark.parametrize("how", ["loaded", "copied", "pickled", "compiled"])
@pytest.mark.parametrize("arguments", [{"steps": STEPS}, {"steps": STEPS, "lr": 0.02}, {}, {"lr": 0.02}])
def test_a_training_that_is_taken_up_goes_on_alike(how, arguments):
    """torch drops hooks from copies, so that none may be needed."""
    model, optimizer = built(**arguments)
    run(model, optimizer, 20)
    if arguments.get("steps") is None:
        optimizer.cooldown(18)
        run(model, optimizer, 3, first=20)
    other, resumed = again(how, model, optimizer)
    assert run(model, optimizer, 22, first=23) == run(other, resumed, 22, first=23)
    assert differing(model, other) == 0


def test_the_effective_rate_is_read_where_rates_are():
    model, optimizer = built(steps=4)
    records = []
    with nm.Monitor(model, optimizer, to=records.extend, every=1, probe=torch.ones(1, 2, 16)):
        run(model, optimizer, 3)
    found = {r["kind"]: r["value"] for r in records if r["step"] == 3 and r["name"] == "spectral"}
    assert found["length_mult"] == pytest.approx(0.5) and found["lr"] == pytest.approx(math.sqrt(2) * usual_lr(4) / 2)
    assert optimizer.param_groups[1]["lr"] * found["length_mult"] == found["lr"]
    assert f"size {found['lr']:.4g}" in str(nm.summary(model, optimizer))


def test_a_training_with_frozen_kernels_ends():
    """Of which AdamW alone counts the steps, also when the kernels come in later."""
    model, optimizer = built(steps=STEPS)
    matrices = [p for group in optimizer.param_groups if group["layouts"] for p in group["params"]]
    for t in range(STEPS):
        random_gradients(model, t)
        if t < 30:
            for p in matrices:
                p.grad = None
        optimizer.step()
        cosine = (1 + math.cos(math.pi * t / STEPS)) / 2
        assert [group["length_mult"] for group in optimizer.param_groups] == pytest.approx([cosine] * 3, rel=2e-6)


@pytest.mark.parametrize("moved", ["set", "loaded"])
def test_a_group_that_is_added_ends_with_the_others(moved):
    model, optimizer = built(steps=10)
    run(model, optimizer, 3)
    if moved == "set":
        optimizer.set_steps(STEPS)
    else:
        source = built(steps=STEPS)
        run(*source, steps=3)
        optimizer.load_state_dict(source[1].state_dict())
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))], "param_names": ["more"], "lr": 0.01})
    assert {group["steps"] for group in optimizer.param_groups} == {STEPS}


def test_a_group_that_is_added_is_cooled_down_with_the_others():
    """It was trained on at its full rate."""
    model, optimizer = built()
    run(model, optimizer, 12)
    optimizer.cooldown(10)
    run(model, optimizer, 4, first=12)
    more = torch.nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [more], "param_names": ["more"], "lr": 0.01, "name": "more"})
    for t in range(4, 10):
        more.grad = torch.ones(3)
        assert run(model, optimizer, 1, first=12 + t)[0][0]["more"] == pytest.approx(0.01 * (1 - math.sqrt(t / 10)))


def test_an_older_state_goes_on_from_where_it_is():
    """It had steps and nothing else of them: a cosine is left alone, and what is constant is brought down from there."""
    model, optimizer = built(steps=STEPS)
    scheduler = S.CosineAnnealingLR(optimizer, STEPS)
    run(model, optimizer, 20, scheduler)
    state = copy.deepcopy(optimizer.state_dict())
    for group in state["param_groups"]:
        for key in length.BEGINNING.keys() - {"steps"}:
            del group[key]
    other, resumed = built()
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(state)
    theirs = S.CosineAnnealingLR(resumed, STEPS, last_epoch=19)
    theirs.load_state_dict(scheduler.state_dict())
    alone, constant = copy.deepcopy((other, resumed))
    assert run(model, optimizer, 20, scheduler, first=20) == run(other, resumed, 20, theirs, first=20)
    assert differing(model, other) == 0
    lrs = of_kernels(run(alone, constant, 20, first=20)[0])
    assert lrs[0] == pytest.approx(usual_lr(STEPS) * math.sqrt(2) / 2) and lrs[-1] < 0.01 * lrs[0]


def test_an_older_state_without_steps_keeps_its_rate():
    model, optimizer = built(lr=0.02)
    run(model, optimizer, 3)
    state = copy.deepcopy(optimizer.state_dict())
    for group in state["param_groups"]:
        for key in length.BEGINNING:
            del group[key]
    for theirs in ({}, {"steps": 10}):
        _, resumed = built(**theirs)
        resumed.load_state_dict(state)
        assert effective_lrs(resumed) == effective_lrs(optimizer)
        assert resumed.param_groups[0]["steps"] is None


# ------------------------------------------------------------------------------------------------- an end that moves


@pytest.mark.parametrize("resumed", [False, True])
def test_the_end_moves_and_the_height_with_it(resumed):
    model, optimizer = built(steps=STEPS)
    run(model, optimizer, 20)
    if resumed:
        model, optimizer = again("loaded", model, optimizer)
    with pytest.raises(nm.MupError, match=r"set_steps\(20\) lies in the past: 20 steps were taken.*optimizer.cooldown"):
        optimizer.set_steps(20)
    for wrong in (0, 1.5, "3h", None):
        with pytest.raises(nm.MupError, match="steps is .*give a whole number of optimizer steps"):
            optimizer.set_steps(wrong)
    assert optimizer.param_groups[0]["steps"] == STEPS
    optimizer.set_steps(4 * STEPS)
    lrs, told = run(model, optimizer, 141, first=20)
    top = usual_lr(4 * STEPS) * math.sqrt(2)  # of two layers
    assert of_kernels(lrs)[:2] == pytest.approx([top * (1 + math.cos(math.pi * t / 160)) / 2 for t in (20, 21)])
    assert "steps=160" in told[0] and len(told) == 1
    optimizer.set_steps(200)  # and after the end
    assert run(model, optimizer, 39, first=161)[1] == []


@pytest.mark.parametrize(("taken", "steps"), [(0, 100), (5, 40), (30, 50), (30, 9000)])
def test_a_length_that_becomes_known_does_not_raise_the_rate(taken, steps):
    """It rose to that of a fresh training of so few steps, by 2.5 times after 5 of 40. Before the first step it is one."""
    model, optimizer = built()
    run(model, optimizer, taken)
    optimizer.set_steps(steps)
    most = length.progress_lr(taken) if taken else math.inf
    resumed = again("loaded", model, optimizer)
    for own in ((model, optimizer), resumed):
        lrs = of_kernels(run(*own, steps=steps - taken, first=taken)[0]) if steps < 9000 else of_kernels(run(*own, 1)[0])
        assert lrs[0] == pytest.approx(min(usual_lr(steps), most) * math.sqrt(2))
        assert all(a > b for a, b in pairwise(lrs)) and (steps == 9000 or lrs[-1] < 0.01 * lrs[0])


def test_a_rate_that_was_given_keeps_its_height():
    _, optimizer = built(lr=0.02)
    before = effective_lrs(optimizer)
    optimizer.set_steps(4000)
    assert effective_lrs(optimizer) == before


# ----------------------------------------------------------------------------------------------------------- a time


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves."""
    now = [100.0]
    monkeypatch.setattr(length, "clock", lambda: now[0])
    return now


def run_by(clock, model, optimizer, seconds, steps, first=0):
    found = []
    for t in range(first, first + steps):
        random_gradients(model, t)
        optimizer.step()
        found.append(effective_lrs(optimizer)["spectral"])
        clock[0] += seconds
    return found


@pytest.mark.parametrize(
    ("steps", "seconds"), [("3h", 10800), ("90m", 5400), ("45s", 45), ("1h30m", 5400), ("1.5h", 5400), ("1m30s", 90)]
)
def test_times(steps, seconds):
    assert length.seconds_of(steps) == seconds
    assert built(steps=steps)[1].param_groups[0]["seconds"] == seconds


@pytest.mark.parametrize("steps", ["3 hours", "", "0h", "3", "h", "-3h", "30m1h", "1e400h"])
def test_times_that_are_none(steps):
    with pytest.raises(nm.MupError, match="steps is .*; give the number of steps.*'3h', '90m', '45s' or '1h30m'"):
        built(steps=steps)


def test_a_time_becomes_steps(clock):
    """Ten minutes at three seconds a step are 200 steps."""
    model, optimizer = built(steps="10m")
    lrs = run_by(clock, model, optimizer, 3.0, 21)
    mult = math.sqrt(2)  # of two layers
    assert lrs[:20] == pytest.approx([mult * 0.7 * 0.03 * math.sqrt(1000 / (t + 100)) for t in range(20)])
    assert optimizer.param_groups[0]["steps"] == 200 and lrs[20] == pytest.approx(mult * usual_lr(200))
    lrs = run_by(clock, model, optimizer, 3.0, 179, first=21)
    assert all(a > b for a, b in pairwise(lrs)) and lrs[-1] < 1e-3 * lrs[0]
    with pytest.warns(UserWarning, match="step 201 of a training that the time that was given as steps has ended"):
        run_by(clock, model, optimizer, 3.0, 1, first=200)


def test_steps_that_become_slower_are_fewer(clock):
    model, optimizer = built(steps="10m")
    run_by(clock, model, optimizer, 3.0, 40)
    run_by(clock, model, optimizer, 6.0, 41, first=40)
    # 40 steps of 3 s and 40 of 6 s took 360 s, 4.5 s each; 240 s are left for 53 more.
    assert optimizer.param_groups[0]["steps"] == 80 + 53


def test_a_time_for_few_steps_ends_too(clock):
    """Five steps of nine seconds fit into 45."""
    model, optimizer = built(steps="45s")
    lrs = run_by(clock, model, optimizer, 9.0, 5)
    assert optimizer.param_groups[0]["steps"] == 5 and lrs[-1] < 0.2 * lrs[1]


@pytest.mark.parametrize("how", ["loaded", "copied", "pickled"])
def test_a_resumed_training_has_what_is_left_of_its_time(clock, how):
    model, optimizer = built(steps="10m")
    run_by(clock, model, optimizer, 3.0, 50)
    model, optimizer = again(how, model, optimizer)
    clock[0] += 1e6  # until it goes on
    assert optimizer.param_groups[0]["seconds"] == pytest.approx(600 - 49 * 3)
    lrs = run_by(clock, model, optimizer, 3.0, 150, first=50)
    assert abs(optimizer.param_groups[0]["steps"] - 200) <= 1 and lrs[-1] < 1e-3 * lrs[0]


def timed_by_ranks(rank, folder):
    """The second process has another clock."""
    now = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(length, "clock", lambda: now[0])
        model, optimizer = built(steps="10m")
        lrs = run_by(now, model, optimizer, 3.0 + rank, 45)
    return lrs, optimizer.param_groups[0]["steps"]


def test_processes_agree_on_the_end(tmp_path):
    assert dist.is_available()
    one, other = in_processes(2, timed_by_ranks, tmp_path)
    assert one == other and one[1] == 200


# ------------------------------------------------------------------------------------------- a length nobody knows


def test_the_rate_follows_the_progress_and_a_schedule_besides():
    model, optimizer = built()
    scheduler = S.StepLR(optimizer, 5, 0.5)
    lrs, told = run(model, optimizer, 10, scheduler)
    for t, own in enumerate(lrs):
        share = 0.5 ** (t // 5)
        assert own["spectral"] == pytest.approx(share * math.sqrt(2) * 0.021 * math.sqrt(1000 / (t + 100)))
        assert own["aux input+readout+vector"] == pytest.approx(share * 4e-3)
    assert not told


@pytest.mark.parametrize("arguments", [{}, {"lr": 0.02}, {"steps": 100}])
def test_a_cooldown_ends_it(arguments):
    model, optimizer = built(**arguments)
    before = run(model, optimizer, 20)[0][-1]
    optimizer.cooldown(10)
    lrs, told = run(model, optimizer, 12, first=20)
    for name, lr in before.items():
        own = [x[name] for x in lrs]
        assert own[0] == pytest.approx(lr, rel=0.03) and all(a > b for a, b in pairwise(own[:10]))
        assert own[10] == pytest.approx(own[0] / 100)
    top = [name for name in before if name.startswith("aux")][0] if "steps" not in arguments else None
    if top:  # what nothing else moves
        assert [x[top] for x in lrs[:10]] == pytest.approx([lrs[0][top] * (1 - math.sqrt(t / 10)) for t in range(10)])
    (message,) = told
    assert "step 31 of a training that its cooldown has ended" in message and "optimizer.set_steps(n)" in message


def test_cooldowns_that_cannot_be():
    model, optimizer = built()
    run(model, optimizer, 20)
    for wrong in (0, -1, 2.5, "1h"):
        with pytest.raises(nm.MupError, match="the length of a cooldown is .*whole number of optimizer steps"):
            optimizer.cooldown(wrong)
    with pytest.raises(nm.MupError, match=r"cooldown\(21\) is longer than the training so far, which has 20 steps"):
        optimizer.cooldown(21)
    optimizer.cooldown(10)
    for n in (0, 15):
        run(model, optimizer, n, first=20)
        with pytest.raises(nm.MupError, match="A cooldown of 10 steps began after step 20 already.*optimizer.set_steps"):
            optimizer.cooldown(5)
    optimizer.set_steps(60)  # which takes it back
    assert of_kernels(run(model, optimizer, 1, first=35)[0])[0] == pytest.approx(length.progress_lr(35) * math.sqrt(2))


def test_a_saved_trunk_is_cooled_down_and_gone_on_with():
    """What a cooldown does to a copy leaves the training alone."""
    model, optimizer = built()
    run(model, optimizer, 20)
    state, (copied, cooled) = copy.deepcopy(optimizer.state_dict()), copy.deepcopy((model, optimizer))
    cooled.cooldown(10)
    run(copied, cooled, 10, first=20)
    other, resumed = built()
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(state)
    assert run(model, optimizer, 5, first=20) == run(other, resumed, 5, first=20)


def test_snapshots_do_not_follow():
    """torch's ``state_dict`` holds the groups' own objects: nothing in them may change in place."""
    model, optimizer = built(steps=STEPS)
    run(model, optimizer, 5)
    state = optimizer.state_dict()
    before = copy.deepcopy(state["param_groups"])
    step(optimizer, model)
    optimizer.cooldown(2)
    assert state["param_groups"] == before


@pytest.mark.parametrize("given", [20, "5h"])
@pytest.mark.parametrize("saved", [None, 30, "1h"])
def test_a_state_with_another_end_is_told(given, saved):
    """It would train on at a rate that never falls, or end at another step than was written, without a word."""
    state = nm.MuSOAP(small_fno(width=4), steps=saved).state_dict()
    optimizer = nm.MuSOAP(small_fno(width=4), steps=given)
    n = "20" if given == 20 else "n"
    with pytest.warns(UserWarning, match=rf"built with steps='?(20|5h)'?, .* call optimizer.set_steps\({n}\) now"):
        optimizer.load_state_dict(state)
    optimizer.set_steps(20)
    assert optimizer.param_groups[0]["steps"] == 20 and optimizer.param_groups[0]["seconds"] is None


def test_a_state_with_the_same_time_is_not_told(recwarn):
    state = nm.MuSOAP(small_fno(width=4), steps="1h").state_dict()
    state["param_groups"] = [{**group, "seconds": 1800.0} for group in state["param_groups"]]
    nm.MuSOAP(small_fno(width=4), steps="60m").load_state_dict(state)
    for group in state["param_groups"]:  # as 0.2.0 saved it
        del group["budget"]
    nm.MuSOAP(small_fno(width=4), steps="2h").load_state_dict(state)
    assert not recwarn.list
    nm.MuSOAP(small_fno(width=4)).load_state_dict(state)


def test_a_plateau_at_its_floor_is_no_broken_ratio():
    """torch leaves a group whose rate would change by less than 1e-8, so that ratios break where rates are next to zero."""
    optimizer = nm.MuSOAP(small_fno(width=4), lr=0.03, aux_lr=0.004)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(30):
        plateau.step(1.0)
    assert broken_ratios(optimizer.param_groups) is None


def test_the_rate_of_the_last_step_is_kept_where_a_scheduler_moves_on():
    """Of a restart the group's lr is the next step's, and its factor the last one's: their product is no step's."""
    model, optimizer = built(steps=STEPS)
    scheduler = S.CosineAnnealingWarmRestarts(optimizer, T_0=10)
    group, said = optimizer.param_groups[0], optimizer.param_groups[0]["step_lr"]
    for t in range(STEPS):
        before = group["params"][0].detach().clone()
        random_gradients(model, t)
        optimizer.step()
        used = group["lr"] * group["length_mult"]
        scheduler.step()
        assert group["step_lr"] == used
        assert t > 0 or said == used  # before the first step it is the first's
        assert not torch.equal(before, group["params"][0])
    assert copy.deepcopy(optimizer).param_groups[0]["step_lr"] == used
