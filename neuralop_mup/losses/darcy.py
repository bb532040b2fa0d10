"""The residual of Darcy flow on the unit square."""

from __future__ import annotations

import torch

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.losses.base import UNITS, FieldLoss, needed, relative_l2

_OTHER_MEAN = {"harmonic": "arithmetic", "arithmetic": "harmonic"}
# Data solved on its own grid has 1e-5 in float32; sampled from a grid three times as fine 0.28 at 8 points an axis, 1 at 61.
_LARGE = 0.1


class DarcyEqnLoss(FieldLoss):
    """Relative L2 norm of the residual of −∇·(a∇u) = f on [0, 1]², ‖−∇·(a∇u) − f‖ / ‖f‖ over the inner nodes.

    Call it as ``loss(y_pred, **sample)``: ``y_pred`` is u, shape (batch, 1, n, n); ``sample["x"][:, 0]`` is a. The nodes
    include the boundary, where u = 0 is not part of the loss: multiply the output by :func:`sine_mollifier`.

    Fluxes through the faces between nodes, with a mean of a on the face: finite volumes, conservative, of second order
    where a is smooth. With the harmonic mean, which keeps the flux across a jump of a, it is the scheme of
    ``problems.solve_darcy``, whose solution on its own grid has a residual of rounding size. PINO's code differentiates by
    central differences twice instead; across a jump of a these do not keep the flux (the residual of an accurate solution
    grows as the grid is refined), and they cannot see a field that alternates from node to node. Where a is a coarser
    sampling of a jump than the solver saw, no scheme of the nodes makes the residual of the data small. The first batch's
    y is measured, and warned of where its own residual is above a tenth of that of u = 0: then the equation pulls against
    the data.

    Parameters
    ----------
    forcing : float or torch.Tensor, default 1.0
        f, not zero; a tensor is given at the nodes, broadcast to (batch, n, n).
    face_average : {"harmonic", "arithmetic"}, default "harmonic"
        Mean of the two nodes' a on the face between them, as the solver had it that made the data.
    reduction : {"sum", "mean"}, default "sum"
        Over the batch.

    Raises
    ------
    MupError
        For an unknown mean or reduction, or a forcing that is not finite or is zero everywhere; when it is called, for
        shapes or data that the equation cannot use.

    References
    ----------
    Li et al., "Physics-Informed Neural Operator for Learning Partial Differential Equations", arXiv 2111.03794, and its
    code, github.com/neuraloperator/physics_informed (``darcy_loss``).

    Examples
    --------
    >>> import torch
    >>> from neuralop_mup.losses import DarcyEqnLoss
    >>> from neuralop_mup.lab.problems import solve_darcy
    >>> a = 1 + torch.rand(2, 1, 16, 16, dtype=torch.float64)
    >>> loss = DarcyEqnLoss(forcing=1.0, reduction="mean")
    >>> bool(loss(solve_darcy(a), x=a) < 1e-10), round(float(loss(torch.zeros_like(a), x=a)), 6)
    (True, 1.0)
    """

    layout = "(batch, 1, n, n)"

    def __init__(
        self, forcing: float | torch.Tensor = 1.0, *, face_average: str = "harmonic", reduction: str = "sum"
    ) -> None:
        super().__init__(reduction)
        if face_average not in _OTHER_MEAN:
            raise MupError(f"face_average is {face_average!r}: {nearest(str(face_average), _OTHER_MEAN)}")
        self.face_average = face_average
        if not 0 < torch.as_tensor(forcing).abs().max() < torch.inf:
            raise MupError("forcing must be finite and not zero everywhere: the residual is measured relative to it.")
        self.forcing = forcing

    def check_data(self, x: torch.Tensor | None, y: torch.Tensor | None) -> str | None:
        a = needed("x", x)[:, 0]
        if not (a > 0).all():
            raise MupError(
                f"The coefficient x[:, 0] must be above 0, but its least value is {float(a.min()):.3g}: is x normalised? "
                f"If so, {UNITS}."
            )
        if y is None:
            return None
        edge = max(float(side.abs().max()) for side in (y[..., 0, :], y[..., -1, :], y[..., 0], y[..., -1]))
        if edge > 1e-3 * float(y.abs().max()):
            raise MupError(
                f"The sample's y must be 0 on the edge of the grid, but it reaches {edge:.3g} there: either the grid lacks "
                f"its boundary nodes, or y is normalised ({UNITS})."
            )
        u, name = y[:, 0].detach().double(), _OTHER_MEAN[self.face_average]
        own, other = (float(relative_l2(*self._sides(u, a, mean)).mean()) for mean in (self.face_average, name))
        if own <= _LARGE:
            return None
        return (
            f"The sample's y does not solve the equation as DarcyEqnLoss discretises it: its own residual is {own:.2g}, "
            "where that of u = 0 is 1, so the equation pulls against the data. "
        ) + (
            f"It is {other:.2g} with the {name} mean of a on faces: take DarcyEqnLoss(face_average={name!r})."
            if other <= _LARGE
            else "If forcing and units are right, y was solved on a finer grid, between whose points a jumps: solve on the "
            "data's own grid, or leave the equation out."
        )

    def residual(self, u: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        """−∇·(a∇u) − f at the inner nodes, shape (batch, n − 2, n − 2), of u and a at all nodes, shape (batch, n, n).

        Parameters
        ----------
        u, a : torch.Tensor
            Solution and coefficient at all nodes, without a channel axis.

        Returns
        -------
        torch.Tensor
            With u's dtype.

        Examples
        --------
        >>> u, a = torch.zeros(2, 8, 8), torch.ones(2, 8, 8)
        >>> residual = DarcyEqnLoss(forcing=1.0).residual(u, a)
        >>> residual.shape, residual.unique()
        (torch.Size([2, 6, 6]), tensor([-1.]))
        """
        return torch.sub(*self._sides(u, a, self.face_average))

    def _sides(self, u: torch.Tensor, a: torch.Tensor, face_average: str) -> tuple[torch.Tensor, torch.Tensor]:
        forcing = torch.as_tensor(self.forcing).to(u).expand_as(u)[:, 1:-1, 1:-1]
        rows, columns = (_flux_differences(u, a.to(u), axis, face_average) for axis in (1, 2))
        return -(rows[:, :, 1:-1] + columns[:, 1:-1]) * (u.shape[-1] - 1) ** 2, forcing

    def per_sample(self, u: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        return relative_l2(*self._sides(u[:, 0], needed("x", x)[:, 0], self.face_average))


def _flux_differences(u: torch.Tensor, a: torch.Tensor, axis: int, face_average: str) -> torch.Tensor:
    """Differences along an axis of (mean of a on the face) · (difference of u across it)."""
    n = u.shape[axis]
    left, right = a.narrow(axis, 0, n - 1), a.narrow(axis, 1, n - 1)
    faces = (left + right) / 2 if face_average == "arithmetic" else 2 / (1 / right + 1 / left)
    return (faces * u.diff(dim=axis)).diff(dim=axis)
