"""Learned activations and skips on the suite: against GELU and plain skips, with Adam and with MuSOAP.

    python benchmarks/learned_activations.py            # 5 problems × 3 variants × 2 optimizers × 3 seeds, 1,000 steps
    python benchmarks/learned_activations.py --tiny     # a few steps on one problem, nothing written

GELU's runs, and the learning rate that was tuned with it (seed 0) and is kept, are those of benchmarks/results/suite.jsonl:
the same runs, which need not be made again. The problems are those of the suite on which no default was chosen. Errors are
relative L2 on held-out samples. A run is a line in benchmarks/results/learned_activations.jsonl: interrupted, the same
command goes on. Writes benchmarks/results/learned_activations.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from statistics import fmean, stdev
from typing import Any

import torch
from learned_runs import RESULTS, SKIPS, Runs, of_seeds, task
from suite_runs import CHOSEN_ON, PROBLEMS, Records
from suite_stages import tuned

ACTIVATIONS = ("AdaGELU", "LeakyGELU", SKIPS)
OPTIMIZERS = ("MuAdam", "MuSOAP, rms")


def report(runs: Runs, problems: list[str], seeds: tuple[int, ...]) -> Iterator[str]:
    yield "# Learned activations and skips"
    yield ""
    yield (
        f"`python benchmarks/learned_activations.py --problems {' '.join(problems)} --seeds {len(seeds)}`: 1,000 steps, "
        f"test error (relative L2), {of_seeds(seeds)}; GELU and learning rates tuned with it are the suite's. The last "
        "columns are the geometric mean of ratios to GELU, and on how many problems the error is lower."
    )
    yield ""
    yield "| optimizer, activation | " + " | ".join(problems) + " | over GELU | lower on |"
    yield "| --- |" + " --- |" * (len(problems) + 2)
    suite = Records(RESULTS / "suite.jsonl")
    best = {(name, problem): tuned(suite, problem, name) for name in OPTIMIZERS for problem in problems}

    def own(name: str, activation: str, problem: str) -> list[dict[str, Any]]:
        like = {key: best[name, problem][key] for key in ("optimizer", "kwargs", "init", "lr")}
        return [task(problem, **like, activation=activation, seed=seed) for seed in seeds]

    # Seed by seed and problem by problem, so that what is stopped early has compared something.
    runs.do(own(n, a, p)[i] for i in range(len(seeds)) for p in problems for n in OPTIMIZERS for a in ACTIVATIONS)
    for name in OPTIMIZERS:
        gelu = [[r["test"] for r in suite.results(best[name, problem], seeds)] for problem in problems]
        table = {"GELU": gelu}
        for activation in ACTIVATIONS:
            table[activation] = [[r["test"] for r in runs.do(own(name, activation, problem))] for problem in problems]
        for activation, errors in table.items():
            cells = [f"{fmean(e):.4f}" + (f" ± {stdev(e):.4f}" if len(e) > 1 else "") for e in errors]
            ratios = [fmean(e) / fmean(g) for e, g in zip(errors, gelu, strict=True)]
            mean = math.exp(fmean(math.log(r) for r in ratios))
            lower = f"{sum(r < 1 for r in ratios)} of {len(ratios)}"
            yield f"| {name}, {activation} | " + " | ".join(cells) + f" | {mean:.3f} | {lower} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problems", nargs="*", choices=PROBLEMS, default=[p for p in PROBLEMS if p not in CHOSEN_ON])
    parser.add_argument("--tiny", action="store_true", help="12 steps a run, one problem, one seed, nothing written")
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = Runs(None if args.tiny else RESULTS / "learned_activations.jsonl", args.workers, 12 if args.tiny else None)
    seeds = tuple(range(1 if args.tiny else args.seeds))
    text = "\n".join(report(runs, args.problems[: 1 if args.tiny else None], seeds)) + "\n"
    print(text)
    if not args.tiny:
        (RESULTS / "learned_activations.md").write_text(text)


if __name__ == "__main__":
    main()
