"""The Gray–Scott reaction on the periodic unit square: two concentrations to the patterns that they grow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from problems.spectral import Evolution, advance_on_square, least_points, quarter_modes, smooth_field

__all__ = ["GrayScott", "solve_gray_scott"]

# Spots and stripes are some lengths √(D_v / k) across. With this many points a length, the highest modes kept (a quarter of
# the points) are below a tenth of what is allowed (measured for rates between 0.03 and 0.065).
_POINTS_PER_LENGTH = 3.0


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
    n = state.shape[-1]
    square, kept, _ = quarter_modes(n)
    linear = torch.stack((-feed - diffusion[0] * square, -feed - kill - diffusion[1] * square))

    def reaction(w: torch.Tensor) -> torch.Tensor:
        u, v = torch.fft.irfft2(w, s=(n, n)).unbind(-3)
        eaten = torch.fft.rfft2(u * v.square()) * kept
        change = torch.stack((-eaten, eaten), dim=-3)
        change[..., 0, 0, 0] += feed * n**2
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
        Points of the data per axis, even.
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
