"""What things cost, as ratios of processor time: a step with each optimizer, the plan, the monitor, and memory.

What is compared is timed in turn within one run, every second round the other way round, so that a machine whose speed
drifts gives the same ratio. Medians of ratios within a round, with the 5 and 95 % quantiles; never an absolute promise.
"""

from __future__ import annotations

import copy
import inspect
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from experiments.pages import percent, table
from neuralop_mup.tuning.outcome import is_complete
from neuralop_mup.tuning.records import Run

__all__ = ["CASES", "KINDS", "Timing", "measured"]

#: Model and grid: n_modes, grid, further arguments, rounds.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], int]] = {
    "1D, K = 16, 128 points": ((32,), (128,), {}, 40),
    "1D, K = 64, 128 points": ((128,), (128,), {}, 40),
    "2D, K = 16, 32² points": ((32, 32), (32, 32), {}, 12),
    "2D, K = 8, 64² points, Tucker 0.1": ((16, 16), (64, 64), {"factorization": "tucker", "rank": 0.1}, 12),
    "3D, K = 4, 16³ points": ((8, 8, 8), (16, 16, 16), {}, 12),
}
#: What every kind of run compares with the first of its own.
KINDS: dict[str, tuple[str, ...]] = {
    "optimizer": ("MuAdam", "MuSOAP", "MuSOAP, period 1", "MuMuon"),
    "plan": ("Adam on neuralop's model", "MuAdam on a parametrized one"),
    "monitor": ("without", "with an idle monitor", "with one that measures at each step"),
}
EVERY = inspect.signature(nm.Monitor).parameters["every"].default
_WARM = 12  # in the first steps MuSOAP measures ranks every time
Step = Callable[[], None]


@dataclass(frozen=True)
class Timing:
    """The experiment: every kind on every case."""

    cases: tuple[str, ...] = tuple(CASES)
    width: int = 64
    batch: int = 20
    rounds: int | None = None

    about = "what a step with each optimizer, the plan and the monitor cost"
    metrics = ("ratios", "memory")

    def tiny(self) -> Timing:
        """One case with a small model and few rounds."""
        return Timing(tuple(CASES)[:1], 8, 2, 3)

    def trainer(self, folder: Path) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """What measures."""
        return measured

    def run(self, kind: str, case: str) -> Run:
        """One measurement."""
        config = {"kind": kind, "case": case, "width": self.width, "batch": self.batch, "rounds": self.rounds}
        return Run(
            {"train": "timing", "torch": torch.__version__, **config}, config, size=f"{kind}, {case}", params={}, seed=0
        )

    def wanted(self, records: Any) -> Iterator[Run]:
        """The measurements that are missing."""
        runs = (self.run(kind, case) for kind in KINDS for case in self.cases)
        yield from (run for run in runs if records.get(run) is None)

    def table(self, records: Any) -> str:
        """Ratios by case, for each kind."""
        lines = ["# What a step costs"]
        for kind, (first, *others) in KINDS.items():
            lines += [f"\n## {kind}: over {first}", *table(["case", *others], self._rows(records, kind))]
        said = f"\nA monitor measures every {EVERY} steps by default, so it adds 1/{EVERY} of what a measured step adds."
        return "\n".join([*lines, said]) + "\n"

    def _rows(self, records: Any, kind: str) -> list[list[str]]:
        """A row a case: median ratio, its 5 and 95 % quantiles, and the memory of the kernels' states."""
        rows = []
        for case in self.cases:
            record = records.get(self.run(kind, case))
            if record is not None and is_complete(record):
                ratios = record["metrics"]["ratios"]
                rows.append([case, *map(_cell, ratios, record["metrics"]["memory"] or [None] * len(ratios))])
        return rows

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote: tables, and the largest ratios."""
        found = {kind: [r for c in self.cases if (r := records.get(self.run(kind, c))) is not None] for kind in KINDS}
        which = {"monitor": -1}  # of several ratios, the one that is quoted; else the first
        most = {k: max(r["metrics"]["ratios"][which.get(k, 0)][0] for r in own) for k, own in found.items() if own}
        said = {f"{kind}.most": f"{value:.1f}" for kind, value in most.items()}
        said |= {"monitor.share": percent((most["monitor"] - 1) / EVERY)} if "monitor" in most else {}
        tables = {kind: "\n".join(table(["case", *KINDS[kind][1:]], self._rows(records, kind))) for kind in KINDS}
        return {**said, **tables}


def _cell(ratio: Sequence[float], memory: float | None) -> str:
    said = f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})"
    return said if memory is None else f"{said}; memory {memory:.2f}"


def measured(config: Mapping[str, Any]) -> dict[str, Any]:
    """Ratios of each contender's processor time over the first one's, and of its kernels' state."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    modes, grid, more, rounds = CASES[config["case"]]
    model = FNO(modes, 1, 1, config["width"], **more)
    x, y = torch.randn(2, config["batch"], 1, *grid)
    with tempfile.TemporaryDirectory() as folder:
        made = [_made(name, copy.deepcopy(model), Path(folder)) for name in KINDS[config["kind"]]]
        steps = [_step(own, optimizer, x, y) for own, optimizer in made]
        times = _in_turn(steps, config["rounds"] or rounds)
        ratios = [_quantiles([own[i] / own[0] for own in times]) for i in range(1, len(steps))]
    states = [_kernel_bytes(*own) for own in made] if config["kind"] == "optimizer" else []
    memory = [size / states[0] for size in states[1:]]
    return {"loss": ratios[0][0], "ratios": ratios, "memory": memory}


def _made(name: str, model: nn.Module, folder: Path) -> tuple[nn.Module, torch.optim.Optimizer]:
    if name.startswith("Adam"):
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)
    nm.parametrize(model)
    if name.startswith("MuSOAP"):
        return model, nm.MuSOAP(model, **({"period": 1} if name.endswith("1") else {}))
    if name == "MuMuon":
        return model, nm.MuMuon(model)
    optimizer = nm.MuAdam(model, lr=1e-3)
    if name.startswith("with "):
        nm.Monitor(model, optimizer, folder / f"{len(name)}.csv", every=10**9 if "idle" in name else 1)
    return model, optimizer


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()

    return step


def _in_turn(steps: Sequence[Step], rounds: int) -> list[list[float]]:
    """Processor seconds of every step in each round."""
    times = []
    for i in range(rounds + _WARM):
        own = [0.0] * len(steps)
        for j in range(len(steps)) if i % 2 else reversed(range(len(steps))):
            begun = time.process_time()
            steps[j]()
            own[j] = time.process_time() - begun
        times.append(own)
    return times[_WARM:]


def _quantiles(values: Sequence[float]) -> list[float]:
    ends = statistics.quantiles(values, n=20)
    return [float(f"{x:.4g}") for x in (statistics.median(values), ends[0], ends[-1])]


def _kernel_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Memory of the states of Fourier kernels."""
    kernels = [p for name, p in model.named_parameters() if nm.summary(model)[name].role == "spectral"]
    return sum(t.numel() * t.element_size() for p in kernels for t in optimizer.state[p].values() if torch.is_tensor(t))
