"""Does the best learning rate move where a proxy's modes do not resolve the data? Energy kept by K against drift.

    python benchmarks/proxy_energy.py                       # hours; a run is a line, the same command goes on
    python benchmarks/proxy_energy.py --dry-run             # energy kept, and how many runs there would be
    python benchmarks/proxy_energy.py --problems burgers --steps 20 --seeds 1 --lrs 2e-3:1.6e-2

On each problem of benchmarks/suite_runs.py FNOs of width 16 are tuned at several K, the same on every axis, up to what the
grid allows, by MuAdam with the suite's small kernels; the largest K stands for the target. Data, training and error are the
suite's. Learning rates go in factors of √2, so that a drift of that size shows. The best one is fitted between grid points,
with a 95 % interval over seeds (neuralop_mup/tuning/optimum.py). Writes benchmarks/results/proxy_energy.jsonl and .md.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any

import suite_runs as suite
import torch

from neuralop_mup.problems.mode_energy import ENOUGH, ModeEnergy, mode_energy
from neuralop_mup.tuning.optimum import drift_between, find_optimum

RESULTS = Path(__file__).parent / "results"
WIDTH, STEPS, SEEDS = 16, 1000, 3
MODES = {1: (2, 3, 4, 6, 8, 12, 16, 24), 2: (1, 2, 3, 4, 6, 8), 3: (1, 2, 3, 4)}


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


def rows_of(records: suite.Records, problem: str, tasks: dict, energy: ModeEnergy) -> list[str]:
    optima = {}
    for modes, of_size in tasks.items():
        losses: dict[float, list[float]] = {}
        for t in of_size:
            losses.setdefault(t["lr"], []).append(records.loss(t, (t["seed"],)))
        optima[modes] = find_optimum(losses)
    target = optima[list(tasks)[-1]]
    rows = []
    for modes, found in optima.items():
        kept = " / ".join(f"{100 * min(energy.kept([2 * k for k in modes], of)):.4g} %" for of in ("targets", "inputs"))
        done = [loss for t in tasks[modes] if (loss := records.loss(t, (t["seed"],))) is not None]
        error = min(done, default=math.nan)
        drift = drift_between(target, found)
        if found is None:
            best = "–"
        elif found.value is None:
            best = f"{found.low:.2g} to {found.high:.2g}, edge"
        else:
            best = f"{found.value:.2g}" + ("" if found.low is None else f" ({found.low:.2g} to {found.high:.2g})")
        moved = "–" if drift is None else f"×{2**drift.value:.2f}"
        if drift is not None and drift.low is not None:
            moved += f" ({2**drift.low:.2f} to {2**drift.high:.2f})" + (", level" if drift.level else "")
        enough = "yes" if min(energy.kept([2 * k for k in modes])) >= ENOUGH else "no"
        k = "×".join(map(str, modes))
        rows.append(f"| {problem} | {k} | {kept} | {enough} | {error:.4f} | {best} | {moved} |")
    return rows


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
    for problem, of_problem in tasks.items():
        lines += rows_of(records, problem, of_problem, mode_energy(*suite.data_of(problem)[1].train))
    print("\n".join(lines), flush=True)
    print(f"\n{sum(records.get(t) is not None for t in every)} of {len(every)} runs are done.")
    if not args.dry_run and args.records.parent == RESULTS:
        (RESULTS / "proxy_energy.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
