"""The engine that hands groups of runs over: in which order, what a lost group costs, and that studies do not change."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from groups import Bowl
from optuna.distributions import FloatDistribution
from optuna.pruners import MedianPruner

from neuralop_mup.cli import main
from neuralop_mup.errors import MupError
from neuralop_mup.experiments.training import train_run
from neuralop_mup.tuning import sweep, sweep_study
from neuralop_mup.tuning.engines import BatchedEngine, InlineEngine, make_engine
from neuralop_mup.tuning.engines.local import WorkerLost
from neuralop_mup.tuning.outcome import execute


def handed_over(log):
    return [group for group, _ in map(json.loads, log.read_text().splitlines())]


def test_the_engine_hands_over_groups(tmp_path, capsys):
    log = tmp_path / "log"
    engine = BatchedEngine(InlineEngine(), Bowl(), at_once=4)
    found = sweep(
        Bowl(), {"lr": [1, 2, 3, 4, 5, 6]}, folder=tmp_path / "s", fixed={"log": str(log)}, seeds=(0, 1), engine=engine
    )
    # Four at a time, first seeds first.
    assert handed_over(log) == [[1, 2, 3, 4], [5, 6], [1, 2, 3, 4], [5, 6]]
    assert all(measure for _, measure in map(json.loads, log.read_text().splitlines()))
    assert found.best == {"lr": 3} and len(found.records) == 12
    assert capsys.readouterr().err.count("a note") == 1


def test_what_one_group_finds_holds_for_the_next(tmp_path):
    """It trained the first two of its runs, and sends the others back."""
    log = tmp_path / "log"
    engine = BatchedEngine(InlineEngine(), Bowl(), at_once=4)
    with pytest.warns(UserWarning, match="a note"):  # where no progress is shown
        found = sweep(
            Bowl(),
            {"lr": [1, 2, 3, 4, 5]},
            folder=tmp_path,
            fixed={"log": str(log), "best": 2},
            engine=engine,
            progress=False,
        )
    assert handed_over(log) == [[1, 2, 3, 4], [3, 4], [5]] and len(found.records) == 5


class Watching(Bowl):
    """Notes how many results were written when a run begins; the second seed of lr 2 diverges."""

    def many(self, config):
        with open(config["configs"][0]["results"]) as file:
            self.seen = [*getattr(self, "seen", ()), len(file.readlines())]
        return super().many(config)

    def __call__(self, config):
        return {"loss": float("nan")} if (config["lr"], config["seed"]) == (2, 2) else super().__call__(config)

    def group(self, config):
        return ""


def test_where_one_by_one_is_faster_all_is_as_on_the_local_engine(tmp_path):
    """Each result is written before the next run begins, and the seeds of a point that failed do not start.

    By hand: after the first group's first run, eight more begin with 1 to 8 results; lr 2 has lost seeds 4 and 6 by then.
    """
    train, log = Watching(), tmp_path / "log"
    fixed = {"log": str(log), "best": 1, "results": str(tmp_path / "s" / "results.jsonl")}
    engine = BatchedEngine(InlineEngine(), train, at_once=8)
    found = sweep(train, {"lr": [1, 2]}, folder=tmp_path / "s", fixed=fixed, seeds=(0, 2, 4, 6), engine=engine)
    assert train.seen == list(range(6)) and len(found.records) == 6
    local = sweep(train, {"lr": [1, 2]}, folder=tmp_path / "l", fixed=fixed, seeds=(0, 2, 4, 6), n_workers=1, progress=False)
    keys = ("params", "seed", "outcome", "loss", "error")
    assert [[r[k] for k in keys] for r in found.records] == [[r[k] for k in keys] for r in local.records]


def test_a_group_that_dies_is_taken_apart(tmp_path):
    fixed = {"log": str(tmp_path / "log"), "dies": 2}
    engine = BatchedEngine(InlineEngine(), Bowl(), at_once=8)
    found = sweep(Bowl(), {"lr": [1, 2, 3]}, folder=tmp_path / "s", fixed=fixed, engine=engine)
    assert {r["params"]["lr"]: r["outcome"] for r in found.records} == {1: "complete", 2: "raised", 3: "complete"}


class Dying(InlineEngine):
    """Its process ends under each group, and under the run of lr 2."""

    def __init__(self):
        self.given = []

    def submit(self, train, config):
        self.given.append([c["lr"] for c in config["configs"]])
        if len(config["configs"]) > 1 or config["configs"][0]["lr"] == 2:
            future = Future()
            future.set_exception(WorkerLost("its worker process was killed by signal 9"))
            return future
        return super().submit(train, config)


def test_a_killed_worker_costs_no_other_run(tmp_path, capsys):
    """A run that kills its group, and then its own process twice, is the only one that is lost."""
    inner = Dying()
    engine = BatchedEngine(inner, Bowl())
    found = sweep(Bowl(), {"lr": [1, 2, 3]}, folder=tmp_path / "s", fixed={"log": str(tmp_path / "log")}, engine=engine)
    assert [r["outcome"] for r in found.records] == ["complete", "lost", "complete"]
    assert inner.given[0] == [1, 2, 3] and sorted(inner.given[1:]) == [[1], [2], [2], [3]]
    said = capsys.readouterr().err
    assert said.count("3 trained as one: its worker process was killed by signal 9); it runs once more") == 3


@pytest.mark.parametrize(
    ("train", "arguments", "changes", "together"),
    [
        (Bowl(), {}, {}, True),
        (Bowl(), {}, {"fixed": {"device": "auto"}}, True),
        (Bowl(), {"n_workers": 1}, {}, False),
        (Bowl(), {"executor": ThreadPoolExecutor}, {}, False),
        (Bowl(), {"devices": ["0"]}, {}, False),
        (Bowl(), {}, {"fixed": {"device": "cuda:1"}}, False),  # not proven there
        (Bowl(), {}, {"space": {"lr": FloatDistribution(0.0, 1.0)}, "n_trials": 3}, False),  # a sampler learns from results
        (Bowl(), {"one_by_one": True}, {}, False),
        (Bowl(), {"engine": "local"}, {}, False),
        (execute, {}, {}, False),
    ],
)
def test_auto_is_the_default_where_nothing_is_lost_by_it(train, arguments, changes, together):
    study = sweep_study(**{"space": {"lr": [1.0, 2.0]}, **changes})
    engine = make_engine(**{"engine": None, "executor": None, "train": train, "study": study, **arguments})
    assert isinstance(engine, BatchedEngine) == together
    engine.close()


class Staged(Bowl):
    """Twice the loss at the rung."""

    def __call__(self, config):
        return {"loss": (config["lr"] - 3) ** 2 * (2 if "until" in config else 1)}


def test_a_pruner_stops_losing_runs_and_new_points_take_their_places(tmp_path):
    """By hand, two at once. At the rung lr 3 and 8 have losses 0 and 50, and none that is complete to compare with. Both
    end; the median of what they had is 25. Of 2 (loss 2) and 7 (32) the first goes on, beside 4 (2), and 6 (18) is above
    the median of 0, 50 and 2."""
    log, lrs = tmp_path / "log", [3, 8, 2, 7, 4, 6]
    how = {"pruner": MedianPruner(n_startup_trials=0, n_warmup_steps=0), "rungs": (2,)}
    engine = BatchedEngine(InlineEngine(), Staged(), at_once=2)
    found = sweep(Staged(), {"lr": lrs}, folder=tmp_path / "s", fixed={"log": str(log)}, engine=engine, **how)
    assert handed_over(log) == [[3, 8], [3, 8], [2, 7], [2, 4], [4, 6]]
    ended = {r["params"]["lr"]: r["outcome"] for r in found.records}
    assert ended == {3: "complete", 8: "complete", 2: "complete", 7: "pruned", 4: "complete", 6: "pruned"}


def test_a_train_function_without_groups_is_refused():
    with pytest.raises(MupError, match="one run at a time"):
        make_engine("batched", None, train_run, sweep_study({"lr": [1]}), 1)


def test_a_study_on_it_finds_what_the_local_engine_finds(tmp_path):
    command = "transfer burgers --problem.grid 32 --problem.n_train 20 --problem.n_val 10 --problem.n_test 10 --epochs 2"
    command += (
        " --proxy.hidden_channels 4 --proxy.n_modes 4 --target.hidden_channels 8 --target.n_modes 8 --workers 1 --seeds 1"
    )
    losses = {}
    for engine in ("local", "batched"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert main([*command.split(), "--lr", "1e-3,4e-3", "--engine", engine, "--output", str(tmp_path / engine)]) == 0
        lines = (tmp_path / engine / "results.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        losses[engine] = {(r["size"], r["rule"], str(r["params"]), r["seed"]): r["loss"] for r in records}
    assert losses["batched"] == pytest.approx(losses["local"], rel=1e-4)
