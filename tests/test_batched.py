"""Runs trained as one program: the numbers of each by itself, failures kept apart, what cannot be stacked named."""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from cases import CASES
from groups import Bowl
from neuralop.models import FNO
from optuna.distributions import FloatDistribution
from optuna.pruners import MedianPruner
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset

import neuralop_mup as nm
from neuralop_mup.cli import main
from neuralop_mup.errors import MupError
from neuralop_mup.experiments.own_runs import OwnRuns
from neuralop_mup.experiments.settings import OPTIMIZERS
from neuralop_mup.experiments.stacked_models import obstacle
from neuralop_mup.experiments.together import ProblemRuns, train_all
from neuralop_mup.experiments.training import train_run
from neuralop_mup.optim.stacked import StackedStep
from neuralop_mup.tuning import sweep, sweep_study
from neuralop_mup.tuning.engines import BatchedEngine, InlineEngine, make_engine
from neuralop_mup.tuning.engines.local import WorkerLost
from neuralop_mup.tuning.outcome import execute

TINY = {
    "problem": "burgers",
    "problem_args": {"grid": 32, "n_train": 20, "n_val": 10, "n_test": 10, "viscosity": 0.1},
    "model": {"n_modes": (8,), "hidden_channels": 8, "n_layers": 2},
    "base": {"hidden_channels": 4},
    "epochs": 2,
    "batch_size": 8,  # the last batch is smaller
    "lr": 5e-3,
}
SIZE = {"n_modes": (6,), "hidden_channels": 6}
BASE = {"n_modes": (4,), "hidden_channels": 4}


class Double(TorchFunctionMode):
    """neuralop's SpectralConv writes into complex64 whatever it is given: here into complex128."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.cfloat:
            kwargs["dtype"] = torch.cdouble
        return function(*args, **kwargs)


def build(**size):
    return FNO(in_channels=1, out_channels=1, n_layers=2, **size)


def build_double(**size):
    return build(**size)._apply(lambda t: t.to(torch.cdouble) if t.is_complex() else t.double())


def pairs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(18, 1, 16, generator=generator, dtype=dtype)
    y = torch.roll(x, 1, -1).square()
    return {"train": (x[:12], y[:12]), "val": (x[12:], y[12:])}


def by_itself(build, config, data):
    with tempfile.TemporaryDirectory() as folder:
        run = OwnRuns(build, data, "l2", None, Path(folder))
        return execute(run, {"model": SIZE, "base": BASE, "rule": "log-modes", **config})[0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_losses_are_those_of_each_run_by_itself(optimizer):
    """Three epochs in float64. Another order of the samples, or other weights to begin with, would change the third digit.

    MuSOAP is no such test: what a gradient leaves undetermined of its bases, rounding decides. By itself, with gradients
    changed by 1e-15, this run's loss changes by 1.6e-5.
    """
    decay = 0.0 if optimizer == "adam" else 1e-2
    configs = [
        {"lr": 2e-2 / 2**i, "seed": i % 2, "beta2": 0.9 + 0.02 * i, "weight_decay": decay * i, "lr_mult.spectral": 1.0 + i}
        for i in range(3)
    ]
    configs += [{**configs[0], "init_mult.spectral": 2.0, "rule": "none", "schedule": "constant", "clip_spectral": 1e-3}]
    configs = [{**c, "optimizer": optimizer, "epochs": 3, "batch_size": 4} for c in configs]
    configs[1]["epochs"] = 2
    data = pairs(torch.float64)
    with Double(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        together = nm.train_many(build_double, [{"model": SIZE, **c} for c in configs], data, base=BASE, measure=False)
        alone = [by_itself(build_double, c, data) for c in configs]
    for ours, theirs in zip(together, alone, strict=True):
        assert theirs["outcome"] == "complete", theirs
        assert {k: v for k, v in ours["metrics"].items() if k != "seconds"} == pytest.approx(
            {k: v for k, v in theirs["metrics"].items() if k != "seconds"}, rel=1e-3 if optimizer == "soap" else 1e-10
        )


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.Adam, [{"weight_decay": 0.0}, {"weight_decay": 0.1, "betas": (0.8, 0.95)}, {"eps": 1e-3}]),
        (torch.optim.AdamW, [{"weight_decay": 0.0}, {"weight_decay": 0.1, "betas": (0.8, 0.95)}, {"eps": 1e-3}]),
        (torch.optim.SGD, [{"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1}]),
        (torch.optim.SGD, [{}, {"weight_decay": 0.1}]),
        (torch.optim.Adam, [{"amsgrad": True}, {}]),  # by its own step
        (torch.optim.RMSprop, [{}, {"alpha": 0.9}]),
    ],
)
def test_a_stacked_step_is_torchs(kind, settings):
    """Also when it goes on from a state, and hands one back."""
    torch.manual_seed(0)
    shapes = [((3, 2), torch.float64), ((2, 3), torch.complex128), ((4,), torch.float64)]
    start = [[torch.randn(shape, dtype=dtype) for shape, dtype in shapes] for _ in settings]

    def fresh(own, keywords, lr):
        parameters = [nn.Parameter(p.clone()) for p in own]
        groups = [{"params": parameters[:1], "lr": 2 * lr}, {"params": parameters[1:]}]
        return parameters, kind(groups, lr=lr, **keywords)

    ours, theirs = ([fresh(p, s, 0.1 / (i + 1)) for i, (p, s) in enumerate(zip(start, settings, strict=True))] for _ in "ab")

    def gradients():
        return [[torch.randn_like(p) for p in parameters] for parameters, _ in theirs]

    def step_alone(runs, grads):
        for (parameters, optimizer), own in zip(runs, grads, strict=True):
            for p, g in zip(parameters, own, strict=True):
                p.grad = g.clone()
            optimizer.step()

    first = gradients()
    step_alone(theirs, first), step_alone(ours, first)
    stacks = []
    for i in range(3):
        stacks.append(torch.stack([parameters[i].detach() for parameters, _ in ours]))
        for r, (parameters, _) in enumerate(ours):
            parameters[i].data = stacks[i][r]
    stacked = StackedStep([o for _, o in ours], [p for p, _ in ours], stacks)
    for _ in range(3):
        grads = gradients()
        step_alone(theirs, grads)
        assert stacked.step([torch.stack(column) for column in zip(*grads, strict=True)]) == {}
    last = gradients()
    step_alone(theirs, last), step_alone(ours, last)
    for (mine, _), (torchs, _) in zip(ours, theirs, strict=True):
        for a, b in zip(mine, torchs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_a_run_that_diverges_or_is_refused_leaves_the_others_alone():
    configs = [TINY, {**TINY, "lr": 1e12}, {**TINY, "rule": "nonsense"}, {**TINY, "seed": 3}]
    ends = [outcome for outcome, _ in train_all(ProblemRuns(), configs, measure=False)]
    assert [end["outcome"] for end in ends] == ["complete", "diverged", "refused", "complete"]
    alone = [execute(train_run, config)[0] for config in configs]
    for end, one in zip(ends, alone, strict=True):
        assert end["error"] == one["error"]
        assert end["loss"] == (one["loss"] and pytest.approx(one["loss"], rel=1e-5))


def test_an_equation_in_the_loss():
    config = {
        "problem": "burgers-pino",
        "problem_args": {"grid": 16, "time_points": 8, "n_train": 8, "n_val": 4, "n_test": 4, "viscosity": 0.1},
        "model": {"n_modes": (4, 4), "hidden_channels": 4, "n_layers": 2},
        "base": {"hidden_channels": 4},
        "epochs": 2,
        "batch_size": 4,
    }
    configs = [{**config, "lr": lr} for lr in (1e-3, 1e-2)]
    notes = []
    ends = train_all(ProblemRuns(), configs, measure=False, note=notes.append)
    assert notes == []
    for config, (end, _) in zip(configs, ends, strict=True):
        alone = train_run(config)
        assert end["metrics"]["equation_loss"] == pytest.approx(alone["equation_loss"], rel=1e-4)
        assert end["loss"] == pytest.approx(alone["loss"], rel=1e-4)


def test_a_run_goes_on_alone_from_where_it_was_together(tmp_path):
    """The state on disk is the same kind either way, and as small."""
    configs = [{**TINY, "epochs": 3, "lr": lr, "seed": seed} for lr, seed in ((5e-3, 0), (1e-2, 1), (2e-2, 2))]
    train_all(ProblemRuns(tmp_path), [{**c, "until": 1} for c in configs], measure=False)
    sizes = [path.stat().st_size for path in tmp_path.glob("*.pt")]
    with_alone = [ProblemRuns(tmp_path)(configs[0]), ProblemRuns(tmp_path)(configs[1])]
    (last, _), (whole, _) = train_all(ProblemRuns(tmp_path), [configs[2], {**configs[2], "seed": 0}], measure=False)
    assert [run["loss"] for run in with_alone] == pytest.approx([train_run(c)["loss"] for c in configs[:2]], rel=1e-5)
    assert last["loss"] == pytest.approx(train_run(configs[2])["loss"], rel=1e-5)  # two epochs left beside a run of three
    assert whole["loss"] == pytest.approx(train_run({**configs[2], "seed": 0})["loss"], rel=1e-5)
    assert list(tmp_path.glob("*.pt")) == []
    train_run({**configs[0], "until": 1}, tmp_path)
    assert max(sizes) < 1.2 * next(tmp_path.glob("*.pt")).stat().st_size


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, **_):
        self.calls += 1
        return self.weight * x


class Branching(Counting):
    def forward(self, x, **_):
        return self.weight * x if x.sum() > 0 else x


class Sequence(nn.Sequential):
    def forward(self, x, **_):
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Counting(), "changes the buffer 'calls'"),
        (Branching(), "vmap refuses it .*control flow"),
        (Sequence(nn.Conv1d(1, 1, 1), nn.BatchNorm1d(1)), r"changes the buffer '1\.running_mean'"),
        (Sequence(nn.Conv1d(1, 1, 1), nn.Dropout(0.5)), "draws random numbers in '1'"),
        (Sequence(nn.Conv1d(1, 1, 1), nn.Dropout(0.0)), None),
        (Sequence(nn.Conv1d(1, 1, 3, padding=1)), None),
    ],
)
def test_what_cannot_be_stacked_is_named_and_left_as_it_was(model, why):
    torch.manual_seed(0)
    sample = {"x": torch.randn(4, 1, 8), "y": torch.randn(4, 1, 8)}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    found = obstacle(model, sample, lambda out, sample: (out - sample["y"]).square().sum())
    assert found is None if why is None else re.search(why, found)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())


def with_dropout(**size):
    return FNO(in_channels=1, out_channels=1, n_layers=2, channel_mlp_dropout=0.2, **size)


def test_such_runs_go_on_one_by_one():
    configs = [{"model": SIZE, "lr": lr, "epochs": 2, "batch_size": 4} for lr in (1e-3, 1e-2)]
    with pytest.warns(UserWarning, match="FNOs are trained one by one: its forward draws random numbers in "):
        ends = nm.train_many(with_dropout, configs, pairs(), base=BASE)
    assert [e["loss"] for e in ends] == [by_itself(with_dropout, c, pairs())["loss"] for c in configs]


def shuffled():
    """Loaders that shuffle by torch's global random numbers."""
    data = {name: TensorDataset(*both) for name, both in pairs().items()}
    return {name: DataLoader(part, 5, shuffle=name == "train") for name, part in data.items()}


def test_each_run_has_random_numbers_of_its_own():
    configs = [{"model": SIZE, "lr": 1e-2, "epochs": 3, "seed": seed} for seed in (0, 1)]
    ends = nm.train_many(build, configs, shuffled, base=BASE, measure=False)
    for config, end in zip(configs, ends, strict=True):
        assert end["metrics"]["train_loss"] == pytest.approx(
            by_itself(build, config, shuffled)["metrics"]["train_loss"], rel=1e-5
        )


def test_a_group_that_fails_goes_on_one_by_one(monkeypatch):
    def fails(*_):
        raise RuntimeError("no kernel for this")

    monkeypatch.setattr("neuralop_mup.experiments.program.Stack.step", fails)
    notes = []
    configs = [TINY, {**TINY, "seed": 1}]
    ends = train_all(ProblemRuns(), configs, measure=False, note=notes.append)
    assert notes == ["Trained one by one, since together they failed (RuntimeError: no kernel for this)."]
    assert [end["loss"] for end, _ in ends] == [train_run(config)["loss"] for config in configs]


def test_too_little_memory_for_two():
    notes = []
    (a, _), (b, _) = train_all(ProblemRuns(), [TINY, {**TINY, "seed": 1}], memory=1.0, note=notes.append)
    assert [a["loss"], b["loss"]] == [train_run(TINY)["loss"], train_run({**TINY, "seed": 1})["loss"]]
    assert "one by one" in notes[0] and "MiB" in notes[0]


def test_timing_leaves_no_trace(monkeypatch):
    """Which way is faster is measured on the runs themselves; their losses are those of runs that were not timed."""
    monkeypatch.setattr("neuralop_mup.experiments.at_once._TIMING", 1e6)
    configs = [{**TINY, "seed": seed} for seed in range(5)]
    notes = []
    ends = train_all(ProblemRuns(), configs, note=notes.append)
    assert re.search(r": a step of one run takes \S+ m?s alone and \S+ m?s among 2.* trained together\.$", notes[0])
    for config, (end, _) in zip(configs, ends, strict=True):
        assert end["loss"] == pytest.approx(train_run(config)["loss"], rel=1e-5)


def test_timing_takes_a_twentieth_of_the_runs():
    """Two runs of 6 steps: the four steps of one run are a third of them, and nothing else is tried."""
    notes = []
    train_all(ProblemRuns(), [TINY, {**TINY, "seed": 1}], note=notes.append)
    told = (
        r"Runs are trained one by one: a step of one run takes \S+ m?s alone, and there is no time to try several at once\."
    )
    assert re.fullmatch(told, notes[0])


def test_nothing_to_train():
    with pytest.raises(MupError, match="must not be empty"):
        nm.train_many(build, [], pairs(), base=BASE)


# ------------------------------------------------------------------------------------------------------------ the engine


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


# ------------------------------------------------------------------------------------------------------- the case table

#: Models that are trained one by one, and why.
ALONE: dict[str, str] = {
    "batch_norm": "changes the buffer 'fno_blocks.norm.0.norm.running_mean'",
    **dict.fromkeys(("gino", "gino_ada_in", "gino_nonlinear", "fnogno"), "aten::nonzero"),  # the search for neighbours
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models_of_the_case_table(case):
    batch = case.batch()[0]
    sample = batch if isinstance(batch, dict) else {"x": batch}
    pick = getattr(case, "pick", lambda y: y)
    why = obstacle(case.build_base().train(), sample, lambda out, _: pick(out).abs().square().sum())
    expected = ALONE.get(case.name)
    assert (why is None) if expected is None else (why is not None and expected in why), why
