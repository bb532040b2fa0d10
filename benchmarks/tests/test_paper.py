"""The paper's experiments: the settings of their runs."""

from __future__ import annotations

import pytest

from experiments import EXPERIMENTS
from problems import get_problem

OWN = {name: EXPERIMENTS[name] for name in ("paper", "paper-full", "paper-burgers")}
TINY = {f"{name} --tiny": own.tiny() for name, own in OWN.items()}
CASES = [(name, own, problem) for name, own in {**OWN, **TINY}.items() for problem in own.problems]


@pytest.mark.parametrize(("name", "experiment", "problem"), CASES, ids=[f"{name}, {problem}" for name, _, problem in CASES])
def test_every_rule_is_trained_and_even_grids_hold_the_modes(name, experiment, problem):
    cells = [cell for cell in experiment.cells() if cell[0] == problem]
    assert {cell[2] for cell in cells} == set(OWN[name.removesuffix(" --tiny")].optimizers)
    for cell in cells:
        base, target = (experiment.run(cell, end, 4e-3, 0).config for end in (0, 1))
        data = get_problem(problem, **target["data"])
        for n, points in zip(target["model"]["n_modes"], data.grid_shape, strict=True):
            assert n <= points
            assert points % 2 == 0
        assert min(base["model"]["n_modes"]) >= 4  # log K = 0 at K = 1
