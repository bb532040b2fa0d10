"""Carrying a learning rate under μP against extrapolating it from three small models, on the same data.

    python benchmarks/extrapolation.py          # 48 short runs, if they are not there yet, then the table and the figure

**Extrapolated**: neuralop as it comes (SP), best learning rates at widths 8, 16 and 32, a straight line through them in log
learning rate over log width, read off at width 128. **Carried**: the best learning rate at width 16, used at 128 under μP
(rule "none"). Best learning rates are vertices of fitted parabolas (neuralop_mup.tuning.optimum) and their intervals 95 %
over seeds; those of a line follow from its points' by error propagation.

Widths 16 and 128 are the records of benchmarks/lr_transfer.py (at width 16, the base, μP is SP). Widths 8 and 32 are trained
here with the same settings, and kept in benchmarks/results/extrapolation.jsonl. Writes extrapolation.md and
extrapolation.png beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch

from lr_transfer import HERE, MOVES, RESULTS, SPACE, plan, size_of
from neuralop_mup.plots import style
from neuralop_mup.problems import get_problem
from neuralop_mup.tuning.engines import LocalEngine
from neuralop_mup.tuning.fno import FNOs
from neuralop_mup.tuning.looking import operations
from neuralop_mup.tuning.optimum import Optimum, find_optimum, student
from neuralop_mup.tuning.runner import run

SMALL, BASE, TARGET = (8, 16, 32), 16, 128
SEEDS = (0, 1, 2)
PROBLEMS = {"Burgers": "burgers-width"}  # moves of lr_transfer.py that are of width alone
OWN = RESULTS / "extrapolation.jsonl"
Curve = dict[float, list[float]]  # learning rate → loss of each seed

# ------------------------------------------------------------------------------------------------------------ the runs


def records(move: str) -> dict[tuple[int, str], Curve]:
    """Every curve there is: (width, rule) → losses over the grid; a run that failed is infinite."""
    curves: dict[tuple[int, str], Curve] = {}
    for path in (RESULTS / f"lr_transfer_{move}.jsonl", OWN):
        for line in path.read_text().splitlines() if path.exists() else ():
            r = json.loads(line)
            if r.get("move", move) != move or r.get("stage") == "target":  # those are in the grid, too
                continue
            lr, width = r["params"]["lr"], {"proxy": BASE, "target": TARGET}.get(r["size"], r["size"])
            loss = math.inf if r["loss"] is None else r["loss"]
            curves.setdefault((width, r["rule"]), {}).setdefault(lr, []).append(loss)
    curves[BASE, "standard"] = curves[BASE, "none"]
    return curves


def train_missing(move: str) -> None:
    """Small widths that the records do not have, under SP, which at a base is every rule bit for bit."""
    _, (_, modes), target, _ = MOVES[move]
    for width in SMALL:
        if (width, "standard") in records(move):
            continue
        folder = HERE / "runs" / f"{move}-{width}"
        planned = plan(move, (width, modes), target, ("none",), len(SEEDS), folder, verify=False)
        small = replace(planned.study, sizes={"small": planned.study.sizes["proxy"]}, keeps=False)
        results = run(small, planned.training, folder=folder, engine=LocalEngine(2))
        with OWN.open("a") as file:
            for r in results.records:
                told = {"move": move, "size": width, "rule": "standard", "params": r["params"], "seed": r["seed"]}
                file.write(json.dumps({**told, "loss": r["loss"], "error": r["error"]}) + "\n")


# -------------------------------------------------------------------------------------------------------- the two ways


@dataclass(frozen=True)
class Choice:
    """A learning rate for the target: log2, its standard error over seeds, and the points that it is made of."""

    log: float
    error: float
    weights: Mapping[int, float]

    def at(self, side: int) -> float:
        """The learning rate (0), or the lower (-1) or upper (1) end of its 95 % interval."""
        return 2.0 ** (self.log + side * student(len(SEEDS) - 1) * self.error)


def line_weights(widths: Sequence[int], target: float) -> dict[int, float]:
    """What a least-squares line at ``target`` makes of each point's value.

    With x = log width, n points and their mean m: w = 1/n + (X − m)(x − m) / Σ (x − m)². For 8, 16, 32 and 128, in units
    of log 2, x − m is −1, 0, 1 and X − m is 3: the weights are 1/3 − 3/2, 1/3 and 1/3 + 3/2.
    """
    xs = [math.log2(width) for width in widths]
    mean, reach = fmean(xs), math.log2(target) - fmean(xs)
    squares = sum((x - mean) ** 2 for x in xs)
    return {width: 1 / len(xs) + reach * (x - mean) / squares for width, x in zip(widths, xs, strict=True)}


def choose(optima: Mapping[int, Optimum], weights: Mapping[int, float]) -> Choice:
    """The weighted sum of log learning rates, and its error from theirs, which are independent."""
    log = sum(w * math.log2(optima[width].value) for width, w in weights.items())
    return Choice(log, math.hypot(*(w * optima[width].error for width, w in weights.items())), weights)


def loss_at(curve: Curve, lr: float) -> float:
    """Mean loss at a learning rate between those of the grid: its logarithm is interpolated in log lr."""
    grid = sorted(curve)
    if not grid[0] <= lr <= grid[-1]:
        return math.inf
    low = max(x for x in grid if x <= lr)
    high = min(x for x in grid if x >= lr)
    share = 0.0 if low == high else math.log(lr / low) / math.log(high / low)
    return math.exp((1 - share) * math.log(fmean(curve[low])) + share * math.log(fmean(curve[high])))


def cost(move: str, widths: Sequence[int]) -> float:
    """Operations of a sweep at each width, in trainings of the target."""
    runs = len(SPACE["lr"]) * len(SEEDS)
    (name, arguments), (_, modes), *_ = MOVES[move]
    problem = get_problem(name, **arguments)
    build = FNOs(problem.in_channels, problem.out_channels, problem.n_dim)
    of = {w: operations(build(**size_of((w, modes))), math.prod(problem.grid_shape)) for w in (*widths, TARGET)}
    return runs * sum(of[w] for w in widths) / of[TARGET]


WAYS = {
    "extrapolated, SP": ("standard", SMALL),
    "carried, μP": ("none", (BASE,)),
    "carried, SP": ("standard", (BASE,)),
}
DRAWN = ("extrapolated, SP", "carried, μP")


def choices(curves: Mapping[tuple[int, str], Curve]) -> dict[str, tuple[Choice, dict[int, Optimum]]]:
    """What each way takes, and the best learning rates at every width under its parametrization."""
    chosen = {}
    for name, (rule, widths) in WAYS.items():
        optima = {w: find_optimum(curves[w, rule]) for w in (*widths, TARGET)}
        weights = line_weights(widths, TARGET) if len(widths) > 1 else {widths[0]: 1.0}
        chosen[name] = choose(optima, weights), optima
    return chosen


# ------------------------------------------------------------------------------------------------------------- the page


def report() -> str:
    weights = line_weights(SMALL, TARGET)
    lines = [
        "# Extrapolated against carried",
        "",
        f"`python benchmarks/extrapolation.py`: Adam, {len(SEEDS)} seeds, {len(SPACE['lr'])} learning rates, validation "
        f"error. Widths {', '.join(map(str, SMALL))} extrapolated under SP, width {BASE} carried under μP, to {TARGET}. A "
        f"line gives its points the weights {', '.join(f'{w:+.2f}' for w in weights.values())}: their errors are multiplied "
        f"by {math.hypot(*weights.values()):.1f}. Cost is that of the small models, in trainings of the target.",
        "",
        "| problem | way | lr for the target | best lr there | off by (factors of 2) | error there | best error there | "
        "regret | at the interval's worse end | cost |",
        "| --- |" + " --- |" * 9,
    ]
    for problem, move in PROBLEMS.items():
        curves = records(move)
        for name, (choice, optima) in choices(curves).items():
            rule, widths = WAYS[name]
            curve, best = curves[TARGET, rule], optima[TARGET]
            here, lowest = loss_at(curve, choice.at(0)), min(fmean(losses) for losses in curve.values())
            worst = max(loss_at(curve, choice.at(-1)), loss_at(curve, choice.at(1)))
            lines.append(
                f"| {problem} | {name} | {choice.at(0):.4f} [{choice.at(-1):.4f}, {choice.at(1):.4f}] | "
                f"{best.value:.4f} [{best.low:.4f}, {best.high:.4f}] | {choice.log - math.log2(best.value):+.2f} | "
                f"{here:.4f} | {lowest:.4f} | {100 * (here / lowest - 1):.1f} % | "
                f"{'beyond the grid' if worst == math.inf else f'{worst:.4f}'} | {cost(move, widths):.2f} |"
            )
    lines += ["", "Best learning rate at each width [95 % interval over seeds]:", ""]
    lines += ["| problem | | " + " | ".join(f"width {w}" for w in (*SMALL, TARGET)) + " |", "| --- |" + " --- |" * 5]
    for problem, move in PROBLEMS.items():
        chosen = choices(records(move))
        for name in DRAWN:
            optima = chosen[name][1]
            found = [optima.get(w) for w in (*SMALL, TARGET)]
            cells = ["–" if o is None else f"{o.value:.4f} [{o.low:.4f}, {o.high:.4f}]" for o in found]
            lines.append(f"| {problem} | {name.split(', ')[1]} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(path: Path) -> None:
    """For each problem: best learning rates over width with what follows from the small ones, and the target's errors."""
    figure, grid = style.new_figure(9.2, 3.6 * len(PROBLEMS), len(PROBLEMS), 2, squeeze=False)
    figure.subplots_adjust(wspace=0.25, bottom=0.16)
    for (problem, move), (over_width, at_target) in zip(PROBLEMS.items(), grid, strict=True):
        curves = records(move)
        chosen = choices(curves)
        for i, name in enumerate(DRAWN):
            (choice, optima), (rule, widths) = chosen[name], WAYS[name]
            colour, marker = style.colour_of(rule), style.marker_of(rule)
            shift = 2 ** (0.05 * (2 * i - 1))  # so that bars of one width stand side by side
            for width, best in optima.items():
                used = width in widths
                over_width.plot([width * shift] * 2, [best.low, best.high], color=colour, linewidth=1.2)
                face = colour if used else "white"
                over_width.plot(
                    width * shift, best.value, marker, color=colour, markerfacecolor=face, markersize=6, zorder=5
                )
            ends = [min(widths), TARGET]
            values = [choose(optima, line_weights(widths, w) if len(widths) > 1 else choice.weights) for w in ends]
            over_width.plot(
                ends, [v.at(0) for v in values], color=colour, linewidth=1.4, linestyle=style.DASHES[0], label=name
            )
            every = [w for w in (8, 11.3, 16, 22.6, 32, 45, 64, 90, 128) if w >= min(widths)]
            band = [choose(optima, line_weights(widths, w) if len(widths) > 1 else choice.weights) for w in every]
            over_width.fill_between(
                every, [v.at(-1) for v in band], [v.at(1) for v in band], color=colour, alpha=0.15, linewidth=0
            )
            curve = curves[TARGET, rule]
            lrs = [lr for lr in sorted(curve) if math.isfinite(fmean(curve[lr]))]
            at_target.plot(lrs, [fmean(curve[lr]) for lr in lrs], marker=marker, markersize=4, linewidth=1.4, color=colour)
            at_target.axvspan(choice.at(-1), choice.at(1), color=colour, alpha=0.15, linewidth=0)
            at_target.plot(choice.at(0), loss_at(curve, choice.at(0)), "*", color=colour, markersize=14, zorder=6)
        lowest = min(fmean(losses) for rule, _ in WAYS.values() for losses in curves[TARGET, rule].values())
        for axes in (over_width, at_target):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
        over_width.set_yscale("log", base=2)
        over_width.set_ylim(SPACE["lr"][0] / 2, SPACE["lr"][-1])
        at_target.set_ylim(lowest / 1.2, lowest * 20)
        at_target.set_xlim(SPACE["lr"][0] / 1.2, SPACE["lr"][-1] * 1.2)
        style.value_axis(over_width)
        style.value_axis(at_target)
        over_width.set_yticks(SPACE["lr"], [f"{lr:g}" for lr in SPACE["lr"]])
        style.ticks_at(over_width, [*SMALL, 64, TARGET])
        style.ticks_at(at_target, SPACE["lr"])
        over_width.set_title(f"{problem}: best learning rate", fontsize=style.TEXT + 1, loc="left")
        at_target.set_title(f"{problem}: error at width {TARGET}", fontsize=style.TEXT + 1, loc="left")
        over_width.set_xlabel("width", fontsize=style.TEXT)
        at_target.set_xlabel("learning rate", fontsize=style.TEXT)
    grid[0][0].legend(frameon=False, fontsize=style.SMALL, loc="lower left")
    style.key_line(
        figure,
        [
            "filled: what each way uses",
            "hollow: the best at the target",
            "bars and bands: 95 % over seeds",
            "★ the learning rate it takes for the target",
        ],
    )
    style.save(figure, path)


def main() -> None:
    torch.set_num_threads(1)
    for move in PROBLEMS.values():
        train_missing(move)
    text = report()
    print(text)
    (RESULTS / "extrapolation.md").write_text(text)
    draw(RESULTS / "extrapolation.png")


if __name__ == "__main__":
    main()
