"""Named scores and errors, which are used to select learning rates, and predictions in the units of the data."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from neuralop.losses import H1Loss
from torch import nn

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.batches import advanced
from neuralop_mup.lab.data.problem_data import ProblemData
from neuralop_mup.lab.loss import relative

AT_ONCE = 64  # number of samples in one call of the model
_FORM = "score(model, data), where further arguments have defaults"


class Predictor(nn.Module):
    """A model in eval mode, including the normalization, that takes and returns fields in the units of the data.

    Parameters
    ----------
    model : torch.nn.Module
    processor : neuralop DataProcessor or None
        Data processor on any device. A copy of it is moved to the device of the model.
    """

    def __init__(self, model: nn.Module, processor: Any) -> None:
        super().__init__()
        self.model, self.processor = model, copy.deepcopy(processor)
        self.device = next(model.parameters()).device
        if processor is not None:
            self.processor.to(self.device)
            self.processor.eval()
        model.eval()

    @torch.no_grad()
    def forward(self, x: Any, **batch: Any) -> Any:
        """Return the prediction for ``x`` and the other entries of a batch, on the device of ``x``."""
        given = {"x": x, **batch}
        there = {name: v.to(self.device) if torch.is_tensor(v) else v for name, v in given.items()}
        # neuralop's processors require a y, which they only move between devices in eval mode. Passing NaN ensures that a
        # processor that uses y gives a NaN prediction.
        like = {} if "y" in batch or self.processor is None else {"y": torch.full_like(there["x"][:, :1], torch.nan)}
        sample = there if self.processor is None else self.processor.preprocess({**there, **like})
        out = self.model(**{k: v for k, v in sample.items() if k not in like})
        if self.processor is not None:
            out, _ = self.processor.postprocess(out, sample)
        return out.to(x.device) if torch.is_tensor(x) and torch.is_tensor(out) else out


@dataclass(frozen=True)
class Validation:
    """The validation data for a score. Iterating yields batches, dicts with "x" and "y", in the units of the data.

    Attributes
    ----------
    data : ProblemData or Loaders
    split : str, default "val"
    """

    data: Any
    split: str = "val"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(dict, self.data.loaders(AT_ONCE, 0)[1][self.split])

    @property
    def pairs(self) -> int:
        """Number of pairs from the shortest trajectory, or 0 if there are no trajectories."""
        return self.data.pairs_of(self.split) if isinstance(self.data, ProblemData) and not self.data.masked else 0

    @property
    def n_states(self) -> int:
        """Number of states in each trajectory, or 0 if there are no trajectories."""
        return self.pairs + self.data.history if self.pairs else 0

    def states(self, number: int) -> torch.Tensor:
        """Return the state with this number, counted from 0, of every trajectory: ``(n, channels, *grid)``."""
        y, history = getattr(self.data, self.split)[1], self.data.history
        if number >= history:
            return y[self.numbers(number - history)]
        channels = y.shape[1]
        return self.inputs(0)[:, number * channels : (number + 1) * channels]

    def inputs(self, number: int) -> torch.Tensor:
        """Return the input with this number, counted from 0, of every trajectory. It predicts state ``number + history``."""
        return getattr(self.data, self.split)[0][self.numbers(number)]

    def numbers(self, number: int) -> list[int]:
        """Return the indices of the pairs at this position in each trajectory."""
        lengths = self.data.trajectories(self.split)
        return [end - length + number for end, length in zip(accumulate(lengths), lengths, strict=True)]


@dataclass(frozen=True)
class Score:
    """A score that is used to select learning rates; lower is better.

    Attributes
    ----------
    name : str
        Name in reports.
    function : callable
        ``function(model, data)`` with a :class:`Predictor` and a :class:`Validation`.
    given : str or callable
        The name or function that the user passed, which is part of the fingerprint.
    """

    name: str
    function: Callable[..., Any]
    given: Any = None

    def of(self, model: nn.Module, processor: Any, data: Any) -> float:
        """Return the score of a model, which may be infinite or NaN, without changing random states.

        Raises
        ------
        MupError
            If the function fails or does not return a nonnegative number.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                value = self.function(Predictor(model, processor), Validation(data))
            except MupError:
                raise
            except Exception as error:  # the user's function may raise any exception
                raise MupError(
                    f"The score {self.name} failed on the validation data: {type(error).__name__}: {error}. It must have "
                    f"the form {_FORM}."
                ) from error
        number = value.item() if getattr(value, "ndim", None) == 0 else value
        if isinstance(number, bool) or not isinstance(number, (int, float)) or number < 0:
            returned = f"an array of shape {tuple(value.shape)}" if getattr(value, "ndim", 0) else repr(number)
            raise MupError(
                f"The score {self.name} returned {returned}, but it must return a single number that is not negative, such "
                "as an error. Lower is better."
            )
        return float(number)

    def check(self, model: nn.Module, processor: Any, data: Any) -> None:
        """Raise MupError if the score of an untrained model is NaN or differs on a second call."""
        first, again = (copy.deepcopy(self).of(model, processor, data) for _ in range(2))
        if math.isnan(first) or not math.isclose(first, again, rel_tol=1e-4):
            returned = "NaN" if math.isnan(first) else f"{first:.6g} and then {again:.6g}"
            raise MupError(
                f"The score {self.name} returned {returned} for the untrained base model, so it cannot be used to compare "
                "models. It must be deterministic and return math.inf for a model that cannot be scored."
            )


def score_of(score: Any) -> Score | None:
    """Return the score for a name or a function, or None for None, which selects the validation error.

    Valid names are those in :data:`~neuralop_mup.lab.score.METRICS`, and ``"rollout:50"`` for a rollout of fifty steps.

    Raises
    ------
    MupError
        If the name is unknown, or if ``score`` is neither a name nor callable.
    """
    if score is None:
        return None
    if isinstance(score, str):
        if score in METRICS:
            return Score(score, partial(mean_error, name=score), score)
        name, _, steps = score.partition(":")
        if name != "rollout" or not steps.isdecimal() or int(steps) < 1:
            raise MupError(
                f"Unknown score {score!r}. Use one of {', '.join(METRICS)}, or rollout:N for N steps (N ≥ 1), such as "
                "rollout:50."
            )
        name = f"rollout:{int(steps)}"
        return Score(name, partial(rollout_error, steps=int(steps)), name)
    if not callable(score):
        raise MupError(f"score={score!r} must be {', '.join(METRICS)}, rollout:50 or a function, {_FORM}.")
    name = getattr(score, "__qualname__", type(score).__qualname__)
    return Score(name, score, score)


def mean_error(model: Predictor, data: Validation, name: str) -> float:
    """Return the mean of a metric, in the units of the data, over the validation samples for which it is defined."""
    return float(torch.cat([by_sample(METRICS[name], model(**batch), batch) for batch in data]).nanmean())


def rollout_error(model: Predictor, data: Validation, steps: int) -> float:
    """Return the geometric mean of the errors of all steps of a rollout (:func:`rollout_errors`), as in APEBench.

    With this mean, the last steps of a chaotic flow, where all predictions are wrong, do not dominate. The result is
    infinite after an overflow.

    Raises
    ------
    MupError
        If the data has no trajectories, or if they are too short.

    References
    ----------
    Koehler et al., "APEBench", arXiv 2411.00180.
    """
    history = getattr(data.data, "history", 1)
    if data.n_states < steps + history:
        raise MupError(
            f"score='rollout:{steps}' requires {steps + history} states in each validation trajectory, but the data has "
            f"{data.n_states} as it is read. Use fewer steps or longer trajectories, and read every time step with "
            "read={'y': 'u', 'time_step': 1} (--read.y u --read.time_step 1)."
        )
    errors = torch.tensor(rollout_errors(model, data, steps), dtype=torch.float64)
    return float(errors.log().nanmean().exp())


def rollout_errors(model: Predictor, data: Validation, steps: int) -> list[float]:
    """Return the relative L2 error of each step of a rollout, averaged over the trajectories, in the units of the data.

    A rollout starts from the first state. After an overflow, the errors are infinite. If all true states at a step are zero,
    the error is NaN.
    """
    history = data.data.history
    x, errors = data.inputs(0), [math.inf] * steps
    for number in range(steps):
        state, truth = torch.cat([model(part) for part in x.split(AT_ONCE)]), data.states(number + history)
        if state.shape != truth.shape:
            raise MupError(
                f"The model returned {tuple(state.shape[1:])} for states of shape {tuple(truth.shape[1:])}, so it cannot be "
                "applied to its own predictions. Its number of output channels must equal the number of channels of the "
                "state."
            )
        error, size = (field.flatten(1).double().norm(dim=1) for field in (state - truth, truth))
        errors[number] = float(ratio(error, size).nanmean())
        if math.isinf(errors[number]):
            break
        x = advanced(x, state, history, data.inputs(min(number + 1, data.n_states - history - 1)))
    return errors


# Named errors, with one number per sample, as defined by published benchmarks

#: ``metric(prediction, y, known)`` for fields of shape (n, channels, \*grid), where ``known`` is 1 where y is known, else 0.
Metric = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
_NUMBERS_AT_ONCE = 2**22  # number of values for which errors are computed together


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
    count = known.flatten(2).sum(2)
    mean = (y * known).flatten(2).sum(2) / count
    centred = y - mean.reshape(*mean.shape, *[1] * (y.ndim - 2))
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


def mean_square(field: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the mean square over the known points, for each sample and channel: (n, channels)."""
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
