"""Does an equation in the loss help or hurt? Train on data only, and on data and equation, by number of samples.

The data of Darcy flow solves the discrete equation. The data of Burgers' equation in space and time, on a coarse grid, does
not. The weight of the data's loss is 1. Hypotheses, written down before measuring: with 10 samples the equation lowers the
test error at each weight from 0.1 to 1; with 160 samples a weight of 10 raises it. Only MuSOAP was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import Any

from experiments.comparison import CONTENDERS
from experiments.experiment import Experiment
from experiments.pages import named, table
from experiments.records import missing, test_errors
from experiments.tasks import Task
from experiments.training import STAGES, remembered, run_of
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap.optimizer import default_lr

SAMPLES = (10, 40, 160)
WEIGHTS = (0.0, 0.01, 0.1, 1.0, 10.0)
#: Burgers also has a loss of the initial state, with weight 1.
PROBLEMS = {
    "darcy-pino": Task({"problem": "darcy-pino", "data": {"grid": 32, "data_weight": 1.0}}, (16, 16), 24, 400, 10),
    "burgers-pino": Task(
        {"problem": "burgers-pino", "data": {"grid": 64, "time_points": 32, "data_weight": 1.0, "initial_weight": 1.0}},
        (16, 24),
        16,
        400,
        10,
    ),
}
#: A problem on which the weight of 0.1 was not chosen. Its coarse grid resolves the equation poorly.
HELD_OUT = {
    "navier-stokes": Task(
        {"problem": "navier-stokes", "data": {"grid": 16, "time_points": 16, "data_weight": 1.0, "initial_weight": 1.0}},
        (8, 8, 8),
        12,
        400,
        5,
    )
}


@dataclass(frozen=True)
class Pino(Experiment):
    """Train untuned MuSOAP with each weight of the equation on each number of samples."""

    problems: Mapping[str, Task] = field(default_factory=lambda: PROBLEMS)
    samples: tuple[int, ...] = SAMPLES
    weights: tuple[float, ...] = WEIGHTS
    seeds: tuple[int, ...] = (0, 1, 2)

    about = "whether an equation in the loss helps or hurts, by number of samples and weight"
    notes = "Mean test errors of three seeds, by weight of the equation. The data has weight 1."
    metrics = ("test_loss", "test_equation_loss", "seconds")

    def tiny(self) -> Pino:
        """Return one problem with two samples and a small model."""
        small = {"problem": "darcy-pino", "data": {"grid": 12, "n_val": 2, "n_test": 2, "data_weight": 1.0}}
        problems = {"darcy-pino": Task(small, (4, 4), 8, STAGES, 2)}
        return replace(self, problems=problems, samples=(2,), weights=(0.0, 1.0), seeds=(0,))

    @remembered
    def run(self, name: str, samples: int, weight: float, seed: int) -> Run:
        """Return a run on a problem."""
        own = self.problems[name]
        config = {
            **own.run_config(own.steps),
            "data": {**own.config["data"], "n_train": samples, "equation_weight": weight},
            **CONTENDERS["MuSOAP"].settings,
            "lr": default_lr(own.steps),
            "seed": seed,
        }
        return run_of(config, size=f"{name}, {samples}, {weight:g}", params={}, seed=seed)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs, seed by seed."""
        settings = product(self.seeds, self.problems, self.samples, self.weights)
        return missing(records, (self.run(*setting, seed) for seed, *setting in settings))

    def mean(self, records: Any, *setting: Any) -> float | None:
        """Return the mean test error of the seeds, or None unless every seed has a record."""
        errors = test_errors(records, (self.run(*setting, seed) for seed in self.seeds))
        return fmean(errors) if len(errors) == len(self.seeds) else None

    def numbers(self, records: Any) -> dict[str, str]:
        """Return a table of errors, and for each weight the range of the ratios to data only."""
        rows, ratios = [], {weight: [] for weight in self.weights}
        for name, samples in product(self.problems, self.samples):
            means = {weight: self.mean(records, name, samples, weight) for weight in self.weights}
            if None not in means.values():
                rows.append([named(name), str(samples), *(f"{mean:.3g}" for mean in means.values())])
                for weight, mean in means.items():
                    ratios[weight].append(mean / means[0.0])
        said = {"table": "\n".join(table(["problem", "samples", *(f"{w:g}" for w in self.weights)], rows))}
        for weight, own in ratios.items():
            if own:
                said |= {f"{weight:g}.least": f"{min(own):.2f}", f"{weight:g}.most": f"{max(own):.2f}"}
        return said
