"""Navier–Stokes on the torus [0, 2π]² in vorticity form: the initial vorticity to the vorticity over a time interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.problem_data import Pair
from neuralop_mup.lab.problems.burgers import rk4_step
from neuralop_mup.lab.problems.darcy import shell_order
from neuralop_mup.losses import InitialConditionLoss, NavierStokesEqnLoss
from neuralop_mup.validation import check_count, check_number, check_positive
from problems.space_time import SpaceTime
from problems.spectral import InTime, check_resolved

# The highest modes kept may be this large, out of the largest one.
_TAIL = 3e-2
# The smallest eddies of two-dimensional turbulence shrink as Re^(-1/2). With this many points times the root, the
# highest modes of the developed flow under the default forcing are near 0.5 % of the largest (measured at Re 40 to 500).
_POINTS_PER_ROOT_REYNOLDS = 8.5


def kolmogorov_forcing(n: int, wavenumber: int = 4, amplitude: float = 4.0) -> torch.Tensor:
    """The forcing −amplitude · cos(wavenumber · x₂) on n points an axis; float64, shape (n, n)."""
    x = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
    return (-amplitude * torch.cos(wavenumber * x)).expand(n, n)


def torus_field(normals: torch.Tensor, n: int) -> torch.Tensor:
    """Gaussian random field of law N(0, 7^{3/2} (−Δ + 49 I)^{−5/2}) on the torus [0, 2π]², without its mean.

    The basis is orthonormal for the mean over the torus.

    Parameters
    ----------
    normals : torch.Tensor, shape (batch, modes, modes, 4)
        Independent standard normal numbers for cos(ix)cos(jy), cos sin, sin cos and sin sin; those of a sine of 0 and of
        (0, 0) are not used.
    n : int
        Points per axis x = 0, 2π/n, …, 2π(n − 1)/n.

    Returns
    -------
    torch.Tensor, float64, shape (batch, n, n)

    References
    ----------
    Li et al., "Physics-Informed Neural Operator for Learning Partial Differential Equations", arXiv 2111.03794.
    """
    k = torch.arange(normals.shape[1], dtype=torch.float64)
    std = 7**0.75 * (k[:, None] ** 2 + k**2 + 49) ** -1.25
    std[0, 0] = 0
    angle = 2 * math.pi / n * torch.arange(n, dtype=torch.float64)[:, None] * k
    cosine = torch.cos(angle) * torch.sqrt(1 + (k > 0).double())
    sine = torch.sin(angle) * math.sqrt(2)
    pairs = [(rows, columns) for rows in (cosine, sine) for columns in (cosine, sine)]
    return sum(rows @ (normals[..., i] * std) @ columns.T for i, (rows, columns) in enumerate(pairs))


def resample(w: torch.Tensor, n: int) -> torch.Tensor:
    """The trigonometric polynomial of ``w``, shape (..., m, m), on n ≥ m points an axis; its modes of m/2 are left out."""
    m = w.shape[-1]
    if n == m:
        return w
    modes, half = torch.fft.rfft2(w, norm="forward"), (m + 1) // 2
    more = modes.new_zeros(*w.shape[:-2], n, n // 2 + 1)
    more[..., :half, :half] = modes[..., :half, :half]
    more[..., 1 - half :, :half] = modes[..., 1 - half :, :half]
    return torch.fft.irfft2(more, s=(n, n), norm="forward")


def solve_navier_stokes(
    w0: torch.Tensor,
    reynolds: float,
    times: float | Sequence[float] | torch.Tensor,
    *,
    forcing: torch.Tensor | float | None = None,
    cfl: float = 0.5,
    dt: float | None = None,
) -> torch.Tensor:
    """Solve w_t + v·∇w = Δw/Re + f, v = (∂₂ψ, −∂₁ψ), −Δψ = w, on the torus [0, 2π]².

    Fourier pseudo-spectral in space, products dealiased by the 2/3 rule; in time Runge-Kutta of order 4 with the viscous
    term as an integrating factor. The product enters as (∂₁₁ − ∂₂₂)(v₁v₂) + ∂₁₂(v₂² − v₁²), which needs four transforms
    (Basdevant 1983). Each sample takes steps of its own size, so that it does not depend on the others of its batch. The
    mean velocity is zero.

    Parameters
    ----------
    w0 : torch.Tensor, shape (..., n, n)
        Initial vorticity at x_i = 0, 2π/n, …, 2π(n − 1)/n; n even and at least 8, the mean zero. Modes of n/3 and above
        are dropped.
    reynolds : float
        Re, above 0.
    times : float or sequence of float
        When the solution is wanted: at or after 0, increasing.
    forcing : torch.Tensor or float, optional
        f, broadcast to the shape of ``w0``; of mean zero. Default: −4 cos(4 x₂), see :func:`kolmogorov_forcing`, which
        takes n of at least 16.
    cfl : float, default 0.5
        Grid spacings travelled per step by the fastest point (moduli of v₁ and v₂ added); stable up to about 1.3.
    dt : float, optional
        Longest step, instead of what the CFL number allows.

    Returns
    -------
    torch.Tensor, float64, shape (..., n, n) or, for a sequence of times, (..., len(times), n, n)

    Raises
    ------
    MupError
        For a solution that diverges, or a grid too coarse for it.

    References
    ----------
    Basdevant, "Technical improvements for direct numerical simulation of homogeneous three-dimensional turbulence",
    Journal of Computational Physics 50 (1983). The steps are those of Canuto et al., "Spectral Methods" (2006), D.4.

    """
    wanted = np.atleast_1d(np.asarray(times, dtype=np.float64)).tolist()
    n = w0.shape[-1]
    f = kolmogorov_forcing(n) if forcing is None else torch.as_tensor(forcing, dtype=torch.float64)
    f = f.expand(torch.broadcast_shapes(f.shape, (n, n)))
    k1 = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)[:, None]
    k2 = torch.arange(n // 2 + 1, dtype=torch.float64)
    kept = (k1.abs() < n / 3) & (k2 < n / 3)
    square = k1**2 + k2**2
    inverse = torch.where(kept & (square > 0), 1 / square, 0.0)
    velocity = torch.stack((1j * k2 * inverse, -1j * k1 * inverse))  # of w, modes to modes
    products = torch.stack((k1**2 - k2**2, k1 * k2)) * kept  # of v1 v2 and v2² − v1², with the sign of −v·∇w
    decay = square / float(reynolds)
    force = torch.fft.rfft2(f) * kept

    def flow(w: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft2(velocity * w.unsqueeze(-3), s=(n, n))

    def change(v: torch.Tensor) -> torch.Tensor:
        first, second = v.unbind(-3)
        pair = torch.stack((first * second, (second - first) * (second + first)), dim=-3)
        return (products * torch.fft.rfft2(pair)).sum(-3) + force

    w = torch.fft.rfft2(w0.detach().to(torch.float64)) * kept
    first, growth = _norm(w), _norm(force)
    states, spacing, step = [], 2 * math.pi / n, 0
    for start, end in pairwise((0.0, *wanted)):
        left = torch.full(w.shape[:-2], end - start, dtype=torch.float64)
        while bool((left > 0).any()):
            v = flow(w)
            speed = v.abs().sum(-3).amax((-2, -1))
            steps = torch.ceil(left * speed / (cfl * spacing) if dt is None else left / dt * (1 - 1e-12)).clamp(min=1)
            _check_growth(w, first + (end - left) * growth, step, end - left)
            h = left / steps
            left = torch.where(steps > 1, left - h, 0.0)
            w = rk4_step(w, change(v), lambda w: change(flow(w)), decay, h[..., None, None])
            step += 1
        states.append(w)
        _check_growth(w, first + end * growth, step, torch.full_like(left, end))
    # On many small grids no mode lies between 0.3 n and n/3: there the highest kept one is looked at.
    high = min(0.3 * n, math.ceil(n / 3) - 1)
    tail, flows = kept & ((k1.abs() >= high) | (k2 >= high)), f"the flow at Reynolds number {reynolds:g} (solver_grid)"
    check_resolved(flows, w, tail, f"{n}² points", n, least_grid(reynolds), _TAIL)
    if np.ndim(times) == 0:
        return torch.fft.irfft2(states[0], s=(n, n))
    return torch.fft.irfft2(torch.stack(states, -3), s=(n, n))


def _norm(modes: torch.Tensor) -> torch.Tensor:
    """L2 norm over the torus, up to a factor."""
    twice = torch.full((modes.shape[-1],), 2.0, dtype=torch.float64)
    twice[0] = twice[-1] = 1
    return (modes.abs().square() * twice).sum((-2, -1)).sqrt()


def _check_growth(w: torch.Tensor, largest: torch.Tensor, step: int, time: torch.Tensor) -> None:
    """Find out when the numbers leave what the equation allows.

    Advection keeps ‖w‖ and viscosity lowers it: it grows at most by t ‖f‖. More is the scheme's, not the equation's.
    """
    bad = ~(_norm(w) <= 1.5 * largest)
    if bad.any():
        raise MupError(
            f"The Navier–Stokes solution diverges at step {step} (t = {float(time[bad].min()):.3g}) on {w.shape[-2]}² "
            "points; take shorter steps (dt, cfl) or a finer grid."
        )


def least_grid(reynolds: float) -> int:
    """Points per axis that resolve the developed flow, a multiple of 32."""
    return 32 * math.ceil(_POINTS_PER_ROOT_REYNOLDS * math.sqrt(reynolds) / 32)


@dataclass(frozen=True, kw_only=True)
class NavierStokes(SpaceTime):
    """Forced Navier–Stokes on the torus [0, 2π]²: w(0) → w(t_j), t_j = j · time / (time_points − 1).

    Fields have the axes (time, x₁, x₂); x repeats the initial vorticity along time. The initial states are those of a
    developed flow, as in the published data: a Gaussian random field (:func:`torus_field`) after ``spin_up`` units of
    time. That part is solved on a grid of its own, given by the Reynolds number, so that ``solver_grid`` refines the
    solution of the same initial states.

    Parameters
    ----------
    grid : int, default 16
        Points of the data per axis of space.
    time_points : int, default 16
        Points of the data in time, both ends included.
    solver_grid : int, optional
        Points of the solver per axis, a multiple of ``grid``; default: the smallest that resolves the Reynolds number.
    reynolds : float, default 20.0
        Re.
    time : float, default 1.0
        Length of the interval.
    spin_up : float, default 8.0
        Time before it, at least 0. From about 6 on, the samples are unlike each other.
    forcing_wavenumber, forcing_amplitude : int and float, default 2, 4.0
        See :func:`kolmogorov_forcing`.
    data_weight, initial_weight, equation_weight : float, default 1.0, 0.0, 0.0
        Of the relative L2 errors of w and of its first time, and of the relative residual. The paper trains on data alone.
    n_train, n_val, n_test : int, default 80, 20, 20
        Samples of each split.
    seed : int, default 0
        Seed of the random fields.

    Raises
    ------
    MupError
        For a value that cannot work, such as a solver's grid that is too coarse, or weights that are all 0.

    References
    ----------
    Li, Yoo and Yang, "Maximal Update Parametrization and Zero-Shot Hyperparameter Transfer for Fourier Neural
    Operators", arXiv 2506.19396.

    """

    n_train: int = 80
    n_val: int = 20
    n_test: int = 20
    grid: int = 16
    time_points: int = 16
    solver_grid: int | None = None
    reynolds: float = 20.0
    time: float = 1.0
    spin_up: float = 8.0
    forcing_wavenumber: int = 2
    forcing_amplitude: float = 4.0
    data_weight: float = 1.0
    initial_weight: float = 0.0
    equation_weight: float = 0.0

    name: ClassVar[str] = "navier-stokes"
    n_dim: ClassVar[int] = 3
    chunk: ClassVar[int] = 10

    def __post_init__(self) -> None:
        for name in ("reynolds", "time"):
            check_positive(name, getattr(self, name))
        super().__post_init__()
        for name in ("spin_up", "forcing_amplitude"):
            check_number(name, getattr(self, name))
        check_count("solver_grid", self.fine_grid, least=least_grid(self.reynolds))

    @property
    def fine_grid(self) -> int:
        """Points per axis that the solver works on."""
        return self.solver_grid or self.grid * math.ceil(least_grid(self.reynolds) / self.grid)

    def forcing(self, n: int) -> torch.Tensor:
        """f on n points an axis."""
        return kolmogorov_forcing(n, self.forcing_wavenumber, self.forcing_amplitude)

    def equation_losses(self) -> dict[str, Callable[..., torch.Tensor]]:
        """The first state and the residual."""
        equation = NavierStokesEqnLoss(self.reynolds, self.forcing(self.grid), self.time)
        return {"initial": InitialConditionLoss(), "equation": equation}

    def start(self, generators: list[np.random.Generator]) -> torch.Tensor:
        """States of the developed flow, on the solver's grid."""
        start = least_grid(self.reynolds)
        modes = -(-start // 3)
        order = shell_order(modes)
        normals = np.stack([generator.standard_normal((modes**2, 4))[order] for generator in generators])
        w0 = torus_field(torch.from_numpy(normals), start)
        # Only a state of the flow is wanted here, so the steps are as long as is safe.
        w0 = solve_navier_stokes(w0, self.reynolds, self.spin_up, forcing=self.forcing(start), cfl=1.0)
        return resample(w0, self.fine_grid)

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Initial states and solutions, on the data's grid; see :meth:`Problem.solve`."""
        times, n = np.linspace(0, self.time, self.time_points), self.fine_grid
        w = solve_navier_stokes(self.start(generators), self.reynolds, times, forcing=self.forcing(n))
        stride = n // self.grid
        w = w[..., ::stride, ::stride]
        return w[:, :1], w[:, None]


@dataclass(frozen=True, kw_only=True)
class FlowInTime(InTime, NavierStokes):
    """Vorticity of the forced flow; ``time_points`` mean nothing here."""

    time: float = 0.5

    name: ClassVar[str] = "navier-stokes-in-time"
    n_dim: ClassVar[int] = 2

    def advance(self, state: torch.Tensor) -> torch.Tensor:
        """The state ``time`` later, on the solver's grid."""
        return solve_navier_stokes(state, self.reynolds, self.time, forcing=self.forcing(self.fine_grid))
