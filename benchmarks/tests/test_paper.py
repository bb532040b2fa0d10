"""The paper's experiments: the settings of their runs, and the model of physics_informed, which is the paper's code."""

from __future__ import annotations

import math

import pytest
import torch

import neuralop_mup as nm
from experiments import EXPERIMENTS
from experiments import physics_informed as models
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


def test_a_kernel_multiplies_the_lowest_modes():
    """A plane wave is multiplied by the entry of its frequencies, of either sign on the first axis."""
    kernel = models.FourierKernel(1, 2).double()
    values = torch.view_as_complex(kernel.weight.detach()[:, :, 0, :, 0].contiguous())
    i, j = torch.meshgrid(torch.arange(9).double() / 9, torch.arange(8).double() / 8, indexing="ij")
    for k1, k2, row in ((0, 1, 0), (1, 1, 1), (-1, 1, 2), (-2, 1, 3)):
        wave = torch.polar(torch.ones(9, 8, dtype=torch.float64), 2 * math.pi * (k1 * i + k2 * j))
        torch.testing.assert_close(kernel(wave.real[None, None])[0, 0], (values[row, k2] * wave).real)
    beyond = torch.cos(2 * math.pi * (2 * i + j))[None, None]
    assert kernel(beyond).abs().max() < 1e-12


@pytest.mark.parametrize("modes", [3, 12])
def test_kernels_start_uniform_and_positive(modes):
    """U[0, 1) / m² in both parts: mean 1/(2m²) for any K."""
    torch.manual_seed(0)
    weight = models.FourierKernel(16, modes).weight * 16**2
    assert 0 <= weight.min() < weight.max() < 1
    assert abs(weight.mean() - 0.5) < 0.02


def test_learning_rates_and_initialization_of_the_papers_model():
    """K from 3 to 6: κ = √(log 3 / log 6) = 0.7830, only for kernels. Twice the width: half the kernels' learning rate.

    The initial kernels were divided by 4 and have one sign. They need a division by 2, so that they are multiplied by 2.
    """

    def plan(rule, *sizes):
        base = models.PhysicsInformedFNO((6, 6), 4, readout_width=8)
        model = nm.parametrize(models.PhysicsInformedFNO(*sizes, readout_width=8), base=base, rule=rule)
        return {row.name: (row.lr_mult, row.init_mult) for row in nm.summary(model).rows}

    for name, multipliers in plan("log-modes", (12, 12), 4).items():
        assert multipliers == pytest.approx((0.7830, 0.7830) if "kernels" in name else (1, 1), abs=1e-4)
    width = plan("none", (6, 6), 8)
    assert width["kernels.0.weight"] == pytest.approx((0.5, 2))
    assert width["lifting.weight"][0] == width["readout_out.weight"][0] == 1
