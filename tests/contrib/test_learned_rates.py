"""Learned learning rates: the hypergradient against exact derivatives, and everything that training does with them."""

import copy
import functools
import io
import math

import pytest
import torch

import neuralop_mup as nm
from neuralop_mup.optim.learning_rate import effective_lrs
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


def test_a_step_uses_the_rate_of_the_scheduler_times_the_learned_one():
    model, optimizer, rates = learned(functools.partial(nm.MuAdamW, lr=2e-3), hyper_lr=0.2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(model, optimizer, range(3), scheduler)
    assert 1 not in rates.mults.values()
    for group in optimizer.param_groups:
        mult = rates.mults[group["learned"]["of"]]
        assert effective_lrs(optimizer)[group["name"]] == pytest.approx(2e-3 * group["lr_mult"] / 8 * mult)


def test_a_cooldown_begins_at_the_learned_rates():
    """It used to begin at the scheduler's."""
    model, optimizer, _ = learned(OPTIMIZERS["soap"], hyper_lr=1.0, until=16)
    train(model, optimizer, range(16))
    before = effective_lrs(optimizer)
    assert any(group["learned_mult"] > 1.5 for group in optimizer.param_groups)
    optimizer.cooldown(16)
    assert effective_lrs(optimizer) == pytest.approx(before)


@every_optimizer
def test_resumed_training_is_bit_equal(build):
    """The optimizer's state dict holds everything, through a file that torch reads without pickled code."""
    model, optimizer, rates = learned(build, hyper_lr=0.1, until=5)
    train(model, optimizer, range(3))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    weights = copy.deepcopy(model.state_dict())
    train(model, optimizer, range(3, 5))
    kept = rates.mults
    train(model, optimizer, range(5, 7))
    resumed, resumed_optimizer, resumed_rates = learned(build, hyper_lr=0.1, until=5)
    resumed.load_state_dict(weights)
    file.seek(0)
    resumed_optimizer.load_state_dict(torch.load(file, weights_only=True))
    train(resumed, resumed_optimizer, range(3, 7))
    assert rates.mults == resumed_rates.mults == kept  # nothing is learned after `until`
    assert differing(model, resumed) == 0


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
    ],
)
def test_wrong_input(call, names):
    with refused(names):
        call()
