"""Compare training losses: relative errors of the samples, relative errors with a floor, and squared errors.

Models of one time step are trained on six 1D scenarios of APEBench and on two problems in 2D, and evaluated by their rollout
error. Models of maps are trained on four problems and evaluated by their relative test error. Half of the problems select
the default of ``nm.train``, and the others confirm it.

We wrote down these hypotheses before measuring: on decaying states (``norm_four``, ``phy_diff``, ``phy_adv_diff``) the error
with the relative loss is at least 1.5 times that with the others. Elsewhere all three are within 10 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean, geometric_mean
from typing import Any

from experiments.contenders import MUSOAP
from experiments.experiment import Experiment
from experiments.pages import mean_and_range, named, table
from experiments.records import missing, test_errors
from experiments.tasks import APEBENCH as SCENARIOS
from experiments.tasks import FURTHER, SUITE, Task
from experiments.training import STAGES, remembered, run_of
from neuralop_mup.lab.records import Run

#: Name of the loss → label. The others are compared with the first.
LOSSES = {"l2": "relative", "floored-l2": "relative with a floor", "mse": "squared"}
#: Problems that select the default, and problems that confirm it. We fixed both before the first run.
CHOSEN_ON = ("diff_burgers 1D", "norm_four 1D", "phy_diff 1D", "burgers", "darcy")
HELD_OUT = ("diff_kdv 1D", "diff_fisher 1D", "phy_adv_diff 1D", "korteweg-de-vries", "gray-scott")
#: Trajectories in 2D, added after the default was selected. Gray–Scott has two channels.
IN_2D = ("gray-scott-in-time", "navier-stokes-in-time")
#: Rows of the table of ratios.
GROUPS = {
    "decaying, used to choose": ("norm_four 1D", "phy_diff 1D"),
    "decaying, held-out": ("phy_adv_diff 1D",),
    "trajectories, used to choose": ("diff_burgers 1D",),
    "trajectories, held-out": ("diff_kdv 1D", "diff_fisher 1D"),
    "trajectories in 2D, held-out": IN_2D,
    "maps, used to choose": ("burgers", "darcy"),
    "maps, held-out": ("korteweg-de-vries", "gray-scott"),
}
_TASKS = {
    **{name: replace(own, steps=2500) for name, own in {**SCENARIOS, **FURTHER}.items()},
    **SUITE,
    **{
        name: Task({"problem": name, "data": {"grid": grid, "every": 1}, "rollout": 50}, modes, 16, 1000)
        for name, grid, modes in (("gray-scott-in-time", 20, (10, 10)), ("navier-stokes-in-time", 16, (8, 8)))
    },
}


@dataclass(frozen=True)
class Losses(Experiment):
    """Train untuned MuSOAP with each loss on each problem."""

    tasks: Mapping[str, Task] = field(
        default_factory=lambda: {name: _TASKS[name] for name in (*CHOSEN_ON, *HELD_OUT, *IN_2D)}
    )
    seeds: tuple[int, ...] = (0, 1, 2)

    about = "training losses: relative, relative with a floor, and squared"
    notes = "Mean error of three seeds with their range, and geometric means of the ratios to the relative loss."
    metrics = ("test_loss", "validation_error", "seconds")

    def tiny(self) -> Losses:
        """Return one map and one trajectory with small models and two seeds."""
        data = {"n_train": 8, "n_val": 2, "n_test": 2}
        in_time = {"problem": "korteweg-de-vries-in-time", "data": {**data, "grid": 64, "states": 8}, "rollout": 5}
        configs = {"burgers": {"problem": "burgers", "data": {**data, "grid": 16}}, "korteweg-de-vries-in-time": in_time}
        return Losses({name: Task(config, (4,), 8, STAGES, 4) for name, config in configs.items()}, (0, 1))

    @remembered
    def run(self, name: str, loss: str, seed: int) -> Run:
        """Return a run on a problem."""
        config = self.tasks[name].run_config(MUSOAP, seed=seed, **({} if loss == "l2" else {"loss": loss}))
        return run_of(config, size=name, params={"trained_on": loss}, seed=seed)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs, seed by seed."""
        return missing(records, (self.run(name, loss, s) for s, name, loss in product(self.seeds, self.tasks, LOSSES)))

    def errors(self, records: Any, name: str, loss: str) -> list[float]:
        """Return the rollout or test errors of the seeds that have a record, infinite if the training failed."""
        return test_errors(records, (self.run(name, loss, seed) for seed in self.seeds))

    def numbers(self, records: Any) -> dict[str, str]:
        """Return a table of errors, and a table of their ratios by group."""
        errors = {name: [self.errors(records, name, loss) for loss in LOSSES] for name in self.tasks}
        done = {name: own for name, own in errors.items() if all(len(seeds) == len(self.seeds) for seeds in own)}
        rows = [[named(name), *map(mean_and_range, own)] for name, own in done.items()]
        ratio_rows = []
        for group, names in GROUPS.items():
            means = [[fmean(seeds) for seeds in done[name]] for name in names if name in done]
            if means and all(math.isfinite(mean) for own in means for mean in own):
                ratios = [geometric_mean(own[i] / own[0] for own in means) for i in range(1, len(LOSSES))]
                ratio_rows.append([group, str(len(means)), *(f"{ratio:.2f}" for ratio in ratios)])
        heads = ["problems", "number", *list(LOSSES.values())[1:]]
        return {
            "table": "\n".join(table(["problem", *LOSSES.values()], rows)),
            "ratios": "\n".join(table(heads, ratio_rows)),
        }
