"""The data: solvers against independent solutions in float64, and a cache that can be trusted."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import numpy as np
import pytest
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.problems import (
    PROBLEMS,
    Burgers,
    Darcy,
    ProblemData,
    base,
    cache,
    get_problem,
    solve_burgers,
    solve_darcy,
)
from neuralop_mup.problems.burgers import periodic_field
from neuralop_mup.problems.darcy import neumann_field, shell_order

PI = math.pi
SMALL = {
    "burgers": {"n_train": 6, "n_val": 3, "n_test": 2, "grid": 16, "viscosity": 0.1, "time": 0.5},
    "darcy": {"n_train": 5, "n_val": 2, "n_test": 3, "grid": 8, "solver_grid": 15},
}


@pytest.fixture(params=sorted(SMALL))
def small(request):
    return get_problem(request.param, **SMALL[request.param])


def tensors(data: ProblemData) -> list[torch.Tensor]:
    return [*data.train, *data.val, *data.test]


def same(one: ProblemData, other: ProblemData) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(other), strict=True))


def relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float(((value - reference).norm(dim=-1) / reference.norm(dim=-1)).max())


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


def test_burgers_moves_with_its_mean():
    n = 128
    u0 = 0.7 + torch.sin(2 * PI * torch.arange(n, dtype=torch.float64) / n)
    assert relative(solve_burgers(u0, 0.05, 0.4), cole_hopf(u0, 0.05, 0.4)) < 1e-6


def test_burgers_converges_in_the_grid_faster_than_any_power():
    fine = 1024
    u0 = torch.sin(2 * PI * torch.arange(fine, dtype=torch.float64) / fine)
    reference = cole_hopf(u0, 0.02, 0.5)
    errors = []
    for n in (64, 128):
        stride = fine // n
        errors.append(relative(solve_burgers(u0[::stride], 0.02, 0.5, cfl=0.05), reference[::stride]))
    assert errors[0] / errors[1] > 2**10


def test_burgers_converges_with_order_four_in_the_step():
    n = 384
    u0 = torch.sin(2 * PI * torch.arange(n, dtype=torch.float64) / n)
    reference = cole_hopf(u0, 0.01, 0.5)
    coarse, fine = (relative(solve_burgers(u0, 0.01, 0.5, cfl=cfl), reference) for cfl in (1.0, 0.5))
    assert 3.5 < math.log2(coarse / fine) < 4.5


def test_burgers_divergence_names_step_and_cfl():
    u0 = 2 + torch.sin(2 * PI * torch.arange(256) / 256)
    with pytest.raises(MupError, match=r"diverges at step \d+ .*CFL number 20"):
        solve_burgers(u0, 0.01, cfl=20)


def test_burgers_refuses_a_grid_that_does_not_resolve_the_front():
    u0 = torch.sin(2 * PI * torch.arange(64) / 64)
    with pytest.raises(MupError, match=r"64 points do not resolve .*at least 3840"):
        solve_burgers(u0, 0.001)


@pytest.mark.parametrize("n", [7, 9, 15, 17, 18, 20, 24, 30, 32])
def test_burgers_looks_at_the_highest_mode_of_any_grid(n):
    x = 2 * PI * torch.arange(n, dtype=torch.float64) / n
    # Of so small and brief a state the first mode decays by exp(−4π² ν t) and no other rises to 1e-4 of it.
    expected = 0.01 * math.exp(-4 * PI**2 * 0.01) * torch.sin(x)
    assert relative(solve_burgers(0.01 * torch.sin(x), 1.0, 0.01), expected) < 1e-3
    with pytest.raises(MupError, match=f"{n} points do not resolve"):
        solve_burgers(torch.sin(x) + 0.01 * torch.sin((math.ceil(n / 3) - 1) * x), 1e-3, 1e-3)


@pytest.mark.parametrize("shape", [(), (3, 0), (3,), (2, 6)])
def test_burgers_says_how_many_points_it_needs(shape):
    with pytest.raises(MupError, match="n of at least 7"):
        solve_burgers(torch.ones(shape), 0.1)


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


def observed_orders(case, sizes) -> list[float]:
    errors = []
    for n in sizes:
        a, f, u = case(n)
        errors.append(float((solve_darcy(a, f) - u).abs().max() / u.abs().max()))
    steps = [1 / (n - 1) for n in sizes]
    return [math.log(errors[i] / errors[i + 1]) / math.log(steps[i] / steps[i + 1]) for i in range(len(sizes) - 1)]


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


@pytest.mark.parametrize("case", [smooth_case, layered_case])
def test_darcy_is_of_second_order(case):
    assert all(1.8 < order < 2.2 for order in observed_orders(case, (16, 32, 64, 128)))


def test_darcy_is_of_second_order_across_layers_of_the_other_axis():
    def turned(n):
        return tuple(field.T.contiguous() for field in layered_case(n))

    assert all(1.8 < order < 2.2 for order in observed_orders(turned, (32, 64)))


def test_darcy_agrees_with_the_sine_series():
    n, a = 65, 3.0
    x, y = nodes(n)
    odd = torch.arange(1, 400, 2, dtype=torch.float64)
    p, q = odd[:, None], odd
    coefficients = 16 / (PI**4 * p * q * (p**2 + q**2) * a)
    series = torch.sin(PI * x[:, :1] * odd) @ coefficients @ torch.sin(PI * y[0, :, None] * odd).T
    error = (solve_darcy(torch.full((n, n), a)) - series).abs().max() / series.abs().max()
    assert error < 5e-4  # h² / 12 times the fourth derivatives
    assert float(solve_darcy(torch.full((n, n), a))[n // 2, n // 2]) == pytest.approx(0.0736713 / a, rel=5e-4)


def test_darcy_agrees_with_a_dense_network_of_resistors():
    # Every pair of neighbours is a conductor of two halves in series; the currents of an inner node sum to f h².
    n = 11
    a = torch.where(torch.rand(2, n, n, generator=torch.Generator().manual_seed(0)) < 0.5, 3.0, 12.0).double()
    f = torch.rand(n, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for sample, u in zip(a, solve_darcy(a, f), strict=True):
        matrix = torch.zeros(n * n, n * n, dtype=torch.float64)
        for i in range(n):
            for j in range(n):
                for k, m in ((i + 1, j), (i, j + 1)):
                    if k < n and m < n:
                        incidence = torch.zeros(n * n, dtype=torch.float64)
                        incidence[i * n + j], incidence[k * n + m] = 1, -1
                        resistance = 0.5 / sample[i, j] + 0.5 / sample[k, m]
                        matrix += torch.outer(incidence, incidence) / resistance
        inner = torch.zeros(n, n, dtype=torch.bool)
        inner[1:-1, 1:-1] = True
        inner = inner.flatten()
        expected = torch.zeros(n * n, dtype=torch.float64)
        expected[inner] = torch.linalg.solve(matrix[inner][:, inner], f.flatten()[inner] / (n - 1) ** 2)
        assert torch.allclose(u.flatten(), expected, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(
    ("a", "f", "sentence"),
    [
        (torch.zeros(5, 5), 1.0, "above 0 everywhere"),
        (torch.full((5, 5), math.nan), 1.0, "finite"),
        (torch.ones(5, 6), 1.0, r"\(5, 6\)"),
        (torch.ones(5, 5), torch.ones(4), r"shape \(4,\) does not fit"),
        (torch.ones(5, 5), math.inf, "f has entries"),
    ],
)
def test_darcy_refuses_what_cannot_be_solved(a, f, sentence):
    with pytest.raises(MupError, match=sentence):
        solve_darcy(a, f)


def test_neumann_field_has_the_variance_of_its_law():
    modes, n = 12, 5
    basis = torch.eye(modes**2, dtype=torch.float64).reshape(-1, modes, modes)
    variance = neumann_field(basis, n).square().sum(0)
    corner, middle = 0.0, 0.0
    for i in range(modes):
        for j in range(modes):
            if i or j:
                weight = (2 if i else 1) * (2 if j else 1) / (PI**2 * (i * i + j * j) + 9) ** 2
                corner += weight
                middle += weight * (i % 2 == 0) * (j % 2 == 0)
    assert float(variance[0, 0]) == pytest.approx(corner, rel=1e-12)
    assert float(variance[2, 2]) == pytest.approx(middle, rel=1e-12)


def test_shell_order_keeps_the_low_modes():
    large = shell_order(7)
    assert sorted(large.ravel()) == list(range(49))
    assert np.array_equal(large[:4, :4], shell_order(4))


# Problems ---------------------------------------------------------------------------------------------------


def test_generated_data_is_float32_of_the_stated_shape(small):
    data = small.generate()
    for split in ("train", "val", "test"):
        for values in getattr(data, split):
            assert values.dtype == torch.float32 and values.is_contiguous()
            assert values.shape == (getattr(small, f"n_{split}"), 1, *small.grid_shape)
            assert torch.isfinite(values).all()


def test_more_training_samples_leave_the_others_alone(small):
    more = get_problem(small.name, **{**SMALL[small.name], "n_train": small.n_train + 2}).generate()
    data = small.generate()
    for one, other in zip(data.train, more.train, strict=True):
        assert torch.allclose(one, other[: small.n_train], atol=1e-6)
    for one, other in zip((*data.val, *data.test), (*more.val, *more.test), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    firsts = [getattr(data, split)[0][0] for split in ("train", "val", "test")]
    assert not any(torch.equal(firsts[i], firsts[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_seed_changes_every_sample(small):
    other = get_problem(small.name, **{**SMALL[small.name], "seed": 1}).generate()
    for one, two in zip(tensors(small.generate()), tensors(other), strict=True):
        assert not any(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_solver_grid_refines_the_same_samples():
    arguments = {"n_train": 5, "n_val": 1, "n_test": 1, "viscosity": 0.02, "grid": 64}
    coarse, fine = (get_problem("burgers", solver_grid=n, **arguments).generate().train for n in (192, 384))
    assert relative(coarse[0].double(), fine[0].double()) < 1e-2  # the finer field has more modes
    assert relative(coarse[1].double(), fine[1].double()) < 1e-5
    arguments = {"n_train": 5, "n_val": 1, "n_test": 1, "grid": 16}
    coarse, fine = (get_problem("darcy", solver_grid=n, **arguments).generate().train for n in (46, 91))
    assert (coarse[0] != fine[0]).float().mean() < 0.05
    assert relative(coarse[1].flatten(1), fine[1].flatten(1)) < 0.05


def test_burgers_data_has_the_spread_of_its_law():
    x = Burgers(n_train=400, n_val=1, n_test=1, grid=32, viscosity=0.1, time=0.01).generate().train[0]
    k = np.arange(1, 1000)
    expected = 2 * (625 / ((2 * PI * k) ** 2 + 25) ** 2).sum()
    assert float(x.square().mean()) == pytest.approx(expected, rel=0.2)  # standard error: 4 %
    assert float(x.mean(-1).abs().max()) < 1e-3


def test_darcy_data_has_two_values_and_a_zero_boundary():
    data = Darcy(n_train=4, n_val=1, n_test=1, grid=9, solver_grid=17, contrast=(0.5, 2.0)).generate()
    a, u = data.train
    assert set(a.unique().tolist()) == {0.5, 2.0}
    assert float(u[..., 0, :].abs().max()) == float(u[..., :, -1].abs().max()) == 0
    assert float(u[..., 1:-1, 1:-1].min()) > 0


def test_presets_are_those_of_the_paper():
    burgers, darcy = Burgers.preset("paper"), Darcy.preset("paper")
    assert (burgers.viscosity, burgers.fine_grid, burgers.grid_shape) == (0.1, 8192, (1024,))
    assert (burgers.n_train, burgers.n_val, burgers.n_test) == (800, 200, 200)
    assert (darcy.fine_grid, darcy.grid_shape, darcy.n_train, darcy.n_test) == (421, (61, 61), 1000, 500)
    assert Darcy.preset("cpu") == Darcy() and Darcy.preset("paper", n_train=7).n_train == 7
    with pytest.raises(MupError, match="did you mean 'paper'"):
        Burgers.preset("papers")


def test_default_solver_grid_fits_the_grid_and_the_viscosity():
    assert Burgers().fine_grid == 384
    assert Burgers(grid=100).fine_grid == 400
    assert Burgers(viscosity=0.1).fine_grid == 128
    assert Darcy().fine_grid == 94 and Darcy(grid=200).fine_grid == 200


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("burger", {}, "did you mean 'burgers'"),
        ("burgers", {"viscocity": 0.1}, "did you mean 'viscosity'"),
        ("burgers", {"viscosity": -0.1}, "viscosity is .*finite number above 0"),
        ("burgers", {"viscosity": math.nan}, "viscosity is .*finite number"),
        ("burgers", {"viscosity": "0.1"}, "viscosity is .*number"),
        ("burgers", {"time": math.inf}, "time is .*finite number"),
        ("burgers", {"grid": 33}, "grid must be even"),
        ("burgers", {"grid": 4}, "grid is .*whole number, 8 or more"),
        ("burgers", {"grid": 64.0}, "grid is .*whole number"),
        ("burgers", {"grid": 64, "solver_grid": 100}, "100 is no multiple of 64, 128 is"),
        ("burgers", {"solver_grid": 64}, "solver_grid is .*whole number, 128 or more"),
        ("burgers", {"n_val": 0}, "n_val is .*whole number, 1 or more"),
        ("burgers", {"seed": -1}, "seed is .*whole number, 0 or more"),
        ("darcy", {"n_train": True}, "n_train is .*whole number"),
        ("darcy", {"grid": 32, "solver_grid": 64}, "try solver_grid=94"),
        ("darcy", {"contrast": (3.0, -12.0)}, "contrast is .*finite number above 0"),
        ("darcy", {"contrast": 3.0}, "contrast must be two numbers"),
    ],
)
def test_arguments_that_cannot_work_are_refused(name, arguments, sentence):
    with pytest.raises(MupError, match=sentence):
        get_problem(name, **arguments)


def test_registry_and_problems_agree():
    assert all(cls.name == name and len(cls().grid_shape) == cls.n_dim for name, cls in PROBLEMS.items())


# Loaders and processor --------------------------------------------------------------------------------------


def epochs(data: ProblemData, seed: int) -> list[torch.Tensor]:
    loader, _ = data.loaders(batch_size=4, seed=seed)
    return [torch.cat([batch["x"] for batch in loader]) for _ in range(2)]


def test_loaders_shuffle_by_their_seed(small):
    data = small.generate()
    first, again, other = epochs(data, 3), epochs(data, 3), epochs(data, 4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], other[0])
    for order in first:
        assert torch.equal(order.flatten(1).sum(1).sort()[0], data.train[0].flatten(1).sum(1).sort()[0])


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
    with pytest.raises(MupError, match="batch_size is .*whole number, 1 or more"):
        data.loaders(0, 0)


def test_processor_normalizes_in_training_and_undoes_it_in_evaluation(small):
    data = small.generate()
    processor = data.processor()
    processor.wrap(torch.nn.Identity())
    x, y = data.train

    processor.train()
    batch = processor.preprocess({"x": x, "y": y})
    for values in (batch["x"], batch["y"]):
        assert float(values.mean()) == pytest.approx(0, abs=1e-4)
        assert float(values.std()) == pytest.approx(1, abs=1e-3)
    normalized = batch["y"]
    assert torch.equal(processor.postprocess(normalized, batch)[0], normalized)

    processor.eval()
    batch = processor.preprocess({"x": x, "y": y})
    assert torch.equal(batch["y"], y)
    assert torch.allclose(processor.postprocess(normalized, batch)[0], y, atol=1e-6)


# Cache ------------------------------------------------------------------------------------------------------


def never(*_):
    raise AssertionError("generated although it was cached")


def test_cached_data_is_the_generated_data_bit_for_bit(small, tmp_path, monkeypatch):
    first = small.load(tmp_path)
    monkeypatch.setattr(type(small), "solve", never)
    assert same(first, small.load(tmp_path))
    assert [file.suffix for file in tmp_path.iterdir()] == [".safetensors"]


def test_key_follows_every_argument_and_the_version(small, monkeypatch):
    changes = {"n_train": 7, "n_val": 4, "n_test": 4, "grid": 22, "solver_grid": 64, "seed": 2**60}
    changes |= {"viscosity": 0.2, "time": 0.7} if small.name == "burgers" else {"contrast": (3.0, 13.0)}
    if small.name == "darcy":
        changes |= {"grid": 15, "solver_grid": 22}
    keys = {small.key}
    for name, value in changes.items():
        keys.add(get_problem(small.name, **{**SMALL[small.name], name: value}).key)
    assert set(changes) == {field.name for field in fields(small)}
    assert len(keys) == len(changes) + 1
    assert get_problem(small.name, **{**SMALL[small.name], "seed": 2**60 + 1}).key not in keys
    assert get_problem(small.name, **{**SMALL[small.name], "solver_grid": small.fine_grid}).key in keys
    monkeypatch.setattr(type(small), "version", 99)
    assert small.key not in keys


def test_equal_values_have_one_key():
    assert Darcy(contrast=[3, 12]).key == Darcy(contrast=(3.0, 12.0)).key == Darcy(seed=np.int64(0)).key


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_damaged_file_is_made_anew_and_says_so(small, tmp_path, damage):
    first = small.load(tmp_path)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle] ^= 1
    path.write_bytes({"truncate": content[:middle], "flip": content, "empty": b""}[damage])
    with pytest.warns(UserWarning, match=f"{path.name} cannot be read .*generated anew"):
        assert same(first, small.load(tmp_path))
    assert same(first, small.load(tmp_path))  # a warning would be an error of the test below


def test_file_of_other_arguments_is_not_taken(small, tmp_path):
    other = get_problem(small.name, **{**SMALL[small.name], "seed": 5})
    other.load(tmp_path)
    (path,) = tmp_path.iterdir()
    path.rename(path.with_name(path.name.replace(other.key[:24], small.key[:24])))
    with pytest.warns(UserWarning, match="other arguments"):
        assert same(small.load(tmp_path), small.generate())


def test_folder_that_cannot_be_written_is_named_before_the_work(small, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(type(small), "solve", never)
    with pytest.raises(MupError, match=r"Cannot write to the cache folder .*file/inside.*NEURALOP_MUP_CACHE"):
        small.load(tmp_path / "file" / "inside")


def test_full_disk_is_an_error_and_leaves_nothing(small, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache, "write", full)
    with pytest.raises(MupError, match=f"{tmp_path}: No space left"):
        small.load(tmp_path)
    assert not list(tmp_path.iterdir())


def test_interrupted_generation_leaves_nothing(small, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(small), "solve", interrupt)
    with pytest.raises(KeyboardInterrupt):
        small.load(tmp_path)
    assert not list(tmp_path.iterdir())


def test_two_loads_at_once_are_safe(small, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: small.load(tmp_path), range(4)))
    assert all(same(loaded[0], other) for other in loaded[1:])
    assert len(list(tmp_path.iterdir())) == 1


def test_who_comes_second_waits_and_finds_the_data(small, tmp_path, monkeypatch):
    solve, calls = type(small).solve, []
    monkeypatch.setattr(
        type(small), "solve", lambda self, generators: calls.append(len(generators)) or solve(self, generators)
    )
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: small.load(tmp_path), range(3)))
    assert sum(calls) == small.n_train + small.n_val + small.n_test


def test_data_is_generated_with_one_thread_and_says_so_at_once(small, tmp_path, monkeypatch, capsys):
    seen = []

    def first(self, generators):
        seen.append((torch.get_num_threads(), capsys.readouterr().err))
        raise KeyboardInterrupt

    monkeypatch.setattr(type(small), "solve", first)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            small.load(tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    total = small.n_train + small.n_val + small.n_test
    assert seen == [(1, f"generating {small.name} data, samples: {total} in all\n")]


def test_a_file_is_hashed_once_in_a_process_and_mapped(small, tmp_path, monkeypatch):
    small.load(tmp_path)
    small.load(tmp_path)
    monkeypatch.setattr(cache, "_digest", never)
    again = small.load(tmp_path)
    assert torch.equal(again.train[1], small.load(tmp_path).train[1])


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NEURALOP_MUP_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.cache_folder() == tmp_path / ".cache" / "neuralop_mup"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_folder() == tmp_path / ".cache" / "neuralop_mup"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg" / "neuralop_mup"
    monkeypatch.setenv("NEURALOP_MUP_CACHE", str(tmp_path / "chosen"))
    assert cache.cache_folder() == tmp_path / "chosen"
    assert cache.cache_folder(tmp_path / "given") == tmp_path / "given"


def test_importing_problems_adds_no_heavy_module():
    script = (
        "import sys, torch, neuralop_mup; before = set(sys.modules); import neuralop_mup.problems; "
        "heavy = [m for m in set(sys.modules) - before if m.split('.')[0] in ('neuralop', 'scipy', 'matplotlib')]; "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_a_long_generation_goes_on_where_it_was_killed(tmp_path, monkeypatch):
    problem = get_problem("burgers", n_train=6, n_val=2, n_test=2, grid=16, viscosity=0.1)
    monkeypatch.setattr(Burgers, "chunk", 2)
    whole = tensors(problem.generate())
    monkeypatch.setattr(base, "_KEPT_AFTER", -1.0)
    solve, calls = Burgers.solve, []

    def killed_at_the_fourth(self, generators):
        calls.append(len(generators))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return solve(self, generators)

    monkeypatch.setattr(Burgers, "solve", killed_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        problem.load(tmp_path)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 3  # of five chunks; no data file yet
    damaged = sorted(tmp_path.rglob("train-*.safetensors"))[0]
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.warns(UserWarning, match="cannot be read"):
        data = problem.load(tmp_path)
    assert len(calls) == 4 + 3  # the damaged chunk and the two that were missing
    assert all(torch.equal(a, b) for a, b in zip(tensors(data), whole, strict=True))
    assert [path.name for path in tmp_path.rglob("*")] == [problem.file_name]
