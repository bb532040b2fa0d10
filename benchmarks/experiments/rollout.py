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
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from typing import Any

from experiments.curves import Curve
from experiments.law import CENTRE
from experiments.law import PROBLEMS as SIZES
from experiments.pages import NAMES, percents, table
from experiments.training import LOST, run_of
from neuralop_mup.tuning.outcome import is_complete
from neuralop_mup.tuning.records import Run

__all__ = ["PROBLEMS", "RATES", "Rollout", "run"]

#: Grid, modes and width by problem in time.
PROBLEMS: dict[str, dict[str, Any]] = {
    "korteweg-de-vries-in-time": SIZES["korteweg-de-vries"],
    "gray-scott-in-time": SIZES["gray-scott"],
    "navier-stokes-in-time": {"grid": 16, "modes": (8, 8), "width": 16},
}
RATES = (0.0075, 0.015, 0.03, 0.06, 0.12)

Errors = dict[float, list[float]]


@dataclass(frozen=True)
class Measured:
    """Both errors of a problem's models: rate → one of each seed, infinite where there is none."""

    one: Errors = field(default_factory=dict)
    many: Errors = field(default_factory=dict)

    def lost(self, seed: int, by: Errors, chosen: int) -> float:
        """What a seed's rollout loses at the rate that is best by these errors of a seed, over the best of its rates."""
        lr = min(by, key=lambda lr: by[lr][chosen])
        return self.many[lr][seed] / min(own[seed] for own in self.many.values()) - 1

    def choices(self) -> tuple[list[float], list[float]]:
        """What each seed's rollout loses by its own one step's choice, and by the rollouts of each other seed."""
        seeds = range(len(next(iter(self.one.values()))))
        own = [self.lost(seed, self.one, seed) for seed in seeds]
        return own, [self.lost(seed, self.many, by) for seed in seeds for by in seeds if by != seed]


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

    def wanted(self, records: Any) -> Iterator[Run]:
        """The runs that are missing, problem by problem and seed by seed."""
        runs = (run(p, lr, seed, self.small) for p in self.problems for seed in self.seeds for lr in self.rates)
        yield from (run for run in runs if records.get(run) is None)

    def measured(self, records: Any, problem: str) -> Measured:
        """Errors of the seeds of which every rate is done."""
        found = [[records.get(run(problem, lr, seed, self.small)) for lr in self.rates] for seed in self.seeds]
        pairs = [[_both(record) for record in own] for own in found if all(own)]
        one, many = ({lr: [own[i][which] for own in pairs] for i, lr in enumerate(self.rates)} for which in (0, 1))
        return Measured(one, many) if pairs else Measured()

    def table(self, records: Any) -> str:
        """Both errors by rate, the best rates, and what choosing by one step loses."""
        found = {problem: self.measured(records, problem) for problem in self.problems}
        found = {problem: measured for problem, measured in found.items() if measured.one}
        lines = ["# Is the rate that is best for one step the best for fifty?", ""]
        lines += [f"{len(found)} of {len(self.problems)} problems have a seed of which every rate is done."]
        for problem, measured in found.items():
            rows = [[f"{lr:g}", _cell(measured.one[lr]), _cell(measured.many[lr])] for lr in self.rates]
            heads = ["lr", "error of one step", f"error of {_steps(self.small)} steps"]
            lines += [f"\n## {problem}\n\nMean over seeds, and their range.", *table(heads, rows)]
        return "\n".join([*lines, *(_choice(found) if found else [])]) + "\n"

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote."""
        rows = []
        for problem in self.problems:
            own, other = self.measured(records, problem).choices()
            rows.append([NAMES[problem.removesuffix("-in-time")], percents(own), percents(other)])
        heads = ["problem", "chosen by one step", "chosen by another seed's rollouts"]
        return {"table": "\n".join(table(heads, rows))}


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


def _choice(found: dict[str, Measured]) -> list[str]:
    """Best rates, and regrets of rollouts."""
    rows = []
    for problem, measured in found.items():
        one, many = Curve(measured.one), Curve(measured.many)
        own, other = measured.choices()
        rates = [_rate(curve) for curve in (one, many)]
        rows.append([problem, *rates, _regrets(own), _regrets(other), _at_best(many, one)])
    heads = ["problem", "best for one step", "best for many", "lost by one step's choice", "lost by another seed's rollouts"]
    said = (
        "\n## What choosing by one step loses\n\nBest rates are those of a parabola through the means over the seeds. Lost "
        "is a seed's rollout error over that of its best rate, minus 1: median over the seeds, and range. What the choice "
        "by another seed's rollouts loses is noise. The last column is the means' parabola at the best rate for one step."
    )
    return [said, *table([*heads, "lost by the curves"], rows)]


def _rate(curve: Curve) -> str:
    if not len(curve.points[0]):
        return "–"
    return f"{2**curve.best:.3g}" + ("" if curve.inside else " (edge)")


def _at_best(many: Curve, one: Curve) -> str:
    return f"{many.regret(one.best):.1%}" if len(many.points[0]) and len(one.points[0]) else "–"


def _regrets(lost: list[float]) -> str:
    lost = [x for x in lost if not math.isnan(x)]  # no rollout of that seed stayed among the numbers
    return f"{median(lost):.1%} [{min(lost):.1%}, {max(lost):.1%}]" if lost else "–"
