"""Error over the learning rate at several sizes, without μP and with it.

One figure is for the width and one for the number of modes. We use the Korteweg–de Vries equation, which is held out. The
base is the smallest size. There both parametrizations are the same model, bit for bit, and share their runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.experiment import Experiment
from experiments.figures import draw_means
from experiments.law_settings import CENTRE, PROBLEMS
from experiments.pages import table
from experiments.records import missing, test_errors
from experiments.training import remembered, run_of
from neuralop_mup.lab import plots as style
from neuralop_mup.lab.records import Run

#: Figure → argument of the model, its values, and the rule of the right panel.
PANELS = {
    "width": ("hidden_channels", (12, 24, 48, 96), "operator-norm"),
    "modes": ("n_modes", ((8,), (16,), (32,), (64,)), "log-modes"),
}
_NAMES = {"standard": "standard parametrization", "operator-norm": "μP", "log-modes": 'μP, rule="log-modes"'}
_LIMIT = 2.0  # failed trainings are drawn at this error, above 1, the error of predicting zero

#: Size → learning rate → test errors of the seeds, infinite if the training failed.
Errors = dict[Any, dict[float, list[float]]]


@dataclass(frozen=True)
class SizeCurves(Experiment):
    """Train Adam at several sizes and learning rates, under the standard parametrization and under μP."""

    about: str = "the best learning rate of Adam for different widths and modes, without μP and with it"
    rates: tuple[float, ...] = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = CENTRE["steps"]
    panels: tuple[str, ...] = tuple(PANELS)

    notes = "The last column is the error of the largest model at the best rate of the smallest one, relative to its lowest."

    def tiny(self) -> SizeCurves:
        """Return one learning rate, one seed and few steps."""
        return replace(self, rates=(0.008,), seeds=(0,), steps=50, panels=("modes",))

    @remembered
    def run(self, panel: str, rule: str, size: Any, lr: float, seed: int) -> Run:
        """Return a run at one size. At the base all rules are the standard parametrization."""
        own, (name, sizes, _) = PROBLEMS["korteweg-de-vries"], PANELS[panel]
        model = {"n_layers": CENTRE["depth"], "n_modes": own["modes"], "hidden_channels": own["width"], name: size}
        config = {
            "problem": "korteweg-de-vries",
            "data": {"grid": own["grid"], "n_train": own["samples"]},
            "steps": self.steps,
            "batch_size": CENTRE["batch"],
            "model": model,
            "base": {**model, name: sizes[0]},
            "optimizer": "adam",
            "rule": "standard" if size == sizes[0] else rule,
            "lr": lr,
            "seed": seed,
        }
        return run_of(config, size=f"{panel} {_label(size)}, {rule}", params={"lr": lr}, seed=seed)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs, by figure and seed."""
        for panel, seed in product(self.panels, self.seeds):
            _, sizes, rule = PANELS[panel]
            runs = product([panel], ("standard", rule), sizes, self.rates, [seed])
            yield from missing(records, (self.run(*own) for own in runs))

    def errors(self, records: Any, panel: str, rule: str) -> Errors:
        """Return the test errors of the runs that have a record."""
        return {
            size: {
                lr: test_errors(records, [self.run(panel, rule, size, lr, seed) for seed in self.seeds]) for lr in self.rates
            }
            for size in PANELS[panel][1]
        }

    def numbers(self, records: Any) -> dict[str, str]:
        """Return the best rates, their change from the smallest to the largest size, and the regret at the largest size."""
        found = {}
        for panel in self.panels:
            name, sizes, rule = PANELS[panel]
            rows = []
            for own in ("standard", rule):
                errors = self.errors(records, panel, own)
                if not all(seeds for by_rate in errors.values() for seeds in by_rate.values()):
                    continue
                means = [{lr: fmean(seeds) for lr, seeds in by_rate.items()} for by_rate in errors.values()]
                best = [min(by_rate, key=by_rate.__getitem__) for by_rate in means]
                found[f"{panel}.{own}.moved"] = f"{best[0] / best[-1]:.3g}"
                regret = means[-1][best[0]] / means[-1][best[-1]]
                rows.append([_NAMES[own], *(f"{lr:g}" for lr in best), f"{regret:.2f}"])
            heads = ["best learning rate at", *(f"{name} {_label(size)}" for size in sizes), "error at the base's rate"]
            found[panel] = table(heads, rows)
        return found

    def draw(self, records: Any, path: Path) -> None:
        """Draw a figure for the width and one for the modes."""
        for panel in self.panels:
            name, _, rule = PANELS[panel]
            figure, both = style.new_figure(8.4, 3.5, columns=2, layout="constrained", sharey=True, sharex=True)
            for axes, own in zip(both, ("standard", rule), strict=True):
                for colour, (size, errors) in zip(style.SIZES, self.errors(records, panel, own).items(), strict=False):
                    _draw_curve(axes, errors, colour, f"{name} {_label(size)}")
                axes.set_xscale("log", base=2)
                axes.set_yscale("log")
                axes.set_title(_NAMES[own], fontsize=style.TITLE)
                axes.set_xlabel("learning rate", fontsize=style.TITLE)
                style.ticks_at(axes, self.rates)
                style.value_axis(axes)
            both[0].set_ylabel("test error", fontsize=style.TITLE)
            both[1].legend(fontsize=style.TEXT, frameon=False)
            style.save(figure, path.with_name(f"{path.stem}-{panel}{path.suffix}"))


def _draw_curve(axes: Any, errors: dict[float, list[float]], colour: str, label: str) -> None:
    """Draw the mean and the range of the seeds, with a star at the lowest mean."""
    points = {lr: [min(error, _LIMIT) for error in seeds] for lr, seeds in sorted(errors.items()) if seeds}
    means = draw_means(axes, points, colour, 1, marker="o", markersize=4, linewidth=1.8, label=label)
    best = min(means, key=means.__getitem__)
    axes.plot(best, means[best], "*", color=colour, markersize=17, markeredgecolor="white", zorder=5)


def _label(size: Any) -> Any:
    return size[0] if isinstance(size, tuple) else size
