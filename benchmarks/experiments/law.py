"""The best learning rate of MuSOAP in many settings, and the regret of formulas for it.

The rates of a setting are powers of √2 times :data:`MIDDLE`. The search begins at a guess with a factor of 2 to either side,
continues while the best rate is at an edge, and ends with a factor of √2 to either side of the best.

The base has half of the centre's width in all settings, and the modes and the depth of the model. The rate is the size of an
update (``base_depth=None``), so that formulas can contain any power of the depth.

We wrote down these hypotheses before measuring:

* The best rate is proportional to steps^-0.32 (arXiv:2603.28743) or steps^-0.5.
* It does not depend on the batch size, or is proportional to its root (arXiv:2205.10287), or large batches need
  ``refresh=1`` (arXiv:2607.20548).
* It is proportional to depth^-0.5 or to 1/depth (arXiv:2505.01618, proven for identity skips).
* It does not depend on width, modes, samples and grid.
* AdamW's rate for the other parameters (``adamw_lr``) is constant, or is proportional to the rate of the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from experiments.curves import Curve
from experiments.experiment import Experiment
from experiments.formulas import FACTORS, FORMULAS, OURS, Curves, fitted, power_of
from experiments.law_settings import CHOSEN_ON, PROBLEMS, SEEDED, SEEDS, SETTINGS, TINY, Setting
from experiments.pages import NAMES, dotted, percent, student_interval, table
from experiments.records import loss_of, missing
from experiments.training import remembered, run_of
from neuralop_mup.lab import plots as style
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap.optimizer import default_lr

#: The middle of the grid of learning rates, and the number of its highest rate.
MIDDLE, HIGHEST = 0.03, 10
_LOWEST = -16
#: Changes that are not factors of a formula.
_VARIANTS = {"skip", "refresh", "aux"}
_ENOUGH = 4  # smallest number of rates with all seeds for a comparison


@dataclass(frozen=True)
class Law(Experiment):
    """Search the best learning rate in many settings."""

    small: bool = False

    about = "the best learning rate of MuSOAP for different steps, batch sizes, depths, widths, modes and data"
    notes = (
        "The regret is the error at a formula's rate divided by the lowest error, minus 1. Free powers were fitted on the "
        "problems on which our formula was chosen."
    )

    def tiny(self) -> Law:
        """Return two problems with small models."""
        return replace(self, small=True)

    def rate(self, i: int) -> float:
        """Return a rate of the grid that all settings share."""
        return float(f"{MIDDLE * 2 ** (i / 2):.4g}")

    @remembered
    def run(self, setting: Setting, i: int, seed: int = 0) -> Run:
        """Return a run of a setting at rate number ``i``."""
        f = setting.factors
        size = {"n_modes": f["modes"], "n_layers": f["depth"], **({"fno_skip": f["skip"]} if "skip" in f else {})}
        data = {"time_points": 8} if setting.problem == "navier-stokes" else {}
        if self.small:
            f = {**f, "steps": f["steps"] // 250 * 50, "samples": 40, "width": 8}
            data |= {"n_val": 20, "n_test": 20}
        config = {
            "problem": setting.problem,
            "data": {"n_train": f["samples"], "grid": f["grid"], **data},
            "steps": f["steps"],
            "batch_size": f["batch"],
            "model": {**size, "hidden_channels": f["width"]},
            "base": {**size, "hidden_channels": 4 if self.small else PROBLEMS[setting.problem]["width"] // 2},
            "optimizer": "soap",
            "weight_decay": 0.0,
            "lr": self.rate(i),
            **({"aux_lr": f["aux"] * self.rate(i)} if "aux" in f else {}),
            "kernel_init": "small",
            "soap": {"base_depth": None, **({"refresh": f["refresh"]} if "refresh" in f else {})},
            "seed": seed,
        }
        return run_of(config, size=f"{setting.problem}, {setting}", params={"lr": self.rate(i)}, seed=seed)

    # Search

    def settings(self) -> list[Setting]:
        """Return all settings."""
        return TINY if self.small else SETTINGS

    def seeds(self, setting: Setting) -> tuple[int, ...]:
        """Return the seeds of a setting."""
        return SEEDS if setting in SEEDED and not self.small else SEEDS[:1]

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs: the searches, then further seeds near the best rates and at the formula's rates."""
        for setting in self.settings():
            yield from missing(records, (self.run(setting, i) for i in self.requested(records, setting)))
        for setting in self.settings():
            errors = self.errors(records, setting)
            if len(self.seeds(setting)) > 1 and self._is_searched(records, setting):
                best, formula = min(errors, key=errors.__getitem__), self.nearest_to_formula(setting)
                near = [i for i in sorted(errors) if (abs(i - best) <= 2 or i == formula) and math.isfinite(errors[i])]
                yield from missing(records, (self.run(setting, i, seed) for seed in SEEDS[1:] for i in near))

    def errors(self, records: Any, setting: Setting, seed: int = 0) -> dict[int, float]:
        """Return the validation errors by number of the rate, infinite if the training failed."""
        found = {i: loss_of(records.get(self.run(setting, i, seed))) for i in range(_LOWEST, HIGHEST + 1)}
        return {i: loss for i, loss in found.items() if loss is not None}

    def requested(self, records: Any, setting: Setting) -> list[int]:
        """Return the rates that a search has requested so far. It begins after the search at the problem's centre."""
        start = 0
        if setting.changes:
            if not self._is_searched(records, setting.centre):
                return []
            errors = self.errors(records, setting.centre)
            start = min(errors, key=errors.__getitem__) + _expected_shift(setting)
        found = searched_rates(self.errors(records, setting), max(-12, min(start, HIGHEST - 2)), HIGHEST)
        return found if self.small else list(dict.fromkeys([*found, self.nearest_to_formula(setting)]))

    def _is_searched(self, records: Any, setting: Setting) -> bool:
        errors, requested = self.errors(records, setting), self.requested(records, setting)
        return bool(requested) and all(i in errors for i in requested)

    def nearest_to_formula(self, setting: Setting) -> int:
        """Return the number of the rate that is closest to the formula's, so that its regret is measured."""
        f = setting.factors
        return min(HIGHEST, round(2 * math.log2(default_lr(f["steps"], 1e-3) / 1e-3 * math.sqrt(4 / f["depth"]))))

    # Results

    def curves(self, records: Any) -> Curves:
        """Return the curves of all settings with a finished search."""
        return {s: Curve(errors) for s in self.settings() if (errors := self.shared_errors(records, s))}

    def shared_errors(self, records: Any, setting: Setting) -> dict[float, list[float]]:
        """Return the errors by learning rate, with the same seeds at all rates.

        These are the rates that all seeds have, or the rates of the first seed if there are too few.
        """
        if not self._is_searched(records, setting):
            return {}
        found = [self.errors(records, setting, seed) for seed in self.seeds(setting)]
        shared = [i for i in found[0] if all(i in errors for errors in found)]
        if len(shared) < _ENOUGH:
            found, shared = found[:1], list(found[0])
        return {self.rate(i): [errors[i] for errors in found] for i in shared}

    def numbers(self, records: Any) -> dict[str, str]:
        """Return regrets of formulas, powers of factors, and the regret of our formula in each setting."""
        curves = self.curves(records)
        chosen, others = _by_side(curves)
        rows = []
        for formula in FORMULAS:
            rows.append([formula.name, *_median_decile_most(fitted(formula, chosen).regrets(others))])
        factors = {s: 2 ** (c.best - OURS.predict(s)) for s, c in {**chosen, **others}.items()}
        far = [setting for setting, factor in factors.items() if not 0.5 <= factor <= 2]
        found = {
            "settings": str(len(curves)),
            "others.settings": str(len(others)),
            "others.seeded": str(sum(c.seeds > 1 for c in others.values())),
            "regrets": table(["learning rate", "median", "9 of 10", "most"], rows),
            "off": str(len(far)),
            "off.darcy": str(sum("darcy" in setting.problem for setting in far)),
        }
        rows = []
        for setting, factor in factors.items():
            regret = percent(OURS.regrets({setting: curves[setting]})[0])
            found[f"in.{dotted(f'{setting.problem} {setting}')}"] = regret
            rows.append([NAMES[setting.problem], str(setting), f"{2 ** curves[setting].best:.3g}", f"{factor:.2f}", regret])
        heads = ["problem", "setting", "best rate", "relative to the formula's", "regret of the formula"]
        found |= {"best": table(heads, rows), **_powers(curves)}
        search, formula_there = regrets_on_other_seeds(others)
        regrets = {"others": OURS.regrets(others), "search.others": search, "search.others.law": formula_there}
        for name, own in regrets.items():
            cells = zip(("median", "ninth", "most"), _median_decile_most(own), strict=True)
            found |= {f"{name}.{end}": cell for end, cell in cells}
        return found

    def draw(self, records: Any, path: Path) -> None:
        """Draw the best rate of each setting over the formula's, with a band of a factor of two."""
        figure, axes = style.new_figure(5.2, 4.6)
        ends = np.array([0.004, 0.16])
        axes.fill_between(ends, ends / 2, ends * 2, color=style.FAINT, linewidth=0, zorder=0)
        axes.loglog(ends, ends, color=style.GREY, linewidth=1, zorder=1)
        chosen, others = _by_side(self.curves(records))
        for number, problem in enumerate(PROBLEMS):
            points = [(2 ** OURS.predict(s), 2**c.best) for s, c in {**chosen, **others}.items() if s.problem == problem]
            look = {"marker": style.MARKERS[number], "color": style.PALETTE[number], "label": NAMES[problem]}
            if problem in CHOSEN_ON:
                look |= {"label": f"{NAMES[problem]} (chosen on)", "fillstyle": "none"}
            if points:
                axes.plot(*zip(*points, strict=True), linestyle="none", markersize=5, **look)
        style.ticks_at(axes, [0.005, 0.01, 0.02, 0.05, 0.1])
        style.value_axis(axes)
        axes.set(xlabel="learning rate by the formula", ylabel="best learning rate")
        figure.legend(fontsize=style.SMALL, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2)
        style.save(figure, path)


def _expected_shift(setting: Setting) -> int:
    """Return an estimate of the distance between the best rates of a setting and of its centre."""
    here, centre = setting.factors, setting.centre.factors
    powers = {"steps": -0.4, "batch": 0.25, "depth": -0.5}
    return round(2 * sum(power * math.log2(here[k] / centre[k]) for k, power in powers.items()))


def searched_rates(errors: Mapping[int, float], start: int, most: int) -> list[int]:
    """Return the numbers of the rates that a search requests, given the errors that were measured.

    It requests the start and a factor of 2 (two numbers) to either side, continues beyond an edge while the best rate is
    there, and finally requests the two numbers next to the best.
    """
    requested = [start, start - 2, start + 2]
    while all(i in errors for i in requested):
        best = min(requested, key=lambda i: errors[i])
        if math.isinf(errors[best]):
            best = min(requested)  # all trainings failed: try lower rates
        beyond = {min(requested): best - 2, max(requested): best + 2}.get(best)
        if beyond is None or not _LOWEST <= beyond <= most:
            return requested + [i for i in (best - 1, best + 1) if _LOWEST <= i <= most]
        requested.append(beyond)
    return requested


def _by_side(curves: Curves) -> tuple[Curves, ...]:
    """Return the curves of the problems that were used to choose the formula, and of the others, without variants."""
    plain = {s: c for s, c in curves.items() if not _VARIANTS & set(dict(s.changes))}
    return tuple({s: c for s, c in plain.items() if (s.problem in CHOSEN_ON) == chosen} for chosen in (True, False))


def regrets_on_other_seeds(curves: Curves) -> tuple[list[float], list[float]]:
    """Return the regrets of the best rate of one seed, and of the formula, on the other seeds."""
    search, formula = [], []
    for setting, curve in curves.items():
        for seed, alone in enumerate(curve.by_seed() if curve.seeds > 1 else ()):
            others = Curve({lr: [*errors[:seed], *errors[seed + 1 :]] for lr, errors in curve.errors.items()})
            search.append(others.regret(alone.best))
            formula.append(others.regret(OURS.predict(setting)))
    return search, formula


def _median_decile_most(values: Sequence[float]) -> list[str]:
    if not values:
        return ["–"] * 3
    ninth = float(np.quantile(values, 0.9, method="higher"))  # the smallest value that nine of ten do not exceed
    return [percent(x) for x in (median(values), ninth, max(values))]


def _powers(curves: Curves) -> dict[str, str]:
    """Return the mean and range of the power of each factor over problems."""
    rows, found = [], {}
    for factor in FACTORS:
        powers = [p for problem in PROBLEMS if (p := power_of(curves, problem, factor)) is not None]
        if len(powers) > 1:
            values = {"mean": fmean(powers), "least": min(powers), "most": max(powers)}
            found |= {f"power.{factor}.{end}": _signed(value) for end, value in values.items()}
            low, high = map(_signed, student_interval(powers))
            rows.append([factor, str(len(powers)), _signed(fmean(powers)), f"{low} to {high}"])
    return {**found, "powers": table(["factor", "problems", "mean power", "interval"], rows)}


def _signed(power: float) -> str:
    return f"{power:+.2f}".replace("-", "−")
