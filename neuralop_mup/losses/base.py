"""What the losses have in common: the norms, the reduction over the batch, the treatment of time."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from neuralop.losses import FiniteDiff

from neuralop_mup.errors import MupError
from neuralop_mup.losses import checks

_EPS = 1e-8  # as in neuralop's LpLoss
# The generated problems reach 0.5 at 8 points in time and 0.7 at 4; twice the viscosity or the time gives 0.9 to 1.1.
_FAR = 0.8


class FieldLoss(ABC):
    """A loss of a predicted field, in neuralop's calling style.

    Parameters
    ----------
    reduction : {"sum", "mean"}
        Over the batch. neuralop's Trainer expects the sum, which is also the default of its LpLoss.
    """

    layout: ClassVar[str]  # of the prediction; axes of the same name have equally many points

    def __init__(self, reduction: str = "sum") -> None:
        if reduction not in ("sum", "mean"):
            raise MupError(f"reduction must be 'sum' or 'mean', as in neuralop's losses, but it is {reduction!r}.")
        self.reduction = reduction
        self._warned = False
        self._seen: set[tuple] = set()  # grids whose data has been looked at, in training and in evaluation

    def check_grid(self, y_pred: torch.Tensor) -> None:
        """Raise MupError unless the prediction's shape can work; every call."""
        checks.axes(y_pred, self.layout)

    def check_data(self, x: torch.Tensor | None, y: torch.Tensor | None) -> None:  # noqa: B027  (a loss may have none)
        """Raise MupError unless the data is what the equation needs; the first batch of each grid only."""

    def disagreement(self, x: torch.Tensor | None, y: torch.Tensor) -> str | None:
        """What to warn of if the data is far from what the loss asks for; the first batch of each grid only."""
        return None

    @abstractmethod
    def per_sample(self, u: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        """The loss of each sample, shape (batch,), of a prediction in float32 or float64."""

    def __call__(
        self, y_pred: torch.Tensor, x: torch.Tensor | None = None, y: torch.Tensor | None = None, **_: Any
    ) -> torch.Tensor:
        """The loss, a tensor without axes.

        Parameters
        ----------
        y_pred : torch.Tensor
            The model's output in physical units; see the class for its shape.
        x, y : torch.Tensor
            The sample's input and solution in physical units. y is used to check the data only.
        **_
            Whatever else the sample holds, not used.

        Returns
        -------
        torch.Tensor
            The sum or the mean over the batch.

        Raises
        ------
        MupError
            For shapes or data that the equation cannot use. Data is looked at in the first batch of each grid only,
            in training and in evaluation.

        Warns
        -----
        UserWarning
            Once, if the data's own solution is far from solving the equation as it is discretised here.
        """
        self.check_grid(y_pred)
        # A data processor may hand over other units in training than in evaluation, as neuralop's default does.
        kind = (tuple(y_pred.shape[2:]), torch.is_grad_enabled())
        if kind not in self._seen:
            for name, values in {"x": x, "y": y}.items():
                if values is not None:
                    checks.finite(name, values)
                    if values.ndim != y_pred.ndim or values.shape[2:] != y_pred.shape[2:]:
                        raise MupError(
                            f"The sample's {name} has shape {tuple(values.shape)}, the prediction {tuple(y_pred.shape)}: "
                            f"an equation loss needs both on the same grid."
                        )
            self.check_data(x, y)
            self._seen.add(kind)
            if y is not None and not self._warned:
                with torch.no_grad():
                    message = self.disagreement(x, y)
                if message:
                    self._warned = True
                    warnings.warn(message, UserWarning, stacklevel=2)
        half = y_pred.dtype in (torch.float16, torch.bfloat16)  # second derivatives would be all rounding
        losses = self.per_sample(y_pred.float() if half else y_pred, x)
        return losses.sum() if self.reduction == "sum" else losses.mean()


def relative_l2(values: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """‖values − reference‖ / ‖reference‖ of each sample, as neuralop's LpLoss; its gradient at zero is zero, not NaN."""
    distance = torch.linalg.vector_norm((values - reference).flatten(1), dim=1)
    return distance / (torch.linalg.vector_norm(reference.flatten(1), dim=1) + _EPS)


def residual_size(operator: torch.Tensor, forcing: torch.Tensor | None) -> torch.Tensor:
    """Size of the residual ``operator − forcing`` of each sample, as PINO measures it.

    Relative to the forcing, if there is one: ‖operator − forcing‖ / ‖forcing‖. Else there is nothing to be relative to,
    and it is the mean square.
    """
    if forcing is None:
        return operator.flatten(1).square().mean(1)
    return relative_l2(operator, forcing)


def forcing_like(forcing: torch.Tensor | float, field: torch.Tensor) -> torch.Tensor:
    """The forcing with the field's dtype and device, checked to broadcast to the field's shape."""
    values = torch.as_tensor(forcing).to(field)
    try:
        torch.broadcast_to(values, field.shape)
    except RuntimeError:
        raise MupError(
            f"forcing of shape {tuple(values.shape)} does not fit fields of shape {tuple(field.shape)}."
        ) from None
    return values


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
        self.time = checks.positive("time", time)
        self.ends = bool(ends)

    def check_data(self, x: torch.Tensor | None, y: torch.Tensor | None) -> None:
        for name, values in {"x": x, "y": y}.items():
            if values is not None:
                for axis in range(3 - values.ndim, 0):
                    checks.periodic(name, values[:, 0, 0], axis)

    @abstractmethod
    def sides(self, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Differential operator and forcing, if any, at all times: shape ``(batch, time, *space)``, as u."""

    def residual(self, u: torch.Tensor) -> torch.Tensor:
        """Operator − forcing at all times, both ends included: shape ``(batch, time, *space)``, as u."""
        operator, forcing = self.sides(u)
        return operator if forcing is None else operator - forcing

    def disagreement(self, x: torch.Tensor | None, y: torch.Tensor) -> str | None:
        """A sentence if the residual of y is as large as its time derivative and the forcing, in the median sample.

        Neither u = 0 nor a mean over samples would tell: without forcing u = 0 solves the equation, and a few fronts that
        the grid does not resolve are most of a mean.
        """
        u = y[:, 0].double()
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
