"""The paper's experiments: what each of their runs has at the paper's own size, and that no grid is odd."""

from __future__ import annotations

import pytest
import torch
from neuralop.layers.spectral_convolution import SpectralConv

from experiments import EXPERIMENTS
from neuralop_mup.lab.outcome import versions
from neuralop_mup.lab.training import FNOs
from problems import get_problem

FULL, SMALL = EXPERIMENTS["paper-full"], EXPERIMENTS["paper"]


def runs_of(experiment, problem):
    """Base and target of each rule, at one learning rate."""
    cells = [cell for cell in experiment.cells() if cell[0] == problem]
    return {cell[2]: [experiment.run(cell, end, 4e-3, 0).config for end in (0, 1)] for cell in cells}


@pytest.mark.parametrize(
    ("problem", "modes", "samples", "batch", "epochs", "halved"),
    [
        ("burgers", (3, 512), 800, 20, 750, range(50, 750, 50)),
        ("darcy", (3, 24), 1000, 20, 300, (100, 150, 200)),
        ("darcy-pino", (3, 24), 1000, 20, 300, (100, 150, 200)),
        ("navier-stokes", (3, 24), 800, 2, 125, (50, 100)),
    ],
)
def test_paper_size_is_the_papers(problem, modes, samples, batch, epochs, halved):
    """Section 4: width 64, four layers, and as many epochs. A schedule is told in fiftieths of a training, which are 15, 6
    and 2.5 epochs, so that it is right within one."""
    for rule, ends in runs_of(FULL, problem).items():
        assert [config["model"]["n_modes"][0] // 2 for config in ends] == list(modes)
        assert {(c["model"]["hidden_channels"], c["model"]["n_layers"]) for c in ends} == {(64, 4)}
        base, target = ends
        assert target["base"] == base["model"] and base["rule"] == "standard"
        assert (target["data"]["n_train"], target["batch_size"]) == (samples, batch)
        assert target["steps"] == epochs * samples / batch
        stages = [int(stage) for stage in target["schedule"].removeprefix("halve:").split(",")]
        assert [stage * epochs / 50 for stage in stages] == pytest.approx(list(halved), abs=epochs / 50)
        clipped = problem == "navier-stokes" and rule != "Adam (SP)"  # the paper clips under μP alone, and only there
        assert [config.get("clip_spectral") for config in ends] == [0.01 if clipped else None] * 2


def test_paper_sizes_kernels():
    """4 layers · 4 blocks · 64² · K³: 1.77 M at K = 3, 906 M at K = 24; neuralop keeps one more mode on the last axis."""
    for config, k, papers in zip(runs_of(FULL, "navier-stokes")["log-modes"], (3, 24), (1.77e6, 906e6), strict=True):
        assert 4 * 4 * 64**2 * k**3 == pytest.approx(papers, rel=0.003)
        with torch.device("meta"):
            model = FNOs(1, 1, 3)(**config["model"])
        kernels = sum(p.numel() for n, p in model.named_parameters() if n.endswith("weight.tensor"))
        assert kernels == 4 * 4 * 64**2 * k**2 * (k + 1)


@pytest.mark.parametrize("experiment", [SMALL, FULL], ids=["small", "full"])
@pytest.mark.parametrize("problem", SMALL.problems)
def test_every_grid_holds_the_modes_and_none_is_odd(experiment, problem):
    """Of the paper's 61 points an axis there is one more, and the solver has every one of them."""
    for base, target in runs_of(experiment, problem).values():
        data = get_problem(problem, **target["data"])
        assert not any(points % 2 for points in data.grid_shape)
        assert all(n <= points for n, points in zip(target["model"]["n_modes"], data.grid_shape, strict=True))
        assert min(base["model"]["n_modes"]) >= 4  # log K is no rule at K = 1
        if experiment is FULL and "darcy" in problem:
            assert (data.grid, data.fine_grid) == (62, 428) and (428 - 1) % (62 - 1) == 0


def test_which_version_of_neuralop_is_wrong_on_odd_grids():
    """On an odd grid, weights of one must return a band-limited field: measured on the installed layer itself."""
    torch.manual_seed(0)
    conv = SpectralConv(1, 1, (6, 6), bias=False)
    with torch.no_grad():
        conv.weight.tensor.fill_(1.0)
        i = torch.arange(11) / 11
        field = torch.sin(2 * torch.pi * (i[:, None] + 2 * i))[None, None]
        right = torch.allclose(conv(field), field, atol=1e-4)
    assert right == (versions()["neuraloperator"] != "2.0.0")
