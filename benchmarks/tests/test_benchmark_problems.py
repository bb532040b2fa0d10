"""The benchmark problems: data is the solution of its initial states and obeys the equation losses."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.problems import Burgers, solve_burgers
from problems import get_problem
from problems.interface import solve_interface
from problems.korteweg_de_vries import solve_korteweg_de_vries
from problems.reactions import solve_allen_cahn, solve_gray_scott

FEW = {"n_train": 4, "n_val": 2, "n_test": 2}
KDV = {**FEW, "grid": 16, "dispersion": 0.05, "time": 0.1}
DARCY = {**FEW, "grid": 16, "solver_grid": 16}
BURGERS = {**FEW, "grid": 32, "viscosity": 0.1, "time": 0.5}
SOLVED = {
    "korteweg-de-vries": (KDV, lambda u: solve_korteweg_de_vries(u, 0.05, 0.1)),
    "allen-cahn": (
        {**FEW, "grid": 8, "width": 0.1, "time": 1.0, "length": 0.2},
        lambda u: solve_allen_cahn(u, 0.1, 1.0),
    ),
    "gray-scott": (
        {**FEW, "grid": 16, "diffusion": (1e-3, 5e-4), "feed": 0.04, "kill": 0.06, "time": 10.0, "length": 0.2},
        lambda u: solve_gray_scott(u, 10.0, diffusion=(1e-3, 5e-4), feed=0.04, kill=0.06),
    ),
    "interface": ({**FEW, "grid": 8, "length": 0.3}, lambda u: solve_interface(u, 0.02, 0.3)),
}


def residual(problem):
    """Return the equation loss per sample of the solution."""
    x, y = problem.generate().train
    return float(problem.losses()["equation"][1](y, x=x, y=y)) / len(y)


@pytest.mark.parametrize(("name", "small", "solve"), [(name, *case) for name, case in SOLVED.items()], ids=SOLVED)
def test_data_is_the_solution_of_its_initial_state(name, small, solve):
    problem = get_problem(name, **small)
    fine = get_problem(name, **{**small, "grid": problem.fine_grid}).generate()
    points = (..., *[slice(None, None, problem.fine_grid // problem.grid)] * problem.n_dim)
    for coarse, whole in zip(problem.generate().train, fine.train, strict=True):
        torch.testing.assert_close(coarse, whole[points], rtol=0, atol=1e-6)
    start, end = (values.double().squeeze(1) for values in fine.train)  # only Gray–Scott has two channels
    torch.testing.assert_close(solve(start), end, rtol=1e-4, atol=1e-5)


# Trajectories


@pytest.mark.parametrize(
    ("name", "small"),
    [("korteweg-de-vries", KDV), ("navier-stokes", {**FEW, "grid": 8, "time": 0.2, "spin_up": 1.0})],
)
def test_a_trajectory_is_one_longer_solution(name, small):
    """The third state after the start, in steps of the trajectory and in one solution."""
    data = get_problem(f"{name}-in-time", **small, states=6, every=2).generate()
    times = {"time_points": 4} if name == "navier-stokes" else {}
    x, y = get_problem(name, **{**small, **times, "time": 3 * small["time"]}).generate().val
    assert data.counts() == {"train": 4 * 3, "val": 2 * 5, "test": 2 * 5}
    assert torch.equal(data.val[0][::5], x[:, :, 0] if times else x)
    torch.testing.assert_close(data.val[1][2::5], y[:, :, -1] if times else y, rtol=1e-4, atol=1e-5)


def test_pairs_of_a_trajectory_are_successive_and_load_from_the_cache(tmp_path):
    problem = get_problem("korteweg-de-vries-in-time", **KDV, states=6, every=2)
    data, cached = problem.load(tmp_path), problem.load(tmp_path)
    x, y = (values.unflatten(0, (-1, 5)) for values in cached.val)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert cached.trajectory == data.trajectory == 5
    assert fingerprint(cached) == fingerprint(data)


# Equation losses


@pytest.mark.parametrize(
    ("name", "sizes", "times"),
    [
        ("burgers-pino", {"grid": 64, "viscosity": 0.05, "time": 2.0}, (32, 128)),
        (
            "navier-stokes",
            {"grid": 32, "reynolds": 10.0, "forcing_wavenumber": 4, "time": 2.0, "spin_up": 0.5, "equation_weight": 1.0},
            (8, 32),
        ),
    ],
)
def test_data_obeys_its_equation_better_with_finer_times(name, sizes, times):
    """Finer times do not reduce the residual of a wrong equation."""
    coarse, fine = (residual(get_problem(name, **FEW, **sizes, time_points=n)) for n in times)
    assert coarse > 4 * fine
    assert fine < 1e-2


def test_burgers_is_the_solution_at_every_time():
    problem = get_problem("burgers-pino", **BURGERS, time_points=8, initial_weight=2.0)
    x, y = problem.generate().train
    start, end = Burgers(**BURGERS).generate().train
    assert torch.equal(y[:, :, 0], start)  # the same initial states
    assert torch.equal(x, y[:, :, :1].expand(4, 1, 8, 32))
    torch.testing.assert_close(y[:, :, -1], end, rtol=0, atol=1e-5)
    middle = solve_burgers(y[:, 0, 3].double(), 0.1, 0.5 / 7)
    torch.testing.assert_close(middle.float(), y[:, 0, 4], rtol=0, atol=1e-4)
    losses = problem.losses()
    assert {name: weight for name, (weight, _) in losses.items()} == {"data": 10.0, "initial": 2.0, "equation": 1.0}
    assert float(losses["initial"][1](y, x=x, y=y)) < 1e-6
    assert float(losses["initial"][1](0 * y, x=x, y=y)) == pytest.approx(len(y), rel=1e-4)


def test_darcy_solution_has_no_residual_on_its_own_grid():
    assert residual(get_problem("darcy-pino", **DARCY)) < 1e-4


def test_darcy_processor_normalizes_and_is_zero_on_the_boundary():
    problem = get_problem("darcy-pino", **{**DARCY, "n_train": 30})
    data = problem.generate()
    x, y = data.train
    processor = problem.processor(data)
    sample = processor.preprocess({"x": x, "y": y})
    assert abs(float(sample["x"].mean())) < 1e-4
    assert float(sample["x"].std()) == pytest.approx(1, abs=1e-3)
    high, low = (processor.postprocess(sign * torch.ones_like(y), sample)[0] for sign in (1, -1))
    assert not high[..., 0].any() and not high[..., -1, :].any()
    # The model output that gives y has mean 0 and standard deviation 1.
    output = ((2 * y - high - low) / (high - low))[..., 1:-1, 1:-1]
    assert abs(float(output.mean())) < 1e-3
    assert float(output.std()) == pytest.approx(1, abs=1e-2)


def test_the_script_of_the_documentation_runs(capsys):
    page = (Path(__file__).parents[2] / "docs" / "howto" / "pino.md").read_text(encoding="utf-8")
    script = page.split("```python\n")[1].split("```")[0]
    smaller = {"n_train=40, n_val=10, n_test=10": "n_train=4, n_val=2, n_test=2", "n_epochs=10": "n_epochs=1"}
    for large, small in smaller.items():
        assert script.count(large) == 1
        script = script.replace(large, small)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*received unexpected keyword arguments")  # the page says so
        exec(compile(script, "docs/howto/pino.md", "exec"), names := {})
    assert "test_equation" in capsys.readouterr().out
    # The same normalizer as the problem's own processor.
    own = get_problem("darcy-pino", **FEW).processor(names["data"]).out_normalizer
    torch.testing.assert_close(names["out_normalizer"].state_dict(), own.state_dict())
