"""Legal settings and types in which an optimizer once failed."""

from __future__ import annotations

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.optim.matrix.precision import full_precision
from support import small_fno

OPTIMIZERS = (nm.MuSOAP, nm.MuMuon)


def set_gradients(model, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
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


class Half(torch.autograd.Function):
    """Rounded to half precision, forward and backward, as what goes in and out of a product under autocast."""

    @staticmethod
    def forward(ctx, x):
        return x.half().float()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.half().float()


def in_half(x):
    return torch.view_as_complex(Half.apply(torch.view_as_real(x)))


def kernel_gradients(half):
    """Of a first step, with kernels that start small: their largest entries are 1e-5, near where half precision ends."""
    torch.manual_seed(0)
    model = nm.parametrize(FNO((12, 12), 1, 1, 16, n_layers=2), base={"hidden_channels": 16}, kernel_init="small")
    x = torch.randn(8, 1, 20, 20)
    smooth = torch.fft.irfft2(torch.fft.rfft2(x) * torch.exp(-torch.arange(11.0)), s=(20, 20))
    for conv in model.fno_blocks.convs:
        plain = conv._contract
        if half:
            conv._contract = lambda x, w, plain=plain, **k: in_half(plain(in_half(x), in_half(w.to_tensor()), **k))
    (0.1 * (model(x) - smooth).square().mean()).backward()
    return model, dict(model.named_parameters())["fno_blocks.convs.0.weight.tensor"]


def of_modes(t):
    """Norm of each mode's block."""
    return t.detach().abs().square().sum((0, 1)).sqrt()


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_what_half_precision_leaves_of_a_mode_is_not_trained(make):
    """Modes whose gradient points elsewhere than that in float32 move by a tenth of the largest at most."""
    _, exact = kernel_gradients(half=False)
    model, kernel = kernel_gradients(half=True)
    cosine = (exact.grad.conj() * kernel.grad).real.sum((0, 1)) / (of_modes(exact.grad) * of_modes(kernel.grad) + 1e-30)
    noise, sound = cosine < 0.5, cosine > 0.99
    assert noise.sum() > 20 and sound.sum() > 5
    before = kernel.detach().clone()
    make(model, period=1).step()
    moved = of_modes(kernel - before)
    assert moved[noise].max() < 0.1 * moved.max() and moved[sound].min() > 0.2 * moved.max()


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_modes_of_pure_noise_are_not_trained(make):
    """Gradients of 1e-13 beside 1e-3 are what rounding leaves: in a hundred steps they once moved by 5 from a norm of 2."""
    model = small_fno()
    kernel = dict(model.named_parameters())["fno_blocks.convs.0.weight.tensor"]
    before, optimizer = kernel.detach().clone(), make(model)
    scale = torch.where(torch.arange(kernel.shape[-1]) < 2, 1e-3, 1e-13)
    for step in range(100):
        set_gradients(model, 1.0, step)
        kernel.grad = kernel.grad * scale
        optimizer.step()
    moved = of_modes(kernel - before)
    assert moved[2:].max() < 1e-3 * moved[:2].min()
