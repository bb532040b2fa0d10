"""benchmarks/paper.py: the paper's settings, and one experiment from data to page."""

from __future__ import annotations

import pytest
import torch
from neuralop.layers.spectral_convolution import SpectralConv

import paper
from neuralop_mup.problems import get_problem
from neuralop_mup.tuning import presets
from neuralop_mup.tuning.fno import FNOs


def plan_of(name, size, tmp_path, **asked):
    return dict(paper.plans(name, size, tmp_path, look=False, **asked))


@pytest.mark.parametrize("size", presets.SIZES)
@pytest.mark.parametrize("name", paper.EXPERIMENTS)
def test_every_experiment_can_be_planned(name, size, tmp_path):
    plans = plan_of(name, size, tmp_path)
    assert len(plans) == len(paper.EXPERIMENTS[name].models[size][0]) - 1
    for plan in plans.values():
        base, target = plan.study.sizes.values()
        assert (target["hidden_channels"] == 8 * base["hidden_channels"]) == name.startswith("joint")
        assert sum(target["n_modes"]) > sum(base["n_modes"])
        assert list(plan.study.space["lr"]) == sorted(plan.study.space["lr"]) and len(plan.study.rules) == 3


@pytest.mark.parametrize(
    ("name", "modes", "batch", "epochs", "schedule", "mup"),
    [
        ("burgers-modes", (3, 8, 32, 128, 512), 20, 750, "halve:50", {}),
        ("darcy-modes", (3, 6, 12, 24), 20, 300, "halve:100,150,200", {}),
        ("pino-darcy-modes", (3, 6, 12, 24), 20, 300, "halve:100,150,200", {}),
        ("navier-stokes-modes", (3, 6, 12, 24), 2, 125, "halve:50,100", {"clip_spectral": 0.01}),
    ],
)
def test_paper_size_is_the_papers(name, modes, batch, epochs, schedule, mup, tmp_path):
    """19 learning rates and 3 seeds; the base once, or twice where μP alone clips; 3 rules at every other K."""
    plans = plan_of(name, "paper", tmp_path)
    studies = [plan.study for plan in plans.values()]
    assert [study.sizes["target"]["n_modes"][0] for study in studies] == [2 * k for k in modes[1:]]
    for study in studies:
        assert study.sizes["proxy"]["n_modes"][0] == 2 * modes[0]
        assert {(size["hidden_channels"], size["n_layers"]) for size in study.sizes.values()} == {(64, 4)}
        fixed = study.fixed
        assert (fixed["batch_size"], fixed["epochs"], fixed["schedule"]) == (batch, epochs, schedule)
        assert study.under.get("log-modes", {}) == mup and not study.under.get("standard")
        assert study.planned() == {"proxy": 19 * 3 * (2 if mup else 1), "target": 19 * 3 * 3}
    data = next(iter(plans.values())).training.source
    assert data.n_train == (1000 if "darcy" in name else 800)


def test_paper_sizes_kernels(tmp_path):
    """4 layers · 4 blocks · 64² · K³: 1.77 M at K = 3, 906 M at K = 24; neuralop keeps one more mode on the last axis."""
    sizes = list(plan_of("navier-stokes-modes", "paper", tmp_path).values())[-1].study.sizes
    for which, k, papers in (("proxy", 3, 1.77e6), ("target", 24, 906e6)):
        assert 4 * 4 * 64**2 * k**3 == pytest.approx(papers, rel=0.003)
        with torch.device("meta"):
            model = FNOs(1, 1, 3)(**sizes[which])
        kernels = sum(p.numel() for n, p in model.named_parameters() if n.endswith("weight.tensor"))
        assert kernels == 4 * 4 * 64**2 * k**2 * (k + 1)


@pytest.mark.parametrize("name", paper.EXPERIMENTS)
def test_no_grid_is_odd(name, tmp_path):
    """Of the paper's 61 points an axis there is one more, and the solver has every one of them."""
    problem = next(iter(plan_of(name, "paper", tmp_path).values())).training.source
    assert not any(points % 2 for points in problem.grid_shape)
    if "darcy" in problem.name:
        assert (problem.grid, problem.fine_grid) == (62, 428) and (428 - 1) % (62 - 1) == 0


def test_the_check_of_odd_grids_tells_right_from_wrong(monkeypatch):
    """A convolution that pads to an even grid is right; one that drops the shift of the spectrum is not."""

    class Right(SpectralConv):
        def forward(self, x):
            full = torch.fft.fft2(x)
            keep = torch.fft.fftfreq(x.shape[-1], 1 / x.shape[-1]).abs() < 2
            return torch.fft.ifft2(full * keep[:, None] * keep).real

    class Wrong(Right):
        def forward(self, x):
            return super().forward(x).roll(1, -2)

    for cls, right in ((Right, True), (Wrong, False)):
        monkeypatch.setattr("neuralop.layers.spectral_convolution.SpectralConv", cls)
        assert presets.odd_grids_work() == right


def test_the_check_agrees_with_a_fourier_series_of_the_installed_convolution():
    """On an odd grid, weights of one must return a band-limited field: measured on the installed layer itself."""
    torch.manual_seed(0)
    conv = SpectralConv(1, 1, (6, 6), bias=False)
    with torch.no_grad():
        conv.weight.tensor.fill_(1.0)
        i = torch.arange(11) / 11
        field = torch.sin(2 * torch.pi * (i[:, None] + 2 * i))[None, None]
        right = torch.allclose(conv(field), field, atol=1e-4)
    assert presets.odd_grids_work() == right


def test_an_experiment_that_walks_further_hyperparameters(tmp_path, monkeypatch, capsys):
    """K = 2 and 8: two learning rates, then two batch sizes at the best of them, on pages of their own, in one folder."""
    small = get_problem("burgers", n_train=20, n_val=4, n_test=4, grid=32, viscosity=0.1)
    models = {"cpu": ([(4, 2), (4, 8)], (4e-3, 8e-3))}
    tiny = paper.Experiment("burgers", "what it shows", models, epochs={"cpu": 1}, walked={"batch_size": (4, 8)})
    monkeypatch.setitem(paper.EXPERIMENTS, "tiny", tiny)
    monkeypatch.setattr(paper, "problem_with", lambda *_: small)
    paper.run("tiny", seeds=1, output=str(tmp_path / "tiny"))
    told = capsys.readouterr().out
    assert "width 4, n_modes 16" in told and "The best batch size 4 of the proxy" in told
    page = (tmp_path / "tiny" / "batch_size width 4, n_modes 16" / "report.md").read_text()
    assert "python benchmarks/paper.py tiny" in page
    # 2 learning rates at the base and 2 batch sizes; at the target 3 rules at the best rate, 3 rules with 2 batch sizes.
    assert len(list((tmp_path / "tiny" / "workspace").iterdir())) == 2 + 2 + 3 + 6
