"""Muon, mode by mode: a step written out by hand, decay, compiled and in full precision."""

import math
from unittest import mock

import pytest
import torch

import neuralop_mup as nm
from blocks import exact, with_values
from neuralop_mup.optim.matrix import muon_direction as muon
from neuralop_mup.optim.matrix.newton_schulz import BAND, orthogonalize
from support import differing, random_gradients, small_fno

KERNEL = "fno_blocks.convs.0.weight.tensor"

# --------------------------------------------------------------------------------------------------------- a step


def reference(weights, gradients, lr, momentum, nesterov, weight_decay, scale, damping):
    """The steps written out, with an exact decomposition; weights (modes, in, out)."""
    m, w = torch.zeros_like(weights), weights.clone()
    for g in gradients:
        m = momentum * m + g
        x = g + momentum * m if nesterov else m
        bound = torch.linalg.svdvals(x).pow(8).sum(-1).pow(1 / 8)[:, None, None]
        update = exact(x) - damping * x / bound
        # Brought back to the root-mean-square singular value of the polar factor, which is 1.
        update = update * math.sqrt(min(x.shape[1:])) / update.flatten(1).norm(dim=1)[:, None, None]
        w = (1 - lr * weight_decay) * w - lr * scale * update
    return w


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("damping", [0.0, 0.7])
def test_steps_against_a_reference_written_out(nesterov, weight_decay, damping):
    """Four steps on 4 → 4 channels, well conditioned in double precision: within the band of exact steps."""
    model = small_fno(width=4).double()
    kernel = model.get_parameter(KERNEL)
    kernel.data = kernel.data.to(torch.complex128)
    settings = {"lr": 0.1, "momentum": 0.8, "nesterov": nesterov, "weight_decay": weight_decay, "damping": damping}
    optimizer = nm.MuMuon(model, period=1, base_depth=None, **settings)
    start = kernel.detach().clone()
    gradients = [with_values([1, 0.9, 0.8, 0.7], 4, 4, torch.complex128, seed)[0] for seed in (1, 5, 9, 13)]
    for g in gradients:
        kernel.grad = g[:, :, None].repeat(1, 1, kernel.shape[2])
        optimizer.step()
    stacked = [g.expand(kernel.shape[2], 4, 4) for g in gradients]
    want = reference(start.permute(2, 0, 1), stacked, 0.1, 0.8, nesterov, weight_decay, 1.0, damping)
    other = reference(start.permute(2, 0, 1), stacked, 0.1, 0.8, not nesterov, weight_decay, 1.0, damping)
    got = kernel.detach().permute(2, 0, 1)
    bound = 4 * 0.1 * BAND * (1.5 if damping else 1)  # bringing a damped block back to its size enlarges errors with it
    assert torch.linalg.matrix_norm(got - want, 2).max() <= bound
    assert torch.linalg.matrix_norm(other - want, 2).max() > bound  # the test can tell


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
