"""Navier–Stokes: the solver against exact and independent solutions in float64, and the problem made of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from neuralop_mup.errors import MupError
from problems import get_problem
from problems.equations import NavierStokesEqnLoss
from problems.navier_stokes import solve_navier_stokes, torus_field

SMALL = {
    **{"n_train": 3, "n_val": 2, "n_test": 2, "grid": 16, "time_points": 4},
    **{"reynolds": 10.0, "time": 0.25, "spin_up": 0.5, "forcing_wavenumber": 4},
}


def points(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    axis = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
    return torch.meshgrid(axis, axis, indexing="ij")


def eddies(n: int) -> torch.Tensor:
    """A few modes, the two axes unlike each other."""
    x, y = points(n)
    return 2 * torch.cos(x + 2 * y) + 1.5 * torch.sin(3 * x - y) + torch.cos(2 * x) * torch.sin(y) + torch.sin(y)


def distance(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value - reference).norm() / reference.norm())


# The solver -------------------------------------------------------------------------------------------------


def test_taylor_green_vortices_decay_exactly():
    # −Δw = (2² + 3²) w, so that ψ is a multiple of w, advection vanishes and w decays as exp(−13 t / Re).
    x, y = points(32)
    w0 = 2 * torch.cos(2 * x) * torch.cos(3 * y)
    w = solve_navier_stokes(w0, 50.0, [0.0, 0.4, 1.3], forcing=0.0)
    for state, time in zip(w, (0.0, 0.4, 1.3), strict=True):
        assert torch.allclose(state, w0 * math.exp(-13 * time / 50), atol=1e-13)


def test_wind_carries_the_pattern_the_right_way():
    # A strong shear flow sin(x₁) along x₂, velocity v₂ = −cos(x₁), carries a weak pattern cos(m x₂) near x₁ = 0 backwards.
    n, m, time = 64, 8, 0.1
    x, y = points(n)
    weak = 1e-4 * torch.cos(m * y) * torch.exp(-20 * (1 - torch.cos(x)))
    weak = weak - weak.mean()
    w = solve_navier_stokes(torch.sin(x) + weak, 1e6, time, forcing=0.0)
    line = torch.fft.rfft(w[0])[m]
    assert float(torch.angle(line)) == pytest.approx(m * time, abs=0.02)  # of cos(m (y + t))


def dense_solution(w0: np.ndarray, reynolds: float, forcing: np.ndarray, time: float) -> np.ndarray:
    """Lines of ordinary equations: dense differentiation matrices of trigonometric interpolation (Trefethen 2000, ch. 3),
    the products as v·∇w without dealiasing, Poisson's equation by the eigenvectors of the matrices, steps by DOP853."""
    n = len(w0)
    i = np.subtract.outer(np.arange(n), np.arange(n))
    with np.errstate(divide="ignore"):
        angle = i * math.pi / n
        first = np.where(i == 0, 0.0, 0.5 * (-1.0) ** i / np.tan(np.where(i == 0, 1, angle)))
        second = np.where(i == 0, -(n**2) / 12 - 1 / 6, -0.5 * (-1.0) ** i / np.sin(np.where(i == 0, 1, angle)) ** 2)
    values, vectors = np.linalg.eigh(second)
    total = values[:, None] + values
    total[np.abs(total) < 1e-9] = -np.inf  # the constant

    def change(_, flat):
        w = flat.reshape(n, n)
        stream = -vectors @ ((vectors.T @ w @ vectors) / total) @ vectors.T
        v1, v2 = stream @ first.T, -first @ stream
        diffusion = (second @ w + w @ second.T) / reynolds
        return (diffusion + forcing - v1 * (first @ w) - v2 * (w @ first.T)).ravel()

    return solve_ivp(change, (0, time), w0.ravel(), "DOP853", rtol=1e-11, atol=1e-12).y[:, -1].reshape(n, n)


def test_agrees_with_an_independent_solver():
    reynolds, time, errors = 8.0, 0.5, []
    for n in (32, 48):
        x, y = points(n)
        forcing = torch.sin(x + y) - 3 * torch.cos(2 * y)
        expected = torch.from_numpy(dense_solution(eddies(n).numpy(), reynolds, forcing.numpy(), time))
        assert distance(eddies(n), expected) > 0.5  # the flow is not at rest
        errors.append(distance(solve_navier_stokes(eddies(n), reynolds, time, forcing=forcing, dt=0.005), expected))
    # The two truncate differently, so they meet as the grid is refined, faster than any power.
    assert errors[1] < 1e-6 and errors[0] / errors[1] > 50


def test_is_of_fourth_order_in_the_step():
    states = [solve_navier_stokes(eddies(32), 50.0, 1.0, dt=dt) for dt in (0.04, 0.02, 0.01)]
    order = math.log2(float((states[0] - states[1]).norm() / (states[1] - states[2]).norm()))
    assert 3.7 < order < 4.3
    assert distance(solve_navier_stokes(eddies(32), 50.0, 1.0), states[2]) < 1e-4  # with the CFL number it takes by itself


def test_does_not_depend_on_the_batch_nor_on_the_other_times():
    batch = torch.stack((eddies(32), 1.5 * eddies(32).T, 0.1 * eddies(32).flip(0)))
    together = solve_navier_stokes(batch, 20.0, [0.2, 0.5])
    assert together.shape == (3, 2, 32, 32)
    for w0, w in zip(batch, together, strict=True):
        assert torch.allclose(solve_navier_stokes(w0, 20.0, [0.2, 0.5]), w, atol=1e-12)
        assert distance(solve_navier_stokes(w0, 20.0, 0.5), w[1]) < 1e-4


@pytest.mark.parametrize("n", [8, 10, 12, 14, 16, 18, 20, 24, 30, 40])
def test_the_highest_mode_of_any_grid_is_looked_at(n):
    y = points(n)[1]
    # A shear flow only decays, by exp(−t/Re).
    assert torch.allclose(
        solve_navier_stokes(torch.cos(y), 10.0, 0.1, forcing=0.0), math.exp(-0.01) * torch.cos(y), atol=1e-9
    )
    w0 = torch.cos(y) + 0.1 * torch.cos((math.ceil(n / 3) - 1) * y)
    for turned in (w0, w0.T):
        with pytest.raises(MupError, match=f"{n}² points do not resolve"):
            solve_navier_stokes(turned, 1e4, 1e-3, forcing=0.0)


@pytest.mark.parametrize(
    ("w0", "arguments", "sentence"),
    [
        (
            torch.zeros(14, 14),
            {"reynolds": 1.0},
            "14² points do not resolve",
        ),  # 14/3 > 4 keeps the forcing's mode, as the last
        (4 * eddies(16), {"reynolds": 5000.0, "times": 2.0}, r"16² points do not resolve .*number 5000.*solver_grid"),
        (
            10 * eddies(32),
            {"reynolds": 1e4, "times": 2.0, "dt": 0.1, "forcing": 0.0},
            r"diverges at step \d+ \(t = 0\.\d+, CFL number \d.*32² points",
        ),
    ],
)
def test_solver_says_what_it_cannot_resolve(w0, arguments, sentence):
    with pytest.raises(MupError, match=sentence):
        solve_navier_stokes(w0, **{"reynolds": 10.0, "times": 0.1, **arguments})


# Fields -----------------------------------------------------------------------------------------------------


def test_torus_field_has_the_variance_of_its_law():
    modes = 5
    basis = torch.eye(4 * modes**2, dtype=torch.float64).reshape(-1, modes, modes, 4)
    k = np.arange(1 - modes, modes)
    square = k[:, None] ** 2 + k**2
    expected = float((7**1.5 * (square + 49.0) ** -2.5)[square > 0].sum())  # the same at every point
    assert torch.allclose(torus_field(basis, 12).square().sum(0), torch.tensor(expected, dtype=torch.float64), rtol=1e-12)


# The problem ------------------------------------------------------------------------------------------------


def test_equation_holds_for_the_data_better_the_finer_the_times():
    residuals = []
    for time_points in (8, 16, 32):
        sizes = {**SMALL, "grid": 32, "n_train": 2, "time_points": time_points, "time": 2.0}
        p = get_problem("navier-stokes", **sizes, equation_weight=1.0, initial_weight=2.0)
        x, y = p.generate().train
        losses = p.losses()
        assert {name: weight for name, (weight, _) in losses.items()} == {"data": 1.0, "initial": 2.0, "equation": 1.0}
        residuals.append(float(losses["equation"][1](y, x=x, y=y)) / 2)
        assert float(losses["initial"][1](y, x=x, y=y)) < 1e-6
    assert residuals[2] < 3e-3
    assert all(residuals[i] / residuals[i + 1] > 3 for i in range(2))
    # Another Reynolds number is another equation.
    assert float(NavierStokesEqnLoss(20.0, p.forcing(32), p.time)(y)) / 2 > 10 * residuals[2]
