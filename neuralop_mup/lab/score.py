"""Scores, which are used to select learning rates, and predictions in the units of the data."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from neuralop_mup.errors import MupError, error_text
from neuralop_mup.lab.data.batches import advanced
from neuralop_mup.lab.data.problem_data import ProblemData
from neuralop_mup.lab.metrics import METRICS, by_sample

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
        there = {name: v.to(self.device) if torch.is_tensor(v) else v for name, v in {"x": x, **batch}.items()}
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
        return self.inputs(0).split(y.shape[1], dim=1)[number]

    def inputs(self, number: int) -> torch.Tensor:
        """Return the input with this number, counted from 0, of every trajectory. It predicts state ``number + history``."""
        return getattr(self.data, self.split)[0][self.numbers(number)]

    def numbers(self, number: int) -> list[int]:
        """Return the indices of the pairs at this position in each trajectory."""
        lengths = np.array(self.data.trajectories(self.split), int)
        return (lengths.cumsum() - lengths + number).tolist()


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

    def of(self, model: nn.Module, processor: Any, data: Any, split: str = "val") -> float:
        """Return the score of a model, which may be infinite or NaN, without changing random states.

        Raises
        ------
        MupError
            If the function fails or does not return a nonnegative number.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                value = self.function(Predictor(model, processor), Validation(data, split))
            except MupError:
                raise
            except Exception as error:  # the user's function may raise any exception
                raise MupError(
                    f"The score {self.name} failed on the validation data: {error_text(error)}. It must have "
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

    Valid names are those in :data:`~neuralop_mup.lab.metrics.METRICS`, and ``"rollout:50"`` for a rollout of fifty steps.

    Raises
    ------
    MupError
        If the name is unknown, or if ``score`` is neither a name nor callable.
    """
    if score is None:
        return None
    if callable(score):
        return Score(getattr(score, "__qualname__", type(score).__qualname__), score, score)
    if not isinstance(score, str):
        raise MupError(f"score={score!r} must be {', '.join(METRICS)}, rollout:50 or a function, {_FORM}.")
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
    if getattr(data.data, "masked", False):
        raise MupError(
            f"score='rollout:{steps}' requires fields without NaN, since predictions have no mask. With nan='mask', use "
            "another score, such as 'l2'."
        )
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
        errors[number] = float(by_sample(METRICS["l2"], state, {"y": truth}).nanmean())
        if math.isinf(errors[number]):
            break
        x = advanced(x, state, history, data.inputs(min(number + 1, data.n_states - history - 1)))
    return errors
