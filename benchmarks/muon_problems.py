"""MuMuon beside MuAdam where the loss is an equation, and in space-time.

    python benchmarks/muon_problems.py

Darcy and Burgers trained on data and equation (PINO), and Navier–Stokes vorticity over space and time. Each optimizer's
learning rate is tuned on five values in factors of 2 (seed 0, validation error), then 3 seeds are trained at the best; test
error (relative L2 against data). Other settings are the optimizers' defaults; μP with rule none. About 12 core-minutes;
interrupted, the same command resumes. Writes benchmarks/results/muon_problems.md.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

import torch

import neuralop_mup as nm
from neuralop_mup.experiments.training import train_run
from neuralop_mup.problems import get_problem
from neuralop_mup.tuning.outcome import mean_and_std

HERE = Path(__file__).parent
FLOW = {"n_train": 80, "n_val": 20, "n_test": 20, "grid": 16, "time_points": 16, "reynolds": 20.0, "time": 1.0}
# What fixes a run, and the largest learning rate of MuAdam's grid; MuMuon's lies four times higher.
CASES: dict[str, tuple[dict[str, Any], float]] = {
    "darcy-pino": (
        {
            "problem_args": {"n_train": 200, "n_val": 100, "n_test": 100, "grid": 32},
            "model": {"hidden_channels": 32, "n_modes": (16, 16)},
            "epochs": 8,
        },
        6.4e-2,
    ),
    "burgers-pino": (
        {
            "problem_args": {"n_train": 100, "n_val": 40, "grid": 64, "time_points": 32},
            "model": {"hidden_channels": 16, "n_modes": (16, 16)},
            "epochs": 12,
            "batch_size": 10,
        },
        6.4e-2,
    ),
    "navier-stokes": (
        {
            "problem_args": {**FLOW, "forcing_wavenumber": 2},
            "model": {"hidden_channels": 16, "n_modes": (4, 8, 8)},
            "epochs": 8,
            "batch_size": 4,
        },
        6.4e-2,
    ),
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "MuAdam": {"optimizer": "adam"},
    "MuMuon": {"optimizer": "muon"},
    "MuMuon, damping 0.7": {"optimizer": "muon", "muon": {"damping": 0.7}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# MuMuon beside MuAdam: equations and space-time",
        "",
        "`python benchmarks/muon_problems.py`; μP with rule none, learning rates in factors of 2 tuned by validation error "
        "(seed 0), test error (relative L2), mean ± std of 3 seeds. * marks the edge of the grid.",
        "",
        "| problem | width, n_modes | optimizer | best lr | test error | validation errors over the grid | time of a run |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, (settings, highest) in CASES.items():
        get_problem(name, **settings["problem_args"]).load()
        fixed = {"problem": name, "base": {"hidden_channels": 16}, "rule": "none", **settings}
        seconds: dict[str, float] = {}
        for label, optimizer in OPTIMIZERS.items():
            top = highest * (4 if optimizer["optimizer"] == "muon" else 1)
            run = functools.partial(
                nm.sweep,
                train_run,
                fixed={**fixed, **optimizer},
                n_workers=args.workers,
            )
            folder = HERE / "runs" / f"muon_problems_{name}_{label.replace(', ', '_').replace(' ', '_')}"
            tuning = run({"lr": nm.log2_grid(top / 16, top)}, folder=folder / "tuning")
            lr = tuning.best["lr"]
            final = run({"lr": [lr]}, seeds=(0, 1, 2), folder=folder / f"{lr:g}")
            tests = [record["metrics"]["test_loss"] for record in final.records]
            seconds[label] = sum(record["metrics"]["seconds"] for record in final.records)
            edge = "*" if lr in (min(tuning.study.space["lr"]), max(tuning.study.space["lr"])) else ""
            losses = [f"{row['loss']:.3f}" for row in sorted(tuning.points(), key=lambda row: row["params"]["lr"])]
            model = settings["model"]
            lines.append(
                f"| {name} | {model['hidden_channels']}, {model['n_modes']} | {label} | {lr:g}{edge} | "
                "{:.4f} ± {:.4f} | ".format(*mean_and_std(tests))
                + f"{' '.join(losses)} | {seconds[label] / seconds['MuAdam']:.2f} |"
            )
            print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    (HERE / "results" / "muon_problems.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
