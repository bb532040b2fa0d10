"""What the problems of evolution share: a step of order four for stiff equations in Fourier space, fields, and grids."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.problems.base import Problem, check_even
from neuralop_mup.problems.data import Pair

__all__ = [
    "Evolution",
    "advance_on_square",
    "check_resolved",
    "etdrk4",
    "least_points",
    "on_data_grid",
    "quarter_modes",
    "smooth_field",
]

# Points on the circle over which the coefficients of a step are averaged: with 32 the mean is exact to rounding.
_CIRCLE = 32
# A state may be so many times 1 or what it begins with: more is the scheme's, never the equation's.
_MOST = 10.0
# The highest modes kept may be this large, out of the largest one.
_TAIL = 1e-3
# Where the Gaussian spectrum of a smooth field is cut, relative to its first entry.
_LEAST_STD = 1e-8
# How much of it a solver may drop.
_DROPPED_STD = 1e-4


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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_even("grid", self.grid)

    @property
    def fine_grid(self) -> int:
        """Points per axis that the solver works on."""
        return self.grid * math.ceil(self.least / self.grid)

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Initial states and solutions, on the data's grid; see :meth:`Problem.solve`."""
        start = self.start(generators)
        return on_data_grid(self, start), on_data_grid(self, self.advance(start))


def on_data_grid(problem: Problem, fields: torch.Tensor) -> torch.Tensor:
    """Fields on the solver's grid at the points of the data."""
    return fields[(..., *(slice(None, None, problem.fine_grid // problem.grid),) * problem.n_dim)]


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


def advance_on_square(
    equation: str,
    state: torch.Tensor,
    linear: torch.Tensor,
    rest: Callable[[torch.Tensor], torch.Tensor],
    *,
    time: float,
    dt: float,
    least: float,
) -> torch.Tensor:
    """Fields on the periodic unit square at ``time``, by :func:`etdrk4` of the modes that :func:`quarter_modes` keeps.

    Parameters
    ----------
    equation : str
        What it is called.
    state : torch.Tensor, shape (..., n, n)
        Initial fields at x_i = 0, 1/n, …, (n − 1)/n; n even. Modes of n/4 and above are dropped.
    linear, rest, time, dt
        As for :func:`etdrk4`.
    least : float
        Points per axis that resolve the solution.

    Returns
    -------
    torch.Tensor, float64, shape of ``state``

    Raises
    ------
    MupError
        For a solution that diverges, or a grid too coarse for it.
    """
    n = state.shape[-1]
    _, kept, tail = quarter_modes(n)
    v = etdrk4(torch.fft.rfft2(state.to(torch.float64)) * kept, linear, rest, time, dt)
    end = torch.fft.irfft2(v, s=(n, n))
    if not end.abs().max() <= _MOST * max(1.0, float(state.abs().max())):
        raise MupError(f"The {equation} solution diverges with steps of {dt:g}; take shorter steps (dt).")
    check_resolved(equation, v, tail, n, least)
    return end


def quarter_modes(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the modes of n × n real numbers: minus their Laplacian on the unit square, those below n/4, the highest of them.

    Products of three fields of modes below n/4 give these modes without aliasing.
    """
    k1 = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)[:, None]
    k2 = torch.arange(n // 2 + 1, dtype=torch.float64)
    high = math.ceil(n / 4) - 1
    kept = (k1.abs() <= high) & (k2 <= high)
    return (2 * math.pi) ** 2 * (k1**2 + k2**2), kept, kept & ((k1.abs() == high) | (k2 == high))


def check_resolved(equation: str, v: torch.Tensor, tail: torch.Tensor, n: int, least: float) -> None:
    """Raise MupError where the largest of the modes ``tail`` says that n points an axis, or at least ``least``, are too few.

    It is compared with the largest mode, of the worst sample.
    """
    size, over = v.abs(), tuple(range(-tail.ndim, 0))
    ratio = float(((size * tail).amax(over) / size.amax(over).clamp(min=1e-300)).max())
    if not ratio <= _TAIL:
        raise MupError(
            f"{n} points an axis do not resolve {equation}: the highest modes are {ratio:.0e} of the largest one. Use about "
            f"{math.ceil(least) if least > n else 2 * n} points."
        )


def _waves(length: float, least: float) -> float:
    """Where the spectrum of a smooth field falls to ``least``, in waves an axis."""
    return math.sqrt(-4 * math.log(least)) / (2 * math.pi * length)


def least_points(length: float) -> int:
    """Points per axis of which :func:`quarter_modes` keeps what counts of a smooth field."""
    return math.ceil(4 * _waves(length, _DROPPED_STD))


def smooth_field(generators: list[np.random.Generator], n: int, length: float) -> torch.Tensor:
    """Gaussian random field of variance 1 on the periodic unit square, with correlation exp(−r² / 2 length²).

    The correlation is summed over the periods; the constant mode is left out. What a generator draws does not depend on
    ``n``.

    Parameters
    ----------
    generators : list of numpy.random.Generator
        One a field.
    n : int
        Points per axis x = 0, 1/n, …, (n − 1)/n.
    length : float
        Correlation length, above 0.

    Returns
    -------
    torch.Tensor, float64, shape (len(generators), n, n)
    """
    k = torch.arange(1, math.ceil(_waves(length, _LEAST_STD)) + 1, dtype=torch.float64)
    std = math.sqrt(2) * torch.exp(-((2 * math.pi * length * k) ** 2) / 4)
    angle = 2 * math.pi / n * torch.arange(n, dtype=torch.float64)[:, None] * k
    basis = torch.cat((torch.ones(n, 1, dtype=torch.float64), std * torch.cos(angle), std * torch.sin(angle)), dim=1)
    normals = np.stack([generator.standard_normal((basis.shape[1],) * 2) for generator in generators])
    normals[:, 0, 0] = 0
    waves = float(std.square().sum())
    variance = waves * (2 + waves)  # of the product of two axes, each 1 + waves, without the constant
    return basis @ torch.from_numpy(normals) @ basis.T / math.sqrt(variance)
