"""What a step with each optimizer costs, as ratios of processor time, and memory of its states.

What is compared is timed in turn within one run, every second round the other way round, so that a machine whose speed
drifts gives the same ratio. Medians of ratios within a round, with the 5 and 95 % quantiles; never an absolute promise.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any

import numpy as np
import torch
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from experiments.kept import metrics_of, missing
from experiments.pages import table
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
#: All are compared with the first.
CONTENDERS = ("MuAdam", "MuSOAP", "MuSOAP, period 1")
_WARM = 12  # in the first steps MuSOAP measures ranks every time
#: A model with its optimizer.
Made = tuple[nn.Module, torch.optim.Optimizer]


@dataclass(frozen=True)
class Timing:
    """The experiment: every optimizer on every case."""

    cases: tuple[str, ...] = tuple(CASES)
    width: int = 64
    batch: int = 20
    rounds: int | None = None

    about = "what a step with each optimizer costs"
    metrics = ("ratios", "memory")

    def tiny(self) -> Timing:
        """One case with a small model and few rounds."""
        return Timing(tuple(CASES)[:1], 8, 2, 3)

    def run(self, case: str) -> Run:
        """One measurement."""
        config = {"kind": "optimizer", "case": case, "width": self.width, "batch": self.batch, "rounds": self.rounds}
        labels = {"size": f"optimizer, {case}", "params": {}, "seed": 0}
        return Run({"train": "timing", "torch": torch.__version__, **config}, config, train=measured, **labels)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The measurements that are missing."""
        return missing(records, map(self.run, self.cases))

    def table(self, records: Any) -> str:
        """Ratios by case."""
        return f"# What a step costs\n\nOver {CONTENDERS[0]}.\n{self.numbers(records)['table']}\n"

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote: of each case the median ratio, its 5 and 95 % quantiles and the memory of the kernels' states;
        and the largest ratio of the first.
        """
        done = metrics_of(records, {case: self.run(case) for case in self.cases})
        rows = [[case, *starmap(_cell, zip(m["ratios"], m["memory"], strict=True))] for case, m in done.items()]
        medians = [
            [case, *(f"{ratio[0]:.2f}" for ratio in m["ratios"]), f"{m['memory'][0]:.2f}"] for case, m in done.items()
        ]
        return {
            "table": "\n".join(table(["case", *CONTENDERS[1:]], rows)),
            "medians": "\n".join(table(["case", *CONTENDERS[1:], "state"], medians)),
            "optimizer.most": f"{max((m['ratios'][0][0] for m in done.values()), default=math.nan):.1f}",
        }


def _cell(ratio: Sequence[float], memory: float) -> str:
    return f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f}); memory {memory:.2f}"


def measured(config: Mapping[str, Any]) -> dict[str, Any]:
    """Ratios of each contender's processor time over the first one's, and of its kernels' state."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    modes, grid, more, rounds = CASES[config["case"]]
    model = FNO(modes, 1, 1, **{"hidden_channels": config["width"], **more})
    x, y = torch.randn(2, config["batch"], 1, *grid)
    made = [_made(name, copy.deepcopy(model)) for name in CONTENDERS]
    times = _in_turn(made, x, y, config["rounds"] or rounds)
    ratios = [_quantiles(own) for own in (times / times[:, :1]).T[1:]]
    states = [_kernel_bytes(*own) for own in made]
    return {"loss": ratios[0][0], "ratios": ratios, "memory": [size / states[0] for size in states[1:]]}


def _made(name: str, model: nn.Module) -> Made:
    ours = {
        "MuAdam": partial(nm.MuAdam, lr=1e-3),
        "MuSOAP": nm.MuSOAP,
        "MuSOAP, period 1": partial(nm.MuSOAP, mode_stride=1),
    }
    return model, ours[name](nm.parametrize(model))


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
