"""What only a GPU can show: errors as on the CPU, what a step costs over fused Adam, and memory. In eight minutes."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from neuralop.models import FNO

import neuralop_mup as nm
from experiments.contenders import OnViews
from experiments.kept import metrics_of, missing
from experiments.pages import table
from neuralop_mup.lab.records import Run

#: ``n_modes``, grid and width of models of which a step is timed.
CASES = {"1D": ((64,), (256,), 64), "2D": ((32, 32), (64, 64), 64), "3D": ((16, 16, 16), (32, 32, 32), 32)}
CONTENDERS = ("Adam, fused", "MuSOAP", "MuSOAP, compiled model", "MuSOAP, captured")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Gpu:
    """The experiment: trainings in each precision, and steps of each model."""

    device: str = "cuda"
    cases: tuple[str, ...] = tuple(CASES)
    steps: int = 300
    rounds: int = 40

    about = "what only a GPU can show: errors over the CPU's, time and memory of steps over those of fused Adam"
    metrics = ("ratios", "name")

    def tiny(self) -> Gpu:
        """Few steps of one model, on a CPU, which captures none."""
        return Gpu("cpu", tuple(CASES)[:1], 3, 2)

    def cannot(self) -> str | None:
        """Why nothing can be measured here; None where it can."""
        if self.device == "cpu" or torch.cuda.is_available():
            return None
        return "gpu measures on a CUDA device, and torch finds none here: run it on a machine that has one, or with --tiny."

    def run(self, kind: str, what: str) -> Run:
        """One measurement: the error in a precision, or the steps of a case."""
        config = {"kind": kind, "what": what, "device": self.device, "steps": self.steps, "rounds": self.rounds}
        labels = {"size": f"{kind}, {what}", "params": {}, "seed": 0}
        return Run({"train": "gpu", "torch": torch.__version__, **config}, config, train=measured, **labels)

    def runs(self) -> dict[str, Run]:
        """All of them, by what they measure."""
        errors = {f"error, {name}": self.run("error", name) for name in PRECISIONS}
        return errors | {case: self.run("steps", case) for case in self.cases}

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The measurements that are missing."""
        return missing(records, self.runs().values())

    def table(self, records: Any) -> str:
        """Errors over the CPU's in float32; of each contender what its steps take over fused Adam's."""
        done = metrics_of(records, self.runs())
        devices = ", ".join(sorted({m["name"] for m in done.values()})) or "no device yet"
        errors = [[name, f"{m['ratios'][0][0]:.3f}"] for name, m in done.items() if name.startswith("error")]
        steps = [[name, *map(_cell, m["ratios"])] for name, m in done.items() if name in CASES]
        steps = [row + ["–"] * (len(CONTENDERS) - len(row)) for row in steps]
        lines = [f"# On a GPU\n\nMeasured on {devices}.", *table(["training", "over the CPU's"], errors)]
        lines += ["\nTime of the optimizer's step / time of a training step / peak of memory, over those of fused Adam."]
        return "\n".join([*lines, *table(["model", *CONTENDERS[1:]], steps)]) + "\n"


def _cell(ratios: list[float]) -> str:
    return " / ".join(f"{x:.2f}" for x in ratios)


def measured(config: Mapping[str, Any]) -> dict[str, Any]:
    """Make one measurement."""
    make = _error if config["kind"] == "error" else _steps
    ratios, device = make(config), config["device"]
    return {"loss": ratios[0][0], "ratios": ratios, "name": torch.cuda.get_device_name() if device == "cuda" else device}


def _error(config: Mapping[str, Any]) -> list[list[float]]:
    """A training's validation error over that of the same one on the CPU in float32."""
    noise = torch.fft.rfft(torch.randn(250, 1, 64, generator=torch.Generator().manual_seed(0)))
    fields = torch.fft.irfft(noise / (1 + torch.arange(33)) ** 2)
    whole = 10 * fields, 10 * fields.roll(1, -1).cos() * fields
    errors = []
    for device, half in (("cpu", False), (config["device"], config["what"] == "bfloat16")):
        torch.manual_seed(0)
        model = nm.parametrize(FNO((32,), 1, 1, 32)).to(device)
        optimizer = nm.MuSOAP(model, steps=config["steps"])
        x, y = (values.to(device) for values in whole)
        for step in range(config["steps"]):
            own = torch.randperm(200, generator=torch.Generator().manual_seed(step))[:20].to(device)
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=half):
                prediction = model(x[own])
            (prediction.float() - y[own]).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            errors.append(float((model(x[200:]) - y[200:]).norm()))
    return [[errors[1] / errors[0]]]


def _steps(config: Mapping[str, Any]) -> list[list[float]]:
    """Of each contender but the first medians over rounds, over those of the first: seconds of its step, of a whole training
    step, and the most bytes."""
    modes, grid, width = CASES[config["what"]]
    torch.manual_seed(0)
    model = FNO(modes, 1, 1, width).to(config["device"])
    x, y = torch.randn(2, 8, 1, *grid, device=config["device"])
    names = CONTENDERS if config["device"] == "cuda" else CONTENDERS[:2]
    found = [_timed(name, copy.deepcopy(model), x, y, config["rounds"]) for name in names]
    return [[own / first for own, first in zip(other, found[0], strict=True)] for other in found[1:]]


def _timed(name: str, model: FNO, x: torch.Tensor, y: torch.Tensor, rounds: int) -> list[float]:
    on_gpu = x.device.type == "cuda"
    if name == "Adam, fused":  # which takes no complex kernels
        optimizer: Any = OnViews([(partial(torch.optim.Adam, lr=1e-3, fused=True), list(model.parameters()))], 1e-3)
    else:
        optimizer = nm.MuSOAP(nm.parametrize(model), steps=10**4)
    if "captured" in name:
        nm.capture_steps(optimizer)
    forward = torch.compile(model) if "compiled" in name else model
    times = []
    for i in range(30 * on_gpu + rounds):  # the first are those of the beginning, and are captured
        if on_gpu and i == 30:
            torch.cuda.reset_peak_memory_stats()
        marks = [_now(on_gpu)]
        optimizer.zero_grad(set_to_none=False)
        (forward(x) - y).square().mean().backward()
        marks.append(_now(on_gpu))
        optimizer.step()
        marks.append(_now(on_gpu))
        times.append((marks[2] - marks[1], marks[2] - marks[0]))
    alone, whole = (statistics.median(own) for own in zip(*times[-rounds:], strict=True))
    return [alone, whole, torch.cuda.max_memory_allocated() if on_gpu else 1]


def _now(on_gpu: bool) -> float:
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter()
