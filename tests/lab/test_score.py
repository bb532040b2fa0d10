"""``nm.tune(score=…)``: what is chosen by it, what a rollout is, what is kept apart by it, and what is refused."""

from __future__ import annotations

import functools
import json
import math

import numpy as np
import pytest
import torch
from neuralop.models import FNO
from torch.utils.data import DataLoader, TensorDataset

import neuralop_mup as nm
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.problems import OwnData
from neuralop_mup.lab.score import Predictor, Validation, rollout_error

BASE, TARGET = {"hidden_channels": 4, "n_modes": (4,)}, {"hidden_channels": 8, "n_modes": (8,)}
STATES = 7


def build(**size):
    return FNO(in_channels=1, out_channels=1, n_layers=2, **size)


def waves(n=30, times=STATES):
    """Trajectories of travelling waves, in units far from mean 0 and standard deviation 1: (n, times, 32)."""
    rng = np.random.default_rng(0)
    phase, k = rng.uniform(0, 6, (n, 1, 1)), rng.integers(1, 3, (n, 1, 1))
    at = np.linspace(0, 2 * np.pi, 32, endpoint=False) - 0.3 * np.arange(times)[:, None]
    return (50 + 9 * np.sin(k * at + phase)).astype("f4")


@pytest.fixture
def file(tmp_path):
    np.savez(tmp_path / "waves.npz", u=waves(), t=np.arange(STATES))
    return tmp_path / "waves.npz"


def tuned_on(folder, data, **more):
    """One epoch of two rates at the base and of the target."""
    few = {"epochs": 1, "batch_size": 8, "seeds": (0,), "space": {"lr": [0.005, 0.02]}, "progress": False, "n_workers": 1}
    return nm.tune(build, data, base=BASE, target=TARGET, folder=folder, **{"compare": (), **few, **more})


def in_time(folder, file, **more):
    return tuned_on(folder, file, read={"y": "u", "time_step": 1}, **more)


def pairs(n=32, seed=0):
    x = torch.randn(n, 1, 32, generator=torch.Generator().manual_seed(seed)).cumsum(-1)
    return 50 + 9 * x, 1000 + 210 * x.roll(1, -1)


def loaders():
    return {name: DataLoader(TensorDataset(*pairs(n, n)), 8) for name, n in (("train", 32), ("val", 8))}


def relative(predictions, targets):
    return float(((predictions - targets).flatten(1).norm(dim=1) / targets.flatten(1).norm(dim=1)).mean())


def largest(model, data):
    return max((model(batch["x"]) - batch["y"]).abs().max() for batch in data)  # a tensor of no axis


def of_model(model, data):
    return np.float32(np.mean([relative(model(**batch), batch["y"]) for batch in data]))


def test_a_rollout_is_the_loop_that_one_would_write(tmp_path, file):
    tuned = in_time(tmp_path / "s", file, score="rollout:5")
    truth = waves()[tuned.split["val"]].astype("f8")
    state, errors = waves()[tuned.split["val"]][:, :1], []
    for step in range(1, 6):
        state = tuned.predict(state)
        far = np.linalg.norm(state[:, 0] - truth[:, step], axis=1) / np.linalg.norm(truth[:, step], axis=1)
        errors.append(far.mean())
    assert tuned.loss == pytest.approx(np.prod(errors) ** 0.2, rel=1e-5) and len(state) == 3
    assert f"has {tuned.loss:.4g} as its rollout:5" in repr(tuned)
    (record,) = tuned.results.carried("target", "operator-norm")
    assert record["metrics"]["validation_error"] != record["loss"] == tuned.loss
    text = tuned.report.read_text()
    assert "Values are chosen by the mean of the rollout:5 over seeds" in text
    assert "| validation error |" in text and f"| {record['metrics']['validation_error']:.3g} " in text


def test_the_states_of_trajectories_are_those_of_the_file_however_it_is_read(tmp_path, file):
    import h5py

    with h5py.File(tmp_path / "waves.h5", "w") as content:
        content["u"], content["t"] = waves(), np.arange(STATES)
    for path, how in ((file, {}), (tmp_path / "waves.h5", {"in_memory": 0}), (file, {"time_step": 2})):
        source = OwnData(files=path, y="u", **{"time_step": 1, **how})
        seen, every = Validation(source.load()), how.get("time_step", 1)
        whole = waves()[source.split_indices["val"]][:, ::every, None]
        assert seen.n_states == whole.shape[1] == {1: 7, 2: 4}[every]
        assert all(np.array_equal(seen.states(i), whole[:, i]) for i in range(seen.n_states))


def test_a_rollout_that_leaves_the_numbers_loses(file):
    data, model = Validation(OwnData(files=file, y="u", time_step=1).load()), build(**BASE)
    model.forward = lambda x: x * 1e30
    assert rollout_error(Predictor(model, None), data, 5) == math.inf
    model.forward = lambda x: x
    assert 0 < rollout_error(Predictor(model, None), data, 5) < math.inf


def prefers(lr):
    """A score that is best for the runs of this learning rate: they are told by how far they came from the same start."""

    def score(model, data):
        torch.manual_seed(0)
        began, moved = build(**BASE), model.model
        if moved.hidden_channels != BASE["hidden_channels"]:
            return 1.0
        far = sum(float((p - q).detach().abs().sum()) for p, q in zip(moved.parameters(), began.parameters(), strict=True))
        return 1 / (1 + far) if lr == "large" else far

    return score


def test_the_choice_is_the_scores(tmp_path):
    """Two that want opposite rates, in one folder: at least one of them is not what the validation error chose."""
    large, small = (tuned_on(tmp_path / "s", loaders, score=prefers(which)) for which in ("large", "small"))
    assert (large.lr, small.lr) == (0.02, 0.005)
    plain = tuned_on(tmp_path / "s", loaders)
    other = small if plain.lr == large.lr else large
    assert plain.lr != other.lr
    errors = {r["params"]["lr"]: r["metrics"]["validation_error"] for r in other.results.records if r["size"] == "proxy"}
    losses = {r["params"]["lr"]: r["loss"] for r in plain.results.records if r["size"] == "proxy"}
    assert errors == losses  # the same runs, judged otherwise


@pytest.mark.parametrize("score", [of_model, largest, functools.partial(of_model)], ids=range(3))
def test_functions_get_the_units_of_the_data(tmp_path, score):
    data = {"train": pairs(), "val": pairs(70, 1)}
    tuned = tuned_on(tmp_path / "s", data, score=score)
    x, y = data["val"]
    wanted = float((tuned.predict(x) - y).abs().max()) if score is largest else relative(tuned.predict(x), y)
    assert tuned.loss == pytest.approx(wanted, rel=1e-4 if score is largest else 0.1)  # which averages uneven batches
    assert nm.load_tuned(tmp_path / "s", build).loss == tuned.loss


def clipped(bound):
    def score(model, data):
        return min(float(of_model(model, data)), bound)

    return score


def is_untrained(model):
    torch.manual_seed(0)
    return all(map(torch.equal, model.model.parameters(), build(**BASE).parameters()))


def again(model, data):
    return 1.0 if is_untrained(model) else 0.3


FIRST = again


def again(model, data):
    return 1.0 if is_untrained(model) else 0.4


def test_a_folder_never_gives_another_scores_numbers(tmp_path):
    """Not for another closure, nor another function under one name that gives the same of a model that was not trained."""
    scores = [None, clipped(1e-3), clipped(2e-3), FIRST, again]
    found = [tuned_on(tmp_path / "s", loaders, score=score).results.records for score in scores]
    assert [tuned_on(tmp_path / "s", loaders, score=score).results.records for score in scores] == found
    runs = [json.loads(p.read_text()) for p in (tmp_path / "s" / "workspace").glob("*/signac_statepoint.json")]
    assert len(runs) == 3 * len(scores) and sum("score" not in run for run in runs) == 3
    assert [{r["loss"] for r in records} for records in found[1:]] == [{0.001}, {0.002}, {0.3}, {0.4}]


def gives(value):
    def score(model, data):
        return value() if callable(value) else value

    return score


def needs_more(model, data, weight):
    return 0.0


@pytest.mark.parametrize(
    ("score", "told"),
    [
        ("rollut:5", "no score 'rollut:5'; write rollout:50"),
        ("l2", "no score 'l2'; write rollout:50"),
        ("rollout", "no score 'rollout'; write rollout:50"),
        ("rollout:0", "1 or more"),
        ("rollout:-3", "1 or more"),
        ("rollout:2.5", "1 or more"),
        (3, r"score=3 must be 'rollout:50' or a function, score\(model, data\)"),
        (needs_more, "fails on the validation data: TypeError: .*'weight'.*It is called as"),
        (max, "The score max fails on the validation data"),
        (gives(torch.ones(3)), r"gives an array of shape \(3,\); it must return one real number"),
        (gives("0.1"), "gives '0.1'; it must"),
        (gives(1j), "gives 1j; it must"),
        (gives(None), "gives None; it must"),
        (gives(True), "gives True; it must"),
        (gives(math.nan), "gives NaN for the untrained base.*math.inf for a model that has none"),
        (gives(-0.3), "gives -0.3: lower is better and at least 0; return the error, not its negative"),
        (gives(np.random.default_rng(0).uniform), "and then .* the same each time"),
        (gives(lambda: 1 / 0), "fails on the validation data: ZeroDivisionError.*It is called as"),
        ("rollout:7", "needs 8 states of each validation trajectory, and the data has 7.*fewer steps"),
    ],
)
def test_what_cannot_choose_is_told_before_anything_is_trained(tmp_path, file, score, told):
    with pytest.raises(nm.MupError, match=told):
        in_time(tmp_path / "s", file, score=score)
    assert not (tmp_path / "s").exists()


def test_rollouts_need_trajectories(tmp_path, file):
    for data, more, have in (
        (file, {"read": {"y": "u", "time_step": "last"}}, 2),
        (loaders, {}, 0),
        (pairs(), {}, 0),
        ((pairs(), pairs(9)), {}, 0),
    ):
        with pytest.raises(nm.MupError, match=f"needs 6 states .* and the data has {have}, as it is read.*'time_step': 1}}"):
            tuned_on(tmp_path / "s", data, score="rollout:5", **more)


def sometimes(model, data):
    """No number for what was trained."""
    return 1.0 if is_untrained(model) else math.nan


def test_a_trained_model_without_a_score_loses(tmp_path):
    with pytest.raises(nm.MupError, match="The score sometimes of the trained model is nan"):
        tuned_on(tmp_path / "s", loaders, score=sometimes)


def test_the_command_chooses_by_a_rollout(tmp_path, file, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = (
        f"tune --data {file} --read.y u --read.time_step 1 --score rollout:5 --epochs 1 --space.lr 0.01,0.02 --n_workers 1"
    )
    line += " --base.hidden_channels 4 --base.n_modes 4 --target.hidden_channels 8 --target.n_modes 8"
    assert main(line.split()) == 0
    assert "as its rollout:5" in capsys.readouterr().out
    assert main(["tune", "burgers", "--problem.n_train", "20", "--score", "rollout:5"]) == 2
    assert "needs 6 states of each validation trajectory, and the data has 0" in capsys.readouterr().err
