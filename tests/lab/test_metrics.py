"""Errors by name against formulas of their benchmarks, written down in NumPy in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from neuralop.losses import H1Loss, LpLoss

import neuralop_mup as nm
from neuralop_mup.lab import metrics
from neuralop_mup.lab.metrics import METRICS, by_sample
from support.studies import build, fields, no_figures, physical, quick_tune, run_ids  # noqa: F401

GRIDS = [(32,), (12, 10), (6, 8, 4)]


def pair(grid, seed=0, channels=3, n=4):
    """Predictions and targets whose channels have other means and sizes."""
    rng = np.random.default_rng(seed)
    shape = (1, channels, *[1] * len(grid))
    y = rng.normal(size=(n, channels, *grid)) * np.arange(1, channels + 1).reshape(shape) + np.arange(channels).reshape(
        shape
    )
    return y + 0.3 * rng.normal(size=y.shape), y


def l2(prediction, y):
    """Per sample, all channels together."""
    return [np.linalg.norm(p - t) / np.linalg.norm(t) for p, t in zip(prediction, y, strict=True)]


def vrmse(prediction, y):
    """the_well/benchmark/metrics/spatial.py: sqrt(mean((x - y)²) / (std(y)² + 1e-7)) over space; the mean of the fields.

    The standard deviation is torch's.
    """
    return [
        np.mean([math.sqrt(np.mean((p - t) ** 2) / (np.std(t, ddof=1) ** 2 + 1e-7)) for p, t in zip(*one, strict=True)])
        for one in zip(prediction, y, strict=True)
    ]


def nrmse(prediction, y):
    """pdebench/models/metrics.py: sqrt(mean((pred - target)²)) / sqrt(mean(target²)) over space.

    The mean of samples and channels.
    """
    n, c = y.shape[:2]
    off = np.sqrt(np.mean((prediction.reshape(n, c, -1) - y.reshape(n, c, -1)) ** 2, axis=2))
    return (off / np.sqrt(np.mean(y.reshape(n, c, -1) ** 2, axis=2))).mean(1)


def h1(prediction, y):
    """√(‖e‖² + ‖∇e‖²) / √(‖y‖² + ‖∇y‖²), central differences of a periodic field with spacing 1/n; mean of the channels."""
    axes = range(2, y.ndim)

    def square(field):
        slopes = [(np.roll(field, -1, a) - np.roll(field, 1, a)) * y.shape[a] / 2 for a in axes]
        return sum((part**2).sum(tuple(axes)) for part in (field, *slopes))

    return np.sqrt(square(prediction - y) / square(y)).mean(1)


BY_HAND = {"l2": l2, "h1": h1, "vrmse": vrmse, "nrmse": nrmse}


def measured(name, prediction, y, **batch):
    return by_sample(METRICS[name], torch.as_tensor(prediction), {"y": torch.as_tensor(y), **batch}).numpy()


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", METRICS)
def test_formulas(name, grid):
    prediction, y = pair(grid)
    assert measured(name, prediction, y) == pytest.approx(np.array(BY_HAND[name](prediction, y)), rel=1e-7)


def test_relations_with_the_losses():
    """With one channel l2, nRMSE and the loss agree; the loss h1 is the sum over channels and samples."""
    prediction, y = map(torch.tensor, pair((32,), channels=1))
    for name in ("l2", "nrmse"):
        assert measured(name, prediction, y).sum() == pytest.approx(float(LpLoss(d=1)(prediction, y)), rel=1e-6)
    prediction, y = map(torch.tensor, pair((12, 10)))
    assert 3 * measured("h1", prediction, y).sum() == pytest.approx(float(H1Loss(d=2)(prediction, y)), rel=1e-6)


@pytest.mark.parametrize("name", ["l2", "vrmse", "nrmse"])
def test_unknown_points_do_not_count(name):
    """As if they were not on the grid."""
    prediction, y = pair((32,))
    mask = torch.ones(4, 3, 32)
    mask[..., ::3] = 0
    kept = [i for i in range(32) if i % 3]
    expected = BY_HAND[name](prediction[..., kept], y[..., kept])
    prediction[..., ::3] = 1e9
    assert measured(name, prediction, y, mask=mask) == pytest.approx(np.array(expected), rel=1e-9)


def test_parts_of_few_samples_give_the_same(monkeypatch):
    prediction, y = pair((12, 10))
    whole = [measured(name, prediction, y) for name in METRICS]
    monkeypatch.setattr(metrics, "_NUMBERS_AT_ONCE", 1)
    assert np.allclose([measured(name, prediction, y) for name in METRICS], whole, rtol=1e-12)


def test_targets_without_a_relative_error():
    """A channel of zeros is left out, a sample of zeros has no error, and a prediction that is not finite has infinity."""
    prediction, y = pair((32,))
    y[0], y[1, 1], prediction[2, 0, 0] = 0, 0, np.nan
    others = [0, 2]
    for name in ("l2", "h1", "nrmse"):
        errors = measured(name, prediction, y)
        assert math.isnan(errors[0]) and errors[2] == math.inf
        if name != "l2":
            assert errors[1] == pytest.approx(BY_HAND[name](prediction[1:2, others], y[1:2, others])[0], rel=1e-6)
    errors = measured("vrmse", prediction, y)
    assert np.isfinite(errors[[0, 1, 3]]).all() and errors[2] == math.inf


def test_complex_fields():
    real, imaginary = pair((32,)), pair((32,), 1)
    prediction, y = (a + 1j * b for a, b in zip(real, imaginary, strict=True))
    both = [np.concatenate([field.real, field.imag], -1) for field in (prediction, y)]
    for name in ("l2", "nrmse"):
        assert measured(name, prediction, y) == pytest.approx(np.array(BY_HAND[name](*both)), rel=1e-9)
    with pytest.raises(nm.MupError, match="H1"):
        measured("h1", prediction, y)


@pytest.mark.parametrize("name", METRICS)
def test_scores_by_name_choose_and_stand_in_the_report(tmp_path, name):
    x, y = physical(64, 1)
    tuned = quick_tune(tmp_path / "s", {"train": physical(), "val": (x, y)}, score=name)
    expected = np.mean(BY_HAND[name](tuned.predict(x).double().numpy(), y.double().numpy()))
    assert tuned.loss == pytest.approx(expected, rel=1e-4)
    assert f"the {name} over seeds" in tuned.report.read_text()


def test_a_score_by_name_needs_predictions_like_the_targets(tmp_path):
    wider = {"build": lambda **size: build(out_channels=2, **size), "loss": lambda p, y, **_: (p[:, :1] - y).square().sum()}
    with pytest.raises(nm.MupError, match="your own function"):
        quick_tune(tmp_path / "s", fields(), score="nrmse", **wider)
