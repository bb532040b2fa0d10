"""Losses for initial conditions and for equations in space and time, with periodic boundary conditions in space.

Spatial derivatives are those of the trigonometric interpolant, and time derivatives are central differences. Therefore, the
first and the last time are not included. Products are only sampled at the nodes and never differentiated, so there is no
aliasing.
"""

import math
from abc import abstractmethod

import torch
from neuralop.losses import FiniteDiff

from neuralop_mup.errors import MupError
from neuralop_mup.losses.equations import UNITS, FieldLoss, needed, relative_l2
from neuralop_mup.validation import check_positive

#: A residual above this multiple of the time derivative triggers a warning.
_LARGE = 1.0
#: Fields are considered normalised if scaling and shifting them reduces the residual by this factor. The factor was 8 to 120
#: for normalised solutions, and below 2 for wrong constants.
_PROOF = 5


class InitialConditionLoss(FieldLoss):
    """Relative L2 distance of the prediction at t = 0 from the initial state: ‖u(0) − x‖ / ‖x‖.

    Call it as ``loss(y_pred, **sample)``, where ``y_pred`` is u with shape (batch, 1, time, ...). As in neuralop's
    ``ICLoss``, ``sample["x"][:, 0, 0]`` is the initial state.

    Parameters
    ----------
    reduction : {"sum", "mean"}, default "sum"
        Reduction over the batch.

    Raises
    ------
    MupError
        If an argument is invalid. When the loss is called, if the shapes or the data are invalid.

    Examples
    --------
    >>> import torch
    >>> from neuralop_mup.losses import InitialConditionLoss
    >>> x = torch.rand(2, 1, 1, 16).expand(2, 1, 8, 16)
    >>> round(float(InitialConditionLoss(reduction="mean")(1.1 * x, x=x)), 6)
    0.1
    """

    def check_grid(self, y_pred: torch.Tensor) -> None:
        """Accept any shape."""

    def per_sample(self, u: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        return relative_l2(u[:, 0, 0], needed("x", x)[:, 0, 0].to(u))


class _SpaceTimeLoss(FieldLoss):
    """The residual at the inner times, relative to the forcing, or its mean square if there is no forcing."""

    time: float

    @abstractmethod
    def terms(self, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the terms of the equation that are linear and quadratic in u, and ∇u · 1, each of shape ``u.shape``.

        The last term is the change of the quadratic term per constant that is added to u, and zero if it does not change.
        """

    def forcing_like(self, u: torch.Tensor) -> torch.Tensor | None:
        """Return the forcing in the shape of u, or None if it is zero."""
        return None

    def time_derivative(self, u: torch.Tensor) -> torch.Tensor:
        """Return ∂u/∂t by second-order central differences, with third-order one-sided differences at the ends."""
        # FiniteDiff.dx differentiates along the first of its axes, which is the time here.
        return FiniteDiff(dim=u.ndim - 1, h=self.time / (u.shape[1] - 1), periodic_in_x=False).dx(u)

    def per_sample(self, u: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        linear, quadratic, _ = self.terms(u[:, 0])
        operator, forcing = linear + quadratic, self.forcing_like(u[:, 0])
        if forcing is None:
            return operator[:, 1:-1].flatten(1).square().mean(1)
        return relative_l2(operator[:, 1:-1], forcing[:, 1:-1])

    def check_data(self, x: torch.Tensor | None, y: torch.Tensor | None) -> str | None:
        if y is None:
            return None
        u = y[:, 0].detach().double()
        inner = [term[:, 1:-1].flatten() for term in (*self.terms(u), self.time_derivative(u))]
        linear, quadratic, shift, change = inner
        forcing = self.forcing_like(u)
        known = torch.zeros_like(linear) if forcing is None else forcing[:, 1:-1].flatten()
        size = change.norm() + 1e-300
        residual = float((linear + quadratic - known).norm() / size)
        # The field σ y + μ solves the equation if L + σ Q + μ S − f / σ = 0, which is linear in σ, μ and 1 / σ.
        columns = torch.stack([quadratic, shift, -known], dim=1)
        found = torch.linalg.lstsq(columns, -linear[:, None], driver="gelsd").solution
        fitted = float((linear + (columns @ found)[:, 0]).norm() / size)
        if residual > max(_PROOF * fitted, _LARGE / _PROOF):
            raise MupError(
                f"The sample's y does not solve the equation, but {float(found[0]):.3g} · y + c does for some constant c. "
                f"Therefore y is normalised. To train on such data, {UNITS}."
            )
        if residual <= _LARGE:
            return None
        return (
            f"The sample's y does not solve the equation of {type(self).__name__}: its residual is {residual:.2g} times its "
            "time derivative, so the equation loss contradicts the data. Check the constants and the time interval. If they "
            "are correct, the data has too few times or points. Use a finer grid, or omit the equation loss."
        )


class PeriodicBurgersEqnLoss(_SpaceTimeLoss):
    """Mean square of the residual of u_t + u u_x − ν u_xx = 0 on the periodic unit interval.

    Call it as ``loss(y_pred, **sample)``, where ``y_pred`` is u with shape (batch, 1, nt, nx) at t_j = j · time / (nt − 1)
    and x_i = i / nx. For fields that are not periodic, use neuralop's ``BurgersEqnLoss``.

    The ``sample["y"]`` of the first batch is checked: the loss raises an error if y solves the equation only after scaling
    and shifting, and warns if y does not solve it.

    Parameters
    ----------
    viscosity : float
        The viscosity ν, which must be positive.
    time : float, default 1.0
        Length of the time interval.
    reduction : {"sum", "mean"}, default "sum"
        Reduction over the batch.

    Raises
    ------
    MupError
        If an argument is invalid. When the loss is called, if the shapes or the data are invalid.

    References
    ----------
    Li et al., "Physics-Informed Neural Operator for Learning Partial Differential Equations", arXiv 2111.03794, and its
    code, github.com/neuraloperator/physics_informed (``FDM_Burgers``).

    Examples
    --------
    >>> import torch
    >>> from neuralop_mup.losses import PeriodicBurgersEqnLoss
    >>> float(PeriodicBurgersEqnLoss(viscosity=0.1)(torch.ones(2, 1, 8, 16)))
    0.0
    """

    layout = "(batch, 1, time, x)"

    def __init__(self, viscosity: float, time: float = 1.0, *, reduction: str = "sum") -> None:
        super().__init__(reduction)
        check_positive("viscosity", viscosity)
        check_positive("time", time)
        self.viscosity, self.time = viscosity, time

    def terms(self, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        n = u.shape[-1]
        k = 2 * math.pi * torch.arange(n // 2 + 1, dtype=u.dtype, device=u.device)
        modes = torch.fft.rfft(u)
        # irfft drops the imaginary part of the highest mode on an even grid; its first derivative is zero at the nodes.
        first, second = torch.fft.irfft(torch.stack((1j * k * modes, -(k**2) * modes)), n=n)
        return self.time_derivative(u) - self.viscosity * second, u * first, first


class NavierStokesEqnLoss(_SpaceTimeLoss):
    """Relative residual of the vorticity equation w_t + v·∇w = Δw/Re + f on the torus [0, 2π]².

    The velocity is v = (∂₂ψ, −∂₁ψ) with −Δψ = w. The loss is ‖w_t + v·∇w − Δw/Re − f‖ / ‖f‖ or, if f is zero, the mean
    square of the residual. Call it as ``loss(y_pred, **sample)``, where ``y_pred`` is w with shape (batch, 1, nt, n, n) at
    t_j = j · time / (nt − 1) and x_i = 2π i / n. The data is checked as in :class:`PeriodicBurgersEqnLoss`.

    Parameters
    ----------
    reynolds : float
        Reynolds number Re, which must be positive.
    forcing : torch.Tensor or float
        Forcing f at the nodes, broadcast to (batch, nt, n, n). Use 0 for no forcing.
    time : float, default 1.0
        Length of the time interval.
    reduction : {"sum", "mean"}, default "sum"
        Reduction over the batch.

    Raises
    ------
    MupError
        If an argument is invalid. When the loss is called, if the shapes or the data are invalid.

    References
    ----------
    Li et al., "Physics-Informed Neural Operator for Learning Partial Differential Equations", arXiv 2111.03794, and its
    code, github.com/neuraloperator/physics_informed (``FDM_NS_vorticity``).

    Examples
    --------
    >>> import torch
    >>> from neuralop_mup.losses import NavierStokesEqnLoss
    >>> float(NavierStokesEqnLoss(reynolds=40, forcing=1.0, reduction="mean")(torch.zeros(2, 1, 8, 16, 16)))
    1.0
    """

    layout = "(batch, 1, time, n, n)"

    def __init__(self, reynolds: float, forcing: torch.Tensor | float, time: float = 1.0, *, reduction: str = "sum") -> None:
        super().__init__(reduction)
        check_positive("reynolds", reynolds)
        check_positive("time", time)
        self.reynolds, self.forcing, self.time = reynolds, forcing, time

    def forcing_like(self, u: torch.Tensor) -> torch.Tensor | None:
        forcing = torch.as_tensor(self.forcing).to(u)
        return forcing.expand_as(u) if forcing.any() else None

    def terms(self, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        n = u.shape[-1]
        k1 = torch.fft.fftfreq(n, 1 / n, dtype=u.dtype, device=u.device)[:, None]
        k2 = torch.arange(n // 2 + 1, dtype=u.dtype, device=u.device)
        square = k1**2 + k2**2
        inverse = torch.where(square > 0, 1 / square.clamp(min=1), 0.0)
        # The first derivative of the highest mode on an even grid is zero at the nodes.
        d1, d2 = (1j * torch.where(2 * k.abs() == n, 0.0, k) for k in (k1, k2))
        modes = torch.fft.rfft2(u)
        stream = modes * inverse
        v1, v2, w1, w2, laplacian = torch.fft.irfft2(
            torch.stack((d2 * stream, -d1 * stream, d1 * modes, d2 * modes, -square * modes)), s=(n, n)
        )
        # A constant vorticity induces no velocity on the torus, so the last term is zero.
        return self.time_derivative(u) - laplacian / self.reynolds, v1 * w1 + v2 * w2, torch.zeros_like(u)
