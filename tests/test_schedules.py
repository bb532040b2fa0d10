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
OPTIMIZERS = {
    "MuAdam": (nm.MuAdam, torch.optim.Adam, {}),
    "MuAdamW": (nm.MuAdamW, torch.optim.AdamW, {}),
    "MuSGD": (nm.MuSGD, torch.optim.SGD, {"momentum": 0.9}),
}


def build(**kwargs):
    torch.manual_seed(0)
    model = FNO((8,), 1, 1, 8, n_layers=1, **kwargs)
    return nm.parametrize(model, base=BASE)


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


def run(optimizer, make, steps=STEPS):
    """Learning rates of each group at each step; there are no gradients, since schedulers do not look at them."""
    scheduler = make(optimizer)
    for _ in range(steps):
        yield [g["lr"] for g in optimizer.param_groups]
        optimizer.step()
        scheduler.step(*(1.0,) * isinstance(scheduler, S.ReduceLROnPlateau))


def test_the_table_has_every_scheduler_of_torch():
    theirs = {
        name
        for name, cls in vars(S).items()
        if inspect.isclass(cls) and issubclass(cls, S.LRScheduler) and name.strip("_") != "LRScheduler"
    }
    assert theirs | {"SWALR"} == set(FOLLOWING)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("key", FOLLOWING)
def test_ratios_follow_the_plan_at_every_step(key, name):
    ours, stock, kwargs = OPTIMIZERS[name]
    model = build()
    optimizer = ours(model, LR, **kwargs)
    reference = stock([torch.nn.Parameter(torch.ones(1))], LR, **kwargs)  # the same schedule on one plain group
    mults = [g["lr_mult"] for g in optimizer.param_groups]
    assert len(set(mults)) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step, (lrs, (lr,)) in enumerate(
            zip(run(optimizer, FOLLOWING[key]), run(reference, FOLLOWING[key]), strict=True)
        ):
            assert lrs == pytest.approx([lr * m for m in mults], rel=1e-9, abs=1e-15), step


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("key", BREAKING)
def test_absolute_values_are_warned_of_once(key, name):
    ours, _, kwargs = OPTIMIZERS[name]
    optimizer = ours(build(), LR, **kwargs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(run(optimizer, BREAKING[key]))
    (message,) = [str(w.message) for w in caught if "plan's ratios" in str(w.message)]
    if "eta_min" in key or key == "SWALR":
        assert "all groups end at the same floor, 0.001 (eta_min" in message and "OneCycleLR" not in message
    else:
        assert "max_lr * g['lr_mult']" in message
    assert any(g["name"] in message for g in optimizer.param_groups) or "the same learning rate" in message


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_floor_far_below_the_learning_rates_is_nothing_to_tell(name):
    """1e-5 below learning rates of 1e-2 and 5e-3 moves none of them by more than 0.2 %."""
    ours, _, kwargs = OPTIMIZERS[name]
    for floor, told in ((1e-5, 0), (1e-3, 1)):
        optimizer = ours(build(), LR, **kwargs)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(run(optimizer, lambda o, floor=floor: S.CosineAnnealingLR(o, STEPS, eta_min=floor)))
        assert len([w for w in caught if "plan's ratios" in str(w.message)]) == told


def _caught(optimizer, steps=3):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            optimizer.step()
    return [str(w.message) for w in caught]


def test_what_a_user_means_to_do():
    optimizer = nm.MuAdam(build(), LR)
    first, second, *_ = optimizer.param_groups
    first["lr"] = 0.0  # frozen
    assert not _caught(optimizer)
    second["lr"] *= 3  # one group faster, and said so
    second["lr_mult"] *= 3
    assert not _caught(optimizer)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.5})  # a loss's own weight
    assert not _caught(optimizer)
    second["lr"] *= 3  # or did not
    (message,) = _caught(optimizer)
    assert repr(second["name"]) in message and f"{second['lr']:.4g}" in message and f"{second['lr'] / 3:.4g}" in message


@pytest.mark.parametrize("value", [2e-3, torch.tensor(2e-3)], ids=["number", "tensor"])
def test_a_callback_that_sets_one_number(value):
    optimizer = nm.MuAdam(build(), LR)
    for group in optimizer.param_groups:
        group["lr"] = value
    (message,) = _caught(optimizer)
    assert "have the same learning rate, 0.002" in message


def test_muons_two_base_learning_rates():
    """Its maps follow lr and the rest aux_lr · lr_mult: each has ratios of its own, and one number for all breaks them."""
    model = build()
    optimizer = nm.MuMuon(model, 0.02, 4e-3, base_depth=None)
    assert {g["lr_mult"] for g in optimizer.param_groups if not g["layouts"]} == {1.0, 0.5}
    start = [g["lr"] for g in optimizer.param_groups]
    nm.follow_plan(model, optimizer)  # is followed already
    assert not _caught(optimizer)
    list(run(optimizer, lambda o: S.OneCycleLR(o, [g["lr"] for g in o.param_groups], STEPS + 1)))
    for group in optimizer.param_groups:
        group["lr"] = 0.02
    (message,) = _caught(optimizer)
    assert (
        "groups 'aux input+vector' and 'aux readout' have the same learning rate, 0.02" in message
        and "max_lr=[g['lr'] for g" in message
    )
    assert start == [0.02, 0.02, 4e-3, 2e-3]


def two_rates(kind, lr=0.02, aux_lr=4e-3, **kwargs):
    """At base: one group of AdamW's, so that it has no other to be compared with but the kernels'."""
    torch.manual_seed(0)
    model = nm.parametrize(FNO((8,), 1, 1, 8, n_layers=kwargs.pop("n_layers", 4)), base={})
    optimizer = kind(model, lr, aux_lr, **kwargs)
    assert len([g for g in optimizer.param_groups if not g["layouts"]]) == 1
    return model, optimizer


def _ratios(optimizer, make, steps=STEPS):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(run(optimizer, make, steps))
    return [str(w.message) for w in caught if "plan's ratios" in str(w.message)]


@pytest.mark.parametrize("kind", [nm.MuMuon, nm.MuSOAP])
@pytest.mark.parametrize("key", BREAKING)
@pytest.mark.parametrize("layers", [1, 4])
def test_a_scheduler_that_gives_kernels_and_the_rest_the_same_number_is_warned_of(key, layers, kind):
    """OneCycleLR(max_lr=0.1) took AdamW's 0.004 to 0.1."""
    model, optimizer = two_rates(kind, n_layers=layers)
    assert len(_ratios(optimizer, BREAKING[key])) == 1
    model, optimizer = two_rates(kind, n_layers=layers)
    S.OneCycleLR(optimizer, 0.02, STEPS)
    with pytest.raises(nm.MupError, match="have the same learning rate"):
        nm.check_optimizer(model, optimizer)
    model, optimizer = two_rates(kind, n_layers=layers)
    S.OneCycleLR(optimizer, [0.02 * g["lr_mult"] for g in optimizer.param_groups], STEPS)
    with pytest.raises(nm.MupError, match="plan's ratios"):
        nm.check_optimizer(model, optimizer)


@pytest.mark.parametrize("by_hand", [1, 3])
@pytest.mark.parametrize("key", FOLLOWING)
def test_two_base_learning_rates_that_scale_alike_are_not_told_of(key, by_hand):
    """As they were given, or in another ratio that was set before there was a scheduler."""
    model, optimizer = two_rates(nm.MuSOAP)
    optimizer.param_groups[-1]["lr"] *= by_hand
    start = [g["lr"] for g in optimizer.param_groups]
    absolute = {
        "CyclicLR": lambda o: S.CyclicLR(o, [lr / 10 for lr in start], start, 4),
        "OneCycleLR": lambda o: S.OneCycleLR(o, start, STEPS + 1),
        "SWALR": lambda o: swa_utils.SWALR(o, [lr / 10 for lr in start], anneal_epochs=5),
    }
    assert not _caught(optimizer)
    assert not _ratios(optimizer, absolute.get(key, FOLLOWING[key]))
    nm.check_optimizer(model, optimizer)


def test_two_base_learning_rates_that_somebody_means():
    _, same = two_rates(nm.MuSOAP, 0.02, 0.02)
    assert not _ratios(same, lambda o: S.OneCycleLR(o, 0.02, STEPS + 1))
    _, frozen = two_rates(nm.MuSOAP, 0.02, 0.0)
    assert not _ratios(frozen, lambda o: S.CosineAnnealingLR(o, STEPS))
    _, later = two_rates(nm.MuSOAP)
    S.StepLR(later, 5)
    for key in ("lr", "lr_mult"):  # as the message says
        later.param_groups[-1][key] *= 3
    assert not _caught(later)


def test_a_state_without_base_learning_rates_is_loaded():
    """Saved before they were kept: nothing is said of what nobody knows."""
    _, optimizer = two_rates(nm.MuSOAP)
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        del group["base_lr"]
    _, again = two_rates(nm.MuSOAP, 0.5)
    again.load_state_dict(state)
    assert not _ratios(again, FOLLOWING["CosineAnnealingLR"])
    _, other = two_rates(nm.MuSOAP, 0.5)
    other.load_state_dict(optimizer.state_dict())
    assert not _ratios(other, FOLLOWING["CosineAnnealingLR"])
    assert _ratios(other, BREAKING["OneCycleLR"])


def test_at_base_absolute_values_are_right():
    torch.manual_seed(0)
    optimizer = nm.MuAdam(nm.parametrize(FNO((8,), 1, 1, 8, n_layers=1), base={}), LR)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(run(optimizer, BREAKING["OneCycleLR"]))


# ------------------------------------------------------------------------------------------------ saved and copied


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("key", ["LambdaLR", "CosineAnnealingLR", "OneCycleLR"])
def test_resuming_gives_the_same_learning_rates(key, name):
    ours, _, kwargs = OPTIMIZERS[name]
    whole = list(run(ours(build(), LR, **kwargs), FOLLOWING[key], 10))

    def part(states, steps):
        optimizer = ours(build(), LR, **kwargs)
        scheduler = FOLLOWING[key](optimizer)
        if states:
            optimizer.load_state_dict(states[0])
            scheduler.load_state_dict(states[1])
        lrs = []
        for _ in range(steps):
            lrs.append([g["lr"] for g in optimizer.param_groups])
            optimizer.step()
            scheduler.step()
        buffer = io.BytesIO()
        torch.save((optimizer.state_dict(), scheduler.state_dict()), buffer)
        return lrs, torch.load(io.BytesIO(buffer.getvalue()), weights_only=True), optimizer

    first, states, _ = part(None, 4)
    second, _, optimizer = part(states, 6)
    assert first + second == whole
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    assert len(_caught(optimizer)) == 1  # load_state_dict keeps the hook


@pytest.mark.parametrize("how", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_copies_step_and_are_followed_again_on_request(name, how):
    ours, _, kwargs = OPTIMIZERS[name]
    model = build()
    optimizer = ours(model, LR, **kwargs)
    model, copied = how((model, optimizer))
    assert [g["lr_mult"] for g in copied.param_groups] == [g["lr_mult"] for g in optimizer.param_groups]
    copied.step()
    family = "sgd" if name == "MuSGD" else "adam"
    for _ in range(2):  # a second call adds nothing
        nm.follow_plan(model, copied, family)
    for group in copied.param_groups:
        group["lr"] = 1.0
    assert len(_caught(copied)) == 1
    assert not _caught(optimizer)


def test_groups_given_to_any_optimizer():
    model = build()
    optimizer = torch.optim.RMSprop(nm.param_groups(model, LR), LR)
    nm.follow_plan(model, optimizer)
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    assert len(_caught(optimizer)) == 1


def test_bad_input():
    model = build()
    optimizer = nm.MuAdam(model, LR)
    with pytest.raises(nm.MupError, match="no optimizer family 'adamw'"):
        nm.follow_plan(model, optimizer, "adamw")
    with pytest.raises(nm.MupError, match="takes no step hooks"):
        nm.follow_plan(model, "adam")
    with pytest.raises(nm.MupError, match="not those of this model's plan for 'sgd'"):
        nm.follow_plan(model, optimizer, "sgd")
    with pytest.raises(nm.MupError, match="not those of this model's plan"):
        nm.follow_plan(build(), optimizer)
    with pytest.raises(nm.MupError, match="param_groups"):
        nm.follow_plan(model, torch.optim.Adam(model.parameters()))
    with pytest.raises(nm.MupError, match="not parametrized"):
        nm.follow_plan(torch.nn.Linear(2, 2), optimizer)


# ------------------------------------------------------------------------------------------------ loops


def _backward(model, part=slice(None), precision=None):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 4, 1, 16, generator=generator)[:, part]
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        prediction = model(x)
    (prediction.float() - y).square().sum().backward()


def _accumulate(model):
    _backward(model, slice(0, 2))
    _backward(model, slice(2, 4))


def _clip_norm(model):
    _backward(model)
    total = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
    assert total > 1e-2


def _clip_value(model):
    _backward(model)
    nm.clip_spectral_grad_value_(model, 1e-2)
    torch.nn.utils.clip_grad_value_([p for p in model.parameters() if not p.is_complex()], 1e-2)


LOOPS = {
    "plain": _backward,
    "accumulation": _accumulate,
    "clip by norm": _clip_norm,
    "clip by value": _clip_value,
    "bf16 autocast": lambda model: _backward(model, precision="bf16"),
}


def _real(x):
    return torch.view_as_real(x.detach()) if x.is_complex() else x.detach()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_step_moves_follows_the_plan(loop, name):
    """Adam's first step moves each real number by its lr exactly; SGD's by lr times the gradient it is handed."""
    ours, _, _ = OPTIMIZERS[name]
    model, sgd = build(), name == "MuSGD"
    base_lr, kwargs = (1.0, {}) if sgd else (LR, {"eps": 1e-20})  # clipped gradients are small
    optimizer = ours(model, base_lr, weight_decay=0.0, **kwargs)
    S.LinearLR(optimizer, 0.5)  # warm-up: half of it at the first step
    before = [_real(p).clone() for p in model.parameters()]
    LOOPS[loop](model)
    optimizer.step()
    plan = nm.summary(model)
    assert len({row.sgd_lr_mult if sgd else row.lr_mult for row in plan.rows}) > 1
    for row, old, p in zip(plan.rows, before, model.parameters(), strict=True):
        lr = 0.5 * base_lr * (row.sgd_lr_mult if sgd else row.lr_mult)
        grad = _real(p.grad)
        expected = -lr * (grad if sgd else grad.sign())
        torch.testing.assert_close(_real(p) - old, expected, rtol=1e-3, atol=2e-7, msg=lambda m, row=row: f"{row.name}: {m}")
        assert expected.abs().max() > 2e-6 or row.name.endswith("bias"), row.name  # and the tolerance does not hide it


def test_neuralops_mixed_precision():
    """Groups do not depend on it; on a CPU neuralop's half-precision Fourier transforms do not run at all."""
    full, mixed = build(), build(fno_block_precision="mixed")
    optimizer = nm.MuAdam(mixed, LR)
    assert [g["lr"] for g in optimizer.param_groups] == [g["lr"] for g in nm.param_groups(full, LR)]
    try:
        _backward(mixed)
    except RuntimeError as error:
        pytest.skip(f"torch on this CPU: {error}")
    optimizer.step()
