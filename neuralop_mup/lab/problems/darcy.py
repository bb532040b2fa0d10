"""Darcy flow on the unit square: random fields, solver, data and equation."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse.linalg
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.problem_data import Pair, ProblemData, normalizer_of
from neuralop_mup.lab.problems.base import Problem
from neuralop_mup.losses import DarcyEqnLoss, PhysicalDataProcessor, sine_mollifier
from neuralop_mup.validation import check_positive

_DEFAULT_CELLS = 90  # minimum number of solver cells per axis by default


def shell_order(n: int) -> np.ndarray:
    """Return the rank of each index pair (i, j) when a square grows shell by shell, as an array of shape (n, n).

    A larger square keeps the ranks of a smaller one, so the same random numbers give the same low modes at every resolution.
    """
    i, j = np.indices((n, n))
    shell = np.maximum(i, j)
    return shell**2 + shell + i - j


def neumann_field(normals: torch.Tensor, n: int) -> torch.Tensor:
    """Return Gaussian random fields with the distribution N(0, (-Δ + 9 I)^-2), mean 0 and zero flux at the boundary.

    The generator of the published FNO data also omits the constant mode.

    Parameters
    ----------
    normals : torch.Tensor, shape (batch, modes, modes)
        Independent standard normal values for cos(πix) cos(πjy). Entry (0, 0) is not used.
    n : int
        Number of grid points per axis of the unit square, including both ends.

    Returns
    -------
    torch.Tensor, shape (batch, n, n)

    References
    ----------
    Li et al., "Fourier Neural Operator for Parametric Partial Differential Equations", arXiv 2010.08895, A.3.2.
    """
    k = torch.arange(normals.shape[-1], dtype=torch.float64)
    std = 1 / (math.pi**2 * (k[:, None] ** 2 + k**2) + 9)
    std[0, 0] = 0
    x = torch.linspace(0, 1, n, dtype=torch.float64)
    cosines = torch.cos(math.pi * x[:, None] * k) * torch.sqrt(1 + (k > 0).double())
    return cosines @ (normals * std) @ cosines.T


def solve_darcy(a: torch.Tensor, f: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Solve −∇·(a∇u) = f on the unit square with u = 0 on the boundary.

    The solver uses node-centred finite volumes, which are second-order accurate where a is smooth. On a face, a is the
    harmonic mean of its values at the two adjacent nodes, which preserves the flux across a jump. The linear system is
    solved directly.

    Parameters
    ----------
    a : torch.Tensor, shape (..., n, n)
        Positive coefficient at the nodes, including the boundary.
    f : torch.Tensor or float, default 1.0
        Right-hand side at the nodes, broadcast to the shape of ``a``.

    Returns
    -------
    torch.Tensor, float64, shape of ``a``
        The solution u at the nodes.

    Examples
    --------
    >>> import torch
    >>> from neuralop_mup.lab.problems import solve_darcy
    >>> u = solve_darcy(torch.ones(9, 9))
    >>> round(float(u.max()), 3), float(u[0].abs().max())
    (0.073, 0.0)
    """
    rhs = torch.as_tensor(f, dtype=torch.float64).expand(a.shape)
    n = a.shape[-1]
    coefficients = a.detach().double().reshape(-1, n, n).numpy()
    u = np.zeros_like(coefficients)
    for solution, coefficient, right in zip(u, coefficients, rhs.reshape(-1, n, n).numpy(), strict=True):
        solution[1:-1, 1:-1] = _solve_one(coefficient, right[1:-1, 1:-1])
    return torch.from_numpy(u).reshape(a.shape)


def _solve_one(a: np.ndarray, f: np.ndarray) -> np.ndarray:
    inner = len(a) - 2
    inverse = 1 / a  # on a face, a is the harmonic mean
    across_rows = 2 / (inverse[1:, 1:-1] + inverse[:-1, 1:-1])  # (inner + 1, inner)
    across_columns = 2 / (inverse[1:-1, 1:] + inverse[1:-1, :-1])  # (inner, inner + 1)
    diagonal = across_rows[1:] + across_rows[:-1] + across_columns[:, 1:] + across_columns[:, :-1]
    rows, columns = -across_rows[1:-1].ravel(), -across_columns[:, 1:]
    columns[:, -1] = 0  # the last node of a row and the first of the next row are not neighbours
    beside = columns.ravel()[:-1]
    matrix = scipy.sparse.diags([diagonal.ravel(), rows, rows, beside, beside], [0, inner, -inner, 1, -1], format="csc")
    # The matrix is symmetric positive definite, so pivoting is disabled and a symmetric ordering is used.
    factor = scipy.sparse.linalg.splu(
        matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
    )
    return factor.solve(f.ravel() / (len(a) - 1) ** 2).reshape(inner, inner)


@dataclass(frozen=True, kw_only=True)
class Darcy(Problem):
    """Darcy flow −∇·(a∇u) = 1 on the unit square with u = 0 on the boundary, as a map from a to u.

    The coefficient has two values, the second of which is used where a Gaussian random field (:func:`neumann_field`) is
    nonnegative.

    Parameters
    ----------
    grid : int, default 32
        Number of grid points per axis of the data, including both boundaries.
    solver_grid : int, optional
        Number of grid points per axis of the solver, where ``solver_grid - 1`` must be a multiple of ``grid - 1``. Default:
        the smallest such number that is at least 91.
    contrast : tuple of two floats, default (3.0, 12.0)
        The two positive values of a, where the random field is negative and elsewhere.
    n_train, n_val, n_test : int, default 400, 100, 100
        Number of samples in each split.
    seed : int, default 0
        Seed for the coefficients.

    Raises
    ------
    MupError
        If a value is invalid, for example if the grid of the solver does not contain the points of the data.

    References
    ----------
    Li, Yoo and Yang, "Maximal Update Parametrization and Zero-Shot Hyperparameter Transfer for Fourier Neural
    Operators", arXiv 2506.19396.

    Examples
    --------
    >>> from neuralop_mup.lab.problems import Darcy
    >>> data = Darcy(grid=9, solver_grid=17, n_train=4, n_val=2, n_test=2).load("cache")
    >>> data.train[0].shape, data.train[0].unique().tolist()
    (torch.Size([4, 1, 9, 9]), [3.0, 12.0])
    """

    n_train: int = 400
    n_val: int = 100
    n_test: int = 100
    grid: int = 32
    solver_grid: int | None = None
    contrast: tuple[float, float] = (3.0, 12.0)

    name: ClassVar[str] = "darcy"
    n_dim: ClassVar[int] = 2
    chunk: ClassVar[int] = 10
    ends: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.contrast, (tuple, list)) or len(self.contrast) != 2:
            raise MupError(f"contrast must be two numbers, such as (3.0, 12.0), got {self.contrast!r}.")
        for value in self.contrast:
            check_positive("contrast", value)
        # A list, for example from a configuration file, would make the frozen dataclass unhashable.
        object.__setattr__(self, "contrast", tuple(self.contrast))

    @property
    def fine_grid(self) -> int:
        """Number of grid points per axis of the solver."""
        cells = self.grid - 1
        return self.solver_grid or cells * math.ceil(_DEFAULT_CELLS / cells) + 1

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Return the coefficients and the solutions on the grid of the data (see :meth:`Problem.solve`)."""
        n = self.fine_grid
        modes = n - 1
        order = shell_order(modes)
        normals = np.stack([generator.standard_normal(modes**2)[order] for generator in generators])
        low, high = self.contrast
        a = torch.full((len(normals), n, n), float(low), dtype=torch.float64)
        a[neumann_field(torch.from_numpy(normals), n) >= 0] = float(high)
        u = solve_darcy(a)
        stride = (n - 1) // (self.grid - 1)
        return a[:, None, ::stride, ::stride], u[:, None, ::stride, ::stride]


@dataclass(frozen=True, kw_only=True)
class DarcyPino(Darcy):
    """Darcy flow, with the residual of its equation as an additional loss.

    The output of the model is denormalized and then multiplied by sin(πx₁) sin(πx₂), which makes it 0 on the boundary. The
    normalization is computed from y divided by this product, so the model learns values with mean 0 and standard deviation
    1. The published code multiplies by 0.001 instead.

    By default, the solver works on the grid of the data. The data then satisfies the discrete equation, so the two losses
    are consistent. Data from a finer grid does not satisfy the equation, because the coefficient jumps between its points.
    With the default of :class:`Darcy`, ``solver_grid=94``, the relative residual of the data is 0.75, compared with 1 for u
    = 0. With the published reduction from 421 to 61 points, it is 1.4, so the two losses contradict each other.

    Parameters
    ----------
    data_weight, equation_weight : float, default 5.0, 1.0
        Weights of the relative L2 error of u and of the relative L2 norm of the residual. The defaults are those of the
        paper.
    grid, solver_grid, contrast, n_train, n_val, n_test, seed
        See :class:`Darcy`.

    Raises
    ------
    MupError
        If a value is invalid, or if both weights are 0.

    References
    ----------
    Li et al., "Physics-Informed Neural Operator for Learning Partial Differential Equations", arXiv 2111.03794.

    Examples
    --------
    >>> from neuralop_mup.lab.problems import DarcyPino
    >>> problem = DarcyPino(grid=9, n_train=4, n_val=2, n_test=2)
    >>> {name: weight for name, (weight, loss) in problem.losses().items()}
    {'data': 5.0, 'equation': 1.0}
    >>> type(problem.processor(problem.load("cache"))).__name__
    'PhysicalDataProcessor'
    """

    data_weight: float = 5.0
    equation_weight: float = 1.0

    name: ClassVar[str] = "darcy-pino"

    @property
    def fine_grid(self) -> int:
        """Number of grid points per axis of the solver."""
        return self.solver_grid or self.grid

    def equation_losses(self) -> dict[str, Callable[..., torch.Tensor]]:
        """Return the residual of the equation as a loss."""
        return {"equation": DarcyEqnLoss()}

    def processor(self, data: ProblemData) -> Any:
        """Return a processor that gives normalized fields to the model, and physical, zero-boundary fields to the losses."""
        x, y = data.train
        inner = (..., slice(1, -1), slice(1, -1))
        factor = sine_mollifier(y.shape[2:]).to(y)
        return PhysicalDataProcessor(normalizer_of(x), normalizer_of(y[inner] / factor[inner]), mollifier=sine_mollifier)
