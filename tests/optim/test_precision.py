"""Precision: models in double, autocast, and training that goes on in another one. A row is a training of nine steps."""

import copy

import pytest
import torch

import neuralop_mup as nm
from support.models import in_double, small_fno

OPTIMIZERS = {"MuSOAP": lambda model: nm.MuSOAP(model, steps=9), "MuAdam": lambda model: nm.MuAdam(model, lr=4e-3)}


def fno():
    """Without neuralop's grid, which stays in the precision of its first use."""
    return small_fno(positional_embedding=None)


def in_single(model):
    for p in model.parameters():
        p.data = p.data.to(torch.complex64 if p.is_complex() else torch.float32)
    return model


def trained(model, optimizer, steps, half=False):
    """In the model's own precision; the loss of each step."""
    losses = []
    for t in steps:
        optimizer.zero_grad()
        x, y = torch.randn(2, 4, 3, 16, generator=torch.Generator().manual_seed(t), dtype=torch.float64)
        dtype = next(p.dtype for p in model.parameters() if not p.is_complex())
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            prediction = model(x[:, :2].to(dtype))
        loss = (prediction.to(dtype) - y.to(dtype)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def on_the_way(convert, model, optimizer, make):
    """``model.double()`` with its kernels, in the middle of a training."""
    losses = trained(model, optimizer, range(5))
    return losses + trained(convert(model), optimizer, range(5, 9))


def loaded(convert, model, optimizer, make):
    """Into another model and its optimizer."""
    losses = trained(model, optimizer, range(5))
    other = convert(copy.deepcopy(model))
    resumed = make(other)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return losses + trained(other, resumed, range(5, 9))


#: Whether it begins in double, and what is done; None for nothing.
CASES = {
    "double": (True, None),
    "double on the way": (False, lambda *own: on_the_way(in_double, *own)),
    "single on the way": (True, lambda *own: on_the_way(in_single, *own)),
    "a state loaded into double": (False, lambda *own: loaded(in_double, *own)),
    "a state loaded into single": (True, lambda *own: loaded(in_single, *own)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_in_another_precision_is_the_same(case, name):
    """On the way it ended in torch's "expected dtype float for `end` but got dtype double". Errors are those of float32 but
    for the bases of what the first gradients leave open."""
    wide, how = CASES[case]
    model = in_double(fno()) if wide else fno()
    optimizer = OPTIMIZERS[name](model)
    usual = fno()
    want = trained(usual, OPTIMIZERS[name](usual), range(9))
    got = trained(model, optimizer, range(9)) if how is None else how(model, optimizer, OPTIMIZERS[name])
    assert got == pytest.approx(want, rel=0.05 if name == "MuSOAP" else 1e-3)


@pytest.mark.parametrize("convert", [in_double, in_single])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_averages_follow_the_precision_of_the_weights(convert, name):
    model = fno() if convert is in_double else in_double(fno())
    optimizer = OPTIMIZERS[name](model)
    on_the_way(convert, model, optimizer, None)
    for p, state in optimizer.state.items():
        found = {x.dtype for key, x in state.items() if torch.is_tensor(x) and key != "step"}
        assert found <= {p.dtype, p.dtype.to_real()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_autocast_trains_as_without(name):
    models = [fno() for _ in range(2)]
    losses = [trained(m, OPTIMIZERS[name](m), range(9), half) for m, half in zip(models, (False, True), strict=True)]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert {p.dtype for p in models[1].parameters()} == {torch.float32, torch.complex64}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_double_alone_is_refused(name):
    """torch's leaves complex kernels, and neuralop's forward ends in an error of the product's types."""
    with pytest.raises(nm.MupError, match=r"is complex64 beside weights in float64.* p.data.to\(torch.complex128\)"):
        OPTIMIZERS[name](fno().double())
