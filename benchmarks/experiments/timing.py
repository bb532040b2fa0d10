"""What things cost, as ratios of processor time: a step with each optimizer, the plan, the monitor, and memory.

What is compared is timed in turn within one run, every second round the other way round, so that a machine whose speed
drifts gives the same ratio. Medians of ratios within a round, with the 5 and 95 % quantiles; never an absolute promise.
"""

from __future__ import annotations

import copy
import inspect
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap, zip_longest
from typing import Any

import numpy as np
import torch
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from experiments.kept import metrics_of, missing
from experiments.pages import percent, table
from neuralop_mup.lab.records import Run

#: Model and grid: n_modes, grid, further arguments, rounds.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], int]] = {
    "1D, K = 16, 128 points": ((32,), (128,), {}, 40),
    "1D, K = 64, 128 points": ((128,), (128,), {}, 40),
    "2D, K = 16, 32² points": ((32, 32), (32, 32), {}, 12),
    "2D, K = 8, 64² points, Tucker 0.1": ((16, 16), (64, 64), {"factorization": "tucker", "rank": 0.1}, 12),
    "3D, K = 4, 16³ points": ((8, 8, 8), (16, 16, 16), {}, 12),
    "width 24, 1D, K = 16, 64 points": ((32,), (64,), {"hidden_channels": 24}, 40),
    "width 16, 2D, K = 5, 20² points": ((10, 10), (20, 20), {"hidden_channels": 16}, 40),
    "APEBench's, 1D": ((22,), (160,), {"hidden_channels": 18}, 40),
    "APEBench's, 2D": ((14, 14), (32, 32), {"hidden_channels": 18}, 40),
}
#: What every kind of run compares with the first of its own.
KINDS: dict[str, tuple[str, ...]] = {
    "optimizer": ("MuAdam", "MuSOAP", "MuSOAP, period 1"),
    "plan": ("Adam on neuralop's model", "MuAdam on a parametrized one"),
    "monitor": ("without", "with an idle monitor", "with one that measures at each step"),
}
EVERY = inspect.signature(nm.Monitor).parameters["every"].default
_WARM = 12  # in the first steps MuSOAP measures ranks every time
#: A model with its optimizer.
Made = tuple[nn.Module, torch.optim.Optimizer]


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

    def run(self, kind: str, case: str) -> Run:
        """One measurement."""
        config = {"kind": kind, "case": case, "width": self.width, "batch": self.batch, "rounds": self.rounds}
        labels = {"size": f"{kind}, {case}", "params": {}, "seed": 0}
        return Run({"train": "timing", "torch": torch.__version__, **config}, config, train=measured, **labels)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The measurements that are missing."""
        return missing(
            records, (self.run(kind, case) for kind in KINDS for case in self.cases[: 2 if kind == "monitor" else None])
        )

    def table(self, records: Any) -> str:
        """Ratios by case, for each kind."""
        lines, tables = ["# What a step costs"], self.numbers(records)
        for kind, (first, *_) in KINDS.items():
            lines += [f"\n## {kind}: over {first}", tables[kind]]
        said = f"\nA monitor measures every {EVERY} steps by default, so it adds 1/{EVERY} of what a measured step adds."
        return "\n".join([*lines, said]) + "\n"

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote: of each case the median ratio, its 5 and 95 % quantiles and the memory of the kernels' states;
        and the largest ratios, of the monitor those of a measured step.
        """
        tables, most = {}, {}
        for kind, (_, *others) in KINDS.items():
            done = metrics_of(records, {case: self.run(kind, case) for case in self.cases})
            rows = [[case, *starmap(_cell, zip_longest(m["ratios"], m["memory"]))] for case, m in done.items()]
            tables[kind] = "\n".join(table(["case", *others], rows))
            which = -1 if kind == "monitor" else 0
            most[kind] = max((m["ratios"][which][0] for m in done.values()), default=math.nan)
        said = {f"{kind}.most": f"{value:.1f}" for kind, value in most.items()}
        done = metrics_of(records, {case: self.run("optimizer", case) for case in self.cases})
        rows = [
            [case, *(f"{ratio[0]:.2f}" for ratio in m["ratios"][:2]), f"{m['memory'][0]:.2f}"] for case, m in done.items()
        ]
        said["medians"] = "\n".join(table(["case", *KINDS["optimizer"][1:3], "state"], rows))
        return {**tables, **said, "monitor.share": percent((most["monitor"] - 1) / EVERY)}


def _cell(ratio: Sequence[float], memory: float | None) -> str:
    said = f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})"
    return said if memory is None else f"{said}; memory {memory:.2f}"


def measured(config: Mapping[str, Any]) -> dict[str, Any]:
    """Ratios of each contender's processor time over the first one's, and of its kernels' state."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    modes, grid, more, rounds = CASES[config["case"]]
    model = FNO(modes, 1, 1, **{"hidden_channels": config["width"], **more})
    x, y = torch.randn(2, config["batch"], 1, *grid)
    made = [_made(name, copy.deepcopy(model)) for name in KINDS[config["kind"]]]
    times = _in_turn(made, x, y, config["rounds"] or rounds)
    ratios = [_quantiles(own) for own in (times / times[:, :1]).T[1:]]
    states = [_kernel_bytes(*own) for own in made] if config["kind"] == "optimizer" else []
    return {"loss": ratios[0][0], "ratios": ratios, "memory": [size / states[0] for size in states[1:]]}


def _made(name: str, model: nn.Module) -> Made:
    if name.startswith("Adam"):
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)
    ours = {"MuSOAP": nm.MuSOAP, "MuSOAP, period 1": partial(nm.MuSOAP, mode_stride=1)}
    optimizer = ours.get(name, partial(nm.MuAdam, lr=1e-3))(nm.parametrize(model))
    if name.startswith("with "):
        nm.Monitor(model, optimizer, every=10**9 if "idle" in name else 1)
    return model, optimizer


def _in_turn(made: Sequence[Made], x: torch.Tensor, y: torch.Tensor, rounds: int) -> np.ndarray:
    """Processor seconds of every one's step in each round."""
    times = np.zeros((_WARM + rounds, len(made)))
    for i, own in enumerate(times):
        for j in range(len(made)) if i % 2 else reversed(range(len(made))):
            begun = time.process_time()
            _step(*made[j], x, y)
            own[j] = time.process_time() - begun
    return times[_WARM:]


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()


def _quantiles(values: Sequence[float]) -> list[float]:
    ends = statistics.quantiles(values, n=20)
    return [float(f"{x:.4g}") for x in (statistics.median(values), ends[0], ends[-1])]


def _kernel_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Memory of the states of Fourier kernels."""
    kernels = [p for name, p in model.named_parameters() if nm.summary(model)[name].role == "spectral"]
    return sum(t.numel() * t.element_size() for p in kernels for t in optimizer.state[p].values() if torch.is_tensor(t))
