"""What the audit of the rules found, tried: do its multipliers lower the error of a larger model?

    python benchmarks/learned_rates_leads.py          # 72 runs of 1,000 steps
    python benchmarks/learned_rates_leads.py --tiny   # a few steps each, one seed, nothing written

The audit (benchmarks/learned_rates.py) has slopes that are not flat: over width 16 → 128 the lifting's multiplier falls as
width^-0.40 and the biases' rises as width^+0.50; over depth 4 → 16 the readout's falls as 1/d and the lifting's as d^-0.43.
Here these powers are given as ``lr_mult`` to a model that is four times wider, or four times deeper. Each is trained at the
learning rate that is best at base and at half of it, so that a smaller rate for one role is not mistaken for a smaller one
for all. Burgers is what the audit was made on; the other problems are not.

A run is a line in benchmarks/results/learned_rates.jsonl: interrupted, the same command goes on. Writes
benchmarks/results/learned_rates_leads.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import fmean, stdev
from typing import Any

import torch
from learned_runs import RESULTS, Runs, of_seeds, task

RATIO = 4
WIDTH_LEADS = {
    "the rule": {},
    "lifting × r^-0.4": {"input": RATIO**-0.4},
    "biases × r^0.5": {"vector": RATIO**0.5},
    "both": {"input": RATIO**-0.4, "vector": RATIO**0.5},
}
DEPTH_LEADS = {
    "no rule": {},
    "readout × 1/r": {"readout": 1 / RATIO},
    "lifting × r^-0.43": {"input": RATIO**-0.43},
    "both": {"readout": 1 / RATIO, "input": RATIO**-0.43},
}
# What grows, the problem, its target, the learning rates (the first is best at base: benchmarks/results/suite.md), leads.
MOVES: tuple[tuple[str, str, dict[str, Any], tuple[float, float], dict[str, dict[str, float]]], ...] = (
    ("width 16 → 64", "burgers", {"width": 64}, (8e-3, 4e-3), WIDTH_LEADS),
    ("width 16 → 64", "korteweg-de-vries", {"width": 64}, (1.6e-2, 8e-3), WIDTH_LEADS),
    ("depth 4 → 16", "korteweg-de-vries", {"depth": 16}, (1.6e-2, 8e-3), DEPTH_LEADS),
)


def table(runs: Runs, seeds: tuple[int, ...]) -> Iterator[str]:
    yield "# What the audit of the rules found, tried"
    yield ""
    yield (
        f"`python benchmarks/learned_rates_leads.py`: MuAdam, 1,000 steps, test error (relative L2), {of_seeds(seeds)}, at "
        "the learning rate that is best at base and at half of it; r = 4 is the ratio of sizes. The last column is the "
        "better of both over the better of the first line."
    )
    for what, problem, target, lrs, leads in MOVES:
        yield f"\n## {problem}, {what}\n"
        yield "| lr × | " + " | ".join(f"lr {lr:g}" for lr in lrs) + " | over the first |"
        yield "| --- |" + " --- |" * (len(lrs) + 1)
        points = {(name, lr): task(problem, lr=lr, lr_mult=m, **target) for name, m in leads.items() for lr in lrs}
        runs.do([{**t, "seed": seed} for seed in seeds for t in points.values()])
        means: dict[str, float] = {}
        for name in leads:
            errors = [[r["test"] for r in runs.do([{**points[name, lr], "seed": seed} for seed in seeds])] for lr in lrs]
            cells = [f"{fmean(own):.4f}" + (f" ± {stdev(own):.4f}" if len(own) > 1 else "") for own in errors]
            means[name] = min(map(fmean, errors))
            yield f"| {name} | " + " | ".join(cells) + f" | {means[name] / next(iter(means.values())):.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--tiny", action="store_true", help="12 steps a run, one seed, nothing written")
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = Runs(None if args.tiny else RESULTS / "learned_rates.jsonl", args.workers, 12 if args.tiny else None)
    text = "\n".join(table(runs, tuple(range(1 if args.tiny else args.seeds)))) + "\n"
    print(text)
    if not args.tiny:
        (RESULTS / "learned_rates_leads.md").write_text(text)


if __name__ == "__main__":
    main()
