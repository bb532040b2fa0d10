"""torch's fused Adam on complex kernels."""

import contextlib
import copy
import io

import pytest
import torch

import neuralop_mup as nm
from support import random_gradients, small_fno


def trained(make, model, steps=5, **settings):
    optimizer = make(model, lr=0.01, **settings)
    for seed in range(steps):
        random_gradients(model, seed)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("make", [nm.MuAdam, nm.MuAdamW])
@pytest.mark.parametrize("settings", [{}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}], ids=str)
def test_the_same_as_not_fused(make, settings):
    one, other = small_fno(), small_fno()
    with pytest.warns(UserWarning) if make is nm.MuAdam and "weight_decay" in settings else contextlib.nullcontext():
        plain, fused = trained(make, one, **settings), trained(make, other, fused=True, **settings)
    assert type(plain) in type(fused).__mro__
    torch.testing.assert_close(list(one.parameters()), list(other.parameters()))
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(plain.state[p]["exp_avg"], fused.state[q]["exp_avg"])
    nm.check_optimizer(other, fused)


def test_a_state_goes_on_with_or_without():
    model = small_fno()
    optimizer = trained(nm.MuAdamW, model, fused=True)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(model)
    resumed = nm.MuAdamW(other, lr=1.0, fused=True)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for m, o in ((model, optimizer), (other, resumed)):
        random_gradients(m, 9)
        o.step()
    torch.testing.assert_close(list(model.parameters()), list(other.parameters()), rtol=0, atol=0)


def test_what_excludes_it_is_refused():
    with pytest.raises(nm.MupError, match="fused=True and foreach=True exclude each other"):
        nm.MuAdam(small_fno(), fused=True, foreach=True)
