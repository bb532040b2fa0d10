"""Whether a field goes on periodically, with the end point of its grid left out."""

from __future__ import annotations

import torch

from neuralop_mup.errors import MupError

# A jump across the boundary counts as one when it is this many times the largest step between neighbours inside.
# A resolved front at the boundary has as steep a step beside it; a smooth field has at most about 1.
_JUMP = 4.0


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
