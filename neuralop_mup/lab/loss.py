"""Losses by name, and the errors that are reported for each of them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from neuralop.data.transforms.data_processors import DefaultDataProcessor
from neuralop.losses import H1Loss, LpLoss

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.problem_data import ProblemData

Term = Callable[..., torch.Tensor]
Losses = Mapping[str, tuple[float, Term]]
#: Key of the number of samples that are not zero everywhere.
NONZERO = "nonzero samples"


def relative(loss: Any, y_pred: torch.Tensor, y: torch.Tensor, **batch: Any) -> torch.Tensor:
    """Return a relative error of neuralop, independent of units although neuralop squares fields and adds 1e-8 to norms.

    Each channel of a batch is divided by a power of two, which is exact: the smallest one above all of its values. A channel
    that is zero in the whole batch, as a constant one is when normalized, has errors relative to 1: relative to zero, they
    would outweigh all other channels.
    """
    y = y if y.is_floating_point() or y.is_complex() else y.to(y_pred.dtype)
    y_pred, y = _masked(y_pred, batch), _masked(y, batch)
    most = y.abs().amax((0, *range(-loss.d, 0)), keepdim=True)
    unit = torch.ldexp(torch.ones_like(most), torch.frexp(most).exponent)  # 1 where a channel is zero
    one = (most == 0).to(y.dtype)
    return loss(y_pred / unit + one, y / unit + one)


def relative_l2(n_dim: int) -> Term:
    """Return neuralop's relative L2 error, summed over samples and channels."""
    return partial(relative, LpLoss(d=n_dim, p=2))


def floored_l2(y_pred: torch.Tensor, y: torch.Tensor, **batch: Any) -> torch.Tensor:
    """Return ‖y_pred − y‖ / √((‖y‖² + n) / 2) of each sample, summed over the batch: a relative L2 error with a floor.

    Normalized fields have n = mean ‖y‖², the number of their known values. So the error equals the relative error for
    samples of average size, and it is at most √2 times the absolute error, over √n, for samples that nearly vanish.
    """
    size = (_norm(_masked(y, batch)) ** 2 + _count(y, batch)) / 2
    return (_norm(_masked(y_pred - y, batch)) / size.sqrt()).sum()


def mean_squared(y_pred: torch.Tensor, y: torch.Tensor, **batch: Any) -> torch.Tensor:
    """Return the mean squared error of each sample, summed over the batch."""
    return (_norm(_masked(y_pred - y, batch)) ** 2 / _count(y, batch)).sum()


def _norm(fields: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of each sample."""
    return fields.flatten(1).norm(dim=1)


def _masked(fields: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return fields that are zero where the batch's mask is 0, which means unknown."""
    return fields * batch["mask"] if "mask" in batch else fields


def _count(y: torch.Tensor, batch: Mapping[str, Any]) -> Any:
    """Return the number of known values of each sample."""
    return batch["mask"].flatten(1).sum(1) if "mask" in batch else y[0].numel()


#: Losses of fields that have mean 0 and standard deviation 1 per channel.
NORMALIZED: dict[str, Term] = {"floored-l2": floored_l2, "mse": mean_squared}


def default_loss(data: ProblemData) -> str:
    """Return the name of the loss for data that this package normalizes.

    States of a trajectory may decay, and a relative error gives states that nearly vanished the weight of all others
    (benchmarks/results/losses.md).
    """
    return "floored-l2" if data.pairs_of("train") > 1 else "l2"


def loss_or_default(loss: Any, data: Any, given: Any, used: Any) -> Any:
    """Return the loss that the user passed, or the default.

    Parameters
    ----------
    loss : str, callable, mapping or None
    data : ProblemData or Loaders
    given, used : neuralop DataProcessor or None
        The user's processor, and the processor that trains.

    Raises
    ------
    MupError
        For a loss of normalized fields if this package does not normalize the targets.
    """
    normalized = given is None and type(used) is DefaultDataProcessor and isinstance(data, ProblemData)
    if loss is None:
        return default_loss(data) if normalized else "l2"
    if is_of_normalized(loss) and not normalized:
        raise MupError(
            f"loss={loss!r} requires targets that this package normalizes to mean 0 and standard deviation 1. It does not "
            "normalize targets from loaders, or targets of problems with a custom processor or an equation. Use loss='l2', "
            "or pass arrays without a processor."
        )
    return loss


def is_of_normalized(loss: Any) -> bool:
    """Return whether a loss, by its name, needs normalized fields."""
    return isinstance(loss, str) and loss in NORMALIZED


def losses_of(loss: Any, n_dim: int, own: Losses | None = None) -> Losses:
    """Return the terms of a loss by name: weight and function. Runs are compared by the first one, "data".

    Parameters
    ----------
    loss : str, callable or mapping
        ``"l2"``, ``"h1"``, ``"floored-l2"`` or ``"mse"``; a function; or names with functions or (weight, function).
    n_dim : int
        Number of axes of the grid.
    own : mapping, optional
        Losses of a problem. A name replaces its "data". Without them, "data" is the only one.

    Raises
    ------
    MupError
        For a loss that does not exist.
    """
    if callable(loss):
        return {"data": (1.0, loss)}
    if isinstance(loss, Mapping) and loss:
        named = [(k, v if isinstance(v, tuple) else (1.0, v)) for k, v in loss.items()]
        return {"data" if i == 0 else k: v for i, (k, v) in enumerate(named)}
    own = own or {"data": (1.0, relative_l2(n_dim))}
    known = {"l2": own["data"][1], "h1": partial(relative, H1Loss(d=n_dim)), **NORMALIZED}
    if not isinstance(loss, str) or loss not in known:
        raise MupError(
            f"loss={loss!r} must be one of {', '.join(map(repr, known))}, a function loss(y_pred, y, **batch), or a dict "
            "of losses."
        )
    return {**own, "data": (own["data"][0], known[loss])}


def errors_of(loss: Any, losses: Losses, n_dim: int) -> dict[str, Term]:
    """Return the errors that are reported, by name: the terms of the loss.

    For a loss of normalized fields, "data" is the relative L2 error instead, and zero samples are counted.
    """
    errors = {name: term for name, (_, term) in losses.items()}
    if is_of_normalized(loss):
        errors |= {"data": partial(_relative_where_nonzero, n_dim), NONZERO: _nonzero}
    return errors


def _relative_where_nonzero(n_dim: int, y_pred: torch.Tensor, y: torch.Tensor, **batch: Any) -> torch.Tensor:
    """Return the relative L2 error; a channel that is zero everywhere in a sample adds nothing."""
    zero = ~_masked(y, batch).flatten(2).any(2)
    return relative_l2(n_dim)(torch.where(zero.view(*zero.shape, *[1] * n_dim), 0, y_pred), y, **batch)


def _nonzero(y_pred: torch.Tensor, y: torch.Tensor, **batch: Any) -> torch.Tensor:
    """Return the number of samples of a batch that are not zero everywhere."""
    return _masked(y, batch).flatten(1).any(1).float().sum()
