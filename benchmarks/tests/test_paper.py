"""The paper's experiments: the settings of their runs."""

from __future__ import annotations

import pytest

from experiments import EXPERIMENTS
from problems import get_problem


def runs_of(experiment, problem):
    """Return the base and the target of each rule, at one learning rate."""
    cells = [cell for cell in experiment.cells() if cell[0] == problem]
    return {cell[2]: [experiment.run(cell, end, 4e-3, 0).config for end in (0, 1)] for cell in cells}


@pytest.mark.parametrize(
    ("problem", "modes", "samples", "batch", "epochs", "halved"),
    [
        ("burgers", [3, 512], 800, 20, 750, range(50, 750, 50)),
        ("darcy", [3, 24], 1000, 20, 300, (100, 150, 200)),
        ("darcy-pino", [3, 24], 1000, 20, 300, (100, 150, 200)),
        ("navier-stokes", [3, 24], 800, 2, 125, (50, 100)),
    ],
)
def test_settings_of_the_paper(problem, modes, samples, batch, epochs, halved):
    """Section 4: width 64 and four layers. Schedules count in fiftieths of a training, at most 15 epochs."""
    for rule, (base, target) in runs_of(EXPERIMENTS["paper-full"], problem).items():
        assert [config["model"]["n_modes"][0] // 2 for config in (base, target)] == modes
        assert (target["model"]["hidden_channels"], target["model"]["n_layers"]) == (64, 4)
        assert target["base"] == base["model"]
        assert (target["data"]["n_train"], target["batch_size"]) == (samples, batch)
        assert target["steps"] == epochs * samples / batch
        stages = target["schedule"].removeprefix("halve:").split(",")
        assert [int(stage) * epochs / 50 for stage in stages] == pytest.approx(list(halved), abs=epochs / 50)
        clipped = problem == "navier-stokes" and rule != "Adam (SP)"  # only there, and only under μP
        assert target.get("clip_spectral") == (0.01 if clipped else None)


@pytest.mark.parametrize("name", ["paper", "paper-full"])
@pytest.mark.parametrize("problem", EXPERIMENTS["paper"].problems)
def test_grids_are_even_and_hold_the_modes(name, problem):
    for base, target in runs_of(EXPERIMENTS[name], problem).values():
        data = get_problem(problem, **target["data"])
        for n, points in zip(target["model"]["n_modes"], data.grid_shape, strict=True):
            assert n <= points
            assert points % 2 == 0
        assert min(base["model"]["n_modes"]) >= 4  # log K = 0 at K = 1
