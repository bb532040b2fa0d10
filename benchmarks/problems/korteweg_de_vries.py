"""The Korteweg–de Vries equation on the periodic unit interval: the initial state to the state at ``time``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems.burgers import periodic_field
from problems.spectral import Evolution, InTime, check_resolved, etdrk4

# A soliton of height A is A sech²(x / w), w = δ √(12 / A); its Fourier coefficients fall as z / sinh z, z = π² w k. With
# this many points times δ, the highest mode kept (a third of the points) is below 1e-4 for A up to 8.
_POINTS_TIMES_DISPERSION = 3.5
# What ∫u² may change by, relative to itself; the equation keeps it.
_DRIFT = 1e-4


def solve_korteweg_de_vries(u0: torch.Tensor, dispersion: float, time: float, *, dt: float | None = None) -> torch.Tensor:
    """Solve u_t + u u_x + δ² u_xxx = 0 on the periodic unit interval.

    Fourier pseudo-spectral in space, products dealiased by the 2/3 rule; in time :func:`etdrk4`, the dispersion exact.
    The soliton 3c sech²(√c (x − ct) / 2δ) keeps its shape and travels at c.

    Parameters
    ----------
    u0 : torch.Tensor, shape (..., n)
        Initial states at x = 0, 1/n, …, (n − 1)/n. Modes of n/3 and above are dropped.
    dispersion : float
        δ.
    time : float
        End time.
    dt : float, optional
        Longest step; default: 0.05 / n, for states of size 1.

    Returns
    -------
    torch.Tensor, float64, shape of ``u0``
        u at ``time``.

    Raises
    ------
    MupError
        For a solution that does not keep ∫u², or a grid too coarse for the dispersion.
    """
    n = u0.shape[-1]
    dt = dt or 0.05 / n
    k = torch.arange(n // 2 + 1, dtype=torch.float64)
    kept = k < n / 3
    half_derivative = -0.5j * 2 * math.pi * k * kept  # of −(u²/2)_x
    linear = 1j * dispersion**2 * (2 * math.pi * k) ** 3

    def steepening(v: torch.Tensor) -> torch.Tensor:
        return half_derivative * torch.fft.rfft(torch.fft.irfft(v, n=n).square_())

    start = torch.fft.rfft(u0.to(torch.float64)) * kept
    v, energy = etdrk4(start, linear, steepening, time, dt), _energy(start)
    drift = float(((_energy(v) - energy).abs() / energy.clamp(min=1e-300)).max())
    if not drift <= _DRIFT:
        raise MupError(
            f"The Korteweg–de Vries solution does not keep ∫u²: it is {drift:.0e} off at t = {time:g} with steps of "
            f"{dt:.2g} on {n} points; take shorter steps (dt)."
        )
    # On many small grids no mode lies between 0.3 n and n/3: there the highest kept one is looked at.
    high = min(0.3 * n, math.ceil(n / 3) - 1)
    tail, least = kept & (k >= high), _POINTS_TIMES_DISPERSION / dispersion
    check_resolved("Korteweg–de Vries", v, tail, f"{n} points", n, least)
    return torch.fft.irfft(v, n=n)


def _energy(v: torch.Tensor) -> torch.Tensor:
    """∫u² up to a factor, without the mean, which the scheme keeps."""
    return v.abs().square()[..., 1:].sum(-1)


@dataclass(frozen=True, kw_only=True)
class KortewegDeVries(Evolution):
    """Korteweg–de Vries on the periodic unit interval: u0 → u(·, time).

    A wave steepens as under Burgers' equation, but instead of a front it sheds a train of solitons, which travel at
    speeds of their own and pass through each other. Zabusky and Kruskal's experiment (a cosine on an interval of length 2
    with δ = 0.022) is this equation with ``dispersion=0.011``.

    Parameters
    ----------
    dispersion : float
        δ of u_t + u u_x + δ² u_xxx = 0.
    grid : int
        Points of the data.
    waves : int
        Modes of the initial states, drawn by :func:`periodic_field`.
    n_train, n_val, n_test : int
        Samples of each split.
    time : float
        When the solution is taken.
    seed : int
        Seed of the initial states.

    References
    ----------
    Zabusky and Kruskal, "Interaction of 'solitons' in a collisionless plasma and the recurrence of initial states",
    Physical Review Letters 15 (1965).
    """

    n_train: int = 400
    n_val: int = 100
    n_test: int = 100
    grid: int = 128
    dispersion: float = 0.02
    time: float = 0.5
    waves: int = 8

    name: ClassVar[str] = "korteweg-de-vries"
    n_dim: ClassVar[int] = 1
    chunk: ClassVar[int] = 200

    @property
    def least(self) -> float:
        """Points that resolve the solitons."""
        return _POINTS_TIMES_DISPERSION / self.dispersion

    def start(self, generators: list[np.random.Generator]) -> torch.Tensor:
        """Initial states, on the solver's grid."""
        normals = np.stack([generator.standard_normal((self.waves, 2)) for generator in generators])
        return periodic_field(torch.from_numpy(normals), self.fine_grid)

    def advance(self, state: torch.Tensor) -> torch.Tensor:
        """The state ``time`` later, on the solver's grid."""
        return solve_korteweg_de_vries(state, self.dispersion, self.time)


@dataclass(frozen=True, kw_only=True)
class KortewegDeVriesInTime(InTime, KortewegDeVries):
    """Solitons that pass through each other."""

    time: float = 0.05

    name: ClassVar[str] = "korteweg-de-vries-in-time"
