"""Does the best learning rate move where a proxy's modes do not resolve the data? Energy kept by K against drift.

    python benchmarks/proxy_energy.py                       # hours; a run is a line, the same command goes on
    python benchmarks/proxy_energy.py --seeds 1 --lrs 4e-3:3.2e-2   # two hours on one core
    python benchmarks/proxy_energy.py --dry-run             # tables of what is trained, and how many runs there would be
    python benchmarks/proxy_energy.py --problems burgers --steps 20 --seeds 1 --lrs 2e-3:1.6e-2

On each problem of benchmarks/suite_runs.py FNOs of width 16 are tuned at several K, the same on every axis, up to what the
grid allows, by MuAdam with the suite's small kernels; the largest K stands for the target. Data, training and error are the
suite's. Learning rates go in factors of √2, so that a drift of that size shows. The best one is fitted between grid points,
with a 95 % interval over seeds (neuralop_mup/tuning/optimum.py). Writes benchmarks/results/proxy_energy.jsonl and .md,
and docs/proxy_energy.png.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from matplotlib.ticker import FixedLocator

import suite_runs as suite
from neuralop_mup.plots.style import MARKERS, PALETTE, bare, key_line, label_lines, new_figure, save
from neuralop_mup.problems.mode_energy import ENOUGH, ModeEnergy, mode_energy
from neuralop_mup.tuning.optimum import Interval, Optimum, drift_between, find_optimum

RESULTS = Path(__file__).parent / "results"
WIDTH, STEPS, SEEDS = 16, 1000, 3
MODES = {1: (2, 4, 6, 8, 12, 24), 2: (1, 2, 3, 5, 8), 3: (1, 2, 4)}
BANDS = (0.0, 0.9, 0.99, 0.995, ENOUGH, 1.01)  # of the energy kept


def modes_of(problem: str) -> list[tuple[int, ...]]:
    """K on each axis, ascending; where an axis has few points it has all that they allow."""
    shape = suite.get_problem(problem, **suite.PROBLEMS[problem][0]).grid_shape
    ks = [tuple(min(k, n // 2 - 1) for n in shape) for k in MODES[len(shape)]]
    return list(dict.fromkeys(ks))


def grid(ends: str) -> list[float]:
    low, high = map(float, ends.split(":"))
    values = [low]
    while values[-1] * 2**0.5 <= high * 1.001:
        values.append(values[-1] * 2**0.5)
    return [float(f"{value:.4g}") for value in values]


def runs(problem: str, lrs: list[float], steps: int, seeds: int) -> dict[tuple[int, ...], list[dict[str, Any]]]:
    """Tasks of the suite by K."""
    more = {"steps": steps, "width": WIDTH}
    return {
        modes: [suite.task(problem, "MuAdam", lr, seed=seed, modes=modes, **more) for lr in lrs for seed in range(seeds)]
        for modes in modes_of(problem)
    }


@dataclass(frozen=True)
class Line:
    """One K of one problem: shares of energy on the axis that keeps least, and what was found by training."""

    problem: str
    modes: tuple[int, ...]
    targets: float
    inputs: float
    error: float
    found: Optimum | None
    drift: Interval | None  # log2 over the largest K

    def cells(self) -> list[str]:
        found, drift = self.found, self.drift
        if found is None:
            best = "–"
        elif found.value is None:
            best = f"{found.low:.2g} to {found.high:.2g}, edge"
        else:
            best = f"{found.value:.2g}" + ("" if found.low is None else f" ({found.low:.2g} to {found.high:.2g})")
        moved = "–" if drift is None else f"×{2**drift.value:.2f}"
        if drift is not None and drift.low is not None:
            moved += f" ({2**drift.low:.2f} to {2**drift.high:.2f})" + (", level" if drift.level else "")
        kept, enough = f"{100 * self.targets:.4g} % / {100 * self.inputs:.4g} %", self.targets >= ENOUGH
        return [
            self.problem,
            "×".join(map(str, self.modes)),
            kept,
            "yes" if enough else "no",
            f"{self.error:.4f}",
            best,
            moved,
        ]


def lines_of(records: suite.Records, problem: str, tasks: dict, energy: ModeEnergy) -> list[Line]:
    """What is known of each K, from the runs that are done."""
    optima, errors = {}, {}
    for modes, of_size in tasks.items():
        losses: dict[float, list[float]] = {}
        for t in of_size:
            if (loss := records.loss(t, (t["seed"],))) is not None:
                losses.setdefault(t["lr"], []).append(loss)
        optima[modes] = find_optimum(losses)
        errors[modes] = min((loss for own in losses.values() for loss in own), default=math.nan)
    target = optima[list(tasks)[-1]]
    shares = {modes: [min(energy.kept([2 * k for k in modes], of)) for of in ("targets", "inputs")] for modes in tasks}
    return [
        Line(problem, modes, *shares[modes], errors[modes], found, drift_between(target, found))
        for modes, found in optima.items()
    ]


def bands(lines: list[Line]) -> list[list[str]]:
    """Drifts of all problems together, by the energy kept; the largest K of each, from which it is counted, is left out."""
    last = {line.problem: line.modes for line in lines}
    rows = []
    for low, high in pairwise(BANDS):
        own = [
            line.drift.value
            for line in lines
            if line.drift is not None and line.modes != last[line.problem] and low <= line.targets < high
        ]
        if own:
            name = f"{100 * low:g} to {100 * min(high, 1):g} %"
            mean, least, most = (2**x for x in (statistics.fmean(own), min(own), max(own)))
            rows.append([name, str(len(own)), f"×{mean:.2f}", f"×{least:.2f} to ×{most:.2f}"])
    return rows


def draw(lines: list[Line], path: Path) -> None:
    """Factor to the largest K's best learning rate against the share of energy that is lost, a line for each problem."""
    figure, ax = new_figure(6.4, 3.8)
    figure.subplots_adjust(left=0.11, right=0.74, bottom=0.2, top=0.95)
    ends = []
    for i, problem in enumerate(dict.fromkeys(line.problem for line in lines)):
        own = [line for line in lines if line.problem == problem and line.drift is not None]
        if own:
            lost, factor = [max(1 - line.targets, 2e-5) for line in own], [2**line.drift.value for line in own]
            ax.plot(lost, factor, color=PALETTE[i], marker=MARKERS[i], markersize=5, linewidth=1.2)
            ends.append((lost[0], factor[0], problem, PALETTE[i]))
    ax.axvline(1 - ENOUGH, color="0.6", linewidth=1, linestyle=(0, (4, 3)))
    ax.axhline(1, color="0.85", linewidth=1, zorder=0)
    ax.set(xscale="log", yscale="log", ylabel="best learning rate over that of the largest K")
    ax.set_xlabel("share of the targets' energy that the proxy's modes lose")
    ax.set_xlim(1.5e-5, 1)
    ax.xaxis.set_major_locator(FixedLocator([1e-4, 1e-3, 1e-2, 1e-1]))
    ax.xaxis.set_major_formatter(lambda x, _: f"{100 * x:g} %")
    ax.yaxis.set_major_locator(FixedLocator([0.7, 1, 1.4, 2, 2.8]))
    ax.yaxis.set_major_formatter(lambda y, _: f"× {y:g}")
    ax.minorticks_off()
    bare(ax)
    figure.canvas.draw()
    label_lines(ax, ends)
    key_line(figure, ["dashed: the threshold below which tune and transfer warn"])
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="*", choices=list(suite.PROBLEMS), default=list(suite.PROBLEMS))
    parser.add_argument("--lrs", default="2e-3:6.4e-2", help="LOW:HIGH, in factors of √2")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--records", type=Path, default=RESULTS / "proxy_energy.jsonl")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    records = suite.Records(args.records)
    tasks = {problem: runs(problem, grid(args.lrs), args.steps, args.seeds) for problem in args.problems}
    every = [t for of_problem in tasks.values() for of_size in of_problem.values() for t in of_size]
    if not args.dry_run:
        suite.run(records, lambda _: every, args.workers)
    head = ["problem", "K", "least energy kept on an axis, targets / inputs", f"≥ {100 * ENOUGH:g} %", "lowest error"]
    head += ["best lr (95 %)", "over that of the largest K"]
    lines = [
        "# Energy kept by a proxy's modes against drift",
        "",
        "`python benchmarks/proxy_energy.py`. " + __doc__.split("\n\n")[2],
    ]
    lines += ["", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    found = []
    for problem, of_problem in tasks.items():
        found += lines_of(records, problem, of_problem, mode_energy(*suite.data_of(problem)[1].train))
    lines += ["| " + " | ".join(line.cells()) + " |" for line in found]
    lines += ["", "Over problems: the best learning rate over that of the largest K.", ""]
    lines += ["| energy kept | sizes | geometric mean | range |", "|" + " --- |" * 4]
    lines += ["| " + " | ".join(row) + " |" for row in bands(found)]
    print("\n".join(lines), flush=True)
    print(f"\n{sum(records.get(t) is not None for t in every)} of {len(every)} runs are done.")
    if args.records.parent == RESULTS:
        (RESULTS / "proxy_energy.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        draw(found, RESULTS.parents[1] / "docs" / "proxy_energy.png")


if __name__ == "__main__":
    main()
