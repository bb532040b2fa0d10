"""Errors of predictions by name, one number for each sample, as published benchmarks define them."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from neuralop.losses import H1Loss

from neuralop_mup.errors import MupError
from neuralop_mup.lab.loss import relative

#: ``metric(prediction, y, known)`` of fields of shape (n, channels, \*grid); ``known`` is 1 where y is known, else 0.
Metric = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
_AT_ONCE = 2**22  # numbers for which errors are computed together


def l2(prediction: torch.Tensor, y: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the relative L2 error ‖prediction − y‖ / ‖y‖ of each sample.

    Both norms are over all points and all channels. NaN for a sample that is zero everywhere.
    """
    off, size = (((field * known).abs().square()).flatten(1).sum(1) for field in (prediction - y, y))
    return ratio(off.sqrt(), size.sqrt())


def h1(prediction: torch.Tensor, y: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the relative H1 error of each sample: neuralop's ``H1Loss`` with periodic differences, as in ``loss="h1"``.

    The mean over the channels; the loss is their sum. A channel that is zero everywhere in a sample is left out.

    Raises
    ------
    MupError
        For complex fields, and for grids of more than three axes.
    """
    n_dim = y.ndim - 2
    if y.is_complex() or not 1 <= n_dim <= 3:
        raise MupError(f"The H1 error needs real fields on a grid of one to three axes. y has the shape {tuple(y.shape)}.")
    errors = relative(_H1ByChannel(d=n_dim), prediction, y, mask=known)
    return ratio(errors.reshape(y.shape[:2]), (y * known).flatten(2).any(2)).nanmean(1)


def vrmse(prediction: torch.Tensor, y: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return The Well's VRMSE of each sample: √(MSE / (var y + 1e-7)), the mean over the channels.

    Mean square and variance are over the points of a channel. The variance divides by the number of points minus one, as in
    ``the_well/benchmark/metrics/spatial.py`` (``VRMSE``, ``torch.std(y) ** 2``). Predicting the mean gives about 1. The
    constant 1e-7 is in the units of the data, so this error is not for fields much smaller than 1.

    References
    ----------
    Ohana et al., "The Well", arXiv 2412.00568.
    """
    count = known.flatten(2).sum(2)
    mean = (y * known).flatten(2).sum(2) / count
    centred = y - mean.reshape(*mean.shape, *[1] * (y.ndim - 2))
    variance = mean_square(centred, known) * count / (count - 1)
    return ratio(mean_square(prediction - y, known), variance + 1e-7).sqrt().mean(1)


def nrmse(prediction: torch.Tensor, y: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return PDEBench's nRMSE of each sample: RMSE over the points / root mean square of y, the mean over the channels.

    This is ``err_nMSE`` in ``pdebench/models/metrics.py``. A channel that is zero everywhere in a sample is left out.

    References
    ----------
    Takamoto et al., "PDEBench", arXiv 2210.07182.
    """
    return ratio(mean_square(prediction - y, known).sqrt(), mean_square(y, known).sqrt()).nanmean(1)


#: Score → metric. A score is the mean over the samples that have the error.
METRICS: dict[str, Metric] = {"l2": l2, "h1": h1, "vrmse": vrmse, "nrmse": nrmse}


class _H1ByChannel(H1Loss):
    """neuralop's H1 error of each sample and channel."""

    def reduce_all(self, x: torch.Tensor) -> torch.Tensor:
        return x


def mean_square(field: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the mean square of each channel of each sample, over its known points: (n, channels)."""
    return (field * known).abs().square().flatten(2).sum(2) / known.flatten(2).sum(2)


def ratio(error: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """Return error / size: NaN where the size is 0, and infinity where the error is not a number."""
    return torch.where(size > 0, error.nan_to_num(nan=math.inf, posinf=math.inf) / size, math.nan)


def by_sample(metric: Metric, prediction: Any, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return a metric of a prediction for a batch of fields, computed in double precision.

    Raises
    ------
    MupError
        If the prediction does not have the shape of y.
    """
    y = batch["y"]
    if not is_like(prediction, y):
        raise MupError(
            f"The model returns {tuple(getattr(prediction, 'shape', ()))} for targets of shape {tuple(y.shape)}, so errors "
            "by name do not exist. Give a score of your own, score(model, data)."
        )
    fields = prediction, y, batch.get("mask", torch.ones_like(y, dtype=torch.float64))
    parts = zip(*(field.split(max(1, _AT_ONCE // y[0].numel())) for field in fields), strict=True)
    return torch.cat([metric(*map(in_double, part)) for part in parts]).cpu()


def in_double(field: torch.Tensor) -> torch.Tensor:
    """Return a field in double precision."""
    return field.to(torch.promote_types(field.dtype, torch.float64))


def is_like(prediction: Any, y: Any) -> bool:
    """Return whether a prediction is a field of the shape of y."""
    return torch.is_tensor(prediction) and torch.is_tensor(y) and prediction.shape == y.shape
