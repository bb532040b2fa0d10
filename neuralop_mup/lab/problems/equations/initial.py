"""The initial condition."""

from __future__ import annotations

import torch

from neuralop_mup.errors import MupError
from neuralop_mup.losses.base import UNITS, FieldLoss, needed, relative_l2


class InitialConditionLoss(FieldLoss):
    """Relative L2 distance of the prediction at t = 0 from the initial state, ‖u(0) − u₀‖ / ‖u₀‖.

    Call it as ``loss(y_pred, **sample)``: ``y_pred`` has shape ``(batch, 1, nt, *space)``, time first, and
    ``sample["x"][:, 0, 0]`` is the initial state. If there is a ``sample["y"]``, its first time must be the same state.

    Parameters
    ----------
    reduction : {"sum", "mean"}, default "sum"
        Over the batch.

    Raises
    ------
    MupError
        For an unknown reduction; when it is called, for shapes that it cannot use, a sample without x, or a y that begins
        elsewhere.

    References
    ----------
    Li et al., "Physics-Informed Neural Operator for Learning Partial Differential Equations", arXiv 2111.03794.

    Examples
    --------
    >>> import torch
    >>> from neuralop_mup.lab.problems.equations.initial import InitialConditionLoss
    >>> u = torch.ones(2, 1, 4, 16)
    >>> float(InitialConditionLoss()(u, x=u)), float(InitialConditionLoss(reduction="mean")(2 * u, x=u))
    (0.0, 1.0)
    """

    def check_grid(self, y_pred: torch.Tensor) -> None:
        shape = tuple(y_pred.shape)
        if len(shape) < 4 or shape[1] != 1:
            raise MupError(f"The prediction must have shape (batch, 1, time, *space), but it has {shape}.")

    def check_data(self, x: torch.Tensor | None, y: torch.Tensor | None) -> None:
        start = needed("x", x)[:, 0, 0]
        if y is None:
            return
        distance = float(relative_l2(y[:, 0, 0].flatten()[None], start.flatten()[None]))
        if distance > 0.1:  # noise may be there, other units or another axis may not
            raise MupError(
                f"The sample's y at the first time is {100 * distance:.0f} % away from the initial state x[:, 0, 0]: either "
                f"time is not the first axis after the channel, or y does not begin at t = 0, or x or y is normalised "
                f"({UNITS})."
            )

    def per_sample(self, u: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        return relative_l2(u[:, 0, 0], needed("x", x)[:, 0, 0].to(u))
