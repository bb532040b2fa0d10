"""Legal settings and types in which an optimizer once failed."""

from __future__ import annotations

import pytest
import torch

import neuralop_mup as nm
from cases import CASES
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


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        ("2d", 2),
        ("codano", 2 * 4),  # keys, queries and values of an attention count once; then its projection and two mixing layers
        ("uqno", 1),  # two models of one layer, side by side
    ],
)
def test_convolutions_beside_each_other_add_no_depth(name, depth):
    """lr goes as √(4 / depth)."""
    case = next(case for case in CASES if case.name == name)
    model = nm.parametrize(case.build(), base=case.base)
    (group,) = [g for g in nm.MuSOAP(model, lr=0.02).param_groups if g["name"] == "spectral"]
    assert group["lr"] == pytest.approx(0.02 * (4 / depth) ** 0.5)
