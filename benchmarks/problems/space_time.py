"""Problems whose fields have time as their first axis, and Burgers as one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from neuralop.data.transforms.data_processors import DataProcessor

from neuralop_mup.lab.data.problem_data import SPLITS, Pair, ProblemData, normalizer_of
from neuralop_mup.lab.problems import Burgers
from neuralop_mup.lab.problems.base import Problem
from neuralop_mup.losses import InitialConditionLoss, PeriodicBurgersEqnLoss, PhysicalDataProcessor
from neuralop_mup.validation import check_count


@dataclass(frozen=True, kw_only=True)
class SpaceTime(Problem):
    """A problem whose fields have time as their first axis; an input is one state, repeated along it.

    Parameters
    ----------
    time_points : int
        Points in time.
    """

    time_points: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("time_points", self.time_points, least=4)

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Points per axis: time, then space."""
        return (self.time_points, *super().grid_shape[1:])

    def processor(self, data: ProblemData) -> DataProcessor:
        """Physical fields for an equation."""
        if list(self.losses()) == ["data"]:
            return data.processor()
        return PhysicalDataProcessor(*map(normalizer_of, data.train))

    def _data(self, tensors: dict[str, torch.Tensor]) -> ProblemData:
        # One initial state is kept; it is repeated along time when it is used.
        x = {split: tensors[f"{split}_x"].unsqueeze(2).expand(-1, -1, *self.grid_shape) for split in SPLITS}
        return ProblemData(**{split: (x[split], tensors[f"{split}_y"]) for split in SPLITS})


@dataclass(frozen=True, kw_only=True)
class BurgersPino(SpaceTime, Burgers):
    """Viscous Burgers in space-time, with its equation: u0 → u(t_j, x), t_j = j · time / (time_points − 1).

    The initial states are those of :class:`Burgers` with the same ``seed``. The ratio of the last two weights is that of
    the code of arXiv 2111.03794.
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

    def equation_losses(self) -> dict[str, Callable[..., torch.Tensor]]:
        """The first state and the residual."""
        return {"initial": InitialConditionLoss(), "equation": PeriodicBurgersEqnLoss(self.viscosity, self.time)}

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Initial states and solutions, on the data's grid; see :meth:`Problem.solve`."""
        u = self.states(generators, self.time_points - 1)
        return u[:, 0], u.transpose(1, 2)
