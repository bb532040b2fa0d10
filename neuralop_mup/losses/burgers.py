"""The residual of viscous Burgers on a circle."""

from __future__ import annotations

import math

import torch

from neuralop_mup.losses import checks
from neuralop_mup.losses.base import FieldLoss, residual_size, time_derivative

__all__ = ["PeriodicBurgersEqnLoss"]


class PeriodicBurgersEqnLoss(FieldLoss):
    """Mean square of the residual u_t + u u_x − ν u_xx in space-time, on the periodic unit interval.

    Call it as ``loss(y_pred, **sample)``: ``y_pred`` is u, shape (batch, 1, nt, nx), at t_j = j · time / (nt − 1), both
    ends included, and x_i = i / nx, the end point left out. ``sample["x"]`` and ``sample["y"]`` serve to check the data:
    ``x[:, 0, 0]``, the initial state, must be periodic.

    Derivatives in space are those of the trigonometric interpolant. The product u u_x is only sampled at the nodes and
    never differentiated, so nothing is aliased: it is the nodes' exact value for the interpolant, equal to (u²/2)_x taken
    on a grid twice as fine, where (u²/2)_x on the same grid would need u² to be resolved. In time, central differences
    of second order, one-sided at both ends.

    neuralop's own BurgersEqnLoss differs: finite differences in space too, not periodic, and averaged over the batch.

    Parameters
    ----------
    viscosity : float
        ν, above 0.
    time : float
        Length of the time interval.
    reduction : {"sum", "mean"}
        Over the batch.

    References
    ----------
    Li et al., "Physics-Informed Neural Operator for Learning Partial Differential Equations", arXiv 2111.03794, and its
    code, github.com/neuraloperator/physics_informed (``FDM_Burgers``, which leaves out both ends of the time).
    """

    def __init__(self, viscosity: float, time: float = 1.0, reduction: str = "sum") -> None:
        super().__init__(reduction)
        self.viscosity = checks.positive("viscosity", viscosity)
        self.time = checks.positive("time", time)

    def check_grid(self, y_pred: torch.Tensor) -> None:
        checks.axes(y_pred, "(batch, 1, time, x)")

    def check_data(self, x: torch.Tensor | None, y: torch.Tensor | None) -> None:
        for name, values in {"x": x, "y": y}.items():
            if values is not None:
                checks.periodic(name, values[:, 0, 0], -1)

    def residual(self, u: torch.Tensor) -> torch.Tensor:
        """u_t + u u_x − ν u_xx, shape (batch, nt, nx), of u of that shape."""
        n = u.shape[-1]
        k = 2 * math.pi * torch.arange(n // 2 + 1, dtype=u.dtype, device=u.device)
        modes = torch.fft.rfft(u)
        # irfft drops the imaginary part of the highest mode of an even grid, whose first derivative the nodes cannot see.
        first, second = torch.fft.irfft(torch.stack((1j * k * modes, -(k**2) * modes)), n=n)
        return time_derivative(u, self.time / (u.shape[1] - 1)) + u * first - self.viscosity * second

    def per_sample(self, u: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        return residual_size(self.residual(u[:, 0]), None)
