"""Losses based on the residual of a PDE: a base class that validates the data, and a loss for Darcy flow."""

import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch

from neuralop_mup.errors import MupError, nearest

UNITS = (
    "pass processor=PhysicalDataProcessor(…) to nm.train, or use it instead of neuralop's default processor, since the "
    "losses require physical units"
)
_MEANS = ("harmonic", "arithmetic")
# Residuals above this value trigger a warning. On the solver's grid, the residual of float32 data is 1e-5. On a grid that is
# 3 times coarser, it ranges from 0.28 (8 points per axis) to 1 (61 points).
_LARGE = 0.1


class FieldLoss(ABC):
    """Base class for losses of a predicted field, with neuralop's call signature.

    Parameters
    ----------
    reduction : {"sum", "mean"}
        Reduction over the batch. neuralop's Trainer expects "sum", the default of its LpLoss.
    """

    layout: ClassVar[str]  # shape of the prediction; axes named n have equal lengths

    def __init__(self, reduction: str = "sum") -> None:
        if reduction not in ("sum", "mean"):
            raise MupError(f"reduction must be 'sum' or 'mean', as in neuralop's losses, but got {reduction!r}.")
        self.reduction = reduction
        self._seen: set[tuple] = set()  # grids with checked data, separately for training and evaluation

    def check_grid(self, y_pred: torch.Tensor) -> None:
        """Raise MupError unless the prediction has shape ``layout``, one channel and at least 4 points per axis."""
        shape = tuple(y_pred.shape)
        fits = len(shape) == self.layout.count(",") + 1 and shape[1] == 1 and min(shape[2:]) >= 4
        if not fits or ("n, n" in self.layout and shape[-1] != shape[-2]):
            raise MupError(
                f"The prediction must have shape {self.layout}, with at least 4 points per axis and the same number of "
                f"points on axes with the same name, but it has shape {shape}."
            )

    def check_data(self, x: torch.Tensor | None, y: torch.Tensor | None) -> str | None:
        """Raise MupError if the data is invalid; return a warning message if its solution has a large residual."""
        return None

    @abstractmethod
    def per_sample(self, u: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        """Return the loss of each sample, shape (batch,), for a prediction in float32 or float64."""

    def __call__(
        self, y_pred: torch.Tensor, x: torch.Tensor | None = None, y: torch.Tensor | None = None, **_: Any
    ) -> torch.Tensor:
        """Return the loss, a scalar tensor.

        Parameters
        ----------
        y_pred : torch.Tensor
            The model's output in physical units; see the class for its shape.
        x, y : torch.Tensor
            Input and solution of the samples in physical units. y is used only to check the data.
        **_
            Other entries of the sample, which are ignored.

        Returns
        -------
        torch.Tensor
            Sum or mean over the batch.

        Raises
        ------
        MupError
            If the shapes or the data are invalid. Only the first batch on each grid is checked, once in training and once in
            evaluation.

        Warns
        -----
        UserWarning
            If the data's solution has a large residual in this discretisation.
        """
        self.check_grid(y_pred)
        # Units may differ between training and evaluation, for example with neuralop's default data processor.
        kind = (tuple(y_pred.shape[2:]), torch.is_grad_enabled())
        if kind not in self._seen:
            for name, values in {"x": x, "y": y}.items():
                if values is not None:
                    _check_field(name, values, y_pred)
            message = self.check_data(x, y)
            self._seen.add(kind)
            if message:
                warnings.warn(message, UserWarning, stacklevel=2)
        half = y_pred.dtype in (torch.float16, torch.bfloat16)  # half precision is too imprecise for second derivatives
        losses = self.per_sample(y_pred.float() if half else y_pred, x)
        return losses.sum() if self.reduction == "sum" else losses.mean()


def _check_field(name: str, values: torch.Tensor, y_pred: torch.Tensor) -> None:
    bad = (~torch.isfinite(values)).nonzero()
    if len(bad):
        raise MupError(
            f"The sample's {name} must be finite, but {len(bad)} entries are not. The first is at index "
            f"{tuple(bad[0].tolist())}."
        )
    if values.ndim != y_pred.ndim or values.shape[2:] != y_pred.shape[2:]:
        raise MupError(
            f"The sample's {name} has shape {tuple(values.shape)}, but the prediction has shape {tuple(y_pred.shape)}. An "
            "equation loss requires both on the same grid."
        )


def needed(name: str, values: torch.Tensor | None) -> torch.Tensor:
    """Return ``values``, or raise MupError if it is None."""
    if values is None:
        raise MupError(f"The loss requires the sample's {name}. Call loss(y_pred, **sample) with {name!r} in the sample.")
    return values


def relative_l2(values: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return ‖values − reference‖ / ‖reference‖ per sample, as in LpLoss, with gradient 0 instead of NaN at zero."""
    distance = torch.linalg.vector_norm((values - reference).flatten(1), dim=1)
    # Add the same constant as LpLoss, so that 0 / 0 is 0.
    return distance / (torch.linalg.vector_norm(reference.flatten(1), dim=1) + 1e-8)


class DarcyEqnLoss(FieldLoss):
    """Relative L2 norm of the residual of −∇·(a∇u) = f on [0, 1]²: ‖−∇·(a∇u) − f‖ / ‖f‖ over the inner nodes.

    Call it as ``loss(y_pred, **sample)``, where ``y_pred`` is u with shape (batch, 1, n, n) and ``sample["x"][:, 0]`` is a.
    The nodes include the boundary. The loss does not include the boundary condition u = 0. To enforce it, multiply the
    output by :func:`sine_mollifier`.

    The discretisation is a conservative finite-volume scheme that averages a on the faces between nodes. It is second-order
    accurate for smooth a. With the harmonic mean, it is the scheme of ``problems.solve_darcy``. PINO's code instead applies
    central differences twice. These do not conserve the flux across a jump of a, so the residual of an accurate solution
    grows with resolution.

    If the data was solved on a finer grid and a jumps between the nodes, its residual is large in any scheme. The loss
    issues a warning if the residual of y in the first batch exceeds a tenth of the residual of u = 0.

    Parameters
    ----------
    forcing : float or torch.Tensor, default 1.0
        Right-hand side f, which must not be zero everywhere. A tensor contains the values at the nodes and is broadcast to
        (batch, n, n).
    face_average : {"harmonic", "arithmetic"}, default "harmonic"
        Mean of a on the face between two nodes. Use the mean of the solver that generated the data.
    reduction : {"sum", "mean"}, default "sum"
        Reduction over the batch.

    Raises
    ------
    MupError
        If an argument is invalid. When the loss is called, if the shapes or the data are invalid.

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
        if face_average not in _MEANS:
            raise MupError(f"Unknown face_average {face_average!r}: {nearest(str(face_average), _MEANS)}")
        self.face_average = face_average
        if not 0 < torch.as_tensor(forcing).abs().max() < torch.inf:
            raise MupError("forcing must be finite and not zero everywhere, because the residual is relative to it.")
        self.forcing = forcing

    def check_data(self, x: torch.Tensor | None, y: torch.Tensor | None) -> str | None:
        a = needed("x", x)[:, 0]
        if not (a > 0).all():
            raise MupError(
                f"The coefficient x[:, 0] must be positive, but its minimum is {float(a.min()):.3g}. If x is normalised, "
                f"{UNITS}."
            )
        if y is None:
            return None
        edge = max(float(side.abs().max()) for side in (y[..., 0, :], y[..., -1, :], y[..., 0], y[..., -1]))
        if edge > 1e-3 * float(y.abs().max()):
            raise MupError(
                "The sample's y must be 0 on the boundary of the grid, but its largest absolute value there is "
                f"{edge:.3g}. Either the grid has no boundary nodes, or y is normalised. If y is normalised, {UNITS}."
            )
        u = y[:, 0].detach().double()
        found = {mean: float(relative_l2(*self._sides(u, a, mean)).mean()) for mean in _MEANS}
        if found[self.face_average] <= _LARGE:
            return None
        return (
            "The sample's y does not solve the equation as discretised by DarcyEqnLoss. Its residual is "
            f"{found['harmonic']:.2g} with face_average='harmonic' and {found['arithmetic']:.2g} with "
            "face_average='arithmetic', whereas the residual of u = 0 is 1. The equation loss would contradict the data. "
            "Use the same mean as the solver that generated the data. If the forcing and the units are correct, y was "
            "probably solved on a finer grid and a jumps between these nodes. In this case, solve on the grid of the data, "
            "or train without the equation loss."
        )

    def residual(self, u: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        """Return −∇·(a∇u) − f at the inner nodes, shape (batch, n − 2, n − 2).

        Parameters
        ----------
        u, a : torch.Tensor
            Solution and coefficient at all nodes, shape (batch, n, n).

        Returns
        -------
        torch.Tensor
            Residual with the dtype of u.

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
    """Return the differences, along an axis, of the flux (mean of a on the face) · (difference of u across the face)."""
    n = u.shape[axis]
    left, right = a.narrow(axis, 0, n - 1), a.narrow(axis, 1, n - 1)
    faces = (left + right) / 2 if face_average == "arithmetic" else 2 / (1 / right + 1 / left)
    return (faces * u.diff(dim=axis)).diff(dim=axis)
