"""Learned learning rates: the hypergradient against exact derivatives, and everything a training run does with them."""

import copy
import functools
import io
import math

import pytest
import torch

import neuralop_mup as nm
from neuralop_mup.optim.follow import effective_lrs
from support.comparing import differing
from support.models import in_double, small_fno

OPTIMIZERS = {
    "adam": lambda model, **k: nm.MuAdam(model, lr=2e-3, **k),
    "adamw": lambda model, **k: nm.MuAdamW(model, lr=2e-3, weight_decay=0.1, **k),
    "sgd": lambda model, **k: nm.MuSGD(model, lr=1e-2, momentum=0.9, weight_decay=0.1, **k),
    "soap": lambda model, **k: nm.MuSOAP(model, lr=0.02, weight_decay=0.1, **k),
}
SGD = functools.partial(nm.MuSGD, lr=1e-2)
FASTER_KERNELS = functools.partial(nm.MuAdam, lr_mult={"spectral": 2.0})
every_optimizer = pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)


def loss_of(model, seed):
    g = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    x, y = (torch.randn(4, c, 16, generator=g).to(dtype) for c in (2, 3))
    return (model(x) - y).square().mean()


def train(model, optimizer, seeds, scheduler=None):
    for seed in seeds:
        optimizer.zero_grad()
        loss_of(model, seed).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def learned(build, model=None, **settings):
    """A model, its optimizer and the rates that are learned for it."""
    model = model or small_fno()
    optimizer = build(model)
    return model, optimizer, nm.LearnedRates(optimizer, **settings)


def values(rates, kind):
    return {r["name"]: r["value"] for r in rates.latest if r["kind"] == kind}


@every_optimizer
def test_hypergradient_is_the_derivative_of_the_next_loss(build, monkeypatch):
    """Against central differences of the loss in each log multiplier, through a whole step of the optimizer, in float64."""
    monkeypatch.setattr(torch, "cfloat", torch.complex128)  # neuralop's convolution asks for it whatever its weights are
    model, optimizer, rates = learned(build, in_double(small_fno()), hyper_lr=0.3)
    train(model, optimizer, range(3))
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, [3])
    used = rates.mults  # the multipliers of that step
    train(model, optimizer, [4])
    assert set(values(rates, "hypergradient")) == set(used)

    def next_loss(role, shift):
        other, other_optimizer, frozen = learned(build, in_double(small_fno()))
        other.load_state_dict(weights)
        other_optimizer.load_state_dict(copy.deepcopy(state))
        frozen.close()
        for group in other_optimizer.param_groups:
            of = group["learned"]["of"]
            group["learned_mult"] = used[of] * math.exp(shift if of == role else 0)
        train(other, other_optimizer, [3])
        return loss_of(other, 4).item()

    step = 3e-3
    for role in used:
        exact = (next_loss(role, step) - next_loss(role, -step)) / (2 * step)
        assert values(rates, "hypergradient")[role] == pytest.approx(exact, rel=2e-4, abs=1e-9), role


def test_the_rule_worked_out_for_plain_sgd():
    """Δ = -lr·g₀, so h = -lr ⟨g₁, g₀⟩, c = -cos(g₁, g₀) and the multiplier becomes exp(-β c)."""
    model, optimizer, rates = learned(SGD, in_double(small_fno()), hyper_lr=0.5, roles=["spectral"])
    kernels = [p for name, p in model.named_parameters() if nm.summary(model)[name].role == "spectral"]
    grads = []
    for seed in (0, 1):
        optimizer.zero_grad()
        loss_of(model, seed).backward()
        grads.append(torch.cat([torch.view_as_real(p.grad).flatten() for p in kernels]))
        optimizer.step()
    cosine = torch.nn.functional.cosine_similarity(grads[0], grads[1], dim=0).item()
    assert values(rates, "cosine")["spectral"] == pytest.approx(-cosine, rel=1e-6)
    assert rates.mults == {"spectral": pytest.approx(math.exp(0.5 * cosine), rel=1e-6)}


@pytest.mark.parametrize(("build", "lr", "grows"), [(nm.MuSGD, 1e-5, True), (nm.MuAdam, 0.5, False)])
def test_a_rate_that_is_too_small_grows_and_one_too_large_shrinks(build, lr, grows):
    model, optimizer, rates = learned(functools.partial(build, lr=lr), hyper_lr=1.0 if grows else 0.05)
    train(model, optimizer, [0] * 20)
    assert all((mult > 1) == grows for mult in rates.mults.values()), rates.mults
    assert (max(rates.mults.values()) == pytest.approx(32)) == grows  # and no further


def test_a_scheduler_keeps_its_learning_rates_and_the_step_is_made_with_both():
    model, optimizer, rates = learned(functools.partial(nm.MuAdamW, lr=2e-3), hyper_lr=0.2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with nm.Monitor(model, optimizer, every=1) as monitor:
        train(model, optimizer, range(3), scheduler)
    recorded = {r["name"]: r["value"] for r in monitor.latest if r["kind"] == "learned_mult"}
    for group in optimizer.param_groups:
        assert group["lr"] == pytest.approx(2e-3 * group["lr_mult"] / 8)
        mult = rates.mults[group["learned"]["of"]]
        assert mult != 1 and group["learned_mult"] == mult == recorded[group["name"]]
        assert effective_lrs(optimizer)[group["name"]] == pytest.approx(group["lr"] * mult)
    nm.check_optimizer(model, optimizer)


def test_a_cooldown_begins_at_the_rates_that_were_learned():
    """From what they are to zero, as 1 − √(the part that is over): it began at the scheduler's alone."""
    model, optimizer, _ = learned(OPTIMIZERS["soap"], hyper_lr=1.0, until=20)
    train(model, optimizer, range(20))
    before = effective_lrs(optimizer)
    assert any(group["learned_mult"] > 1.5 for group in optimizer.param_groups)
    optimizer.cooldown(16)
    assert effective_lrs(optimizer) == pytest.approx(before)
    train(model, optimizer, range(4))
    length_mults = {group["name"]: group["length_mult"] for group in optimizer.param_groups}
    assert length_mults == pytest.approx(dict.fromkeys(before, 1 - math.sqrt(3 / 16)))


@every_optimizer
def test_resumed_training_is_bit_equal(build):
    """Everything is in the optimizer's state dict, through a file that torch reads without pickled code."""
    model, optimizer, rates = learned(build, hyper_lr=0.1, until=5)
    train(model, optimizer, range(3))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    weights = copy.deepcopy(model.state_dict())
    train(model, optimizer, range(3, 8))
    again, other, their_rates = learned(build, hyper_lr=0.1, until=5)
    again.load_state_dict(weights)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    train(again, other, range(3, 8))
    assert rates.mults == their_rates.mults and differing(model, again) == 0


@every_optimizer
def test_learned_multipliers_are_what_lr_mult_takes(build):
    """A step with learned multipliers is, to rounding, a step of an optimizer that was given them, decay included."""
    with_master = functools.partial(build, lr_mult={"spectral": 2.0})
    model, optimizer, rates = learned(with_master, in_double(small_fno()), hyper_lr=0.5, until=2)
    train(model, optimizer, range(3))
    mult = rates.lr_mult
    assert mult["spectral"] == pytest.approx(2 * rates.mults["spectral"])
    a, first, closed = learned(with_master, in_double(small_fno()))
    closed.close()
    for group in first.param_groups:
        group["learned_mult"] = rates.mults[group["learned"]["of"]]
    train(a, first, [7])
    b = in_double(small_fno())
    train(b, build(b, lr_mult=mult), [7])
    torch.testing.assert_close(list(a.parameters()), list(b.parameters()), rtol=1e-12, atol=1e-14)


def test_groups_are_split_with_what_belongs_to_their_parameters():
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


def test_roles_that_are_not_named_keep_their_rates_and_are_trained_alike():
    """A larger model's optimizer is handed all of them: those of hidden layers by hand, the readout's learned on top."""
    adam = functools.partial(nm.MuAdam, lr_mult={"hidden": 3.0, "readout": 2.0})
    model, optimizer, rates = learned(adam, roles=["readout"], hyper_lr=0.5)
    usual = small_fno()
    train(model, optimizer, range(2))  # the second step is the first whose rate was learned
    train(usual, adam(usual), range(2))
    others = dict.fromkeys(("input", "vector", "spectral"), 1.0)
    assert rates.lr_mult == pytest.approx({**others, "hidden": 3.0, "readout": 2.0 * rates.mults["readout"]})
    for row in nm.summary(model).rows:
        same = torch.equal(model.get_parameter(row.name), usual.get_parameter(row.name))
        assert same == (row.role != "readout"), row.name


def test_until_and_close_keep_what_was_learned():
    model, optimizer, rates = learned(nm.MuAdam, until=3)
    train(model, optimizer, range(3))
    kept = rates.mults
    train(model, optimizer, range(3, 6))
    assert rates.mults == kept and set(kept.values()) != {1.0}
    rates.close()
    again = nm.LearnedRates(optimizer)  # goes on from there
    assert again.mults == kept
    train(model, optimizer, range(2))
    assert again.mults != kept


@pytest.mark.parametrize("taken", [0, 2])
def test_a_gradient_that_is_not_finite_changes_nothing(taken):
    """At the first step it is MuSOAP that refuses, and a state holds no weights in the place of updates then."""
    model, optimizer, rates = learned(OPTIMIZERS["soap"])
    train(model, optimizer, range(taken))
    mults, before = rates.mults, copy.deepcopy(model)
    loss_of(model, 0).backward()
    next(model.parameters()).grad.fill_(math.nan)
    with pytest.raises(nm.MupError, match="not finite"):
        optimizer.step()
    assert rates.mults == mults and differing(model, before) == 0
    assert bool(optimizer.state_dict()["learned_rates"]["last"]) == bool(taken)
    train(model, optimizer, range(2))  # and training may go on


def with_a_layer_that_was_added():
    model = small_fno()
    optimizer = nm.MuAdam(model)
    model.extra = torch.nn.Linear(2, 2)
    return nm.LearnedRates(optimizer)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: learned(nm.MuAdam, hyper_lr=0), "hyper_lr is 0; give a number above 0"),
        (lambda: learned(nm.MuAdam, hyper_lr="fast"), "hyper_lr is 'fast'"),
        (lambda: learned(nm.MuAdam, roles=["spectrum"]), "no role 'spectrum' to learn a rate for"),
        (lambda: learned(nm.MuAdam, until=0), "until is 0"),
        (lambda: nm.LearnedRates(torch.optim.Adam(small_fno().parameters())), "held to a plan, and this Adam is not"),
        (lambda: nm.LearnedRates({}), "held to a plan, and this dict is not"),
        (
            lambda: nm.LearnedRates(torch.optim.lr_scheduler.StepLR(nm.MuAdam(small_fno()), 1).optimizer),
            "build LearnedRates before the scheduler",
        ),
        (with_a_layer_that_was_added, "'extra.bias' was added"),
        (lambda: nm.LearnedRates(learned(nm.MuAdam)[1]), "learned already"),
        (lambda: learned(nm.MuAdam)[1].step(lambda: 0), "call backward"),
        # Kernels have a group of their own in both.
        (
            lambda: learned(FASTER_KERNELS, roles=["spectral"])[1].load_state_dict(FASTER_KERNELS(small_fno()).state_dict()),
            "saved without learned rates",
        ),
    ],
)
def test_what_it_cannot_do(call, message):
    with pytest.raises(nm.MupError, match=message):
        call()
