"""What rollouts want: averages of the weights, training over several steps, and the learning rate with each.

A model of one step in time is trained over 1, 2 or 4 steps, each from its own prediction before, and averages of its weights
go along, of several half-lives. Errors of rollouts, from the first state of validation trajectories on, are compared on six
problems, on none of which a default was chosen.

Hypotheses, written down before measuring: with a cosine that ends at zero an average gains nothing at the rate that is best
without one, and lets a higher rate be best; training over more steps gains more than any average, and wants a lower rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from statistics import geometric_mean
from typing import Any

from experiments.contest import CONTENDERS
from experiments.curves import rounded, searched
from experiments.fields import APEBENCH, LAYERS, SOME
from experiments.kept import missing
from experiments.pages import named, table
from experiments.rollout import PROBLEMS
from experiments.training import LOST, STAGES, remembered, run_of
from neuralop_mup.core.rebuild import MODES, WIDTH
from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.records import Run

STEPS, BATCH = 1000, 20
#: Of the averages, in steps of the optimizer.
HALF_LIVES = (3, 10, 30, 100)
#: What is compared, and at which rate each search begins: the law's, and AdamW's usual best one here.
OPTIMIZERS = {"MuSOAP": 0.03, "AdamW": 0.008}
#: Problem → its configuration, the modes and the width of its models.
FIELDS: dict[str, tuple[dict[str, Any], tuple[int, ...], int]] = {
    **{
        name: ({"problem": name, "data": {"grid": own["grid"], "every": 1}, "rollout": 50}, own["modes"], own["width"])
        for name, own in PROBLEMS.items()
    },
    **{
        name: (dict(APEBENCH[name].config), APEBENCH[name].modes, APEBENCH[name].width)
        for name in SOME
        if "phy_gs" not in name
    },
}
AS_THEY_ARE = "the weights as they are"
#: What is looked at of a run.
LOOKS = (AS_THEY_ARE, *map(str, HALF_LIVES))


@dataclass(frozen=True)
class Averages:
    """The experiment."""

    fields: Mapping[str, tuple[dict[str, Any], tuple[int, ...], int]]
    unrolled: tuple[int, ...] = (1, 2, 4)
    steps: int = STEPS

    about = "what averages of the weights, and training over several steps, do for rollouts"
    metrics = ("validation_error", "averages", "seconds")

    def tiny(self) -> Averages:
        """One problem of a few trajectories, small models and short runs."""
        config, *_ = self.fields["korteweg-de-vries-in-time"]
        less = {"n_train": 3, "n_val": 2, "n_test": 1, "states": 8, "grid": 64, "every": 1}
        return replace(self, fields={"": ({**config, "data": less, "rollout": 5}, (8,), 8)}, unrolled=(1, 2), steps=STAGES)

    @remembered
    def run(self, name: str, optimizer: str, unrolled: int, lr: float) -> Run:
        """A training over so many steps in time."""
        config, modes, width = self.fields[name]
        size = {"n_layers": LAYERS, "n_modes": modes}
        own = {
            **config,
            "steps": self.steps,
            "batch_size": BATCH,
            "unrolled": unrolled,
            "half_lives": HALF_LIVES,
            "model": {**size, "hidden_channels": width},
            "base": {**size, "n_modes": (MODES,) * len(modes), "hidden_channels": WIDTH},
            **CONTENDERS[optimizer].settings,
            "lr": lr,
            "seed": 0,
        }
        return run_of(own, size=f"{name}, {optimizer}, {unrolled}", params={"lr": lr}, seed=0)

    def errors(self, records: Any, run: Run) -> dict[str, float] | None:
        """Of rollouts, by what was looked at; infinite where it did not train; None where the run is not done."""
        record = records.get(run)
        if record is None:
            return None
        if not is_complete(record):
            return dict.fromkeys(LOOKS, math.inf)
        found = {AS_THEY_ARE: record["loss"], **record["metrics"]["averages"]}
        return {how: error if error < LOST else math.inf for how, error in found.items()}

    def searched(self, records: Any, name: str, optimizer: str, unrolled: int) -> tuple[dict[float, Any], list[float]]:
        """Rate → errors, of those that are done; and the rates that are wanted next, by the weights as they are."""
        found = {}

        def error_of(lr: float) -> float | None:
            errors = self.errors(records, self.run(name, optimizer, unrolled, lr))
            if errors is None:
                return None
            found[lr] = errors
            return errors[AS_THEY_ARE]

        left = searched(error_of, rounded(OPTIMIZERS[optimizer]), spread=2.0)[1]
        return found, left

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The runs that are missing: training over one step first."""
        for unrolled, optimizer, name in product(self.unrolled, OPTIMIZERS, self.fields):
            asked = self.searched(records, name, optimizer, unrolled)[1]
            yield from missing(records, (self.run(name, optimizer, unrolled, lr) for lr in asked))

    def best(self, records: Any) -> dict[tuple[str, str, int], dict[str, tuple[float, float]]]:
        """Problem, optimizer and steps in time → what was looked at → its least error and the rate that has it."""
        found = {}
        for name, optimizer, unrolled in product(self.fields, OPTIMIZERS, self.unrolled):
            errors, left = self.searched(records, name, optimizer, unrolled)
            if not left:
                found[name, optimizer, unrolled] = {how: min((own[how], lr) for lr, own in errors.items()) for how in LOOKS}
        return found

    def table(self, records: Any) -> str:
        """Every least error with its rate, and what pages quote."""
        rows = [
            [named(name), optimizer, str(unrolled), *(f"{own[how][0]:.3g} at {own[how][1]:g}" for how in LOOKS)]
            for (name, optimizer, unrolled), own in self.best(records).items()
        ]
        heads = ["problem", "optimizer", "trained over", AS_THEY_ARE, *(f"half-life {n}" for n in HALF_LIVES)]
        lines = [
            f"# {self.about[0].upper()}{self.about[1:]}\n",
            "Least error of rollouts and its rate.",
            *table(heads, rows),
        ]
        return "\n".join([*lines, "\n## Over the problems\n", self.numbers(records).get("table", ""), ""])

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote: means over the problems on which all that is compared is done."""
        best, rows, said = self.best(records), [], {}
        for optimizer, unrolled in product(OPTIMIZERS, self.unrolled):
            done = [n for n in self.fields if {(n, optimizer, unrolled), (n, optimizer, 1)} <= best.keys()]
            own = [(best[n, optimizer, unrolled], best[n, optimizer, 1][AS_THEY_ARE]) for n in done]
            own = [(looked, one) for looked, one in own if math.isfinite(one[0] + looked[AS_THEY_ARE][0])]
            if own:
                over = [looked[AS_THEY_ARE][0] / one[0] for looked, one in own]
                rates = [looked[AS_THEY_ARE][1] / one[1] for looked, one in own]
                averages = [[looked[str(n)][0] / looked[AS_THEY_ARE][0] for looked, _ in own] for n in HALF_LIVES]
                rows.append([optimizer, str(unrolled), str(len(own)), *map(_told, (over, rates, *averages))])
                short = [ratio for ratios in averages[:-1] for ratio in ratios]
                called = f"{optimizer}.{unrolled}"
                said |= {called: _told(over), f"{called}.of": str(len(own)), f"{called}.short": _range(short)}
                said[f"{called}.long"] = _told(averages[-1])
        heads = ["optimizer", "trained over", "problems", "error over that of one step", "best rate over that of one step"]
        return {"table": "\n".join(table([*heads, *(f"half-life {n}" for n in HALF_LIVES)], rows)), **said} if rows else {}


def _told(ratios: list[float]) -> str:
    """Their geometric mean and range."""
    return f"{geometric_mean(ratios):.2f} ({_range(ratios)})"


def _range(ratios: list[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f}"
