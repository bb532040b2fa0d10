"""The Korteweg–de Vries equation on the periodic unit interval: the initial state to the state at ``time``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.problems.base import Problem, check_even, check_refines
from neuralop_mup.problems.burgers import periodic_field
from neuralop_mup.problems.data import Pair
from neuralop_mup.validation import check_count, check_positive
from problems.spectral import etdrk4, finer, highest_modes, steps_of

__all__ = ["KortewegDeVries", "solve_korteweg_de_vries"]

# A soliton of height A is A sech²(x / w), w = δ √(12 / A); its Fourier coefficients fall as z / sinh z, z = π² w k. With
# this many points times δ, the highest mode kept (a third of the points) is below 1e-4 for A up to 8.
_POINTS_TIMES_DISPERSION = 3.5
# The highest modes kept may be this large, out of the largest one.
_TAIL = 1e-3
# What ∫u² may change by, relative to itself; the equation keeps it.
_DRIFT = 1e-4


def solve_korteweg_de_vries(u0: torch.Tensor, dispersion: float, time: float, *, dt: float | None = None) -> torch.Tensor:
    """Solve u_t + u u_x + δ² u_xxx = 0 on the periodic unit interval.

    Fourier pseudo-spectral in space, products dealiased by the 2/3 rule; in time :func:`etdrk4`, the dispersion exact.
    The soliton 3c sech²(√c (x − ct) / 2δ) keeps its shape and travels at c.

    Parameters
    ----------
    u0 : torch.Tensor, shape (..., n)
        Initial states at x = 0, 1/n, …, (n − 1)/n; n at least 8. Modes of n/3 and above are dropped.
    dispersion : float
        δ, above 0.
    time : float
        End time, above 0.
    dt : float, optional
        Longest step; default: 0.05 / n, for states of size 1.

    Returns
    -------
    torch.Tensor, float64, shape of ``u0``
        u at ``time``.

    Raises
    ------
    MupError
        For arguments that cannot work, a solution that does not keep ∫u², or a grid too coarse for the dispersion.
    """
    check_positive("dispersion", dispersion)
    check_positive("time", time)
    if not u0.ndim or u0.shape[-1] < 8:
        raise MupError(f"u0 must have shape (..., n) with n of at least 8, but it has {tuple(u0.shape)}.")
    if not torch.isfinite(u0).all():
        raise MupError("u0 has entries that are not finite.")
    n = u0.shape[-1]
    if dt is None:
        dt = 0.05 / n
    check_positive("dt", dt)
    k = torch.arange(n // 2 + 1, dtype=torch.float64, device=u0.device)
    kept = k < n / 3
    half_derivative = -0.5j * 2 * math.pi * k * kept  # of −(u²/2)_x
    linear = 1j * dispersion**2 * (2 * math.pi * k) ** 3

    def steepening(v: torch.Tensor) -> torch.Tensor:
        return half_derivative * torch.fft.rfft(torch.fft.irfft(v, n=n).square_())

    v = torch.fft.rfft(u0.detach().to(torch.float64)) * kept
    steps = steps_of(time, dt)
    energy = _energy(v)
    states = etdrk4(v, linear, steepening, time / steps, steps)
    for step, v in enumerate(states, 1):
        if step % 50 and step < steps:
            continue
        drift = float(((_energy(v) - energy).abs() / energy.clamp(min=1e-300)).max())
        if not drift <= _DRIFT:
            raise MupError(
                f"The Korteweg–de Vries solution does not keep ∫u²: it is {drift:.0e} off at step {step} (t = "
                f"{step * time / steps:.3g} of {time:g}) with steps of {time / steps:.2g} on {n} points; take shorter "
                f"steps (dt)."
            )
    # On many small grids no mode lies between 0.3 n and n/3: there the highest kept one is looked at.
    high = min(0.3 * n, math.ceil(n / 3) - 1)
    ratio = highest_modes(v, kept & (k >= high))
    if not ratio <= _TAIL:
        raise MupError(
            f"{n} points do not resolve Korteweg–de Vries with dispersion {dispersion:g}: the highest modes are "
            f"{ratio:.0e} of the largest one. Use about {finer(n, _POINTS_TIMES_DISPERSION / dispersion)} "
            f"points (solver_grid)."
        )
    return torch.fft.irfft(v, n=n)


def _energy(v: torch.Tensor) -> torch.Tensor:
    """∫u² up to a factor, without the mean, which the scheme keeps."""
    return v.abs().square()[..., 1:].sum(-1)


@dataclass(frozen=True, kw_only=True)
class KortewegDeVries(Problem):
    """Korteweg–de Vries on the periodic unit interval: u0 → u(·, time).

    A wave steepens as under Burgers' equation, but instead of a front it sheds a train of solitons, which travel at
    speeds of their own and pass through each other. Zabusky and Kruskal's experiment (a cosine on an interval of length 2
    with δ = 0.022) is this equation with ``dispersion=0.011``.

    Parameters
    ----------
    dispersion : float
        δ of u_t + u u_x + δ² u_xxx = 0.
    grid : int
        Points of the data, even.
    solver_grid : int, optional
        Points of the solver, a multiple of ``grid``; default: the smallest that resolves the solitons.
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
    solver_grid: int | None = None
    dispersion: float = 0.02
    time: float = 0.5
    waves: int = 8

    name: ClassVar[str] = "korteweg-de-vries"
    n_dim: ClassVar[int] = 1
    chunk: ClassVar[int] = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("dispersion", self.dispersion)
        check_positive("time", self.time)
        check_count("waves", self.waves)
        check_even("grid", self.grid)
        if self.solver_grid is not None:
            check_refines(self.solver_grid, self.grid, self.grid)
        if 3 * self.waves >= self.fine_grid:
            raise MupError(
                f"waves must be below {math.ceil(self.fine_grid / 3)}, a third of the solver's points, but it is "
                f"{self.waves}."
            )

    @property
    def fine_grid(self) -> int:
        """Points that the solver works on."""
        if self.solver_grid is not None:
            return self.solver_grid
        return self.grid * math.ceil(_POINTS_TIMES_DISPERSION / (self.dispersion * self.grid))

    def start(self, generators: list[np.random.Generator]) -> torch.Tensor:
        """Initial states, on the solver's grid."""
        normals = np.stack([generator.standard_normal((self.waves, 2)) for generator in generators])
        return periodic_field(torch.from_numpy(normals), self.fine_grid)

    def advance(self, state: torch.Tensor) -> torch.Tensor:
        """The state ``time`` later, on the solver's grid."""
        return solve_korteweg_de_vries(state, self.dispersion, self.time)

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Initial states and solutions, on the data's grid; see :meth:`Problem.solve`."""
        u0, stride = self.start(generators), self.fine_grid // self.grid
        return u0[:, ::stride], self.advance(u0)[:, ::stride]
