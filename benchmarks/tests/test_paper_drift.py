"""The model of physics_informed, the paper's code, as the benchmarks have it: what it computes, and how it is scaled."""

import math

import pytest
import torch

import neuralop_mup as nm
from experiments import physics_informed as models


def test_a_kernel_multiplies_the_lowest_modes():
    """Mode by mode, with the kernel of each sign of the first frequency, against a plane wave's own coefficient."""
    torch.manual_seed(0)
    kernel = models.FourierKernel(1, 2).double()
    values = torch.view_as_complex(kernel.weight.detach()[:, :, 0, :, 0].contiguous())
    i, j = torch.meshgrid(torch.arange(9).double() / 9, torch.arange(8).double() / 8, indexing="ij")
    for k1, k2, row in ((0, 1, 0), (1, 1, 1), (-1, 1, 2), (-2, 1, 3)):
        wave = torch.polar(torch.ones(9, 8, dtype=torch.float64), 2 * math.pi * (k1 * i + k2 * j))
        torch.testing.assert_close(kernel(wave.real[None, None])[0, 0], (values[row, k2] * wave).real)
    beyond = torch.cos(2 * math.pi * (2 * i + j))[None, None]
    assert kernel(beyond).abs().max() < 1e-12


def test_first_draw():
    """U[0, 1) / m² in both parts: mean 1/(2m²), for any K."""
    torch.manual_seed(0)
    for modes in (3, 12):
        weight = models.FourierKernel(16, modes).weight * 16**2
        assert weight.min() >= 0 and weight.max() < 1 and abs(weight.mean() - 0.5) < 0.02


def test_scaled_by_modes_and_width():
    """K from 3 to 6: κ = √(log 3 / log 6) = 0.7830, on kernels alone. Width doubled, K as it is: a kernel's learning rate is
    halved; its draw was divided by 4 and has one sign, so that it wants 1/2 and is multiplied by 2."""
    fno = models.PhysicsInformedFNO

    def plan(rule, *sizes):
        model = nm.parametrize(fno(*sizes, readout_width=8), lambda: fno((6, 6), 4, readout_width=8), rule=rule)
        return {row.name: (row.lr_mult, row.init_mult) for row in nm.summary(model).rows}

    for name, multipliers in plan("log-modes", (12, 12), 4).items():
        expected = math.sqrt(math.log(3) / math.log(6)) if "kernels" in name else 1.0
        assert multipliers == pytest.approx((expected, expected))
    width = plan("none", (6, 6), 8)
    assert width["kernels.0.weight"] == pytest.approx((0.5, 2))
    assert width["lifting.weight"][0] == width["readout_out.weight"][0] == 1


def test_clip_reaches_kernels_alone():
    model = models.PhysicsInformedFNO((6, 6), 4, readout_width=8)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, -3.0)
    nm.clip_spectral_grad_value_(model, 0.01)
    for name, parameter in model.named_parameters():
        assert parameter.grad.unique().item() == pytest.approx(-0.01 if "kernels" in name else -3.0)
