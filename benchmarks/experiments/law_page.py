"""The page of the experiment ``law``: best rates, powers of each factor, and what candidate laws lose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, stdev
from typing import Any

import numpy as np

from experiments.curves import Curve, mean_over, power_of
from experiments.law import CENTRE, CHOSEN_ON, PROBLEMS, Law, Setting
from experiments.pages import percent, table
from neuralop_mup.plots import style
from neuralop_mup.tuning.optimum import Interval, find_optimum

__all__ = ["CANDIDATES", "OURS", "Candidate", "draw", "fitted", "numbers", "page"]

FACTORS = ("steps", "batch", "depth", "width", "modes", "samples", "grid")
#: What a rate of one factor is told over, in laws.
REFERENCE: dict[str, float] = {**CENTRE, "width": 16, "modes": 10, "samples": 400, "grid": 16, "epochs": 50}
#: Changes that are no factor of a law: how something is trained, and which model.
VARIANTS = ("skip", "refresh", "aux")
_ENOUGH = 4  # rates with every seed, to look for the best one among them


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

    def __str__(self) -> str:
        powers = " ".join(f"{k}^{power:+.2f}" for k, power in self.powers.items() if power)
        return f"{self.constant or 1:.3g} {powers}".strip()


_ROOT = {"depth": -0.5}
#: What ``MuSOAP(model, steps=…)`` does, with its rule for depth.
OURS = Candidate("0.03 steps^-0.5", {"steps": -0.5, **_ROOT}, constant=0.03)
CANDIDATES = (
    OURS,
    Candidate("the constant", _ROOT, constant=0.03),
    Candidate("steps^-0.32", {"steps": -0.32, **_ROOT}),
    Candidate("steps^-0.5", {"steps": -0.5, **_ROOT}),
    Candidate("steps^-0.5, root of batch", {"steps": -0.5, "batch": 0.5, **_ROOT}),
    Candidate("steps^-0.5, no depth", {"steps": -0.5}),
    Candidate("steps^-0.5, 1/depth", {"steps": -0.5, "depth": -1.0}),
    Candidate("steps^-0.5, epochs fitted", {"steps": -0.5, **_ROOT}, ("epochs",)),
    Candidate("constant fitted", _ROOT),
    Candidate("steps fitted", _ROOT, ("steps",)),
    Candidate("steps, depth fitted", {}, ("steps", "depth")),
    Candidate("steps, batch, depth fitted", {}, ("steps", "batch", "depth")),
    Candidate("width too", {}, ("steps", "batch", "depth", "width")),
    Candidate("all fitted", {}, FACTORS),
)


def _size(setting: Setting, factor: str) -> float:
    """log2 of a factor over its reference; how often a sample is seen follows from the others."""
    f = setting.factors
    value = f["steps"] * f["batch"] / f["samples"] if factor == "epochs" else f[factor]
    return math.log2((value[0] if isinstance(value, tuple) else value) / REFERENCE[factor])


def fitted(candidate: Candidate, curves: Mapping[Setting, Curve]) -> Candidate:
    """The candidate with what is free fitted by least squares.

    Weights are the curvatures, so that what is least is the sum of the regrets, as far as curves are parabolas.
    """
    if candidate.constant is not None:
        return candidate
    known = {s: c for s, c in curves.items() if c.curvature > 0}
    roots = np.sqrt([c.curvature for c in known.values()])
    off = np.array([c.best - candidate.predict(s) for s, c in known.items()])
    columns = np.array([[1.0, *(_size(s, k) for k in candidate.free)] for s in known])
    constant, *powers = np.linalg.lstsq(columns * roots[:, None], off * roots, rcond=None)[0]
    found = dict(zip(candidate.free, map(float, powers), strict=True))
    return Candidate(candidate.name, {**candidate.powers, **found}, constant=float(2**constant))


def curves_of(law: Law, records: Any) -> dict[Setting, Curve]:
    """The settings that are done."""
    return {s: Curve(errors) for s in law.settings() if (errors := _errors(law, records, s))}


def _plain(curves: Mapping[Setting, Curve]) -> dict[Setting, Curve]:
    return {s: c for s, c in curves.items() if not set(dict(s.changes)) & set(VARIANTS)}


def page(law: Law, records: Any) -> str:
    """Everything that can be said of the settings that are done."""
    curves = curves_of(law, records)
    plain = _plain(curves)
    lines = [f"# The best learning rate of {law.optimizer}", "", f"{len(curves)} of {len(set(law.settings()))} settings."]
    for part in (_law_table(plain), _search_table(plain), _power_table(curves), _variant_table(curves), _rate_table(curves)):
        lines += part
    return "\n".join(lines) + "\n"


def _errors(law: Law, records: Any, setting: Setting) -> dict[float, list[float]]:
    """Rate → errors, once the first seed's search is done: of all seeds at the rates that have all, or of the first.

    Rates are compared by the same seeds, since an easy seed would make a rate look good.
    """
    found = [law.errors(records, setting, seed) for seed in law.seeds(setting)]
    if not found[0] or any(i not in found[0] for i in law.asked(records, setting)):
        return {}
    whole = [i for i in found[0] if all(i in own for own in found)]
    found, rates = (found, whole) if len(whole) >= _ENOUGH else (found[:1], list(found[0]))
    return {law.rate(i): [own[i] for own in found] for i in rates}


#: Candidates of the table on the page, and what they are called there.
_ON_THE_PAGE = {
    "0.03 steps^-0.5": "**the law**",
    "the constant": "0.03 whatever the steps",
    "steps^-0.32": "as steps^−0.32 ([arXiv:2603.28743](https://arxiv.org/abs/2603.28743))",
    "steps^-0.5, root of batch": "the law, as the root of the batch size besides",
    "steps^-0.5, 1/depth": "the law with 1 / depth ([arXiv:2505.01618](https://arxiv.org/abs/2505.01618))",
    "steps^-0.5, epochs fitted": "the law, and a fitted power of the epochs",
    "steps, batch, depth fitted": "powers of steps, batch size and depth, fitted",
}


def numbers(law: Law, records: Any) -> dict[str, str]:
    """What pages quote."""
    curves = curves_of(law, records)
    plain = _plain(curves)
    chosen, others = _sides(plain)
    rows = [
        [_ON_THE_PAGE[c.name], *(percent(x) for side in (chosen, others) for x in _spread(_regrets(made, side)))]
        for c in CANDIDATES
        if c.name in _ON_THE_PAGE
        for made in [fitted(c, chosen)]
    ]
    heads = [
        "learning rate",
        *(f"{side}: {what}" for side in ("chosen on", "others") for what in ("median", "9 of 10", "most")),
    ]
    searched = dict(zip(("chosen", "others"), _searches(plain), strict=True))
    runs = [records.get(law.run(s, i, k)) for s in law.settings() for i in range(-16, law.most + 1) for k in law.seeds(s)]
    said = {
        "settings": str(len(curves)),
        "runs": str(sum(r is not None for r in runs)),
        "chosen.settings": str(len(chosen)),
        "others.settings": str(len(others)),
        "others.seeded": str(sum(c.seeds > 1 for c in others.values())),
        "regrets": "\n".join(table(heads, rows)),
    }
    for name, found in {
        "others": _regrets(OURS, others),
        "search.others": searched["others"][0],
        "search.others.law": searched["others"][1],
    }.items():
        said |= {f"{name}.{what}": percent(x) for what, x in zip(("median", "ninth", "most"), _spread(found), strict=True)}
    return said


def _sides(curves: Mapping[Setting, Curve]) -> tuple[dict[Setting, Curve], dict[Setting, Curve]]:
    """Settings of the problems on which the law was chosen, and of the others."""
    chosen = {s: c for s, c in curves.items() if s.problem in CHOSEN_ON}
    return chosen, {s: c for s, c in curves.items() if s not in chosen}


def _law_table(curves: Mapping[Setting, Curve]) -> list[str]:
    chosen, others = _sides(curves)
    rows = []
    for candidate in CANDIDATES:
        if any(len({_size(s, k) for s in chosen}) < 2 for k in candidate.free) or not chosen:
            continue
        made = fitted(candidate, chosen)
        rows.append([candidate.name, str(made), *_cells(_regrets(made, chosen)), *_cells(_regrets(made, others))])
    return [
        "\n## What a law loses",
        "\nRegret of its rate over the best one: median, ninth decile, largest. Fitted on "
        f"{', '.join(CHOSEN_ON)} ({len(chosen)} settings), held against the others ({len(others)}).",
        *table(["law", "rate", "median", "9/10", "most", "others: median", "9/10", "most"], rows),
    ]


def _regrets(law: Candidate, curves: Mapping[Setting, Curve]) -> list[float]:
    return [curve.regret(law.predict(setting)) for setting, curve in curves.items()]


def _spread(found: Sequence[float]) -> list[float]:
    """Median, ninth decile and largest."""
    return [median(found), float(np.quantile(found, 0.9, method="higher")), max(found)]


def _cells(found: Sequence[float]) -> list[str]:
    return [f"{x:.1%}" for x in _spread(found)] if found else ["–"] * 3


def _searches(curves: Mapping[Setting, Curve]) -> Iterator[tuple[list[float], list[float]]]:
    """What the best rate of one seed loses where other seeds judge it, and what the law loses there; for both sides."""
    for side in _sides(curves):
        searched, ours = [], []
        for setting, curve in side.items():
            own = [{lr: [errors[seed]] for lr, errors in curve.errors.items()} for seed in range(curve.seeds)]
            for seed, errors in enumerate(own if len(own) > 1 else ()):
                rest = {lr: [*e[:seed], *e[seed + 1 :]] for lr, e in curve.errors.items()}
                searched.append(Curve(rest).regret(Curve(errors).best))
                ours.append(Curve(rest).regret(OURS.predict(setting)))
        yield searched, ours


def _search_table(curves: Mapping[Setting, Curve]) -> list[str]:
    rows = [
        [name, str(len(searched)), *_cells(searched), *_cells(ours)]
        for name, (searched, ours) in zip(("chosen on", "others"), _searches(curves), strict=True)
        if searched
    ]
    return [
        "\n## What a search loses",
        "\nRegret of the rate that is best for one seed, judged by the other seeds, and of the law's rate judged by the "
        "same ones: median, ninth decile, largest.",
        *table(["problems", "searches", "median", "9/10", "most", "the law: median", "9/10", "most"], rows),
    ]


def _power_table(curves: Mapping[Setting, Curve]) -> list[str]:
    rows = []
    for factor in FACTORS:
        for skip in ("linear", "identity") if factor == "depth" else ("linear",):
            powers = {p: _power(curves, p, factor, skip) for p in PROBLEMS}
            told = mean_over([power for power in powers.values() if power is not None])
            if told is not None:
                name = f"{factor}, identity skips" if skip == "identity" else factor
                cells = ("–" if power is None else f"{power:+.2f}" for power in powers.values())
                rows.append([name, *cells, _interval(told, "+.2f")])
    return [
        "\n## Powers",
        "\nOf the best rate by one factor, the others at the centre; mean over the problems with Student's 95 % interval.",
        *table(["factor", *PROBLEMS, "mean"], rows),
    ]


def _power(curves: Mapping[Setting, Curve], problem: str, factor: str, skip: str) -> float | None:
    own = {"skip": skip} if skip != "linear" else {}
    along = {s: c for s, c in curves.items() if s.problem == problem and {factor, *own} >= set(dict(s.changes))}
    along = {s: c for s, c in along.items() if dict(s.changes).get("skip", "linear") == skip}
    return power_of([2 ** _size(s, factor) for s in along], [c.best for c in along.values()])


def _variant_table(curves: Mapping[Setting, Curve]) -> list[str]:
    rows = []
    for setting, curve in curves.items():
        stock = Setting(setting.problem, tuple((k, v) for k, v in setting.changes if k not in VARIANTS))
        if stock != setting and stock in curves:
            drift = 2 ** (curve.best - curves[stock].best)
            gain = math.exp(curve.points[1].min() - curves[stock].points[1].min())
            rows.append([setting.problem, str(setting), f"× {drift:.2f}", f"× {gain:.3f}"])
    head = "\n## Variants\n\nBest rate and least error, over those of the same setting without it."
    return [head, *table(["problem", "setting", "best rate", "least error"], rows)]


def _rate_table(curves: Mapping[Setting, Curve]) -> list[str]:
    rows, noise = [], []
    for setting, curve in curves.items():
        most = max(map(len, curve.errors.values()))
        seeded = {lr: own for lr, own in curve.errors.items() if len(own) == most}
        found = find_optimum(seeded) if most > 1 else None
        interval = "" if found is None or found.is_bound else f" [{found.low:.3g}, {found.high:.3g}]"
        noise += [stdev(np.log(own)) for own in seeded.values() if most > 1 and all(map(math.isfinite, own))]
        edge = "" if curve.inside else " (edge)"
        errors = ", ".join(f"{lr:.3g}: {np.mean(own):.4f}" for lr, own in sorted(curve.errors.items()))
        rows.append(
            [setting.problem, str(setting), f"{2**curve.best:.3g}{interval}{edge}", f"{curve.curvature:.2f}", errors]
        )
    said = f" Two runs of one setting differ by {median(noise):.1%} (standard deviation, median)." if noise else ""
    heads = ["problem", "setting", "best rate", "curvature", "errors by rate"]
    return [f"\n## Best rates\n\nValidation errors.{said}", *table(heads, rows)]


def _interval(told: Interval, form: str) -> str:
    return f"{told.value:{form}}" + ("" if told.low is None else f" [{told.low:{form}}, {told.high:{form}}]")


def draw(law: Law, records: Any, path: Path) -> None:
    """The best rate of each setting over what the law says: on the line it is the law's, between the others within a factor
    of two.
    """
    found = _plain(curves_of(law, records))
    figure, axes = style.new_figure(5.2, 4.6)
    ends = np.array([0.004, 0.16])
    axes.fill_between(ends, ends / 2, ends * 2, color=style.FAINT, linewidth=0, zorder=0)
    axes.plot(ends, ends, color=style.GREY, linewidth=1, zorder=1)
    for number, problem in enumerate(PROBLEMS):
        own = [(2 ** OURS.predict(s), 2**c.best) for s, c in found.items() if s.problem == problem]
        if own:
            colour, chosen = style.PALETTE[number], problem in CHOSEN_ON
            label = problem.replace("-", " ") + (" (chosen on)" if chosen else "")
            how = {"markerfacecolor": "white" if chosen else colour, "markeredgecolor": colour, "markersize": 5}
            axes.plot(*zip(*own, strict=True), style.MARKERS[number], label=label, linestyle="none", alpha=0.85, **how)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [0.005, 0.01, 0.02, 0.05, 0.1]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("learning rate by the law", fontsize=style.TEXT)
    axes.set_ylabel("best learning rate", fontsize=style.TEXT)
    axes.legend(fontsize=style.SMALL, frameon=False, loc="upper left")
    style.bare(axes)
    style.save(figure, path)
