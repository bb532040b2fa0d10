"""Problems of physics-informed neural operators: the data of the others, with the equation as a further loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.problems.base import Pair, ProblemData
from neuralop_mup.problems.burgers import Burgers, periodic_field, solve_burgers
from neuralop_mup.problems.darcy import Darcy
from neuralop_mup.problems.physics import Weighted, check_even, gaussian_normalizer
from neuralop_mup.validation import check_count, check_number

if TYPE_CHECKING:
    from neuralop.data.transforms.data_processors import DataProcessor

__all__ = ["BurgersPino", "DarcyPino"]


@dataclass(frozen=True, kw_only=True)
class DarcyPino(Darcy):
    """Darcy flow with its equation: the data of :class:`Darcy` solved on the data's own grid.

    The model's output is un-normalised, then multiplied by sin(πx₁) sin(πx₂), which makes it 0 on the boundary. The
    normaliser is fitted to y divided by that product, so that what the model has to give is of mean 0 and standard
    deviation 1: the published code multiplies by 0.001 for the same purpose.

    By default the solver's grid is the data's, so that the data satisfies the discrete equation and the two losses agree.
    Data sampled from a finer solution does not, since the coefficient jumps between its points: with ``solver_grid=94``
    (the default of :class:`Darcy`) the relative residual of the data itself is 0.75, where that of u = 0 is 1, and with
    the published 421 → 61 (preset "paper") it is 1.4, so that there the two losses pull against each other.

    Parameters
    ----------
    data_weight, equation_weight : float
        Of the relative L2 error of u, and of the relative L2 norm of the residual. The paper has 5 : 1.
    grid, solver_grid, contrast, n_train, n_val, n_test, seed
        As for :class:`Darcy`.

    References
    ----------
    Li et al., "Physics-Informed Neural Operator for Learning Partial Differential Equations", arXiv 2111.03794.
    """

    data_weight: float = 5.0
    equation_weight: float = 1.0

    name: ClassVar[str] = "darcy-pino"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("data_weight", self.data_weight)
        check_number("equation_weight", self.equation_weight)
        if not (self.data_weight or self.equation_weight):
            raise MupError("data_weight and equation_weight are both 0: there is nothing to train on.")

    @property
    def fine_grid(self) -> int:
        """Points per axis that the solver works on."""
        return self.solver_grid or self.grid

    @property
    def darcy(self) -> Darcy:
        """The same problem without the equation."""
        arguments = {field.name: getattr(self, field.name) for field in fields(Darcy)}
        return Darcy(**{**arguments, "solver_grid": self.fine_grid})

    @property
    def key(self) -> str:
        """That of :attr:`darcy`."""
        return self.darcy.key

    @property
    def file_name(self) -> str:
        """That of :attr:`darcy`."""
        return self.darcy.file_name

    def losses(self) -> dict[str, tuple[float, Callable[..., torch.Tensor]]]:
        """Losses by name, each with its weight; see :meth:`Problem.losses`."""
        from neuralop_mup.losses import DarcyEqnLoss

        losses = {"data": (float(self.data_weight), super().losses()["data"][1])}
        if self.equation_weight:
            losses["equation"] = (float(self.equation_weight), DarcyEqnLoss())
        return losses

    def processor(self, data: ProblemData) -> DataProcessor:
        """Physical fields for the losses, normalised ones for the model, and zero on the boundary."""
        from neuralop_mup.losses import PhysicalDataProcessor, sine_mollifier

        x, y = data.train
        inner = (..., slice(1, -1), slice(1, -1))
        factor = sine_mollifier(y.shape[2:]).to(y)
        return PhysicalDataProcessor(
            gaussian_normalizer(x), gaussian_normalizer(y[inner] / factor[inner]), mollifier=sine_mollifier
        )


@dataclass(frozen=True, kw_only=True)
class BurgersPino(Weighted, Burgers):
    """Viscous Burgers in space-time, with its equation: u0 → u(t_j, x), t_j = j · time / (time_points − 1).

    Fields have the axes (time, x); x repeats the initial state along time. The initial states are those of
    :class:`Burgers` with the same ``seed``.

    The residual of the solution itself falls with ``time_points`` and, for the few samples with a steep front, with
    ``grid``: at viscosity 0.01 its median is 0.003 at the defaults and 0.0003 with ``grid=128, time_points=256``.

    Parameters
    ----------
    time_points : int
        Points in time, both ends included; even.
    data_weight, initial_weight, equation_weight : float
        Of the relative L2 error of u, that of its first time, and of the mean square of the residual. The ratio of the
        last two is that of the published code.
    viscosity, time, grid, solver_grid, n_train, n_val, n_test, seed
        As for :class:`Burgers`.

    References
    ----------
    Li et al., "Physics-Informed Neural Operator for Learning Partial Differential Equations", arXiv 2111.03794.
    """

    n_train: int = 100
    n_val: int = 20
    n_test: int = 50
    grid: int = 64
    time_points: int = 32
    data_weight: float = 10.0
    initial_weight: float = 10.0
    equation_weight: float = 1.0

    name: ClassVar[str] = "burgers-pino"
    n_dim: ClassVar[int] = 2
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cpu": {},
        "gpu": {"n_train": 800, "n_val": 100, "n_test": 200, "grid": 128, "time_points": 100},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("time_points", self.time_points, least=4)
        check_even("time_points", self.time_points)

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Points per axis: time, x."""
        return (self.time_points, self.grid)

    @property
    def stored_x_shape(self) -> tuple[int, ...]:
        """One initial state; it is repeated along time when it is used."""
        return (1, self.grid)

    def expand_x(self, x: torch.Tensor) -> torch.Tensor:
        """Initial states ``(n, 1, grid)`` at every point of time; a view."""
        return x.unsqueeze(2).expand(-1, -1, self.time_points, -1)

    def equation_losses(self) -> dict[str, Callable[..., torch.Tensor]]:
        """The first state and the residual."""
        from neuralop_mup.losses import InitialConditionLoss, PeriodicBurgersEqnLoss

        return {"initial": InitialConditionLoss(), "equation": PeriodicBurgersEqnLoss(self.viscosity, self.time)}

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Initial states and solutions, on the data's grid; see :meth:`Problem.solve`."""
        n = self.fine_grid
        # Low modes are drawn first: a finer solver grid adds modes to the same initial state.
        normals = np.stack([generator.standard_normal((n // 2 - 1, 2)) for generator in generators])
        states = [periodic_field(torch.from_numpy(normals), n)]
        for _ in range(self.time_points - 1):
            states.append(solve_burgers(states[-1], self.viscosity, self.time / (self.time_points - 1)))
        u = torch.stack(states, dim=1)[..., :: n // self.grid]
        return u[:, 0], u
