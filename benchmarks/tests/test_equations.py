"""Equation losses of the benchmarks: exact values, the ends of the time interval, gradients, precision."""

import math

import numpy as np
import pytest
import torch

from problems.equations import InitialConditionLoss, NavierStokesEqnLoss, PeriodicBurgersEqnLoss

DOUBLE = torch.float64


def random_like(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def test_burgers_in_space_is_exact():
    # u = sin 2πx at all times: u u_x − ν u_xx = π sin 4πx + 4π²ν sin 2πx, mean square π²/2 + 8π⁴ν².
    u = torch.sin(2 * math.pi * torch.arange(16, dtype=DOUBLE) / 16).expand(3, 1, 6, 16)
    loss = PeriodicBurgersEqnLoss(viscosity=0.1)(u, x=u)
    assert float(loss) == pytest.approx(3 * (math.pi**2 / 2 + 8 * math.pi**4 * 0.01), rel=1e-12)


def test_the_first_and_the_last_time_do_not_count():
    # A jump in time at the first point changes the differences at the first two times. Only the second counts.
    u = torch.zeros(1, 1, 6, 8, dtype=DOUBLE)
    u[:, :, 0] = 1
    # dt = 1/5: −1/2 / dt = −5/2 at the second, 0 from the third on.
    assert float(PeriodicBurgersEqnLoss(0.1)(u)) == pytest.approx(2.5**2 / 4)


SPACE_TIME, TORUS_TIME = random_like(2, 1, 5, 6), random_like(2, 1, 4, 6, 6)
SMALL = {
    "burgers": (PeriodicBurgersEqnLoss(0.1), SPACE_TIME, None),
    "initial": (InitialConditionLoss(), SPACE_TIME, random_like(2, 1, 1, 6, seed=1).expand_as(SPACE_TIME)),
    "navier-stokes": (NavierStokesEqnLoss(7.0, random_like(6, 6, seed=2)), TORUS_TIME, None),
    "unforced": (NavierStokesEqnLoss(7.0, 0.0), TORUS_TIME, None),
}


@pytest.mark.parametrize(("loss", "u", "x"), SMALL.values(), ids=SMALL)
def test_gradient_sum_over_the_batch_and_half_precision(loss, u, x):
    assert torch.autograd.gradcheck(lambda field: loss(field, x=x), u.clone().requires_grad_())
    each = [float(loss(u[i : i + 1], x=None if x is None else x[i : i + 1])) for i in range(len(u))]
    assert float(loss(u, x=x)) == pytest.approx(sum(each), rel=1e-12)
    field = u.bfloat16().requires_grad_()
    low = loss(field, x=x)
    torch.testing.assert_close(low, loss(field.detach().double(), x=x).float(), rtol=1e-5, atol=0)
    low.backward()
    assert torch.isfinite(field.grad).all()
