"""What a kernel optimizer costs: a training step with it against one with MuAdam, and its memory.

    python benchmarks/optimizer_step.py

One thread, width 64, batch 20. Steps of the contenders are timed in turn, in one run, by the processor time that they take
(so that waiting for other processes does not count); printed are medians of ratios within a round, with the 5 and 95 %
quantiles, never absolute promises. Memory is that of the kernels' states over Adam's. Writes
benchmarks/results/optimizer_step.md.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from pathlib import Path

import torch
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm

RESULTS = Path(__file__).parent / "results"
# n_modes (twice K) and grid; rounds are fewer where a step is long.
CASES = {
    "1D, K = 64, 128 points": ((128,), (128,), 40),
    "1D, K = 16, 128 points": ((32,), (128,), 40),
    "2D, K = 16, 32² points": ((32, 32), (32, 32), 8),
    "2D, K = 16, 64² points": ((32, 32), (64, 64), 4),
}
CONTENDERS = {
    "MuAdam": nm.MuAdam,
    **{f"MuSOAP, period {p}": lambda m, p=p: nm.MuSOAP(m, period=p) for p in (1, 2, 4)},
    "MuSOAP, period 2, rms": lambda m: nm.MuSOAP(m, size="rms"),
    **{f"MuMuon, period {p}": lambda m, p=p: nm.MuMuon(m, period=p) for p in (1, 2, 4)},
}


def kernel_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Memory of the states of Fourier kernels."""
    kernels = [p for name, p in model.named_parameters() if nm.summary(model)[name].role == "spectral"]
    tensors = [t for p in kernels for t in optimizer.state[p].values() if torch.is_tensor(t)]
    return sum(t.numel() * t.element_size() for t in tensors)


def measure(n_modes: tuple[int, ...], grid: tuple[int, ...], rounds: int, width: int, batch: int) -> list[str]:
    """Cells of the table for one case."""
    torch.manual_seed(0)
    model = nm.parametrize(FNO(n_modes, 1, 1, width), base={"hidden_channels": 16})
    x, y = torch.randn(batch, 1, *grid), torch.randn(batch, 1, *grid)
    models = [copy.deepcopy(model) for _ in CONTENDERS]
    optimizers = [build(m) for build, m in zip(CONTENDERS.values(), models, strict=True)]

    def step(i: int) -> float:
        start = time.process_time()
        optimizers[i].zero_grad()
        (models[i](x) - y).square().mean().backward()
        optimizers[i].step()
        return time.process_time() - start

    every: list[list[float]] = []
    # In the first steps MuSOAP measures ranks every time.
    for i in range(rounds + 12):
        # Every second round runs the other way round, so that a drift of the machine's speed cancels.
        order = range(len(models)) if i % 2 else reversed(range(len(models)))
        times = {j: step(j) for j in order}
        if i >= 12:
            every.append([times[j] for j in range(len(models))])
    cells = []
    for j in range(1, len(models)):
        ratios = [times[j] / times[0] for times in every]
        quantiles = statistics.quantiles(ratios, n=20)
        memory = kernel_bytes(models[j], optimizers[j]) / kernel_bytes(models[0], optimizers[0])
        cells.append(f"{statistics.median(ratios):.2f} ({quantiles[0]:.2f}–{quantiles[-1]:.2f}); memory {memory:.2f}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--only", help="cases whose name contains this")
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = list(CONTENDERS)[1:]
    lines = [
        "# Cost of a training step",
        "",
        f"`python benchmarks/optimizer_step.py`: width {args.width}, batch {args.batch}, one thread. Processor time of a "
        "training step over one with MuAdam (median, 5 and 95 % quantiles), and memory of the kernels' states over Adam's.",
        "",
        "| case | " + " | ".join(names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    for name, (n_modes, grid, rounds) in CASES.items():
        if args.only and args.only not in name:
            continue
        lines.append(f"| {name} | " + " | ".join(measure(n_modes, grid, rounds, args.width, args.batch)) + " |")
        print(lines[-1], flush=True)
    if not args.only:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "optimizer_step.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
