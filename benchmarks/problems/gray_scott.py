"""The Gray–Scott reaction on the periodic unit square: two concentrations to the patterns that they grow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.problems.base import Problem, check_even, check_refines
from neuralop_mup.problems.data import Pair
from neuralop_mup.validation import check_positive
from problems.spectral import (
    check_length,
    evolve,
    finer,
    highest_modes,
    least_points,
    quarter_modes,
    smooth_field,
)

__all__ = ["GrayScott", "solve_gray_scott"]

# The highest modes kept may be this large, out of the largest one.
_TAIL = 1e-3
# Spots and stripes are some lengths √(D_v / k) across. With this many points a length, the highest modes kept (a quarter of
# the points) are below a tenth of what is allowed (measured for rates between 0.03 and 0.065).
_POINTS_PER_LENGTH = 3.0
# Concentrations stay near 1 or below what they begin with: many times more is the scheme's, never the equation's.
_MOST = 10.0


def solve_gray_scott(
    state: torch.Tensor,
    time: float,
    *,
    diffusion: tuple[float, float],
    feed: float,
    kill: float,
    dt: float = 2.0,
) -> torch.Tensor:
    """Solve u_t = D_u Δu − u v² + F (1 − u), v_t = D_v Δv + u v² − (F + k) v on the periodic unit square.

    Fourier pseudo-spectral in space, the product dealiased (modes below n/4 are kept); in time :func:`etdrk4`, the linear
    part exact. Steps are all alike, so that a sample does not depend on the others of its batch.

    Parameters
    ----------
    state : torch.Tensor, shape (..., 2, n, n)
        Initial u and v at x_i = 0, 1/n, …, (n − 1)/n; n even and at least 8. Modes of n/4 and above are dropped.
    time : float
        End time, above 0.
    diffusion : tuple of two floats
        D_u and D_v, above 0.
    feed, kill : float
        F and k, above 0.
    dt : float
        Longest step.

    Returns
    -------
    torch.Tensor, float64, shape of ``state``
        u and v at ``time``.

    Raises
    ------
    MupError
        For arguments that cannot work, a solution that diverges, or a grid too coarse for the patterns.
    """
    diffusion = check_diffusion(diffusion)
    for name, value in {"time": time, "feed": feed, "kill": kill, "dt": dt}.items():
        check_positive(name, value)
    shape = tuple(state.shape)
    if len(shape) < 3 or shape[-3] != 2 or shape[-1] != shape[-2] or shape[-1] % 2 or shape[-1] < 8:
        raise MupError(f"state must have shape (..., 2, n, n) with n even and at least 8, but it has {shape}.")
    if not torch.isfinite(state).all():
        raise MupError("state has entries that are not finite.")
    n = shape[-1]
    square, kept, tail = quarter_modes(n, state.device)
    linear = torch.stack((-feed - diffusion[0] * square, -feed - kill - diffusion[1] * square))

    def reaction(w: torch.Tensor) -> torch.Tensor:
        u, v = torch.fft.irfft2(w, s=(n, n)).unbind(-3)
        eaten = torch.fft.rfft2(u * v.square()) * kept
        change = torch.stack((-eaten, eaten), dim=-3)
        change[..., 0, 0, 0] += feed * n**2
        return change

    w = torch.fft.rfft2(state.detach().to(torch.float64)) * kept
    most = _MOST * max(1.0, float(state.abs().max()))
    w = evolve("Gray–Scott", w, linear, reaction, time=time, dt=dt, most=most)
    ratio = highest_modes(w, tail)
    if not ratio <= _TAIL:
        raise MupError(
            f"{n}² points do not resolve Gray–Scott with a diffusion of v of {diffusion[1]:g}: the highest modes are "
            f"{ratio:.0e} of the largest one. Use about {finer(n, least_grid(diffusion[1], kill))} points an axis "
            f"(solver_grid)."
        )
    return torch.fft.irfft2(w, s=(n, n))


def check_diffusion(diffusion: tuple[float, float]) -> tuple[float, float]:
    """The two numbers as a tuple, or MupError."""
    if not isinstance(diffusion, (tuple, list)) or len(diffusion) != 2:
        raise MupError(f"diffusion must be two numbers, such as (1e-4, 5e-5), but it is {diffusion!r}.")
    for value in diffusion:
        check_positive("diffusion", value)
    return tuple(diffusion)


def least_grid(diffusion: float, kill: float) -> int:
    """Points per axis that resolve the patterns."""
    return math.ceil(_POINTS_PER_LENGTH * math.sqrt(kill / diffusion))


@dataclass(frozen=True, kw_only=True)
class GrayScott(Problem):
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
    solver_grid : int, optional
        Points of the solver per axis, a multiple of ``grid``; default: the smallest that resolves the patterns.
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

    n_train: int = 200
    n_val: int = 50
    n_test: int = 50
    grid: int = 32
    solver_grid: int | None = None
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

    def __post_init__(self) -> None:
        super().__post_init__()
        # A list (from a configuration file) is as good, but would make the frozen problem unhashable.
        object.__setattr__(self, "diffusion", check_diffusion(self.diffusion))
        for argument in ("feed", "kill", "time"):
            check_positive(argument, getattr(self, argument))
        check_length(self.length)
        check_even("grid", self.grid)
        if self.solver_grid is not None:
            check_refines(self.solver_grid, self.grid, max(self.grid, self._start_grid))

    @property
    def fine_grid(self) -> int:
        """Points per axis that the solver works on."""
        if self.solver_grid is not None:
            return self.solver_grid
        least = max(least_grid(self.diffusion[1], self.kill), self._start_grid)
        return self.grid * math.ceil(least / self.grid)

    @property
    def _start_grid(self) -> int:
        return 2 * least_points(self.length)  # the sigmoid doubles the waves that count

    def start(self, generators: list[np.random.Generator]) -> torch.Tensor:
        """Initial states, on the solver's grid."""
        fields = torch.stack([smooth_field(generators, self.fine_grid, self.length) for _ in range(2)], dim=1)
        occupied = torch.sigmoid(3 * fields - 1)
        return torch.stack((1 - occupied[:, 0] / 2, occupied[:, 1] / 4), dim=1)

    def advance(self, state: torch.Tensor) -> torch.Tensor:
        """The state ``time`` later, on the solver's grid."""
        return solve_gray_scott(state, self.time, diffusion=self.diffusion, feed=self.feed, kill=self.kill)

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Initial states and solutions, on the data's grid; see :meth:`Problem.solve`."""
        start, stride = self.start(generators), self.fine_grid // self.grid
        return start[..., ::stride, ::stride], self.advance(start)[..., ::stride, ::stride]
