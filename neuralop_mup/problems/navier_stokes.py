"""Navier–Stokes on the torus [0, 2π]² in vorticity form: the initial vorticity to the vorticity over a time interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.problems.base import Pair, check_refines
from neuralop_mup.problems.darcy import shell_order
from neuralop_mup.problems.physics import Weighted, check_even
from neuralop_mup.problems.vorticity import (
    kolmogorov_forcing,
    least_grid,
    resample,
    solve_navier_stokes,
    torus_field,
)
from neuralop_mup.validation import check_count, check_number, check_positive

__all__ = ["NavierStokes", "solve_navier_stokes"]


@dataclass(frozen=True, kw_only=True)
class NavierStokes(Weighted):
    """Forced Navier–Stokes on the torus [0, 2π]²: w(0) → w(t_j), t_j = j · time / (time_points − 1).

    Fields have the axes (time, x₁, x₂); x repeats the initial vorticity along time. The initial states are those of a
    developed flow, as in the published data: a Gaussian random field (:func:`torus_field`) after ``spin_up`` units of
    time. That part is solved on a grid of its own, given by the Reynolds number, so that ``solver_grid`` refines the
    solution of the same initial states.

    Parameters
    ----------
    grid : int
        Points of the data per axis of space, even.
    time_points : int
        Points of the data in time, both ends included; even.
    solver_grid : int, optional
        Points of the solver per axis, a multiple of ``grid``; default: the smallest that resolves the Reynolds number.
    reynolds : float
        Re.
    time : float
        Length of the interval.
    spin_up : float
        Time before it, at least 0. From about 6 on, the samples are unlike each other.
    forcing_wavenumber, forcing_amplitude : int, float
        See :func:`kolmogorov_forcing`.
    data_weight, initial_weight, equation_weight : float
        Of the relative L2 errors of w and of its first time, and of the relative residual. The paper trains on data alone.
    n_train, n_val, n_test : int
        Samples of each split.
    seed : int
        Seed of the random fields.

    References
    ----------
    Li, Yoo and Yang, "Maximal Update Parametrization and Zero-Shot Hyperparameter Transfer for Fourier Neural
    Operators", arXiv 2506.19396 (the preset "paper").
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

    name: ClassVar[str] = "navier-stokes"
    n_dim: ClassVar[int] = 3
    chunk: ClassVar[int] = 10
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cpu": {},
        "gpu": {
            "reynolds": 500.0,
            "time": 0.125,
            "forcing_wavenumber": 4,
            "grid": 64,
            "time_points": 32,
            "n_train": 200,
            "n_val": 40,
            "n_test": 40,
        },
        # The paper has no validation set; this one is drawn besides its 800 and 200 samples. It does not tell spin_up.
        "paper": {
            "reynolds": 500.0,
            "time": 0.125,
            "forcing_wavenumber": 4,
            "solver_grid": 512,
            "grid": 64,
            "time_points": 64,
            "n_train": 800,
            "n_val": 200,
            "n_test": 200,
        },
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("reynolds", "time"):
            check_positive(name, getattr(self, name))
        for name in ("spin_up", "forcing_amplitude"):
            check_number(name, getattr(self, name))
        check_count("time_points", self.time_points, least=4)
        for name in ("grid", "time_points"):
            check_even(name, getattr(self, name))
        check_count("forcing_wavenumber", self.forcing_wavenumber)
        least = least_grid(self.reynolds)
        if 3 * self.forcing_wavenumber >= least:
            raise MupError(
                f"forcing_wavenumber must be below {least // 3} at this Reynolds number, but it is "
                f"{self.forcing_wavenumber}."
            )
        if self.solver_grid is not None:
            check_refines(self.solver_grid, self.grid, max(least, self.grid))

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Points per axis: time, x₁, x₂."""
        return (self.time_points, self.grid, self.grid)

    @property
    def stored_x_shape(self) -> tuple[int, ...]:
        """One initial state; it is repeated along time when it is used."""
        return (1, self.grid, self.grid)

    def expand_x(self, x: torch.Tensor) -> torch.Tensor:
        """Initial states ``(n, 1, grid, grid)`` at every point of time; a view."""
        return x.unsqueeze(2).expand(-1, -1, self.time_points, -1, -1)

    @property
    def fine_grid(self) -> int:
        """Points per axis that the solver works on."""
        return self.solver_grid or self.grid * math.ceil(least_grid(self.reynolds) / self.grid)

    def forcing(self, n: int) -> torch.Tensor:
        """f on n points an axis."""
        return kolmogorov_forcing(n, self.forcing_wavenumber, self.forcing_amplitude)

    def equation_losses(self) -> dict[str, Callable[..., torch.Tensor]]:
        """The first state and the residual."""
        from neuralop_mup.losses import InitialConditionLoss, NavierStokesEqnLoss

        equation = NavierStokesEqnLoss(self.reynolds, self.forcing(self.grid), self.time)
        return {"initial": InitialConditionLoss(), "equation": equation}

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Initial states and solutions, on the data's grid; see :meth:`Problem.solve`."""
        start, n = least_grid(self.reynolds), self.fine_grid
        modes = -(-start // 3)
        order = shell_order(modes)
        normals = np.stack([generator.standard_normal((modes**2, 4))[order] for generator in generators])
        w0 = torus_field(torch.from_numpy(normals), start)
        # Only a state of the flow is wanted here, so the steps are as long as is safe.
        w0 = solve_navier_stokes(w0, self.reynolds, self.spin_up, forcing=self.forcing(start), cfl=1.0)
        times = np.linspace(0, self.time, self.time_points)
        w = solve_navier_stokes(resample(w0, n), self.reynolds, times, forcing=self.forcing(n))
        stride = n // self.grid
        w = w[..., ::stride, ::stride]
        return w[:, 0], w
