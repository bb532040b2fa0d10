"""Data that an equation loss cannot use, found before it trains a model on nonsense."""

from __future__ import annotations

import math
from typing import Any

import torch

from neuralop_mup.errors import MupError

UNITS = "the losses need physical units in training too: use PhysicalDataProcessor, not neuralop's default processor"

# A jump across the boundary counts as one when it is this many times the largest step between neighbours inside.
# A resolved front at the boundary has as steep a step beside it; a smooth field has at most about 1.
_JUMP = 4.0


def positive(name: str, value: Any) -> float:
    """``value`` as a float; MupError unless it is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
        raise MupError(f"{name} must be a finite number above 0, but it is {value!r}.")
    return float(value)


def finite(name: str, values: torch.Tensor) -> None:
    """Raise MupError if a field of the data has NaN or infinite entries."""
    bad = ~torch.isfinite(values)
    if bad.any():
        where = tuple(int(i) for i in bad.nonzero()[0])
        raise MupError(f"The sample's {name} has {int(bad.sum())} entries that are NaN or infinite, the first at {where}.")


def axes(y_pred: torch.Tensor, layout: str) -> None:
    """Raise MupError unless ``y_pred`` has the axes of ``layout``, one channel and at least 4 points an axis.

    Parameters
    ----------
    y_pred : torch.Tensor
    layout : str
        Such as ``"(batch, 1, time, n, n)"``; the axes called n must have equally many points.
    """
    shape = tuple(y_pred.shape)
    if len(shape) != layout.count(",") + 1 or shape[1] != 1:
        raise MupError(f"The prediction must have shape {layout}, but it has {shape}.")
    if min(shape[2:]) < 4:
        raise MupError(f"The prediction has shape {shape}: at least 4 points are needed along each axis.")
    if "n, n" in layout and shape[-1] != shape[-2]:
        raise MupError(
            f"The prediction has shape {shape}, but space must have equally many points each way; expected {layout}."
        )


def needed(name: str, values: torch.Tensor | None) -> torch.Tensor:
    """``values``; MupError if the sample has none."""
    if values is None:
        raise MupError(f"The loss needs the sample's {name}: call loss(y_pred, **sample) with {name!r} in the sample.")
    return values


def periodic(name: str, field: torch.Tensor, axis: int) -> None:
    """Raise MupError if a field of the data does not go on periodically along an axis with its end point left out.

    Two criteria. *End point included*: over the whole batch the last point repeats the first (the difference is below
    1e-3 of the mean step between neighbours), and the field is no rougher without the last point, as it would be if it
    merely were symmetric about the boundary. *A jump*: in most samples the step from the last point to the first is more
    than 4 times the largest step inside, which no resolved field does, fronts included; a single front of one cell's
    width at the boundary is forgiven unless the batch has no other sample.

    Parameters
    ----------
    name : str
        What to call the field.
    field : torch.Tensor, shape (batch, *space)
    axis : int
        The axis of space, counted from the end.
    """
    values = field.detach().double().movedim(axis, 1)
    values = values.reshape(*values.shape[:2], -1)
    steps = values.diff(dim=1, append=values[:, :1])  # the last one leads across the boundary
    sizes = torch.linalg.vector_norm(steps, dim=2)  # (batch, points)
    inside, across = sizes[:, :-1], sizes[:, -1]
    varies = inside.amax(1) > 1e-6 * values.abs().flatten(1).amax(1)
    if not varies.any():
        return
    inside, across = inside[varies], across[varies]
    if across.sum() < 1e-3 * inside.mean(1).sum() and _roughness(values) > 0.5 * _roughness(values[:, :-1]):
        raise MupError(
            f"The last points of the sample's {name} along axis {axis} repeat the first: the end point of a periodic grid "
            f"must be left out (drop it: {name}[..., :-1] along that axis)."
        )
    ratio = (across / inside.amax(1)).median()
    if ratio > _JUMP:
        raise MupError(
            f"The sample's {name} is not periodic along axis {axis}: from its last point to its first it jumps "
            f"{float(ratio):.3g} times as far as anywhere between neighbours."
        )


def _roughness(values: torch.Tensor) -> torch.Tensor:
    """Size of the upper half of the modes along axis 1."""
    modes = torch.fft.rfft(values, dim=1, norm="forward")
    return torch.linalg.vector_norm(modes[:, modes.shape[1] // 2 :])
