"""By what learning rates are chosen instead of the validation error: a function of the user's, or a rollout's error; and
what a model predicts in the units of the data.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.batches import advanced
from neuralop_mup.lab.data.problem_data import ProblemData
from neuralop_mup.lab.metrics import METRICS, by_sample, ratio

AT_ONCE = 64  # samples that go through the model together
_FORM = "score(model, data), further arguments with defaults"


class Predictor(nn.Module):
    """A model, in eval mode, between fields in the units of the data: what normalises them is inside.

    Parameters
    ----------
    model : torch.nn.Module
    processor : neuralop DataProcessor or None
        On whatever device; a copy of it goes to the model's.
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
        """The prediction for ``x`` and whatever else a batch has, on the device of ``x``."""
        given = {"x": x, **batch}
        there = {name: v.to(self.device) if torch.is_tensor(v) else v for name, v in given.items()}
        # neuralop's processors ask for a y; in eval mode they only move it. One that uses it would show as no number.
        like = {} if "y" in batch or self.processor is None else {"y": torch.full_like(there["x"][:, :1], torch.nan)}
        sample = there if self.processor is None else self.processor.preprocess({**there, **like})
        out = self.model(**{k: v for k, v in sample.items() if k not in like})
        if self.processor is not None:
            out, _ = self.processor.postprocess(out, sample)
        return out.to(x.device) if torch.is_tensor(x) and torch.is_tensor(out) else out


@dataclass(frozen=True)
class Validation:
    """The validation data as a score gets it: iterated it gives batches, dicts with "x" and "y", in the units of the data.

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
        """Pairs that each trajectory gave, the shortest one; 0 where samples are no trajectories."""
        return self.data.pairs_of(self.split) if isinstance(self.data, ProblemData) and not self.data.masked else 0

    @property
    def n_states(self) -> int:
        """States of each trajectory that are a step apart; 0 where samples are no trajectories."""
        return self.pairs + self.data.history if self.pairs else 0

    def states(self, number: int) -> torch.Tensor:
        """The state of this number, from 0 on, of every trajectory: ``(n, channels, *grid)``."""
        y, before = getattr(self.data, self.split)[1], self.data.history
        if number >= before:
            return y[self.numbers(number - before)]
        channels = y.shape[1]
        return self.inputs(0)[:, number * channels : (number + 1) * channels]

    def inputs(self, number: int) -> torch.Tensor:
        """The input of this number of every trajectory, from which the state ``number + history`` follows."""
        return getattr(self.data, self.split)[0][self.numbers(number)]

    def numbers(self, number: int) -> list[int]:
        """Return the numbers of the pairs that come at this place in each trajectory."""
        lengths = self.data.trajectories(self.split)
        return [end - length + number for end, length in zip(accumulate(lengths), lengths, strict=True)]


@dataclass(frozen=True)
class Score:
    """What learning rates are chosen by: the lower, the better.

    Attributes
    ----------
    name : str
        What reports call it.
    function : callable
        ``function(model, data)`` of a :class:`Predictor` and a :class:`Validation`.
    given : str or callable
        What tells it from others: the name of one of this package, or the function.
    """

    name: str
    function: Callable[..., Any]
    given: Any = None

    def of(self, model: nn.Module, processor: Any, data: Any) -> float:
        """The score of a model; infinite or NaN where it has none. No random number is used up.

        Raises
        ------
        MupError
            If the function fails, or gives what is no number, or a negative one.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                value = self.function(Predictor(model, processor), Validation(data))
            except MupError:
                raise
            except Exception as error:  # the function is the user's
                raise MupError(
                    f"The score {self.name} fails on the validation data: {type(error).__name__}: {error}. It is called as "
                    f"{_FORM}."
                ) from error
        number = value.item() if getattr(value, "ndim", None) == 0 else value
        if isinstance(number, bool) or not isinstance(number, (int, float)) or number < 0:
            shown = f"an array of shape {tuple(value.shape)}" if getattr(value, "ndim", 0) else repr(number)
            raise MupError(
                f"The score {self.name} returns {shown}; it must be one number of at least 0, the lower the better, such as "
                "an error and not its negative."
            )
        return float(number)

    def check(self, model: nn.Module, processor: Any, data: Any) -> None:
        """MupError where it gives NaN for an untrained model, or another number the second time."""
        first, again = (copy.deepcopy(self).of(model, processor, data) for _ in range(2))
        if math.isnan(first) or not math.isclose(first, again, rel_tol=1e-4):
            what = "NaN" if math.isnan(first) else f"{first:.6g} and then {again:.6g}"
            raise MupError(
                f"The score {self.name} gives {what} for the untrained base, so that nothing could be compared by it: it "
                "must give a number, the same each time, and math.inf for a model that has none."
            )


def score_of(score: Any) -> Score | None:
    """Return the score of a name or a function; None for None, which is the validation error.

    Names are those of :data:`~neuralop_mup.lab.metrics.METRICS`, and ``"rollout:50"`` for fifty steps.

    Raises
    ------
    MupError
        For another name, or a function of other arguments.
    """
    if score is None:
        return None
    if isinstance(score, str):
        if score in METRICS:
            return Score(score, partial(mean_error, name=score), score)
        name, _, steps = score.partition(":")
        if name != "rollout" or not steps.isdecimal() or int(steps) < 1:
            raise MupError(
                f"There is no score {score!r}. Write {', '.join(METRICS)}, or rollout:50 for fifty steps (1 or more)."
            )
        name = f"rollout:{int(steps)}"
        return Score(name, partial(rollout_error, steps=int(steps)), name)
    if not callable(score):
        raise MupError(f"score={score!r} must be {', '.join(METRICS)}, rollout:50 or a function, {_FORM}.")
    name = getattr(score, "__qualname__", type(score).__qualname__)
    return Score(name, score, score)


def mean_error(model: Predictor, data: Validation, name: str) -> float:
    """Return the mean of a metric over the validation samples that have this error, in the units of the data."""
    return float(torch.cat([by_sample(METRICS[name], model(**batch), batch) for batch in data]).nanmean())


def rollout_error(model: Predictor, data: Validation, steps: int) -> float:
    """The error of a model that is applied to its own predictions, from the first state of each validation trajectory.

    Of the errors of the steps (:func:`rollout_errors`) the geometric mean is taken, as APEBench does (arXiv 2411.00180), so
    that the last steps of a chaotic flow, where any two solutions are as far apart, do not decide alone. Infinite where a
    rollout leaves the finite numbers.

    Raises
    ------
    MupError
        If the data has no trajectories, or shorter ones.
    """
    history = getattr(data.data, "history", 1)
    if data.n_states < steps + history:
        raise MupError(
            f"score='rollout:{steps}' needs {steps + history} states of each validation trajectory, and the data has "
            f"{data.n_states}, as it is read: score a rollout of fewer steps, give longer trajectories, each step of them "
            "read, read={'y': 'u', 'time_step': 1} (--read.y u --read.time_step 1), or a score of your own, "
            "score(model, data)."
        )
    errors = torch.tensor(rollout_errors(model, data, steps), dtype=torch.float64)
    return float(errors.log().nanmean().exp())


def rollout_errors(model: Predictor, data: Validation, steps: int) -> list[float]:
    """The relative L2 error of each step of a rollout, in the units of the data and in the mean over the trajectories.

    From the step on at which a rollout leaves the finite numbers it is infinite.
    """
    history = data.data.history
    x, errors = data.inputs(0), [math.inf] * steps
    for number in range(steps):
        state, truth = torch.cat([model(part) for part in x.split(AT_ONCE)]), data.states(number + history)
        if state.shape != truth.shape:
            raise MupError(
                f"The model makes {tuple(state.shape[1:])} of states of shape {tuple(truth.shape[1:])}, so that it cannot "
                "be applied to its own predictions: give it as many channels out as in."
            )
        error, size = (field.flatten(1).double().norm(dim=1) for field in (state - truth, truth))
        errors[number] = float(ratio(error, size).nanmean())
        if math.isinf(errors[number]):
            break
        x = advanced(x, state, history, data.inputs(min(number + 1, data.n_states - history - 1)))
    return errors
