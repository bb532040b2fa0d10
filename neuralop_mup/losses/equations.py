"""Losses of equations: the call, a look at the first batch, the norm, the reduction; and the residual of Darcy flow."""

import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch

from neuralop_mup.errors import MupError, nearest

UNITS = "the losses need physical units in training too: use PhysicalDataProcessor, not neuralop's default processor"
_OTHER_MEAN = {"harmonic": "arithmetic", "arithmetic": "harmonic"}
# Data solved on its own grid has 1e-5 in float32; sampled from a grid three times as fine 0.28 at 8 points an axis, 1 at 61.
_LARGE = 0.1


class FieldLoss(ABC):
    """A loss of a predicted field, in neuralop's calling style.

    Parameters
    ----------
    reduction : {"sum", "mean"}
        Over the batch. neuralop's Trainer expects the sum, which is also the default of its LpLoss.
    """

    layout: ClassVar[str]  # of the prediction; the axes called n have equally many points

    def __init__(self, reduction: str = "sum") -> None:
        if reduction not in ("sum", "mean"):
            raise MupError(f"reduction must be 'sum' or 'mean', as in neuralop's losses, but it is {reduction!r}.")
        self.reduction = reduction
        self._seen: set[tuple] = set()  # grids whose data has been looked at, in training and in evaluation

    def check_grid(self, y_pred: torch.Tensor) -> None:
        """Raise MupError unless the prediction has the axes of ``layout``, one channel and 4 points an axis; every call."""
        shape = tuple(y_pred.shape)
        fits = len(shape) == self.layout.count(",") + 1 and shape[1] == 1 and min(shape[2:]) >= 4
        if not fits or ("n, n" in self.layout and shape[-1] != shape[-2]):
            raise MupError(
                f"The prediction must have shape {self.layout}, with at least 4 points along each axis and equally many "
                f"points along axes of one name, but it has {shape}."
            )

    def check_data(self, x: torch.Tensor | None, y: torch.Tensor | None) -> str | None:
        """Raise MupError unless the data is what the equation needs; what to warn of, if it is far from solving that."""
        return None

    @abstractmethod
    def per_sample(self, u: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        """The loss of each sample, shape (batch,), of a prediction in float32 or float64."""

    def __call__(
        self, y_pred: torch.Tensor, x: torch.Tensor | None = None, y: torch.Tensor | None = None, **_: Any
    ) -> torch.Tensor:
        """The loss, a tensor without axes.

        Parameters
        ----------
        y_pred : torch.Tensor
            The model's output in physical units; see the class for its shape.
        x, y : torch.Tensor
            The sample's input and solution in physical units. y is used to check the data only.
        **_
            Whatever else the sample holds, not used.

        Returns
        -------
        torch.Tensor
            The sum or the mean over the batch.

        Raises
        ------
        MupError
            For shapes or data that the equation cannot use. Data is looked at in the first batch of each grid only,
            in training and in evaluation.

        Warns
        -----
        UserWarning
            If the data's own solution is far from solving the equation as it is discretised here.
        """
        self.check_grid(y_pred)
        # A data processor may hand over other units in training than in evaluation, as neuralop's default does.
        kind = (tuple(y_pred.shape[2:]), torch.is_grad_enabled())
        if kind not in self._seen:
            for name, values in {"x": x, "y": y}.items():
                if values is not None:
                    _check_field(name, values, y_pred)
            message = self.check_data(x, y)
            self._seen.add(kind)
            if message:
                warnings.warn(message, UserWarning, stacklevel=2)
        half = y_pred.dtype in (torch.float16, torch.bfloat16)  # second derivatives would be all rounding
        losses = self.per_sample(y_pred.float() if half else y_pred, x)
        return losses.sum() if self.reduction == "sum" else losses.mean()


def _check_field(name: str, values: torch.Tensor, y_pred: torch.Tensor) -> None:
    bad = (~torch.isfinite(values)).nonzero()
    if len(bad):
        raise MupError(
            f"The sample's {name} has {len(bad)} entries that are NaN or infinite, the first at {tuple(bad[0].tolist())}."
        )
    if values.ndim != y_pred.ndim or values.shape[2:] != y_pred.shape[2:]:
        raise MupError(
            f"The sample's {name} has shape {tuple(values.shape)}, the prediction {tuple(y_pred.shape)}: an equation loss "
            "needs both on the same grid."
        )


def needed(name: str, values: torch.Tensor | None) -> torch.Tensor:
    """``values``; MupError if the sample has none."""
    if values is None:
        raise MupError(f"The loss needs the sample's {name}: call loss(y_pred, **sample) with {name!r} in the sample.")
    return values


def relative_l2(values: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """‖values − reference‖ / ‖reference‖ of each sample, as neuralop's LpLoss; its gradient at zero is zero, not NaN."""
    distance = torch.linalg.vector_norm((values - reference).flatten(1), dim=1)
    return distance / (torch.linalg.vector_norm(reference.flatten(1), dim=1) + 1e-8)  # as there, so that 0 / 0 is 0


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
