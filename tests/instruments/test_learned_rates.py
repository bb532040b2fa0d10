"""Learned learning rates: the hypergradient against exact derivatives, and everything that training does with them."""

import copy
import functools
import io
import math

import pytest
import torch

import neuralop_mup as nm
from neuralop_mup.optim.follow import effective_lrs
from support.comparing import differing
from support.errors import refused
from support.models import in_double, small_fno
from support.training import backward
from support.training import train_small as train

OPTIMIZERS = {
    "adamw": lambda model, **k: nm.MuAdamW(model, lr=2e-3, weight_decay=0.1, **k),
    "sgd": lambda model, **k: nm.MuSGD(model, lr=1e-2, momentum=0.9, weight_decay=0.1, **k),
    "soap": lambda model, **k: nm.MuSOAP(model, lr=0.02, weight_decay=0.1, **k),
}
FASTER_KERNELS = functools.partial(nm.MuAdam, lr_mult={"spectral": 2.0})
every_optimizer = pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)


def learned(build, model=None, **settings):
    """Return a model, its optimizer and its LearnedRates."""
    model = model or small_fno(width=8)
    optimizer = build(model)
    return model, optimizer, nm.LearnedRates(optimizer, **settings)


def values(rates, kind):
    return {r["name"]: r["value"] for r in rates.latest if r["kind"] == kind}


def double_fno():
    return in_double(small_fno(width=8))


@every_optimizer
def test_hypergradient_is_the_derivative_of_the_next_loss(build, monkeypatch):
    """Against central differences of the loss in each log multiplier, through a whole step of the optimizer, in float64."""
    monkeypatch.setattr(torch, "cfloat", torch.complex128)  # neuralop's convolution uses it whatever its weights are
    model, optimizer, rates = learned(build, double_fno(), hyper_lr=0.3)
    train(model, optimizer, range(3))
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, [3])
    used = rates.mults  # the multipliers of that step
    train(model, optimizer, [4])
    found = values(rates, "hypergradient")

    def next_loss(role, shift):
        other, other_optimizer, frozen = learned(build, double_fno())
        other.load_state_dict(weights)
        other_optimizer.load_state_dict(copy.deepcopy(state))
        frozen.close()
        for group in other_optimizer.param_groups:
            of = group["learned"]["of"]
            group["learned_mult"] = used[of] * math.exp(shift if of == role else 0)
        train(other, other_optimizer, [3])
        return backward(other, other_optimizer, 4).item()

    step = 3e-3
    exact = {role: (next_loss(role, step) - next_loss(role, -step)) / (2 * step) for role in used}
    assert found == pytest.approx(exact, rel=2e-4, abs=1e-9)


def test_the_rule_worked_out_for_plain_sgd():
    """Δ = -lr·g₀, so h = -lr ⟨g₁, g₀⟩, c = -cos(g₁, g₀) and the multiplier becomes exp(-β c)."""
    model, optimizer, rates = learned(nm.MuSGD, double_fno(), hyper_lr=0.5, roles=["spectral"])
    kernels = [p for name, p in model.named_parameters() if nm.summary(model)[name].role == "spectral"]
    grads = []
    for seed in (0, 1):
        train(model, optimizer, [seed])
        grads.append(torch.cat([torch.view_as_real(p.grad).flatten() for p in kernels]))
    cosine = torch.nn.functional.cosine_similarity(grads[0], grads[1], dim=0).item()
    assert values(rates, "cosine")["spectral"] == pytest.approx(-cosine, rel=1e-6)
    assert rates.mults == {"spectral": pytest.approx(math.exp(0.5 * cosine), rel=1e-6)}


@pytest.mark.parametrize(("build", "lr", "grows"), [(nm.MuSGD, 1e-5, True), (nm.MuAdam, 0.5, False)])
def test_a_rate_that_is_too_small_grows_and_one_too_large_shrinks(build, lr, grows):
    model, optimizer, rates = learned(functools.partial(build, lr=lr), hyper_lr=1.0 if grows else 0.05)
    train(model, optimizer, [0] * 10)
    assert all((mult > 1) == grows for mult in rates.mults.values()), rates.mults
    assert (max(rates.mults.values()) == pytest.approx(32)) == grows  # the largest multiplier


def test_a_step_uses_the_rate_of_the_scheduler_times_the_learned_one():
    model, optimizer, rates = learned(functools.partial(nm.MuAdamW, lr=2e-3), hyper_lr=0.2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with nm.Monitor(model, optimizer, every=1) as monitor:
        train(model, optimizer, range(3), scheduler)
    recorded = values(monitor, "learned_mult")
    for group in optimizer.param_groups:
        assert group["lr"] == pytest.approx(2e-3 * group["lr_mult"] / 8)
        mult = rates.mults[group["learned"]["of"]]
        assert mult != 1 and group["learned_mult"] == mult == recorded[group["name"]]
        assert effective_lrs(optimizer)[group["name"]] == pytest.approx(group["lr"] * mult)
    nm.check_optimizer(model, optimizer)


def test_a_cooldown_begins_at_the_learned_rates():
    """It used to begin at the scheduler's. It falls to zero as 1 − √(fraction of the cooldown)."""
    model, optimizer, _ = learned(OPTIMIZERS["soap"], hyper_lr=1.0, until=16)
    train(model, optimizer, range(16))
    before = effective_lrs(optimizer)
    assert any(group["learned_mult"] > 1.5 for group in optimizer.param_groups)
    optimizer.cooldown(16)
    assert effective_lrs(optimizer) == pytest.approx(before)
    train(model, optimizer, range(4))
    length_mults = {group["name"]: group["length_mult"] for group in optimizer.param_groups}
    assert length_mults == pytest.approx(dict.fromkeys(before, 1 - math.sqrt(3 / 16)))


@every_optimizer
def test_resumed_training_is_bit_equal(build):
    """The optimizer's state dict holds everything, through a file that torch reads without pickled code."""
    model, optimizer, rates = learned(build, hyper_lr=0.1, until=5)
    train(model, optimizer, range(3))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    weights = copy.deepcopy(model.state_dict())
    train(model, optimizer, range(3, 7))
    resumed, resumed_optimizer, resumed_rates = learned(build, hyper_lr=0.1, until=5)
    resumed.load_state_dict(weights)
    file.seek(0)
    resumed_optimizer.load_state_dict(torch.load(file, weights_only=True))
    train(resumed, resumed_optimizer, range(3, 7))
    assert rates.mults == resumed_rates.mults and differing(model, resumed) == 0


@every_optimizer
def test_lr_mult_takes_learned_multipliers(build):
    """A step with learned multipliers equals, to rounding, a step of an optimizer with these ``lr_mult``, decay included."""
    build = functools.partial(build, lr_mult={"spectral": 2.0})
    model, optimizer, rates = learned(build, double_fno(), hyper_lr=0.5, until=2)
    train(model, optimizer, range(3))
    mult = rates.lr_mult
    assert mult["spectral"] == pytest.approx(2 * rates.mults["spectral"])
    a, first, closed = learned(build, double_fno())
    closed.close()
    for group in first.param_groups:
        group["learned_mult"] = rates.mults[group["learned"]["of"]]
    train(a, first, [7])
    b = double_fno()
    train(b, build(b, lr_mult=mult), [7])
    torch.testing.assert_close(list(a.parameters()), list(b.parameters()), rtol=1e-12, atol=1e-14)


def test_groups_are_split_by_role():
    optimizer = nm.MuAdam(model := small_fno(width=4))  # at base one group holds every role
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "name": "weight of the loss"})
    rates = nm.LearnedRates(optimizer)
    train(model, optimizer, range(2))
    learned_names = {group["name"] for group in optimizer.param_groups if "learned_mult" in group}
    assert set(rates.mults) == learned_names == set(nm.rules.ROLES)
    _, soap, _ = learned(nm.MuSOAP, roles=["vector"])
    assert {"aux vector", "aux rest"} <= {group["name"] for group in soap.param_groups}
    for group in soap.param_groups:
        assert len(group["param_names"]) == len(group["params"])
        assert group["layouts"] is None or len(group["layouts"]) == len(group["params"])


def test_other_roles_keep_their_rates():
    """``lr_mult`` of a larger model holds all roles: "hidden" set by hand, "readout" set by hand and then learned."""
    adam = functools.partial(nm.MuAdam, lr_mult={"hidden": 3.0, "readout": 2.0})
    model, optimizer, rates = learned(adam, roles=["readout"], hyper_lr=0.5)
    usual = small_fno(width=8)
    train(model, optimizer, range(2))  # the second step is the first with a learned rate
    train(usual, adam(usual), range(2))
    others = dict.fromkeys(("input", "vector", "spectral"), 1.0)
    assert rates.lr_mult == pytest.approx({**others, "hidden": 3.0, "readout": 2.0 * rates.mults["readout"]})
    for row in nm.summary(model).rows:
        same = torch.equal(model.get_parameter(row.name), usual.get_parameter(row.name))
        assert same == (row.role != "readout"), row.name


def test_until_and_close_keep_learned_multipliers():
    model, optimizer, rates = learned(nm.MuAdam, until=3)
    train(model, optimizer, range(3))
    kept = rates.mults
    train(model, optimizer, range(2))
    assert rates.mults == kept and set(kept.values()) != {1.0}
    rates.close()
    again = nm.LearnedRates(optimizer)
    assert again.mults == kept
    train(model, optimizer, range(2))
    assert again.mults != kept


@pytest.mark.parametrize("taken", [0, 2])
def test_a_gradient_that_is_not_finite_changes_nothing(taken):
    """At the first step MuSOAP raises. The state must not hold weights in place of updates then."""
    model, optimizer, rates = learned(OPTIMIZERS["soap"])
    train(model, optimizer, range(taken))
    mults, before = rates.mults, copy.deepcopy(model)
    backward(model, optimizer)
    next(model.parameters()).grad.fill_(math.nan)
    with pytest.raises(nm.MupError, match="finite"):
        optimizer.step()
    assert rates.mults == mults and differing(model, before) == 0
    assert bool(optimizer.state_dict()["learned_rates"]["last"]) == bool(taken)
    train(model, optimizer, range(2))  # training can continue


def with_an_added_layer():
    model = small_fno()
    optimizer = nm.MuAdam(model)
    model.extra = torch.nn.Linear(2, 2)
    return nm.LearnedRates(optimizer)


def with_a_state_without_learned_rates():
    state = FASTER_KERNELS(small_fno(width=8)).state_dict()
    # Kernels have a group of their own in both.
    learned(FASTER_KERNELS, roles=["spectral"])[1].load_state_dict(state)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: learned(nm.MuAdam, hyper_lr=0), "hyper_lr 0"),
        (lambda: learned(nm.MuAdam, hyper_lr="fast"), "hyper_lr 'fast'"),
        (lambda: learned(nm.MuAdam, roles=["spectrum"]), "'spectrum' 'spectral'"),
        (lambda: learned(nm.MuAdam, until=0), "until 0"),
        (lambda: nm.LearnedRates(torch.optim.Adam(small_fno().parameters())), "Adam MuAdamW"),
        (lambda: nm.LearnedRates({}), "dict"),
        (lambda: nm.LearnedRates(learned(nm.MuAdam)[1]), "close()"),
        (lambda: learned(nm.MuAdam)[1].step(lambda: 0), "closure backward()"),
        (lambda: nm.LearnedRates(torch.optim.lr_scheduler.StepLR(nm.MuAdam(small_fno()), 1).optimizer), "scheduler"),
        (with_an_added_layer, "'extra.bias'"),
        (with_a_state_without_learned_rates, "LearnedRates"),
    ],
)
def test_wrong_input(call, names):
    with refused(names):
        call()
