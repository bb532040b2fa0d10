"""Is the learning rate that is best for one step the best for fifty? Models in time, trained at several rates.

A model that makes the next state of each is applied to its own predictions in use, and its errors feed on each other. So the
rate that is best for the validation error, of one step, need not be the best for a rollout (``tune(score="rollout:50")``).
Both errors of the same models are measured on the same validation trajectories.

Hypothesis, written down before measuring: both rates are within a factor of 2, and choosing by one step costs a few percent
of the rollout's error, no more than choosing by the rollouts of another seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

from experiments.kept import missing
from experiments.law import CENTRE
from experiments.law import PROBLEMS as SIZES
from experiments.pages import NAMES, percents, table
from experiments.training import LOST, run_of
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.records import Run

#: Grid, modes and width by problem in time.
PROBLEMS: dict[str, dict[str, Any]] = {
    "korteweg-de-vries-in-time": SIZES["korteweg-de-vries"],
    "gray-scott-in-time": SIZES["gray-scott"],
    "navier-stokes-in-time": {"grid": 16, "modes": (8, 8), "width": 16},
}
RATES = (0.0075, 0.015, 0.03, 0.06, 0.12)

#: Of a seed: rate → errors of one step and of many, infinite where there is none.
Errors = dict[float, tuple[float, float]]


@dataclass(frozen=True)
class Rollout:
    """The experiment."""

    problems: tuple[str, ...] = tuple(PROBLEMS)
    rates: tuple[float, ...] = RATES
    seeds: tuple[int, ...] = (0, 1, 2)
    small: bool = False

    about = "whether the learning rate that is best for one step is the best for fifty"
    metrics = ("validation_error", "seconds")

    def tiny(self) -> Rollout:
        """Two problems of a few trajectories, small models and short runs."""
        return Rollout(tuple(PROBLEMS)[:2], RATES[1:4], (0, 1), small=True)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The runs that are missing, problem by problem and seed by seed."""
        runs = (run(p, lr, seed, self.small) for p in self.problems for seed in self.seeds for lr in self.rates)
        return missing(records, runs)

    def measured(self, records: Any, problem: str) -> list[Errors]:
        """Of each seed of which every rate is done."""
        found = [{lr: records.get(run(problem, lr, seed, self.small)) for lr in self.rates} for seed in self.seeds]
        return [{lr: _both(record) for lr, record in own.items()} for own in found if all(own.values())]

    def table(self, records: Any) -> str:
        """Both errors by rate, and what choosing by one step loses."""
        found = {problem: seeds for problem in self.problems if (seeds := self.measured(records, problem))}
        lines = ["# Is the rate that is best for one step the best for fifty?", ""]
        lines += [f"{len(found)} of {len(self.problems)} problems have a seed of which every rate is done."]
        for problem, seeds in found.items():
            rows = [[f"{lr:g}", *(_cell([own[lr][which] for own in seeds]) for which in (0, 1))] for lr in self.rates]
            heads = ["lr", "error of one step", f"error of {_steps(self.small)} steps"]
            lines += [f"\n## {problem}\n\nMean over seeds, and their range.", *table(heads, rows)]
        said = (
            "\n## What choosing by one step loses\n\nA seed's rollout error over that of its best rate, minus 1: median "
            "over seeds and range. What the choice by another seed's rollouts loses is noise."
        )
        return "\n".join([*lines, said, self.numbers(records)["table"]]) + "\n"

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote."""
        rows = []
        for problem in self.problems:
            seeds = self.measured(records, problem)
            # By its own error of one step, and by the rollouts of each other seed.
            if other := [_lost(own, judge, 1) for own, judge in permutations(seeds, 2)]:
                rows += [
                    [NAMES[problem.removesuffix("-in-time")], percents([_lost(s, s, 0) for s in seeds]), percents(other)]
                ]
        return {"table": "\n".join(table(["problem", "chosen by one step", "chosen by another seed's rollouts"], rows))}


def _lost(own: Errors, judge: Errors, which: int) -> float:
    """What a seed's rollout loses at the rate that is best by one of a judge's errors, over the best of its rates."""
    lr = min(judge, key=lambda lr: judge[lr][which])
    return own[lr][1] / min(many for _, many in own.values()) - 1


@cache
def run(problem: str, lr: float, seed: int, small: bool) -> Run:
    """A run of a problem in time; ``small`` makes it one of seconds."""
    own = PROBLEMS[problem]
    size = {"n_layers": CENTRE["depth"], "n_modes": own["modes"]}
    less = {"n_train": 3, "n_val": 2, "n_test": 1, "states": 8} if small else {}
    config = {
        "problem": problem,
        "data": {"grid": own["grid"], **less},
        "rollout": _steps(small),
        "steps": 50 if small else 1000,
        "batch_size": CENTRE["batch"],
        "model": {**size, "hidden_channels": 8 if small else own["width"]},
        "base": {**size, "hidden_channels": 4 if small else own["width"] // 2},
        "optimizer": "soap",
        "weight_decay": 0.0,
        "lr": lr,
        "kernel_init": "small",
        "seed": seed,
    }
    return run_of(config, size=problem, params={"lr": lr}, seed=seed)


def _steps(small: bool) -> int:
    return 5 if small else 50


def _both(record: Any) -> tuple[float, float]:
    """Errors of one step and of many; a rollout that left the numbers has none."""
    if not is_complete(record):
        return math.inf, math.inf
    return record["metrics"]["validation_error"], math.inf if record["loss"] >= LOST else record["loss"]


def _cell(errors: list[float]) -> str:
    return f"{sum(errors) / len(errors):.4g} [{min(errors):.4g}, {max(errors):.4g}]"
