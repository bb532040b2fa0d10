"""The package's problems: solvers against independent solutions in float64, generated data, and its cache."""

import errno
import math
import os
from dataclasses import fields
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from neuralop_mup.lab.problems import Darcy, base, burgers, get_problem, solve_burgers, solve_darcy
from neuralop_mup.lab.problems.burgers import periodic_field
from neuralop_mup.lab.problems.darcy import neumann_field
from support.errors import refused
from support.files import assert_equal

PI = math.pi
SIZES = {"n_train": 5, "n_val": 2, "n_test": 3}
SMALL = {
    "burgers": {**SIZES, "grid": 16, "viscosity": 0.1, "time": 0.5},
    "darcy": {**SIZES, "grid": 8, "solver_grid": 15},
    "darcy-pino": {**SIZES, "grid": 8, "solver_grid": 15},
}


def small_problem(name, **changes):
    return get_problem(name, **{**SMALL[name], **changes})


@pytest.fixture(params=SMALL)
def problem(request):
    return small_problem(request.param)


def tensors(data):
    return [*data.train, *data.val, *data.test]


def distance(value, reference):
    return float((value - reference).norm() / reference.norm())


# Burgers


def cole_hopf(u0, viscosity, time):
    """Exact up to rounding: u = m - 2ν φ_x/φ, φ a solution of the heat equation, in the frame of the mean m."""
    k = 2 * PI * torch.arange(u0.shape[-1] // 2 + 1, dtype=torch.float64)
    mean = u0.mean(-1, keepdim=True)
    integral = torch.fft.rfft(u0 - mean)
    integral[..., 1:] /= 1j * k[1:]
    phi = torch.exp(-torch.fft.irfft(integral) / (2 * viscosity))
    heat = torch.fft.rfft(phi) * torch.exp(-viscosity * k**2 * time - 1j * k * mean * time)
    return mean - 2 * viscosity * torch.fft.irfft(1j * k * heat) / torch.fft.irfft(heat)


def wave(n):
    return torch.sin(2 * PI * torch.arange(n, dtype=torch.float64) / n)


def random_states(n, modes):
    normals = np.random.default_rng(7).standard_normal((8, modes, 2))
    return periodic_field(torch.from_numpy(normals), n)


@pytest.mark.parametrize(("viscosity", "n", "modes", "time"), [(0.01, 384, 191, 1.0), (0.1, 1024, 511, 0.3)])
def test_burgers_agrees_with_cole_hopf(viscosity, n, modes, time):
    reference = cole_hopf(random_states(16 * n, modes), viscosity, time)[:, ::16]
    difference = solve_burgers(random_states(n, modes), viscosity, time) - reference
    assert (difference.norm(dim=-1) / reference.norm(dim=-1)).max() < 1e-6


def test_burgers_converges_in_grid_and_step(monkeypatch):
    """In the grid faster than any power, with order four in the step."""

    def error(n, viscosity, cfl):
        monkeypatch.setattr(burgers, "_CFL", cfl)
        return distance(solve_burgers(wave(n), viscosity, 0.5), cole_hopf(wave(16 * n), viscosity, 0.5)[::16])

    assert error(64, 0.02, 0.05) / error(128, 0.02, 0.05) > 2**10
    assert 3.5 < math.log2(error(384, 0.01, 1.0) / error(384, 0.01, 0.5)) < 4.5


@pytest.mark.parametrize("n", [7, 9, 15, 17, 18, 20, 24, 30, 32])
def test_burgers_checks_the_highest_mode_of_any_grid(n):
    """The first mode of a small state decays by exp(−4π² ν t) and no other rises to 1e-4 of it."""
    x = 2 * PI * torch.arange(n, dtype=torch.float64) / n
    expected = 0.01 * math.exp(-4 * PI**2 * 0.01) * torch.sin(x)
    assert distance(solve_burgers(0.01 * torch.sin(x), 1.0, 0.01), expected) < 1e-3
    with refused(f"{n}points"):
        solve_burgers(torch.sin(x) + 0.01 * torch.sin((math.ceil(n / 3) - 1) * x), 1e-3, 1e-3)


def test_variance_of_periodic_fields():
    """Over a basis of normals the squares sum to the variance in each point; the series has a closed form."""
    modes = 1000
    basis = torch.eye(2 * modes, dtype=torch.float64).reshape(2 * modes, modes, 2)
    a = 5.0
    series = 1 / (4 * a**3 * math.tanh(a / 2)) + 1 / (8 * a**2 * math.sinh(a / 2) ** 2)
    expected = torch.tensor(625 * (series - 1 / a**4), dtype=torch.float64)  # without the constant mode
    assert torch.allclose(periodic_field(basis, 2048).square().sum(0), expected, rtol=1e-7)


# Darcy


def nodes(n):
    axis = torch.linspace(0, 1, n, dtype=torch.float64)
    return torch.meshgrid(axis, axis, indexing="ij")


def smooth_case(n):
    """u chosen, f = −∇·(a∇u) by differentiation; neither is symmetric in x and y."""
    x, y = (axis.clone().requires_grad_() for axis in nodes(n))
    a = 2 + torch.sin(3 * x + y) + 0.5 * x * y
    u = torch.sin(PI * x) * torch.sin(2 * PI * y) * torch.exp(x - 0.5 * y)

    def derivative(value, axis):
        return torch.autograd.grad(value.sum(), axis, create_graph=True)[0]

    f = -derivative(a * derivative(u, x), x) - derivative(a * derivative(u, y), y)
    return a.detach(), f.detach(), u.detach()


def layered_case(n):
    """a jumps from 3 to 12 at x = 1/2, between two nodes (n even); the flux a u_x = p(x) sin(πy) does not."""
    x, y = nodes(n)
    c = -1.2 / PI  # makes u vanish at x = 1
    left = x < 0.5
    a = torch.where(left, 3.0, 12.0).double()
    area = torch.sin(PI * x) / PI + c * x  # the integral of p = cos(πx) + c
    half = 1 / PI + c / 2
    g = torch.where(left, area / 3, half / 3 + (area - half) / 12)
    f = (PI * torch.sin(PI * x) + a * PI**2 * g) * torch.sin(PI * y)
    return a, f, g * torch.sin(PI * y)


@pytest.mark.parametrize("case", [smooth_case, layered_case])
def test_darcy_is_of_second_order(case):
    errors = []
    for n in (32, 64):
        a, f, u = case(n)
        errors.append(float((solve_darcy(a, f) - u).abs().max() / u.abs().max()))
    assert 1.8 < math.log(errors[0] / errors[1]) / math.log(63 / 31) < 2.2


def test_variance_of_neumann_fields():
    """The squares of cos(iπx) cos(jπy) are 1 in the corner, and in the middle 1 where i and j are even, else 0."""
    modes = 12
    basis = torch.eye(modes**2, dtype=torch.float64).reshape(-1, modes, modes)
    variance = neumann_field(basis, 5).square().sum(0)
    i = np.arange(modes)
    twice = np.where(i, 2, 1)
    weights = np.outer(twice, twice) / (PI**2 * np.add.outer(i**2, i**2) + 9) ** 2
    weights[0, 0] = 0
    assert float(variance[0, 0]) == pytest.approx(weights.sum(), rel=1e-12)
    assert float(variance[2, 2]) == pytest.approx(weights[::2, ::2].sum(), rel=1e-12)


# Generated data


def test_samples_depend_only_on_seed_split_and_number(problem, monkeypatch):
    """They do not depend on the number of samples, nor on the number that is solved at once."""
    data = problem.generate()
    assert [x.shape for x in tensors(data)] == [(n, 1, *problem.grid_shape) for n in (5, 5, 2, 2, 3, 3)]
    other = small_problem(problem.name, seed=1).generate()
    samples = torch.cat([data.train[0], data.val[0], data.test[0], other.train[0]])
    assert min(distance(a, b) for i, a in enumerate(samples) for b in samples[:i]) > 0.01
    monkeypatch.setattr(type(problem), "chunk", 2)
    for one, two in zip(tensors(data), tensors(small_problem(problem.name, n_train=7).generate()), strict=True):
        assert (one.dtype, two.dtype) == (torch.float32, torch.float32)
        assert torch.allclose(one, two[: len(one)], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments", "names"),
    [
        ("burger", {}, "'burger' 'burgers'"),
        ("burgers", {"viscocity": 0.1}, "'viscocity' 'viscosity'"),
        ("burgers", {"viscosity": -0.1}, "viscosity -0.1"),
        ("burgers", {"viscosity": math.nan}, "viscosity nan"),
        ("burgers", {"viscosity": "0.1"}, "viscosity '0.1'"),
        ("burgers", {"time": math.inf}, "time inf"),
        ("burgers", {"grid": 4}, "grid 4 8"),
        ("burgers", {"grid": 64.0}, "grid 64.0"),
        ("burgers", {"grid": 64, "solver_grid": 100}, "solver_grid=128"),
        ("burgers", {"solver_grid": 64}, "solver_grid 128"),
        ("burgers", {"n_val": 0}, "n_val 1"),
        ("burgers", {"seed": -1}, "seed -1"),
        ("darcy", {"n_train": True}, "n_train True"),
        ("darcy", {"grid": 32, "solver_grid": 64}, "solver_grid=94"),
        ("darcy", {"contrast": (3.0, -12.0)}, "contrast -12.0"),
        ("darcy", {"contrast": 3.0}, "contrast 3.0"),
        ("darcy-pino", {"equation_weight": "1"}, "equation_weight '1'"),
        ("darcy-pino", {"equation_weight": -0.1}, "equation_weight -0.1"),
        ("darcy-pino", {"equation_weight": 0, "data_weight": 0}, "equation_weight data_weight 0"),
    ],
)
def test_impossible_arguments_are_refused(name, arguments, names):
    with refused(names):
        get_problem(name, **arguments)


# Cache


def never(*_):
    raise AssertionError("generated although it was cached")


@pytest.mark.parametrize("size", [0, 200])
def test_cached_data_is_the_generated_data_also_after_damage(problem, tmp_path, monkeypatch, size):
    first = tensors(problem.load(tmp_path))
    assert_equal(tensors(problem.generate()), first)
    (path,) = tmp_path.iterdir()
    os.truncate(path, size)
    with pytest.warns(UserWarning, match=path.name):
        assert_equal(tensors(problem.load(tmp_path)), first)
    monkeypatch.setattr(type(problem), "solve", never)
    assert_equal(tensors(problem.load(tmp_path)), first)


CHANGES = {
    **{"n_train": 7, "n_val": 4, "n_test": 4, "grid": 15, "solver_grid": 22, "seed": 2**60, "time": 0.3, "viscosity": 0.2},
    **{"contrast": (3.0, 13.0), "data_weight": 3.0, "equation_weight": 3.0},
}


def test_the_cached_file_is_named_after_all_that_the_data_depends_on(problem, monkeypatch):
    changes = {**CHANGES, "grid": 32, "solver_grid": 256} if problem.name == "burgers" else CHANGES
    names = {problem.file_name}
    for field in fields(problem):
        name = small_problem(problem.name, **{field.name: changes[field.name]}).file_name
        assert (name in names) == field.name.endswith("_weight"), field.name
        names.add(name)
    assert small_problem(problem.name, seed=2**60 + 1).file_name not in names
    assert (
        Darcy(contrast=[3.0, 12.0]).file_name == Darcy(contrast=(3.0, 12.0)).file_name == Darcy(seed=np.int64(0)).file_name
    )
    monkeypatch.setattr(type(problem), "version", 99)
    assert problem.file_name not in names


def test_a_folder_that_cannot_be_written_is_named_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    problem = small_problem("burgers")
    monkeypatch.setattr(type(problem), "solve", never)
    with refused("file/inside NEURALOP_MUP_CACHE"):
        problem.load(tmp_path / "file" / "inside")


def test_a_full_disk_leaves_no_file_and_data_is_generated_with_one_thread(tmp_path, monkeypatch):
    threads = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(base, "save_file", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with refused(f"{tmp_path} space"):
        small_problem("burgers").load(tmp_path)
    assert (threads, list(tmp_path.iterdir())) == ([1, 5], [])
