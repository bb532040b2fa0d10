"""The viscous Burgers' equation on the periodic unit interval: random fields, solver and data."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.problem_data import Pair
from neuralop_mup.lab.problems.base import Problem
from neuralop_mup.validation import check_positive

# A front between -w and w is w tanh(w x / 2 nu), whose Fourier coefficients decay as exp(-2 pi^2 nu k / w). If points * nu
# equals this value, the amplitude of the highest mode kept (a third of the points) is below 1e-7 for w up to 1.5.
_POINTS_TIMES_VISCOSITY = 3.84
# Finer grids use the same time step as a grid of this size. The state is smooth, so RK4 is accurate enough, and viscosity
# keeps finer modes stable.
_LEAST_STEP_GRID = 256

# Number of grid spacings that the fastest point moves per time step.
_CFL = 0.5


def periodic_field(normals: torch.Tensor, n: int) -> torch.Tensor:
    """Return Gaussian random fields with the distribution N(0, 625 (-Δ + 25 I)^-2) and mean 0 on the periodic unit interval.

    The generator of the published FNO data also omits the constant mode.

    Parameters
    ----------
    normals : torch.Tensor, shape (batch, modes, 2)
        Independent standard normal values for cos and sin of 2πkx with k = 1 … modes, where modes < n / 2.
    n : int
        Number of grid points x = 0, 1/n, …, (n - 1)/n.

    Returns
    -------
    torch.Tensor, shape (batch, n)

    References
    ----------
    Li et al., "Fourier Neural Operator for Parametric Partial Differential Equations", arXiv 2010.08895, A.3.1.
    """
    k = torch.arange(1, normals.shape[1] + 1, dtype=torch.float64)
    std = 25 * math.sqrt(2) / ((2 * math.pi * k) ** 2 + 25)
    modes = torch.zeros(len(normals), n // 2 + 1, dtype=torch.complex128)
    modes[:, 1 : len(k) + 1] = torch.complex(normals[..., 0], -normals[..., 1]) * std / 2
    return torch.fft.irfft(modes, n=n, norm="forward")


def rk4_step(v: torch.Tensor, first: torch.Tensor, flux: Callable[..., Any], decay: torch.Tensor, dt: Any) -> torch.Tensor:
    """Take a fourth-order Runge-Kutta step for v_t = flux(v) − decay · v, with the decay as an integrating factor.

    Parameters
    ----------
    v, first : torch.Tensor
        The Fourier modes v, and flux(v).
    flux : callable
    decay, dt : torch.Tensor, float

    References
    ----------
    Canuto et al., "Spectral Methods" (2006), D.4.
    """
    half = torch.exp(-decay * (dt / 2))
    second = flux(half * (v + dt / 2 * first))
    third = flux(half * v + dt / 2 * second)
    fourth = flux(half * (half * v + dt * third))
    return half * (half * (v + dt / 6 * first) + dt / 3 * (second + third)) + dt / 6 * fourth


def solve_burgers(u0: torch.Tensor, viscosity: float, time: float = 1.0) -> torch.Tensor:
    """Solve u_t + (u²/2)_x = ν u_xx on the periodic unit interval.

    The solver uses a Fourier pseudo-spectral method in space, with dealiasing by the 2/3 rule, and a fourth-order
    Runge-Kutta method in time, with the viscous term as an integrating factor. The largest speed in the batch determines the
    time step.

    Parameters
    ----------
    u0 : torch.Tensor, shape (..., n)
        Initial states at x = 0, 1/n, …, (n - 1)/n, where n is at least 7. Modes at n/3 and above are dropped.
    viscosity : float
        The viscosity ν, which must be positive.
    time : float, default 1.0
        Final time, which must be positive.

    Returns
    -------
    torch.Tensor, float64, shape of ``u0``
        The solution u at ``time``.

    Raises
    ------
    MupError
        If the grid is too coarse for the viscosity.

    Examples
    --------
    >>> import math
    >>> import torch
    >>> from neuralop_mup.lab.problems import solve_burgers
    >>> x = torch.arange(32) / 32
    >>> u = solve_burgers(torch.sin(2 * math.pi * x), viscosity=0.1, time=0.5)
    >>> u.shape, u.dtype, bool(u.abs().max() < 0.2)
    (torch.Size([32]), torch.float64, True)
    """
    n = u0.shape[-1]
    k = torch.arange(n // 2 + 1, dtype=torch.float64, device=u0.device)
    kept = k < n / 3
    decay = viscosity * (2 * math.pi * k) ** 2
    half_derivative = -0.5j * 2 * math.pi * k * kept  # of -(u²/2)_x
    spacing = max(1 / n, 1 / max(_LEAST_STEP_GRID, _POINTS_TIMES_VISCOSITY / viscosity))

    def flux(modes: torch.Tensor) -> torch.Tensor:
        return half_derivative * torch.fft.rfft(torch.fft.irfft(modes, n=n).square_())

    v = torch.fft.rfft(u0.to(torch.float64)) * kept
    left = float(time)
    while left > 0:
        u = torch.fft.irfft(v, n=n)
        speed = float(u.abs().max())
        steps_left = max(1, math.ceil(left * speed / (_CFL * spacing)))
        dt = left / steps_left
        v = rk4_step(v, half_derivative * torch.fft.rfft(u.square_()), flux, decay, dt)
        left = left - dt if steps_left > 1 else 0.0

    size = v.abs()
    # On many small grids, no mode lies between 0.3 n and n/3. In this case, the highest mode kept is checked.
    high = min(0.3 * n, math.ceil(n / 3) - 1)
    tail, largest = float(size[..., kept & (k >= high)].max()), float(size.max())
    if not tail <= 1e-3 * largest:
        raise MupError(
            f"A grid of {n} points does not resolve Burgers' equation with viscosity {viscosity:g}: the amplitudes of the "
            f"highest modes reach {tail / largest:.0e} of the largest amplitude. Use at least "
            f"{math.ceil(_POINTS_TIMES_VISCOSITY / viscosity)} points (solver_grid)."
        )
    return torch.fft.irfft(v, n=n)


@dataclass(frozen=True, kw_only=True)
class Burgers(Problem):
    """The viscous Burgers' equation on the periodic unit interval, as a map from u0 to u(·, time).

    Parameters
    ----------
    viscosity : float, default 0.01
        The viscosity ν in u_t + (u²/2)_x = ν u_xx.
    grid : int, default 128
        Number of grid points of the data.
    solver_grid : int, optional
        Number of grid points of the solver, a multiple of ``grid``. Default: the smallest number that resolves the
        viscosity.
    n_train, n_val, n_test : int, default 800, 100, 100
        Number of samples in each split.
    time : float, default 1.0
        Time at which the solution is evaluated.
    seed : int, default 0
        Seed for the initial states, which are drawn by :func:`periodic_field`.

    Raises
    ------
    MupError
        If a value is invalid, for example if the grid of the solver does not contain the points of the data.

    References
    ----------
    Li, Yoo and Yang, "Maximal Update Parametrization and Zero-Shot Hyperparameter Transfer for Fourier Neural
    Operators", arXiv 2506.19396.

    Examples
    --------
    >>> from neuralop_mup.lab.problems import Burgers
    >>> data = Burgers(viscosity=0.1, grid=16, n_train=8, n_val=2, n_test=2).load("cache")
    >>> data.train[0].shape
    torch.Size([8, 1, 16])
    """

    n_train: int = 800
    n_val: int = 100
    n_test: int = 100
    grid: int = 128
    solver_grid: int | None = None
    viscosity: float = 0.01
    time: float = 1.0

    name: ClassVar[str] = "burgers"
    n_dim: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_positive("viscosity", self.viscosity)
        check_positive("time", self.time)
        super().__post_init__()

    @property
    def fine_grid(self) -> int:
        """Number of grid points of the solver."""
        return self.solver_grid or self.grid * max(1, math.ceil(_POINTS_TIMES_VISCOSITY / (self.viscosity * self.grid)))

    def states(self, generators: list[np.random.Generator], steps: int) -> torch.Tensor:
        """Return the states at ``steps`` + 1 equally spaced times, including the initial states, on the grid of the data."""
        n = self.fine_grid
        # Low modes are drawn first, so a finer solver grid adds modes to the same initial state.
        normals = np.stack([generator.standard_normal((n // 2 - 1, 2)) for generator in generators])
        states = [periodic_field(torch.from_numpy(normals), n)]
        for _ in range(steps):
            states.append(solve_burgers(states[-1], self.viscosity, self.time / steps))
        return torch.stack(states, dim=1)[:, :, None, :: n // self.grid]

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Return the initial states and the solutions on the grid of the data (see :meth:`Problem.solve`)."""
        return self.states(generators, 1).unbind(1)
