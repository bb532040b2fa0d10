"""A growing interface in three dimensions: the Kardar–Parisi–Zhang equation without noise, solved by the Cole–Hopf map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.problems.base import Problem, check_even
from neuralop_mup.problems.data import Pair
from neuralop_mup.validation import check_positive

__all__ = ["Interface", "solve_interface"]

_SPACE = (-3, -2, -1)
#: Waves of an initial field along each axis, and points per axis that resolve what becomes of them.
_WAVES, _LEAST = 5, 48


def _squares(n: int) -> torch.Tensor:
    """(2π)² k² of the modes of a field on n³ points."""
    k = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)
    return (2 * math.pi) ** 2 * (k[:, None, None] ** 2 + k[:, None] ** 2 + k[: n // 2 + 1] ** 2)


def solve_interface(h0: torch.Tensor, viscosity: float, time: float) -> torch.Tensor:
    """Solve h_t = ν Δh + |∇h|² / 2 on the periodic unit cube.

    With w = exp(h / 2ν) this is w_t = ν Δw, whose Fourier modes decay by themselves, so no step in time is made.

    Parameters
    ----------
    h0 : torch.Tensor, shape (..., n, n, n)
    viscosity, time : float
        ν and the end time, above 0.

    Returns
    -------
    torch.Tensor, float64, shape of ``h0``

    Raises
    ------
    MupError
        For arguments that cannot work.
    """
    check_positive("viscosity", viscosity)
    check_positive("time", time)
    shape = tuple(h0.shape)
    if len(shape) < 3 or len(set(shape[-3:])) > 1 or shape[-1] % 2 or shape[-1] < 8:
        raise MupError(f"h0 must have shape (..., n, n, n) with n even and at least 8, but it has {shape}.")
    if not torch.isfinite(h0).all():
        raise MupError("h0 has entries that are not finite.")
    n = shape[-1]
    most = h0.amax(_SPACE, keepdim=True).double()  # a constant in h only adds itself
    w = torch.fft.rfftn(torch.exp((h0.double() - most) / (2 * viscosity)), dim=_SPACE)
    w = torch.fft.irfftn(w * torch.exp(-viscosity * time * _squares(n)), s=(n, n, n), dim=_SPACE)
    return 2 * viscosity * torch.log(w) + most


@dataclass(frozen=True, kw_only=True)
class Interface(Problem):
    """h0 → h(·, time) on the periodic unit cube: hills grow sideways and meet in valleys, which viscosity rounds.

    Parameters
    ----------
    viscosity, time : float
        ν of h_t = ν Δh + |∇h|² / 2, and when the solution is taken.
    length, amplitude : float
        Correlation length and standard deviation of the initial field.
    grid : int
        Points per axis, even.
    n_train, n_val, n_test, seed : int
        As for every problem.

    References
    ----------
    Kardar, Parisi and Zhang, "Dynamic scaling of growing interfaces", Physical Review Letters 56 (1986).
    """

    n_train: int = 200
    n_val: int = 50
    n_test: int = 50
    grid: int = 16
    viscosity: float = 0.02
    time: float = 0.3
    length: float = 0.12
    amplitude: float = 0.1

    name: ClassVar[str] = "interface"
    n_dim: ClassVar[int] = 3
    chunk: ClassVar[int] = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for argument in ("viscosity", "time", "length", "amplitude"):
            check_positive(argument, getattr(self, argument))
        check_even("grid", self.grid)

    @property
    def fine_grid(self) -> int:
        """Points per axis that the solver works on."""
        return self.grid * math.ceil(_LEAST / self.grid)

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Initial states and solutions, on the data's grid; see :meth:`Problem.solve`."""
        n, few = self.fine_grid, 2 * _WAVES + 2
        noise = torch.from_numpy(np.stack([generator.standard_normal((few,) * 3) for generator in generators]))
        spectrum = torch.exp(-_squares(few) * self.length**2 / 4)
        for axis, size in enumerate(spectrum.shape):
            spectrum.select(axis, size // 2 if axis < 2 else size - 1).zero_()  # the mode that has no sign
        spectrum[0, 0, 0] = 0.0
        variance = torch.fft.irfftn(spectrum**2 + 0j, s=(few,) * 3, dim=_SPACE)[0, 0, 0]  # of the filtered noise
        modes = torch.fft.rfftn(noise, dim=_SPACE) * spectrum
        whole = torch.zeros(len(modes), n, n, n // 2 + 1, dtype=modes.dtype)
        near = [*range(_WAVES + 1), *range(-_WAVES, 0)]
        rows = torch.tensor(near)
        whole[:, (rows % n)[:, None], rows % n, : _WAVES + 1] = modes[:, (rows % few)[:, None], rows % few, : _WAVES + 1]
        smooth = torch.fft.irfftn(whole, s=(n, n, n), dim=_SPACE) * (n / few) ** 3
        h0 = self.amplitude * smooth / variance.sqrt()
        stride = self.fine_grid // self.grid
        cut = (slice(None), *(slice(None, None, stride),) * 3)
        return h0[cut], solve_interface(h0, self.viscosity, self.time)[cut]
