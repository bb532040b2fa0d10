"""Named errors, with one number per sample, as defined by published benchmarks."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from neuralop.losses import H1Loss

from neuralop_mup.errors import MupError
from neuralop_mup.lab.loss import relative

#: ``metric(prediction, y, known)`` for fields of shape (n, channels, \*grid), where ``known`` is 1 where y is known, else 0.
Metric = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
_NUMBERS_AT_ONCE = 2**22  # number of values in one computation of errors


def l2(prediction: torch.Tensor, y: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the relative L2 error ‖prediction − y‖ / ‖y‖ of each sample.

    Both norms are taken over all points and channels. The error is NaN for a sample that is zero everywhere.
    """
    off, size = (((field * known).abs().square()).flatten(1).sum(1) for field in (prediction - y, y))
    return ratio(off.sqrt(), size.sqrt())


def h1(prediction: torch.Tensor, y: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the relative H1 error of each sample: neuralop's ``H1Loss`` with periodic differences, as in ``loss="h1"``.

    The error is the mean over the channels, whereas the loss is their sum. Channels that are zero everywhere in a sample are
    omitted.

    Raises
    ------
    MupError
        If the fields are complex, or if the grid has more than three axes.
    """
    n_dim = y.ndim - 2
    if y.is_complex() or not 1 <= n_dim <= 3:
        raise MupError(
            f"The H1 error requires real fields on a grid with one to three axes, but y is {y.dtype} of shape "
            f"{tuple(y.shape)}."
        )
    errors = relative(_H1ByChannel(d=n_dim), prediction, y, mask=known)
    return ratio(errors.reshape(y.shape[:2]), (y * known).flatten(2).any(2)).nanmean(1)


def vrmse(prediction: torch.Tensor, y: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the VRMSE of The Well for each sample: √(MSE / (var y + 1e-7)), averaged over the channels.

    The mean square and the variance are taken over the points of a channel. The variance is normalized by the number of
    points minus one, as in ``the_well/benchmark/metrics/spatial.py`` (``VRMSE``, ``torch.std(y) ** 2``). Predicting the mean
    gives a value of about 1. The constant 1e-7 is in the units of the data, so this error is not suitable for fields that
    are much smaller than 1.

    References
    ----------
    Ohana et al., "The Well", arXiv 2412.00568.
    """
    count, centre = known.flatten(2).sum(2), mean(y, known)
    centred = y - centre.reshape(*centre.shape, *[1] * (y.ndim - 2))
    variance = mean_square(centred, known) * count / (count - 1)
    return ratio(mean_square(prediction - y, known), variance + 1e-7).sqrt().mean(1)


def nrmse(prediction: torch.Tensor, y: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the nRMSE of PDEBench for each sample: the RMSE divided by the root mean square of y, averaged over channels.

    This is ``err_nMSE`` in ``pdebench/models/metrics.py``. Channels that are zero everywhere in a sample are omitted.

    References
    ----------
    Takamoto et al., "PDEBench", arXiv 2210.07182.
    """
    return ratio(mean_square(prediction - y, known).sqrt(), mean_square(y, known).sqrt()).nanmean(1)


#: Maps a score to its metric. A score is the mean over the samples for which the metric is defined.
METRICS: dict[str, Metric] = {"l2": l2, "h1": h1, "vrmse": vrmse, "nrmse": nrmse}


class _H1ByChannel(H1Loss):
    """The H1 error of neuralop, for each sample and channel."""

    def reduce_all(self, x: torch.Tensor) -> torch.Tensor:
        return x


def mean(field: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the mean over the known points, for each sample and channel: (n, channels)."""
    return (field * known).flatten(2).sum(2) / known.flatten(2).sum(2)


def mean_square(field: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the mean square over the known points, for each sample and channel."""
    return (field * known).abs().square().flatten(2).sum(2) / known.flatten(2).sum(2)


def ratio(error: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """Return error / size, with NaN where the size is 0 and infinity where the error is NaN."""
    return torch.where(size > 0, error.nan_to_num(nan=math.inf, posinf=math.inf) / size, math.nan)


def by_sample(metric: Metric, prediction: Any, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return a metric of a prediction for each sample of a batch, computed in double precision.

    Raises
    ------
    MupError
        If the prediction does not have the same shape as y.
    """
    y = batch["y"]
    if not is_like(prediction, y):
        raise MupError(
            f"The model returned {tuple(getattr(prediction, 'shape', ()))} for targets of shape {tuple(y.shape)}, so the "
            "built-in named scores cannot be computed. Pass your own function score(model, data)."
        )
    fields = prediction, y, batch.get("mask", torch.ones_like(y, dtype=torch.float64))
    parts = zip(*(field.split(max(1, _NUMBERS_AT_ONCE // y[0].numel())) for field in fields), strict=True)
    return torch.cat([metric(*map(in_double, part)) for part in parts]).cpu()


def in_double(field: torch.Tensor) -> torch.Tensor:
    """Return a field in double precision."""
    return field.to(torch.promote_types(field.dtype, torch.float64))


def is_like(prediction: Any, y: Any) -> bool:
    """Return whether a prediction is a tensor with the same shape as y."""
    return torch.is_tensor(prediction) and torch.is_tensor(y) and prediction.shape == y.shape
