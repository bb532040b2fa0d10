"""The residual of two-dimensional Navier–Stokes on a torus, in vorticity form."""

from __future__ import annotations

import math

import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems.equations.space_time import SpaceTimeLoss, positive


class NavierStokesEqnLoss(SpaceTimeLoss):
    """Residual of w_t + v·∇w = Δw/Re + f on [0, 2π]², v = (∂₂ψ, −∂₁ψ), −Δψ = w, in space-time.

    Its relative L2 norm ‖w_t + v·∇w − Δw/Re − f‖ / ‖f‖ or, without forcing, its mean square. Call it as
    ``loss(y_pred, **sample)``: ``y_pred`` is w, shape (batch, 1, nt, n, n), at t_j = j · time / (nt − 1), both ends
    included, and x = 2πi/n, the end point left out. ``sample["x"]`` and ``sample["y"]`` serve to check the data.

    Derivatives in space and the velocity are those of the trigonometric interpolant; v·∇w is only sampled at the nodes, so
    nothing is aliased (see :class:`PeriodicBurgersEqnLoss`). The mean velocity is zero. In time, central differences
    of second order. The first and the last time do not count, as in PINO's code, unless ``ends`` is true: then one-sided
    differences of third order serve there.

    Parameters
    ----------
    reynolds : float
        Re, above 0.
    forcing : torch.Tensor or float, optional
        f at the nodes, broadcast to (batch, nt, n, n); 0 for none. Default: −4 cos(4 x₂).
    time : float, default 1.0
        Length of the time interval.
    ends : bool, default False
        Whether the first and the last time count.
    reduction : {"sum", "mean"}, default "sum"
        Over the batch.

    Raises
    ------
    MupError
        For a number that is not finite or not above 0, a forcing that is not finite, or an unknown reduction; when it is
        called, for shapes or data that the equation cannot use, such as fields that are not periodic.

    References
    ----------
    Li et al., "Physics-Informed Neural Operator for Learning Partial Differential Equations", arXiv 2111.03794, and its
    code, github.com/neuraloperator/physics_informed (``FDM_NS_vorticity``).

    Examples
    --------
    >>> import torch
    >>> from neuralop_mup.lab.problems.equations.navier_stokes import NavierStokesEqnLoss
    >>> loss = NavierStokesEqnLoss(reynolds=40, time=0.5, reduction="mean")
    >>> w = torch.zeros(2, 1, 8, 16, 16)
    >>> round(float(loss(w, x=w)), 6)
    1.0
    """

    layout = "(batch, 1, time, n, n)"

    def __init__(
        self,
        reynolds: float,
        forcing: torch.Tensor | float | None = None,
        time: float = 1.0,
        *,
        ends: bool = False,
        reduction: str = "sum",
    ) -> None:
        super().__init__(time, ends, reduction)
        self.reynolds = positive("reynolds", reynolds)
        if forcing is not None and not torch.isfinite(torch.as_tensor(forcing)).all():
            raise MupError("forcing has entries that are NaN or infinite.")
        self.forcing = forcing

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
        return self.time_derivative(u) + v1 * w1 + v2 * w2 - laplacian / self.reynolds, self._forcing(u)

    def _forcing(self, w: torch.Tensor) -> torch.Tensor | None:
        if self.forcing is None:
            n = w.shape[-1]
            return -4 * torch.cos(4 * (2 * math.pi / n) * torch.arange(n, dtype=w.dtype, device=w.device))
        forcing = torch.as_tensor(self.forcing).to(w).expand_as(w)
        return forcing if forcing.any() else None
