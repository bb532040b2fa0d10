"""Learned activations on the suite: AdaGELU and the leaky form against GELU, with Adam and with MuSOAP.

    python benchmarks/learned_activations.py            # 8 problems × 3 activations × 2 optimizers × 3 seeds, 1,000 steps
    python benchmarks/learned_activations.py --tiny     # a few steps on one problem, nothing written

The learning rate of each problem and optimizer is tuned with GELU (seed 0) and kept. Errors are relative L2 on held-out
samples. A run is a line in benchmarks/results/learned_activations.jsonl: interrupted, the same command goes on. Writes
benchmarks/results/learned_activations.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from statistics import fmean, stdev

import torch
from learned_runs import RESULTS, Runs, task
from suite_runs import CONTENDERS, PROBLEMS

ACTIVATIONS = {"GELU": None, "AdaGELU": "AdaGELU", "LeakyGELU": "LeakyGELU"}
OPTIMIZERS = {name: CONTENDERS[name] for name in ("MuAdam", "MuSOAP")}


def report(runs: Runs, problems: list[str], seeds: tuple[int, ...]) -> Iterator[str]:
    yield "# Learned activations"
    yield ""
    yield (
        f"`python benchmarks/learned_activations.py`: 1,000 steps, test error (relative L2), mean ± standard deviation of "
        f"{len(seeds)} seeds; learning rates tuned with GELU. The last column is the geometric mean of ratios to GELU."
    )
    yield ""
    yield "| optimizer, activation | " + " | ".join(problems) + " | over GELU | lower on |"
    yield "| --- |" + " --- |" * (len(problems) + 2)
    for name, chosen in OPTIMIZERS.items():
        errors: dict[str, list[list[float]]] = {activation: [] for activation in ACTIVATIONS}
        for problem in problems:
            like = task(problem, optimizer=chosen["optimizer"], kwargs=chosen.get("kwargs", {}), init=chosen["init"])
            grid = [{**like, "lr": lr} for lr in chosen["lrs"]]
            losses = [r["loss"] for r in runs.do(grid)]
            best = grid[losses.index(min(losses))]
            for activation, given in ACTIVATIONS.items():
                results = runs.do([{**best, "activation": given, "seed": seed} for seed in seeds])
                errors[activation].append([r["test"] for r in results])
        for activation, own in errors.items():
            cells = [f"{fmean(e):.4f}" + (f" ± {stdev(e):.4f}" if len(e) > 1 else "") for e in own]
            ratios = [fmean(e) / fmean(g) for e, g in zip(own, errors["GELU"], strict=True)]
            mean = math.exp(fmean(math.log(r) for r in ratios))
            lower = f"{sum(r < 1 for r in ratios)} of {len(ratios)}"
            yield f"| {name}, {activation} | " + " | ".join(cells) + f" | {mean:.3f} | {lower} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--tiny", action="store_true", help="12 steps a run, one problem, one seed, nothing written")
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = Runs(None if args.tiny else RESULTS / "learned_activations.jsonl", args.workers, 12 if args.tiny else None)
    text = "\n".join(report(runs, list(PROBLEMS)[: 1 if args.tiny else None], (0,) if args.tiny else (0, 1, 2))) + "\n"
    print(text)
    if not args.tiny:
        (RESULTS / "learned_activations.md").write_text(text)


if __name__ == "__main__":
    main()
