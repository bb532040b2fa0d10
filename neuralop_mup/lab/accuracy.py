"""The errors of a trained model on held-out data: tables, a figure of samples, and a comparison with trivial predictions."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from neuralop.data.transforms.data_processors import DefaultDataProcessor

from neuralop_mup.core.describe_model import check_grid
from neuralop_mup.lab import plots, wording
from neuralop_mup.lab.data.problem_data import ProblemData
from neuralop_mup.lab.metrics import METRICS, Metric, by_sample, in_double, is_like, mean, mean_square
from neuralop_mup.lab.score import AT_ONCE, Predictor, Validation, rollout_errors
from neuralop_mup.lab.training import quiet, untouched

#: Maps each prediction method to its metrics, and each metric to the errors of all samples.
Errors = dict[str, dict[str, torch.Tensor]]

MODEL, TRAINING, HALF, MEAN, PERSISTENCE = "model", "model, training data", "model, half resolution", "mean", "last state"
_BASELINES = {MEAN: "predicting the mean of the training data", PERSISTENCE: "predicting the last state of the input"}
_WORST = 5
_STEPS = 8  # maximum number of time steps in the table of a trajectory
#: An error counts as better only if it is below this fraction of a baseline's error. Otherwise it may be lower by chance.
_NOT_BETTER = 0.99
#: Channels whose standard deviation, relative to their root mean square, is smaller than this vary only by rounding.
_ROUNDING = 4 * torch.finfo(torch.float32).eps
#: Mean squares and means for each channel.
_MOMENTS: dict[str, Metric] = {
    "squared error": lambda prediction, y, known: mean_square(prediction - y, known),
    "bias": lambda prediction, y, known: mean(prediction - y, known),
    "square": lambda prediction, y, known: mean_square(y, known),
}


@dataclass(frozen=True)
class Accuracy:
    """The errors of a model on held-out data.

    Attributes
    ----------
    page : str
        Markdown for the report, including the figure.
    comparison : str
        Errors of the model and of the baselines for each channel.
    findings : sequence of str
        One sentence for each baseline that the model does not outperform.
    """

    page: str = ""
    comparison: str = ""
    findings: Sequence[str] = ()


@quiet()
def accuracy(model: Predictor, data: Any, split: Mapping[str, Sequence[int]], figure: Path) -> Accuracy:
    """Measure a model on the test data, or on the validation data if there is no test data.

    Parameters
    ----------
    model : Predictor
    data : ProblemData or Loaders
        Fields on a grid.
    split : mapping
        Maps the name of a split to the indices of its samples or trajectories in the data that the user passed.
    figure : Path
        File for a figure that shows the samples with the median error and with the largest error.

    Returns
    -------
    Accuracy
        Empty if the predictions do not have the same shape as the targets.
    """
    train, loaders = data.loaders(AT_ONCE, 0)
    which = "test" if "test" in loaders else "val"
    ways = {MODEL: model, **_baselines(data, which, train)}
    found = _measured(ways, loaders[which])
    errors = found[MODEL]["l2"].tolist() if found else []
    order = sorted((i for i, error in enumerate(errors) if not math.isnan(error)), key=lambda i: -errors[i])
    if not order:
        return Accuracy()
    by_channel, findings = _by_channel(found)
    names = _names(data, which, split.get(which, ()), len(errors))
    wanted = {i: f"sample {names[i]}\nerror {errors[i]:.3g}" for i in (order[len(order) // 2], order[0])}
    fields = enumerate(_fields(model, loaders[which]))
    plots.plot_samples({wanted[i]: sample for i, sample in fields if i in wanted}, figure)
    named = "test" if which == "test" else "validation"
    baselines = "; ".join(f"{way}, {_BASELINES[way]}" for way in ways if way in _BASELINES)
    comparison = (
        f"Errors on the {named} data, in the units of the data. L2 is the relative L2 error of a channel over all samples, "
        "RMSE is the root mean square error, and std is the standard deviation of the targets. Baselines: "
        f"{baselines}.\n\nBy channel:\n\n"
        f"{wording.aligned(by_channel)}"
    )
    quantiles = found[MODEL]["l2"].nanquantile(torch.tensor([0.5, 0.1, 0.9, 1.0], dtype=torch.float64))
    with untouched(train):
        on_training_data = _measured({TRAINING: model}, islice(train, len(loaders[which])))
    all_ways = found | on_training_data | _at_half_the_resolution(model, loaders[which])
    means = [[name, *(float(own[name].nanmean()) for own in all_ways.values())] for name in METRICS if name in found[MODEL]]
    tables = {
        "Means over the held-out samples, and over at most as many training samples. The error l2 covers all channels "
        "together; h1, vrmse (The Well) and nrmse (PDEBench) are means over the channels:": [["error", *all_ways], *means],
        "Relative L2 errors of all channels together. By sample:": [
            ["samples", "median", "10 % quantile", "90 % quantile", "largest"],
            [len(order), *quantiles.tolist()],
        ],
        "Largest errors:": [["sample", "error"], *([names[i], errors[i]] for i in order[:_WORST])],
        "By time step, averaged over the trajectories:": _by_step(model, Validation(data, which), found[MODEL]["l2"]),
    }
    zero = len(errors) - len(order)
    page = [
        comparison,
        f"{zero} of {len(errors)} samples are zero everywhere, so their relative error is undefined." if zero else "",
        *(f"{what}\n\n{wording.aligned(rows)}" for what, rows in tables.items() if rows),
        f"![Samples of the {named} data: input, truth, prediction and their difference]({figure.name})",
    ]
    return Accuracy("\n\n".join(filter(None, page)), comparison, findings)


def _baselines(data: Any, which: str, train: Any) -> dict[str, Callable[..., torch.Tensor]]:
    """Return trivial predictors: a constant per channel and, for trajectories, the last state of the input."""
    if isinstance(data, ProblemData):
        means = data.normalizers[1].mean
    else:
        with untouched(train):
            means = torch.cat([in_double(batch["y"]).flatten(2).mean(2) for batch in train]).mean(0)
    baselines = {MEAN: lambda y, **_: means.view(1, -1, *[1] * (y.ndim - 2)).expand_as(y)}
    if isinstance(data, ProblemData) and data.trajectories(which):
        baselines[PERSISTENCE] = lambda x, y, **_: x.split(y.shape[1], dim=1)[data.history - 1]
    return baselines


def _measured(ways: Mapping[str, Callable[..., Any]], batches: Iterable[Mapping[str, torch.Tensor]]) -> Errors:
    """Return all errors of each prediction method, or an empty dict if a prediction does not have the shape of y."""
    found: dict[str, dict[str, list[torch.Tensor]]] = {way: {} for way in ways}
    for batch in batches:
        y = batch["y"]
        no_h1 = y.is_complex() or y.ndim > 5
        metrics = {name: metric for name, metric in {**METRICS, **_MOMENTS}.items() if not (name == "h1" and no_h1)}
        for way, predict in ways.items():
            prediction = predict(**batch)
            if not is_like(prediction, y):
                return {}
            for name, metric in metrics.items():
                found[way].setdefault(name, []).append(by_sample(metric, prediction, batch))
    return {way: {name: torch.cat(parts) for name, parts in own.items()} for way, own in found.items()}


def _at_half_the_resolution(model: Predictor, loader: Any) -> Errors:
    """Return the errors on every second grid point, or an empty dict if the data or the model does not allow this."""
    grid = tuple(next(iter(loader))["x"].shape[2:])
    divisor = 2 if len(grid) == 1 else 4  # on several axes, neuralop's SpectralConv requires an even number of points
    if any(n % divisor for n in grid) or type(model.processor) not in (DefaultDataProcessor, type(None)):
        return {}
    every_second = (..., *[slice(None, None, 2)] * len(grid))
    thinned = ({k: v[every_second] if v.shape[2:] == grid else v for k, v in batch.items()} for batch in loader)
    try:
        check_grid(model.model, tuple(n // 2 for n in grid))
        return _measured({HALF: model}, thinned)
    except Exception:  # models may raise any exception on a grid that they do not support
        return {}


def _by_channel(found: Errors) -> tuple[list[list[Any]], list[str]]:
    """Return the table of errors by channel, and a sentence for each baseline that the model does not outperform."""
    rmse = {way: own["squared error"].mean(0).sqrt() for way, own in found.items()}
    size = found[MODEL]["square"].mean(0).sqrt()
    variance = found[MEAN]["squared error"].mean(0) - found[MEAN]["bias"].mean(0).abs().square()
    varies = variance.clamp_min(0).sqrt() > _ROUNDING * size
    std = torch.where(varies, variance, torch.nan).sqrt()
    header = ["channel", *(f"L2, {way}" for way in rmse), *(f"RMSE / std, {way}" for way in rmse), "RMSE"]
    columns = [*(error / size for error in rmse.values()), *(error / std for error in rmse.values()), rmse[MODEL]]
    rows = [[channel, *numbers] for channel, numbers in enumerate(torch.stack(columns, 1).tolist())]
    findings = []
    for way in list(rmse)[1:]:  # the baselines
        is_poor = varies & ~(rmse[MODEL] < _NOT_BETTER * rmse[way]) & (rmse[way] > 0)
        poor = is_poor.nonzero().flatten().tolist()
        if poor and is_poor.equal(varies):
            learned = ": nothing was learned" if way == MEAN else ""
            findings.append(f"The model is not better than {_BASELINES[way]}{learned}.")
        elif poor:
            channels = f"channel{'s' if len(poor) > 1 else ''} {', '.join(map(str, poor))}"
            findings.append(f"In {channels} the model is not better than {_BASELINES[way]}.")
    return [header, *rows], findings


def _fields(model: Predictor, loader: Any) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the input, target and prediction of each sample. Masked points of the last two are NaN."""
    for batch in loader:
        prediction = model(**batch)
        known = batch.get("mask", torch.ones(()))
        fields = batch["x"], *(torch.where(known > 0, field, torch.nan) for field in (batch["y"], prediction))
        yield from zip(*(in_double(field).numpy(force=True) for field in fields), strict=True)


def _names(data: Any, which: str, numbers: Sequence[int], count: int) -> Sequence[Any]:
    """Return names of samples: their indices in the user's data if known, otherwise their positions in the split."""
    lengths = data.trajectories(which) if isinstance(data, ProblemData) else []
    places = range(len(lengths) or count)
    numbers = numbers if len(numbers) == len(places) else places
    if not lengths:
        return numbers
    return [f"{i} of trajectory {n}" for n, pairs in zip(numbers, lengths, strict=True) for i in range(1, pairs + 1)]


def _by_step(model: Predictor, data: Validation, errors: torch.Tensor) -> list[list[Any]]:
    """Return the table of errors by time step, or an empty list if the samples are not steps of trajectories."""
    pairs = data.pairs
    if pairs < 2:
        return []
    channels, history = data.states(0).shape[1], data.data.history
    columns = {
        "from the previous true state": [float(errors[data.numbers(step)].nanmean()) for step in range(pairs)],
        "from the first state": rollout_errors(model, data, pairs),
        "predicting the first state": rollout_errors(lambda x: x.split(channels, dim=1)[history - 1], data, pairs),
    }
    steps = sorted({round(step) for step in np.linspace(1, pairs, min(pairs, _STEPS))})
    return [["step", *columns], *([step, *(own[step - 1] for own in columns.values())] for step in steps)]
