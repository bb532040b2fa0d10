"""What the monitor costs: a measured step, an idle one, and both together at the default interval.

    python benchmarks/monitor.py

Steps of three equal models are timed in turn, in one run: without a monitor, with one that is idle, with one that
measures. An idle step asks one counter, which is far below what these clocks resolve (the column shows the noise), so
the amortised cost is (measured − plain) / (every · plain). Writes benchmarks/results/monitor.md.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import tempfile
import time
from pathlib import Path

import torch
from neuralop.models import FNO

import neuralop_mup as nm

RESULTS = Path(__file__).parent / "results"
EVERY = inspect.signature(nm.Monitor).parameters["every"].default
CASES = {
    "FNO-1D, width 64, 64 modes, 256 points, batch 16": ((64,), 64, 16, {}),
    "FNO-2D, width 32, 16 × 16 modes, 64² points, batch 8": ((16, 16), 32, 8, {}),
    "FNO-2D, width 64, 16 × 16 modes, 64² points, batch 8": ((16, 16), 64, 8, {}),
    "FNO-2D, width 64, 32 × 32 modes, 64² points, batch 8": ((32, 32), 64, 8, {}),
    "TFNO-2D (Tucker 0.1), width 64, 16 × 16 modes, 64² points, batch 8": (
        (16, 16),
        64,
        8,
        {"factorization": "tucker", "rank": 0.1},
    ),
    "FNO-3D, width 16, 8 × 8 × 8 modes, 16³ points, batch 4": ((8, 8, 8), 16, 4, {}),
}
GRID = {1: 256, 2: 64, 3: 16}


def measure(modes: tuple[int, ...], width: int, batch: int, kwargs: dict, rounds: int, folder: Path) -> list[list[float]]:
    """Seconds of a step for each round: plain, idle, measured."""
    x, y = torch.randn(2, batch, 1, *(GRID[len(modes)],) * len(modes))
    contenders = []
    for kind in ("plain", "idle", "measured"):
        torch.manual_seed(0)
        model = nm.parametrize(
            FNO(modes, 1, 1, width, **kwargs), base={"n_modes": (4,) * len(modes), "hidden_channels": width // 2}
        )
        optimizer = nm.MuAdam(model, lr=1e-3)
        if kind != "plain":
            nm.Monitor(model, optimizer, folder / f"{kind}.csv", every=1 if kind == "measured" else 10**9)
        contenders.append((model, optimizer))

    def step(model, optimizer) -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        return time.perf_counter() - start

    times = []
    for i in range(rounds + 2):
        order = [(i + k) % 3 for k in range(3)]  # so that a drift of the machine's speed cancels
        taken = {k: step(*contenders[k]) for k in order}
        if i >= 2:
            times.append([taken[k] for k in range(3)])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# Monitor",
        "",
        f"`python benchmarks/monitor.py --rounds {args.rounds}`: medians over rounds of steps taken in turn, one thread, "
        f"CSV, features on the current batch; every = {EVERY}.",
        "",
        "| model | step, ms | idle / plain | measured / plain | amortised |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, (modes, width, batch, kwargs) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            times = measure(modes, width, batch, kwargs, args.rounds, Path(folder))
        plain = statistics.median(t[0] for t in times)
        idle, measured = (statistics.median(t[k] / t[0] for t in times) for k in (1, 2))
        lines.append(f"| {name} | {1e3 * plain:.1f} | {idle:.3f} | {measured:.2f} | {100 * (measured - 1) / EVERY:+.2f} % |")
        print(lines[-1], flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "monitor.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
