"""``nm.tune(score=…)``: learning rates are chosen by the score; what a rollout is; which scores are refused."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

import neuralop_mup as nm
from neuralop_mup.lab.problems import OwnData
from neuralop_mup.lab.score import Predictor, Validation, rollout_error
from support.studies import BASE, build, fields, loaders, no_figures, physical, quick_tune, relative_error, run_ids  # noqa: F401

STATES = 7


def waves():
    """30 trajectories of travelling waves, with mean and standard deviation far from 0 and 1: (30, STATES, 32)."""
    rng = np.random.default_rng(0)
    phase, k = rng.uniform(0, 6, (30, 1, 1)), rng.integers(1, 3, (30, 1, 1))
    at = np.linspace(0, 2 * np.pi, 32, endpoint=False) - 0.3 * np.arange(STATES)[:, None]
    return (50 + 9 * np.sin(k * at + phase)).astype("f4")


@pytest.fixture
def file(tmp_path):
    np.savez(tmp_path / "waves.npz", u=waves(), t=np.arange(STATES))
    return tmp_path / "waves.npz"


EACH_STEP = {"y": "u", "time_step": 1, "dims": "sample time x"}


def test_a_rollout_applies_the_model_to_its_own_predictions(tmp_path, file):
    tuned = quick_tune(tmp_path / "s", file, read=EACH_STEP, score="rollout:5")
    truth = waves()[tuned.split["val"]].astype("f8")
    state, errors = waves()[tuned.split["val"]][:, :1], []
    for step in range(1, 6):
        state = tuned.predict(state)
        far = np.linalg.norm(state[:, 0] - truth[:, step], axis=1) / np.linalg.norm(truth[:, step], axis=1)
        errors.append(far.mean())
    assert tuned.loss == pytest.approx(np.prod(errors) ** 0.2, rel=1e-5) and len(state) == 3


def test_a_named_score_is_measured_on_test_data(tmp_path):
    x, y = physical()
    tuned = quick_tune(tmp_path / "s", (x, y), score="nrmse")
    own = tuned.split["test"]
    error = relative_error(tuned.predict(x[own]), y[own])  # the same for one channel
    page = tuned.report.read_text()
    assert f"the nrmse of the target under operator-norm is {tuned.loss:.3g} on the validation data and {error:.3g}" in page
    assert "| nrmse " in page and "| test nrmse | validation loss | test loss |" in page


def test_test_trajectories_may_be_shorter_than_the_score(tmp_path):
    parts = {"train": waves()[:20], "val": waves()[20:], "test": waves()[:3, :4] + 1}
    files = {name: tmp_path / f"{name}.npz" for name in parts}
    for name, u in parts.items():
        np.savez(files[name], u=u)
    tuned = quick_tune(tmp_path / "s", files, read=EACH_STEP, score="rollout:5")
    page = tuned.report.read_text()
    assert f"is {tuned.loss:.3g} on the validation data." in page and "| test rollout:5" not in page


def test_the_error_of_a_rollout_that_overflows_is_infinite(file):
    data, model = Validation(OwnData(files=file, **EACH_STEP).load()), build(**BASE)
    model.forward = lambda x: x * 1e30
    assert rollout_error(Predictor(model, None), data, 5) == math.inf
    model.forward = lambda x: x
    assert 0 < rollout_error(Predictor(model, None), data, 5) < math.inf


def distance(model):
    """How far the parameters of a model of the base's size are from those that the first seed draws."""
    torch.manual_seed(0)
    start, end = build(**BASE).parameters(), model.model.parameters()
    return sum(float((p - q).detach().abs().sum()) for p, q in zip(start, end, strict=True) if p.shape == q.shape)


def better_near(model, data):
    return distance(model)


def better_far(model, data):
    return 1 / (1 + distance(model))


def test_learning_rates_are_chosen_by_the_score(tmp_path):
    """Two opposite scores choose different learning rates, in one folder."""
    large, small = (quick_tune(tmp_path / "s", loaders, score=score) for score in (better_far, better_near))
    assert (large.lr, small.lr) == (0.02, 0.005)


def of_batches(model, data):
    return np.float32(np.mean([relative_error(model(**batch), batch["y"]) for batch in data]))


@pytest.mark.parametrize("score", [of_batches, functools.partial(of_batches)])
def test_functions_get_the_units_of_the_data(tmp_path, score):
    x, y = physical(64, 1)
    tuned = quick_tune(tmp_path / "s", {"train": physical(), "val": (x, y)}, score=score)
    assert tuned.loss == pytest.approx(relative_error(tuned.predict(x), y), rel=1e-4)
    assert nm.load_tuned(tmp_path / "s", build).loss == tuned.loss


def constant(value):
    return lambda model, data: value() if callable(value) else value


def of_trained(value):
    """A score that is 1 for a model that was not trained."""
    return lambda model, data: 1.0 if distance(model) == 0 else value


def test_runs_under_other_scores_have_other_keys():
    scores = [None, better_near, constant(1e-3), constant(2e-3), of_trained(0.3), of_trained(0.4)]
    assert len(set.union(*(run_ids(loaders, score=score) for score in scores))) == 3 * len(scores)


def needs_more(model, data, weight):
    return 0.0


@pytest.mark.parametrize(
    ("score", "names"),
    [
        ("rollut:5", "'rollut:5'.*rollout:50"),
        ("rollout:0", "'rollout:0'"),
        (3, "score=3"),
        (needs_more, "TypeError: .*'weight'"),
        (constant(torch.ones(3)), r"\(3,\)"),
        (constant(math.nan), "NaN"),
        (constant(-0.3), "-0.3"),
        (constant(np.random.default_rng(0).uniform), r"0\.\d+ .*0\.\d+"),
        (constant(lambda: 1 / 0), "ZeroDivisionError"),
        ("rollout:7", "8 states.* 7"),
    ],
)
def test_scores_that_cannot_work_are_refused_before_training(tmp_path, file, score, names):
    with pytest.raises(nm.MupError, match=names):
        quick_tune(tmp_path / "s", file, read=EACH_STEP, score=score)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("data", ["file", loaders, fields(), (fields(), tuple(2 * part for part in fields(9)))])
def test_rollouts_need_trajectories(file, data):
    more, states = ({"read": {**EACH_STEP, "time_step": "last"}}, 2) if data == "file" else ({}, 0)
    with pytest.raises(nm.MupError, match=f" 6 .* {states}"):
        run_ids(file if data == "file" else data, score="rollout:5", **more)


def test_a_run_whose_score_is_not_a_number_fails(tmp_path):
    with pytest.raises(nm.MupError, match="score.* nan"):
        quick_tune(tmp_path / "s", loaders, score=of_trained(math.nan))
