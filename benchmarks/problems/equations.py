"""Losses of equations over space and time, periodic in space, called as neuralop's losses are: ``loss(y_pred, **sample)``.

The size of a residual as PINO measures it (arXiv 2111.03794; ``FDM_Burgers`` and ``FDM_NS_vorticity`` of its code,
github.com/neuraloperator/physics_informed): derivatives in space are those of the trigonometric interpolant, in time central
differences, and the first and the last time do not count. Products are only sampled at the nodes and never differentiated,
so nothing is aliased. Fields are in physical units.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from neuralop.losses import FiniteDiff

from neuralop_mup.losses.equations import FieldLoss, needed, relative_l2


class InitialConditionLoss(FieldLoss):
    """Relative L2 distance of the prediction, shape ``(batch, 1, nt, *space)``, at t = 0 from the state ``x[:, 0, 0]``."""

    def check_grid(self, y_pred: torch.Tensor) -> None:
        """Any number of axes."""

    def per_sample(self, u: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        return relative_l2(u[:, 0, 0], needed("x", x)[:, 0, 0].to(u))


class _SpaceTimeLoss(FieldLoss):
    """The size of a residual at the inner times: relative to the forcing or, without one, its mean square."""

    time: float

    @abstractmethod
    def sides(self, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Differential operator and forcing, if any, at all times: shape ``(batch, time, *space)``, as u."""

    def time_derivative(self, u: torch.Tensor) -> torch.Tensor:
        """∂u/∂t: central differences of second order, at both ends one-sided of third."""
        # Only dx is used, along the first of the axes that FiniteDiff counts: the time.
        return FiniteDiff(dim=u.ndim - 1, h=self.time / (u.shape[1] - 1), periodic_in_x=False).dx(u)

    def per_sample(self, u: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        operator, forcing = self.sides(u[:, 0])
        if forcing is None:
            return operator[:, 1:-1].flatten(1).square().mean(1)
        return relative_l2(operator[:, 1:-1], forcing.expand_as(operator)[:, 1:-1])


class PeriodicBurgersEqnLoss(_SpaceTimeLoss):
    """Mean square of u_t + u u_x − ν u_xx on the periodic unit interval; u at t_j = j · time / (nt − 1) and x_i = i / nx."""

    layout = "(batch, 1, time, x)"

    def __init__(self, viscosity: float, time: float = 1.0, *, reduction: str = "sum") -> None:
        super().__init__(reduction)
        self.viscosity, self.time = viscosity, time

    def sides(self, u: torch.Tensor) -> tuple[torch.Tensor, None]:
        n = u.shape[-1]
        k = 2 * math.pi * torch.arange(n // 2 + 1, dtype=u.dtype, device=u.device)
        modes = torch.fft.rfft(u)
        # irfft drops the imaginary part of the highest mode of an even grid, whose first derivative the nodes cannot see.
        first, second = torch.fft.irfft(torch.stack((1j * k * modes, -(k**2) * modes)), n=n)
        return self.time_derivative(u) + u * first - self.viscosity * second, None


class NavierStokesEqnLoss(_SpaceTimeLoss):
    """‖w_t + v·∇w − Δw/Re − f‖ / ‖f‖ on [0, 2π]², v = (∂₂ψ, −∂₁ψ), −Δψ = w; without forcing the mean square.

    Parameters
    ----------
    reynolds : float
    forcing : torch.Tensor or float
        f at the nodes, broadcast to ``(batch, nt, n, n)``; 0 for none.
    time : float
        Length of the time interval.
    """

    layout = "(batch, 1, time, n, n)"

    def __init__(self, reynolds: float, forcing: torch.Tensor | float, time: float = 1.0, *, reduction: str = "sum") -> None:
        super().__init__(reduction)
        self.reynolds, self.forcing, self.time = reynolds, forcing, time

    def sides(self, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        n = u.shape[-1]
        k1 = torch.fft.fftfreq(n, 1 / n, dtype=u.dtype, device=u.device)[:, None]
        k2 = torch.arange(n // 2 + 1, dtype=u.dtype, device=u.device)
        square = k1**2 + k2**2
        inverse = torch.where(square > 0, 1 / square.clamp(min=1), 0.0)
        # The first derivative of the highest mode of an even grid is zero at the nodes.
        d1, d2 = (1j * torch.where(2 * k.abs() == n, 0.0, k) for k in (k1, k2))
        modes = torch.fft.rfft2(u)
        stream = modes * inverse
        v1, v2, w1, w2, laplacian = torch.fft.irfft2(
            torch.stack((d2 * stream, -d1 * stream, d1 * modes, d2 * modes, -square * modes)), s=(n, n)
        )
        forcing = torch.as_tensor(self.forcing).to(u).expand_as(u)
        operator = self.time_derivative(u) + v1 * w1 + v2 * w2 - laplacian / self.reynolds
        return operator, forcing if forcing.any() else None
