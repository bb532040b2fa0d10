"""A training as long as a time: a few of its steps are timed, and the epochs that fit in are counted once."""

import copy
import itertools
import math
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.files import check_room, put
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.settings import Settings
from neuralop_mup.lab.study import Study
from neuralop_mup.lab.training import Training, quiet, untouched

_WARM, _TIMED = 3, 20  # steps: the first ones make the optimizer's state
#: Of the time; the rest is for the errors at the end, the weights and the page.
_SHARE = 0.95


_BUDGET = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


def seconds_of(epochs: str) -> float:
    """Return the seconds of ``"3h"``, ``"90m"``, ``"45s"`` or ``"1h30m"``, given as ``epochs``."""
    found = _BUDGET.fullmatch(epochs)
    hours, minutes, seconds = (float(part or 0) for part in (found.groups() if found else ("0", "0", "0")))
    total = 3600 * hours + 60 * minutes + seconds
    if not 0 < total < math.inf:
        raise MupError(
            f"epochs is {epochs!r}. Give the number of epochs of the whole training, or the time that it may take as '3h', "
            "'90m', '45s' or '1h30m'."
        )
    return total


class _First:
    """The first batches of a loader, as often as they are asked for."""

    def __init__(self, loader: Any, n: int) -> None:
        self._loader, self._n = loader, min(n, len(loader))

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._loader, self._n)


def epochs_within(budget: float, study: Study, training: Training, folder: Path) -> int:
    """The epochs of a run that fit in a time, floor(0.95 · time / (steps of an epoch · seconds of a step)).

    Their number is kept in the folder, so that the same call has the same length wherever it goes on.

    Parameters
    ----------
    budget : float
        The time, in seconds.
    study : Study
        Of a single size; its runs have one epoch.
    training : Training
        Of which a copy trains.
    folder : Path

    Raises
    ------
    MupError
        If not even one epoch fits, or if the folder cannot be written.
    """
    run = study.tuning[0][0]
    path = folder / f"epochs-{fingerprint([training.content(run.config), budget])[:16]}.txt"
    with suppress(OSError, ValueError):  # not timed yet, or damaged
        return int(path.read_text(encoding="utf-8"))
    an_epoch = _seconds_of_an_epoch(copy.deepcopy(training), Settings.of(run.config, training.optimizers))
    epochs = int(_SHARE * budget / an_epoch)
    if epochs < 1:
        raise MupError(
            f"{budget:g} seconds are too short a time for epochs: by {_TIMED} of its steps one takes about {an_epoch:.3g} "
            "seconds. Give more time, fewer samples or a larger batch_size."
        )
    check_room(folder, 0)
    put(folder, path, f"{epochs}\n")
    return epochs


def _seconds_of_an_epoch(training: Training, s: Settings) -> float:
    with torch.random.fork_rng(devices=[]):
        _, trainer, loader, _ = training.begun(s)
    timed = _First(loader, _TIMED)
    with quiet(), untouched(loader):
        training.fit(trainer, _First(loader, _WARM))
        began = time.perf_counter()
        training.fit(trainer, timed)
    return (time.perf_counter() - began) / len(timed) * len(loader)
