"""Solvers of the benchmark problems against exact solutions and against dense integration by scipy, in float64."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.linalg import toeplitz

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems.burgers import periodic_field
from problems.interface import solve_interface
from problems.korteweg_de_vries import solve_korteweg_de_vries
from problems.navier_stokes import solve_navier_stokes, torus_field
from problems.reactions import smooth_field, solve_allen_cahn, solve_gray_scott
from problems.spectral import etdrk4

PI = math.pi
RATES = {"feed": 0.04, "kill": 0.06}


def generators(n):
    return [np.random.default_rng((7, i)) for i in range(n)]


def distance(value, reference):
    return float((value - reference).norm() / reference.norm())


# Initial states, none like another


def waves(n):
    normals = np.stack([generator.standard_normal((4, 2)) for generator in generators(3)])
    return 0.3 + periodic_field(torch.from_numpy(normals), n)


def phases(n):
    return 0.5 * smooth_field(generators(3), n, 0.2)


def concentrations(n):
    fields = torch.sigmoid(2 * smooth_field(generators(6), n, 0.3)).reshape(3, 2, n, n)
    return torch.stack((1 - fields[:, 0] / 2, fields[:, 1] / 4), dim=1)


def hills(n):
    x = torch.arange(n, dtype=torch.float64) / n
    hill = torch.sin(2 * PI * x)[:, None, None] + torch.cos(2 * PI * (x[:, None] + x)) * torch.sin(2 * PI * x)[:, None, None]
    return torch.stack((0.1 * hill, 0.02 * hill.mT, 0.05 * hill.flip(0)))


def plane(n):
    axis = 2 * PI * torch.arange(n, dtype=torch.float64) / n
    return torch.meshgrid(axis, axis, indexing="ij")


def eddies(n):
    x, y = plane(n)
    eddy = 2 * torch.cos(x + 2 * y) + 1.5 * torch.sin(3 * x - y) + torch.cos(2 * x) * torch.sin(y) + torch.sin(y)
    return torch.stack((eddy, 1.5 * eddy.T, 0.1 * eddy.flip(0)))


# Equations as they are written, with dense matrices as derivatives


def derivatives(n, period=1.0):
    """Return the matrices of the first and second derivative of trigonometric polynomials (Trefethen 2000, chapter 3)."""
    j = np.arange(1, n)
    column = np.append(0, 0.5 * (-1.0) ** j / np.tan(PI * j / n))
    second = np.append(-(n**2) / 12 - 1 / 6, -((-1.0) ** j) / (2 * np.sin(PI * j / n) ** 2))
    return 2 * PI / period * toeplitz(column, -column), (2 * PI / period) ** 2 * toeplitz(second)


def korteweg_de_vries(u):
    first, _ = derivatives(len(u))
    return lambda u: -u * (first @ u) - 0.04**2 * (first @ (first @ (first @ u)))


def allen_cahn(u):
    _, second = derivatives(len(u))
    return lambda u: 0.12**2 * (second @ u + u @ second) + u - u**3


def gray_scott(state):
    _, second = derivatives(state.shape[-1])

    def rate(state):
        u, v = state
        reaction = np.stack((RATES["feed"] * (1 - u) - u * v**2, u * v**2 - (RATES["feed"] + RATES["kill"]) * v))
        return np.array([8e-4, 4e-4])[:, None, None] * (second @ state + state @ second) + reaction

    return rate


def interface(h):
    first, second = derivatives(len(h))
    axes = ("ab,bcd->acd", "ab,cbd->cad", "ab,cdb->cda")
    return lambda h: sum(0.05 * np.einsum(axis, second, h) + np.einsum(axis, first, h) ** 2 / 2 for axis in axes)


def navier_stokes(w):
    """Poisson's equation is solved by the eigenvectors of the matrix, and products are not dealiased."""
    first, second = derivatives(len(w), 2 * PI)
    values, vectors = np.linalg.eigh(second)
    total = values[:, None] + values
    total[np.abs(total) < 1e-9] = -np.inf  # the constant

    def rate(w):
        stream = -vectors @ ((vectors.T @ w @ vectors) / total) @ vectors.T
        advection = (stream @ first.T) * (first @ w) - (first @ stream) * (w @ first.T)
        return (second @ w + w @ second) / 8 + FORCING.numpy() - advection

    return rate


FORCING = torch.sin(sum(plane(40))) - 3 * torch.cos(2 * plane(40)[1])
DENSE = {
    "korteweg-de-vries": (korteweg_de_vries, waves(64), 0.2, lambda u: solve_korteweg_de_vries(u, 0.04, 0.2), 1e-6),
    "allen-cahn": (allen_cahn, phases(32), 2.0, lambda u: solve_allen_cahn(u, 0.12, 2.0), 2e-5),
    "gray-scott": (
        gray_scott,
        concentrations(48),
        30.0,
        lambda u: solve_gray_scott(u, 30.0, diffusion=(8e-4, 4e-4), dt=0.5, **RATES),
        2e-5,
    ),
    "interface": (interface, hills(12), 0.2, lambda h: solve_interface(h, 0.05, 0.2), 2e-4),
    "navier-stokes": (navier_stokes, eddies(40), 0.5, lambda w: solve_navier_stokes(w, 8.0, 0.5, forcing=FORCING), 1e-4),
}


@pytest.mark.parametrize(("equation", "states", "time", "solve", "tolerance"), DENSE.values(), ids=DENSE)
def test_solvers_agree_with_dense_integration(equation, states, time, solve, tolerance):
    start = states[0].numpy()
    rate = equation(start)
    found = solve_ivp(
        lambda _, flat: rate(flat.reshape(start.shape)).ravel(), (0, time), start.ravel(), "DOP853", rtol=1e-8, atol=1e-10
    )
    expected = torch.from_numpy(found.y[:, -1].reshape(start.shape))
    assert distance(solve(states[0]), expected) < tolerance
    assert distance(states[0], expected) > 0.05


@pytest.mark.parametrize("name", DENSE)
def test_a_solution_does_not_depend_on_its_batch(name):
    """Input of lower precision is solved in float64."""
    _, states, _, solve, _ = DENSE[name]
    states = states.float()
    solutions = solve(states)
    assert solutions.dtype == torch.float64
    assert solutions.shape == states.shape
    for state, solution in zip(states, solutions, strict=True):
        torch.testing.assert_close(solve(state), solution, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("solve", "exact", "steps"),
    [
        (lambda dt: solve_korteweg_de_vries(waves(96), 0.04, 0.1, dt=dt), 1e-4, (4e-3, 2e-3, 1e-3)),
        (lambda dt: solve_allen_cahn(phases(32), 0.12, 1.0, dt=dt), 0.0025, (0.05, 0.025, 0.0125)),
        (
            lambda dt: solve_gray_scott(concentrations(32), 10.0, diffusion=(8e-4, 4e-4), dt=dt, **RATES),
            0.1,
            (2.0, 1.0, 0.5),
        ),
        (lambda dt: solve_navier_stokes(eddies(32)[0], 50.0, 1.0, dt=dt), 0.0025, (0.04, 0.02, 0.01)),
    ],
    ids=["korteweg-de-vries", "allen-cahn", "gray-scott", "navier-stokes"],
)
def test_solvers_converge_with_order_four(solve, exact, steps):
    errors = [distance(solve(dt), solve(exact)) for dt in steps]
    for coarse, fine in zip(errors, errors[1:], strict=False):
        assert 3.6 < math.log2(coarse / fine) < 4.4


@pytest.mark.parametrize("rate", [0.0, 1e-9, 1e-3, -1.0, -50.0, -1e6, 3j, -2 + 1e4j])
def test_linear_part_and_constant_source_are_exact(rate):
    """The solution of v' = rate v + 1 is exp(rate t) v(0) + (exp(rate t) − 1) / rate, without cancellation."""
    linear = torch.from_numpy(np.array([rate]))
    start = torch.full((1,), 0.3, dtype=torch.complex128)
    source = np.expm1(0.3 * rate) / rate if rate else 0.3
    assert abs(complex(etdrk4(start, linear, torch.zeros_like, 0.3, 0.1)) - 0.3 * np.exp(0.3 * rate)) < 1e-13
    assert abs(complex(etdrk4(0 * start, linear, torch.ones_like, 0.3, 0.1)) - source) < 1e-13 * abs(source) + 1e-15


def test_taylor_green_vortices_decay_exactly():
    """−Δw = (2² + 3²) w, so that ψ is a multiple of w, advection vanishes, and w decays as exp(−13 t / Re)."""
    x, y = plane(32)
    w0 = 2 * torch.cos(2 * x) * torch.cos(3 * y)
    times = [0.0, 0.4, 1.3]
    for state, time in zip(solve_navier_stokes(w0, 50.0, times, forcing=0.0), times, strict=True):
        assert torch.allclose(state, w0 * math.exp(-13 * time / 50), atol=1e-13)


# Coarse grids and long steps


@pytest.mark.parametrize("n", [8, 10, 12, 40])
def test_navier_stokes_checks_the_highest_mode_of_any_grid(n):
    y = plane(n)[1]
    solve_navier_stokes(torch.cos(y), 1e4, 1e-3, forcing=0.0)
    w0 = torch.cos(y) + 0.1 * torch.cos((math.ceil(n / 3) - 1) * y)
    for turned in (w0, w0.T):
        with pytest.raises(MupError, match=f"{n}²"):
            solve_navier_stokes(turned, 1e4, 1e-3, forcing=0.0)


@pytest.mark.parametrize(
    ("solve", "names"),
    [
        (lambda: solve_korteweg_de_vries(3 * waves(128), 0.02, 0.5, dt=0.01), r"0\.01 on 128"),
        *(
            (lambda n=n: solve_korteweg_de_vries(torch.cos(2 * PI * torch.arange(n) / n), 0.011, 0.5, dt=5e-4), f"{n}.*319")
            for n in (24, 32, 64)
        ),
        (lambda: solve_allen_cahn(phases(32)[:1], 0.03, 4.0), "32.*Allen–Cahn.*100"),
        (lambda: solve_allen_cahn(40 * phases(32)[:1], 0.1, 20.0, dt=2.0), "diverges.*2.*dt"),
        (lambda: solve_gray_scott(concentrations(16), 50.0, diffusion=(1e-4, 5e-5), **RATES), "16.*Gray–Scott.*104"),
        (
            lambda: solve_gray_scott(20 * concentrations(32), 200.0, diffusion=(8e-4, 4e-4), dt=20.0, **RATES),
            "diverges.*20.*dt",
        ),
        (lambda: solve_navier_stokes(torch.zeros(14, 14), 1.0, 0.1), "14²"),  # the forcing is the last mode that is kept
        (lambda: solve_navier_stokes(4 * eddies(16)[0], 5000.0, 2.0), "16².*5000.*solver_grid"),
        (lambda: solve_navier_stokes(10 * eddies(32)[0], 1e4, 2.0, dt=0.1, forcing=0.0), r"diverges.*\d+.*0\.\d.*32²"),
    ],
)
def test_solvers_reject_what_they_cannot_resolve(solve, names):
    with pytest.raises(MupError, match=names):
        solve()


# Random fields


def test_covariance_of_smooth_fields():
    n, length = 20, 0.2
    # Fields of one random number each: their outer products sum to the covariance.
    units = np.eye(225).reshape(-1, 15, 15)
    basis = smooth_field([SimpleNamespace(standard_normal=lambda _, unit=unit: unit) for unit in units], n, length)
    x = np.arange(n)[:, None] / n + np.arange(-3, 4)
    axis = np.exp(-(x**2) / (2 * length**2)).sum(1)
    expected = np.outer(axis, axis) - axis.mean() ** 2
    assert np.allclose(torch.einsum("bij,b->ij", basis, basis[:, 0, 0]), expected / expected[0, 0], atol=1e-10)
    assert torch.allclose(basis.square().sum(0), torch.ones(n, n, dtype=torch.float64))


def test_variance_of_torus_fields():
    basis = torch.eye(100, dtype=torch.float64).reshape(-1, 5, 5, 4)
    square = np.add.outer(np.arange(-4, 5) ** 2, np.arange(-4, 5) ** 2)
    expected = (7**1.5 * (square + 49.0) ** -2.5)[square > 0].sum()  # the same at every point
    variance = torus_field(basis, 12).square().sum(0)
    assert torch.allclose(variance, torch.full_like(variance, expected), rtol=1e-12)
