"""What Muon costs: a training step (forward, backward, optimizer step) with MuMuon against one with MuAdam.

    python benchmarks/muon_step.py

One thread, width 64, batch 20. Steps of the contenders are timed in turn, in one run, by the processor time that they take
(so that waiting for other processes does not count); printed are medians of ratios within a round, with the 5 and 95 %
quantiles, never absolute promises. Beside them predicted operations and optimizer memory
(neuralop_mup.optim.muon.cost). Writes benchmarks/results/muon_step.md.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from pathlib import Path

import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.optim.muon.cost import step_cost

RESULTS = Path(__file__).parent / "results"
# n_modes (twice K) and grid; rounds are fewer where a step is long.
CASES = {
    "1D, K = 64, 128 points": ((128,), (128,), 60),
    "1D, K = 32, 128 points": ((64,), (128,), 60),
    "2D, K = 16, 32² points": ((32, 32), (32, 32), 12),
    "2D, K = 16, 64² points": ((32, 32), (64, 64), 6),
}
PERIODS = (1, 2, 4)


def measure(n_modes: tuple[int, ...], grid: tuple[int, ...], rounds: int, width: int, batch: int) -> list[str]:
    """Rows of the table for one case."""
    torch.manual_seed(0)
    model = nm.parametrize(FNO(n_modes, 1, 1, width), base={"hidden_channels": 16})
    x, y = torch.randn(batch, 1, *grid), torch.randn(batch, 1, *grid)
    models = [model, *(copy.deepcopy(model) for _ in PERIODS)]
    optimizers = [nm.MuAdam(models[0]), *(nm.MuMuon(m, period=p) for m, p in zip(models[1:], PERIODS, strict=True))]

    def step(i: int) -> tuple[float, float]:
        start = time.process_time()
        optimizers[i].zero_grad()
        (models[i](x) - y).square().mean().backward()
        middle = time.process_time()
        optimizers[i].step()
        end = time.process_time()
        return end - start, end - middle

    every: list[list[tuple[float, float]]] = []
    for i in range(rounds + 2):
        # Every second round runs the other way round, so that a drift of the machine's speed cancels.
        order = range(len(models)) if i % 2 else reversed(range(len(models)))
        times = {j: step(j) for j in order}
        if i >= 2:
            every.append([times[j] for j in range(len(models))])
    rows = []
    for j, period in enumerate(PERIODS, start=1):
        ratios = [times[j][0] / times[0][0] for times in every]
        quantiles = statistics.quantiles(ratios, n=20)
        share = statistics.median(times[j][1] / times[0][0] for times in every)
        cost = step_cost(model, period)
        rows.append(
            f"| {period} | {statistics.median(ratios):.2f} ({quantiles[0]:.2f}–{quantiles[-1]:.2f}) | {share:.2f} | "
            f"{statistics.median(times[0][1] / times[0][0] for times in every):.2f} | {cost.orthogonalize / 1e9:.2f} | "
            f"{cost.state_bytes / cost.adam_state_bytes:.2f} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--only", help="cases whose name contains this")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# Cost of a step",
        "",
        f"`python benchmarks/muon_step.py`: width {args.width}, batch {args.batch}, one thread. Times are processor times "
        "over that of a training step with MuAdam; operations are those of MuMuon's products in a step, as predicted.",
        "",
        "| case | period | training step | MuMuon.step | MuAdam.step | 10⁹ operations | optimizer memory over Adam's |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, (n_modes, grid, rounds) in CASES.items():
        if args.only and args.only not in name:
            continue
        for row in measure(n_modes, grid, rounds, args.width, args.batch):
            lines.append(f"| {name} {row}")
            print(lines[-1], flush=True)
    if not args.only:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "muon_step.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
