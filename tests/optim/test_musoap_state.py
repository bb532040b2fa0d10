"""States of MuSOAP: resumed, of another precision or release, refused; and batches that are kept from step to step."""

import copy

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from support.comparing import differing
from support.models import KERNEL, built, in_double, small_fno
from support.training import random_gradients, step


def assert_goes_on_alike(model, optimizer, resumed, other, state=None):
    """Load one into the other: the next step of both is the same, bit for bit."""
    other.load_state_dict(state or copy.deepcopy(optimizer.state_dict()))
    resumed.load_state_dict(model.state_dict())
    step(optimizer, model, seed=12)
    step(other, resumed, seed=12)
    assert differing(model, resumed) == 0


@pytest.mark.parametrize("wide", [False, True], ids=["to float32", "to float64"])
def test_a_state_takes_the_precision_of_the_model(wide):
    """It was refused at the next step, with the advice that was followed. Averages are the same numbers, rounded."""
    one, other = in_double(small_fno()), small_fno()
    one, other = (other, one) if wide else (one, other)
    optimizer, resumed = nm.MuSOAP(one), nm.MuSOAP(other)
    for seed in range(4):
        step(optimizer, one, seed)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        for name, value in resumed.state[q].items():
            if torch.is_tensor(value) and name != "step":
                assert value.dtype == (q.dtype if value.is_complex() else q.dtype.to_real()), name
                torch.testing.assert_close(value, optimizer.state[p][name].to(value.dtype), rtol=0, atol=0)
    step(resumed, other, 4)
    assert all(p.isfinite().all() for p in other.parameters())


def test_bases_of_half_precision_stay_in_single_when_loaded():
    """torch casts states to their parameters' type: a run that was resumed went on with other bases."""
    models = [small_fno(), small_fno()]
    for p in (p for model in models for p in model.parameters() if not p.is_complex()):
        p.data = p.data.bfloat16()
    optimizer, other = map(nm.MuSOAP, models)
    for seed in range(12):
        step(optimizer, models[0], seed)
    assert_goes_on_alike(models[0], optimizer, models[1], other)


def test_a_state_in_memory_is_not_changed_by_what_loaded_it():
    """Two cooldowns may go on from one: AdamW's steps were counted in it."""
    model, optimizer, again = built()
    step(optimizer, model)
    state = copy.deepcopy(optimizer.state_dict())
    resumed = nm.MuSOAP(again)
    resumed.load_state_dict(state)
    step(resumed, again)
    saved = [value["step"] for value in state["state"].values()]
    assert saved == [1] * len(saved) and {float(own["step"]) for own in resumed.state.values()} == {2}


def test_a_state_of_0_2_0_loads():
    """It had settings of which only the defaults are left, and no check."""
    model, optimizer, again = built()
    resumed = nm.MuSOAP(again)
    step(optimizer, model)
    old = copy.deepcopy(optimizer.state_dict())
    for group in old["param_groups"]:
        group.update(nesterov=True, size="schatten", basis_beta=0.95)
        del group["check"]
    assert_goes_on_alike(model, optimizer, again, resumed, old)
    assert not {"nesterov", "size", "basis_beta"} & set(resumed.state_dict()["param_groups"][0])


def test_a_state_that_is_empty_for_some_parameters():
    """``optimizer.state[p]`` makes an empty one of a parameter that has not moved, and it was refused when loaded."""
    model, optimizer, copied = built()
    random_gradients(model)
    model.get_parameter(KERNEL).grad = None
    optimizer.step()
    assert not optimizer.state[model.get_parameter(KERNEL)]
    assert_goes_on_alike(model, optimizer, copied, nm.MuSOAP(copied))


def saved(**changes):
    """A state after a step, with other settings."""
    model, optimizer, _ = built()
    step(optimizer, model)
    state = optimizer.state_dict()
    state["param_groups"][0].update(changes)
    return state


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: nm.MuSOAP(small_fno(separable=True)).state_dict(), "layouts differ"),
        (lambda: nm.MuAdam(small_fno()).state_dict(), "layouts differ"),
        (lambda: {"model": {}}, "layouts differ"),
        (lambda: [], "layouts differ"),
        # The same parameters under another base: torch would take AdamW's learning rates from the file.
        (
            lambda: nm.MuSOAP(nm.parametrize(FNO((8,), 2, 3, 12, n_layers=2), base={"hidden_channels": 6})).state_dict(),
            "(r?u?l?e?_?mult) of group 'aux readout'",
        ),
        (lambda: saved(size="rms"), "saved with size='rms', which MuSOAP has no more"),
        (lambda: saved(nesterov=False), "saved with nesterov=False"),
        (lambda: saved(basis_beta=0.99), "saved with basis_beta=0.99"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state, message):
    optimizer = nm.MuSOAP(small_fno())
    before = [g["lr"] for g in optimizer.param_groups]
    with pytest.raises(nm.MupError, match=message):
        optimizer.load_state_dict(state())
    assert [g["lr"] for g in optimizer.param_groups] == before


# ---------------------------------------------------------------------------------------------- batches that are kept


def tensors(optimizer):
    return [x for state in optimizer.state.values() for x in state.values() if torch.is_tensor(x)]


CHANGES = {
    "period 1": lambda model, optimizer: [group.update(period=1) for group in optimizer.param_groups],
    "period 3": lambda model, optimizer: [group.update(period=3) for group in optimizer.param_groups],
    "states moved": lambda model, optimizer: [setattr(x, "data", x.data.clone()) for x in tensors(optimizer)],
    "weights replaced": lambda model, optimizer: [setattr(p, "data", p.data * 0.5) for p in model.parameters()],
    "some without a gradient": lambda model, optimizer: [setattr(p, "grad", None) for p in [*model.parameters()][::2]],
    "state loaded": lambda model, optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change):
    """Batches are made anew where anything that they are made of has changed."""
    models = [in_double(small_fno()) for _ in range(2)]
    optimizers = [nm.MuSOAP(model, lr=0.05) for model in models]
    for seed in range(6):
        for i, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            random_gradients(model, seed)
            if seed == 3:
                CHANGES[change](model, optimizer)
            if i:
                optimizer._batches.clear()
            optimizer.step()
    assert differing(*models) == 0
