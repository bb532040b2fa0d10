"""Compare training losses: relative errors of the samples, relative errors with a floor, and squared errors.

Models of one time step are trained on six 1D scenarios of APEBench and on two problems in 2D, and evaluated by their rollout
error. Models of maps are trained on four problems and evaluated by their relative test error. Half of the problems select
the default of ``nm.train``, and the others confirm it.

We wrote down these hypotheses before measuring: on decaying states (``norm_four``, ``phy_diff``, ``phy_adv_diff``) the error
with the relative loss is at least 1.5 times that with the others. Elsewhere all three are within 10 %.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, geometric_mean
from typing import Any

from experiments.ablations import Ablation, Config, changed
from experiments.contenders import MUSOAP
from experiments.pages import mean_and_range, named, table
from experiments.tasks import APEBENCH as SCENARIOS
from experiments.tasks import FURTHER, SUITE, TINY, Task

#: Name of the loss → change of a run. The others are compared with the first.
LOSSES = {"l2": changed(), "floored-l2": changed(loss="floored-l2"), "mse": changed(loss="mse")}
_LABELS = ("relative", "relative with a floor", "squared")
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


def configs() -> dict[str, Config]:
    """Return runs of untuned MuSOAP."""
    return {name: _TASKS[name].run_config(MUSOAP) for name in (*CHOSEN_ON, *HELD_OUT, *IN_2D)}


class Losses(Ablation):
    """Train untuned MuSOAP with each loss on each problem."""

    notes = "Mean error of three seeds with their range, and geometric means of the ratios to the relative loss."
    metrics = ("test_loss", "validation_error", "seconds")

    def tiny(self) -> Losses:
        """Return one map and one trajectory with small models and two seeds."""
        data = {"n_train": 8, "n_val": 2, "n_test": 2, "grid": 64, "states": 8}
        in_time = {"problem": "korteweg-de-vries-in-time", "data": data, "rollout": 5}
        tasks = {"burgers": TINY, "korteweg-de-vries-in-time": replace(TINY, config=in_time)}
        return replace(self, configs={name: own.run_config(MUSOAP) for name, own in tasks.items()}, seeds=(0, 1))

    def labels(self, name: str, variant: str, lr: float) -> dict[str, Any]:
        """Return the labels of a run."""
        return {"size": name, "params": {"trained_on": variant}}

    def numbers(self, records: Any) -> dict[str, str]:
        """Return a table of errors, and a table of their ratios by group."""
        errors = self.errors(records)
        rows = [[named(name), *map(mean_and_range, own)] for name, own in errors.items()]
        ratio_rows = []
        for group, names in GROUPS.items():
            means = [[fmean(seeds) for seeds in errors[name]] for name in names if name in errors]
            if means and math.isfinite(max(map(max, means))):
                base, *others = map(geometric_mean, zip(*means, strict=True))
                ratio_rows.append([group, str(len(means)), *(f"{mean / base:.2f}" for mean in others)])
        return {
            "table": table(["problem", *_LABELS], rows),
            "ratios": table(["problems", "number", *_LABELS[1:]], ratio_rows),
        }
