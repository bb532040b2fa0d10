"""What equation losses have in common: the call, a look at the first batch, the norm, the reduction over the batch."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch

from neuralop_mup.errors import MupError

UNITS = "the losses need physical units in training too: use PhysicalDataProcessor, not neuralop's default processor"


class FieldLoss(ABC):
    """A loss of a predicted field, in neuralop's calling style.

    Parameters
    ----------
    reduction : {"sum", "mean"}
        Over the batch. neuralop's Trainer expects the sum, which is also the default of its LpLoss.
    """

    layout: ClassVar[str]  # of the prediction; the axes called n have equally many points

    def __init__(self, reduction: str = "sum") -> None:
        if reduction not in ("sum", "mean"):
            raise MupError(f"reduction must be 'sum' or 'mean', as in neuralop's losses, but it is {reduction!r}.")
        self.reduction = reduction
        self._seen: set[tuple] = set()  # grids whose data has been looked at, in training and in evaluation

    def check_grid(self, y_pred: torch.Tensor) -> None:
        """Raise MupError unless the prediction has the axes of ``layout``, one channel and 4 points an axis; every call."""
        shape = tuple(y_pred.shape)
        fits = len(shape) == self.layout.count(",") + 1 and shape[1] == 1 and min(shape[2:]) >= 4
        if not fits or ("n, n" in self.layout and shape[-1] != shape[-2]):
            raise MupError(
                f"The prediction must have shape {self.layout}, with at least 4 points along each axis and equally many "
                f"points along axes of one name, but it has {shape}."
            )

    def check_data(self, x: torch.Tensor | None, y: torch.Tensor | None) -> str | None:
        """Raise MupError unless the data is what the equation needs; what to warn of, if it is far from solving that."""
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
            If the data's own solution is far from solving the equation as it is discretised here.
        """
        self.check_grid(y_pred)
        # A data processor may hand over other units in training than in evaluation, as neuralop's default does.
        kind = (tuple(y_pred.shape[2:]), torch.is_grad_enabled())
        if kind not in self._seen:
            for name, values in {"x": x, "y": y}.items():
                if values is not None:
                    _check_field(name, values, y_pred)
            message = self.check_data(x, y)
            self._seen.add(kind)
            if message:
                warnings.warn(message, UserWarning, stacklevel=2)
        half = y_pred.dtype in (torch.float16, torch.bfloat16)  # second derivatives would be all rounding
        losses = self.per_sample(y_pred.float() if half else y_pred, x)
        return losses.sum() if self.reduction == "sum" else losses.mean()


def _check_field(name: str, values: torch.Tensor, y_pred: torch.Tensor) -> None:
    bad = (~torch.isfinite(values)).nonzero()
    if len(bad):
        raise MupError(
            f"The sample's {name} has {len(bad)} entries that are NaN or infinite, the first at {tuple(bad[0].tolist())}."
        )
    if values.ndim != y_pred.ndim or values.shape[2:] != y_pred.shape[2:]:
        raise MupError(
            f"The sample's {name} has shape {tuple(values.shape)}, the prediction {tuple(y_pred.shape)}: an equation loss "
            "needs both on the same grid."
        )


def needed(name: str, values: torch.Tensor | None) -> torch.Tensor:
    """``values``; MupError if the sample has none."""
    if values is None:
        raise MupError(f"The loss needs the sample's {name}: call loss(y_pred, **sample) with {name!r} in the sample.")
    return values


def relative_l2(values: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """‖values − reference‖ / ‖reference‖ of each sample, as neuralop's LpLoss; its gradient at zero is zero, not NaN."""
    distance = torch.linalg.vector_norm((values - reference).flatten(1), dim=1)
    return distance / (torch.linalg.vector_norm(reference.flatten(1), dim=1) + 1e-8)  # as there, so that 0 / 0 is 0
