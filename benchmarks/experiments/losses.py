"""Which loss to train on: relative errors of the samples, relative errors with a floor, or squared errors.

Models of one step in time are trained on six 1D scenarios of APEBench and on two problems in 2D, and judged by rollout
errors. Models of maps are trained on four problems and judged by the relative test error. Half of the problems choose the
default of ``nm.train``, and the others confirm it.

Hypotheses, written down before measuring: on decaying states (``norm_four``, ``phy_diff``, ``phy_adv_diff``) the relative
loss is at least 1.5 times worse than both others; elsewhere all three are within 10 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import geometric_mean
from typing import Any

from experiments.contest import CONTENDERS
from experiments.fields import APEBENCH as SCENARIOS
from experiments.fields import FURTHER, SUITE, Field
from experiments.kept import missing
from experiments.pages import mean_and_range, named, table
from experiments.rollout import PROBLEMS as IN_TIME
from experiments.training import LOST, STAGES, remembered, run_of
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap.optimizer import default_lr

#: The first is what the others are compared with.
LOSSES = {"l2": "relative", "floored-l2": "relative with a floor", "mse": "squared"}
#: Problems that choose the default, and those that confirm it, fixed before the first run.
CHOOSE = ("diff_burgers 1D", "norm_four 1D", "phy_diff 1D", "burgers", "darcy")
CONFIRM = ("diff_kdv 1D", "diff_fisher 1D", "phy_adv_diff 1D", "korteweg-de-vries", "gray-scott")
#: Trajectories in 2D, which were added to check the default after it was chosen. Gray–Scott has two channels.
IN_2D = ("gray-scott-in-time", "navier-stokes-in-time")
#: What pages quote ratios of.
GROUPS = {
    "decaying, chosen": ("norm_four 1D", "phy_diff 1D"),
    "decaying, held-out": ("phy_adv_diff 1D",),
    "trajectories, chosen": ("diff_burgers 1D",),
    "trajectories, held-out": ("diff_kdv 1D", "diff_fisher 1D"),
    "trajectories in 2D, held-out": IN_2D,
    "maps, chosen": ("burgers", "darcy"),
    "maps, held-out": ("korteweg-de-vries", "gray-scott"),
}
_FIELDS = {
    **{name: replace(own, steps=2500) for name, own in {**SCENARIOS, **FURTHER}.items()},
    **SUITE,
    **{
        name: Field(
            {"problem": name, "data": {"grid": own["grid"], "every": 1}, "rollout": 50}, own["modes"], own["width"], 1000
        )
        for name, own in IN_TIME.items()
    },
}


@dataclass(frozen=True)
class Losses:
    """The experiment."""

    fields: Mapping[str, Field] = field(
        default_factory=lambda: {name: _FIELDS[name] for name in (*CHOOSE, *CONFIRM, *IN_2D)}
    )
    seeds: tuple[int, ...] = (0, 1, 2)

    about = "which loss to train on: relative, relative with a floor, or squared"
    metrics = ("test_loss", "validation_error", "seconds")

    def tiny(self) -> Losses:
        """One map, two seeds, small models and short runs."""
        small = {"problem": "burgers", "data": {"n_train": 8, "n_val": 2, "n_test": 2, "grid": 16}}
        return Losses({"burgers": Field(small, (4,), 8, STAGES, 4)}, (0, 1))

    @remembered
    def run(self, name: str, loss: str, seed: int) -> Run:
        """Untuned MuSOAP on a problem."""
        own = self.fields[name]
        config = {
            **own.run_config(own.steps),
            **CONTENDERS["MuSOAP"].settings,
            "lr": default_lr(own.steps),
            "seed": seed,
            **({} if loss == "l2" else {"loss": loss}),
        }
        return run_of(config, size=name, params={"trained_on": loss}, seed=seed)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The runs that are missing, seed by seed."""
        return missing(records, (self.run(name, loss, s) for s, name, loss in product(self.seeds, self.fields, LOSSES)))

    def errors(self, records: Any, name: str, loss: str) -> list[float]:
        """The reported errors of the seeds that ended: of rollouts, or of the test data."""
        found = (records.get(self.run(name, loss, seed)) for seed in self.seeds)
        return [_error(record, "rollout" in self.fields[name].config) for record in found if record is not None]

    def means(self, records: Any) -> dict[str, dict[str, float]]:
        """Problem → loss → mean error over the seeds, for problems of which every seed ended with each loss."""
        found = {name: {loss: self.errors(records, name, loss) for loss in LOSSES} for name in self.fields}
        done = {name: own for name, own in found.items() if all(len(e) == len(self.seeds) for e in own.values())}
        return {name: {loss: sum(e) / len(e) for loss, e in own.items()} for name, own in done.items()}

    def table(self, records: Any) -> str:
        """Errors by problem and loss, and the ratios."""
        numbers = self.numbers(records)
        lines = ["# Which loss to train on", "", f"Mean error of {len(self.seeds)} seeds, and their range."]
        return "\n".join(
            [*lines, numbers.get("table", ""), "", "Errors over that of the relative loss.", numbers.get("ratios", "")]
        )

    def numbers(self, records: Any) -> dict[str, str]:
        """The tables, and the ratios that pages quote."""
        means = self.means(records)
        rows = [[named(name), *(mean_and_range(self.errors(records, name, loss)) for loss in LOSSES)] for name in means]
        said = {"table": "\n".join(table(["problem", *LOSSES.values()], rows))}
        others, ratios = [loss for loss in LOSSES if loss != "l2"], []
        for group, names in GROUPS.items():
            own = [means[name] for name in names if name in means]
            if own and all(math.isfinite(e) for mean in own for e in mean.values()):
                over = {loss: f"{geometric_mean(mean[loss] / mean['l2'] for mean in own):.2f}" for loss in others}
                ratios.append([group, str(len(own)), *over.values()])
                said |= {f"{group.replace(', ', '.').replace(' ', '-')}.{loss}": value for loss, value in over.items()}
        said["ratios"] = "\n".join(table(["problems", "number", *(LOSSES[loss] for loss in others)], ratios))
        return said if rows else {}


def _error(record: Any, is_rollout: bool) -> float:
    """The reported error of a run; infinite if it failed."""
    if not is_complete(record):
        return math.inf
    error = record["loss"] if is_rollout else record["metrics"]["test_loss"]
    return error if error < LOST else math.inf
