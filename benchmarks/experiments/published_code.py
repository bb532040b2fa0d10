"""MuSOAP in published FNO code: PDEBench's FNO on 1D advection and Burgers' equation.

We rewrote the model and the training of PDEBench (arXiv:2210.07182). The model predicts each state from the ten before it.
The loss is the mean squared error, and Adam's learning rate of 1e-3 is halved five times. We generate data from PDEBench's
initial conditions, which are sums of two sines with random wavenumbers, amplitudes and phases. Learning rates are selected
by the validation error of the first seed, and three seeds are reported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from statistics import fmean, geometric_mean
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, mse_loss
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

import neuralop_mup as nm
from experiments.curves import searched
from experiments.experiment import Experiment
from experiments.pages import table
from experiments.records import loss_of, missing, test_errors
from experiments.training import remembered
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.lab.problems import solve_burgers
from neuralop_mup.lab.records import Run

POINTS, STATES, HISTORY = 64, 31, 10
#: Increase this number if the same configuration leads to different numbers.
VERSION = 1


class FourierLayer(nn.Module):
    """PDEBench's layer: a dense kernel with values uniform on [0, 1/(in·out)), plus a pointwise convolution."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weights1 = nn.Parameter(torch.rand(width, width, modes, dtype=torch.cfloat) / width**2)
        self.skip = nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map fields of shape ``(batch, width, points)`` to the same shape."""
        spectrum = torch.zeros(*x.shape[:2], x.shape[-1] // 2 + 1, dtype=torch.cfloat)
        low = torch.fft.rfft(x)[..., : self.modes]
        spectrum[..., : self.modes] = torch.einsum("bix,iox->box", low, self.weights1)
        return torch.fft.irfft(spectrum, n=x.shape[-1]) + self.skip(x)


class FNO1d(nn.Module):
    """PDEBench's model with four layers, two points of padding, and coordinates as a further input."""

    def __init__(self, modes: int = 12, width: int = 20) -> None:
        super().__init__()
        self.modes, self.width = modes, width
        self.fc0 = nn.Linear(HISTORY + 1, width)
        self.layers = nn.ModuleList(FourierLayer(width, modes) for _ in range(4))
        self.fc1 = nn.Linear(width, 128)
        self.fc2 = nn.Linear(128, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map states of shape ``(batch, points, history)`` to the next one, of shape ``(batch, points, 1)``."""
        grid = torch.linspace(0, 1, x.shape[1]).expand(len(x), -1)[..., None]
        x = nn.functional.pad(self.fc0(torch.cat([x, grid], -1)).transpose(1, 2), (0, 2))
        for layer in self.layers[:-1]:
            x = gelu(layer(x))
        return self.fc2(gelu(self.fc1(self.layers[-1](x)[..., :-2].transpose(1, 2))))


@cache
def trajectories(equation: str, samples: int, seed: int) -> torch.Tensor:
    """Return states of shape ``(samples, points, time)``: advection at speed 0.4, or Burgers with viscosity 0.01."""
    generator = torch.Generator().manual_seed(seed)
    fine = POINTS if equation == "advection" else 4 * POINTS
    x = torch.arange(fine, dtype=torch.float64) / fine
    k = torch.randint(1, 9, (samples, 2, 1), generator=generator)
    amplitude, phase = torch.rand(2, samples, 2, 1, generator=generator, dtype=torch.float64)

    def waves(shift: float = 0.0) -> torch.Tensor:
        return (amplitude * torch.sin(2 * math.pi * (k * (x - shift) + phase))).sum(1)

    if equation == "advection":
        states = [waves(0.02 * step) for step in range(STATES)]
    else:
        states = [waves()]
        while len(states) < STATES:
            states.append(solve_burgers(states[-1], 0.01, 0.02))
    return torch.stack(states, -1)[:, :: fine // POINTS].float()


@torch.no_grad()
def nrmse(model: nn.Module, states: torch.Tensor) -> float:
    """Return PDEBench's nRMSE of a single step, averaged over windows of the trajectories."""
    windows = states.unfold(2, HISTORY + 1, 4).transpose(1, 2).reshape(-1, POINTS, HISTORY + 1)
    truth = windows[..., HISTORY:]
    error = (model(windows[..., :HISTORY]) - truth).square().mean(1).sqrt()
    return float((error / truth.square().mean(1).sqrt().clamp_min(1e-3)).mean())


def train(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train PDEBench's FNO and return its errors."""
    torch.set_num_threads(1)
    (steps, lr), start = (config["steps"], config["lr"]), time.perf_counter()
    training, validation, test = (trajectories(config["equation"], n, seed) for seed, n in enumerate((200, 40, 60), 1))
    torch.manual_seed(config["seed"])
    model = FNO1d(width=config["width"])
    if config["optimizer"] == "MuSOAP":
        nm.parametrize(model, rule=config["rule"])
        optimizer, scheduler = nm.MuSOAP(model, steps=steps), None
    elif config["optimizer"] == "Adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=1e-4)
        scheduler = StepLR(optimizer, steps // 5, 0.5)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-4)
        scheduler = CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(config["seed"] + 100)
    windows = training.unfold(2, HISTORY + 1, 1)
    for _ in range(steps):
        sample = torch.randint(0, windows.shape[0], (32,), generator=generator)
        first = torch.randint(0, windows.shape[2], (32,), generator=generator)
        batch = windows[sample, :, first]
        optimizer.zero_grad()
        mse_loss(model(batch[..., :HISTORY]), batch[..., HISTORY:]).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    seconds = time.perf_counter() - start
    return {"loss": nrmse(model, validation), "test_loss": nrmse(model, test), "seconds": seconds}


#: Method → optimizer, and the initial rate of a search; None if the rate is fixed.
METHODS = {
    "the two lines, untuned": ("MuSOAP", None),
    "PDEBench's Adam": ("Adam", None),
    "AdamW with a cosine, tuned": ("AdamW", 4e-3),
}


@dataclass(frozen=True)
class PublishedCode(Experiment):
    """Train PDEBench's FNO with its own optimizer, with tuned AdamW, and with MuSOAP."""

    about: str = "PDEBench's FNO with MuSOAP, with its own optimizer and with tuned AdamW"
    equations: tuple[str, ...] = ("advection", "burgers")
    widths: tuple[int, ...] = (20, 64)
    steps: int = 1500
    seeds: tuple[int, ...] = (0, 1, 2)

    notes = "nRMSE of one step on the test set, as the mean and range of the seeds."

    def tiny(self) -> PublishedCode:
        """Return one equation with few steps."""
        return replace(self, equations=("advection",), widths=(8,), steps=20, seeds=(0,))

    @remembered
    def run(self, equation: str, width: int, method: str, lr: float | None, seed: int) -> Run:
        """Return one training."""
        optimizer, start = METHODS[method]
        lr = 1e-3 if start is None and optimizer == "Adam" else lr
        config = {
            **{"equation": equation, "width": width, "optimizer": optimizer, "lr": lr, "steps": self.steps, "seed": seed},
            **({"rule": "operator-norm"} if optimizer == "MuSOAP" else {}),
        }
        version = {"published-code": VERSION, "rules": RULE_VERSION}
        size = f"{equation}, width {width}, {method}"
        return Run({**config, "version": version}, config, train=train, size=size, params={"lr": lr}, seed=seed)

    def cells(self) -> Iterator[tuple[str, int, str]]:
        """Return all equations, widths and methods."""
        return product(self.equations, self.widths, METHODS)

    def rate(self, records: Any, cell: tuple[str, int, str]) -> tuple[float | None, list[float]]:
        """Return the best learning rate so far, and the rates that the search still needs."""
        if (start := METHODS[cell[2]][1]) is None:
            return None, []
        found, unmeasured = searched(lambda lr: loss_of(records.get(self.run(*cell, lr, self.seeds[0]))), start, spread=2.0)
        return min(found, key=found.__getitem__, default=None), unmeasured

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs: the search, then all seeds at the best rate."""
        for cell in self.cells():
            best, unmeasured = self.rate(records, cell)
            runs = [(lr, self.seeds[0]) for lr in unmeasured] or [(best, seed) for seed in self.seeds]
            yield from missing(records, (self.run(*cell, *run) for run in runs))

    def errors(self, records: Any, cell: tuple[str, int, str]) -> list[float]:
        """Return the test errors of all seeds at the best rate, or an empty list if some have no record."""
        best, unmeasured = self.rate(records, cell)
        found = [] if unmeasured else test_errors(records, (self.run(*cell, best, seed) for seed in self.seeds))
        return found if len(found) == len(self.seeds) else []

    def numbers(self, records: Any) -> dict[str, str]:
        """Return a table of errors, and the mean errors relative to those of tuned AdamW."""
        rows, ratios = [], []
        for equation in self.equations:
            for width in self.widths:
                errors = {method: self.errors(records, (equation, width, method)) for method in METHODS}
                ours, _, adamw = errors.values()
                ratios += [fmean(ours) / fmean(adamw)] if ours and adamw else []
                cells = [f"{fmean(e):.2g} ({min(e):.2g} to {max(e):.2g})" if e else "–" for e in errors.values()]
                rows.append([equation.capitalize(), str(width), *cells])
        found = {"errors": "\n".join(table(["equation", "width", *METHODS], rows))}
        if ratios:
            found |= {"over.mean": f"{geometric_mean(ratios):.2f}", "over.most": f"{max(ratios):.2f}"}
        return found
