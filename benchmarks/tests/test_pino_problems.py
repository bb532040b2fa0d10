"""Problems with an equation loss: the data obeys the equation, the processor keeps units, and weights leave data alone."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from neuralop_mup.lab.problems import Burgers, solve_burgers
from problems import get_problem

DARCY = {"n_train": 6, "n_val": 2, "n_test": 2, "grid": 16, "solver_grid": 16}
BURGERS = {"n_train": 4, "n_val": 2, "n_test": 2, "grid": 32, "time_points": 8, "viscosity": 0.1, "time": 0.5}


def residual(problem) -> float:
    """Equation loss a sample, of the solution itself."""
    x, y = problem.generate().train
    return float(problem.losses()["equation"][1](y, x=x, y=y)) / len(y)


# Darcy ------------------------------------------------------------------------------------------------------


def test_darcy_solution_has_no_residual_on_its_own_grid():
    assert residual(get_problem("darcy-pino", **DARCY)) < 1e-4  # of the forcing; float32


def test_darcy_model_works_at_unit_size_and_its_output_is_zero_on_the_boundary():
    problem = get_problem("darcy-pino", **{**DARCY, "n_train": 30})
    data = problem.generate()
    x, y = data.train
    processor = problem.processor(data)
    sample = processor.preprocess({"x": x, "y": y})
    assert abs(float(sample["x"].mean())) < 1e-4 and float(sample["x"].std()) == pytest.approx(1, abs=1e-3)
    one, _ = processor.postprocess(torch.ones_like(y), sample)
    two, _ = processor.postprocess(-torch.ones_like(y), sample)
    assert not one[..., 0].any() and not one[..., -1, :].any()
    # The output that would give y: in between, of mean 0 and standard deviation 1.
    wanted = ((y - (one + two) / 2) / ((one - two) / 2))[..., 1:-1, 1:-1]
    assert abs(float(wanted.mean())) < 1e-3 and float(wanted.std()) == pytest.approx(1, abs=1e-2)
    assert float(wanted.abs().max()) < 10


# Burgers ----------------------------------------------------------------------------------------------------


def test_burgers_is_the_solution_at_every_time():
    problem = get_problem("burgers-pino", **BURGERS)
    x, y = problem.generate().train
    assert x.shape == y.shape == (4, 1, 8, 32)
    plain = Burgers(**{name: value for name, value in BURGERS.items() if name != "time_points"}).generate().train
    assert torch.equal(y[:, 0, 0], plain[0][:, 0])  # the same initial states
    assert torch.equal(x, y[:, :, :1].expand_as(y))
    assert torch.allclose(y[:, 0, -1], plain[1][:, 0], atol=1e-5)
    middle = solve_burgers(y[:, 0, 3].double(), 0.1, 0.5 / 7)
    assert torch.allclose(middle.float(), y[:, 0, 4], atol=1e-4)


def test_burgers_obeys_its_equation_better_the_finer_the_times():
    sizes = {"n_train": 4, "n_val": 1, "n_test": 1, "grid": 128, "viscosity": 0.01}
    residuals = [residual(get_problem("burgers-pino", **sizes, time_points=n)) for n in (64, 256)]
    assert residuals[0] > 4 * residuals[1] and residuals[1] < 5e-3


def test_burgers_losses_vanish_only_where_they_should():
    problem = get_problem("burgers-pino", **BURGERS, initial_weight=2.0)
    x, y = problem.generate().train
    losses = problem.losses()
    assert {name: weight for name, (weight, _) in losses.items()} == {"data": 10.0, "initial": 2.0, "equation": 1.0}
    assert float(losses["initial"][1](y, x=x, y=y)) < 1e-6
    assert float(losses["initial"][1](0 * y, x=x, y=y)) == pytest.approx(len(y), rel=1e-4)


def test_the_script_of_the_documentation_runs_as_pasted(capsys):
    page = (Path(__file__).parents[2] / "docs" / "howto" / "pino.md").read_text(encoding="utf-8")
    script = page.split("```python\n")[1].split("```")[0]
    for large, small in {
        "n_train=40, n_val=10, n_test=10": "n_train=4, n_val=2, n_test=2",
        "n_epochs=10": "n_epochs=1",
    }.items():
        assert script.count(large) == 1
        script = script.replace(large, small)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*received unexpected keyword arguments")  # as the page says
        exec(compile(script, "docs/howto/pino.md", "exec"), names := {})
    assert "test_equation" in capsys.readouterr().out and len(names["train_loader"].dataset) == 4
    # The same as the problem's own processor.
    own = get_problem("darcy-pino", n_train=4, n_val=2, n_test=2).processor(names["data"]).out_normalizer
    assert torch.allclose(names["out_normalizer"].mean, own.mean) and torch.allclose(names["out_normalizer"].std, own.std)
