"""What evolution problems share: two grids, trajectories, and a step of order four for stiff equations in Fourier space."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.problem_data import SPLITS, Pair, ProblemData
from neuralop_mup.lab.problems.base import Problem

# Points on the circle over which the coefficients of a step are averaged: with 32 the mean is exact to rounding.
_CIRCLE = 32
# The highest modes kept may be this large, out of the largest one.
_TAIL = 1e-3


@dataclass(frozen=True, kw_only=True)
class Evolution(Problem):
    """A state to the one ``time`` later; the data has every so-many-th point of the grid on which it is solved.

    Each has ``least``, the points per axis that resolve it, ``start(generators)``, its initial states, and
    ``advance(state)``, the state ``time`` later; both on the solver's grid.
    """

    n_train: int = 200
    n_val: int = 50
    n_test: int = 50
    grid: int = 32

    @property
    def fine_grid(self) -> int:
        """Points per axis that the solver works on."""
        return self.grid * math.ceil(self.least / self.grid)

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Initial states and solutions, on the data's grid; see :meth:`Problem.solve`."""
        start = self.start(generators)
        return on_data_grid(self, start), on_data_grid(self, self.advance(start))


@dataclass(frozen=True, kw_only=True)
class InTime(Problem):
    """What the problems in time share; ``start`` and ``advance`` are those of the problem itself.

    Parameters
    ----------
    n_train, n_val, n_test : int
        Trajectories of each split.
    time : float
        From one state to the next.
    states : int
        Of each trajectory.
    every : int
        Every so-many-th pair of a training trajectory is trained on: pairs that follow each other are nearly the same, and
        training is to see all of the time that a rollout passes through.
    """

    n_train: int = 40
    n_val: int = 10
    n_test: int = 10
    states: int = 60
    every: int = 3

    chunk: ClassVar[int] = 10
    grid_shape = Problem.grid_shape  # of space alone

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """All states but the last, and all but the first, on the data's grid: the state next to each."""
        states = [self.start(generators)]
        for _ in range(self.states - 1):
            states.append(self.advance(states[-1]))
        u = torch.stack([on_data_grid(self, state) for state in states], dim=1)
        return u[:, :-1], u[:, 1:]

    def _data(self, tensors: dict[str, torch.Tensor]) -> ProblemData:
        every = {split: self.every if split == "train" else 1 for split in SPLITS}
        pairs = {s: tuple(tensors[f"{s}_{k}"][:, :: every[s]].flatten(0, 1) for k in "xy") for s in SPLITS}
        return ProblemData(**pairs, trajectory=self.states - 1)


def on_data_grid(problem: Problem, fields: torch.Tensor) -> torch.Tensor:
    """Fields on the solver's grid at the points of the data, with an axis of the channels."""
    here = fields[(..., *(slice(None, None, problem.fine_grid // problem.grid),) * problem.n_dim)]
    return here.reshape(len(here), problem.in_channels, *here.shape[-problem.n_dim :])


def etdrk4(
    v: torch.Tensor, linear: torch.Tensor, rest: Callable[[torch.Tensor], torch.Tensor], time: float, dt: float
) -> torch.Tensor:
    """The state of v' = linear · v + rest(v) at ``time``.

    Exponential time differencing with Runge-Kutta of order 4: the linear part is exact, whatever its size. The
    coefficients, which cancel near linear · dt = 0, are means over a circle around it. Steps are all alike, so that a sample
    does not depend on the others of its batch.

    Parameters
    ----------
    v : torch.Tensor, complex
        Fourier modes of the initial state.
    linear : torch.Tensor
        Multiplies each mode, real or complex; broadcast to the shape of ``v``.
    rest : callable
        The other terms, modes to modes.
    time : float
        End time.
    dt : float
        Longest step.

    References
    ----------
    Kassam and Trefethen, "Fourth-order time-stepping for stiff PDEs", SIAM Journal on Scientific Computing 26 (2005).
    """
    steps = math.ceil(time / dt * (1 - 1e-12))
    dt = time / steps
    angle = 2 * math.pi * (torch.arange(_CIRCLE, dtype=torch.float64) + 0.5) / _CIRCLE
    z = dt * linear[..., None] + torch.polar(torch.ones_like(angle), angle)
    e = torch.exp(z)

    def mean(values: torch.Tensor) -> torch.Tensor:
        average = dt * values.mean(-1)
        return average if linear.is_complex() else average.real

    whole, half = torch.exp(dt * linear), torch.exp(dt / 2 * linear)
    stage = mean((torch.exp(z / 2) - 1) / z)
    first = mean((-4 - z + e * (4 - 3 * z + z**2)) / z**3)
    middle = mean((2 + z + e * (z - 2)) / z**3) * 2
    last = mean((-4 - 3 * z - z**2 + e * (4 - z)) / z**3)
    for _ in range(steps):
        n = rest(v)
        a = half * v + stage * n
        na = rest(a)
        nb = rest(half * v + stage * na)
        nc = rest(half * a + stage * (2 * nb - n))
        v = whole * v + first * n + middle * (na + nb) + last * nc
    return v


def check_resolved(
    equation: str, v: torch.Tensor, tail: torch.Tensor, points: str, n: int, least: float, most: float = _TAIL
) -> None:
    """Raise MupError where the largest of the modes ``tail`` says that n points an axis, or at least ``least``, are too few.

    It is compared with the largest mode, of the worst sample.
    """
    size, over = v.abs(), tuple(range(-tail.ndim, 0))
    ratio = float(((size * tail).amax(over) / size.amax(over).clamp(min=1e-300)).max())
    if not ratio <= most:
        raise MupError(
            f"{points} do not resolve {equation}: the highest modes are {ratio:.0e} of the largest one. Use about "
            f"{math.ceil(least) if least > n else 2 * n} points an axis."
        )
