"""MuSOAP in published FNO code: scripts of PDEBench and Zongyi Li for advection, Burgers, Darcy flow and Navier–Stokes.

We rewrote the models and trainings of PDEBench (arXiv:2210.07182) and of Li's ``fourier_1d.py``, ``fourier_2d.py`` and
``fourier_2d_time.py`` (arXiv:2010.08895) in their version of August 2021, from which PDEBench derived its models. Modes,
padding, normalization, loss and weight decay are those of the scripts, and so are Li's width and batch size. Adam's learning
rate of 1e-3 is halved as often as in their 500 epochs. Li uses his own Adam, which normalizes complex gradients by their
modulus. We use torch's.

We generate the data. PDEBench's trajectories begin with sums of two sines with random wavenumbers, amplitudes and phases,
and its model predicts each state from the ten before it. Li's initial states and the coefficients of Darcy flow are Gaussian
random fields. The viscosity of Li's Burgers data is 0.1, but then one mode has 99.98 % of the final energy, so we use 0.01.
His Navier–Stokes data has the viscosity 1e-3. As in his script, each step trains a rollout of ten states from ten states,
with the sum of the relative errors of the states as the loss, and the error is that of all ten states together.

Learning rates are selected by the validation error of the first seed, and three seeds are reported. Li's scripts and Darcy
flow have 1,000 steps and small grids in 2D, and ``fourier_2d_time.py`` has batches of 10 instead of 20. We fixed these
numbers before measuring.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from statistics import fmean, geometric_mean
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, mse_loss
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

import neuralop_mup as nm
from experiments.curves import Search, searched
from experiments.experiment import Experiment
from experiments.pages import table
from experiments.records import loss_of, missing, test_errors
from experiments.training import remembered
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.lab.problems import get_problem, solve_burgers
from neuralop_mup.lab.records import Run
from problems.navier_stokes import solve_navier_stokes

POINTS, STATES, HISTORY = 64, 31, 10
#: Increase this number if the same configuration leads to different numbers.
VERSION = 1
#: Samples for training, validation and test of the problems without trajectories.
SAMPLES = (1000, 100, 100)


class FourierLayer(nn.Module):
    """Li's layer: dense kernels with values uniform on [0, 1/(in·out)), plus a pointwise convolution.

    On two axes, it has a kernel for each sign of the first.
    """

    def __init__(self, axes: int, width: int, modes: int) -> None:
        super().__init__()
        low, high = slice(modes), slice(-modes, None)
        self.parts = [(..., low)] if axes == 1 else [(..., low, low), (..., high, low)]
        for number in range(len(self.parts)):
            kernel = torch.rand(width, width, *[modes] * axes, dtype=torch.cfloat) / width**2
            self.register_parameter(f"weights{number + 1}", nn.Parameter(kernel))
        self.skip = (nn.Conv1d, nn.Conv2d)[axes - 1](width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map fields of shape ``(batch, width, *points)`` to the same shape."""
        axes = tuple(range(2, x.ndim))
        modes = torch.fft.rfftn(x, dim=axes)
        spectrum = torch.zeros_like(modes)
        for number, part in enumerate(self.parts, 1):
            spectrum[part] = torch.einsum("bi...,io...->bo...", modes[part], getattr(self, f"weights{number}"))
        return torch.fft.irfftn(spectrum, s=x.shape[2:], dim=axes) + self.skip(x)


class FNO(nn.Module):
    """Li's model and PDEBench's: four layers, padding at the end of each axis, and coordinates as further inputs."""

    def __init__(self, axes: int, inputs: int, modes: int, width: int, padding: int) -> None:
        super().__init__()
        # With its arguments, as Li's and PDEBench's models have them, parametrize builds the model at other sizes.
        self.axes, self.inputs, self.modes, self.width, self.padding = axes, inputs, modes, width, padding
        self.fc0 = nn.Linear(inputs + axes, width)
        self.layers = nn.ModuleList(FourierLayer(axes, width, modes) for _ in range(4))
        self.fc1 = nn.Linear(width, 128)
        self.fc2 = nn.Linear(128, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map fields of shape ``(batch, *points, inputs)`` to one of shape ``(batch, *points, 1)``."""
        points = x.shape[1:-1]
        grid = torch.stack(torch.meshgrid(*(torch.linspace(0, 1, n) for n in points), indexing="ij"), -1)
        x = self.fc0(torch.cat([x, grid.expand(*x.shape[:-1], -1)], -1)).movedim(-1, 1)
        x = nn.functional.pad(x, (0, self.padding) * len(points))
        for layer in self.layers[:-1]:
            x = gelu(layer(x))
        x = self.layers[-1](x)[(..., *map(slice, points))].movedim(1, -1)
        return self.fc2(gelu(self.fc1(x)))


@dataclass(frozen=True)
class Case:
    """A script: whose it is, its model, and how it trains.

    Attributes
    ----------
    code : str
        The authors of the script.
    splits : callable
        Return training, validation and test data of shape ``(samples, windows, *points, inputs + 1)``. The last channel is
        the target.
    widths : tuple of int
    modes, padding, batch, steps : int
    periods : int
        Number of equal parts of the training after which the script's Adam halves its learning rate.
    loss : callable
    encoded : bool
        Whether the model's inputs and outputs are normalized at each point.
    future : int
        Number of states that the model predicts, each from its previous predictions. The last channels are these states.
    """

    code: str
    splits: Callable[[], tuple[torch.Tensor, ...]]
    widths: tuple[int, ...]
    modes: int
    padding: int
    batch: int
    steps: int = 1000
    periods: int = 5
    loss: Callable[..., torch.Tensor] = mse_loss
    encoded: bool = False
    future: int = 1


@cache
def windows(equation: str) -> tuple[torch.Tensor, ...]:
    """Return windows of trajectories with 11 states: advection at speed 0.4, or Burgers with viscosity 0.01."""
    return tuple(
        trajectories(equation, samples, seed).unfold(2, HISTORY + 1, 1).transpose(1, 2)
        for seed, samples in enumerate((200, 40, 60), 1)
    )


def trajectories(equation: str, samples: int, seed: int) -> torch.Tensor:
    """Return states of shape ``(samples, points, time)``."""
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


@cache
def pairs(problem: str, **arguments: Any) -> tuple[torch.Tensor, ...]:
    """Return inputs and solutions of a problem of the package."""
    data = get_problem(problem, **dict(zip(("n_train", "n_val", "n_test"), SAMPLES, strict=True)), **arguments).load()
    return tuple(torch.cat(pair, 1).movedim(1, -1)[:, None] for pair in (data.train, data.val, data.test))


@cache
def flow(solver_grid: int = 72, samples: tuple[int, ...] = (200, 40, 60)) -> tuple[torch.Tensor, ...]:
    """Return states 1 to 20 of Li's vorticity equation with viscosity 1e-3, one window per sample.

    On [0, 2π]² instead of his [0, 1]², the vorticity is the same, and the viscosity is 4π² times as large. The initial
    vorticity is a Gaussian random field with the covariance 7^{3/2} (−Δ + 49)^{−5/2}, and the forcing is
    0.1 (sin(x + y) + cos(x + y)).
    """
    n, stride = solver_grid, solver_grid // 24
    x = torch.arange(n, dtype=torch.float64) * 2 * math.pi / n
    forcing = 0.1 * (torch.sin(x[:, None] + x) + torch.cos(x[:, None] + x))
    k = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)
    eigenvalues = 7**1.5 * (4 * math.pi**2 * (k[:, None].square() + k[: n // 2 + 1].square()) + 49) ** -2.5
    eigenvalues[0, 0] = 0
    splits = []
    for seed, count in enumerate(samples, 1):
        noise = torch.randn(count, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        start = torch.fft.irfft2(torch.fft.rfft2(noise) * eigenvalues.sqrt() * n, s=(n, n))
        states = solve_navier_stokes(start, 1 / (4 * math.pi**2 * 1e-3), range(1, 21), forcing=forcing)
        splits.append(states[..., ::stride, ::stride].movedim(1, -1)[:, None].float())
    return tuple(splits)


def relative_l2(predicted: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return Li's loss, the sum of the relative L2 errors of all states in a batch."""
    return ((predicted - truth).flatten(1, -2).norm(dim=1) / truth.flatten(1, -2).norm(dim=1)).sum()


#: Name of the equation in a run → its script.
CASES = {
    "advection": Case("PDEBench", partial(windows, "advection"), (20, 64), 12, 2, 32, 1500),
    "burgers": Case("PDEBench", partial(windows, "burgers"), (20, 64), 12, 2, 32, 1500),
    "darcy, a = 0.1 or 1": Case("PDEBench", partial(pairs, "darcy", grid=26, contrast=(0.1, 1.0)), (20,), 12, 2, 10),
    "burgers, final state": Case("Li", partial(pairs, "burgers"), (64,), 16, 0, 20, periods=10, loss=relative_l2),
    "darcy, a = 3 or 12": Case("Li", partial(pairs, "darcy", grid=23), (32,), 12, 9, 20, loss=relative_l2, encoded=True),
    "navier–stokes, ten states": Case("Li", flow, (20,), 12, 0, 10, loss=relative_l2, future=10),
}


@torch.no_grad()
def nrmse(predict: Callable[[torch.Tensor], torch.Tensor], fields: torch.Tensor, future: int) -> float:
    """Return PDEBench's nRMSE, which is Li's relative L2 error, averaged over samples and every fourth of their windows."""
    fields = fields[:, ::4].flatten(0, 1)
    truth = fields[..., -future:]
    error = (predict(fields[..., :-future]) - truth).square().flatten(1).mean(1).sqrt()
    return float((error / truth.square().flatten(1).mean(1).sqrt().clamp_min(1e-3)).mean())


def train(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train the model of a script and return its errors."""
    torch.set_num_threads(1)
    case, (steps, lr), start = CASES[config["equation"]], (config["steps"], config["lr"]), time.perf_counter()
    training, validation, test = case.splits()
    mean, std = torch.zeros(training.shape[-1]), torch.ones(training.shape[-1])
    if case.encoded:
        mean, std = training.mean((0, 1)), training.std((0, 1)) + 1e-5
    torch.manual_seed(config["seed"])
    inputs, future = training.shape[-1] - case.future, case.future
    model = FNO(training.ndim - 3, inputs, case.modes, config["width"], case.padding)

    def predict(x: torch.Tensor) -> torch.Tensor:
        for _ in range(future):
            frames = x[..., -inputs:]
            state = model((frames - mean[..., :inputs]) / std[..., :inputs]) * std[..., -1:] + mean[..., -1:]
            x = torch.cat([x, state], -1)
        return x[..., -future:]

    if config["optimizer"] == "MuSOAP":
        nm.parametrize(model, rule=config["rule"])
        optimizer, schedule = nm.MuSOAP(model, steps=steps), []
    elif config["optimizer"] == "Adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=1e-4)
        schedule = [StepLR(optimizer, steps // case.periods, 0.5)]
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-4)
        schedule = [CosineAnnealingLR(optimizer, steps)]
    generator = torch.Generator().manual_seed(config["seed"] + 100)
    for _ in range(steps):
        sample = torch.randint(0, training.shape[0], (case.batch,), generator=generator)
        window = torch.randint(0, training.shape[1], (case.batch,), generator=generator)
        batch = training[sample, window]
        optimizer.zero_grad()
        case.loss(predict(batch[..., :-future]), batch[..., -future:]).backward()
        optimizer.step()
        for own in schedule:
            own.step()
    seconds = time.perf_counter() - start
    return {"loss": nrmse(predict, validation, future), "test_loss": nrmse(predict, test, future), "seconds": seconds}


#: Method → optimizer, initial rate of a search, and its number of rates. MuSOAP has its own rate.
METHODS = {
    "the two lines, untuned": ("MuSOAP", 1.0, 1),
    "the script's Adam": ("Adam", 1e-3, 1),
    "AdamW with a cosine, tuned": ("AdamW", 4e-3, 12),
}


@dataclass(frozen=True)
class PublishedCode(Experiment):
    """Train the models of published scripts with their own optimizer, with tuned AdamW, and with MuSOAP."""

    about: str = "FNO scripts of PDEBench and Zongyi Li with MuSOAP, with their own optimizer and with tuned AdamW"
    cases: Mapping[str, Case] = field(default_factory=CASES.copy)
    seeds: tuple[int, ...] = (0, 1, 2)

    notes = "Relative L2 error (PDEBench's nRMSE) on the test set, as the mean and range of the seeds."

    def tiny(self) -> PublishedCode:
        """Return a script on one axis and one on two, with few steps."""
        cases = {name: replace(CASES[name], widths=(8,), steps=10) for name in ("advection", "darcy, a = 0.1 or 1")}
        return replace(self, cases=cases, seeds=(0,))

    @remembered
    def run(self, equation: str, width: int, method: str, lr: float, seed: int) -> Run:
        """Return one training."""
        optimizer, case = METHODS[method][0], self.cases[equation]
        lr, more = (None, {"rule": "operator-norm"}) if optimizer == "MuSOAP" else (lr, {})
        config = {"equation": equation, "width": width, "optimizer": optimizer, "lr": lr, "steps": case.steps, "seed": seed}
        config |= more
        version = {"published-code": VERSION, "rules": RULE_VERSION}
        size = f"{equation}, width {width}, {method.replace('the script', case.code)}"
        return Run({**config, "version": version}, config, train=train, size=size, params={"lr": lr}, seed=seed)

    def cells(self) -> Iterator[tuple[str, int, str]]:
        """Return all equations, widths and methods."""
        return ((name, width, method) for name, case in self.cases.items() for width in case.widths for method in METHODS)

    def searched(self, records: Any, cell: tuple[str, int, str]) -> Search:
        """Return the state of the search with the first seed."""
        _, start, most = METHODS[cell[2]]
        return searched(lambda lr: loss_of(records.get(self.run(*cell, lr, self.seeds[0]))), start, most, spread=2.0)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs: the search, then all seeds at the best rate."""
        for cell in self.cells():
            search = self.searched(records, cell)
            runs = product(search.missing, self.seeds[:1]) if search.missing else product([search.best], self.seeds)
            yield from missing(records, (self.run(*cell, *run) for run in runs))

    def errors(self, records: Any, cell: tuple[str, int, str]) -> list[float]:
        """Return the test errors of all seeds at the best rate, or an empty list if some have no record."""
        best = self.searched(records, cell).best
        found = test_errors(records, (self.run(*cell, best, seed) for seed in self.seeds)) if best else []
        return found if len(found) == len(self.seeds) else []

    def numbers(self, records: Any) -> dict[str, str]:
        """Return a table of errors, and the mean and largest ratio of mean errors to those of tuned AdamW."""
        rows, ratios = [], []
        for name, case in self.cases.items():
            for width in case.widths:
                errors = [self.errors(records, (name, width, method)) for method in METHODS]
                ratio = [fmean(errors[0]) / fmean(errors[2])] if errors[0] and errors[2] else []
                ratios += ratio
                cells = [f"{fmean(e):.2g} ({min(e):.2g} to {max(e):.2g})" if e else "–" for e in errors]
                title = name.capitalize().replace("stokes", "Stokes")
                rows.append([case.code, title, str(width), *cells, f"{ratio[0]:.2f}" if ratio else "–"])
        found = {"errors": table(["script", "equation", "width", *METHODS, "two lines / tuned AdamW"], rows)}
        if ratios:
            found |= {"over.mean": f"{geometric_mean(ratios):.2f}", "over.most": f"{max(ratios):.2f}"}
        return found
