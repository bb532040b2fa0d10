"""The two lines in the FNO code that people have: PDEBench's FNO on 1D advection and Burgers' equation.

The model and the training are PDEBench's (arXiv 2210.07182), written in our own words: ten states to the next one, the mean
squared error, and Adam at 1e-3, which halves five times. Data is made here, by PDEBench's initial conditions: sums of two
sines with random wavenumbers, amplitudes and phases. Rates are chosen by the validation error, with the first seed; three
seeds are reported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, geometric_mean
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, mse_loss
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

import neuralop_mup as nm
from experiments.curves import searched
from experiments.kept import loss_of, missing
from experiments.pages import table
from experiments.training import remembered
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.lab.problems import solve_burgers
from neuralop_mup.lab.records import Run

POINTS, STATES, HISTORY = 64, 31, 10
#: Raise it whenever the same configuration gives other numbers.
VERSION = 1


class FourierLayer(nn.Module):
    """PDEBench's layer: a dense kernel with values uniform on [0, 1/(in·out)), and a 1×1 convolution beside it."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weights1 = nn.Parameter(torch.rand(width, width, modes, dtype=torch.cfloat) / width**2)
        self.skip = nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Fields of shape ``(batch, width, points)`` to the same shape."""
        spectrum = torch.zeros(*x.shape[:2], x.shape[-1] // 2 + 1, dtype=torch.cfloat)
        low = torch.fft.rfft(x)[..., : self.modes]
        spectrum[..., : self.modes] = torch.einsum("bix,iox->box", low, self.weights1)
        return torch.fft.irfft(spectrum, n=x.shape[-1]) + self.skip(x)


class FNO1d(nn.Module):
    """PDEBench's model: four layers, two points of padding, coordinates beside the input."""

    def __init__(self, modes: int = 12, width: int = 20) -> None:
        super().__init__()
        self.modes, self.width = modes, width
        self.fc0 = nn.Linear(HISTORY + 1, width)
        self.layers = nn.ModuleList(FourierLayer(width, modes) for _ in range(4))
        self.fc1 = nn.Linear(width, 128)
        self.fc2 = nn.Linear(128, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """States of shape ``(batch, points, history)`` to the next one, ``(batch, points, 1)``."""
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
    """Return PDEBench's nRMSE of a single step, averaged over the windows of the trajectories."""
    windows = states.unfold(2, HISTORY + 1, 4).transpose(1, 2).reshape(-1, POINTS, HISTORY + 1)
    truth = windows[..., HISTORY:]
    error = (model(windows[..., :HISTORY]) - truth).square().mean(1).sqrt()
    return float((error / truth.square().mean(1).sqrt().clamp_min(1e-3)).mean())


def train(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train PDEBench's FNO and measure its errors."""
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


#: What is compared → its optimizer, and where the search of its rate begins; None: it is not searched.
WAYS = {
    "the two lines, untuned": ("MuSOAP", None),
    "PDEBench's Adam": ("Adam", None),
    "AdamW with a cosine, tuned": ("AdamW", 4e-3),
}


@dataclass(frozen=True)
class PublishedCode:
    """PDEBench's FNO under its own optimizer, under tuned AdamW and with the two lines."""

    about: str = "the two lines in PDEBench's FNO, beside its own optimizer and tuned AdamW"
    equations: tuple[str, ...] = ("advection", "burgers")
    widths: tuple[int, ...] = (20, 64)
    steps: int = 1500
    seeds: tuple[int, ...] = (0, 1, 2)

    def tiny(self) -> PublishedCode:
        """One equation and few steps."""
        return replace(self, equations=("advection",), widths=(8,), steps=20, seeds=(0,))

    @remembered
    def run(self, equation: str, width: int, way: str, lr: float | None, seed: int) -> Run:
        """Return one training."""
        optimizer, start = WAYS[way]
        lr = 1e-3 if start is None and optimizer == "Adam" else lr
        config = {
            **{"equation": equation, "width": width, "optimizer": optimizer, "lr": lr, "steps": self.steps, "seed": seed},
            **({"rule": "operator-norm"} if optimizer == "MuSOAP" else {}),
        }
        version = {"published-code": VERSION, "rules": RULE_VERSION}
        size = f"{equation}, width {width}, {way}"
        return Run({**config, "version": version}, config, train=train, size=size, params={"lr": lr}, seed=seed)

    def cells(self) -> Iterator[tuple[str, int, str]]:
        """Return equations, widths and ways."""
        return ((equation, width, way) for equation in self.equations for width in self.widths for way in WAYS)

    def rate(self, records: Any, cell: tuple[str, int, str]) -> tuple[float | None, list[float]]:
        """Return the best rate so far, and the rates that the search still needs."""
        if (start := WAYS[cell[2]][1]) is None:
            return None, []
        found, left = searched(lambda lr: loss_of(records.get(self.run(*cell, lr, self.seeds[0]))), start, spread=2.0)
        return (min(found, key=found.__getitem__) if found else None), left

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs: the search, then all seeds at the best rate."""
        for cell in self.cells():
            best, left = self.rate(records, cell)
            asked = [(lr, self.seeds[0]) for lr in left] or [(best, seed) for seed in self.seeds]
            yield from missing(records, (self.run(*cell, *one) for one in asked))

    def errors(self, records: Any, cell: tuple[str, int, str]) -> list[float]:
        """Return the test errors of all seeds at the best rate, infinite if a run failed; none before all are done."""
        best, left = self.rate(records, cell)
        kept = [] if left else [records.get(self.run(*cell, best, seed)) for seed in self.seeds]
        if not kept or None in kept:
            return []
        return [record["metrics"]["test_loss"] if math.isfinite(loss_of(record) or 0) else math.inf for record in kept]

    def numbers(self, records: Any) -> dict[str, str]:
        """Return the table of the page, and the ratios of mean errors to those of tuned AdamW."""
        rows, ratios = [], []
        for equation in self.equations:
            for width in self.widths:
                errors = {way: self.errors(records, (equation, width, way)) for way in WAYS}
                ours, _, adamw = errors.values()
                ratios += [fmean(ours) / fmean(adamw)] if ours and adamw else []
                told = [f"{fmean(e):.2g} ({min(e):.2g} to {max(e):.2g})" if e else "–" for e in errors.values()]
                rows.append([equation.capitalize(), str(width), *told])
        said = {"errors": "\n".join(table(["equation", "width", *WAYS], rows))}
        over = {"mean": f"{geometric_mean(ratios):.2f}", "most": f"{max(ratios):.2f}"} if ratios else {}
        return {**said, **{f"over.{name}": number for name, number in over.items()}}

    def table(self, records: Any) -> str:
        """Return the test errors as a page."""
        title = f"# {self.about[0].upper()}{self.about[1:]}"
        about = "nRMSE of one step on the test set, mean and range of the seeds."
        return f"{title}\n\n{about}\n{self.numbers(records)['errors']}\n"
