"""Train for a time: measure a few steps, and count the epochs that fit."""

import copy
import itertools
import math
import re
import time
from contextlib import suppress
from pathlib import Path

import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.files import check_room, put
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.settings import Settings
from neuralop_mup.lab.study import Study
from neuralop_mup.lab.training import Training, quiet, untouched

_WARM, _TIMED = 3, 20  # steps; the first ones create the optimizer's state


#: Part of the time for training. The rest is for errors, weights and the report.
_SHARE = 0.95


_BUDGET = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


def seconds_of(epochs: str) -> float:
    """Return a time such as ``"3h"``, ``"90m"``, ``"45s"`` or ``"1h30m"`` in seconds."""
    found = _BUDGET.fullmatch(epochs)
    hours, minutes, seconds = (float(part or 0) for part in (found.groups() if found else ("0", "0", "0")))
    total = 3600 * hours + 60 * minutes + seconds
    if not 0 < total < math.inf:
        raise MupError(
            f"epochs={epochs!r} must be a number of epochs, or the time that the training may take, such as '3h', '90m', "
            "'45s' or '1h30m'."
        )
    return total


def epochs_within(budget: float, study: Study, training: Training, folder: Path) -> int:
    """Return the number of epochs that fit in a time: 0.95 · time / (steps per epoch · seconds per step), rounded down.

    The number is written to the folder, so that the same call has the same length if it resumes on another machine.

    Parameters
    ----------
    budget : float
        Time in seconds.
    study : Study
        Study with one size, and one epoch.
    training : Training
        Train function. We time a copy of it.
    folder : Path
        Folder of the study.

    Raises
    ------
    MupError
        If no epoch fits, or if the folder cannot be written.
    """
    run = study.tuning[0][0]
    path = folder / f"epochs-{fingerprint([training.content(run.config), budget])[:16]}.txt"
    with suppress(OSError, ValueError):  # not measured yet, or damaged
        return int(path.read_text(encoding="utf-8"))
    an_epoch = _seconds_of_an_epoch(copy.deepcopy(training), Settings.of(run.config, training.optimizers))
    epochs = int(_SHARE * budget / an_epoch)
    if epochs < 1:
        raise MupError(
            f"No epoch fits in {budget:g} seconds: one takes about {an_epoch:.3g} seconds, measured on {_TIMED} steps. "
            "Allow more time, or use fewer samples or a larger batch_size."
        )
    check_room(folder, 0)
    put(folder, path, f"{epochs}\n")
    return epochs


def _seconds_of_an_epoch(training: Training, s: Settings) -> float:
    with torch.random.fork_rng(devices=[]):
        _, trainer, loader, _ = training.prepare(s)
    with quiet(), untouched(loader):
        training.fit(trainer, list(itertools.islice(loader, _WARM)))
        began = time.perf_counter()
        batches = list(itertools.islice(loader, _TIMED))  # the time includes reading them
        training.fit(trainer, batches)
    return (time.perf_counter() - began) / len(batches) * len(loader)
