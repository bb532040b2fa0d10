"""Does an equation in the loss help or hurt? Train on data only, and on data and equation, by number of samples.

The data of Darcy flow solves the discrete equation. The data of Burgers' equation in space and time, on a coarse grid, does
not. The weight of the data's loss is 1. Hypotheses, written down before measuring: with 10 samples the equation lowers the
test error at each weight from 0.1 to 1; with 160 samples a weight of 10 raises it.

We measured MuSOAP first, and Adam and the balancing methods afterwards. Adam's learning rate is tuned for each setting by
the validation error on the data. A balancing method replaces the weight, with its default arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import Any

from experiments.contenders import CONTENDERS, MUSOAP
from experiments.curves import Search, searched
from experiments.experiment import Experiment
from experiments.pages import named, table
from experiments.records import loss_of, missing, test_errors
from experiments.tasks import TINY, Task
from experiments.training import remembered, run_of
from neuralop_mup.lab.records import Run

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
    """Train untuned MuSOAP and tuned Adam with each weight of the equation on each number of samples."""

    problems: Mapping[str, Task] = field(default_factory=lambda: PROBLEMS)
    samples: tuple[int, ...] = (10, 40, 160)
    weights: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0, 10.0)
    seeds: tuple[int, ...] = (0, 1, 2)
    adam_weights: tuple[float, ...] = (0.0, 0.1, 1.0)
    adam_samples: tuple[int, ...] = (10, 160)  # before Adam was measured, 40 samples were left out to save time
    balancing: tuple[str, ...] = ("SoftAdapt", "ReLoBRaLo", "ConFIG")

    about = "whether an equation in the loss helps or hurts, by number of samples and weight"
    notes = (
        "Mean test errors of three seeds, by weight of the equation: untuned MuSOAP, and Adam with a tuned learning rate "
        "(adam.table). The data has weight 1. Balancing methods: one seed, relative to data only."
    )
    metrics = ("test_loss", "test_equation_loss", "seconds")

    def tiny(self) -> Pino:
        """Return one problem with two samples and a small model."""
        small = {"problem": "darcy-pino", "data": {"grid": 12, "n_val": 2, "n_test": 2, "data_weight": 1.0}}
        problems = {"darcy-pino": replace(TINY, config=small, modes=(4, 4), batch=2)}
        return replace(self, problems=problems, samples=(2,), weights=(0.0, 1.0), seeds=(0,), adam_samples=(2,))

    @remembered
    def run(self, name: str, samples: int, weight: float | str, seed: int, adam_lr: float | None = None) -> Run:
        """Return a run of untuned MuSOAP or, with a rate, of Adam. The weight may be the name of a balancing method."""
        own, balanced, untuned = self.problems[name], isinstance(weight, str), adam_lr is None
        config = own.run_config(
            MUSOAP if untuned else {**CONTENDERS["Adam"], "lr": adam_lr},
            data={**own.config["data"], "n_train": samples, "equation_weight": 1.0 if balanced else weight},
            seed=seed,
            **({"balancing": weight} if balanced else {}),
        )
        size = f"{name}, {samples}, {weight if balanced else format(weight, 'g')}{'' if untuned else ', Adam'}"
        return run_of(config, size=size, params={} if untuned else {"lr": adam_lr}, seed=seed)

    @property
    def cells(self) -> list[tuple[str, int]]:
        """Return all problems and numbers of samples."""
        return list(product(self.problems, self.samples))

    def searched(self, records: Any, name: str, samples: int, weight: float) -> Search:
        """Return the state of the search of Adam's first seed. It begins at the best rate for weight 0."""
        start = self.searched(records, name, samples, 0.0).best if weight else CONTENDERS["Adam"]["lr"]

        def error(lr: float) -> float | None:
            return loss_of(records.get(self.run(name, samples, weight, self.seeds[0], lr)))

        return searched(error, start, spread=2.0 if weight else 4.0)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs: MuSOAP, balancing methods, Adam's searches, and finally Adam's further seeds."""
        settings = product(self.seeds, self.cells, self.weights)
        yield from missing(records, (self.run(*cell, weight, seed) for seed, cell, weight in settings))
        balanced = product(self.balancing, self.cells)
        yield from missing(records, (self.run(*cell, method, self.seeds[0]) for method, cell in balanced))
        adam = [(*cell, weight) for cell, weight in product(self.cells, self.adam_weights) if cell[1] in self.adam_samples]
        for setting in adam:
            rates = self.searched(records, *setting).missing
            yield from missing(records, (self.run(*setting, self.seeds[0], lr) for lr in rates))
        best = {setting: lr for setting in adam if (lr := self.searched(records, *setting).best)}
        seeds = self.seeds if len(best) == len(adam) else ()
        yield from missing(records, (self.run(*own, seed, lr) for seed, (own, lr) in product(seeds, best.items())))

    def mean(self, records: Any, setting: tuple[Any, ...], adam: bool, seeds: tuple[int, ...]) -> float | None:
        """Return the mean test error of the seeds, or None unless each of them has a record."""
        lr = self.searched(records, *setting).best if adam else None
        errors = test_errors(records, (self.run(*setting, seed, lr) for seed in seeds)) if lr or not adam else []
        return fmean(errors) if len(errors) == len(seeds) else None

    def numbers(self, records: Any) -> dict[str, str]:
        """Return tables of errors, and the range of the ratios to data only for each weight and balancing method."""
        tables = {
            "table": (self.weights, self.seeds),
            "adam.table": (self.adam_weights, self.seeds),
            "balancing": ((0.0, *self.balancing), self.seeds[:1]),
        }
        found = {}
        for name, (weights, seeds) in tables.items():
            prefix = "adam." if name == "adam.table" else ""
            heads = [weight if isinstance(weight, str) else f"{weight:g}" for weight in weights]
            rows, ratios = [], []
            for cell in self.cells if len(weights) > 1 else ():
                means = [self.mean(records, (*cell, weight), bool(prefix), seeds) for weight in weights]
                if None not in means:
                    ratios.append([mean / means[0] for mean in means])
                    own = (
                        [f"{ratio:.2f}" for ratio in ratios[-1][1:]] if name == "balancing" else [f"{m:.3g}" for m in means]
                    )
                    rows.append([named(cell[0]), str(cell[1]), *own])
            if rows:
                found[name] = table(["problem", "samples", *heads[-len(rows[0]) + 2 :]], rows)
            for head, own in zip(heads, zip(*ratios, strict=True), strict=False):
                found |= {f"{prefix}{head}.least": f"{min(own):.2f}", f"{prefix}{head}.most": f"{max(own):.2f}"}
        return found
