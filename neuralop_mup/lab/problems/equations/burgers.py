"""The residual of viscous Burgers on a circle."""

from __future__ import annotations

import math

import torch

from neuralop_mup.lab.problems.equations.space_time import SpaceTimeLoss, positive


class PeriodicBurgersEqnLoss(SpaceTimeLoss):
    """Mean square of the residual u_t + u u_x − ν u_xx in space-time, on the periodic unit interval.

    Call it as ``loss(y_pred, **sample)``: ``y_pred`` is u, shape (batch, 1, nt, nx), at t_j = j · time / (nt − 1), both
    ends included, and x_i = i / nx, the end point left out. ``sample["x"]`` and ``sample["y"]`` serve to check the data:
    ``x[:, 0, 0]``, the initial state, must be periodic.

    Derivatives in space are those of the trigonometric interpolant. The product u u_x is only sampled at the nodes and
    never differentiated, so nothing is aliased: it is the nodes' exact value for the interpolant, equal to (u²/2)_x taken
    on a grid twice as fine, where (u²/2)_x on the same grid would need u² to be resolved. In time, central differences
    of second order. The first and the last time do not count, as in PINO's code, unless ``ends`` is true: then one-sided
    differences of third order serve there. Where the initial state is rough, no affordable step resolves its first decay,
    and the first time would be most of the loss: for :class:`problems.Burgers`' Gaussian initial states at ν = 0.01, 64
    times and 128 points, 99 % of the loss of the solution itself.

    neuralop's own BurgersEqnLoss differs: finite differences in space too, one-sided where the circle closes, all times and
    averaged over the batch. Of the exact solution by Cole and Hopf at ν = 0.05 on 257 times and 64 points it gives 8.5e-7,
    and this one 1e-10.

    Parameters
    ----------
    viscosity : float
        ν, above 0.
    time : float, default 1.0
        Length of the time interval.
    ends : bool, default False
        Whether the first and the last time count.
    reduction : {"sum", "mean"}, default "sum"
        Over the batch.

    Raises
    ------
    MupError
        For a number that is not finite or not above 0, or an unknown reduction; when it is called, for shapes or data that
        the equation cannot use, such as fields that are not periodic.

    References
    ----------
    Li et al., "Physics-Informed Neural Operator for Learning Partial Differential Equations", arXiv 2111.03794, and its
    code, github.com/neuraloperator/physics_informed (``FDM_Burgers``).

    Examples
    --------
    >>> import torch
    >>> from neuralop_mup.lab.problems.equations.burgers import PeriodicBurgersEqnLoss
    >>> loss = PeriodicBurgersEqnLoss(viscosity=0.01, time=1.0)
    >>> u = torch.full((2, 1, 8, 16), 0.5)
    >>> float(loss(u, x=u, y=u))
    0.0
    """

    layout = "(batch, 1, time, x)"

    def __init__(self, viscosity: float, time: float = 1.0, *, ends: bool = False, reduction: str = "sum") -> None:
        super().__init__(time, ends, reduction)
        self.viscosity = positive("viscosity", viscosity)

    def sides(self, u: torch.Tensor) -> tuple[torch.Tensor, None]:
        n = u.shape[-1]
        k = 2 * math.pi * torch.arange(n // 2 + 1, dtype=u.dtype, device=u.device)
        modes = torch.fft.rfft(u)
        # irfft drops the imaginary part of the highest mode of an even grid, whose first derivative the nodes cannot see.
        first, second = torch.fft.irfft(torch.stack((1j * k * modes, -(k**2) * modes)), n=n)
        return self.time_derivative(u) + u * first - self.viscosity * second, None
