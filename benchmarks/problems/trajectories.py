"""Evolution problems in time: from a state the next one, on trajectories of many states that the same solvers make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from neuralop_mup.lab.data.problem_data import SPLITS, Pair, ProblemData
from neuralop_mup.lab.problems.base import Problem
from problems.korteweg_de_vries import KortewegDeVries
from problems.navier_stokes import NavierStokes, solve_navier_stokes
from problems.reactions import GrayScott
from problems.spectral import on_data_grid


@dataclass(frozen=True, kw_only=True)
class InTime(Problem):
    """What the problems below share; ``start`` and ``advance`` are those of the problem itself.

    Parameters
    ----------
    n_train, n_val, n_test : int
        Trajectories of each split.
    time : float
        From one state to the next.
    states : int
        Of each trajectory.
    every : int
        Every so-many-th pair of a training trajectory is trained on: pairs that follow each other are nearly the same, and
        training is to see all of the time that a rollout passes through.
    """

    n_train: int = 40
    n_val: int = 10
    n_test: int = 10
    states: int = 60
    every: int = 3

    chunk: ClassVar[int] = 10
    grid_shape = Problem.grid_shape  # of space alone

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """All states but the last, and all but the first, on the data's grid: the state next to each."""
        states = [self.start(generators)]
        for _ in range(self.states - 1):
            states.append(self.advance(states[-1]))
        u = torch.stack([on_data_grid(self, state) for state in states], dim=1)
        return u[:, :-1], u[:, 1:]

    def _data(self, tensors: dict[str, torch.Tensor]) -> ProblemData:
        every = {split: self.every if split == "train" else 1 for split in SPLITS}
        pairs = {s: tuple(tensors[f"{s}_{k}"][:, :: every[s]].flatten(0, 1) for k in "xy") for s in SPLITS}
        return ProblemData(**pairs, trajectory=self.states - 1)


@dataclass(frozen=True, kw_only=True)
class KortewegDeVriesInTime(InTime, KortewegDeVries):
    """Solitons that pass through each other."""

    time: float = 0.05

    name: ClassVar[str] = "korteweg-de-vries-in-time"


@dataclass(frozen=True, kw_only=True)
class GrayScottInTime(InTime, GrayScott):
    """Patterns that grow and divide."""

    time: float = 5.0

    name: ClassVar[str] = "gray-scott-in-time"


@dataclass(frozen=True, kw_only=True)
class FlowInTime(InTime, NavierStokes):
    """Vorticity of the forced flow; ``time_points`` mean nothing here."""

    time: float = 0.5

    name: ClassVar[str] = "navier-stokes-in-time"
    n_dim: ClassVar[int] = 2

    def advance(self, state: torch.Tensor) -> torch.Tensor:
        """The state ``time`` later, on the solver's grid."""
        return solve_navier_stokes(state, self.reynolds, self.time, forcing=self.forcing(self.fine_grid))
