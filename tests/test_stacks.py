"""Stacks are kept from step to step, and made anew where anything that they are made of has changed."""

import copy

import pytest
import torch

import neuralop_mup as nm
from support import differing, in_double, random_gradients, small_fno

KINDS = (nm.MuMuon, nm.MuSOAP)


def two_runs(kind, change, steps=6, **settings):
    """Weights with stacks that were kept over a change of the optimizer, and with ones made anew at each step."""
    models = [in_double(small_fno()) for _ in range(2)]
    optimizers = [kind(model, lr=0.05, **settings) for model in models]
    for seed in range(steps):
        for i, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            random_gradients(model, seed)
            if seed == 3:
                change(model, optimizer)
            if i:
                optimizer._stacks.clear()
            optimizer.step()
    return models


def moved_states(model, optimizer):
    for state in optimizer.state.values():
        for value in state.values():
            if torch.is_tensor(value):
                value.data = value.data.clone()


def new_weights(model, optimizer):
    for p in model.parameters():
        p.data = p.data.clone() * 0.5


def no_gradients(model, optimizer):
    for p in list(model.parameters())[::2]:
        p.grad = None


def loaded(model, optimizer):
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def of_period(n):
    def change(model, optimizer):
        for group in optimizer.param_groups:
            if group["layouts"]:
                group["period"] = n

    return change


CHANGES = {
    "period 1": of_period(1),
    "period 3": of_period(3),
    "states moved": moved_states,
    "weights replaced": new_weights,
    "some without a gradient": no_gradients,
    "state loaded": loaded,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(kind, change):
    one, other = two_runs(kind, CHANGES[change])
    assert differing(one, other) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", ["now", "next"])
def test_gradients_that_are_views_of_another_kind(kind, check):
    """Conjugated, as autograd leaves them, and expanded."""
    models = [small_fno() for _ in range(2)]
    optimizers = [kind(model, check=check) for model in models]
    for seed in range(2):
        for i, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            random_gradients(model, seed)
            for p in model.parameters():
                if p.is_complex():
                    p.grad = p.grad.conj() if i else p.grad.conj().resolve_conj()
                elif p.ndim == 1:
                    p.grad = p.grad[:1].expand(p.shape) if i else p.grad[:1].expand(p.shape).clone()
            optimizer.step()
    assert differing(*models) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_gradient_that_is_conjugated_counts_as_zero(kind):
    model = small_fno()
    optimizer = kind(model, check="next")
    random_gradients(model)
    p = next(p for p in model.parameters() if p.is_complex())
    p.grad.fill_(torch.nan)
    p.grad = p.grad.conj()
    optimizer.step()
    momentum = optimizer.state[p][optimizer.sharded_state[0]]
    assert torch.view_as_real(momentum).abs().max() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_states_of_the_last_release_load(kind):
    """Their groups have neither foreach nor capturable nor check, and pairs of real numbers no letter."""
    model, other = small_fno(), small_fno()
    optimizer, resumed = kind(model), kind(other)
    random_gradients(model)
    optimizer.step()
    old = copy.deepcopy(optimizer.state_dict())
    for group in old["param_groups"]:
        for key in ("foreach", "capturable", "check"):
            del group[key]
    resumed.load_state_dict(old)
    other.load_state_dict(model.state_dict())
    for m, o in ((model, optimizer), (other, resumed)):
        random_gradients(m, 1)
        o.step()
    assert differing(model, other) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_was_converted_after_a_step_is_refused(kind):
    model = small_fno()
    optimizer = kind(model)
    random_gradients(model)
    optimizer.step()
    in_double(model)
    random_gradients(model)
    before = copy.deepcopy(model)
    with pytest.raises(nm.MupError, match="are torch.float64 now, and their averages torch.float32: convert the model"):
        optimizer.step()
    assert differing(model, before) == 0
