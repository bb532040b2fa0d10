"""What MuMuon's approximations cost in error: modes in turn, and the polynomials that stand for a decomposition.

    python benchmarks/muon_choices.py

Validation error (relative L2) after 8 epochs on Burgers (width 32, K = 16) and Darcy (width 16, K = 8, 32²), at three
learning rates. First, period 1, 2, 4 and 8; then, with period 4, exact singular value decompositions, the polynomials of
neuralop_mup.optim.muon, and Jordan's quintic five times, all of these without damping; then damping. 5 seeds, μP with rule
none, about 15 core-minutes.
Writes benchmarks/results/muon_choices.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tqdm import tqdm

from neuralop_mup.errors import MupError
from neuralop_mup.experiments.training import train_run
from neuralop_mup.optim.muon import optimizer as muon
from neuralop_mup.optim.muon.newton_schulz import Step, orthogonalize
from neuralop_mup.tuning.outcome import mean_and_std

RESULTS = Path(__file__).parent / "results"
CASES = {
    "Burgers": {"problem": "burgers", "problem_args": {"n_train": 400}, "lrs": (0.02, 0.04, 0.08), "width": 32, "k": (16,)},
    "Darcy": {
        "problem": "darcy",
        "problem_args": {"n_train": 200, "grid": 32},
        "lrs": (0.04, 0.08, 0.16),
        "width": 16,
        "k": (8, 8),
    },
}
PERIODS = (1, 2, 4, 8)
DAMPINGS = (0.35, 0.7, 0.9)
JORDAN = (Step((), (3.4445, -4.7750, 2.0315)),) * 5


def exact(x: torch.Tensor, *, out: torch.Tensor, **_: Any) -> torch.Tensor:
    """The polar factor by a decomposition, in double precision."""
    u, s, vh = torch.linalg.svd(x.to(torch.complex128 if x.is_complex() else torch.float64), full_matrices=False)
    return out.copy_((u * (s > 1e-12 * s[:, :1])[:, None, :]) @ vh)


def jordan(x: torch.Tensor, *, out: torch.Tensor, **_: Any) -> torch.Tensor:
    """Jordan's polynomial, five times."""
    return orthogonalize(x, JORDAN, out=out)


POLAR: dict[str, Callable] = {
    "exact decomposition": exact,
    "our two polynomials": orthogonalize,
    "Jordan's, five times": jordan,
}


def error(case: dict[str, Any], lr: float, seed: int, polar: Callable = orthogonalize, **muon_args: Any) -> float:
    """Validation error of one run; infinite if it diverges."""
    config = {
        "problem": case["problem"],
        "problem_args": case["problem_args"],
        "model": {"hidden_channels": case["width"], "n_modes": tuple(2 * k for k in case["k"])},
        "base": {"hidden_channels": 16},
        "rule": "none",
        "optimizer": "muon",
        "muon": muon_args,
        "lr": lr,
        "seed": seed,
    }
    with mock.patch.object(muon, "orthogonalize", polar):
        try:
            return train_run(config)["loss"]
        except MupError:
            return float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(args.seeds)
    tables: dict[str, dict[str, dict[str, Any]]] = {
        "period": {str(period): {"period": period} for period in PERIODS},
        "polar factor by": {how: {"polar": polar} for how, polar in POLAR.items()},
        "damping": {f"{damping:g}": {"damping": damping} for damping in DAMPINGS},
    }
    bar = tqdm(total=len(CASES) * 3 * len(seeds) * sum(map(len, tables.values())), unit="run")

    def cell(case: dict[str, Any], lr: float, how: dict[str, Any]) -> str:
        errors = []
        for seed in seeds:
            errors.append(error(case, lr, seed, **how))
            bar.update()
        return "{:.4f} ± {:.4f}".format(*mean_and_std(errors))

    lines = ["# What MuMuon's approximations cost in error", "", f"`python benchmarks/muon_choices.py`; {len(seeds)} seeds."]
    for name, case in CASES.items():
        lines += ["", f"## {name}"]
        for what, rows in tables.items():
            lines += ["", f"| {what} | " + " | ".join(f"lr {lr:g}" for lr in case["lrs"]) + " |"]
            lines.append("| --- |" + " --- |" * len(case["lrs"]))
            for label, how in rows.items():
                lines.append(f"| {label} | " + " | ".join(cell(case, lr, how) for lr in case["lrs"]) + " |")
    text = "\n".join(lines) + "\n"
    (RESULTS / "muon_choices.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
