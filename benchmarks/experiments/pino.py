"""Does the equation's loss help or hurt? Models trained on data only, and on data and equation, by number of samples.

Darcy flow, whose data solves the discrete equation, and Burgers in space and time, whose data on a coarse grid does not. The
weight of the data's loss is 1. Hypotheses, written down before measuring: with 10 samples the equation lowers the test error
at each weight from 0.1 to 1; with 160 samples a weight of 10 raises it; MuSOAP and Adam agree on this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from experiments.comparison import CONTENDERS
from experiments.curves import rounded, searched
from experiments.pages import named, table
from experiments.records import loss_of, missing, test_errors
from experiments.tasks import Task
from experiments.training import STAGES, remembered, run_of
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap.optimizer import default_lr

SAMPLES = (10, 40, 160)
WEIGHTS = (0.0, 0.01, 0.1, 1.0, 10.0)
#: Burgers also has a loss of the initial state, with the weight of the data's.
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


@dataclass(frozen=True)
class Pino:
    """The experiment."""

    problems: Mapping[str, Task] = field(default_factory=lambda: PROBLEMS)
    samples: tuple[int, ...] = SAMPLES
    weights: tuple[float, ...] = WEIGHTS
    optimizers: tuple[str, ...] = ("MuSOAP", "Adam")
    seeds: tuple[int, ...] = (0, 1, 2)

    about = "whether an equation in the loss helps or hurts, by number of samples and weight"
    metrics = ("test_loss", "test_equation_loss", "seconds")

    def tiny(self) -> Pino:
        """Two samples, small models and short runs."""
        small = {"problem": "darcy-pino", "data": {"grid": 12, "n_val": 2, "n_test": 2, "data_weight": 1.0}}
        problems = {"darcy-pino": Task(small, (4, 4), 8, STAGES, 2)}
        return replace(self, problems=problems, samples=(2,), weights=(0.0, 1.0), optimizers=("MuSOAP",), seeds=(0,))

    @remembered
    def run(self, name: str, samples: int, weight: float, optimizer: str, lr: float | None, seed: int) -> Run:
        """Return a training; without a rate at that of the formula."""
        own = self.problems[name]
        config = {
            **own.run_config(own.steps),
            "data": {**own.config["data"], "n_train": samples, "equation_weight": weight},
            **CONTENDERS[optimizer].settings,
            "lr": default_lr(own.steps) if lr is None else lr,
            "seed": seed,
        }
        return run_of(config, size=f"{name}, {samples}, {weight:g}, {optimizer}", params={"lr": config["lr"]}, seed=seed)

    def rate(self, records: Any, name: str, samples: int, weight: float, optimizer: str) -> tuple[float | None, list[float]]:
        """Return the rate of a setting, and the rates that must be tried first: Adam's is searched with the first seed."""
        if optimizer == "MuSOAP":
            return None, []

        def error_of(lr: float) -> float | None:
            return loss_of(records.get(self.run(name, samples, weight, optimizer, lr, self.seeds[0])))

        found, left = searched(error_of, rounded(8e-3), spread=2.0)
        return min(found, key=found.__getitem__, default=None), left

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs: MuSOAP and the first seed come first."""
        for optimizer, seed in product(self.optimizers, self.seeds):
            for name, samples, weight in product(self.problems, self.samples, self.weights):
                lr, left = self.rate(records, name, samples, weight, optimizer)
                rates, seed_of = (left, self.seeds[0]) if left else ([lr], seed)
                yield from missing(records, (self.run(name, samples, weight, optimizer, r, seed_of) for r in rates))

    def errors(self, records: Any, name: str, samples: int, weight: float, optimizer: str) -> list[float]:
        """Return the test errors of the seeds that ended."""
        lr, left = self.rate(records, name, samples, weight, optimizer)
        if left:
            return []
        return test_errors(records, (self.run(name, samples, weight, optimizer, lr, seed) for seed in self.seeds))

    def numbers(self, records: Any) -> dict[str, str]:
        """Return a table for each optimizer: mean test errors, by weight of the equation."""
        said = {}
        for optimizer in self.optimizers:
            rows = []
            for name, samples in product(self.problems, self.samples):
                found = [self.errors(records, name, samples, weight, optimizer) for weight in self.weights]
                if all(found):
                    rows.append([named(name), str(samples), *(f"{sum(e) / len(e):.3g}" for e in found)])
            said[optimizer] = "\n".join(table(["problem", "samples", *(f"{w:g}" for w in self.weights)], rows))
        return said

    def table(self, records: Any) -> str:
        """Return the tables."""
        said = self.numbers(records)
        parts = "\n".join(f"## {optimizer}\n{text}\n" for optimizer, text in said.items())
        about = f"# {self.about.capitalize()}\n\nMean test errors, by weight of the equation; the data has weight 1."
        return f"{about}\n\n{parts}"
