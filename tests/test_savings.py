"""What makes a proxy cheap, worked out by hand, and that its runs are what the choice says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from neuralop.models import FNO
from optuna.distributions import FloatDistribution
from torch.utils.data import DataLoader, TensorDataset

import neuralop_mup as nm
from neuralop_mup import MupError
from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.lab.pipeline import tuning
from neuralop_mup.lab.problems.mode_energy import mode_energy
from neuralop_mup.lab.savings import STAGES, coarser, narrower, shorter
from neuralop_mup.lab.settings import OPTIMIZERS


def build(**size):
    return FNO(in_channels=1, out_channels=1, n_layers=2, **size)


def waves(frequency, points=64, n=60):
    """Fields of one frequency, and the same shifted."""
    at = torch.linspace(0, 2 * math.pi, points + 1)[:-1]
    phase = torch.rand(n, 1, 1, generator=torch.Generator().manual_seed(0)) * 6
    return torch.sin(frequency * at + phase), torch.cos(frequency * at + phase)


def test_the_length_by_hand():
    """1,000 steps in 25 epochs of 40: an eighth are 125, 3 epochs; in 8 epochs 16 batches each, 128 in all."""
    found = shorter(25, 40)
    assert (found.steps, found.epochs, found.batches) == ((128, 1000), 8, 16)
    assert found.at == {"proxy": {"epochs": 8, "batches": 16}, "target": {"training": {"steps": (128, 1000)}}}
    # 8,000 in 100 epochs of 80: 1,000 steps are 12 epochs (12.5) of 80 (83).
    assert shorter(100, 80).steps == (960, 8000)
    assert shorter(25, 40, asked=500).steps == (480, 1000)  # 12 epochs (12.5) of all 40 batches
    assert shorter(5, 20).at == {}  # 100 steps: no fewer than 125
    assert shorter(4, 1000).epochs == 4  # the target has no more


def test_what_is_asked_and_cannot_be():
    with pytest.raises(MupError, match="proxy_steps = 2000, and the target's training has 1000"):
        shorter(25, 40, asked=2000)
    with pytest.raises(MupError, match="cannot be: the schedule"):
        shorter(25, 40, asked=500, refused="the schedule halves")
    assert shorter(25, 40, asked=1000, refused="the schedule halves").at == {}
    energy = mode_energy(*waves(3))
    with pytest.raises(MupError, match="proxy_stride = 8 on 64 points cannot be.*n_modes, 16"):
        coarser((64,), (16,), energy, asked=8)
    with pytest.raises(MupError, match="proxy_stride = 2 cannot be: the model refuses"):
        coarser((64,), (16,), energy, asked=2, refused="the model refuses")
    with pytest.raises(MupError, match="none of the target's arguments"):
        narrower({"size": 3}, None)


@given(st.integers(1, 300), st.integers(1, 400))
def test_the_proxy_trains_no_longer_than_the_target(epochs, batches):
    found = shorter(epochs, batches)
    assert found.steps[1] == epochs * batches and found.epochs <= epochs and found.batches <= batches
    assert found.steps[0] == found.epochs * found.batches <= found.steps[1]
    if found.at:
        assert found.epochs >= min(epochs, STAGES) and found.steps[0] >= min(60, found.steps[1])


@pytest.mark.parametrize(
    ("frequency", "modes", "stride"),
    # 16 points hold frequencies up to 8, 32 up to 16; a proxy of 24 modes needs 24 points.
    [(3, 8, 4), (7, 16, 4), (12, 16, 2), (20, 16, 1), (3, 24, 2), (3, 48, 1)],
)
def test_the_grid_holds_the_data_and_the_modes(frequency, modes, stride):
    assert coarser((64,), (modes,), mode_energy(*waves(frequency)))[0] == (stride,)


def test_every_point_of_an_odd_grid_may_be_asked_for():
    assert coarser((65,), (16,), mode_energy(*waves(3, points=65)), asked=1) == ((1,), "every point, as asked")


def test_axes_and_points_by_themselves():
    x = torch.randn(20, 1, 64, 30, generator=torch.Generator().manual_seed(0)).cumsum(1)
    smooth = waves(2)[0][:20, :, :, None] * torch.ones(30)
    assert coarser((64, 30), (8, 8), mode_energy(smooth, smooth))[0] == (4, 1)  # 15 points would be odd
    assert coarser((64, 30), (8, 8), mode_energy(x, smooth))[0] == (1, 1)  # what the input holds counts too


def test_the_base_of_a_target():
    energy = mode_energy(*waves(5))
    assert narrower({"hidden_channels": 128, "n_modes": (64,)}, energy)[0] == {"hidden_channels": 32, "n_modes": (10,)}
    assert narrower({"hidden_channels": 48, "n_modes": (4,)}, energy)[0] == {"hidden_channels": 16, "n_modes": (4,)}
    assert narrower({"hidden_channels": 16, "n_layers": 3}, None)[0] == {"hidden_channels": 8, "n_layers": 3}


def test_learning_rates_around_the_law():
    """0.03 √(1000/250) = 0.06; nothing beyond 1."""
    assert OPTIMIZERS["soap"].lrs(250) == pytest.approx([0.015, 0.03, 0.06, 0.12, 0.24])
    assert max(OPTIMIZERS["soap"].lrs(2)) <= 1 and OPTIMIZERS["adam"].lrs(250)[0] == 1e-3


def test_tune_without_a_base(tmp_path, capsys):
    """The proxy's runs are narrower, shorter and coarser; the target's learning rate goes by √(its steps / the target's)."""
    x, y = (np.asarray(v) for v in waves(3, n=100))
    target = {"hidden_channels": 32, "n_modes": (16,)}
    tuned = nm.tune(build, (x, y), target=target, folder=tmp_path / "s", epochs=100, batch_size=20, n_workers=1)
    out = capsys.readouterr().out
    # 80 training samples are 4 batches: 400 steps; 125 in 31 epochs of 4.
    assert "124 instead of 400" in out and "16 instead of 64 points" in out and "hidden_channels 16 instead of 32" in out
    study = tuned.results.study
    assert study.at["proxy"] == {"epochs": 31, "batches": 4, "stride": (4,)}
    proxies = [r for r in tuned.results.records if r["size"] == "proxy"]
    assert {r["metrics"]["steps"] for r in proxies} == {124} and len(proxies) >= 5
    (carried,) = tuned.results.carried("target", "operator-norm")
    assert carried["metrics"]["steps"] == 400 and carried["params"]["lr"] == tuned.lr
    assert tuned.predict(x[:2]).shape == (2, 1, 64) and tuned.loss < 0.2
    assert "tuning took" in repr(tuned)
    assert "for the 400 steps of the target" in repr(tuned)
    again = nm.tune(build, (x, y), target=target, folder=tmp_path / "s", epochs=100, batch_size=20, n_workers=1)
    assert again.results.records == tuned.results.records


def planned(tmp_path, data=None, **more):
    """What tune would train, of waves on 64 points."""
    data = tuple(np.asarray(v) for v in waves(3, n=100)) if data is None else data
    space, rule = more.pop("space", None), more.pop("rule", DEFAULT_RULE)
    asked = {"target": {"hidden_channels": 32, "n_modes": (16,)}, "base": None, "rule": rule, "naive": False, **more}
    fixed = {"optimizer": "soap", "epochs": 100, "batch_size": 20}
    return tuning(asked.pop("build", build), data, folder=tmp_path / "p", space=space, fixed=fixed, **asked)


@pytest.mark.parametrize("rules", [{"rule": "standard"}, {"rules": ["standard"]}])
def test_without_a_rule_for_steps_the_proxy_is_as_long(tmp_path, rules):
    plan = planned(tmp_path, **rules)
    assert "training" not in plan.study.at.get("target", {}) and "without μP" in plan.told["steps"]


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_loader_of_fixed_order_is_seen_whole(tmp_path, shuffle):
    """Else each epoch would be its first samples."""
    train, val = (TensorDataset(*waves(3, n=n)) for n in (100, 20))
    plan = planned(tmp_path, (DataLoader(train, 10, shuffle=shuffle), DataLoader(val, 10)))
    assert ("training" in plan.study.at.get("target", {})) == shuffle


class Pooled(torch.nn.Module):
    """Takes 32 points and more: it halves them five times."""

    def __init__(self, **size):
        super().__init__()
        self.fno = build(**size)

    def forward(self, x, **_):
        for _ in range(5):
            torch.nn.functional.avg_pool1d(x[..., : x.shape[-1] // 32 * 32], 32)
        return self.fno(x)


@pytest.mark.parametrize(
    ("more", "stride"),
    [
        ({}, (4,)),
        ({"loss": lambda y_pred, y, **_: (y_pred - y).square().sum()}, None),
        ({"score": lambda predictions, targets: (predictions - targets).square().mean()}, None),
        ({"build": Pooled, "base": {"hidden_channels": 16, "n_modes": (8,)}}, (2,)),
    ],
    ids=["as it is", "own loss", "own score", "a model that takes half as many"],
)
def test_the_grid_is_coarser_only_where_everything_takes_it(tmp_path, more, stride):
    plan = planned(tmp_path, **more)
    assert plan.study.at["proxy"].get("stride") == stride


def test_a_search_draws_from_the_rates_that_the_study_names(tmp_path):
    space = {"weight_decay": FloatDistribution(0, 1e-3)}
    study = planned(tmp_path, space=space, n_trials=3).study
    assert study.search._space["lr"] == study.space["lr"] == OPTIMIZERS["soap"].lrs(124)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"proxy_steps": 401}, "proxy_steps = 401"),
        ({"proxy_steps": 0}, "proxy_steps"),
        ({"proxy_stride": 3}, "proxy_stride = 3"),
        ({"proxy_steps": 200, "schedule": "halve:10"}, "in epochs of the target"),
        ({"proxy_steps": 200, "optimizer": "sgd"}, "not SGD's"),
        ({"target": {"n_modes": (8,)}}, "No base was given"),
    ],
)
def test_bad_input_trains_nothing(tmp_path, more, told):
    pair = tuple(np.asarray(v) for v in waves(3, n=100))
    asked = {"target": {"hidden_channels": 32, "n_modes": (16,)}, "folder": tmp_path / "s", "epochs": 100, **more}
    with pytest.raises(MupError, match=told):
        nm.tune(lambda n_modes, hidden_channels=8: build(n_modes=n_modes, hidden_channels=hidden_channels), pair, **asked)
    assert not (tmp_path / "s" / "workspace").exists()
