"""What MuMuon's approximations cost in error: modes in turn, and the polynomials that stand for a decomposition.

    python benchmarks/muon_choices.py

Validation error (relative L2) after 8 epochs on Burgers (width 32, K = 16) and Darcy (width 16, K = 8, 32²), at three
learning rates. First, period 1, 2, 4 and 8; then, with period 4, exact singular value decompositions, the polynomials of
neuralop_mup.muon, Jordan's quintic five times, and a decomposition with singular values of 1.1 − 0.4 σ / bound instead of 1:
less for dominant directions, as Jordan's gives. 5 seeds, μP with rule none, about 15 core-minutes.
Writes benchmarks/results/muon_choices.md.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tqdm import tqdm

from neuralop_mup.errors import MupError
from neuralop_mup.muon import optimizer as muon
from neuralop_mup.muon.newton_schulz import Step, orthogonalize
from neuralop_mup.training import train_run
from neuralop_mup.tuning.records import mean_and_std

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
JORDAN = (Step((), (3.4445, -4.7750, 2.0315)),) * 5


def exact(x: torch.Tensor, *, out: torch.Tensor, scratch: Any = None, damping: float = 0.0) -> torch.Tensor:
    """The polar factor by a decomposition, in double precision; with damping, 1.1 − damping · σ / bound for its ones."""
    u, s, vh = torch.linalg.svd(x.to(torch.complex128 if x.is_complex() else torch.float64), full_matrices=False)
    values = (s > 1e-12 * s[:, :1]).double()
    if damping:
        values *= 1.1 - damping * s / s.pow(8).sum(1, keepdim=True).pow(0.125).clamp(min=1e-300)
    return out.copy_((u * values[:, None, :]) @ vh)


def jordan(x: torch.Tensor, *, out: torch.Tensor, scratch: Any = None) -> torch.Tensor:
    """Jordan's polynomial, five times."""
    return orthogonalize(x, JORDAN, out=out, scratch=scratch)


POLAR: dict[str, Callable] = {
    "exact decomposition": exact,
    "our two polynomials": orthogonalize,
    "Jordan's, five times": jordan,
    "exact, dominant directions damped": functools.partial(exact, damping=0.4),
}


def error(case: dict[str, Any], lr: float, period: int, seed: int, polar: Callable) -> float:
    """Validation error of one run; infinite if it diverges."""
    config = {
        "problem": case["problem"],
        "problem_args": case["problem_args"],
        "model": {"hidden_channels": case["width"], "n_modes": tuple(2 * k for k in case["k"])},
        "base": {"hidden_channels": 16},
        "rule": "none",
        "optimizer": "muon",
        "muon": {"period": period},
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
    bar = tqdm(total=len(CASES) * len(seeds) * 3 * (len(PERIODS) + len(POLAR)), unit="run")

    def cell(case: dict[str, Any], lr: float, period: int, polar: Callable = orthogonalize) -> str:
        errors = []
        for seed in seeds:
            errors.append(error(case, lr, period, seed, polar))
            bar.update()
        return "{:.4f} ± {:.4f}".format(*mean_and_std(errors))

    lines = ["# What MuMuon's approximations cost in error", "", f"`python benchmarks/muon_choices.py`; {len(seeds)} seeds."]
    for name, case in CASES.items():
        lines += ["", f"## {name}", "", "| period | " + " | ".join(f"lr {lr:g}" for lr in case["lrs"]) + " |"]
        lines.append("| --- |" + " --- |" * len(case["lrs"]))
        lines += [f"| {p} | " + " | ".join(cell(case, lr, p) for lr in case["lrs"]) + " |" for p in PERIODS]
        lines += ["", "| polar factor by | " + " | ".join(f"lr {lr:g}" for lr in case["lrs"]) + " |"]
        lines.append("| --- |" + " --- |" * len(case["lrs"]))
        for how, polar in POLAR.items():
            lines.append(f"| {how} | " + " | ".join(cell(case, lr, 4, polar) for lr in case["lrs"]) + " |")
    text = "\n".join(lines) + "\n"
    (RESULTS / "muon_choices.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
