"""Schedulers and training loops: learning rates follow the plan at every step, or the break is said once."""

import copy
import inspect
import io
import pickle
import warnings

import pytest
import torch
from neuralop.models import FNO
from torch.optim import lr_scheduler as S
from torch.optim import swa_utils

import neuralop_mup as nm

LR, STEPS = 1e-2, 25
BASE = {"n_modes": (4,), "hidden_channels": 4}
# Of either family of multipliers, and what a momentum schedule asks of them.
OPTIMIZERS = {nm.MuAdam: {}, nm.MuSGD: {"momentum": 0.9}}


def build(**kwargs):
    torch.manual_seed(0)
    model = FNO((8,), 1, 1, 8, n_layers=1, **kwargs)
    return nm.parametrize(model, base=BASE)


def at_base(layers=1):
    torch.manual_seed(0)
    return nm.parametrize(FNO((8,), 1, 1, 8, n_layers=layers), base={})


def per_group(optimizer, value):
    """What the docs say to pass where torch wants an absolute value: one a group."""
    return [value * g.get("lr_mult", 1.0) for g in optimizer.param_groups]


# Each entry takes an optimizer and gives a scheduler under which ratios stay. The first class is the one it is filed under.
FOLLOWING = {
    "LambdaLR": lambda o: S.LambdaLR(o, lambda t: min(1.0, (t + 1) / 5)),  # warm-up
    "MultiplicativeLR": lambda o: S.MultiplicativeLR(o, lambda t: 0.9),
    "StepLR": lambda o: S.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda o: S.MultiStepLR(o, [2, 7], 0.5),
    "ConstantLR": lambda o: S.ConstantLR(o, 0.3, 4),
    "LinearLR": lambda o: S.LinearLR(o, 0.1, 1.0, 6),
    "ExponentialLR": lambda o: S.ExponentialLR(o, 0.8),
    "SequentialLR": lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, 1, 5), S.CosineAnnealingLR(o, 20)], [5]),
    "PolynomialLR": lambda o: S.PolynomialLR(o, 20, 2.0),
    "CosineAnnealingLR": lambda o: S.CosineAnnealingLR(o, 10),
    "ChainedScheduler": lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 3), S.ExponentialLR(o, 0.9)]),
    "ReduceLROnPlateau": lambda o: S.ReduceLROnPlateau(o, factor=0.5, patience=1),
    "CyclicLR": lambda o: S.CyclicLR(o, per_group(o, 1e-3), per_group(o, 1e-1), 4),
    "CosineAnnealingWarmRestarts": lambda o: S.CosineAnnealingWarmRestarts(o, 5, 2),
    "OneCycleLR": lambda o: S.OneCycleLR(o, per_group(o, 1e-1), STEPS + 1),
    "SWALR": lambda o: swa_utils.SWALR(o, per_group(o, 1e-3), anneal_epochs=5),
}
BREAKING = {
    "OneCycleLR": lambda o: S.OneCycleLR(o, 1e-1, STEPS + 1),
    "CyclicLR": lambda o: S.CyclicLR(o, 1e-3, 1e-1, 4),
    "CosineAnnealingLR, eta_min": lambda o: S.CosineAnnealingLR(o, 10, eta_min=1e-3),
    "CosineAnnealingWarmRestarts, eta_min": lambda o: S.CosineAnnealingWarmRestarts(o, 5, eta_min=1e-3),
    "ReduceLROnPlateau, min_lr": lambda o: S.ReduceLROnPlateau(o, factor=0.5, patience=0, min_lr=4e-3),
    "SWALR": lambda o: swa_utils.SWALR(o, 1e-3, anneal_epochs=5),
}


def run(optimizer, make=None, steps=STEPS):
    """Learning rates of each group at each step; there are no gradients, since schedulers do not look at them."""
    scheduler = make(optimizer) if make else None
    for _ in range(steps):
        yield [g["lr"] for g in optimizer.param_groups]
        optimizer.step()
        if scheduler:
            scheduler.step(*(1.0,) * isinstance(scheduler, S.ReduceLROnPlateau))


def told(optimizer, make=None):
    """What is said of the plan's ratios in a run."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(run(optimizer, make))
    return [str(w.message) for w in caught if "plan's ratios" in str(w.message)]


def set_all(optimizer, lr):
    for group in optimizer.param_groups:
        group["lr"] = lr


def test_the_table_has_every_scheduler_of_torch():
    theirs = {name for name, cls in vars(S).items() if inspect.isclass(cls) and issubclass(cls, S.LRScheduler)}
    assert {name for name in theirs if name.strip("_") != "LRScheduler"} | {"SWALR"} == set(FOLLOWING)


@pytest.mark.parametrize("ours", OPTIMIZERS)
@pytest.mark.parametrize("key", FOLLOWING)
def test_ratios_follow_the_plan_at_every_step(key, ours):
    optimizer = ours(build(), LR, **OPTIMIZERS[ours])
    reference = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], LR, **OPTIMIZERS[ours])  # one plain group
    mults = [g["lr_mult"] for g in optimizer.param_groups]
    assert len(set(mults)) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both = zip(run(optimizer, FOLLOWING[key]), run(reference, FOLLOWING[key]), strict=True)
        for step, (lrs, (lr,)) in enumerate(both):
            assert lrs == pytest.approx([lr * m for m in mults], rel=1e-9, abs=1e-15), step


@pytest.mark.parametrize("ours", OPTIMIZERS)
@pytest.mark.parametrize("key", BREAKING)
def test_absolute_values_are_warned_of_once(key, ours):
    optimizer = ours(build(), LR, **OPTIMIZERS[ours])
    (message,) = told(optimizer, BREAKING[key])
    assert "max_lr * g['lr_mult']" in message and "leave floors (eta_min, min_lr, swa_lr) at zero" in message
    assert any(g["name"] in message for g in optimizer.param_groups) or "the same learning rate" in message


@pytest.mark.parametrize("ours", OPTIMIZERS)
def test_a_floor_far_below_the_learning_rates_is_nothing_to_tell(ours):
    """1e-5 below learning rates of 1e-2 and 5e-3 moves none of them by more than 0.2 %."""
    assert not told(ours(build(), LR), lambda o: S.CosineAnnealingLR(o, STEPS, eta_min=1e-5))
    assert told(ours(build(), LR), lambda o: S.CosineAnnealingLR(o, STEPS, eta_min=1e-3))


def test_what_a_user_means_to_do():
    optimizer = nm.MuAdam(build(), LR)
    first, second, *_ = optimizer.param_groups
    first["lr"] = 0.0  # frozen
    assert not told(optimizer)
    second["lr"] *= 3  # one group faster, and said so
    second["lr_mult"] *= 3
    assert not told(optimizer)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.5})  # a loss's own weight
    assert not told(optimizer)
    second["lr"] *= 3  # or did not
    (message,) = told(optimizer)
    assert repr(second["name"]) in message and f"{second['lr']:.4g}" in message and f"{second['lr'] / 3:.4g}" in message


@pytest.mark.parametrize("value", [2e-3, torch.tensor(2e-3)], ids=["number", "tensor"])
def test_a_callback_that_sets_one_number(value):
    optimizer = nm.MuAdam(build(), LR)
    set_all(optimizer, value)
    (message,) = told(optimizer)
    assert "have the same learning rate, 0.002" in message


def test_musoaps_two_base_learning_rates():
    """Its maps follow lr and the rest aux_lr · lr_mult: each has ratios of its own, and one number for all breaks them."""
    model = build()
    optimizer = nm.MuSOAP(model, 0.02, 4e-3, base_depth=None)
    assert {g["lr_mult"] for g in optimizer.param_groups if not g["layouts"]} == {1.0, 0.5}
    assert [g["lr"] for g in optimizer.param_groups] == [0.02, 0.02, 4e-3, 2e-3]
    nm.follow_plan(model, optimizer)  # is followed already
    assert not told(optimizer, lambda o: S.OneCycleLR(o, [g["lr"] for g in o.param_groups], STEPS + 1))
    set_all(optimizer, 0.02)
    (message,) = told(optimizer)
    assert "groups 'aux input+vector' and 'aux readout' have the same learning rate, 0.02" in message
    assert "max_lr=[g['lr'] for g" in message


def two_rates(kind=nm.MuSOAP, lr=0.02, aux_lr=4e-3, layers=4):
    """At base: one group of AdamW's, so that it has no other to be compared with but the kernels'."""
    model = at_base(layers)
    optimizer = kind(model, lr, aux_lr)
    assert len([g for g in optimizer.param_groups if not g["layouts"]]) == 1
    return model, optimizer


@pytest.mark.parametrize("kind", [nm.MuSOAP])
@pytest.mark.parametrize("key", BREAKING)
@pytest.mark.parametrize("layers", [1, 4])
def test_a_scheduler_that_gives_kernels_and_the_rest_the_same_number_is_warned_of(key, layers, kind):
    """OneCycleLR(max_lr=0.1) took AdamW's 0.004 to 0.1."""
    _, optimizer = two_rates(kind, layers=layers)
    assert len(told(optimizer, BREAKING[key])) == 1


@pytest.mark.parametrize("kind", [nm.MuSOAP])
def test_a_check_sees_the_same_number_before_the_first_step(kind):
    for absolute, match in (
        (lambda g: 0.02, "have the same learning rate"),
        (lambda g: 0.02 * g["lr_mult"], "plan's ratios"),
    ):
        model, optimizer = two_rates(kind)
        S.OneCycleLR(optimizer, [absolute(g) for g in optimizer.param_groups], STEPS)
        with pytest.raises(nm.MupError, match=match):
            nm.check_optimizer(model, optimizer)


@pytest.mark.parametrize("by_hand", [1, 3])
@pytest.mark.parametrize("key", FOLLOWING)
def test_two_base_learning_rates_that_scale_alike_are_not_told_of(key, by_hand):
    """As they were given, or in another ratio that was set before there was a scheduler."""
    model, optimizer = two_rates()
    optimizer.param_groups[-1]["lr"] *= by_hand
    start = [g["lr"] for g in optimizer.param_groups]
    low = [lr / 10 for lr in start]
    absolute = {
        "CyclicLR": lambda o: S.CyclicLR(o, low, start, 4),
        "OneCycleLR": lambda o: S.OneCycleLR(o, start, STEPS + 1),
        "SWALR": lambda o: swa_utils.SWALR(o, low, anneal_epochs=5),
    }
    assert not told(optimizer)
    assert not told(optimizer, absolute.get(key, FOLLOWING[key]))
    nm.check_optimizer(model, optimizer)


def test_two_base_learning_rates_that_somebody_means():
    _, same = two_rates(lr=0.02, aux_lr=0.02)
    assert not told(same, lambda o: S.OneCycleLR(o, 0.02, STEPS + 1))
    _, frozen = two_rates(aux_lr=0.0)
    assert not told(frozen, lambda o: S.CosineAnnealingLR(o, STEPS))
    _, later = two_rates()
    S.StepLR(later, 5)
    for key in ("lr", "lr_mult"):  # as the message says
        later.param_groups[-1][key] *= 3
    assert not told(later)


def test_a_state_without_base_learning_rates_is_loaded():
    """Saved before they were kept: nothing is said of what nobody knows."""
    (_, optimizer), (_, again), (_, other) = two_rates(), two_rates(lr=0.5), two_rates(lr=0.5)
    other.load_state_dict(optimizer.state_dict())
    assert not told(other, FOLLOWING["CosineAnnealingLR"])
    assert told(other, BREAKING["OneCycleLR"])
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        del group["base_lr"]
    again.load_state_dict(state)
    assert not told(again, FOLLOWING["CosineAnnealingLR"])


def test_at_base_absolute_values_are_right():
    assert not told(nm.MuAdam(at_base(), LR), BREAKING["OneCycleLR"])


# ------------------------------------------------------------------------------------------------ saved and copied


@pytest.mark.parametrize("ours", OPTIMIZERS)
@pytest.mark.parametrize("key", ["LambdaLR", "CosineAnnealingLR", "OneCycleLR"])
def test_resuming_gives_the_same_learning_rates(key, ours):
    def begin():
        optimizer = ours(build(), LR, **OPTIMIZERS[ours])
        return optimizer, FOLLOWING[key](optimizer)

    uninterrupted, schedule = begin()
    whole = list(run(uninterrupted, lambda _: schedule, 10))
    first, scheduler = begin()
    second, resumed = begin()
    buffer = io.BytesIO()
    assert list(run(first, lambda _: scheduler, 4)) == whole[:4]
    torch.save((first.state_dict(), scheduler.state_dict()), buffer)
    states = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    second.load_state_dict(states[0])
    resumed.load_state_dict(states[1])
    assert list(run(second, lambda _: resumed, 6)) == whole[4:]
    set_all(second, 1.0)
    assert len(told(second)) == 1  # load_state_dict keeps the hook


@pytest.mark.parametrize("how", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize(("ours", "family"), [(nm.MuAdam, "adam"), (nm.MuSGD, "sgd")])
def test_copies_step_and_are_followed_again_on_request(ours, family, how):
    model = build()
    optimizer = ours(model, LR)
    model, copied = how((model, optimizer))
    assert [g["lr_mult"] for g in copied.param_groups] == [g["lr_mult"] for g in optimizer.param_groups]
    copied.step()
    for _ in range(2):  # a second call adds nothing
        nm.follow_plan(model, copied, family)
    set_all(copied, 1.0)
    assert len(told(copied)) == 1
    assert not told(optimizer)


def test_bad_input():
    model = build()
    optimizer = nm.MuAdam(model, LR)
    for arguments, match in (
        ((model, optimizer, "adamw"), "no optimizer family 'adamw'"),
        ((model, "adam"), "takes no step hooks"),
        ((model, optimizer, "sgd"), "not those of this model's plan for 'sgd'"),
        ((build(), optimizer), "not those of this model's plan"),
        ((model, torch.optim.Adam(model.parameters())), "param_groups"),
        ((torch.nn.Linear(2, 2), optimizer), "not parametrized"),
    ):
        with pytest.raises(nm.MupError, match=match):
            nm.follow_plan(*arguments)


# ------------------------------------------------------------------------------------------------ loops


def _gradients(model, dtype):
    """Accumulated over two halves of a batch, under autocast, and clipped by norm and by value."""
    x, y = torch.randn(2, 4, 1, 16, generator=torch.Generator().manual_seed(1))
    for half in (slice(0, 2), slice(2, 4)):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            prediction = model(x[half])
        (prediction.float() - y[half]).square().sum().backward()
    assert torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) > 1.0
    nm.clip_spectral_grad_value_(model, 1e-2)


def _real(x):
    return torch.view_as_real(x.detach()) if x.is_complex() else x.detach()


@pytest.mark.parametrize("ours", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float, torch.bfloat16])
def test_what_a_step_moves_follows_the_plan(dtype, ours):
    """Adam's first step moves each real number by its lr exactly; SGD's by lr times the gradient it is handed."""
    model, sgd = build(), ours is nm.MuSGD
    base_lr, kwargs = (1.0, {}) if sgd else (LR, {"eps": 1e-20})  # clipped gradients are small
    optimizer = ours(model, base_lr, weight_decay=0.0, **kwargs)
    S.LinearLR(optimizer, 0.5)  # warm-up: half of it at the first step
    before = [_real(p).clone() for p in model.parameters()]
    _gradients(model, dtype)
    optimizer.step()
    plan = nm.summary(model)
    assert len({row.sgd_lr_mult if sgd else row.lr_mult for row in plan.rows}) > 1
    for row, old, p in zip(plan.rows, before, model.parameters(), strict=True):
        lr = 0.5 * base_lr * (row.sgd_lr_mult if sgd else row.lr_mult)
        grad = _real(p.grad)
        expected = -lr * (grad if sgd else grad.sign())
        torch.testing.assert_close(_real(p) - old, expected, rtol=1e-3, atol=2e-7, msg=lambda m, row=row: f"{row.name}: {m}")
        assert expected.abs().max() > 2e-6 or row.name.endswith("bias"), row.name  # and the tolerance does not hide it


def test_groups_do_not_depend_on_neuralops_mixed_precision():
    full, mixed = (nm.param_groups(build(**kwargs), LR) for kwargs in ({}, {"fno_block_precision": "mixed"}))
    assert [g["lr"] for g in full] == [g["lr"] for g in mixed]
