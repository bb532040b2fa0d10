"""The Allen–Cahn equation on the periodic unit square: a random field to the phases it separates into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from problems.spectral import Evolution, advance_on_square, least_points, quarter_modes, smooth_field

__all__ = ["AllenCahn", "solve_allen_cahn"]

# The wall between the phases is tanh(x / √2 ε); its Fourier coefficients fall as exp(−√2 π² ε k). With this many points
# times ε, the highest mode kept (a quarter of the points) is below 1e-4.
_POINTS_TIMES_WIDTH = 3.0


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
    n = u0.shape[-1]
    square, kept, _ = quarter_modes(n)

    def cube(v: torch.Tensor) -> torch.Tensor:
        return -torch.fft.rfft2(torch.fft.irfft2(v, s=(n, n)) ** 3) * kept

    linear, least = 1 - width**2 * square, _POINTS_TIMES_WIDTH / width
    return advance_on_square("Allen–Cahn", u0, linear, cube, time=time, dt=dt, least=least)


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
        Points of the data per axis, even.
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
