"""Muon, mode by mode: separable kernels, decay, compiled and in full precision."""

from unittest import mock

import pytest
import torch

import neuralop_mup as nm
from neuralop_mup.optim.matrix import muon_direction as muon
from neuralop_mup.optim.matrix.newton_schulz import orthogonalize
from support import differing, random_gradients, small_fno

KERNEL = "fno_blocks.convs.0.weight.tensor"

# --------------------------------------------------------------------------------------------------------- a step


def test_separable_kernels_move_every_entry_by_lr():
    """Blocks are diagonal: a polar factor is a phase for each entry."""
    model = small_fno(separable=True)
    kernel = model.get_parameter(KERNEL)
    before = kernel.detach().clone()
    random_gradients(model)
    nm.MuMuon(model, lr=0.05, period=1, base_depth=None).step()
    assert torch.allclose((before - kernel) / 0.05, kernel.grad / kernel.grad.abs(), atol=1e-4)


def matmul_precisions():
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision


@pytest.mark.parametrize(("period", "want"), [(1, 0.99203), (4, 0.99202)])
def test_decay_does_not_depend_on_the_period(period, want):
    """Updates of 1e-12 and a decay of 1e-3 a step: (1 − 1e-3)^8 = 0.99203, and (1 − 4e-3)^2 = 0.99202."""
    model = small_fno()
    kernel = model.get_parameter(KERNEL)
    start = kernel.detach().clone()
    optimizer = nm.MuMuon(model, lr=1e-12, aux_lr=1e-12, weight_decay=1e9, period=period, base_depth=None)
    for seed in range(8):
        random_gradients(model, seed)
        optimizer.step()
    assert torch.allclose((kernel / start).abs(), torch.tensor(want), atol=1e-4)


def test_compiled_step():
    """torch.compile leaves the step as it is: compiled, it took every parameter for the first one that it saw."""
    ours, theirs = small_fno(width=4), small_fno(width=4)
    eager, compiled = nm.MuMuon(ours, lr=0.05), nm.MuMuon(theirs, lr=0.05)
    torch.compiler.reset()
    step = torch.compile(compiled.step, backend="eager")
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for seed in range(4):
            random_gradients(ours, seed)
            random_gradients(theirs, seed)
            eager.step()
            step()
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()), rtol=0, atol=1e-6)
    start = small_fno(width=4)
    assert differing(theirs, start) == len(list(start.parameters()))


@pytest.mark.parametrize("setting", ["high", "medium"])
def test_products_are_made_in_full_precision(setting):
    """Whatever torch is set to, which it is again afterwards, also after a step that failed."""
    model = small_fno()
    random_gradients(model)
    optimizer = nm.MuMuon(model)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(setting)
        settings = matmul_precisions()
        inside = []
        with mock.patch.object(
            muon, "orthogonalize", lambda x, **kw: inside.append(matmul_precisions()) or orthogonalize(x, **kw)
        ):
            optimizer.step()
        assert inside and all(p == ("ieee", "ieee") for p in inside)
        assert matmul_precisions() == settings != ("ieee", "ieee")
        with mock.patch.object(muon, "orthogonalize", side_effect=RuntimeError("enough")), pytest.raises(RuntimeError):
            optimizer.step()
        assert matmul_precisions() == settings
        assert torch.get_float32_matmul_precision() == setting
    finally:
        torch.set_float32_matmul_precision(before)
