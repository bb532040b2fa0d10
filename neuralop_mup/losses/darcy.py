"""The residual of Darcy flow on the unit square."""

from __future__ import annotations

import torch

from neuralop_mup.errors import MupError
from neuralop_mup.losses import checks
from neuralop_mup.losses.base import FieldLoss, forcing_like, residual_size

__all__ = ["DarcyEqnLoss"]


class DarcyEqnLoss(FieldLoss):
    """Relative L2 norm of the residual of −∇·(a∇u) = f on [0, 1]², ‖−∇·(a∇u) − f‖ / ‖f‖ over the inner nodes.

    Call it as ``loss(y_pred, **sample)``: ``y_pred`` is u, shape (batch, 1, n, n); ``sample["x"][:, 0]`` is a. The nodes
    include the boundary, where u = 0 is not part of the loss: multiply the output by :func:`sine_mollifier`.

    Fluxes through the faces between nodes, with the harmonic mean of a on the face: finite volumes, conservative, of
    second order where a is smooth, the scheme of ``problems.solve_darcy``, whose solution on its own grid has a residual
    of rounding size. PINO's code differentiates by central differences twice instead; across a jump of a these do not
    keep the flux (the residual of an accurate solution grows as the grid is refined), and they cannot see a field that
    alternates from node to node. Where a is a coarser sampling of a jump than the solver saw, no scheme of the nodes
    makes the residual of the data small.

    Parameters
    ----------
    forcing : float or torch.Tensor
        f, not zero; a tensor is given at the nodes, broadcast to (batch, n, n).
    reduction : {"sum", "mean"}
        Over the batch.

    References
    ----------
    Li et al., "Physics-Informed Neural Operator for Learning Partial Differential Equations", arXiv 2111.03794, and its
    code, github.com/neuraloperator/physics_informed (``darcy_loss``).
    """

    def __init__(self, forcing: float | torch.Tensor = 1.0, *, reduction: str = "sum") -> None:
        super().__init__(reduction)
        values = torch.as_tensor(forcing)
        if not torch.isfinite(values).all() or not (values != 0).any():
            raise MupError("forcing must be finite and not zero everywhere: the residual is measured relative to it.")
        self.forcing = forcing

    def check_grid(self, y_pred: torch.Tensor) -> None:
        checks.axes(y_pred, "(batch, 1, n, n)", square=2)

    def check_data(self, x: torch.Tensor | None, y: torch.Tensor | None) -> None:
        a = checks.needed("x", x)[:, 0]
        if not (a > 0).all():
            raise MupError(
                f"The coefficient x[:, 0] must be above 0, but its least value is {float(a.min()):.3g}: is x normalised? "
                f"If so, {checks.UNITS}."
            )
        if y is None:
            return
        edge = max(float(side.abs().max()) for side in (y[..., 0, :], y[..., -1, :], y[..., 0], y[..., -1]))
        if edge > 1e-3 * float(y.abs().max()):
            raise MupError(
                f"The sample's y must be 0 on the edge of the grid, but it reaches {edge:.3g} there: either the grid lacks "
                f"its boundary nodes, or y is normalised ({checks.UNITS})."
            )

    def residual(self, u: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        """−∇·(a∇u) − f at the inner nodes, shape (batch, n − 2, n − 2), of u and a at all nodes, shape (batch, n, n)."""
        operator, forcing = self._sides(u, a)
        return operator - forcing

    def _sides(self, u: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        forcing = forcing_like(self.forcing, u).expand_as(u)[:, 1:-1, 1:-1]
        inverse = 1 / a.to(u)
        operator = -(_flux_differences(u, inverse, 1)[:, :, 1:-1] + _flux_differences(u, inverse, 2)[:, 1:-1])
        return operator * (u.shape[-1] - 1) ** 2, forcing

    def per_sample(self, u: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        return residual_size(*self._sides(u[:, 0], checks.needed("x", x)[:, 0]))


def _flux_differences(u: torch.Tensor, inverse: torch.Tensor, axis: int) -> torch.Tensor:
    """Differences along an axis of (harmonic mean of a on the face) · (difference of u across it); 1 / a is given."""
    n = u.shape[axis]
    faces = 2 / (inverse.narrow(axis, 1, n - 1) + inverse.narrow(axis, 0, n - 1))
    return (faces * u.diff(dim=axis)).diff(dim=axis)
