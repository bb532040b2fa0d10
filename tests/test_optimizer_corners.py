"""Legal settings and types in which an optimizer once failed."""

from __future__ import annotations

import pytest
import torch

import neuralop_mup as nm
from neuralop_mup.optim.kernels.optimizer import full_precision
from support import small_fno

OPTIMIZERS = (nm.MuSOAP, nm.MuMuon)


def set_gradients(model, size):
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        wide = torch.promote_types(p.dtype, torch.float32)
        p.grad = (size * torch.randn(p.shape, generator=generator, dtype=wide)).to(p.dtype)


@pytest.mark.parametrize("beta2", [0.0, 0.3, 0.55, 0.95])
def test_momentum_that_outlives_the_second_moments(beta2):
    """After a thousand steps without a gradient 0.55 to that power is 0, where momentum is 1e-23 still."""
    model = small_fno()
    optimizer = nm.MuSOAP(model, beta2=beta2)
    for step in range(1000):
        set_gradients(model, 1.0 if step == 0 else 0.0)
        optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("size", [2e3, 1e-4])
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_parameters_in_half_precision_keep_their_averages_in_float32(make, size):
    """Squares of 2e3 overflow in float16, those of 1e-4 are 0: the step is that of the same numbers in float32."""
    ends = []
    for dtype in (torch.float16, torch.float32):
        model = small_fno()
        for p in model.parameters():
            if not p.is_complex():
                p.data = p.data.half().to(dtype)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer = make(model, lr=0.02, aux_lr=0.02)
        for _ in range(3):
            set_gradients(model, size)
            for p in model.parameters():
                p.grad = p.grad if p.is_complex() else p.grad.half().to(p.dtype)
            optimizer.step()
        ends.append(
            {name: (p - before[name]).detach().float() for name, p in model.named_parameters() if not p.is_complex()}
        )
    for name, moved in ends[0].items():
        assert moved.isfinite().all(), name
        torch.testing.assert_close(moved, ends[1][name], rtol=0.05, atol=2e-3, msg=lambda text, name=name: f"{name}: {text}")


def test_steps_that_overlap_leave_the_precision_of_products_as_it_was():
    """Two steps, as of two threads, of which the first to come is the first to go: full until the last one is done."""
    matmul = torch.backends.mkldnn.matmul
    matmul.fp32_precision = "bf16"
    try:
        first, second = full_precision(["cpu"]), full_precision(["cpu"])
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert matmul.fp32_precision == "ieee"
        second.__exit__(None, None, None)
        assert matmul.fp32_precision == "bf16"
    finally:
        matmul.fp32_precision = "none"
