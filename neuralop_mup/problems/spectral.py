"""What the solvers of evolution problems share: a step of order four for stiff equations in Fourier space, and fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch

__all__ = ["etdrk4", "field_modes", "highest_modes", "smooth_field"]

# Points on the circle over which the coefficients of a step are averaged: with 32 the mean is exact to rounding.
_CIRCLE = 32
# Where the Gaussian spectrum of a smooth field is cut, relative to its first entry.
_LEAST_STD = 1e-8


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


def highest_modes(v: torch.Tensor, tail: torch.Tensor, axes: int) -> float:
    """Size of the largest of the modes ``tail`` over that of the largest mode; the worst of the batch."""
    size, over = v.abs(), tuple(range(-axes, 0))
    return float(((size * tail).amax(over) / size.amax(over).clamp(min=1e-300)).max())


def field_modes(length: float) -> int:
    """Waves an axis that :func:`smooth_field` holds at this correlation length."""
    return math.ceil(math.sqrt(-4 * math.log(_LEAST_STD)) / (2 * math.pi * length))


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
    k = torch.arange(1, field_modes(length) + 1, dtype=torch.float64)
    std = math.sqrt(2) * torch.exp(-((2 * math.pi * length * k) ** 2) / 4)
    angle = 2 * math.pi / n * torch.arange(n, dtype=torch.float64)[:, None] * k
    basis = torch.cat((torch.ones(n, 1, dtype=torch.float64), std * torch.cos(angle), std * torch.sin(angle)), dim=1)
    normals = np.stack([generator.standard_normal((basis.shape[1],) * 2) for generator in generators])
    normals[:, 0, 0] = 0
    variance = float(basis[0].square().sum()) ** 2 - 1  # the same at every point
    return basis @ torch.from_numpy(normals) @ basis.T / math.sqrt(variance)
