"""Losses by name: their formulas in float64, where they are refused, and the errors that are reported."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import neuralop_mup as nm
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.loss import default_loss, errors_of, floored_l2, losses_of, mean_squared
from neuralop_mup.lab.problems import get_problem
from support.studies import TARGET, build, fields, loaders, no_figures, quick_tune, relative_error, run_ids  # noqa: F401

NORMALIZED = {"floored-l2": floored_l2, "mse": mean_squared}


def quick_train(folder, data, **more):
    how = {"target": TARGET, "epochs": 2, "batch_size": 8, "progress": False, **more}
    return nm.train(how.pop("build", build), data, folder=folder, **how)


def pair(seed=0):
    """Predictions and targets, (5, 2, 6, 4), of sizes between 0 and 10; one target is zero."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(5, 2, 6, 4)) * np.array([0, 0.01, 1, 3, 10])[:, None, None, None]
    return y + rng.normal(size=y.shape), y


def by_hand(name, prediction, y, known):
    """The sum over samples, each from its known values."""
    total = 0.0
    for p, t, k in zip(prediction, y, known, strict=True):
        p, t = p[k], t[k]
        square = ((p - t) ** 2).sum()
        total += square / len(t) if name == "mse" else np.sqrt(square / ((t**2).sum() / 2 + len(t) / 2))
    return total


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", NORMALIZED)
def test_formulas(name, masked):
    """Unknown values count neither in norms nor in n."""
    prediction, y = pair()
    known = np.random.default_rng(1).random(y.shape) < 0.6 if masked else np.ones(y.shape, bool)
    batch = {"mask": torch.tensor(known).double()} if masked else {}
    found = losses_of(name, 2)["data"][1](torch.tensor(prediction), torch.tensor(y), **batch)
    assert float(found) == pytest.approx(by_hand(name, prediction, y, known), rel=1e-12)
    if masked:
        assert float(found) != pytest.approx(by_hand(name, prediction, y, np.ones(y.shape, bool)), rel=1e-3)


@pytest.mark.parametrize("name", NORMALIZED)
def test_losses_add_over_samples_and_ignore_the_order_of_points(name):
    prediction, y = map(torch.tensor, pair())
    loss = NORMALIZED[name]
    parts = sum(float(loss(prediction[i : i + 1], y[i : i + 1])) for i in range(5))
    order = torch.randperm(6)
    for p, t in ((prediction, y), (prediction[:, :, order], y[:, :, order]), (-prediction, -y), (y + (y - prediction), y)):
        assert float(loss(p, t)) == pytest.approx(parts, rel=1e-12)


def test_the_floor_changes_nothing_for_samples_of_average_size():
    """‖y‖² = n gives the relative error, and y = 0 gives √2 times the absolute error over √n."""
    prediction, y = map(torch.tensor, pair())
    y = torch.ones_like(y) * (-1) ** torch.arange(4)
    relative = ((prediction - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).sum()
    assert float(floored_l2(prediction, y)) == pytest.approx(float(relative), rel=1e-12)
    absolute = prediction.flatten(1).norm(dim=1).sum() / 48**0.5
    assert float(floored_l2(prediction, torch.zeros_like(y))) == pytest.approx(2**0.5 * float(absolute), rel=1e-12)


@pytest.mark.parametrize("name", NORMALIZED)
def test_gradients_of_an_exact_prediction_are_finite(name):
    prediction = torch.zeros(2, 1, 8, requires_grad=True)
    NORMALIZED[name](prediction, torch.zeros(2, 1, 8)).backward()
    assert prediction.grad.isfinite().all()


# Training


@pytest.mark.parametrize("name", NORMALIZED)
def test_training_minimises_the_loss_of_normalized_fields_and_reports_relative_errors(tmp_path, name):
    """The first step's loss is that of the untrained model; the error is in the units of the data."""
    x, y = fields(40)
    trained = quick_train(tmp_path / "s", (x, 1e3 * y), loss=name, epochs=8)
    (record,) = trained.results.records
    own = trained.split["val"]
    assert record["loss"] == pytest.approx(relative_error(trained.predict(x[own]), 1e3 * y[own]), rel=1e-4)
    other = quick_train(tmp_path / "l2", (x, 1e3 * y), epochs=8)
    assert other.loss != trained.loss and "the relative L2 error is" in trained.report.read_text()
    own = trained.split["train"]
    prediction = (trained.predict(x[own]) - 1e3 * y[own].mean()) / (1e3 * y[own].std())
    truth = (y[own] - y[own].mean()) / y[own].std()
    at_the_end = float(NORMALIZED[name](prediction, truth)) / len(own)
    assert record["metrics"]["train_loss"] == pytest.approx(at_the_end, rel=0.3)


@pytest.mark.parametrize("name", ["l2", "h1", *NORMALIZED])
def test_the_unit_of_the_targets_changes_nothing(tmp_path, name):
    x, y = fields()
    losses = [quick_train(tmp_path / str(unit), (x, unit * y), loss=name, epochs=1).loss for unit in (1.0, 2.0**40)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_zero_samples(tmp_path):
    """They are trained on, and left out of the errors, in both of two channels."""
    x, y = fields(channels=2)
    y[::3] = 0
    y[1, 1] = 0
    with pytest.raises(nm.MupError, match="zero"):
        quick_train(tmp_path / "l2", (x, y), build=lambda **size: build(2, 2, **size))
    trained = quick_train(tmp_path / "s", (x, y), loss="mse", build=lambda **size: build(2, 2, **size))
    for split, found in (("val", trained.loss), ("test", trained.results.records[0]["metrics"]["test_loss"])):
        own = trained.split[split]
        far, size = (trained.predict(x[own]) - y[own]).norm(dim=2).double(), y[own].norm(dim=2).double()
        assert (size == 0).any() and (size > 0).any()
        ratios = torch.where(size > 0, far / size, 0).sum(1)
        assert found == pytest.approx(float(ratios.sum() / (size.sum(1) > 0).sum()), rel=1e-4)
    page = trained.report.read_text()
    assert "nan" not in page and "inf" not in page


def test_a_channel_that_is_zero_in_some_samples_is_refused_and_a_constant_one_is_learned(tmp_path):
    """Both once outweighed all other channels: the relative error of a channel was divided by 1e-8."""
    x, y = fields(channels=2)
    y[3, 1] = 0
    two = {"build": lambda **size: build(2, 2, **size), "epochs": 20}
    with pytest.raises(nm.MupError, match="channel 1 of sample .*floored-l2"):
        quick_train(tmp_path / "zero", (x, y), **two)
    losses = []
    for constant in (0.0, 7.0):
        y[:, 1] = constant
        with pytest.warns(UserWarning, match="up to rounding"):
            trained = quick_train(tmp_path / f"{constant}", (x, y), **two)
        losses.append(trained.loss)
        assert (trained.predict(x)[:, 0] - y[:, 0]).norm() < 0.5 * y[:, 0].norm()
    assert max(losses) < 0.5


def test_a_split_of_zeros_has_no_error(tmp_path):
    x, y = fields()
    with pytest.raises(nm.MupError, match="val.*zero"):
        quick_train(tmp_path / "s", {"train": (x, y), "val": (x[:8] + 1, 0 * y[:8])}, loss="mse")


@pytest.mark.parametrize("name", NORMALIZED)
def test_data_that_is_not_normalized_here_is_refused(tmp_path, name):
    x, y = fields()
    processor = nm.lab.problems.ProblemData(train=(x, y), val=(x, y)).processor()
    pino = get_problem("darcy-pino", grid=9, n_train=8, n_val=2, n_test=2)
    for data, more in (
        (loaders(), {}),
        ((x, y), {"processor": processor}),
        (pino, {"target": {**TARGET, "n_modes": (4, 4)}}),
    ):
        with pytest.raises(nm.MupError, match=f"loss='{name}'.*normalizes"):
            quick_train(tmp_path / "s", data, loss=name, **more)
        assert not (tmp_path / "s").exists()


def test_h1_is_reported_as_h1():
    losses = losses_of("h1", 1)
    assert errors_of("h1", losses, 1) == {"data": losses["data"][1]}


def test_the_default_is_one_function(monkeypatch):
    """It decides for data that this package normalizes; other data has the relative error."""
    x = torch.randn(8, 1, 16)
    maps, ends = nm.lab.problems.ProblemData((x, x), (x, x)), nm.lab.problems.ProblemData((x, x), (x, x), trajectory=1)
    steps = nm.lab.problems.ProblemData((x, x), (x, x), trajectory=4)
    assert [default_loss(data) for data in (maps, ends, steps)] == ["l2", "l2", "floored-l2"]
    usual = run_ids(fields()), run_ids(loaders)
    monkeypatch.setattr("neuralop_mup.lab.loss.default_loss", lambda data: "mse")
    assert run_ids(fields()) == run_ids(fields(), loss="mse") != usual[0]
    assert run_ids(loaders) == usual[1]


def test_the_equation_stays_beside_a_named_loss():
    own = get_problem("darcy-pino", grid=9, n_train=8, n_val=2, n_test=2).losses()
    assert list(losses_of("h1", 2, own)) == ["data", "equation"] and losses_of("h1", 2, own)["data"][0] == 5.0


def test_unknown_points_count_neither_in_training_nor_in_errors(tmp_path):
    x, y = fields()
    y[:, :, ::3] = torch.nan
    trained = quick_train(tmp_path / "s", (x, y), loss="mse", read={"nan": "mask"}, build=lambda **size: build(2, 1, **size))
    own = trained.split["val"]
    made = trained.predict(x[own])
    known = [i for i in range(32) if i % 3]
    assert trained.loss == pytest.approx(relative_error(made[..., known], y[own][..., known]), rel=1e-4)


def test_the_command_lists_the_losses(capsys):
    main(["train", "--help"])
    text = capsys.readouterr().out
    assert [name for name in ('"l2"', '"h1"', '"floored-l2"', '"mse"') if name not in text] == []
