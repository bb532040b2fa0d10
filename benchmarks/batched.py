"""Runs per second, trained as one program against one after another: ``python benchmarks/batched.py [--device cuda]``.

Pairs of steps are timed alternately in one process with one thread, and the medians of their ratios are told: a machine
that others use, too, then slows both alike. One process with one thread stands for each of a machine's cores, since the
engines "local" and "batched" both keep one such process a core. On a GPU, one after another in one process.
"""

import argparse
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

_KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32)}

#: name: problem, its arguments, FNO's arguments
PROXIES = {
    "1D, width 8, 8 modes": ("burgers", {"n_train": 40, "n_val": 8, "n_test": 8}, 8, (8,)),
    "1D, width 16, 8 modes": ("burgers", {"n_train": 40, "n_val": 8, "n_test": 8}, 16, (8,)),
    "1D, width 32, 16 modes": ("burgers", {"n_train": 40, "n_val": 8, "n_test": 8}, 32, (16,)),
    "2D, width 8, 4 x 4 modes": ("darcy", {"n_train": 40, "n_val": 8, "n_test": 8, "grid": 32}, 8, (4, 4)),
    "2D, width 16, 8 x 8 modes": ("darcy", {"n_train": 40, "n_val": 8, "n_test": 8, "grid": 32}, 16, (8, 8)),
    "2D, width 32, 12 x 12 modes": ("darcy", {"n_train": 40, "n_val": 8, "n_test": 8, "grid": 32}, 32, (12, 12)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--optimizers", default="adam", help="with commas")
    parser.add_argument("--runs", default="8,24")
    parser.add_argument("--proxies", default="", help="those whose name holds this")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--output", default="benchmarks/results/batched.jsonl")
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in _KEEP.items()):  # as the engine's workers have it; both ways
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **_KEEP, "OMP_NUM_THREADS": "1"})
    output = Path(options.output)
    known = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    for name in PROXIES:
        for optimizer in options.optimizers.split(","):
            for runs in map(int, options.runs.split(",")):
                key = {"proxy": name, "optimizer": optimizer, "runs": runs, "device": options.device}
                if options.proxies not in name or any(key.items() <= row.items() for row in known):
                    continue
                row = {**key, **measure(name, optimizer, runs, options)}
                print(row, flush=True)
                with output.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def measure(name: str, optimizer: str, runs: int, options: argparse.Namespace) -> dict:
    import torch

    from neuralop_mup.experiments.at_once import a_sample, needed, one_alone
    from neuralop_mup.experiments.program import Stack, loss_of, make_runs
    from neuralop_mup.experiments.together import ProblemRuns
    from neuralop_mup.experiments.training import quiet

    torch.set_num_threads(1)
    problem, arguments, width, modes = PROXIES[name]
    model = {"n_modes": modes, "hidden_channels": width}
    fixed = {"problem": problem, "problem_args": arguments, "model": model, "base": model, "optimizer": optimizer}
    fixed |= {"batch_size": 20, "device": options.device}
    configs = [{**fixed, "lr": 1e-3 * 1.1**i, "seed": i % 3} for i in range(runs)]
    with quiet():
        made = make_runs(ProblemRuns(), list(enumerate(configs)), {}, {})
        alone = make_runs(ProblemRuns(), list(enumerate(configs)), {}, {})
        for run in (made[0], alone[0]):
            run.job.processor.to(options.device).train()
        samples = [a_sample(run) for run in made]
        needs = needed(made[0].job.model, samples[0], loss_of(made[0].job))
        ones = [one_alone(run, sample) for run, sample in zip(alone, samples, strict=True)]
        seconds: dict[int, list[float]] = {}
        ratios: dict[int, list[float]] = {}
        sizes = sorted({size for size in (2, 4, 8, 24, runs) if size <= runs})
        stacks = {}
        for size in sizes:
            others = make_runs(ProblemRuns(), list(enumerate(configs[:size])), {}, {})
            stacks[size] = partial(Stack(others).step, samples[:size])

        def timed(step) -> float:
            begun = time.perf_counter()
            step()
            if options.device != "cpu":
                torch.cuda.synchronize()
            return time.perf_counter() - begun

        for pair in range(options.pairs + 1):
            for size in sizes:
                one = sum(timed(step) for step in ones[: max(4, min(size, 8))]) / max(4, min(size, 8))
                many = timed(stacks[size]) / size
                if pair:  # the first ones warm up
                    ratios.setdefault(size, []).append(one / many)
                    seconds.setdefault(1, []).append(one)
                    seconds.setdefault(size, []).append(many)
    return {
        "ratio": round(median(ratios[runs]), 2),
        "ratios": {size: round(median(values), 2) for size, values in ratios.items()},
        "ms_a_step": {size: round(1e3 * median(values), 3) for size, values in seconds.items()},
        "MiB_a_run": round(needs / 2**20, 1),
    }


if __name__ == "__main__":
    main()
