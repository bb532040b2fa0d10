"""Data of the benchmarks' own problems: what is generated, its cache, and impossible arguments."""

import math
from dataclasses import fields

import pytest
import torch

from neuralop_mup.errors import MupError
from problems import get_problem

SIZES = {"n_train": 4, "n_val": 2, "n_test": 2}
SMALL = {
    "burgers-pino": {**SIZES, "grid": 32, "time_points": 8, "viscosity": 0.1, "time": 0.5},
    "navier-stokes": {**SIZES, "grid": 16, "time_points": 4, "reynolds": 10.0, "time": 0.25, "spin_up": 0.5},
    "korteweg-de-vries": {**SIZES, "grid": 16, "dispersion": 0.05, "time": 0.1},
    "allen-cahn": {**SIZES, "grid": 8, "width": 0.1, "time": 1.0, "length": 0.2},
    "gray-scott": {**SIZES, "grid": 16, "diffusion": (1e-3, 5e-4), "time": 10.0, "length": 0.2},
}
CHANGES = {
    **{"n_train": 7, "n_val": 4, "n_test": 4, "seed": 2**60, "time": 0.3, "time_points": 10, "spin_up": 0.6},
    **{"viscosity": 0.2, "reynolds": 12.0, "forcing_wavenumber": 3, "forcing_amplitude": 3.0, "dispersion": 0.06},
    **{"waves": 5, "width": 0.11, "length": 0.3, "amplitude": 0.4, "diffusion": (1e-3, 4e-4), "feed": 0.05, "kill": 0.05},
    **{"data_weight": 3.0, "initial_weight": 3.0, "equation_weight": 3.0},
}


def tensors(data):
    return [*data.train, *data.val, *data.test]


@pytest.mark.parametrize("name", SMALL)
def test_generated_data(name, tmp_path, monkeypatch):
    """More training samples, another chunk and the cache change nothing."""
    problem = get_problem(name, **SMALL[name])
    cached = tensors(problem.load(tmp_path))
    assert all(map(torch.equal, cached, tensors(problem.load(tmp_path))))
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 2000 + sum(values.untyped_storage().nbytes() for values in tensors(problem.generate()))
    monkeypatch.setattr(type(problem), "chunk", 3)
    more = tensors(get_problem(name, **{**SMALL[name], "n_train": 6}).generate())
    channels = 3 * (problem.in_channels, problem.out_channels)
    for one, two, count in zip(cached, more, channels, strict=True):
        assert torch.allclose(one, two[: len(one)], atol=1e-5)
        assert (one.shape[1:], one.dtype) == ((count, *problem.grid_shape), torch.float32)


@pytest.mark.parametrize("name", SMALL)
def test_the_cached_file_is_named_after_all_that_the_data_depends_on(name):
    problem = get_problem(name, **SMALL[name])
    changes = {**CHANGES, "grid": 2 * problem.grid, "solver_grid": 4 * problem.fine_grid}
    names = {problem.file_name}
    for field in fields(problem):
        changed = get_problem(name, **{**SMALL[name], field.name: changes[field.name]}).file_name
        assert (changed in names) == field.name.endswith("_weight"), field.name
        names.add(changed)


def test_navier_stokes_on_a_finer_solver_grid():
    coarse, fine = (
        get_problem("navier-stokes", **SMALL["navier-stokes"], solver_grid=n).generate().train for n in (None, 64)
    )
    for one, two, tolerance in zip(coarse, fine, (1e-6, 1e-4), strict=True):
        assert (one - two).norm() < tolerance * two.norm()


@pytest.mark.parametrize(
    ("name", "arguments", "match"),
    [
        ("burgers-pino", {"time_points": 0}, "time_points"),
        ("burgers-pino", {"viscosity": math.nan}, "viscosity"),
        ("burgers-pino", {"initial_weight": math.inf}, "initial_weight"),
        ("burgers-pino", {"data_weight": 0, "initial_weight": 0, "equation_weight": 0}, "initial_weight"),
        ("navier-stokes", {"reynolds": -1}, "reynolds"),
        ("navier-stokes", {"time": math.nan}, "time"),
        ("navier-stokes", {"spin_up": -1}, "spin_up"),
        ("navier-stokes", {"solver_grid": 32}, "solver_grid.*64"),
        ("navier-stokes", {"solver_grid": 100}, "solver_grid=112"),
        ("navier-stokes", {"reynold": 1}, "'reynolds'"),
        ("korteweg-de-vries", {"viscosity": 0.1}, "'viscosity'"),
        ("gray-scot", {}, "'gray-scott'"),
    ],
)
def test_impossible_arguments_are_refused(name, arguments, match):
    with pytest.raises(MupError, match=match):
        get_problem(name, **arguments)
