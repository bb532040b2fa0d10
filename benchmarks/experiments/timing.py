"""Time of a training step and memory of the optimizer's state, relative to Adam.

The optimizers take turns within one run, and every second round reverses their order, so a machine with a varying speed
gives the same ratios. The tables contain medians of the ratios within a round.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from experiments.contenders import on_all_views
from experiments.experiment import Experiment
from experiments.pages import table
from experiments.records import metrics_of, missing
from neuralop_mup.lab.records import Run

#: Model and grid → ``n_modes``, grid, further arguments of the model, and number of rounds.
CASES = {
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
GPU_CASES = {
    "1D, K = 32, 256 points": ((64,), (256,), {}, 40),
    "2D, K = 16, 64² points": ((32, 32), (64, 64), {}, 40),
    "width 32, 3D, K = 8, 32³ points": ((16, 16, 16), (32, 32, 32), {"hidden_channels": 32}, 40),
}
# MuSOAP measures ranks in each of its first steps. On a GPU, further steps are captured.
_WARM_UP = {"cpu": 12, "cuda": 30}


def _captured_musoap(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = nm.MuSOAP(model)
    nm.capture_steps(optimizer)
    return optimizer


#: Device → optimizers. The ratios are relative to the first one.
OPTIMIZERS = {
    "cpu": {
        "MuAdam": partial(nm.MuAdam, lr=1e-3),
        "MuSOAP": nm.MuSOAP,
        "MuSOAP, period 1": partial(nm.MuSOAP, mode_stride=1),
    },
    "cuda": {
        "Adam, fused": partial(on_all_views, torch.optim.Adam, lr=1e-3, fused=True),  # it needs real parameters
        "MuSOAP": nm.MuSOAP,
        "MuSOAP, captured": _captured_musoap,
    },
}


@dataclass(frozen=True)
class Timing(Experiment):
    """Time each optimizer on each model."""

    about: str = "cost of a step relative to Adam"
    cases: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], int]] = field(default_factory=lambda: CASES)
    device: str = "cpu"
    width: int = 64
    batch: int = 20
    rounds: int | None = None

    notes = (
        "Median ratio of the times of a training step, and memory of the kernels' state of MuSOAP relative to that of Adam."
    )
    metrics = ("ratios", "memory")

    def tiny(self) -> Timing:
        """Return one case with a small model and few rounds."""
        return replace(self, cases=dict(list(self.cases.items())[:1]), width=8, batch=2, rounds=3)

    def run(self, case: str) -> Run:
        """Return the measurement of a case."""
        config = {"kind": "optimizer", "case": case, "width": self.width, "batch": self.batch, "rounds": self.rounds}
        if self.device != "cpu":
            config["device"] = self.device
        labels = {"size": f"optimizer, {case}", "params": {}, "seed": 0}
        return Run({"train": "timing", "torch": torch.__version__, **config}, config, train=measured, **labels)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing measurements."""
        return missing(records, map(self.run, self.cases))

    def numbers(self, records: Any) -> dict[str, str]:
        """Return the table of medians, and the largest median of MuSOAP."""
        done = metrics_of(records, {case: self.run(case) for case in self.cases})
        rows = [[case, *(f"{ratio[0]:.2f}" for ratio in m["ratios"]), f"{m['memory'][0]:.2f}"] for case, m in done.items()]
        return {
            "medians": table(["case", *list(OPTIMIZERS[self.device])[1:], "state"], rows),
            "optimizer.most": f"{max((m['ratios'][0][0] for m in done.values()), default=math.nan):.1f}",
        }


def measured(config: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the times and the memory of each optimizer relative to those of the first one."""
    device = config.get("device", "cpu")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    modes, grid, arguments, rounds = {**CASES, **GPU_CASES}[config["case"]]
    model = FNO(modes, 1, 1, **{"hidden_channels": config["width"], **arguments}).to(device)
    x, y = torch.randn(2, config["batch"], 1, *grid, device=device)
    models = [nm.parametrize(copy.deepcopy(model)) for _ in OPTIMIZERS[device]]
    optimizers = [make(own) for make, own in zip(OPTIMIZERS[device].values(), models, strict=True)]
    pairs = list(zip(models, optimizers, strict=True))
    times = _times_in_turn(pairs, x, y, config["rounds"] or rounds)
    ratios = [_median_and_quantiles(own) for own in (times / times[:, :1]).T[1:]]
    states = [_kernel_bytes(*pair) for pair in pairs]
    return {"loss": ratios[0][0], "ratios": ratios, "memory": [size / states[0] for size in states[1:]]}


def _times_in_turn(pairs: Sequence[tuple[nn.Module, Any]], x: torch.Tensor, y: torch.Tensor, rounds: int) -> np.ndarray:
    """Return the seconds of a step by round and optimizer."""
    warm_up = _WARM_UP[x.device.type]
    times = np.zeros((warm_up + rounds, len(pairs)))
    for i, row in enumerate(times):
        for j in range(len(pairs)) if i % 2 else reversed(range(len(pairs))):
            model, optimizer = pairs[j]
            start = _now(x)
            optimizer.zero_grad(set_to_none=not x.is_cuda)  # captured steps need gradients at fixed addresses
            (model(x) - y).square().mean().backward()
            optimizer.step()
            row[j] = _now(x) - start
    return times[warm_up:]


def _now(x: torch.Tensor) -> float:
    """Return the processor time on a CPU, and the time after the device has finished on a GPU."""
    if not x.is_cuda:
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _median_and_quantiles(values: Sequence[float]) -> list[float]:
    """Return the median and the 5 and 95 % quantiles."""
    quantiles = statistics.quantiles(values, n=20)
    return [float(f"{x:.4g}") for x in (statistics.median(values), quantiles[0], quantiles[-1])]


def _kernel_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the memory of the state of Fourier kernels."""
    kernels = [p for name, p in model.named_parameters() if nm.summary(model)[name].role == "spectral"]
    return sum(t.numel() * t.element_size() for p in kernels for t in optimizer.state[p].values() if torch.is_tensor(t))
