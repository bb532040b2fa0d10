"""The best learning rate for fine-tuning an FNO, which was trained on one equation, on a similar one.

All other settings are the defaults. The kernels' learning rates are a factor of 2 apart, around that of :data:`OFFSET` more
steps, until the best is not at an edge. AdamW's rate is proportional to them (``adamw_lr`` = 0.004 · lr / 0.03). All rates
follow a cosine. The data is normalized as in the first training. The validation error is measured after steps 1, 2, 3, 4,
6, 8, … and at 24 further steps, to find its maximum.

We wrote down these hypotheses before measuring: the formula holds with an offset, as if the first training had taken some of
the steps; the best rate is a constant share of the fresh rate; or it has an upper bound. What we found at 30 and 300 steps
is the fresh rate times the relative error at the start. At 1,000 and 3,000 steps this is too low: the best rate hardly
depends on the error, but a rate above a quarter of it loses what the model has learned. So the default uses the offset,
with a higher rate if there are few steps, and at most a quarter of the error. It was chosen on eight pairs. Three further
pairs were seen before it was chosen, and three were measured afterwards.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import neuralop_mup as nm
from experiments.curves import Search, rounded, searched
from experiments.experiment import Experiment
from experiments.pages import percent, percents, table
from experiments.plain_training import BATCH, PlainTraining, build
from experiments.records import loss_of, metrics_of, missing
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.lab.problems import ProblemData
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap.optimizer import ADAMW_LR, LR, default_lr
from neuralop_mup.optim.schedule import trained_lr
from problems import get_problem

#: The middle of each grid of rates is the default for this many more steps.
OFFSET = 3000
#: Steps of the first training.
FIRST_STEPS = 600
#: Increase this number if the same configuration leads to different numbers.
VERSION = 1

_1D = {"n_train": 300, "n_val": 50, "n_test": 1, "grid": 64}
_2D = {"n_train": 200, "n_val": 40, "n_test": 1, "grid": 16}
_FLOW = {"n_train": 20, "n_val": 2, "n_test": 1, "states": 20, "grid": 16}
_KDV, _IN_TIME = "korteweg-de-vries", {"n_train": 40, "n_val": 2, "n_test": 1, "states": 30, "grid": 64}


@dataclass(frozen=True)
class Pair:
    """A problem, the arguments of its data before and after the change, and the model."""

    problem: str
    data: Mapping[str, Any]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    model: Mapping[str, Any]

    def problems(self) -> list[Any]:
        """Return the problems of the first training and of the fine-tuning."""
        return [get_problem(self.problem, **{**self.data, **changed}) for changed in (self.before, self.after)]


_FOR_BURGERS = {"n_modes": (16,), "hidden_channels": 16}
_FOR_WAVES = {"n_modes": (24,), "hidden_channels": 16}
_IN_2D = {"n_modes": (8, 8), "hidden_channels": 12}
CHOSEN_ON = {
    "Burgers, viscosity 0.02 to 0.018": Pair("burgers", _1D, {"viscosity": 0.02}, {"viscosity": 0.018}, _FOR_BURGERS),
    "Burgers, viscosity 0.02 to 0.01": Pair("burgers", _1D, {"viscosity": 0.02}, {"viscosity": 0.01}, _FOR_BURGERS),
    "Korteweg–de Vries, time 0.2 to 0.21": Pair(_KDV, _1D, {"time": 0.2}, {"time": 0.21}, _FOR_WAVES),
    "Korteweg–de Vries, dispersion 0.02 to 0.025": Pair(
        _KDV, {**_1D, "time": 0.2}, {"dispersion": 0.02}, {"dispersion": 0.025}, _FOR_WAVES
    ),
    "Burgers, time 1 to 1.5": Pair("burgers", {**_1D, "viscosity": 0.02}, {"time": 1.0}, {"time": 1.5}, _FOR_BURGERS),
    "Allen–Cahn, width 0.06 to 0.05": Pair("allen-cahn", _2D, {"width": 0.06}, {"width": 0.05}, _IN_2D),
    "Burgers, 32 to 64 points": Pair("burgers", {**_1D, "viscosity": 0.01}, {"grid": 32}, {"grid": 64}, _FOR_BURGERS),
    "trajectories of waves, step 0.05 to 0.06": Pair(
        f"{_KDV}-in-time", _IN_TIME, {"time": 0.05}, {"time": 0.06}, _FOR_WAVES
    ),
}
#: Pairs that did not select the rule. The first three were seen before it was chosen, and the others were not.
REPORTED_ON = {
    "Gray–Scott, feed 0.04 to 0.036": Pair("gray-scott", _2D, {"feed": 0.04}, {"feed": 0.036}, _IN_2D),
    "Darcy, 11 to 16 points": Pair("darcy", _2D, {"grid": 11}, {"grid": 16}, _IN_2D),
    "Korteweg–de Vries, time 0.1 to 0.15": Pair(_KDV, _1D, {"time": 0.1}, {"time": 0.15}, _FOR_WAVES),
    "trajectories of a flow, forcing 4 to 3": Pair(
        "navier-stokes-in-time", _FLOW, {"forcing_amplitude": 4.0}, {"forcing_amplitude": 3.0}, _IN_2D
    ),
    "Allen–Cahn, time 4 to 6": Pair("allen-cahn", _2D, {"time": 4.0}, {"time": 6.0}, _IN_2D),
    "Gray–Scott, kill 0.06 to 0.061": Pair("gray-scott", _2D, {"kill": 0.06}, {"kill": 0.061}, _IN_2D),
}

#: Rule → learning rate for a number of steps and a relative error at the start. The first one is the default of MuSOAP.
RULES = {
    "the default": trained_lr,
    "without start_error": lambda steps, start: trained_lr(steps, None),
    "the fresh rate times the error at the start": lambda steps, start: default_lr(steps) * start,
    "a quarter of the fresh rate": lambda steps, start: default_lr(steps) / 4,
    "the fresh rate": lambda steps, start: default_lr(steps),
}


class Result(NamedTuple):
    """A finished search: the errors by learning rate, and the metrics at the default rate."""

    name: str
    steps: int
    lr: float
    errors: Mapping[float, float]
    metrics: Mapping[str, Any]

    def regret(self, lr: float) -> float:
        """Return the regret of a rate. Errors are interpolated linearly in logarithms, and constant beyond the grid."""
        x, y = np.log(sorted(self.errors.items())).T
        return math.expm1(float(np.interp(math.log(lr), x, y)) - y.min())


@dataclass(frozen=True)
class FineTuning(Experiment):
    """Search the best learning rate for each pair and number of steps."""

    pairs: Mapping[str, Pair] = field(default_factory=lambda: REPORTED_ON | CHOSEN_ON)
    lengths: tuple[int, ...] = (30, 300, 1000, 3000)
    seed: int = 0

    about = "the learning rate for fine-tuning, and how far the error rises during the training"
    notes = "The regret is the error at a rate divided by the lowest error of a grid of rates, minus 1: median and range."
    metrics = ("before", "start", "highest", "seconds")

    def tiny(self) -> FineTuning:
        """Return one pair with a small model."""
        name, pair = next(iter(self.pairs.items()))
        small = replace(pair, data={**pair.data, "n_train": 20, "n_val": 10}, model={**pair.model, "hidden_channels": 8})
        return replace(self, pairs={name: small}, lengths=(30,))

    def run(self, name: str, steps: int, lr: float) -> Run:
        """Return a fine-tuning with a new state of the optimizer."""
        pair = self.pairs[name]
        own = {"aux_lr": ADAMW_LR * lr / LR, "carry": False}  # the keys of older runs contain both
        config = {"pair": vars(pair), "steps": steps, "lr": lr, **own, "seed": self.seed}
        data = [problem.content() for problem in pair.problems()]
        settings = {"before_steps": FIRST_STEPS, "batch_size": BATCH, "data": data}
        version = {"fine-tuning": VERSION, "rules": RULE_VERSION}
        content = {**config, **settings, "train": "fine-tuning", "version": version}
        return Run(content, config, train=train, size=f"{name}, {steps} steps", params={"lr": lr}, seed=self.seed)

    def searched(self, records: Any, name: str, steps: int) -> Search:
        """Return the state of a search."""
        return searched(lambda lr: loss_of(records.get(self.run(name, steps, lr))), default_lr(steps + OFFSET))

    def default_run(self, records: Any, name: str, steps: int) -> Run | None:
        """Return the run at the default rate, or None while the error at the start is unknown."""
        middle = self.run(name, steps, rounded(default_lr(steps + OFFSET)))
        start = loss_of(records.get(middle), "start")
        return self.run(name, steps, rounded(trained_lr(steps, start))) if math.isfinite(start or math.inf) else None

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs. A length begins after the previous one is finished."""
        for steps in self.lengths:
            rates = {name: self.searched(records, name, steps).missing for name in self.pairs}
            yield from (self.run(name, steps, lr) for name, own in rates.items() for lr in own)
            yield from missing(records, filter(None, (self.default_run(records, name, steps) for name in self.pairs)))
            if any(rates.values()):
                return

    def results(self, records: Any) -> list[Result]:
        """Return the results of all finished searches."""
        found = []
        for steps, name in product(self.lengths, self.pairs):
            search, run = self.searched(records, name, steps), self.default_run(records, name, steps)
            runs = {run.config["lr"]: run} if run is not None and not search.missing else {}
            for lr, metrics in metrics_of(records, runs).items():
                found.append(Result(name, steps, lr, {**search.errors, lr: metrics["loss"]}, metrics))
        return found

    def numbers(self, records: Any) -> dict[str, str]:
        """Return regrets by length and by pair."""
        results = self.results(records)
        regrets, rows, rises = {}, [], [0.0]
        for own in results:
            best, regret = min(own.errors, key=own.errors.__getitem__), own.regret(own.lr)
            errors = [f"{error:.4f}" for error in (own.metrics["before"], own.metrics["start"], own.errors[best])]
            regrets.setdefault(own.steps, []).append(regret)
            rises.append(own.metrics["highest"] / own.metrics["start"])
            rates = [f"{lr:.3g}" for lr in (best, own.lr)]
            rows.append([own.name, str(own.steps), *errors, *rates, percent(regret), f"{rises[-1]:.2f}"])
        errors = ["before", "at the start", "best"]
        heads = ["pair", "steps", *errors, "best rate", "default rate", "regret", "highest, relative to the start"]
        lengths = [[str(steps), str(len(own)), percents(own)] for steps, own in regrets.items()]
        found = {
            "lengths": table(["steps", "pairs", "error above the best"], lengths),
            "pairs": table(heads, rows),
            "highest": f"{max(rises):.2f}",
        }
        sides = [[own for own in results if (own.name in CHOSEN_ON) == chosen] for chosen in (True, False)]
        if all(sides):
            rows = []
            for name, rule in RULES.items():
                by_side = [[own.regret(rule(own.steps, own.metrics["start"])) for own in side] for side in sides]
                rows.append([name, *map(percents, by_side)])
            elsewhere = [own.regret(own.lr) for own in sides[1]]
            found |= {
                "rules": table(["rule", "where the default was chosen", "elsewhere"], rows),
                "elsewhere.median": percent(median(elsewhere)),
                "elsewhere.most": percent(max(elsewhere)),
            }
        return found


# A run


def train(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fine-tune a trained model. Return its validation errors before, at the start and at the end, and the highest one."""
    torch.set_num_threads(1)
    start_time, pair = time.perf_counter(), Pair(**config["pair"])
    before, after = pair.problems()
    first, moments, error_before = _first_training(before, tuple(pair.model.items()), config["seed"])
    model = nm.parametrize(copy.deepcopy(first), init=False)
    optimizer = nm.MuSOAP(model, lr=config["lr"], adamw_lr=config["aux_lr"])
    start, *errors = _errors(model, optimizer, after.load(), moments, config["steps"], config["seed"] + 100)
    seconds = time.perf_counter() - start_time
    return {"loss": errors[-1], "before": error_before, "start": start, "highest": max(errors), "seconds": seconds}


@cache
def _first_training(problem: Any, size: tuple, seed: int) -> tuple[nn.Module, list, float]:
    """Return a trained model without its plan, mean and standard deviation of inputs and outputs, and the error."""
    data = problem.load()
    moments = [(values.mean(), values.std()) for values in data.train]
    model = build(problem, dict(size), seed)
    errors = _errors(model, nm.MuSOAP(model, steps=FIRST_STEPS), data, moments, FIRST_STEPS, seed)
    return nm.unparametrize(model), moments, errors[-1]


def _errors(
    model: nn.Module, optimizer: nm.MuSOAP, data: ProblemData, moments: Sequence[Any], steps: int, seed: int
) -> list[float]:
    """Train with a cosine schedule, and return the validation errors at the start, at many of the steps and at the last."""
    batches = _batches(len(data.train[0]), torch.Generator().manual_seed(seed))
    training = PlainTraining(model, optimizer, data, moments, lambda number: next(batches))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    errors = [training.error()]
    for step in sorted({1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, *(round(steps * i / 24) for i in range(1, 25))}):
        if step <= steps:
            training.train_until(step, schedule)
            errors.append(training.error())
    return errors


def _batches(samples: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Return whole batches of samples in random order, without end."""
    while True:
        yield from torch.randperm(samples, generator=generator).split(BATCH)[: samples // BATCH]
