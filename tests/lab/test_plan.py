"""What is decided before the first run, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup import MupError
from neuralop_mup.lab.plan import make_plan, narrower
from neuralop_mup.lab.problems import OwnData
from neuralop_mup.lab.problems.mode_energy import mode_energy
from neuralop_mup.lab.settings import OPTIMIZERS

TARGET = {"hidden_channels": 32, "n_modes": (16,)}


def build(**size):
    return FNO(in_channels=1, out_channels=1, n_layers=2, **size)


def waves(frequency, points=64, n=100):
    """Fields of one frequency, and the same shifted."""
    at = torch.linspace(0, 2 * math.pi, points + 1)[:-1]
    phase = torch.rand(n, 1, 1, generator=torch.Generator().manual_seed(0)) * 6
    return tuple(np.asarray(wave(frequency * at + phase)) for wave in (torch.sin, torch.cos))


def planned(tmp_path, **more):
    """What tune would train: 80 training samples are 4 batches, 400 steps in 100 epochs."""
    asked = {"target": TARGET, "epochs": 100, "batch_size": 20, "optimizer": "soap", "rules": ("operator-norm",), **more}
    return make_plan(asked.pop("build", build), waves(3), tmp_path / "p", seeds=(0,), device="cpu", **asked)


def test_the_base_of_a_target():
    energy = mode_energy(torch.from_numpy(waves(5)[1]))
    assert narrower({"hidden_channels": 128, "n_modes": (64,)}, energy)[0] == {"hidden_channels": 32, "n_modes": (10,)}
    assert narrower({"hidden_channels": 48, "n_modes": (4,)}, energy)[0] == {"hidden_channels": 16, "n_modes": (4,)}
    assert narrower({"hidden_channels": 16, "n_layers": 3}, None)[0] == {"hidden_channels": 8, "n_layers": 3}


def test_learning_rates_around_the_law(tmp_path):
    """0.03 √(1000/250) = 0.06; nothing beyond 1."""
    assert OPTIMIZERS["soap"].lrs(250) == pytest.approx([0.015, 0.03, 0.06, 0.12, 0.24])
    assert max(OPTIMIZERS["soap"].lrs(2)) <= 1 and OPTIMIZERS["adam"].lrs(250)[0] == 1e-3
    study = planned(tmp_path, space={"weight_decay": [0, 1e-3]}).study
    assert study.space["lr"] == OPTIMIZERS["soap"].lrs(400)


def test_an_optimizer_of_the_user_s_own_has_no_rates(tmp_path):
    with pytest.raises(MupError, match=r"No learning rates of <lambda> are known.*space={'lr'"):
        planned(tmp_path, optimizer=lambda model, lr, steps: nm.MuAdam(model, lr=lr))


def test_a_target_without_a_width_needs_a_base(tmp_path):
    def narrow(n_modes, hidden_channels=8):
        return build(n_modes=n_modes, hidden_channels=hidden_channels)

    with pytest.raises(MupError, match="No base was given"):
        planned(tmp_path, build=narrow, target={"n_modes": (8,)})
    assert not (tmp_path / "p").exists()


def test_what_is_trained_how_long(tmp_path, capsys):
    """80 samples are 4 batches: the proxy trains as long as the target."""
    how = {"target": TARGET, "folder": tmp_path / "s", "epochs": 2, "space": {"lr": [0.1]}, "n_workers": 1}
    tuned = nm.tune(build, waves(3), **how)
    out = capsys.readouterr().out
    assert "hidden_channels 16 instead of 32" in out and " parameters, 8 steps (2 epochs)" in out
    assert [r["metrics"]["steps"] for r in tuned.results.records] == [8, 8]


def test_the_data_is_made_once(tmp_path, monkeypatch):
    """Read, looked at and trained on."""
    np.savez(tmp_path / "heat.npz", **dict(zip("xy", waves(3), strict=True)))
    loads, load = [], OwnData.load
    monkeypatch.setattr(OwnData, "load", lambda self: loads.append(1) or load(self))
    how = {"target": TARGET, "folder": tmp_path / "p", "epochs": 1, "space": {"lr": [0.1]}}
    nm.tune(build, tmp_path / "heat.npz", n_workers=1, progress=False, **how)
    assert loads == [1]
