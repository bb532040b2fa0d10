"""Losses in space and time: exact values, gradients, precision, and checks of the data."""

import math

import numpy as np
import pytest
import torch

from neuralop_mup.lab.problems import solve_burgers
from neuralop_mup.losses import InitialConditionLoss, NavierStokesEqnLoss, PeriodicBurgersEqnLoss
from support.errors import of_category, refused

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


@pytest.fixture(scope="module")
def burgers():
    """Return solutions of Burgers' equation with ν = 0.05 at 65 times on 64 points."""
    x = torch.arange(64, dtype=DOUBLE) / 64
    states = [torch.stack([torch.sin(2 * math.pi * x) + 0.5, torch.cos(4 * math.pi * x) / 2])]
    for _ in range(64):
        states.append(solve_burgers(states[-1], 0.05, 1 / 64))
    return torch.stack(states, dim=1)[:, None]


def test_solutions_pass_the_check_of_the_data(burgers, recwarn):
    loss = PeriodicBurgersEqnLoss(0.05, reduction="mean")
    assert float(loss(burgers, x=burgers, y=burgers)) < 1e-2 * float(loss(2 * burgers, x=burgers, y=burgers))
    assert not of_category(recwarn)


@pytest.mark.parametrize(("scale", "shift"), [(3.0, 0.0), (1.0, 0.7), (0.4, -0.2)])
def test_normalised_solutions_raise_an_error(burgers, scale, shift):
    # u = σ y + μ: the message has σ.
    y = (burgers - shift) / scale
    with refused(f"{scale:.3g}·y+c PhysicalDataProcessor"):
        PeriodicBurgersEqnLoss(0.05)(y, x=y, y=y)


def test_wrong_constants_trigger_a_warning(burgers):
    with pytest.warns(UserWarning, match="does not solve the equation of PeriodicBurgersEqnLoss"):
        PeriodicBurgersEqnLoss(0.2)(burgers, x=burgers, y=burgers)


def test_the_taylor_green_vortex_solves_navier_stokes():
    # w = 2 cos x₁ cos x₂ e^(−2t/Re): v·∇w = 0 and Δw = −2w. The residual is the error of the time differences,
    # w_ttt dt² / 6 = (2/Re)³ dt² w / 6, up to higher orders.
    n, times, reynolds = 16, torch.linspace(0, 1, 21, dtype=DOUBLE), 4.0
    x = 2 * math.pi * torch.arange(n, dtype=DOUBLE) / n
    w = 2 * torch.cos(x)[:, None] * torch.cos(x) * torch.exp(-2 * times / reynolds)[:, None, None]
    found = float(NavierStokesEqnLoss(reynolds, 0.0)(w[None, None])) ** 0.5
    expected = (2 / reynolds) ** 3 * 0.05**2 / 6 * float(w[1:-1].square().mean()) ** 0.5
    assert found == pytest.approx(expected, rel=1e-3)
