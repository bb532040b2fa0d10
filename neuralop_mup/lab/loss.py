"""Named losses, and the errors that are reported for each of them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from neuralop.data.transforms.data_processors import DefaultDataProcessor
from neuralop.losses import H1Loss, LpLoss

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.batches import known_part
from neuralop_mup.lab.data.problem_data import ProblemData

Term = Callable[..., torch.Tensor]
Losses = Mapping[str, tuple[float, Term]]
#: Key for the number of samples that are not zero everywhere.
NONZERO = "nonzero samples"


def relative(loss: Any, y_pred: torch.Tensor, y: torch.Tensor, **batch: Any) -> torch.Tensor:
    """Return a relative error of neuralop that does not depend on units, although neuralop adds 1e-8 to norms.

    Each channel of a batch is divided by the smallest power of two above all of its values, which is exact. For a channel
    that is zero in the whole batch, such as a normalized constant channel, errors are taken relative to 1, because errors
    relative to zero would outweigh all other channels.
    """
    y = y if y.is_floating_point() or y.is_complex() else y.to(y_pred.dtype)
    y_pred, y = known_part(y_pred, batch), known_part(y, batch)
    most = y.abs().amax((0, *range(-loss.d, 0)), keepdim=True)
    unit = torch.ldexp(torch.ones_like(most), torch.frexp(most).exponent)  # this is 1 where a channel is zero
    one = (most == 0).to(y.dtype)
    return loss(y_pred / unit + one, y / unit + one)


def relative_l2(n_dim: int) -> Term:
    """Return neuralop's relative L2 error, summed over samples and channels."""
    return partial(relative, LpLoss(d=n_dim, p=2))


def floored_l2(y_pred: torch.Tensor, y: torch.Tensor, **batch: Any) -> torch.Tensor:
    """Return a relative L2 error with a floor, ‖y_pred − y‖ / √((‖y‖² + n) / 2), summed over the samples of a batch.

    Here, n is the number of known values, which equals the mean of ‖y‖² for normalized fields. For samples of average size,
    the result equals the relative error. For samples that nearly vanish, it is at most √2 ‖y_pred − y‖ / √n.
    """
    size = (_norm(known_part(y, batch)) ** 2 + _count(y, batch)) / 2
    return (_norm(known_part(y_pred - y, batch)) / size.sqrt()).sum()


def mean_squared(y_pred: torch.Tensor, y: torch.Tensor, **batch: Any) -> torch.Tensor:
    """Return the mean squared error of each sample, summed over the batch."""
    return (_norm(known_part(y_pred - y, batch)) ** 2 / _count(y, batch)).sum()


def _norm(fields: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of each sample."""
    return fields.flatten(1).norm(dim=1)


def _count(y: torch.Tensor, batch: Mapping[str, Any]) -> Any:
    """Return the number of known values of each sample."""
    return batch["mask"].flatten(1).sum(1) if "mask" in batch else y[0].numel()


#: Losses for fields with mean 0 and standard deviation 1 per channel.
NORMALIZED: dict[str, Term] = {"floored-l2": floored_l2, "mse": mean_squared}


def default_loss(data: ProblemData) -> str:
    """Return the name of the default loss for data that this package normalizes.

    The states of a trajectory may decay, and a relative error would give nearly vanished states the same weight as all
    others (benchmarks/results/losses.md).
    """
    return "floored-l2" if data.pairs_of("train") > 1 else "l2"


def loss_or_default(loss: Any, data: Any, given: Any, used: Any) -> Any:
    """Return the loss that the user passed, or the default.

    Parameters
    ----------
    loss : str, callable, mapping or None
    data : ProblemData or Loaders
    given, used : neuralop DataProcessor or None
        The processor that the user passed, and the one that is used in training.

    Raises
    ------
    MupError
        If the loss requires normalized fields but this package does not normalize the targets.
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
    """Return whether a loss is the name of a loss that requires normalized fields."""
    return isinstance(loss, str) and loss in NORMALIZED


def losses_of(loss: Any, n_dim: int, own: Losses | None = None) -> Losses:
    """Return the weight and the function of each term of a loss by name. Runs are compared by the first term, "data".

    Parameters
    ----------
    loss : str, callable or mapping
        ``"l2"``, ``"h1"``, ``"floored-l2"`` or ``"mse"``; a function; or a dict of names to functions or to (weight,
        function).
    n_dim : int
        Number of axes of the grid.
    own : mapping, optional
        Losses of a problem. A loss given by name replaces their "data" term. By default, "data" is the only term.

    Raises
    ------
    MupError
        If the loss is unknown.
    """
    loss = {"data": loss} if callable(loss) else loss
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


def error_name(loss: Any, n_channels: int) -> str:
    """Return the name, for reports, of the error by which runs are compared (see :func:`errors_of`)."""
    named = f"relative {'H1' if loss == 'h1' else 'L2'} error"
    summed = f" summed over {n_channels} channels" if n_channels > 1 else ""
    return named + summed if isinstance(loss, str) else "loss"


def errors_of(loss: Any, losses: Losses, n_dim: int) -> dict[str, Term]:
    """Return the errors that are reported, by name. These are the terms of the loss.

    For a loss that requires normalized fields, "data" is the relative L2 error instead, and nonzero samples are counted.
    """
    errors = {name: term for name, (_, term) in losses.items()}
    if is_of_normalized(loss):
        errors |= {"data": partial(_relative_where_nonzero, n_dim), NONZERO: _nonzero}
    return errors


def _relative_where_nonzero(n_dim: int, y_pred: torch.Tensor, y: torch.Tensor, **batch: Any) -> torch.Tensor:
    """Return the relative L2 error, where channels that are zero everywhere in a sample contribute nothing."""
    zero = ~known_part(y, batch).flatten(2).any(2)
    return relative_l2(n_dim)(torch.where(zero.view(*zero.shape, *[1] * n_dim), 0, y_pred), y, **batch)


def _nonzero(y_pred: torch.Tensor, y: torch.Tensor, **batch: Any) -> torch.Tensor:
    """Return the number of samples in a batch that are not zero everywhere."""
    return known_part(y, batch).flatten(1).any(1).float().sum()
