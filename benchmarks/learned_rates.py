"""Learned learning rates: one run instead of a search over masters, and an audit of the width, mode and depth rules.

    python benchmarks/learned_rates.py masters          # (a), about 80 runs of 1,000 steps
    python benchmarks/learned_rates.py audit            # (b), 31 runs of 600 steps
    python benchmarks/learned_rates.py masters --tiny   # a few steps each on one problem, nothing written

**masters**: at width 16, ``lr_mult`` is searched (the learning rate on a grid, then each role × 1/4 and × 4, then the best
of each role together) and learned (one run at the default learning rate, in the first half of its steps). Both are carried
to width 64, beside no masters at all. Errors are relative L2, cost is runs at the proxy.

**audit**: rates of every role are learned at a constant base learning rate, over width, K and depth, starting from μP and
from SP. Slopes are of log multiplier over log size; a rule that is right leaves a slope of zero. From SP, multipliers that
had settled would have the rule's own slope: where they do not move towards it, the audit cannot see that role. A role's
multiplier is the geometric mean over the last third of the steps.

A run is a line in benchmarks/results/learned_rates.jsonl: interrupted, the same command goes on. Writes
benchmarks/results/learned_rates_{masters,audit}.md, and the figure of the audit as .png.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import neuralop_mup as nm
from learned_runs import RESULTS, Runs, built, of_seeds, parametrization, task
from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.rules import ROLES
from neuralop_mup.plots import style
from suite_runs import PROBLEMS

# ------------------------------------------------------------------------------------------- (a) instead of a search

# The default hyper_lr was chosen on Burgers, so that Burgers would be no evidence.
MASTERS_PROBLEMS = ("korteweg-de-vries", "gray-scott")
LRS, STEPS, PROXY, TARGET, DEFAULT_LR = (2e-3, 4e-3, 8e-3, 1.6e-2), 1000, 16, 64, 4e-3
FACTORS = (0.25, 4.0)
LEARNED = {"by": "role", "hyper_lr": 0.05, "bounds": [1 / 1024, 1024.0], "until": STEPS // 2}


def searched(runs: Runs, problem: str) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The best learning rate alone, with the multipliers of a coordinate-wise search at the proxy, and runs that it took."""
    made: list[dict[str, Any]] = []

    def best(tasks: list[dict[str, Any]]) -> dict[str, Any]:
        made.extend(t for t in tasks if t not in made)
        results = runs.do(tasks)
        return min(zip(results, tasks, strict=True), key=lambda pair: pair[0]["loss"])[1]

    start = best([task(problem, width=PROXY, steps=STEPS, lr=lr) for lr in LRS])
    mults: dict[str, float] = {}
    for role in ROLES:
        mults |= best([start, *({**start, "lr_mult": {role: factor}} for factor in FACTORS)])["lr_mult"]
    return start, best([start, {**start, "lr_mult": mults}]), len(made)


def learned(runs: Runs, problem: str) -> dict[str, Any]:
    """The default learning rate and the multipliers that one run learned."""
    run = task(problem, width=PROXY, steps=STEPS, lr=DEFAULT_LR, learned=LEARNED)
    return {**run, "learned": None, "lr_mult": runs.do([run])[0].get("mults", {})}


def masters(runs: Runs, problems: tuple[str, ...], seeds: tuple[int, ...]) -> Iterator[str]:
    yield "# One run instead of a search over masters"
    yield ""
    yield (
        f"`python benchmarks/learned_rates.py masters --problems {' '.join(problems)} --seeds {len(seeds)}`: MuAdam, width "
        f"{PROXY} → {TARGET}, {STEPS} steps, test error (relative L2), {of_seeds(seeds)}. Cost is runs at the proxy before "
        f"the final one. Nothing learned: lr {DEFAULT_LR:g}."
    )
    yield ""
    yield "| problem | masters | cost | error at the proxy | error at the target | lr and multipliers |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for problem in problems:
        plain = task(problem, width=PROXY, steps=STEPS, lr=DEFAULT_LR)
        lr_alone, by_search, search_cost = searched(runs, problem)
        ways = (
            ("none, default lr", plain, 0),
            ("none, lr searched", lr_alone, len(LRS)),
            ("searched", by_search, search_cost),
            ("learned, then fixed", learned(runs, problem), 1),
            ("learned during the run", {**plain, "learned": LEARNED}, 0),
        )
        runs.do([{**t, "width": width, "seed": seed} for seed in seeds for width in (PROXY, TARGET) for _, t, _ in ways])
        for name, t, cost in ways:
            cells = []
            for width in (PROXY, TARGET):
                errors = [r["test"] for r in runs.do([{**t, "width": width, "seed": seed} for seed in seeds])]
                cells.append(f"{fmean(errors):.4f}" + (f" ± {stdev(errors):.4f}" if len(errors) > 1 else ""))
            mults = ", ".join(f"{role} {mult:.2g}" for role, mult in t["lr_mult"].items())
            yield f"| {problem} | {name} | {cost} | {cells[0]} | {cells[1]} | {t['lr']:g}; {mults or '–'} |"


# ------------------------------------------------------------------------------------------------------- (b) the audit

AUDIT_PROBLEM, AUDIT_STEPS, AUDIT_LR = "burgers", 600, 4e-3
AUDIT_LEARNED = {"by": "role", "hyper_lr": 0.05, "bounds": [1 / 4096, 4096.0]}
WIDTHS, KS, DEPTHS = (16, 32, 64, 128), (4, 8, 16, 32), (4, 8, 16)


def audit_tasks(move: str, start: str, size: int, seed: int) -> dict[str, Any]:
    """One run of the audit; ``start`` is "standard" or a mode rule of μP."""
    changes: dict[str, Any] = {"rule": start, "init": 1.0}
    if move == "width":
        changes["width"] = size
    elif move == "K":
        changes |= {"width": 32, "modes": [size], "base_modes": [KS[0]]}
    else:
        changes |= {"width": 32, "depth": size}
    return task(AUDIT_PROBLEM, lr=AUDIT_LR, steps=AUDIT_STEPS, schedule=None, learned=AUDIT_LEARNED, seed=seed, **changes)


MOVES = {  # sizes, what is started from, and seeds
    "width": (WIDTHS, ("none", "standard"), (0, 1)),
    "depth": (DEPTHS, ("none",), (0,)),
    "K": (KS, ("none", "log-modes", "operator-norm"), (0,)),
}


def slope(xs: list[float], ys: list[float]) -> float:
    xs, ys = [math.log(x) for x in xs], [math.log(y) for y in ys]
    mx, my = fmean(xs), fmean(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum((x - mx) ** 2 for x in xs)


def rule_slopes(move: str, start: str, sizes: Sequence[int]) -> dict[str, float]:
    """Slope of the rule's own factor on the learning rate of each role; where SP is started from, of the width rule's."""
    factors: dict[str, list[float]] = {role: [] for role in ROLES}
    for size in sizes:
        t = audit_tasks(move, "none" if start == "standard" else start, size, 0)
        with torch.device("meta"):
            model = built(t, 1, 1)
        nm.parametrize(model, **parametrization(t), init=False)
        for role, own in factors.items():
            own.append(math.exp(fmean(math.log(row.lr_mult) for row in get_plan(model).rows if row.role == role)))
    return {role: slope(list(sizes), own) for role, own in factors.items()}


def audit(runs: Runs, moves: dict[str, tuple], figure: Path | None) -> Iterator[str]:
    yield "# An audit of the rules by learned learning rates"
    yield ""
    yield (
        f"`python benchmarks/learned_rates.py audit`: {AUDIT_PROBLEM}, Adam, base lr {AUDIT_LR:g} held constant, "
        f"{AUDIT_STEPS} steps. Learned multiplier on top of what is started from, and its slope (mean, smallest and largest "
        "of a seed) over size. A run that diverged is –."
    )
    runs.do(
        audit_tasks(move, start, size, seed)
        for seed in range(max(len(seeds) for _, _, seeds in moves.values()))
        for move, (sizes, starts, seeds) in moves.items()
        for start in starts
        for size in sizes
        if seed in seeds
    )
    slopes: dict[tuple[str, str], dict[str, list[float]]] = {}
    for move, (sizes, starts, seeds) in moves.items():
        for start in starts:
            name = "SP" if start == "standard" else f"μP, rule {start}"
            yield f"\n## Over {move}, from {name}, {len(seeds)} {'seeds' if len(seeds) > 1 else 'seed'}\n"
            yield "| role | " + " | ".join(f"{move} {size}" for size in sizes) + " | slope | the rule's, over SP |"
            yield "| --- |" + " --- |" * (len(sizes) + 2)
            rules = rule_slopes(move, start, sizes)
            results = {seed: runs.do([audit_tasks(move, start, size, seed) for size in sizes]) for seed in seeds}
            for role in ROLES:
                table = {seed: [r.get("mults", {}).get(role) for r in own] for seed, own in results.items()}
                cells = []
                for i in range(len(sizes)):
                    logs = [math.log(row[i]) for row in table.values() if row[i]]
                    cells.append(f"{math.exp(fmean(logs)):.2g}" if logs else "–")
                own = [slope(list(sizes), row) for row in table.values() if all(row)]
                slopes.setdefault((move, name), {})[role] = own, rules[role]
                text = f"{fmean(own):+.2f} [{min(own):+.2f}, {max(own):+.2f}]" if own else "–"
                yield f"| {role} | " + " | ".join(cells) + f" | {text} | {rules[role]:+.2f} |"
    if figure is not None:
        draw(slopes, figure)


def draw(slopes: dict[tuple[str, str], dict[str, tuple[list[float], float]]], path: Path) -> None:
    """A panel for each size and start: the learned slope of each role, and the rule's own."""
    rows = math.ceil(len(slopes) / 3)
    figure, grid = style.new_figure(8.6, 2.9 * rows, rows, 3, sharey=True, squeeze=False)
    figure.subplots_adjust(wspace=0.08, hspace=0.55)
    for axes in grid.flat[len(slopes) :]:
        axes.set_visible(False)
    for axes, ((move, name), roles) in zip(grid.flat, slopes.items(), strict=False):
        axes.axhline(0, color=style.GREY, linewidth=0.8)
        for i, (own, rule) in enumerate(roles.values()):
            axes.plot(i, rule, "_", color=style.PALETTE[1], markersize=20, markeredgewidth=2)
            axes.plot([i] * len(own), own, "o", color=style.PALETTE[0], markersize=5)
        axes.set_xticks(range(len(roles)), list(roles), rotation=30)
        axes.set_xlim(-0.6, len(roles) - 0.4)
        axes.set_title(f"over {move}, from {name}", fontsize=style.TEXT, loc="left")
        axes.grid(axis="y", color=style.FAINT, linewidth=0.7)
        axes.tick_params(labelsize=style.SMALL)
        style.bare(axes)
    for row in grid:
        row[0].set_ylabel("slope", fontsize=style.TEXT)
    style.key_line(
        figure, ["points: learned multipliers, one a seed", "bars: the rule's factor", "right: from μP 0, from SP the bar"]
    )
    style.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("masters", "audit"))
    parser.add_argument("--problems", nargs="*", choices=PROBLEMS, default=MASTERS_PROBLEMS, help="of masters")
    parser.add_argument("--seeds", type=int, default=3, help="of masters")
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--tiny", action="store_true", help="12 steps a run, one problem or two sizes, nothing written")
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = Runs(None if args.tiny else RESULTS / "learned_rates.jsonl", args.workers, 12 if args.tiny else None)
    seeds = tuple(range(1 if args.tiny else args.seeds))
    if args.stage == "masters":
        lines = masters(runs, args.problems[: 1 if args.tiny else None], seeds)
    else:
        moves = {k: (sizes[:2], starts, (0,)) for k, (sizes, starts, _) in MOVES.items()} if args.tiny else MOVES
        lines = audit(runs, moves, None if args.tiny else RESULTS / "learned_rates_audit.png")
    text = "\n".join(lines) + "\n"
    print(text)
    if not args.tiny:
        (RESULTS / f"learned_rates_{args.stage}.md").write_text(text)


if __name__ == "__main__":
    main()
