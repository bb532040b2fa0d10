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


def spectral_gradients(model, optimizer, seeds):
    """Take a step per seed. Return the gradients of the first Fourier kernel and the values before each step."""
    grads, weights = [], []
    kernel = model.fno_blocks.convs[0].weight.tensor
    for seed in seeds:
        weights.append(torch.view_as_real(kernel.detach().clone()))
        train(model, optimizer, [seed])
        grads.append(torch.view_as_real(kernel.grad.clone()))
    return grads, [*weights, torch.view_as_real(kernel.detach().clone())]


def test_rates_by_layer_follow_the_published_rule():
    """SGDLW-SGD with the exp link (source 003, 2.2 and 2.3): η = e^a, a ← a − β g₁·Δ₀ with Δ₀ = −η g₀, for each layer."""
    model, optimizer, rates = learned(nm.MuSGD, double_fno(), by="layer", normalize=False, hyper_lr=1e9)
    assert set(rates.mults) == {row.owner for row in nm.summary(model).rows}
    layer = ["fno_blocks.convs.0.weight.tensor", "fno_blocks.convs.0.bias"]
    grads, moved = [], []
    for seed in (0, 1):
        before = [model.get_parameter(name).detach().clone() for name in layer]
        train(model, optimizer, [seed])
        moved.append([(model.get_parameter(n).detach() - b).ravel() for n, b in zip(layer, before, strict=True)])
        grads.append([model.get_parameter(name).grad.ravel() for name in layer])
    h = sum(torch.vdot(g, d).real.item() for g, d in zip(grads[1], moved[0], strict=True))
    assert rates.mults["fno_blocks.convs.0"] == pytest.approx(math.exp(-1e9 * h), rel=1e-6) and abs(1e9 * h) > 1e-3
    assert len(set(rates.mults.values())) > 8  # some are at a bound
    with refused("role layer"):
        rates.lr_mult  # noqa: B018


@pytest.mark.parametrize("normalize", [False, True])
def test_rates_by_parameter_follow_the_published_rule(normalize):
    """SGDPW-SGD (source 003, 2.3): a ← a − β g₁ Δ₀ for each number, and the next update is Δ₁ = −η e^a g₁."""
    beta = 0.5 if normalize else 1e10
    model, optimizer, rates = learned(nm.MuSGD, double_fno(), by="parameter", normalize=normalize, hyper_lr=beta)
    (g0, g1), (w0, w1, w2) = spectral_gradients(model, optimizer, [0, 1])
    h = g1 * (w1 - w0)
    mult = torch.exp((-beta * (h.sign() if normalize else h)).clamp(-math.log(32), math.log(32)))
    torch.testing.assert_close(rates.mults["fno_blocks.convs.0.weight.tensor"], mult)
    assert mult.std() > 0.01
    eta = ((w0 - w1) * g0).sum() / g0.square().sum()
    torch.testing.assert_close(w2 - w1, -eta * mult * g1, rtol=1e-6, atol=1e-12)


def test_rates_by_parameter_solve_the_sources_quadratic():
    """f(x) = xᵀ diag(100, 1) x: one rate per number brings the flat direction to the steep one's speed (source 003, 2.3)."""

    def final(by):
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        nm.parametrize(model, base=lambda: torch.nn.Linear(1, 1, bias=False), init=False)
        optimizer = nm.MuSGD(model, lr=1e-3)
        if by:
            nm.LearnedRates(optimizer, by=by, hyper_lr=0.1)
        for _ in range(60):
            optimizer.zero_grad()
            (model.weight.square() @ torch.tensor([100.0, 1.0])).sum().backward()
            optimizer.step()
        return model.weight[0, 1].abs().item()

    assert final("parameter") < 0.5 * final(None)


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


@pytest.mark.parametrize("by", ["role", "layer", "parameter"])
@every_optimizer
def test_resumed_training_is_bit_equal(build, by):
    """The optimizer's state dict holds everything, through a file that torch reads without pickled code."""
    model, optimizer, rates = learned(build, hyper_lr=0.1, until=5, by=by)
    train(model, optimizer, range(3))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    weights = copy.deepcopy(model.state_dict())
    train(model, optimizer, range(3, 5))
    kept = rates.mults
    train(model, optimizer, range(5, 7))
    resumed, resumed_optimizer, resumed_rates = learned(build, hyper_lr=0.1, until=5, by=by)
    resumed.load_state_dict(weights)
    file.seek(0)
    resumed_optimizer.load_state_dict(torch.load(file, weights_only=True))
    train(resumed, resumed_optimizer, range(3, 7))
    for mults in (resumed_rates.mults, kept):  # nothing is learned after `until`
        assert len(mults) == len(rates.mults)
        assert all(torch.equal(torch.as_tensor(mult), torch.as_tensor(rates.mults[name])) for name, mult in mults.items())
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
        (lambda: learned(nm.MuAdam, by="layers"), "'layers' 'layer'"),
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
