"""The data: solvers against independent solutions in float64, and a cache that can be trusted."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import fields
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems import (
    Darcy,
    ProblemData,
    base,
    burgers,
    solve_burgers,
    solve_darcy,
)
from neuralop_mup.lab.problems.burgers import periodic_field
from neuralop_mup.lab.problems.darcy import neumann_field
from problems import get_problem

PI = math.pi
SMALL = {
    "burgers": {"n_train": 6, "n_val": 3, "n_test": 2, "grid": 16, "viscosity": 0.1, "time": 0.5},
    "darcy": {"n_train": 5, "n_val": 2, "n_test": 3, "grid": 8, "solver_grid": 15},
    "burgers-pino": {"n_train": 4, "n_val": 2, "n_test": 2, "grid": 32, "time_points": 8, "viscosity": 0.1, "time": 0.5},
    "darcy-pino": {"n_train": 5, "n_val": 2, "n_test": 3, "grid": 8, "solver_grid": 15},
    "navier-stokes": {
        **{"n_train": 3, "n_val": 2, "n_test": 2, "grid": 16, "time_points": 4},
        **{"reynolds": 10.0, "time": 0.25, "spin_up": 0.5, "forcing_wavenumber": 4},
    },
    "korteweg-de-vries": {"n_train": 6, "n_val": 3, "n_test": 2, "grid": 16, "dispersion": 0.05, "time": 0.1},
    "allen-cahn": {"n_train": 5, "n_val": 3, "n_test": 2, "grid": 8, "width": 0.1, "time": 1.0, "length": 0.2},
    "gray-scott": {
        **{"n_train": 5, "n_val": 3, "n_test": 2, "grid": 16, "diffusion": (1e-3, 5e-4)},
        **{"time": 10.0, "length": 0.2},
    },
}


def small_problem(name: str, **changes):
    return get_problem(name, **{**SMALL[name], **changes})


@pytest.fixture(params=SMALL)
def every(request):
    """Each problem in turn, those of the benchmarks too."""
    return small_problem(request.param)


@pytest.fixture(params=["burgers", "darcy"])
def small(request):
    return small_problem(request.param)


def tensors(data: ProblemData) -> list[torch.Tensor]:
    return [*data.train, *data.val, *data.test]


def same(one: ProblemData, other: ProblemData) -> bool:
    return all(map(torch.equal, tensors(one), tensors(other)))


def relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float(((value - reference).norm(dim=-1) / reference.norm(dim=-1)).max())


def distance(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value - reference).norm() / reference.norm())


# Burgers ----------------------------------------------------------------------------------------------------


def cole_hopf(u0: torch.Tensor, viscosity: float, time: float) -> torch.Tensor:
    """Exact up to rounding: u = m - 2ν φ_x/φ, φ a solution of the heat equation, in the frame of the mean m."""
    k = 2 * PI * torch.arange(u0.shape[-1] // 2 + 1, dtype=torch.float64)
    mean = u0.mean(-1, keepdim=True)
    integral = torch.fft.rfft(u0 - mean)
    integral[..., 1:] /= 1j * k[1:]
    phi = torch.exp(-torch.fft.irfft(integral) / (2 * viscosity))
    heat = torch.fft.rfft(phi) * torch.exp(-viscosity * k**2 * time - 1j * k * mean * time)
    return mean - 2 * viscosity * torch.fft.irfft(1j * k * heat) / torch.fft.irfft(heat)


def initial_states(n: int, modes: int) -> torch.Tensor:
    normals = np.random.default_rng(7).standard_normal((8, modes, 2))
    return periodic_field(torch.from_numpy(normals), n)


@pytest.mark.parametrize(
    ("viscosity", "n", "modes", "time"),
    [(0.01, 384, 191, 1.0), (0.1, 128, 63, 1.0), (0.02, 256, 20, 0.3), (0.1, 1024, 511, 1.0)],
)
def test_burgers_agrees_with_cole_hopf(viscosity, n, modes, time):
    stride = 16
    reference = cole_hopf(initial_states(stride * n, modes), viscosity, time)[:, ::stride]
    assert relative(solve_burgers(initial_states(n, modes), viscosity, time), reference) < 1e-6


def wave(n: int) -> torch.Tensor:
    return torch.sin(2 * PI * torch.arange(n, dtype=torch.float64) / n)


def test_burgers_converges_in_grid_and_step(monkeypatch):
    """In the grid faster than any power, with order four in the step; too few points are refused."""

    def error(n, viscosity, cfl):
        monkeypatch.setattr(burgers, "_CFL", cfl)
        return relative(solve_burgers(wave(n), viscosity, 0.5), cole_hopf(wave(16 * n), viscosity, 0.5)[::16])

    assert error(64, 0.02, 0.05) / error(128, 0.02, 0.05) > 2**10
    assert 3.5 < math.log2(error(384, 0.01, 1.0) / error(384, 0.01, 0.5)) < 4.5
    with pytest.raises(MupError, match=r"64 points do not resolve .*at least 3840"):
        solve_burgers(wave(64), viscosity=0.001)


@pytest.mark.parametrize("n", [7, 9, 15, 17, 18, 20, 24, 30, 32])
def test_burgers_looks_at_the_highest_mode_of_any_grid(n):
    x = 2 * PI * torch.arange(n, dtype=torch.float64) / n
    # Of so small and brief a state the first mode decays by exp(−4π² ν t) and no other rises to 1e-4 of it.
    expected = 0.01 * math.exp(-4 * PI**2 * 0.01) * torch.sin(x)
    assert relative(solve_burgers(0.01 * torch.sin(x), 1.0, 0.01), expected) < 1e-3
    with pytest.raises(MupError, match=f"{n} points do not resolve"):
        solve_burgers(torch.sin(x) + 0.01 * torch.sin((math.ceil(n / 3) - 1) * x), 1e-3, 1e-3)


def test_periodic_field_has_the_variance_of_its_law():
    # Summed over a basis of normals, the squares are the pointwise variance; the series has a closed form.
    modes, n = 1000, 2048
    basis = torch.eye(2 * modes, dtype=torch.float64).reshape(2 * modes, modes, 2)
    variance = periodic_field(basis, n).square().sum(0)
    a = 5.0
    series = 1 / (4 * a**3 * math.tanh(a / 2)) + 1 / (8 * a**2 * math.sinh(a / 2) ** 2)
    expected = 625 * (series - 1 / a**4)  # without the constant mode
    assert torch.allclose(variance, torch.tensor(expected, dtype=torch.float64), rtol=1e-7)


# Darcy ------------------------------------------------------------------------------------------------------


def nodes(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    axis = torch.linspace(0, 1, n, dtype=torch.float64)
    return torch.meshgrid(axis, axis, indexing="ij")


def smooth_case(n: int):
    """u chosen, f = −∇·(a∇u) by differentiation; neither is symmetric in x and y."""
    x, y = (axis.clone().requires_grad_() for axis in nodes(n))
    a = 2 + torch.sin(3 * x + y) + 0.5 * x * y
    u = torch.sin(PI * x) * torch.sin(2 * PI * y) * torch.exp(x - 0.5 * y)

    def derivative(value, axis):
        return torch.autograd.grad(value.sum(), axis, create_graph=True)[0]

    f = -derivative(a * derivative(u, x), x) - derivative(a * derivative(u, y), y)
    return a.detach(), f.detach(), u.detach()


def layered_case(n: int):
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


def turned_case(n: int):
    """The layers across the other axis."""
    return tuple(field.T.contiguous() for field in layered_case(n))


@pytest.mark.parametrize(
    ("case", "sizes"), [(smooth_case, (16, 32, 64, 128)), (layered_case, (16, 32, 64, 128)), (turned_case, (32, 64))]
)
def test_darcy_is_of_second_order(case, sizes):
    points = []
    for n in sizes:
        a, f, u = case(n)
        error = (solve_darcy(a, f) - u).abs().max() / u.abs().max()
        points.append((math.log(1 / (n - 1)), math.log(error)))
    for (step, error), (finer, less) in zip(points, points[1:], strict=False):
        assert 1.8 < (error - less) / (step - finer) < 2.2


def test_neumann_field_has_the_variance_of_its_law():
    """Of cos(iπx) cos(jπy) the squares are 1 in the corner, and in the middle 1 where i and j are even, else 0."""
    modes, n = 12, 5
    basis = torch.eye(modes**2, dtype=torch.float64).reshape(-1, modes, modes)
    variance = neumann_field(basis, n).square().sum(0)
    i = np.arange(modes)
    twice = np.where(i, 2, 1)
    weights = np.outer(twice, twice) / (PI**2 * np.add.outer(i**2, i**2) + 9) ** 2
    weights[0, 0] = 0
    assert float(variance[0, 0]) == pytest.approx(weights.sum(), rel=1e-12)
    assert float(variance[2, 2]) == pytest.approx(weights[::2, ::2].sum(), rel=1e-12)


# Problems ---------------------------------------------------------------------------------------------------


def test_generated_data_is_float32_of_the_stated_shape(every):
    data = every.generate()
    for split in ("train", "val", "test"):
        x, y = getattr(data, split)
        n = getattr(every, f"n_{split}")
        assert x.shape == (n, every.in_channels, *every.grid_shape) and y.shape == (n, every.out_channels, *every.grid_shape)
        assert x.dtype == y.dtype == torch.float32 and y.is_contiguous()
        assert torch.isfinite(x).all() and torch.isfinite(y).all()
        assert distance(x, y) > 0.1


def test_samples_depend_on_seed_split_and_number_alone(every):
    data = every.generate()
    more = small_problem(every.name, n_train=every.n_train + 2).generate()
    for one, two in zip(tensors(data), tensors(more), strict=True):
        assert torch.allclose(one, two[: len(one)], atol=1e-5)
    other = small_problem(every.name, seed=1).generate()
    for of_both in zip(tensors(data)[:2], tensors(other)[:2], tensors(data)[2:4], tensors(data)[4:], strict=True):
        samples = torch.cat(of_both)
        assert min(distance(a, b) for i, a in enumerate(samples) for b in samples[:i]) > 0.01


def test_same_arguments_give_the_same_data_whatever_the_chunk(every, monkeypatch):
    first = every.generate()
    assert same(first, every.generate())
    monkeypatch.setattr(type(every), "chunk", 2)
    for one, two in zip(tensors(first), tensors(every.generate()), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "changes", "solver_grids", "x_within", "y_within"),
    [
        ("burgers", {"viscosity": 0.02, "grid": 64, "time": 1.0}, (192, 384), 1e-2, 1e-5),  # the finer x has more modes
        ("darcy", {"grid": 16}, (46, 91), 0.25, 0.05),  # x has two values
        ("navier-stokes", {}, (None, 64), 1e-6, 1e-4),
    ],
)
def test_solver_grid_refines_the_same_samples(name, changes, solver_grids, x_within, y_within):
    coarse, fine = (small_problem(name, solver_grid=n, **changes).generate().train for n in solver_grids)
    assert 0 < distance(coarse[1], fine[1]) < y_within and distance(coarse[0], fine[0]) < x_within


def test_darcy_data_has_two_values_and_a_zero_boundary():
    data = Darcy(n_train=4, n_val=1, n_test=1, grid=9, solver_grid=17, contrast=(0.5, 2.0)).generate()
    a, u = data.train
    assert set(a.unique().tolist()) == {0.5, 2.0}
    assert float(u[..., 0, :].abs().max()) == float(u[..., :, -1].abs().max()) == 0
    assert float(u[..., 1:-1, 1:-1].min()) > 0


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("burger", {}, "did you mean 'burgers'"),
        ("burgers", {"viscocity": 0.1}, "did you mean 'viscosity'"),
        ("burgers", {"viscosity": -0.1}, "viscosity is .*finite number above 0"),
        ("burgers", {"viscosity": math.nan}, "viscosity is .*finite number"),
        ("burgers", {"viscosity": "0.1"}, "viscosity is .*number"),
        ("burgers", {"time": math.inf}, "time is .*finite number"),
        ("burgers", {"grid": 4}, "grid is .*whole number, 8 or more"),
        ("burgers", {"grid": 64.0}, "grid is .*whole number"),
        ("burgers", {"grid": 64, "solver_grid": 100}, "try solver_grid=128"),
        ("burgers", {"solver_grid": 64}, "solver_grid is .*whole number, 128 or more"),
        ("burgers", {"n_val": 0}, "n_val is .*whole number, 1 or more"),
        ("burgers", {"seed": -1}, "seed is .*whole number, 0 or more"),
        ("darcy", {"n_train": True}, "n_train is .*whole number"),
        ("darcy", {"grid": 32, "solver_grid": 64}, "try solver_grid=94"),
        ("darcy", {"contrast": (3.0, -12.0)}, "contrast is .*finite number above 0"),
        ("darcy", {"contrast": 3.0}, "contrast must be two numbers"),
        ("burgers-pino", {"time_points": 0}, "time_points is .*whole number, 4 or more"),
        ("burgers-pino", {"viscosity": math.nan}, "viscosity is .*finite number"),
        ("burgers-pino", {"initial_weight": math.inf}, "initial_weight is .*finite"),
        ("burgers-pino", {"data_weight": 0, "initial_weight": 0, "equation_weight": 0}, "are 0"),
        ("darcy-pino", {"equation_weight": "1"}, "equation_weight is .*number"),
        ("darcy-pino", {"equation_weight": 0, "data_weight": 0}, "are 0"),
        ("darcy-pino", {"grid": 32, "solver_grid": 64}, "try solver_grid=94"),
        ("darcy-pino", {"initial_weight": 1}, "no argument 'initial_weight'"),
        ("navier-stokes", {"time_points": 2}, "time_points is .*whole number, 4 or more"),
        ("navier-stokes", {"reynolds": -1}, "reynolds is .*finite number above 0"),
        ("navier-stokes", {"reynolds": "500"}, "reynolds is .*number"),
        ("navier-stokes", {"time": math.nan}, "time is .*finite number"),
        ("navier-stokes", {"spin_up": -1}, "spin_up is .*not negative"),
        ("navier-stokes", {"solver_grid": 32}, "solver_grid is .*whole number, 64 or more"),
        ("navier-stokes", {"solver_grid": 100}, "try solver_grid=112"),
        ("navier-stokes", {"equation_weight": -0.1}, "equation_weight is .*not negative"),
        ("navier-stokes", {"data_weight": 0}, "are 0"),
        ("navier-stokes", {"reynold": 1}, "did you mean 'reynolds'"),
        ("korteweg-de-vries", {"viscosity": 0.1}, "has no argument 'viscosity'"),
        ("gray-scot", {}, "did you mean 'gray-scott'"),
    ],
)
def test_arguments_that_cannot_work_are_refused(name, arguments, sentence):
    with pytest.raises(MupError, match=sentence):
        get_problem(name, **arguments)


# Loaders and processor --------------------------------------------------------------------------------------


def epochs(data: ProblemData, seed: int) -> list[torch.Tensor]:
    loader, _ = data.loaders(batch_size=4, seed=seed)
    return [torch.cat([batch["x"] for batch in loader]) for _ in range(2)]


def test_loaders_shuffle_by_their_seed(small):
    data = small.generate()
    first, again, other = epochs(data, 3), epochs(data, 3), epochs(data, 4)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], other[0])


def test_loaders_keep_pairs_together_and_evaluation_in_order(small):
    data = small.generate()
    loader, evals = data.loaders(batch_size=4, seed=0)
    x, y = data.train
    for batch in loader:
        for one, two in zip(batch["x"], batch["y"], strict=True):
            (index,) = [i for i in range(len(x)) if torch.equal(x[i], one)]
            assert torch.equal(y[index], two)
    assert list(evals) == ["val", "test"] and len(loader.dataset) == small.n_train
    for name, evaluation in evals.items():
        for values, letter in zip(getattr(data, name), "xy", strict=True):
            assert torch.equal(torch.cat([batch[letter] for batch in evaluation]), values)


@pytest.mark.parametrize("name", ["burgers", "darcy", "gray-scott"])
def test_processor_normalizes_each_channel_in_training_and_undoes_it_in_evaluation(name):
    data = small_problem(name).generate()
    (x, y), processor = data.train, data.processor()
    processor.wrap(torch.nn.Identity())
    processor.train()
    batch = processor.preprocess({"x": x, "y": y})
    for values in (batch["x"], batch["y"]):
        channels = values.movedim(1, 0).flatten(1)
        assert channels.mean(1).abs().max() < 1e-4 and (channels.std(1) - 1).abs().max() < 1e-2
    processor.eval()
    raw = processor.preprocess({"x": x, "y": y})
    assert torch.equal(raw["y"], y) and torch.allclose(processor.postprocess(batch["y"], raw)[0], y, atol=1e-6)


# Cache ------------------------------------------------------------------------------------------------------


def never(*_):
    raise AssertionError("generated although it was cached")


def test_cached_data_is_the_generated_data_bit_for_bit(every, tmp_path, monkeypatch):
    first, generated = every.load(tmp_path), every.generate()
    assert same(first, generated)
    monkeypatch.setattr(type(every), "solve", never)
    assert same(first, every.load(tmp_path))
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".safetensors"
    # What is the same at every time is there once.
    assert file.stat().st_size < 2000 + sum(values.untyped_storage().nbytes() for values in tensors(generated))


CHANGES = {
    **{"n_train": 7, "n_val": 4, "n_test": 4, "seed": 2**60, "time": 0.3, "time_points": 10, "spin_up": 0.6},
    **{"viscosity": 0.2, "contrast": (3.0, 13.0), "reynolds": 12.0, "forcing_wavenumber": 3, "forcing_amplitude": 3.0},
    **{"dispersion": 0.06, "waves": 5, "width": 0.11, "length": 0.3, "amplitude": 0.4},
    **{"diffusion": (1e-3, 4e-4), "feed": 0.05, "kill": 0.05},
    **{"data_weight": 3.0, "initial_weight": 3.0, "equation_weight": 3.0},
}


def test_key_follows_every_argument_and_the_version(every, monkeypatch):
    darcy = every.name.startswith("darcy")
    grids = {"grid": 15, "solver_grid": 22} if darcy else {"grid": 2 * every.grid, "solver_grid": 4 * every.fine_grid}
    keys = {every.file_name}
    for field in fields(every):
        key = small_problem(every.name, **{field.name: {**CHANGES, **grids}[field.name]}).file_name
        assert (key in keys) == field.name.endswith("_weight"), field.name
        keys.add(key)
    assert small_problem(every.name, seed=2**60 + 1).file_name not in keys
    if hasattr(every, "solver_grid"):
        assert small_problem(every.name, solver_grid=every.fine_grid).file_name == every.file_name
    monkeypatch.setattr(type(every), "version", 99)
    assert every.file_name not in keys


def test_equal_values_have_one_key():
    assert Darcy(contrast=[3, 12]).file_name == Darcy(contrast=(3.0, 12.0)).file_name == Darcy(seed=np.int64(0)).file_name
    assert len({small_problem("gray-scott", diffusion=kind((1e-4, 5e-5))).file_name for kind in (list, tuple)}) == 1


@pytest.mark.parametrize("damage", ["truncate", "empty"])
def test_damaged_file_is_made_anew_and_says_so(small, tmp_path, damage):
    first = small.load(tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 if damage == "truncate" else 0])
    with pytest.warns(UserWarning, match=f"{path.name} cannot be read .*generated anew"):
        assert same(first, small.load(tmp_path))
    assert same(first, small.load(tmp_path))  # a warning would be an error of the test below


def test_folder_that_cannot_be_written_is_named_before_the_work(small, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(type(small), "solve", never)
    with pytest.raises(MupError, match=r"Cannot write to the cache folder .*file/inside.*NEURALOP_MUP_CACHE"):
        small.load(tmp_path / "file" / "inside")


def test_full_disk_is_an_error_and_leaves_nothing(small, tmp_path, monkeypatch):
    monkeypatch.setattr(base, "save_file", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(MupError, match=f"{tmp_path}: .*No space left"):
        small.load(tmp_path)
    assert not list(tmp_path.iterdir())


def test_data_is_generated_with_one_thread_and_says_so_and_an_interrupt_leaves_nothing(small, tmp_path, monkeypatch, capsys):
    seen = []

    def first(self, generators):
        seen.append(capsys.readouterr().err)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(small), "solve", first)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    with pytest.raises(KeyboardInterrupt):
        small.load(tmp_path)
    threads, said, after = seen
    assert threads == 1 and after == 5 and f"generating {small.name} data:" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({}, ".cache/neuralop_mup"),
        ({"XDG_CACHE_HOME": "{}/xdg"}, "xdg/neuralop_mup"),
        ({"XDG_CACHE_HOME": "{}/xdg", "NEURALOP_MUP_CACHE": "{}/chosen"}, "chosen"),
    ],
)
def test_cache_folder_follows_the_environment(monkeypatch, tmp_path, environment, folder):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("NEURALOP_MUP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    assert base.cache_folder() == tmp_path / folder
    assert base.cache_folder(tmp_path / "given") == tmp_path / "given"
