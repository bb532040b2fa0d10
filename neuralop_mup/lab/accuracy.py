"""How good a trained model is on data that it was not trained on: sample by sample, channel by channel and, of trajectories,
step by step; as tables, and as a figure of samples.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neuralop_mup.lab import plots, wording
from neuralop_mup.lab.data.problem_data import ProblemData
from neuralop_mup.lab.score import AT_ONCE, Predictor, Validation, rollout_errors
from neuralop_mup.lab.training import quiet

_WORST = 5
_STEPS = 8  # of a trajectory, in its table


def accuracy(model: Predictor, data: Any, split: Mapping[str, Sequence[int]], figure: Path) -> str:
    """Relative L2 errors on the test data, or where there is none on the validation data, in its units.

    Parameters
    ----------
    model : Predictor
    data : ProblemData or Loaders
        Of fields on a grid.
    split : mapping
        Name of a split → numbers of its samples or trajectories in the data that was given.
    figure : Path
        Where the sample of the middle error and that of the largest are drawn.

    Returns
    -------
    str
        Markdown, which shows the figure; empty where predictions are not like the targets.
    """
    loaders = data.loaders(AT_ONCE, 0)[1]
    which = "test" if "test" in loaders else "val"
    squares = [(_square(out - y), _square(y)) for _, y, out in _predicted(model, loaders[which])]
    if not squares:
        return ""
    far, size = np.swapaxes(squares, 0, 1)  # (samples, channels)
    errors = np.sqrt(far.sum(1) / size.sum(1))
    names = _names(data, which, split.get(which, ()), len(errors))
    order = np.argsort(-errors, kind="stable")
    of_channels = zip(np.sqrt(far.sum(0) / size.sum(0)), np.sqrt(far.mean(0)), strict=True)
    tables = {
        "By sample:": [
            ["samples", "median", "10 % quantile", "90 % quantile", "largest"],
            [len(errors), *np.quantile(errors, (0.5, 0.1, 0.9, 1))],
        ],
        "The largest:": [["sample", "error"], *([names[i], errors[i]] for i in order[:_WORST])],
        "By channel:": [
            ["channel", "error", "root mean square, in its units"],
            *([i, *c] for i, c in enumerate(of_channels)),
        ],
        "By time, in the mean over trajectories:": _by_step(model, data, which, errors),
    }
    wanted = {int(i): f"sample {names[i]}\nerror {errors[i]:.3g}" for i in (order[len(order) // 2], order[0])}
    drawn = {wanted[i]: fields for i, fields in enumerate(_predicted(model, loaders[which])) if i in wanted}
    plots.plot_samples(drawn, figure)
    named = "test" if which == "test" else "validation"
    joined = ", of all channels together (the loss is the sum of theirs)" if far.shape[1] > 1 else ""
    return "\n\n".join(
        [
            f"Relative L2 errors of the target on the {named} data, in the units of the data{joined}.",
            *(f"{what}\n\n{wording.aligned(rows)}" for what, rows in tables.items() if rows),
            f"![Samples of the {named} data: input, truth, prediction and their difference]({figure.name})",
        ]
    )


def _predicted(model: Predictor, loader: Any) -> Iterator[tuple[np.ndarray, ...]]:
    """Input, target and prediction of each sample, in double precision; nothing where the last two are not alike."""
    for batch in loader:
        with quiet():
            fields = [batch["x"], batch["y"], model(**batch)]
        if not torch.is_tensor(fields[2]) or fields[2].shape != fields[1].shape:
            return
        if "mask" in batch:
            fields[1:] = (field * batch["mask"] for field in fields[1:])
        wide = (field.to(torch.complex128 if field.is_complex() else torch.float64) for field in fields)
        yield from zip(*(field.cpu().numpy() for field in wide), strict=True)


def _square(field: np.ndarray) -> np.ndarray:
    """Mean square of each channel."""
    return np.square(np.abs(field)).reshape(len(field), -1).mean(1)


def _names(data: Any, which: str, numbers: Sequence[int], count: int) -> Sequence[Any]:
    """What samples are called: by their numbers in the data, or where these are not known by their place in the split."""
    if isinstance(data, ProblemData) and len(data.trajectories(which)):
        each = zip(numbers, data.trajectories(which), strict=True)
        return [f"{step} of trajectory {number}" for number, pairs in each for step in range(1, pairs + 1)]
    return numbers if len(numbers) else range(count)


def _by_step(model: Predictor, data: Any, which: str, errors: np.ndarray) -> list[list[Any]]:
    """The table by step of a trajectory; nothing where samples are no steps of one."""
    validation = Validation(data, which)
    pairs = validation.pairs
    if pairs < 2:
        return []
    columns = {
        "from the truth before": [errors[validation.numbers(step)].mean() for step in range(pairs)],
        "from the first state on": rollout_errors(model, validation, pairs),
    }
    steps = sorted({round(step) for step in np.linspace(1, pairs, min(pairs, _STEPS))})
    return [["step", *columns], *([step, *(own[step - 1] for own in columns.values())] for step in steps)]
