"""Reactions on the periodic unit square: Allen and Cahn's two phases, and Gray and Scott's patterns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from neuralop_mup.errors import MupError
from problems.spectral import Evolution, InTime, check_resolved, etdrk4

# A state may be so many times 1 or what it begins with: more is the scheme's, never the equation's.
_MOST = 10.0
# Where the Gaussian spectrum of a smooth field is cut, relative to its first entry.
_LEAST_STD = 1e-8
# How much of it a solver may drop.
_DROPPED_STD = 1e-4
# The wall between the phases is tanh(x / √2 ε); its Fourier coefficients fall as exp(−√2 π² ε k). With this many points
# times ε, the highest mode kept (a quarter of the points) is below 1e-4.
_POINTS_TIMES_WIDTH = 3.0
# Spots and stripes are some lengths √(D_v / k) across. With this many points a length, the highest modes kept (a quarter of
# the points) are below a tenth of what is allowed (measured for rates between 0.03 and 0.065).
_POINTS_PER_LENGTH = 3.0


def advance_on_square(
    equation: str,
    state: torch.Tensor,
    linear: Callable[[torch.Tensor], torch.Tensor],
    rest: Callable[[torch.Tensor], torch.Tensor],
    *,
    time: float,
    dt: float,
    least: float,
) -> torch.Tensor:
    """Fields on the periodic unit square at ``time``, by :func:`etdrk4` of their modes below n/4.

    Products of three fields of such modes give these modes without aliasing.

    Parameters
    ----------
    equation : str
        What it is called.
    state : torch.Tensor, shape (..., n, n)
        Initial fields at x_i = 0, 1/n, …, (n − 1)/n; n even. Modes of n/4 and above are dropped.
    linear : callable
        Of minus the Laplacian of each mode, what it is multiplied by.
    rest : callable
        The other terms: modes, of fields.
    time, dt : float
        End time, and the longest step.
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
    k1 = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)[:, None]
    k2 = torch.arange(n // 2 + 1, dtype=torch.float64)
    high = math.ceil(n / 4) - 1
    kept = (k1.abs() <= high) & (k2 <= high)

    def change(v: torch.Tensor) -> torch.Tensor:
        return rest(torch.fft.irfft2(v, s=(n, n))) * kept

    start = torch.fft.rfft2(state.to(torch.float64)) * kept
    v = etdrk4(start, linear((2 * math.pi) ** 2 * (k1**2 + k2**2)), change, time, dt)
    end = torch.fft.irfft2(v, s=(n, n))
    if not end.abs().max() <= _MOST * max(1.0, float(state.abs().max())):
        raise MupError(f"The {equation} solution diverges with steps of {dt:g}; take shorter steps (dt).")
    check_resolved(equation, v, kept & ((k1.abs() == high) | (k2 == high)), f"{n}² points", n, least)
    return end


def _waves(length: float, least: float) -> float:
    """Where the spectrum of a smooth field falls to ``least``, in waves an axis."""
    return math.sqrt(-4 * math.log(least)) / (2 * math.pi * length)


def least_points(length: float) -> int:
    """Points per axis of which :func:`advance_on_square` keeps what counts of a smooth field."""
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


def solve_allen_cahn(u0: torch.Tensor, width: float, time: float, *, dt: float = 0.05) -> torch.Tensor:
    """Solve u_t = ε² Δu + u − u³ on the periodic unit square; see :func:`advance_on_square`.

    Parameters
    ----------
    u0 : torch.Tensor, shape (..., n, n)
        Initial states.
    width : float
        ε: the wall between u = −1 and u = 1 is tanh(x / √2 ε).
    time, dt : float
        End time, and the longest step.
    """
    return advance_on_square(
        "Allen–Cahn",
        u0,
        lambda square: 1 - width**2 * square,
        lambda u: -torch.fft.rfft2(u**3),
        time=time,
        dt=dt,
        least=_POINTS_TIMES_WIDTH / width,
    )


@dataclass(frozen=True, kw_only=True)
class AllenCahn(Evolution):
    """Allen–Cahn on the periodic unit square: u0 → u(·, time).

    The initial field falls apart into regions of u = −1 and u = 1 within a few units of time; then the walls between
    them, of width ε, shorten by their curvature.

    Parameters
    ----------
    width : float
        ε of u_t = ε² Δu + u − u³.
    grid : int
        Points of the data per axis.
    length, amplitude : float
        Correlation length and standard deviation of the initial field, drawn by :func:`smooth_field`.
    n_train, n_val, n_test : int
        Samples of each split.
    time : float
        When the solution is taken.
    seed : int
        Seed of the initial states.

    References
    ----------
    Allen and Cahn, "A microscopic theory for antiphase boundary motion and its application to antiphase domain
    coarsening", Acta Metallurgica 27 (1979).
    """

    width: float = 0.05
    time: float = 4.0
    length: float = 0.1
    amplitude: float = 0.3

    name: ClassVar[str] = "allen-cahn"
    n_dim: ClassVar[int] = 2
    chunk: ClassVar[int] = 10

    @property
    def least(self) -> float:
        """Points per axis that resolve the walls and the initial field."""
        return max(_POINTS_TIMES_WIDTH / self.width, least_points(self.length))

    def start(self, generators: list[np.random.Generator]) -> torch.Tensor:
        """Initial states, on the solver's grid."""
        return self.amplitude * smooth_field(generators, self.fine_grid, self.length)

    def advance(self, state: torch.Tensor) -> torch.Tensor:
        """The state ``time`` later, on the solver's grid."""
        return solve_allen_cahn(state, self.width, self.time)


def solve_gray_scott(
    state: torch.Tensor,
    time: float,
    *,
    diffusion: tuple[float, float],
    feed: float,
    kill: float,
    dt: float = 2.0,
) -> torch.Tensor:
    """Solve u_t = D_u Δu − u v² + F (1 − u), v_t = D_v Δv + u v² − (F + k) v; see :func:`advance_on_square`.

    Parameters
    ----------
    state : torch.Tensor, shape (..., 2, n, n)
        Initial u and v.
    time, dt : float
        End time, and the longest step.
    diffusion : tuple of two floats
        D_u and D_v.
    feed, kill : float
        F and k.
    """

    def linear(square: torch.Tensor) -> torch.Tensor:
        return torch.stack((-feed - diffusion[0] * square, -feed - kill - diffusion[1] * square))

    def reaction(fields: torch.Tensor) -> torch.Tensor:
        u, v = fields.unbind(-3)
        eaten = torch.fft.rfft2(u * v.square())
        change = torch.stack((-eaten, eaten), dim=-3)
        change[..., 0, 0, 0] += feed * fields.shape[-1] ** 2
        return change

    least = _least(diffusion[1], kill)
    return advance_on_square("Gray–Scott", state, linear, reaction, time=time, dt=dt, least=least)


def _least(diffusion: float, kill: float) -> int:
    """Points per axis that resolve the patterns."""
    return math.ceil(_POINTS_PER_LENGTH * math.sqrt(kill / diffusion))


@dataclass(frozen=True, kw_only=True)
class GrayScott(Evolution):
    """Gray–Scott on the periodic unit square: (u0, v0) → (u, v)(·, time), two channels.

    v eats u, which is fed at the rate F, and dies at the rate F + k. Where v begins is drawn at random: v0 = s/4 and
    u0 = 1 − s/2 with s between 0 and 1, a sigmoid of a Gaussian field (:func:`smooth_field`), for u and v another one each.
    From there v spreads and falls apart into stripes.

    Parameters
    ----------
    diffusion : tuple of two floats
        D_u and D_v.
    feed, kill : float
        F and k.
    grid : int
        Points of the data per axis.
    length : float
        Correlation length of the fields.
    n_train, n_val, n_test : int
        Samples of each split.
    time : float
        When the solution is taken.
    seed : int
        Seed of the initial states.

    References
    ----------
    Pearson, "Complex patterns in a simple system", Science 261 (1993).
    """

    diffusion: tuple[float, float] = (1.5e-4, 0.75e-4)
    feed: float = 0.04
    kill: float = 0.06
    time: float = 60.0
    length: float = 0.15

    name: ClassVar[str] = "gray-scott"
    n_dim: ClassVar[int] = 2
    in_channels: ClassVar[int] = 2
    out_channels: ClassVar[int] = 2
    chunk: ClassVar[int] = 5

    @property
    def least(self) -> float:
        """Points per axis that resolve the patterns and the initial state: its sigmoid doubles the waves that count."""
        return max(_least(self.diffusion[1], self.kill), 2 * least_points(self.length))

    def start(self, generators: list[np.random.Generator]) -> torch.Tensor:
        """Initial states, on the solver's grid."""
        fields = torch.stack([smooth_field(generators, self.fine_grid, self.length) for _ in range(2)], dim=1)
        occupied = torch.sigmoid(3 * fields - 1)
        return torch.stack((1 - occupied[:, 0] / 2, occupied[:, 1] / 4), dim=1)

    def advance(self, state: torch.Tensor) -> torch.Tensor:
        """The state ``time`` later, on the solver's grid."""
        return solve_gray_scott(state, self.time, diffusion=self.diffusion, feed=self.feed, kill=self.kill)


@dataclass(frozen=True, kw_only=True)
class GrayScottInTime(InTime, GrayScott):
    """Patterns that grow and divide."""

    time: float = 5.0

    name: ClassVar[str] = "gray-scott-in-time"
