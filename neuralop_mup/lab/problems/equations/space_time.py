"""What the losses of fields over space and time have in common: the times that count, and how far data may be off."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from neuralop.losses import FiniteDiff

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems.equations.periodic import periodic
from neuralop_mup.losses.base import FieldLoss, relative_l2

# The generated problems reach 0.5 at 8 points in time and 0.7 at 4; twice the viscosity or the time gives 0.9 to 1.1.
_FAR = 0.8


def positive(name: str, value: Any) -> float:
    """``value`` as a float; MupError unless it is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
        raise MupError(f"{name} must be a finite number above 0, but it is {value!r}.")
    return float(value)


class SpaceTimeLoss(FieldLoss):
    """A loss of a field over (time, *space), periodic in space: the size of a residual, at the inner times or at all.

    Parameters
    ----------
    time : float
        Length of the time interval.
    ends : bool
        Whether the first and the last time count.
    reduction : {"sum", "mean"}
        Over the batch.
    """

    def __init__(self, time: float, ends: bool, reduction: str) -> None:
        super().__init__(reduction)
        self.time = positive("time", time)
        self.ends = bool(ends)

    def check_data(self, x: torch.Tensor | None, y: torch.Tensor | None) -> str | None:
        """Refuse fields that are not periodic; a sentence if the residual of y is as large as its time derivative and the
        forcing, in the median sample.

        Neither u = 0 nor a mean over samples would tell: without forcing u = 0 solves the equation, and a few fronts that
        the grid does not resolve are most of a mean.
        """
        for name, values in {"x": x, "y": y}.items():
            if values is not None:
                for axis in range(3 - values.ndim, 0):
                    periodic(name, values[:, 0, 0], axis)
        if y is None:
            return None
        u = y[:, 0].detach().double()
        operator, forcing = self.sides(u)
        forcing = torch.zeros_like(operator) if forcing is None else forcing.expand_as(operator)
        residual, change, forcing = (
            values[:, 1:-1].flatten(1).norm(dim=1) for values in (operator - forcing, self.time_derivative(u), forcing)
        )
        size = torch.maximum(change, forcing)
        ratio = float((residual / size.clamp_min(1e-300)).median())
        if ratio <= _FAR:
            return None
        terms = "the larger of its time derivative and the forcing" if forcing.any() else "its time derivative"
        times = f"{ratio:.2g}" if ratio < 1000 else "more than 1000"  # a y that does not change in time
        return (
            f"The sample's y does not solve the equation of {type(self).__name__}: its residual is {times} times as "
            f"large as {terms}, so the equation pulls against the data. Check the equation's constants, the length of the "
            "time interval, the order of the axes and the units, or leave the equation out."
        )

    @abstractmethod
    def sides(self, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Differential operator and forcing, if any, at all times: shape ``(batch, time, *space)``, as u."""

    def residual(self, u: torch.Tensor) -> torch.Tensor:
        """Operator − forcing at all times, both ends included: shape ``(batch, time, *space)``, as u."""
        operator, forcing = self.sides(u)
        return operator if forcing is None else operator - forcing

    def time_derivative(self, u: torch.Tensor) -> torch.Tensor:
        """∂u/∂t: central differences of second order, at both ends one-sided of third."""
        # Only dx is used, along the first of the axes that FiniteDiff counts: the time.
        return FiniteDiff(dim=u.ndim - 1, h=self.time / (u.shape[1] - 1), periodic_in_x=False).dx(u)

    def per_sample(self, u: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        operator, forcing = self.sides(u[:, 0])
        if forcing is not None:
            forcing = forcing.expand_as(operator)
        if not self.ends:
            operator, forcing = operator[:, 1:-1], None if forcing is None else forcing[:, 1:-1]
        return residual_size(operator, forcing)


def residual_size(operator: torch.Tensor, forcing: torch.Tensor | None) -> torch.Tensor:
    """Size of the residual ``operator − forcing`` of each sample, as PINO measures it.

    Relative to the forcing, if there is one: ‖operator − forcing‖ / ‖forcing‖. Else there is nothing to be relative to,
    and it is the mean square.
    """
    if forcing is None:
        return operator.flatten(1).square().mean(1)
    return relative_l2(operator, forcing)
