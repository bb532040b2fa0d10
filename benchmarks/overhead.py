"""What the parametrization costs: a training step, and parametrizing a 0.9-billion-parameter FNO-3D.

    python benchmarks/overhead.py

Steps of a patched and an unpatched model are timed in turn, in one run; ratios and medians are printed, never absolute
promises. The large model is built in a fresh process each time (build alone, build + parametrize), peak memory by the
operating system's account. Writes benchmarks/results/overhead.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from neuralop.models import FNO

import neuralop_mup as nm

RESULTS = Path(__file__).parent / "results"


def step_ratio(width: int, pairs: int) -> tuple[float, float, float]:
    """Median, 5 % and 95 % quantile of patched/unpatched step time over ``pairs`` adjacent pairs."""
    torch.manual_seed(0)
    plain = FNO((16, 16), 1, 1, width)
    patched = nm.parametrize(FNO((16, 16), 1, 1, width), base={"hidden_channels": 16, "n_modes": (8, 8)})
    contenders = [
        (plain, torch.optim.Adam(plain.parameters(), lr=1e-3)),
        (patched, nm.MuAdam(patched, lr=1e-3)),
    ]
    x, y = torch.randn(8, 1, 32, 32), torch.randn(8, 1, 32, 32)

    def step(model, optimizer) -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        return time.perf_counter() - start

    ratios = []
    for i in range(pairs + 5):
        # Every second pair runs the other way round, so that a drift of the machine's speed cancels.
        times = {j: step(*contenders[j]) for j in ((0, 1) if i % 2 else (1, 0))}
        if i >= 5:
            ratios.append(times[1] / times[0])
    quantiles = statistics.quantiles(ratios, n=20)
    return statistics.median(ratios), quantiles[0], quantiles[-1]


def large(parametrized: bool) -> None:
    """Child process: build n_modes = (48, 48, 48), width 64, and print seconds and peak memory."""
    start = time.perf_counter()
    model = FNO((48, 48, 48), 1, 1, 64)
    built = time.perf_counter()
    peak_built = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if parametrized:
        nm.parametrize(model, base={"n_modes": (6, 6, 6), "hidden_channels": 32})
    done = time.perf_counter()
    print(
        json.dumps(
            {
                "n_params": sum(p.numel() * (2 if p.is_complex() else 1) for p in model.parameters()),
                "build_s": built - start,
                "parametrize_s": done - built,
                "peak_built_gib": peak_built / 2**20,
                "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--large", choices=["plain", "parametrized"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.large:
        return large(args.large == "parametrized")
    torch.set_num_threads(1)
    lines = ["# Overhead", "", "`python benchmarks/overhead.py`", "", "| measured | value |", "| --- | --- |"]
    for width in (32, 64):
        median, low, high = step_ratio(width, args.pairs)
        lines.append(
            f"| training step, patched / unpatched, FNO-2D width {width}, {args.pairs} pairs | median {median:.3f} "
            f"(5–95 %: {low:.3f}–{high:.3f}) |"
        )
        print(lines[-1], flush=True)
    runs = {
        kind: json.loads(
            subprocess.run([sys.executable, __file__, "--large", kind], capture_output=True, text=True, check=True).stdout
        )
        for kind in ("plain", "parametrized")
    }
    p = runs["parametrized"]
    lines += [
        f"| FNO-3D n_modes (48, 48, 48), width 64: real parameters | {p['n_params'] / 1e9:.3f} · 10⁹ |",
        f"| parametrize / constructing it, time | {p['parametrize_s'] / p['build_s']:.3f} "
        f"({p['parametrize_s']:.2f} s / {p['build_s']:.2f} s) |",
        f"| peak memory: constructed / constructed and parametrized | {runs['plain']['peak_gib']:.2f} GiB / "
        f"{p['peak_gib']:.2f} GiB |",
    ]
    print("\n".join(lines[-3:]))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "overhead.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
