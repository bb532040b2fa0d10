"""The Allen–Cahn equation on the periodic unit square: a random field to the phases it separates into."""

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

__all__ = ["AllenCahn", "solve_allen_cahn"]

# The wall between the phases is tanh(x / √2 ε); its Fourier coefficients fall as exp(−√2 π² ε k). With this many points
# times ε, the highest mode kept (a quarter of the points) is below 1e-4.
_POINTS_TIMES_WIDTH = 3.0
# The highest modes kept may be this large, out of the largest one.
_TAIL = 1e-3


def solve_allen_cahn(u0: torch.Tensor, width: float, time: float, *, dt: float = 0.05) -> torch.Tensor:
    """Solve u_t = ε² Δu + u − u³ on the periodic unit square.

    Fourier pseudo-spectral in space, the cube dealiased (modes below n/4 are kept); in time :func:`etdrk4`, the linear
    part exact. Steps are all alike, so that a sample does not depend on the others of its batch.

    Parameters
    ----------
    u0 : torch.Tensor, shape (..., n, n)
        Initial states at x_i = 0, 1/n, …, (n − 1)/n; n even and at least 8. Modes of n/4 and above are dropped.
    width : float
        ε, above 0: the wall between u = −1 and u = 1 is tanh(x / √2 ε).
    time : float
        End time, above 0.
    dt : float
        Longest step.

    Returns
    -------
    torch.Tensor, float64, shape of ``u0``
        u at ``time``.

    Raises
    ------
    MupError
        For arguments that cannot work, a solution that diverges, or a grid too coarse for the width.
    """
    for name, value in {"width": width, "time": time, "dt": dt}.items():
        check_positive(name, value)
    shape = tuple(u0.shape)
    if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] % 2 or shape[-1] < 8:
        raise MupError(f"u0 must have shape (..., n, n) with n even and at least 8, but it has {shape}.")
    if not torch.isfinite(u0).all():
        raise MupError("u0 has entries that are not finite.")
    n = shape[-1]
    square, kept, tail = quarter_modes(n, u0.device)
    cut = -kept.to(torch.float64)

    def cube(v: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft2(torch.fft.irfft2(v, s=(n, n)) ** 3) * cut

    v = torch.fft.rfft2(u0.detach().to(torch.float64)) * kept
    # The exact solution obeys a maximum principle, so growth is the scheme's, never the equation's.
    most = 2 * max(1.0, float(torch.fft.irfft2(v, s=(n, n)).abs().max()))
    v = evolve("Allen–Cahn", v, 1 - width**2 * square, cube, time=time, dt=dt, most=most)
    ratio = highest_modes(v, tail)
    if not ratio <= _TAIL:
        raise MupError(
            f"{n}² points do not resolve Allen–Cahn with walls of width {width:g}: the highest modes are {ratio:.0e} of the "
            f"largest one. Use about {finer(n, _POINTS_TIMES_WIDTH / width)} points an axis (solver_grid)."
        )
    return torch.fft.irfft2(v, s=(n, n))


@dataclass(frozen=True, kw_only=True)
class AllenCahn(Problem):
    """Allen–Cahn on the periodic unit square: u0 → u(·, time).

    The initial field falls apart into regions of u = −1 and u = 1 within a few units of time; then the walls between
    them, of width ε, shorten by their curvature.

    Parameters
    ----------
    width : float
        ε of u_t = ε² Δu + u − u³.
    grid : int
        Points of the data per axis, even.
    solver_grid : int, optional
        Points of the solver per axis, a multiple of ``grid``; default: the smallest that resolves the walls.
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

    n_train: int = 200
    n_val: int = 50
    n_test: int = 50
    grid: int = 32
    solver_grid: int | None = None
    width: float = 0.05
    time: float = 4.0
    length: float = 0.1
    amplitude: float = 0.3

    name: ClassVar[str] = "allen-cahn"
    n_dim: ClassVar[int] = 2
    chunk: ClassVar[int] = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for argument in ("width", "time", "amplitude"):
            check_positive(argument, getattr(self, argument))
        check_length(self.length)
        check_even("grid", self.grid)
        if self.solver_grid is not None:
            check_refines(self.solver_grid, self.grid, max(self.grid, least_points(self.length)))

    @property
    def fine_grid(self) -> int:
        """Points per axis that the solver works on."""
        if self.solver_grid is not None:
            return self.solver_grid
        least = max(_POINTS_TIMES_WIDTH / self.width, least_points(self.length))
        return self.grid * math.ceil(least / self.grid)

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Initial states and solutions, on the data's grid; see :meth:`Problem.solve`."""
        u0 = self.amplitude * smooth_field(generators, self.fine_grid, self.length)
        u = solve_allen_cahn(u0, self.width, self.time)
        stride = self.fine_grid // self.grid
        return u0[:, ::stride, ::stride], u[:, ::stride, ::stride]
