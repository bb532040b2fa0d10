"""What is decided before the first run, with values that were worked out by hand."""

import math

import pytest
import torch

import neuralop_mup as nm
from neuralop_mup.lab.decisions import decide, narrower
from neuralop_mup.lab.problems import OwnData
from neuralop_mup.lab.problems.mode_energy import mode_energy
from neuralop_mup.lab.settings import OPTIMIZERS
from support.errors import refused
from support.studies import build, quick_tune, save_pair

TARGET = {"hidden_channels": 32, "n_modes": (16,)}


def waves(frequency):
    """100 fields of one frequency on 64 points, and the same shifted."""
    points = torch.linspace(0, 2 * math.pi, 65)[:-1]
    phases = 6 * torch.rand(100, 1, 1, generator=torch.Generator().manual_seed(0))
    return torch.sin(frequency * points + phases), torch.cos(frequency * points + phases)


def planned(folder, build=build, **changes):
    """What tune would train: 80 training samples are 4 batches, so 100 epochs are 400 steps."""
    settings = {"target": TARGET, "epochs": 100, "batch_size": 20, "optimizer": "soap", "rules": ("operator-norm",)}
    return decide(build, waves(3), folder, seeds=(0,), device="cpu", **{**settings, **changes})


def test_the_base_of_a_target():
    """A quarter of the width, but at least 16 (or half of a small width), and the modes of the data."""
    energy = mode_energy(waves(5)[1])
    assert narrower({"hidden_channels": 128, "n_modes": (64,)}, energy)[0] == {"hidden_channels": 32, "n_modes": (10,)}
    assert narrower({"hidden_channels": 48, "n_modes": (4,)}, energy)[0] == {"hidden_channels": 16, "n_modes": (4,)}
    assert narrower({"hidden_channels": 16, "n_layers": 3}, None)[0] == {"hidden_channels": 8, "n_layers": 3}


def test_learning_rates_follow_from_the_steps(tmp_path):
    """0.03 √(1000/250) = 0.06; none is above 1."""
    assert OPTIMIZERS["soap"].search_lrs(250) == pytest.approx([0.015, 0.03, 0.06, 0.12, 0.24])
    assert max(OPTIMIZERS["soap"].search_lrs(2)) <= 1
    assert OPTIMIZERS["adam"].search_lrs(250)[0] == 1e-3
    study = planned(tmp_path, space={"weight_decay": [0, 1e-3]}).study
    assert study.space["lr"] == OPTIMIZERS["soap"].search_lrs(400)


def test_what_only_the_user_can_give(tmp_path):
    def narrow(n_modes, hidden_channels=8):
        return build(n_modes=n_modes, hidden_channels=hidden_channels)

    with refused("<lambda> space={'lr'"):
        planned(tmp_path / "p", optimizer=lambda model, lr, steps: nm.MuAdam(model, lr=lr))
    for space in (5, True, torch.tensor(3.0), object()):
        with refused("space= dict"):
            planned(tmp_path / "p", space=space)
    with refused("n_modes hidden_channels base="):
        planned(tmp_path / "p", build=narrow, target={"n_modes": (8,)})
    assert not (tmp_path / "p").exists()


def test_proxy_and_target_train_equally_long_on_data_that_is_read_once(tmp_path, monkeypatch):
    """80 samples are 4 batches: 8 steps in 2 epochs."""
    file = save_pair(waves(3), tmp_path / "heat.npz")
    loads, load = [], OwnData.load
    monkeypatch.setattr(OwnData, "load", lambda self: loads.append(1) or load(self))
    how = {"target": TARGET, "base": None, "epochs": 2, "batch_size": 20, "space": {"lr": [0.1]}}
    tuned = quick_tune(tmp_path / "p", file, **how)
    assert [r["metrics"]["steps"] for r in tuned.results.records] == [8, 8]
    assert loads == [1]
