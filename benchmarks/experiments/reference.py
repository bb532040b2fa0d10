"""Is the reference size the best base? What models of one size reach, parametrized from bases of several sizes.

``parametrize(model)`` takes 32 channels and n_modes 16 on each axis where nobody tuned a base. Here a base is wider or
narrower than that, with the model's own modes, or has 32 channels and other modes. Under MuSOAP a base moves how kernels and
layers start and AdamW's rate of the other parameters; under MuAdamW also the rates of kernels and of layers within the
model, so there several rates are tried.

Hypothesis, written down before measuring: no base is more than a few percent better on all problems, and errors differ
little between bases that are a factor of 2 apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any

from experiments.law import CENTRE, PROBLEMS
from experiments.pages import percent, table
from experiments.training import run_of
from neuralop_mup.core.reference_size import MODES, WIDTH
from neuralop_mup.tuning.outcome import is_complete
from neuralop_mup.tuning.records import Run

__all__ = ["REFERENCE", "Base", "Reference"]

#: Width of the model by the axes of the problem.
WIDTHS = {1: 48, 2: 24}


@dataclass(frozen=True)
class Base:
    """A base's channels, and its modes on each axis, or None for the model's."""

    width: int
    modes: int | None = None

    def __str__(self) -> str:
        return f"width {self.width}, n_modes {self.modes or 'of the model'}" + " (reference)" * (self == REFERENCE)


REFERENCE = Base(WIDTH, MODES)
BASES = (*(Base(w) for w in (8, 16, 32, 64, 128)), *(Base(WIDTH, m) for m in (4, 8, 16, 32)))
RATES = {"soap": (0.03,), "adamw": (0.002, 0.004, 0.008)}


@dataclass(frozen=True)
class Setting:
    """What a model is trained with, all but the seed."""

    problem: str
    optimizer: str
    lr: float
    base: Base


@dataclass(frozen=True)
class Reference:
    """The experiment: problems and bases, under both optimizers."""

    problems: tuple[str, ...] = ("burgers", "darcy", "allen-cahn", "korteweg-de-vries", "gray-scott")
    bases: tuple[Base, ...] = BASES
    seeds: tuple[int, ...] = (0, 1)
    small: bool = False

    about = "whether the base that is taken where nobody tuned one is the best"

    def tiny(self) -> Reference:
        """Two problems of a few samples, three bases, small models and short runs."""
        return Reference(("burgers", "darcy"), (Base(8), Base(64), REFERENCE), (0,), small=True)

    def settings(self) -> Iterator[Setting]:
        """All of them, problem by problem, so that an experiment that is stopped has whole columns."""
        for optimizer, rates in RATES.items():
            for problem in self.problems:
                yield from (Setting(problem, optimizer, lr, base) for lr in rates for base in self.bases)

    def wanted(self, records: Any) -> Iterator[Run]:
        """The runs that are missing; two bases that are the same for a problem are one run."""
        for setting in self.settings():
            runs = (run(setting, seed, self.small) for seed in self.seeds)
            yield from (run for run in runs if records.get(run) is None)

    def errors(self, records: Any, setting: Setting) -> list[float]:
        """Validation errors of all seeds, infinite where a model did not train; none before all are done."""
        found = [records.get(run(setting, seed, self.small)) for seed in self.seeds]
        return [r["loss"] if is_complete(r) else math.inf for r in found] if all(found) else []

    def table(self, records: Any) -> str:
        """What each base gives, for each optimizer and rate."""
        errors = {setting: self.errors(records, setting) for setting in self.settings()}
        errors = {setting: own for setting, own in errors.items() if own}
        lines = ["# Is the reference size the best base?", "", f"{len(errors)} of {len(list(self.settings()))} settings."]
        for optimizer, rates in RATES.items():
            for lr in rates:
                lines += self._table(errors, optimizer, lr)
            lines += self._summary(errors, optimizer)
        return "\n".join(lines) + "\n"

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote: MuSOAP's error over that with the reference size, as a geometric mean over the problems."""
        errors = {s: self.errors(records, s) for s in self.settings() if s.optimizer == "soap"}
        done = [base for base in self.bases if all(errors[Setting(p, "soap", 0.03, base)] for p in self.problems)]
        over = {base: [_over(errors, Setting(p, "soap", 0.03, base)) for p in self.problems] for base in done}
        names = {base: f"width.{base.width}" if base.modes is None else f"modes.{base.modes}" for base in done}
        most = max(abs(x - 1) for own in over.values() for x in own)
        return {**{names[base]: f"{mean(over[base]):.2f}" for base in done}, "most": percent(most)}

    def _table(self, errors: dict[Setting, list[float]], optimizer: str, lr: float) -> list[str]:
        """Each base on each problem; nothing where nothing is done."""
        if not any((s.optimizer, s.lr) == (optimizer, lr) for s in errors):
            return []
        rows = []
        for base in self.bases:
            cells = [_cell(errors, Setting(problem, optimizer, lr, base)) for problem in self.problems]
            rows.append([str(base), *cells])
        head = f"\n## {optimizer}, lr {lr:g}\n\nValidation error, its range over the seeds, and what it is of the "
        return [f"{head}reference size's.", *table(["base", *self.problems], rows)]

    def _summary(self, errors: dict[Setting, list[float]], optimizer: str) -> list[str]:
        """Means over the problems of which all is done, so that bases are compared on the same ones."""
        rates, middle = RATES[optimizer], _middle(optimizer)
        missing = {s.problem for s in self.settings() if s.optimizer == optimizer and s not in errors}
        done = [p for p in self.problems if p not in missing]
        if not done:
            return []
        rows, at, own = [], {}, {}
        for base in self.bases:
            over = [{lr: _over(errors, Setting(p, optimizer, lr, base)) for lr in rates} for p in done]
            means = {lr: mean(one[lr] for one in over) for lr in rates}
            at[base], own[base] = means[middle], mean(min(one.values()) for one in over)
            ends = sum(min(one, key=one.__getitem__) in (rates[0], rates[-1]) for one in over)
            rows.append([str(base), *(f"{x:.3f}" for x in (*means.values(), own[base])), str(ends)])
        heads = ["base", *(f"lr {lr:g}" for lr in rates), "each problem's best rate", "of these at an end"]
        if len(rates) == 1:  # then there is nothing to choose
            heads, rows = heads[:2], [row[:2] for row in rows]
        said = f"\nError over that at the reference size and lr {middle:g}: geometric mean over {', '.join(done)}."
        lines = [f"\n## {optimizer}, all problems", said, *table(heads, rows), "", _best(f"lr {middle:g}", at)]
        return [*lines, _best("each problem's best rate", own)] if len(rates) > 1 else lines


@cache
def run(setting: Setting, seed: int, small: bool) -> Run:
    """A run of a setting; ``small`` makes it one of seconds."""
    own = PROBLEMS[setting.problem]
    modes, less = own["modes"], {"n_val": 20, "n_test": 20} if small else {}
    like = {"n_layers": CENTRE["depth"]}
    base_modes = (setting.base.modes,) * len(modes) if setting.base.modes else modes
    config = {
        "problem": setting.problem,
        "data": {"n_train": 40 if small else own["samples"], "grid": own["grid"], **less},
        "steps": 50 if small else 600,
        "batch_size": CENTRE["batch"],
        "model": {**like, "n_modes": modes, "hidden_channels": 8 if small else WIDTHS[len(modes)]},
        "base": {**like, "n_modes": base_modes, "hidden_channels": setting.base.width},
        "optimizer": setting.optimizer,
        "lr": setting.lr,
        "kernel_init": "small",
        "seed": seed,
    }
    size = f"{setting.problem}, {setting.optimizer}, {setting.base}"
    return run_of(config, size=size, params={"lr": setting.lr}, seed=seed)


def mean(values: Any) -> float:
    """The geometric one."""
    return math.exp(fmean(map(math.log, values)))


def _middle(optimizer: str) -> float:
    return RATES[optimizer][len(RATES[optimizer]) // 2]


def _over(errors: dict[Setting, list[float]], setting: Setting) -> float:
    """An error over that at the reference size and the middle rate."""
    like = Setting(setting.problem, setting.optimizer, _middle(setting.optimizer), REFERENCE)
    return mean(errors[setting]) / mean(errors[like])


def _cell(errors: dict[Setting, list[float]], setting: Setting) -> str:
    own = errors.get(setting, [])
    over = errors.get(Setting(setting.problem, setting.optimizer, setting.lr, REFERENCE), [])
    if not own:
        return "–"
    said = f"{mean(own):.4g} [{min(own):.4g}, {max(own):.4g}]"
    return f"{said} × {mean(own) / mean(over):.3f}" if over else said


def _best(where: str, values: dict[Base, float]) -> str:
    """Which base is best, and how flat it is around it."""
    best = min(values, key=values.__getitem__)
    flat = max(values.values()) / values[best]
    return f"At {where} the best base is {best}, {values[best]:.3f}; the worst one has {flat:.3f} times its error."
