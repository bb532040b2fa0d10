"""What the solvers of evolution problems share: a step of order four for stiff equations in Fourier space, and fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.validation import check_positive

__all__ = [
    "check_length",
    "etdrk4",
    "evolve",
    "finer",
    "highest_modes",
    "least_points",
    "quarter_modes",
    "smooth_field",
    "steps_of",
]

# Points on the circle over which the coefficients of a step are averaged: with 32 the mean is exact to rounding.
_CIRCLE = 32
# More steps than this are a mistake in the arguments.
_MOST_STEPS = 1e6
# Where the Gaussian spectrum of a smooth field is cut, relative to its first entry.
_LEAST_STD = 1e-8
# How much of it a solver may drop.
_DROPPED_STD = 1e-4


def steps_of(time: float, dt: float) -> int:
    """Number of equal steps up to ``time``, none longer than ``dt``."""
    if time / dt > _MOST_STEPS:
        raise MupError(f"{time / dt:.0e} steps would be needed up to t = {time:g}: take longer steps (dt).")
    return math.ceil(time / dt * (1 - 1e-12))


def etdrk4(
    v: torch.Tensor, linear: torch.Tensor, rest: Callable[[torch.Tensor], torch.Tensor], dt: float, steps: int
) -> Iterator[torch.Tensor]:
    """States of v' = linear · v + rest(v) after each of ``steps`` steps of length ``dt``.

    Exponential time differencing with Runge-Kutta of order 4: the linear part is exact, whatever its size. The
    coefficients, which cancel near linear · dt = 0, are means over a circle around it.

    Parameters
    ----------
    v : torch.Tensor, complex
        Fourier modes of the initial state.
    linear : torch.Tensor
        Multiplies each mode, real or complex; broadcast to the shape of ``v``.
    rest : callable
        The other terms, modes to modes.
    dt : float
        Length of a step.
    steps : int
        Number of steps.

    References
    ----------
    Kassam and Trefethen, "Fourth-order time-stepping for stiff PDEs", SIAM Journal on Scientific Computing 26 (2005).
    """
    angle = 2 * math.pi * (torch.arange(_CIRCLE, dtype=torch.float64, device=v.device) + 0.5) / _CIRCLE
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
        yield v


def evolve(
    equation: str,
    v: torch.Tensor,
    linear: torch.Tensor,
    rest: Callable[[torch.Tensor], torch.Tensor],
    *,
    time: float,
    dt: float,
    most: float,
) -> torch.Tensor:
    """Modes of a field of two dimensions at ``time`` by :func:`etdrk4`.

    All steps are alike, so that a sample does not depend on the others of its batch.

    Raises
    ------
    MupError
        When the root mean square of a field is about ``most`` or more, which the equation does not allow.
    """
    steps = steps_of(time, dt)
    for step, state in enumerate(etdrk4(v, linear, rest, time / steps, steps), 1):
        if not float(state.abs().square().sum((-2, -1)).max().sqrt()) <= most * v.shape[-2] ** 2:
            raise MupError(
                f"The {equation} solution diverges at step {step} (t = {step * time / steps:.3g} of {time:g}) with steps of "
                f"{time / steps:.2g}; take shorter steps (dt)."
            )
    return state


def quarter_modes(n: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of the modes of n × n real numbers: minus their Laplacian on the unit square, those below n/4, the highest of them.

    Products of three fields of modes below n/4 give these modes without aliasing.
    """
    k1 = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64, device=device)[:, None]
    k2 = torch.arange(n // 2 + 1, dtype=torch.float64, device=device)
    high = math.ceil(n / 4) - 1
    kept = (k1.abs() <= high) & (k2 <= high)
    return (2 * math.pi) ** 2 * (k1**2 + k2**2), kept, kept & ((k1.abs() == high) | (k2 == high))


def highest_modes(v: torch.Tensor, tail: torch.Tensor) -> float:
    """Size of the largest of the modes ``tail`` over that of the largest mode; the worst of the batch."""
    size, over = v.abs(), tuple(range(-tail.ndim, 0))
    return float(((size * tail).amax(over) / size.amax(over).clamp(min=1e-300)).max())


def finer(n: int, least: float) -> int:
    """Points an axis to take instead of n that were too few: ``least``, or 2 n where that is no more."""
    return math.ceil(least) if least > n else 2 * n


def check_length(length: float) -> None:
    """Raise MupError unless ``length`` is above 0 and no more than half the period."""
    check_positive("length", length)
    if length > 0.5:
        raise MupError(f"length must be at most 0.5, half the period of the field, but it is {length}.")


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
