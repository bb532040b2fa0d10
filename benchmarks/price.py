"""The price of tuning: what a learning rate costs to find, and how far from the best it ends, for several ways to find it.

    python benchmarks/price.py                # trains what is missing (hours), then the table and the figure
    python benchmarks/price.py --report       # the table and the figure from what is there

MuSOAP at a 1D and a 2D target of 1,000 steps. **Proxies** are narrower, shorter, coarser or have less data than the target,
alone and together; their best learning rate is fitted and carried under μP, with the rule for steps. **Searches at the
target** are random search, successive halving and Hyperband. They are not run but simulated on the target's curves: errors
at every learning rate of a grid, at the end and on the way there, interpolated between grid points and continued beyond.
**Extrapolated** is a straight line through the best learning rates of three narrow models, under the same optimizer and μP.

Prices are processor time, from steps that all models were timed at in turns: runs lasted longer or shorter with what else
the machine did. Runs are the suite's where it has them.

Runs are lines of benchmarks/results/price.jsonl: interrupted, the same command goes on. Writes price.md and price.png.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np
import torch

from extrapolation import line_weights
from neuralop_mup.plots import style
from neuralop_mup.tuning.optimum import find_optimum
from price_searches import Curve, Landscape, Rungs, halving, hyperband
from suite_figure import NAMES
from suite_runs import STEPS, Records, run, task

RESULTS = Path(__file__).parent / "results"
Task = dict[str, Any]

# Width of the target, and the proxy's stride over the grid's points.
PROBLEMS = {"korteweg-de-vries": (64, 4), "gray-scott": (48, 2)}
NARROW, SHORT = 16, 125
SAMPLES = {"korteweg-de-vries": 200, "gray-scott": 100}  # a quarter of the target's
OPTIMIZER = "MuSOAP, rms"  # its default size is another one by now
LRS = tuple(0.005 * 2**i for i in range(6))  # at the target
MIDDLE = LRS[1:5]
PRIOR = (0.002, 0.2)  # searches at the target draw from two decades, evenly in log lr
RUNGS = (37, 111, 333, STEPS)  # of successive halving, a third each
TRIALS, DRAWS = (1, 2, 3, 4, 6, 8, 12), 2000  # of random search, and how often each search is simulated

SMALL = (8, 16, 24)  # widths that a line is drawn through
WIDER = {"korteweg-de-vries": (128,)}  # targets that the suite has trained in the grid's middle
SEEDS = (0, 1, 2)
TIMED_STEPS, TURNS = 40, 3


# ----------------------------------------------------------------------------------------------------------- the runs


def parts(problem: str) -> dict[str, dict[str, Any]]:
    """What makes a proxy of the target cheaper, one by one: changes of the target's task."""
    return {
        "narrower": {"width": NARROW},
        "shorter": {"steps": SHORT},
        "coarser": {"data": {"stride": PROBLEMS[problem][1]}},
        "less data": {"data": {"samples": SAMPLES[problem]}},
    }


def proxies(problem: str) -> dict[str, dict[str, Any]]:
    """Every proxy: changes of the target's task."""
    single = parts(problem)

    def joined(*names: str, **more: Any) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for name in names:
            for key, value in single[name].items():
                changes[key] = {**changes[key], **value} if isinstance(value, dict) and key in changes else value
        return {**changes, **more}

    return {
        "all four": joined(*single),
        "narrower, shorter": joined("narrower", "shorter"),
        "all four, 250 steps": joined(*single, steps=250),
        "shorter": joined("shorter"),
        "all but narrower": joined(*(n for n in single if n != "narrower")),
        "all but coarser": joined(*(n for n in single if n != "coarser")),
        "all but less data": joined(*(n for n in single if n != "less data")),
        "all four, width 8": joined(*single, width=8),
        "narrower": joined("narrower"),
        "all but shorter": joined(*(n for n in single if n != "shorter")),
        "coarser": joined("coarser"),
        "less data": joined("less data"),
    }


LIGHT = ("narrower", "coarser", "less data")  # nearly as dear as the target, or in the suite: the grid's middle alone


def target(problem: str, lr: float, seed: int = 0) -> Task:
    """A run of the target, with its validation error at the rungs."""
    return task(problem, OPTIMIZER, lr, seed=seed, width=PROBLEMS[problem][0], marks=list(RUNGS[:-1]))


def proxy(problem: str, name: str, lr: float, seed: int = 0) -> Task:
    """A run of a proxy at the learning rate that becomes ``lr`` at the target.

    The rule for steps is lr ∝ 1/√steps: ``parametrize(training={"steps": (proxy's, target's)})`` takes it to the target.
    """
    changes = {"width": PROBLEMS[problem][0], **proxies(problem)[name]}
    steps = changes.pop("steps", STEPS)
    own = float(f"{lr * math.sqrt(STEPS / steps):.4g}")
    return task(problem, OPTIMIZER, own, steps, seed, **changes)


def of_width(problem: str, width: int, lr: float, seed: int = 0) -> Task:
    """The target at another width."""
    return task(problem, OPTIMIZER, lr, seed=seed, width=width)


def timed(problem: str, width: int, stride: int, turn: int) -> Task:
    """A few steps that are there to be timed. Models take turns, so that the machine's other work falls on all of them."""
    data = {"stride": stride} if stride > 1 else None
    return task(problem, OPTIMIZER, 0.02, TIMED_STEPS, 100 + turn, width=width, data=data)


def timings(problem: str) -> list[tuple[int, int]]:
    """Width and stride of every model whose steps are timed; data and the number of steps do not change a step."""
    width, stride = PROBLEMS[problem]
    models = [(width, 1), (width, stride), (NARROW, 1), (NARROW, stride), (8, stride), *((w, 1) for w in SMALL)]
    return list(dict.fromkeys([*models, *((w, 1) for w in WIDER.get(problem, ()))]))


def wanted(_: Records) -> Iterator[Task]:
    """Every run, those that say most for their price first."""
    dear = (*LIGHT, "all but shorter", "all four, 250 steps", "all but narrower")
    cheap = [name for name in proxies("gray-scott") if name not in dear]
    for problem in PROBLEMS:
        yield from (proxy(problem, "all four", lr) for lr in LRS)
        yield from (target(problem, lr) for lr in MIDDLE)
        yield from (timed(problem, *model, turn) for turn in range(TURNS) for model in timings(problem))
    yield from (proxy(problem, name, lr) for name in cheap[:2] for problem in PROBLEMS for lr in LRS)
    # On the first problem the suite has two of the three widths.
    yield from (of_width("korteweg-de-vries", width, lr) for width in SMALL for lr in MIDDLE)
    yield from (target("gray-scott", lr, 1) for lr in MIDDLE)  # where validation and test samples disagree most
    yield from (proxy(problem, name, lr) for name in cheap[2:] for problem in PROBLEMS for lr in LRS)
    yield from (target("korteweg-de-vries", lr, 1) for lr in MIDDLE)
    yield from (target(problem, lr) for problem in PROBLEMS for lr in LRS if lr not in MIDDLE)
    yield from (proxy(problem, "narrower", lr, seed) for problem in PROBLEMS for lr in MIDDLE for seed in SEEDS)
    yield from (proxy(problem, "all four", lr, 1) for problem in PROBLEMS for lr in LRS)
    for name in ("all four, 250 steps", "all but narrower"):
        yield from (proxy(problem, name, lr) for problem in PROBLEMS for lr in LRS)
    yield from (of_width(problem, width, lr) for problem in PROBLEMS for width in SMALL for lr in MIDDLE)
    yield from (proxy(problem, name, lr, 1) for name in cheap for problem in PROBLEMS for lr in LRS)
    yield from (proxy(problem, "all but shorter", lr) for problem in PROBLEMS for lr in MIDDLE)
    yield from (proxy(problem, name, lr) for problem in PROBLEMS for name in LIGHT[1:] for lr in MIDDLE)


# ------------------------------------------------------------------------------------- ways to a learning rate


@dataclass(frozen=True)
class Found:
    """A way to a learning rate: its price as a share of tuning the target, and regrets, one for each time it was gone."""

    name: str
    cost: float
    regrets: tuple[float, ...]
    lr: float | None = None  # at the target

    @property
    def regret(self) -> float:
        return fmean(self.regrets)


def searched(problem: str, records: Records) -> dict[str, list[Found]]:
    """Random search, halving and Hyperband at the target, each so many times over with other learning rates."""
    end = Landscape(target_curve(problem, records))
    rungs: Rungs = {at: Landscape(target_curve(problem, records, at)) for at in RUNGS}
    generator = np.random.default_rng(0)

    def draw(n: int) -> np.ndarray:
        return np.exp(generator.uniform(*np.log(PRIOR), n))

    def price(steps: float) -> float:
        return steps / STEPS / len(LRS)

    random = []
    for n in TRIALS:
        drawn = draw(n * DRAWS).reshape(DRAWS, n)
        random.append(Found(f"{n} trial{'s' if n > 1 else ''}", price(n * STEPS), tuple(end.regret(drawn).min(1))))
    stopped = []
    for first in range(len(RUNGS) - 2, -1, -1):
        own = {at: rungs[at] for at in RUNGS[first:]}
        n = 3 ** (len(own) - 1)
        runs = [halving(draw(n), own) for _ in range(DRAWS)]
        stopped.append(Found(f"halving from {n}", price(runs[0][1]), tuple(end.regret([lr for lr, _ in runs]))))
    runs = [hyperband(draw, rungs) for _ in range(DRAWS)]
    stopped.append(Found("Hyperband", price(runs[0][1]), tuple(end.regret([lr for lr, _ in runs]))))
    return {"random search": random, "early-stopped": stopped}


# --------------------------------------------------------------------------------------------------- what runs gave


def unseen(result: Mapping[str, float]) -> float:
    """Error over validation and test samples, which are as many: learning rates are chosen by the first at proxies alone."""
    return (result["loss"] + result["test"]) / 2


def validation(result: Mapping[str, float]) -> float:
    """Error over validation samples."""
    return result["loss"]


def target_curve(
    problem: str, records: Records, at: int = STEPS, what: Callable[[Mapping[str, float]], float] = unseen
) -> Curve:
    """Errors of the target at its end, or validation errors at a rung."""
    # A second seed counts once the grid's middle has it, so that no learning rate has an easier seed than its neighbours.
    seeds = (0, 1) if all(records.get(target(problem, lr, 1)) for lr in MIDDLE) else (0,)
    found = {lr: records.results(target(problem, lr), seeds) for lr in LRS}
    return {lr: [what(r) if at == STEPS else r[f"at {at}"] for r in rs] for lr, rs in found.items() if rs}


def wider_curve(problem: str, width: int, records: Records, what: Callable[[Mapping[str, float]], float] = unseen) -> Curve:
    """Errors of a width that the suite has trained."""
    curve = {lr: records.results(of_width(problem, width, lr), SEEDS) for lr in MIDDLE}
    return {lr: [what(r) for r in rs] for lr, rs in curve.items() if rs}


def step_time(problem: str, width: int, stride: int, records: Records) -> float:
    """Processor time of a step, in seconds: the shortest of the turns, in which other work disturbed least."""
    turns = [result for turn in range(TURNS) if (result := records.get(timed(problem, width, stride, turn)))]
    return min(result["seconds"] for result in turns) / TIMED_STEPS


def price_of(problem: str, models: Sequence[Task], records: Records, width: int | None = None) -> float:
    """Processor time of one run of each model, over that of a run of the target.

    As the grid is the same at proxy and target, that is the price of tuning the first over that of tuning the second.
    """
    whole = STEPS * step_time(problem, width or PROBLEMS[problem][0], 1, records)
    of = [t["steps"] * step_time(problem, t["width"], t.get("data", {}).get("stride", 1), records) for t in models]
    return sum(of) / whole


def seeds_of(problem: str, name: str, records: Records) -> Iterator[dict[float, float]]:
    """A proxy's errors by the learning rate that each means for the target, of every seed that is done."""
    lrs = MIDDLE if name in LIGHT or name == "all but shorter" else LRS
    for seed in SEEDS:
        results = {lr: records.get(proxy(problem, name, lr, seed)) for lr in lrs}
        if all(results.values()):
            yield {lr: result["loss"] for lr, result in results.items()}


def chosen(errors: Mapping[float, float]) -> float:
    """The best learning rate as the library fits it; at the grid's edge the edge."""
    best = find_optimum({lr: [error] for lr, error in errors.items()})
    return best.value if best and best.value is not None else min(errors, key=errors.__getitem__)


def carried(problem: str, name: str, records: Records, end: Landscape, width: int | None = None) -> Found | None:
    """What a proxy's best learning rate gives at the target, for each seed; None before one is done."""
    lrs = [chosen(errors) for errors in seeds_of(problem, name, records)]
    if not lrs:
        return None
    price = price_of(problem, [proxy(problem, name, LRS[0])], records, width)
    return Found(name, price, tuple(end.regret(lrs)), geometric_mean(lrs))


def extrapolated(problem: str, records: Records, end: Landscape, width: int | None = None) -> Found | None:
    """A line through three widths under μP, each by its seed 0; None before all are done."""
    curves = {w: {lr: records.get(of_width(problem, w, lr)) for lr in MIDDLE} for w in SMALL}
    if not all(result for curve in curves.values() for result in curve.values()):
        return None
    best = {w: chosen({lr: result["loss"] for lr, result in curve.items()}) for w, curve in curves.items()}
    weights = line_weights(SMALL, width or PROBLEMS[problem][0])
    lr = math.exp(sum(share * math.log(best[w]) for w, share in weights.items()))
    price = price_of(problem, [of_width(problem, w, LRS[0]) for w in SMALL], records, width)
    return Found("line through widths " + ", ".join(map(str, SMALL)), price, (float(end.regret(lr)),), lr)


def of_problem(problem: str, records: Records) -> dict[str, list[Found]]:
    """Every way on one problem, as far as it is done."""
    end = Landscape(target_curve(problem, records))
    ways = [carried(problem, name, records, end) for name in proxies(problem)]
    line = [extrapolated(problem, records, end)]
    return {
        "proxy": [way for way in ways if way],
        "extrapolated": [way for way in line if way],
        **searched(problem, records),
    }


# ------------------------------------------------------------------------------------------------------------ the page


def share(value: float) -> str:
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def row(way: Found, kind: str, validated: Landscape) -> str:
    """A line of the table; of a simulated search the mean regret and what one in ten searches exceeds."""
    own = kind in ("proxy", "extrapolated")
    spread = "" if len(way.regrets) == 1 else f"{min(way.regrets):.1%} … {max(way.regrets):.1%}"
    if not own:
        spread = f"one in ten over {np.quantile(way.regrets, 0.9):.1%}"
    whole = way.cost + (1 / len(LRS) if own else 0)
    lr = "–" if way.lr is None else f"{way.lr:.3f}"
    seeds = str(len(way.regrets)) if own else "–"
    alone = "–" if way.lr is None else f"{float(validated.regret(way.lr)):.1%}"
    cells = (kind, way.name, share(way.cost), share(whole), lr, f"{way.regret:.1%}", spread or "–", seeds, alone)
    return "| " + " | ".join(cells) + " |"


def report(records: Records) -> str:
    """The tables of what is done."""
    lines = [
        "# The price of tuning",
        "",
        f"`python benchmarks/price.py`. {OPTIMIZER}, {STEPS:,} steps. Tuning the target is {len(LRS)} runs, one a learning "
        f"rate from {LRS[0]:g} to {LRS[-1]:g}. *Price*: processor time over that of tuning the target, a proxy's with one "
        "seed. *With the final run*: the target trained once more, where that is not part of the search. *Regret*: error on "
        "validation and test samples over that of the target's best grid point, less 1; mean over the proxy's seeds or over "
        "simulated searches. Choices at proxies go by the validation error. *By validation*: regret if its error is "
        "over validation samples alone.",
    ]
    heads = ("kind", "way", "price", "with the final run", "lr for the target", "regret", "range", "seeds", "by validation")
    for problem, (width, _) in PROBLEMS.items():
        curve = target_curve(problem, records)
        if not set(MIDDLE) <= set(curve):
            continue
        lines += ["", f"## {problem}, width {width}", "", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
        by_validation = target_curve(problem, records, what=validation)
        validated = Landscape(by_validation)
        lines += [row(way, kind, validated) for kind, ways in of_problem(problem, records).items() for way in ways]
        both = ((lr, fmean(ls), fmean(ls_)) for (lr, ls), ls_ in zip(curve.items(), by_validation.values(), strict=True))
        errors = ", ".join(f"{lr:g}: {error:.4f} ({other:.4f})" for lr, error, other in both)
        lines += [
            "",
            f"Errors at the target (validation alone): {errors}; seeds: {', '.join(str(len(ls)) for ls in curve.values())}.",
        ]
        for at in RUNGS[:-1]:
            errors = ", ".join(f"{lr:g}: {fmean(ls):.3f}" for lr, ls in target_curve(problem, records, at).items())
            lines.append(f"After {at} steps: {errors}.")
        for wider in WIDER.get(problem, ()):
            curve = wider_curve(problem, wider, records)
            end = Landscape(curve)
            names = [name for name in proxies(problem) if not set(name.split()) & {"but", "coarser"}]
            ways = [carried(problem, name, records, end, wider) for name in names if proxies(problem)[name].get("width")]
            ways.append(extrapolated(problem, records, end, wider))
            lines += ["", f"## {problem}, width {wider}", "", "The suite's runs of the target, three seeds.", ""]
            lines += ["| " + " | ".join(heads[1:]) + " |", "|" + " --- |" * (len(heads) - 1)]
            validated = Landscape(wider_curve(problem, wider, records, validation))
            lines += [row(way, "proxy", validated).replace("| proxy ", "", 1) for way in ways if way]
            lines += ["", "Errors: " + ", ".join(f"{lr:g}: {fmean(ls):.4f}" for lr, ls in curve.items()) + "."]
        lines += ["", "Processor time of a step, ms: " + times(problem, records) + "."]
    return "\n".join(lines) + "\n"


def times(problem: str, records: Records) -> str:
    """What prices are made of."""
    return ", ".join(
        f"width {width}{f', stride {stride}' if stride > 1 else ''}: {1000 * step_time(problem, width, stride, records):.1f}"
        for width, stride in timings(problem)
    )


# ---------------------------------------------------------------------------------------------------------- the figure


KINDS = {  # colour, marker, line
    "proxy": (style.PALETTE[0], "o", "none"),
    "extrapolated": (style.PALETTE[1], "s", "none"),
    "random search": (style.GREY, "v", "-"),
    "early-stopped": (style.PALETTE[2], "D", "-"),
}
AIM = (0.05, 5.0)  # price, and regret in per cent
LEFT = 0.2  # proxies cheaper than this are named at the left, others below
BELOW = (-2.4, -3.8, -5.2)  # heights at which those are named


def beside(axes: Any, wanted: Sequence[tuple[float, float, str, Any]]) -> None:
    """Name points in a column at the left of the axes, in the order of their heights."""
    to_axes = axes.transData + axes.transAxes.inverted()
    height = axes.get_window_extent().height / axes.figure.dpi * 72
    # Of two that are level the dearer one is named lower, so that its line passes under the other point.
    wanted = sorted(wanted, key=lambda w: (round(w[1], 1), -w[0]))
    at = [float(to_axes.transform((x, y))[1]) for x, y, *_ in wanted]
    places = style.spread(at, 1.4 * style.SMALL / height, 0.03, 0.97)
    for (x, y, text, colour), place in zip(wanted, places, strict=True):
        joined = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.5, "relpos": (1.0, 0.5), "shrinkA": 0}
        how = {"textcoords": "axes fraction", "va": "center", "fontsize": style.SMALL, "color": colour}
        axes.annotate(text, (x, y), (0.02, place), arrowprops=joined, **how)


def below(axes: Any, wanted: Sequence[tuple[float, float, str, Any]]) -> None:
    """Name points under them, in turns at one of three heights."""
    for i, (x, y, text, colour) in enumerate(sorted(wanted)):
        joined = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.5, "shrinkA": 0}
        how = {"ha": "center", "va": "center", "fontsize": style.SMALL, "color": colour}
        axes.annotate(text, (x, y), (x, BELOW[i % len(BELOW)]), arrowprops=joined, **how)


def named(axes: Any, way: Found, text: str, colour: Any, side: int) -> None:
    """Name a point at its right (1) or left (-1)."""
    how = {"ha": "left" if side > 0 else "right", "va": "center", "fontsize": style.SMALL, "color": colour}
    axes.annotate(text, (way.cost, 100 * way.regret), (7 * side, 3), textcoords="offset points", **how)


def draw(records: Records, path: Path) -> None:
    """Price against regret, one panel a problem."""
    problems = [problem for problem in PROBLEMS if set(MIDDLE) <= set(target_curve(problem, records))]
    figure, panels = style.new_figure(5.6 * len(problems), 4.4, 1, len(problems), squeeze=False)
    figure.subplots_adjust(wspace=0.2)
    for axes, problem in zip(panels[0], problems, strict=True):
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=10, linscale=1.6)
        axes.set_xlim(0.0015, 6)
        axes.set_ylim(-6, 4000)
        axes.fill_between([0.0015, AIM[0]], -6, AIM[1], color=style.FAINT, linewidth=0, zorder=0)
        left, under = [], []
        validated = Landscape(target_curve(problem, records, what=validation))
        for kind, ways in of_problem(problem, records).items():
            colour, marker, line = KINDS[kind]
            xs, ys = [way.cost for way in ways], [100 * way.regret for way in ways]
            axes.plot(xs, ys, marker=marker, markersize=5, color=colour, linestyle=line, linewidth=1.3, zorder=4)
            if line != "none":
                named(axes, ways[0], kind, colour, 1 if kind == "random search" else -1)
                if ways[-1].name == "Hyperband":
                    named(axes, ways[-1], ways[-1].name, colour, 1)
                continue
            for way, x, y in zip(ways, xs, ys, strict=True):
                axes.plot([x, x], [100 * min(way.regrets), 100 * max(way.regrets)], color=colour, linewidth=2.5, alpha=0.3)
                other = 100 * float(validated.regret(way.lr))
                axes.plot([x, x], [y, other], color=colour, linewidth=0.8, zorder=3)
                axes.plot(x, other, marker=marker, markersize=4.5, color=colour, markerfacecolor="white", zorder=3)
                if kind == "extrapolated":
                    named(axes, way, "line through\nthree widths", colour, 1)
                    continue
                (left if x < LEFT else under).append((x, y, way.name, colour))
        style.bare(axes)
        axes.grid(axis="y", color=style.FAINT, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.set_yticks([0, 5, 10, 30, 100, 300, 1000, 3000], ["0", "5", "10", "30", "100", "300", "1,000", "3,000"])
        axes.set_xticks([0.01, 0.05, 0.2, 1], ["0.01", "0.05", "0.2", "1"])
        axes.minorticks_off()
        axes.tick_params(labelsize=style.SMALL)
        axes.set_title(f"{NAMES[problem]}, width {PROBLEMS[problem][0]}", fontsize=style.TEXT + 1, loc="left")
        axes.set_xlabel("price, over that of tuning the target", fontsize=style.TEXT)
        beside(axes, left)
        below(axes, under)
    panels[0][0].set_ylabel("regret (%)", fontsize=style.TEXT)
    key = ["grey: the aim", "bars: range over seeds", "searches at the target: mean of many"]
    key += ["hollow: regret by validation samples alone"]
    style.key_line(figure, key)
    style.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    records = Records(RESULTS / "price.jsonl")
    records.done = {**Records(RESULTS / "suite.jsonl").done, **records.done}
    if not args.report:
        run(records, wanted, args.workers)
    text = report(records)
    (RESULTS / "price.md").write_text(text)
    print(text, flush=True)
    draw(records, RESULTS / "price.png")


if __name__ == "__main__":
    main()
