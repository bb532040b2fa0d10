"""The page of the experiment ``law``: best rates, powers of each factor, and what candidate laws lose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from experiments.curves import Curve, ninth_decile
from experiments.law import CENTRE, CHOSEN_ON, PROBLEMS, Law, Setting
from experiments.pages import NAMES, dotted, percent, table
from neuralop_mup.lab import plots as style
from neuralop_mup.lab.statistics import student

FACTORS = ("steps", "batch", "depth", "width", "modes", "samples", "grid")
#: What a rate of one factor is told over, in laws.
REFERENCE: dict[str, float] = {**CENTRE, "width": 16, "modes": 10, "samples": 400, "grid": 16, "epochs": 50}
#: Changes that are no factor of a law: how something is trained, and which model.
VARIANTS = {"skip", "refresh", "aux"}
_ENOUGH = 4  # rates with every seed, to look for the best one among them

Curves = dict[Setting, Curve]


@dataclass(frozen=True)
class Candidate:
    """lr = constant · Π (factor / reference)^power.

    ``powers`` are given, and those of ``free`` are fitted, as is the constant where it is None.
    """

    name: str
    powers: Mapping[str, float] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    constant: float | None = None

    def predict(self, setting: Setting) -> float:
        """log2 of the rate."""
        return math.log2(self.constant or 1.0) + sum(power * _size(setting, k) for k, power in self.powers.items())

    def regrets(self, curves: Curves) -> list[float]:
        """What its rate loses in each setting."""
        return [curve.regret(self.predict(setting)) for setting, curve in curves.items()]

    def __str__(self) -> str:
        return " ".join([f"{self.constant or 1:.3g}", *(f"{k}^{power:+.2f}" for k, power in self.powers.items())])


_ROOT = {"depth": -0.5}
#: What ``MuSOAP(model, steps=…)`` does, with its rule for depth.
OURS = Candidate("**the formula**", {"steps": -0.5, **_ROOT}, constant=0.03)
CANDIDATES = (
    OURS,
    Candidate("0.03 for any number of steps", _ROOT, constant=0.03),
    Candidate("steps^−0.32 ([arXiv:2603.28743](https://arxiv.org/abs/2603.28743))", {"steps": -0.32, **_ROOT}),
    Candidate("with the root of the batch size", {"steps": -0.5, "batch": 0.5, **_ROOT}),
    Candidate("with 1/depth ([arXiv:2505.01618](https://arxiv.org/abs/2505.01618))", {"steps": -0.5, "depth": -1.0}),
    Candidate("without depth", {"steps": -0.5}, constant=0.03),
    Candidate("with a fitted power of the epochs", {"steps": -0.5, **_ROOT}, ("epochs",)),
    Candidate("fitted powers of steps, batch size and depth", free=("steps", "batch", "depth")),
)


def _size(setting: Setting, factor: str) -> float:
    """log2 of a factor over its reference; how often a sample is seen follows from the others."""
    f = setting.factors
    value = f["steps"] * f["batch"] / f["samples"] if factor == "epochs" else f[factor]
    return math.log2((value[0] if isinstance(value, tuple) else value) / REFERENCE[factor])


def fitted(candidate: Candidate, curves: Curves) -> Candidate:
    """The candidate with what is free fitted by least squares.

    Weights are the curvatures, so that what is least is the sum of the regrets, as far as curves are parabolas.
    """
    known = {s: c for s, c in curves.items() if c.curvature > 0}
    if candidate.constant is not None or not known:
        return candidate
    roots = np.sqrt([c.curvature for c in known.values()])
    off = np.array([c.best - candidate.predict(s) for s, c in known.items()])
    columns = np.array([[1.0, *(_size(s, k) for k in candidate.free)] for s in known])
    constant, *powers = np.linalg.lstsq(columns * roots[:, None], off * roots, rcond=None)[0]
    found = dict(zip(candidate.free, map(float, powers), strict=True))
    return replace(candidate, powers={**candidate.powers, **found}, constant=float(2**constant))


class LawWithPage(Law):
    """The experiment with its page, its numbers and its figure."""

    def curves(self, records: Any) -> Curves:
        """The settings that are done."""
        return {s: Curve(errors) for s in self.settings() if (errors := self.shared(records, s))}

    def shared(self, records: Any, setting: Setting) -> dict[float, list[float]]:
        """Rate → errors, once the first seed's search is done: of all seeds at the rates that have all, or of the first.

        Rates are compared by the same seeds, since an easy seed would make a rate look good.
        """
        found = [self.errors(records, setting, seed) for seed in self.seeds(setting)]
        if not found[0] or any(i not in found[0] for i in self.asked(records, setting)):
            return {}
        whole = [i for i in found[0] if all(i in own for own in found)]
        found, rates = (found, whole) if len(whole) >= _ENOUGH else (found[:1], list(found[0]))
        return {self.rate(i): [own[i] for own in found] for i in rates}

    def table(self, records: Any) -> str:
        """Everything that can be said of the settings that are done."""
        curves, numbers = self.curves(records), self.numbers(records)
        rows = [[name, value] for name, value in numbers.items() if "\n" not in value and not name.startswith("in.")]
        lines = ["# The best learning rate of MuSOAP", "", f"{len(curves)} of {len(self.settings())} settings."]
        lines += [*table(["what pages quote", ""], rows), *_law_table(*_sides(curves))]
        return "\n".join([*lines, *_power_table(curves), *_rate_table(curves)]) + "\n"

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote."""
        curves = self.curves(records)
        chosen, others = _sides(curves)
        searched, ours = searches(others)
        rows = [[name, *cells[3:]] for name, _, *cells in _law_rows(chosen, others)]
        off = {s: 2 ** (c.best - OURS.predict(s)) for s, c in {**chosen, **others}.items()}
        far = [setting for setting, factor in off.items() if not 0.5 <= factor <= 2]
        said = {
            "settings": str(len(curves)),
            "others.settings": str(len(others)),
            "others.seeded": str(sum(c.seeds > 1 for c in others.values())),
            "regrets": "\n".join(table(["learning rate", "median", "9 of 10", "most"], rows)),
            "off": str(len(far)),
            "off.darcy": str(sum("darcy" in setting.problem for setting in far)),
        }
        for setting, factor in off.items():
            name = f"in.{dotted(f'{setting.problem} {setting}')}"
            said |= {name: percent(OURS.regrets({setting: curves[setting]})[0]), f"{name}.off": f"{factor:.2f}"}
        for factor, own in _powers(curves).items():
            told = {"mean": fmean(own), "least": min(own), "most": max(own)}
            said |= {f"power.{factor}.{end}": _signed(value) for end, value in told.items()}
        told = [[factor, str(len(own)), *_mean(own)] for factor, own in _powers(curves).items()]
        said["powers"] = "\n".join(table(["factor", "problems", "mean power", "interval"], told))
        for name, found in {"others": OURS.regrets(others), "search.others": searched, "search.others.law": ours}.items():
            said |= {f"{name}.{end}": cell for end, cell in zip(("median", "ninth", "most"), _cells(found), strict=True)}
        return said

    def draw(self, records: Any, path: Path) -> None:
        """The best rate of each setting over what the law says: on the line it is the law's, between the others within a
        factor of two.
        """
        figure, axes = style.new_figure(5.2, 4.6)
        ends = np.array([0.004, 0.16])
        axes.fill_between(ends, ends / 2, ends * 2, color=style.FAINT, linewidth=0, zorder=0)
        axes.loglog(ends, ends, color=style.GREY, linewidth=1, zorder=1)
        chosen, others = _sides(self.curves(records))
        for number, problem in enumerate(PROBLEMS):
            own = [(2 ** OURS.predict(s), 2**c.best) for s, c in {**chosen, **others}.items() if s.problem == problem]
            how = {"marker": style.MARKERS[number], "color": style.PALETTE[number], "label": NAMES[problem]}
            if problem in CHOSEN_ON:
                how |= {"label": f"{NAMES[problem]} (chosen on)", "fillstyle": "none"}
            if own:
                axes.plot(*zip(*own, strict=True), linestyle="none", markersize=5, **how)
        style.ticks_at(axes, [0.005, 0.01, 0.02, 0.05, 0.1])
        style.value_axis(axes)
        axes.set(xlabel="learning rate by the formula", ylabel="best learning rate")
        figure.legend(fontsize=style.SMALL, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2)
        style.save(figure, path)


def _sides(curves: Curves) -> tuple[Curves, ...]:
    """Settings of the problems on which the law was chosen, and of the others; no variants."""
    plain = {s: c for s, c in curves.items() if not VARIANTS & set(dict(s.changes))}
    return tuple({s: c for s, c in plain.items() if (s.problem in CHOSEN_ON) == chosen} for chosen in (True, False))


def searches(curves: Curves) -> tuple[list[float], list[float]]:
    """What the best rate of one seed loses where other seeds judge it, and what the law loses there."""
    searched, ours = [], []
    for setting, curve in curves.items():
        for seed, alone in enumerate(curve.alone() if curve.seeds > 1 else ()):
            rest = Curve({lr: [*own[:seed], *own[seed + 1 :]] for lr, own in curve.errors.items()})
            searched.append(rest.regret(alone.best))
            ours.append(rest.regret(OURS.predict(setting)))
    return searched, ours


def _cells(found: Sequence[float]) -> list[str]:
    """Median, ninth decile and largest."""
    if not found:
        return ["–"] * 3
    return [percent(x) for x in (median(found), ninth_decile(found), max(found))]


def _law_rows(chosen: Curves, others: Curves) -> list[list[str]]:
    """Each law, fitted where it was chosen, its rate, and what it loses there and elsewhere."""
    made = [fitted(candidate, chosen) for candidate in CANDIDATES]
    return [[law.name, str(law), *_cells(law.regrets(chosen)), *_cells(law.regrets(others))] for law in made]


def _law_table(chosen: Curves, others: Curves) -> list[str]:
    said = (
        "\n## What a law loses\n\nRegret of its rate over the best one: median, ninth decile, largest. Fitted on "
        f"{', '.join(CHOSEN_ON)}, held against the others."
    )
    heads = ["law", "rate", "median", "9/10", "most", "others: median", "9/10", "most"]
    return [said, *table(heads, _law_rows(chosen, others))]


def _signed(power: float) -> str:
    return f"{power:+.2f}".replace("-", "−")


def _powers(curves: Curves) -> dict[str, list[float]]:
    """Factor → the powers of the problems on which it was varied, two at least."""
    found = {f: [p for problem in PROBLEMS if (p := _power(curves, problem, f)) is not None] for f in FACTORS}
    return {factor: own for factor, own in found.items() if len(own) > 1}


def _mean(powers: Sequence[float]) -> list[str]:
    """Their mean, and Student's 95 % interval over the problems."""
    mean, reach = fmean(powers), student(len(powers) - 1) * stdev(powers) / math.sqrt(len(powers))
    return [_signed(mean), f"{_signed(mean - reach)} to {_signed(mean + reach)}"]


def _power_table(curves: Curves) -> list[str]:
    rows = []
    for factor, own in _powers(curves).items():
        mean, interval = _mean(own)
        powers = [_power(curves, problem, factor) for problem in PROBLEMS]
        cells = ["–" if power is None else f"{power:+.2f}" for power in powers]
        rows.append([factor, *cells, f"{mean} ({interval})"])
    said = "Of the best rate by one factor, the others at the centre; mean over the problems with Student's 95 % interval."
    return [f"\n## Powers\n\n{said}", *table(["factor", *PROBLEMS, "mean"], rows)]


def _power(curves: Curves, problem: str, factor: str) -> float | None:
    along = {s: c for s, c in curves.items() if s.problem == problem and {factor} >= set(dict(s.changes))}
    sizes = [_size(setting, factor) for setting in along]
    return np.polyfit(sizes, [curve.best for curve in along.values()], 1)[0] if len(set(sizes)) > 1 else None


def _rate_table(curves: Curves) -> list[str]:
    rows = []
    for setting, curve in curves.items():
        errors = ", ".join(f"{lr:.3g}: {np.mean(own):.4f}" for lr, own in sorted(curve.errors.items()))
        rows.append([setting.problem, str(setting), f"{2**curve.best:.3g}{'' if curve.inside else ' (edge)'}", errors])
    return ["\n## Best rates\n\nValidation errors.", *table(["problem", "setting", "best rate", "errors by rate"], rows)]
