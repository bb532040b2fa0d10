"""Korteweg–de Vries, Allen–Cahn and Gray–Scott: solvers against independent ones in float64, and the problems."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.linalg import toeplitz
from scipy.special import ellipj, ellipk

from neuralop_mup.errors import MupError
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.problems.burgers import periodic_field
from problems import get_problem
from problems.interface import solve_interface
from problems.korteweg_de_vries import solve_korteweg_de_vries
from problems.reactions import smooth_field, solve_allen_cahn, solve_gray_scott
from problems.spectral import etdrk4

PI = math.pi
SMALL = {
    "korteweg-de-vries": {"n_train": 6, "n_val": 3, "n_test": 2, "grid": 16, "dispersion": 0.05, "time": 0.1},
    "allen-cahn": {"n_train": 5, "n_val": 3, "n_test": 2, "grid": 8, "width": 0.1, "time": 1.0, "length": 0.2},
    "gray-scott": {
        "n_train": 5,
        "n_val": 3,
        "n_test": 2,
        "grid": 16,
        "diffusion": (1e-3, 5e-4),
        "time": 10.0,
        "length": 0.2,
    },
}


SMALL["interface"] = {"n_train": 5, "n_val": 3, "n_test": 2, "grid": 8, "length": 0.3}


@pytest.fixture(params=sorted(SMALL))
def small(request):
    return get_problem(request.param, **SMALL[request.param])


def generators(n: int) -> list[np.random.Generator]:
    return [np.random.default_rng((7, i)) for i in range(n)]


def distance(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value - reference).norm() / reference.norm())


def second_derivative(n: int) -> np.ndarray:
    """The dense matrix that differentiates trigonometric polynomials on n points (even) of the unit interval twice."""
    j = np.arange(1, n)
    column = np.empty(n)
    column[0] = -(n**2) / 12 - 1 / 6
    column[1:] = -((-1.0) ** j) / (2 * np.sin(PI * j / n) ** 2)
    return (2 * PI) ** 2 * toeplitz(column)


# The step ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, 1e-9, -1.0, -1e6, 3j, -2 + 1e4j])
def test_linear_part_is_exact(rate):
    linear = torch.from_numpy(np.array([rate]))
    v = etdrk4(torch.ones(1, dtype=torch.complex128), linear, torch.zeros_like, 0.7, 0.7)
    assert abs(complex(v) - np.exp(0.7 * rate)) < 1e-13


@pytest.mark.parametrize("rate", [0.0, 1e-7, 1e-3, -1.0, -50.0, -1e6, 2j, 300j])
def test_constant_source_is_exact(rate):
    # v' = rate v + 1 from 0 is (exp(rate t) − 1) / rate: the coefficients add up to it, without cancellation.
    linear = torch.from_numpy(np.array([rate]))
    v = etdrk4(torch.zeros(1, dtype=torch.complex128), linear, torch.ones_like, 0.3, 0.1)
    expected = np.expm1(0.3 * rate) / rate if rate else 0.3
    assert abs(complex(v) - expected) < 1e-13 * abs(expected) + 1e-15


def test_smooth_field_has_its_law_and_no_mean():
    n, length = 20, 0.2
    # Fields of one number each: their squares add up to the variance.
    numbers = [np.zeros((15, 15)) for _ in range(225)]
    for i, number in enumerate(numbers):
        number.flat[i] = 1
    basis = smooth_field([SimpleNamespace(standard_normal=lambda _, drawn=drawn: drawn) for drawn in numbers], n, length)
    covariance = torch.einsum("bij,b->ij", basis, basis[:, 0, 0])
    x = np.arange(n)[:, None] / n + np.arange(-3, 4)
    axis = np.exp(-(x**2) / (2 * length**2)).sum(1)
    expected = np.outer(axis, axis)
    expected -= expected.mean()
    assert np.allclose(covariance, expected / expected[0, 0], atol=1e-10)
    assert torch.allclose(basis.square().sum(0), torch.ones(n, n, dtype=torch.float64))


# Korteweg–de Vries ------------------------------------------------------------------------------------------


def soliton(x: np.ndarray, dispersion: float, speed: float) -> np.ndarray:
    return sum(3 * speed / np.cosh(math.sqrt(speed) / (2 * dispersion) * (x + shift)) ** 2 for shift in (-2, -1, 0, 1))


@pytest.mark.parametrize("n", [128, 135])
def test_soliton_travels_at_its_speed(n):
    dispersion, speed, time = 0.02, 0.7, 0.8
    x = np.arange(n) / n
    u0 = torch.from_numpy(soliton(x - 0.5, dispersion, speed))
    expected = torch.from_numpy(soliton((x - 0.5 - speed * time) % 1, dispersion, speed))
    assert distance(solve_korteweg_de_vries(u0, dispersion, time), expected) < 1e-6


def test_cnoidal_wave_travels_at_its_speed():
    # u = a cn²(2 q K(m) (x − c t)), q humps in the interval; a and c follow from the equation of cn².
    n, dispersion, m, humps, time = 128, 0.02, 0.9, 2, 0.6
    rate = 2 * humps * ellipk(m)
    amplitude = 12 * m * (dispersion * rate) ** 2
    speed = 4 * (2 * m - 1) * (dispersion * rate) ** 2

    def wave(t: float) -> torch.Tensor:
        return torch.from_numpy(amplitude * ellipj(rate * (np.arange(n) / n - speed * t), m)[1] ** 2)

    assert distance(solve_korteweg_de_vries(wave(0), dispersion, time), wave(time)) < 1e-7


def random_waves(n: int) -> torch.Tensor:
    normals = np.stack([generator.standard_normal((4, 2)) for generator in generators(5)])
    return 0.3 + periodic_field(torch.from_numpy(normals), n)


def test_korteweg_de_vries_agrees_with_a_dense_integration():
    n, dispersion, time = 64, 0.04, 0.2
    j = np.arange(1, n)
    first = (
        2
        * PI
        * toeplitz(np.r_[0, 0.5 * (-1.0) ** j / np.tan(PI * j / n)], np.r_[0, -0.5 * (-1.0) ** j / np.tan(PI * j / n)])
    )
    third = first @ first @ first
    u0 = random_waves(n)[0]
    # Advection, not the flux: what the two discretisations differ in is aliasing.
    dense = solve_ivp(
        lambda _, u: -u * (first @ u) - dispersion**2 * (third @ u), (0, time), u0.numpy(), "LSODA", rtol=1e-9, atol=1e-10
    )
    assert distance(solve_korteweg_de_vries(u0, dispersion, time), torch.from_numpy(dense.y[:, -1])) < 1e-6


# Allen–Cahn -------------------------------------------------------------------------------------------------


def test_allen_cahn_agrees_with_a_dense_integration():
    n, width, time = 32, 0.12, 2.0
    u0 = 0.4 * smooth_field(generators(1), n, 0.2)[0]
    laplacian = second_derivative(n)

    def slope(_, flat):
        u = flat.reshape(n, n)
        return (width**2 * (laplacian @ u + u @ laplacian) + u - u**3).ravel()

    dense = solve_ivp(slope, (0, time), u0.numpy().ravel(), "DOP853", rtol=1e-9, atol=1e-10).y[:, -1].reshape(n, n)
    assert distance(solve_allen_cahn(u0, width, time), torch.from_numpy(dense)) < 2e-5


# Gray–Scott -------------------------------------------------------------------------------------------------

RATES = {"feed": 0.04, "kill": 0.06}


def start(n: int, count: int = 1) -> torch.Tensor:
    field = torch.sigmoid(2 * smooth_field(generators(2 * count), n, 0.3)).reshape(count, 2, n, n)
    return torch.stack((1 - field[:, 0] / 2, field[:, 1] / 4), dim=1)


def kinetics(u, v):
    return -u * v**2 + RATES["feed"] * (1 - u), u * v**2 - (RATES["feed"] + RATES["kill"]) * v


def test_gray_scott_agrees_with_a_dense_integration():
    n, time, diffusion = 48, 30.0, (8e-4, 4e-4)
    state = start(n)[0]
    laplacian = second_derivative(n)

    def slope(_, flat):
        u, v = flat.reshape(2, n, n)
        du, dv = kinetics(u, v)
        du = du + diffusion[0] * (laplacian @ u + u @ laplacian)
        dv = dv + diffusion[1] * (laplacian @ v + v @ laplacian)
        return np.concatenate((du.ravel(), dv.ravel()))

    dense = solve_ivp(slope, (0, time), state.numpy().ravel(), "DOP853", rtol=1e-8, atol=1e-10).y[:, -1].reshape(2, n, n)
    found = solve_gray_scott(state, time, diffusion=diffusion, dt=0.5, **RATES)
    assert distance(found[0], torch.from_numpy(dense[0])) < 2e-5
    assert distance(found[1], torch.from_numpy(dense[1])) < 2e-5


# What all have in common -----------------------------------------------------------------------------------

KDV_START = random_waves(96)
ALLEN_CAHN_START = 0.5 * smooth_field(generators(3), 32, 0.25)


@pytest.mark.parametrize(
    ("solve", "exact", "steps"),
    [
        (lambda dt: solve_korteweg_de_vries(KDV_START, 0.04, 0.1, dt=dt), 1e-4, (4e-3, 2e-3, 1e-3)),
        (lambda dt: solve_allen_cahn(ALLEN_CAHN_START, 0.12, 1.0, dt=dt), 0.005, (0.1, 0.05, 0.025)),
        (
            lambda dt: solve_gray_scott(start(32), 10.0, diffusion=(8e-4, 4e-4), dt=dt, **RATES),
            0.1,
            (2.0, 1.0, 0.5),
        ),
    ],
    ids=["korteweg-de-vries", "allen-cahn", "gray-scott"],
)
def test_solvers_converge_with_order_four(solve, exact, steps):
    """Observed over step lengths that halve, against steps that are much shorter."""
    reference = solve(exact)
    errors = [distance(solve(dt), reference) for dt in steps]
    assert all(3.6 < math.log2(coarse / fine) < 4.4 for coarse, fine in zip(errors, errors[1:], strict=False))


SOLVERS = {
    "interface": lambda u0, viscosity=0.1, time=0.1: solve_interface(u0, viscosity, time),
    "korteweg-de-vries": lambda u0, dispersion=0.1, time=0.1, **other: solve_korteweg_de_vries(
        u0, dispersion, time, **other
    ),
    "allen-cahn": lambda u0, width=0.1, time=0.1, **other: solve_allen_cahn(u0, width, time, **other),
    "gray-scott": lambda u0, time=0.1, **other: solve_gray_scott(u0, time, **{"diffusion": (0.1, 0.1), **RATES, **other}),
}
SHAPES = {"interface": (2, 8, 8, 8), "korteweg-de-vries": (3, 16), "allen-cahn": (3, 16, 16), "gray-scott": (3, 2, 16, 16)}


@pytest.mark.parametrize(
    ("name", "u0", "arguments", "sentence"),
    [
        (
            "korteweg-de-vries",
            3 * random_waves(128),
            {"dispersion": 0.02, "time": 0.5, "dt": 0.01},
            r"does not keep ∫u².*steps of 0\.01 on 128 points; take shorter steps",
        ),
        *(
            (
                "korteweg-de-vries",
                torch.cos(2 * PI * torch.arange(n) / n),
                {"dispersion": 0.011, "time": 0.5, "dt": 5e-4},
                rf"{n} points an axis do not resolve Korteweg–de Vries: .*about 319 points",
            )
            for n in (24, 32, 64)
        ),
        (
            "allen-cahn",
            0.5 * smooth_field(generators(1), 32, 0.2),
            {"width": 0.03, "time": 4.0},
            r"32 points an axis do not resolve Allen–Cahn: .*about 100 points",
        ),
        (
            "allen-cahn",
            20 * smooth_field(generators(1), 32, 0.2),
            {"time": 20.0, "dt": 2.0},
            "diverges with steps of 2; take shorter",
        ),
        (
            "gray-scott",
            start(16),
            {"time": 50.0, "diffusion": (1e-4, 5e-5)},
            r"16 points an axis do not resolve Gray–Scott: .*about 104 points",
        ),
        (
            "gray-scott",
            20 * start(32),
            {"time": 200.0, "diffusion": (8e-4, 4e-4), "dt": 20.0},
            "diverges with steps of 20; take shorter",
        ),
    ],
)
def test_solvers_refuse_what_cannot_be_solved(name, u0, arguments, sentence):
    with pytest.raises(MupError, match=sentence):
        SOLVERS[name](u0, **arguments)


@pytest.mark.parametrize("name", SOLVERS)
def test_solvers_take_any_batch_and_float32(name):
    u0 = torch.rand(SHAPES[name], generator=torch.Generator().manual_seed(0)) * 0.01
    # Of noise the highest mode counts: it is left out.
    u0 = u0.mean((-1,) if name == "korteweg-de-vries" else (-2, -1), keepdim=True).expand(SHAPES[name])
    u = SOLVERS[name](u0)
    assert u.dtype == torch.float64 and u.shape == u0.shape
    assert torch.allclose(SOLVERS[name](u0[0]), u[0], atol=1e-14)
    assert torch.allclose(SOLVERS[name](u0[None]), u[None], atol=1e-14)


# The problems -----------------------------------------------------------------------------------------------


def test_channels_of_gray_scott_are_in_order():
    x, y = get_problem("gray-scott", **SMALL["gray-scott"]).generate().train
    # u begins between 1/2 and 1, v between 0 and 1/4.
    assert float(x[:, 0].min()) >= 0.5 and float(x[:, 0].max()) <= 1
    assert float(x[:, 1].min()) >= 0 and float(x[:, 1].max()) <= 0.25
    assert float(y[:, 0].min()) > 0 and float(y[:, 1].min()) > 0


def test_data_is_the_solution_of_its_initial_state(small):
    x, y = small.generate().train
    fine = get_problem(small.name, **{**SMALL[small.name], "grid": small.fine_grid}).generate()
    stride = small.fine_grid // small.grid
    cut = (..., *[slice(None, None, stride)] * small.n_dim)
    for coarse, whole in zip((x, y), fine.train, strict=True):
        assert torch.allclose(coarse, whole[cut], atol=1e-6)
    arguments = {
        "korteweg-de-vries": {"dispersion": 0.05},
        "allen-cahn": {"time": 1.0},
        "gray-scott": {"time": 10.0, "diffusion": (1e-3, 5e-4)},
        "interface": {"time": 0.3, "viscosity": 0.02},
    }[small.name]
    u0, u = (values.double().squeeze(1) for values in fine.train)  # one channel: no axis for it
    assert distance(SOLVERS[small.name](u0, **arguments), u) < 1e-5


# Trajectories -----------------------------------------------------------------------------------------------

STEPS = 3


@pytest.mark.parametrize("name", ["korteweg-de-vries", "gray-scott", "navier-stokes"])
def test_a_trajectory_is_one_longer_solution(name):
    """The third state from the start, in steps of the trajectory and at once."""
    small = SMALL.get(name, {"n_train": 2, "n_val": 2, "n_test": 1, "grid": 8, "time": 0.2, "spin_up": 1.0})
    times = {"time_points": STEPS + 1} if name == "navier-stokes" else {}
    data = get_problem(f"{name}-in-time", **small, states=6, every=2).generate()
    x, y = get_problem(name, **{**small, **times, "time": STEPS * small["time"]}).generate().val
    last = y[:, :, -1] if times else y  # of all its times
    pairs = data.trajectory
    assert pairs == 5 and len(data.val[0]) == 5 * small["n_val"] and len(data.train[0]) == 3 * small["n_train"]
    assert torch.equal(data.val[0][::pairs], x[:, :, 0] if times else x)
    assert torch.allclose(data.val[1][STEPS - 1 :: pairs], last, rtol=1e-4, atol=1e-5)


def test_pairs_of_a_trajectory_follow_each_other(tmp_path):
    small = get_problem("korteweg-de-vries-in-time", **SMALL["korteweg-de-vries"], states=6, every=2)
    data = small.load(tmp_path)
    again = small.load(tmp_path)
    x, y = (values.unflatten(0, (-1, 5)) for values in again.val)
    assert torch.equal(x[:, 1:], y[:, :-1]) and not torch.equal(x, y)
    assert again.trajectory == data.trajectory == 5 and fingerprint(again) == fingerprint(data)
    assert data.counts() == {"train": 18, "val": 15, "test": 10}


# A growing interface ----------------------------------------------------------------------------------------


def test_the_interface_against_steps_in_time():
    """The equation itself by scipy's Runge–Kutta of order 8, with dense derivatives: nothing of the map of the solver."""
    n, viscosity, time = 12, 0.05, 0.2
    x = np.arange(n) / n
    h0 = 0.1 * (np.sin(2 * PI * x)[:, None, None] + np.cos(2 * PI * (x[:, None] + x)) * np.sin(2 * PI * x)[:, None, None])
    j = np.arange(1, n)
    column = np.append(0.0, 0.5 * (-1.0) ** j / np.tan(PI * j / n))
    once, twice = 2 * PI * toeplitz(column, -column), second_derivative(n)

    def rate(_, flat):
        h = flat.reshape(n, n, n)
        axes = ("ab,bcd->acd", "ab,cbd->cad", "ab,cdb->cda")
        slopes = sum(np.einsum(axis, once, h) ** 2 for axis in axes)
        return (viscosity * sum(np.einsum(axis, twice, h) for axis in axes) + slopes / 2).ravel()

    end = solve_ivp(rate, (0, time), h0.ravel(), method="DOP853", rtol=1e-10, atol=1e-12).y[:, -1].reshape(n, n, n)
    solved = solve_interface(torch.from_numpy(h0), viscosity, time)
    assert distance(solved, torch.from_numpy(end)) < 2e-4
    assert distance(torch.from_numpy(h0), torch.from_numpy(end)) > 0.3


def test_the_interface_starts_with_the_amplitude_that_is_asked_for():
    data = get_problem("interface", n_train=40, n_val=1, n_test=1, grid=16, amplitude=0.2).generate()
    assert float(data.train[0].std()) == pytest.approx(0.2, rel=0.05)
    assert abs(float(data.train[0].mean())) < 0.02
