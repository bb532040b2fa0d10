"""The picture of μP: error over the learning rate, a curve for each size, without μP and with it.

Once the width grows and once the number of modes, on the Korteweg–de Vries equation, on which no default was chosen. The
base is the smallest size, where both are the same model, bit for bit, so that its runs are trained once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.kept import missing, test_errors
from experiments.law import CENTRE, PROBLEMS
from experiments.pages import table
from experiments.training import remembered, run_of
from neuralop_mup.lab import plots as style
from neuralop_mup.lab.records import Run

#: Figure → what grows, and the rule of its right panel.
PANELS: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "width": ("hidden_channels", (12, 24, 48, 96), "operator-norm"),
    "modes": ("n_modes", ((8,), (16,), (32,), (64,)), "log-modes"),
}
_NAMES = {"standard": "standard parametrization", "operator-norm": "μP", "log-modes": 'μP, rule="log-modes"'}
_LIMIT = 2.0  # the error of a run that did not train is drawn here, above that of predicting zero


@dataclass(frozen=True)
class SizeCurves:
    """Adam's error over the learning rate at several sizes, under the standard parametrization and under μP."""

    about: str = "how the best learning rate of Adam moves with width and modes, without μP and with it"
    rates: tuple[float, ...] = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = CENTRE["steps"]
    panels: tuple[str, ...] = tuple(PANELS)

    def tiny(self) -> SizeCurves:
        """One rate, one seed, few steps."""
        return replace(self, rates=(0.008,), seeds=(0,), steps=50, panels=("modes",))

    @remembered
    def run(self, panel: str, rule: str, size: Any, lr: float, seed: int) -> Run:
        """Return a run at one size. At the base each rule is the standard parametrization."""
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
        label = size[0] if isinstance(size, tuple) else size
        return run_of(config, size=f"{panel} {label}, {rule}", params={"lr": lr}, seed=seed)

    def curves(self, panel: str, rule: str) -> dict[Any, dict[float, list[Run]]]:
        """Return the runs of a panel by size and rate."""
        return {
            size: {lr: [self.run(panel, rule, size, lr, seed) for seed in self.seeds] for lr in self.rates}
            for size in PANELS[panel][1]
        }

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs, one figure and one seed after the other."""
        for panel in self.panels:
            _, sizes, rule = PANELS[panel]
            for seed in self.seeds:
                for own in ("standard", rule):
                    runs = [self.run(panel, own, size, lr, seed) for size in sizes for lr in self.rates]
                    yield from missing(records, runs)

    def errors(self, records: Any, panel: str, rule: str) -> dict[Any, dict[float, list[float]]]:
        """Return the test errors of the finished runs by size and rate. A run that did not train has an infinite one."""
        found: dict[Any, dict[float, list[float]]] = {}
        for size, by_rate in self.curves(panel, rule).items():
            found[size] = {lr: test_errors(records, runs) for lr, runs in by_rate.items()}
        return found

    def best(self, errors: dict[float, list[float]]) -> float:
        """Return the rate with the lowest mean error over the seeds."""
        return min((lr for lr in errors if errors[lr]), key=lambda lr: fmean(errors[lr]))

    def numbers(self, records: Any) -> dict[str, str]:
        """Return the best rates, and what the base's best rate costs at the largest size."""
        said = {}
        for panel in self.panels:
            rows = []
            for rule in ("standard", PANELS[panel][2]):
                found = self.errors(records, panel, rule)
                if not all(own.get(lr) for own in found.values() for lr in self.rates):
                    continue
                best = {size: self.best(own) for size, own in found.items()}
                (first, *_, last) = found
                regret = fmean(found[last][best[first]]) / fmean(found[last][best[last]])
                said[f"{panel}.{rule}.moved"] = f"{best[first] / best[last]:.3g}"
                said[f"{panel}.{rule}.regret"] = f"{regret:.2f}"
                rows.append([_NAMES[rule], *(f"{lr:g}" for lr in best.values()), f"{regret:.2f}"])
            sizes = [str(size[0] if isinstance(size, tuple) else size) for size in PANELS[panel][1]]
            heads = ["best learning rate at", *(f"{PANELS[panel][0]} {size}" for size in sizes), "error at the base's rate"]
            said[panel] = "\n".join(table(heads, rows))
        return said

    def table(self, records: Any) -> str:
        """Return the best rate of each size, as a page."""
        said = self.numbers(records)
        parts = [f"## {panel.capitalize()}\n{said[panel]}\n" for panel in self.panels]
        return (
            f"# {self.about[0].upper()}{self.about[1:]}\n\nThe last column is over the least error of the largest size.\n\n"
            + "\n".join(parts)
        )

    def draw(self, records: Any, path: Path) -> None:
        """Write a figure for each thing that grows."""
        for panel in self.panels:
            self._draw(records, panel, path.with_name(f"{path.stem}-{panel}{path.suffix}"))

    def _draw(self, records: Any, panel: str, path: Path) -> None:
        name, sizes, rule = PANELS[panel]
        figure, both = style.new_figure(8.4, 3.5, columns=2, layout="constrained", sharey=True, sharex=True)
        for axes, own in zip(both, ("standard", rule), strict=True):
            for number, (size, errors) in enumerate(self.errors(records, panel, own).items()):
                points = {lr: [min(e, _LIMIT) for e in values] for lr, values in sorted(errors.items()) if values}
                colour = style.SIZES[number]
                means = [fmean(values) for values in points.values()]
                axes.fill_between(
                    [*points], [*map(min, points.values())], [*map(max, points.values())], color=colour, alpha=0.2
                )
                label = size[0] if isinstance(size, tuple) else size
                axes.plot([*points], means, color=colour, marker="o", markersize=4, linewidth=1.8, label=f"{name} {label}")
                lowest = min(range(len(means)), key=means.__getitem__)
                axes.plot(
                    [*points][lowest], means[lowest], "*", color=colour, markersize=17, markeredgecolor="white", zorder=5
                )
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_title(_NAMES[own], fontsize=style.TITLE)
            axes.set_xlabel("learning rate", fontsize=style.TITLE)
            style.ticks_at(axes, self.rates)
        style.value_axis(both[0])
        style.value_axis(both[1])
        both[0].set_ylabel("test error", fontsize=style.TITLE)
        both[1].legend(fontsize=style.TEXT, frameon=False)
        style.save(figure, path)
