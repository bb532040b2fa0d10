"""A growing interface in three dimensions: the Kardar–Parisi–Zhang equation without noise, solved by the Cole–Hopf map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from problems.spectral import Evolution

_SPACE = (-3, -2, -1)
#: Waves of an initial field along each axis.
_WAVES = 5


def _squares(n: int) -> torch.Tensor:
    """(2π)² k² of the modes of a field on n³ points."""
    k = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)
    return (2 * math.pi) ** 2 * (k[:, None, None] ** 2 + k[:, None] ** 2 + k[: n // 2 + 1] ** 2)


def solve_interface(h0: torch.Tensor, viscosity: float, time: float) -> torch.Tensor:
    """Solve h_t = ν Δh + |∇h|² / 2 on the periodic unit cube.

    With w = exp(h / 2ν) this is w_t = ν Δw, whose Fourier modes decay by themselves, so no step in time is made.

    Parameters
    ----------
    h0 : torch.Tensor, shape (..., n, n, n)
    viscosity, time : float
        ν and the end time.

    Returns
    -------
    torch.Tensor, float64, shape of ``h0``
    """
    n = h0.shape[-1]
    most = h0.amax(_SPACE, keepdim=True).double()  # a constant in h only adds itself
    w = torch.fft.rfftn(torch.exp((h0.double() - most) / (2 * viscosity)), dim=_SPACE)
    w = torch.fft.irfftn(w * torch.exp(-viscosity * time * _squares(n)), s=(n, n, n), dim=_SPACE)
    return 2 * viscosity * torch.log(w) + most


@dataclass(frozen=True, kw_only=True)
class Interface(Evolution):
    """h0 → h(·, time) on the periodic unit cube: hills grow sideways and meet in valleys, which viscosity rounds.

    Parameters
    ----------
    viscosity, time : float
        ν of h_t = ν Δh + |∇h|² / 2, and when the solution is taken.
    length, amplitude : float
        Correlation length and standard deviation of the initial field.
    grid : int
        Points per axis.
    n_train, n_val, n_test, seed : int
        As for every problem.

    References
    ----------
    Kardar, Parisi and Zhang, "Dynamic scaling of growing interfaces", Physical Review Letters 56 (1986).
    """

    grid: int = 16
    viscosity: float = 0.02
    time: float = 0.3
    length: float = 0.12
    amplitude: float = 0.1

    name: ClassVar[str] = "interface"
    n_dim: ClassVar[int] = 3
    chunk: ClassVar[int] = 10
    least: ClassVar[int] = 48  # points per axis that resolve what becomes of the waves

    def start(self, generators: list[np.random.Generator]) -> torch.Tensor:
        """Initial states, on the solver's grid."""
        n, few = self.fine_grid, 2 * _WAVES + 2
        noise = torch.from_numpy(np.stack([generator.standard_normal((few,) * 3) for generator in generators]))
        spectrum = torch.exp(-_squares(few) * self.length**2 / 4)
        for axis, size in enumerate(spectrum.shape):
            spectrum.select(axis, size // 2 if axis < 2 else size - 1).zero_()  # the mode that has no sign
        spectrum[0, 0, 0] = 0.0
        variance = torch.fft.irfftn(spectrum**2 + 0j, s=(few,) * 3, dim=_SPACE)[0, 0, 0]  # of the filtered noise
        modes = torch.fft.rfftn(noise, dim=_SPACE) * spectrum
        whole = torch.zeros(len(modes), n, n, n // 2 + 1, dtype=modes.dtype)
        rows = torch.arange(-_WAVES, _WAVES + 1)
        whole[:, (rows % n)[:, None], rows % n, : _WAVES + 1] = modes[:, (rows % few)[:, None], rows % few, : _WAVES + 1]
        smooth = torch.fft.irfftn(whole, s=(n, n, n), dim=_SPACE) * (n / few) ** 3
        return self.amplitude * smooth / variance.sqrt()

    def advance(self, state: torch.Tensor) -> torch.Tensor:
        """The state ``time`` later, on the solver's grid."""
        return solve_interface(state, self.viscosity, self.time)
