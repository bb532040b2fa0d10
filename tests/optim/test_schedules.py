"""Schedulers and training loops: learning rates follow the plan at every step, or the break is said once."""

import copy
import pickle
import warnings

import pytest
import torch
from neuralop.models import FNO
from torch.optim import lr_scheduler as S
from torch.optim import swa_utils

import neuralop_mup as nm
from support.schedulers import FOLLOWING, STEPS
from support.training import step

LR = 1e-2
BASE = {"n_modes": (4,), "hidden_channels": 4}
# Of either family of multipliers, and what a momentum schedule asks of them.
OPTIMIZERS = {nm.MuAdam: {}, nm.MuSGD: {"momentum": 0.9}}


def build(layers=1, base=BASE, **kwargs):
    torch.manual_seed(0)
    return nm.parametrize(FNO((8,), 1, 1, 8, n_layers=layers, **kwargs), base=base)


def two_rates(lr=0.02, aux_lr=4e-3, layers=4):
    """MuSOAP at base: one group of AdamW's, so that it has no other to be compared with but the kernels'."""
    return nm.MuSOAP(build(layers, base={}), lr, aux_lr)


# Each entry takes an optimizer and gives a scheduler under which ratios stay. The first class is the one it is filed under.
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


@pytest.mark.parametrize("key", FOLLOWING)
def test_two_learning_rates_at_base_that_scale_alike_are_not_told_of(key):
    assert not told(two_rates(), FOLLOWING[key])


@pytest.mark.parametrize("ours", [lambda: nm.MuAdam(build(), LR), lambda: nm.MuSGD(build(), LR, momentum=0.9), two_rates])
@pytest.mark.parametrize("key", BREAKING)
def test_absolute_values_are_warned_of_once(key, ours):
    """OneCycleLR(max_lr=0.1) took AdamW's 0.004 beside kernels' 0.02 to 0.1."""
    optimizer = ours()
    (message,) = told(optimizer, BREAKING[key])
    assert "max_lr=[g['lr'] for g in" in message and "leave floors (eta_min, min_lr, swa_lr) at zero" in message
    assert any(repr(g["name"]) in message for g in optimizer.param_groups)


def test_what_a_user_means_to_do():
    assert not told(nm.MuAdam(build(base={}), LR), BREAKING["OneCycleLR"])  # at base absolute values are right
    assert not told(two_rates(0.02, 0.02), BREAKING["OneCycleLR"])
    assert not told(two_rates(aux_lr=0.0), FOLLOWING["CosineAnnealingLR"])
    # A floor of 1e-5 below learning rates of 1e-2 and 5e-3 moves none of them by more than 0.2 %.
    assert not told(nm.MuAdam(build(), LR), lambda o: S.CosineAnnealingLR(o, STEPS, eta_min=1e-5))
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


@pytest.mark.parametrize("absolute", [lambda g: 2e-3, lambda g: torch.tensor(2e-3), lambda g: 2e-3 * g["lr_mult"]])
@pytest.mark.parametrize("kind", [nm.MuAdam, nm.MuSOAP])
def test_a_check_and_a_step_see_what_a_callback_set(kind, absolute):
    model = build(4)
    optimizer = kind(model, 0.02)
    nm.check_optimizer(model, optimizer)
    for group in optimizer.param_groups:
        group["lr"] = absolute(group)
    if kind is nm.MuAdam and absolute(group) != 2e-3:  # it has one learning rate at base
        nm.check_optimizer(model, optimizer)
        return
    with pytest.raises(nm.MupError, match="has 0.00.*, where 0.* follows from the others"):
        nm.check_optimizer(model, optimizer)
    assert len(told(optimizer)) == 1


# ------------------------------------------------------------------------------------------------ saved and copied


@pytest.mark.parametrize("how", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("ours", OPTIMIZERS)
def test_copies_step_and_are_followed_again_on_request(ours, how):
    model = build()
    optimizer = ours(model, LR)
    model, copied = how((model, optimizer))
    assert [g["lr_mult"] for g in copied.param_groups] == [g["lr_mult"] for g in optimizer.param_groups]
    copied.step()
    for _ in range(2):  # a second call adds nothing
        nm.follow_plan(model, copied)
    copied.param_groups[0]["lr"] = 1.0
    assert len(told(copied)) == 1
    assert not told(optimizer)


@pytest.mark.parametrize(
    ("saved", "ours", "lacks"),
    [
        (nm.MuAdam, nm.MuSGD, "momentum"),
        (nm.MuSGD, nm.MuAdam, "betas"),
        (nm.MuAdam, lambda m: nm.MuAdam(m, impl=torch.optim.RMSprop), "momentum"),
    ],
)
def test_a_state_of_another_kind_of_optimizer_is_refused(saved, ours, lacks):
    """At base groups are the same, and the next step would not find its settings."""
    model = build(base={})
    optimizer = saved(model)
    step(optimizer, model)
    other = ours(model)
    with pytest.raises(nm.MupError, match=f"is not of a {type(other).__name__} .its groups have no '{lacks}'"):
        other.load_state_dict(optimizer.state_dict())
    step(other, model)


@pytest.mark.parametrize("kind", [nm.MuAdam, nm.MuAdamW])
def test_a_state_that_0_2_0_saved_with_fused_goes_on(kind):
    model = build()
    optimizer, again = kind(model, LR), kind(model, LR)
    step(optimizer, model)
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group["fused"] = True
    again.load_state_dict(state)
    step(again, model)
    assert {group["fused"] for group in again.param_groups} == {None}
    again.param_groups[0]["lr"] = 1.0
    assert len(told(again)) == 1  # load_state_dict keeps the hook


# ------------------------------------------------------------------------------------------------ families, parts


@pytest.mark.parametrize(
    ("ours", "impl", "theirs"),
    [(nm.MuAdam, torch.optim.SGD, "MuSGD"), (nm.MuAdamW, torch.optim.SGD, "MuSGD"), (nm.MuSGD, torch.optim.NAdam, "MuAdam")],
)
def test_an_optimizer_of_the_other_family_is_refused(ours, impl, theirs):
    with pytest.raises(nm.MupError, match=rf"those of torch's {impl.__name__} .*use neuralop_mup.{theirs}\(model, lr="):
        ours(build(), impl=impl)

    class OwnSGD(torch.optim.SGD):
        """May be of either: a sign of the gradient, say."""

    ours(build(), impl=OwnSGD, lr=0.1)


def test_two_optimizers_of_parts_of_one_model_are_followed():
    model = build()
    groups = nm.param_groups(model, LR)
    for part in (groups[:1], groups[1:]):
        optimizer = torch.optim.AdamW(part, LR)
        nm.follow_plan(model, optimizer)
        assert not told(optimizer, FOLLOWING["CosineAnnealingLR"])
        with pytest.raises(nm.MupError, match="does not hold"):
            nm.check_optimizer(model, optimizer)


def test_bad_input():
    model = build()
    optimizer = nm.MuAdam(model, LR)
    sgd = torch.optim.SGD(nm.param_groups(model, LR), LR)
    for arguments, match in (
        ((model, optimizer, "adamw"), "no optimizer family 'adamw'"),
        ((model, "adam"), "takes no step hooks"),
        ((model, optimizer, "sgd"), r"follows from the others.*param_groups\(model, lr=…, optimizer='sgd'"),
        ((model, sgd), r"follows from the others.*param_groups\(model, lr=…, optimizer='sgd'"),
        ((build(), optimizer), "holds no parameter of this model"),
        ((model, torch.optim.Adam(model.parameters())), "param_groups"),
        ((torch.nn.Linear(2, 2), optimizer), "not parametrized"),
    ):
        with pytest.raises(nm.MupError, match=match):
            nm.follow_plan(*arguments)


# ------------------------------------------------------------------------------------------------ loops


def test_conjugated_gradients_are_clipped():
    """Of a kernel's conjugate torch makes a gradient that is a conjugate, of which there is no real view."""
    model = build()
    kernel = model.get_parameter("fno_blocks.convs.0.weight.tensor")
    (kernel.conj() * torch.full_like(kernel, 3 - 4j)).real.sum().backward()
    assert kernel.grad.is_conj()
    nm.clip_spectral_grad_value_(model, 3.5)
    torch.testing.assert_close(kernel.grad, torch.full_like(kernel, 3 - 3.5j))
