"""The paper's experiments: the settings of their runs."""

from __future__ import annotations

import pytest

from experiments import EXPERIMENTS
from problems import get_problem


def runs_of(experiment, problem):
    """Return the base and the target of each rule, at one learning rate."""
    cells = [cell for cell in experiment.cells() if cell[0] == problem]
    return {cell[2]: [experiment.run(cell, end, 4e-3, 0).config for end in (0, 1)] for cell in cells}


@pytest.mark.parametrize("name", ["paper", "paper-full"])
@pytest.mark.parametrize("problem", EXPERIMENTS["paper"].problems)
def test_grids_are_even_and_hold_the_modes(name, problem):
    for base, target in runs_of(EXPERIMENTS[name], problem).values():
        data = get_problem(problem, **target["data"])
        for n, points in zip(target["model"]["n_modes"], data.grid_shape, strict=True):
            assert n <= points
            assert points % 2 == 0
        assert min(base["model"]["n_modes"]) >= 4  # log K = 0 at K = 1
