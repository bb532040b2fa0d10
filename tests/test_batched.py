"""Runs trained as one program: the numbers of each by itself, failures kept apart, what cannot be stacked named."""

from __future__ import annotations

import re
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from cases import CASES
from neuralop.models import FNO
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset

import neuralop_mup as nm
from neuralop_mup.errors import MupError
from neuralop_mup.experiments.own_runs import OwnRuns
from neuralop_mup.experiments.settings import OPTIMIZERS
from neuralop_mup.experiments.stacked_models import obstacle
from neuralop_mup.experiments.together import ProblemRuns, train_all
from neuralop_mup.experiments.training import train_run
from neuralop_mup.optim.stacked import StackedStep
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
