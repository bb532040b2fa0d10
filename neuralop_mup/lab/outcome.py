"""The outcome of a training run, which is one of four kinds, and its measurements."""

import copy
import math
import platform
import random
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from neuralop_mup._version import __version__
from neuralop_mup.errors import Diverged, MupError

#: The four outcomes. Complete: the loss is finite. Diverged: the loss is not finite. Refused: a MupError was raised, since
#: the configuration cannot work. Failed: another exception, a full disk, too little memory, or a killed process. Only failed
#: runs are repeated, since the others would end in the same way again.
KINDS = COMPLETE, DIVERGED, REFUSED, FAILED = "complete", "diverged", "refused", "failed"
#: Errors that are not caused by the run itself: a full disk, a missing file, too little memory, or a missing module.
_SURROUNDINGS = (OSError, MemoryError, ImportError, torch.cuda.OutOfMemoryError)
#: Lock that is held during a run, since torch's random state and threads are shared by the whole process. It is reentrant,
#: since a train function may call tune.
_BUSY = threading.RLock()


def failed(error: str | None, again: bool = True) -> dict[str, Any]:
    """Return the outcome of a failed run. Every outcome has the same keys.

    ``outcome`` is one of :data:`KINDS`. ``again`` is true if the cause lies outside the run, so a second attempt may
    complete. ``versions``, ``host`` and ``date`` describe the process that trained the run.
    """
    return {
        "outcome": FAILED,
        "error": error,
        "loss": None,
        "metrics": {},
        "traceback": None,
        "seconds": 0.0,
        "again": again,
        "versions": versions(),
        "host": platform.node(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect the results of a run."""
    installed = {distribution.name: distribution.version for distribution in metadata.distributions()}
    found = {name: installed.get(name, "not installed") for name in ("torch", "neuraloperator", "mup")}
    return {"python": platform.python_version(), **found, "neuralop-mup": __version__}  # the package need not be installed


def releases() -> dict[str, str]:
    """Return the releases (major and minor) of this package and of torch, which are part of a run's key."""
    installed = {"neuralop-mup": __version__, "torch": torch.__version__}
    return {name: ".".join(str(version).split(".")[:2]) for name, version in installed.items()}


@contextmanager
def same_random_state() -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch on exit."""
    python, numpy = random.getstate(), np.random.get_state()
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(cuda):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def execute(
    version: str, train: Callable[..., Any], config: Mapping[str, Any], place: str | None = None, keep: bool = False
) -> dict[str, Any]:
    """Train once and return the outcome, even if ``train`` raises an error.

    Parameters
    ----------
    version : str
        Version of the package in the main process. Results of other versions may differ.
    train : callable
        Train function. A copy of it is called with a copy of ``config``, so runs share no state. If its attribute
        ``keeps_files`` is true, the function is also called with ``place`` and ``keep``.
    config : mapping
        Configuration of the run.
    place : str, optional
        Folder of the run.
    keep : bool
        Whether to keep the weights.

    Returns
    -------
    dict
        The outcome, with the same keys as that of :func:`failed`.

    Raises
    ------
    MupError
        If this process uses another version of the package, cannot access the folder, or is training another run.
    """
    if __version__ != version:
        raise MupError(
            f"A worker uses neuralop_mup {__version__}, but the main process uses {version}, so their results may differ. "
            "Install the same version everywhere."
        )
    if place is not None and not Path(place).is_dir():
        raise MupError(f"A worker cannot access {place}. Choose a folder that every machine can access.")
    if not _BUSY.acquire(blocking=False):
        raise MupError(
            "The executor trains several runs concurrently in threads of one process, so they would share random state. "
            "Pass a process-based executor with one thread per process."
        )
    files = {"place": place, "keep": keep} if getattr(train, "keeps_files", False) else {}
    start = time.perf_counter()
    try:
        with same_random_state():
            outcome = _ended(copied(train)(copied(dict(config)), **files))
    except (Exception, SystemExit) as error:
        outcome = _raised(error)
    finally:
        _BUSY.release()
    outcome["seconds"] = time.perf_counter() - start
    return outcome


def copied(value: Any) -> Any:
    """Return a deep copy, or the value itself if it cannot be copied, such as an open file."""
    try:
        return copy.deepcopy(value)
    except Exception:  # custom copy methods may raise any exception
        return value


def _ended(value: Any) -> dict[str, Any]:
    """Return the outcome of a run that returned a value."""
    metrics = dict(value) if isinstance(value, Mapping) else {"loss": value}
    try:
        loss = float(metrics["loss"])
    except (KeyError, TypeError, ValueError):
        raise TypeError(f"train returned {value!r}, but it must return a number or a dict with a 'loss'.") from None
    ended = {"outcome": COMPLETE, "error": None, "loss": loss} if math.isfinite(loss) else {"outcome": DIVERGED}
    return {**failed(f"the loss is {loss}", again=False), "metrics": plain(metrics), **ended}


def _raised(error: BaseException) -> dict[str, Any]:
    """Return the outcome of a run that raised an exception. The causes of the exception determine its kind."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:  # "raise error from error" makes an error its own cause
        causes.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    around = any(isinstance(each, _SURROUNDINGS) for each in causes)
    refused = isinstance(error, MupError) and not around
    kind = DIVERGED if isinstance(error, Diverged) else REFUSED if refused else FAILED
    said, name = " ".join(str(error).split()), type(error).__name__
    text = said if said and isinstance(error, MupError) else f"{name}: {said}".removesuffix(": ")
    trace = "".join(traceback.format_exception(error)) if kind == FAILED else None
    return {**failed(text, again=around), "outcome": kind, "traceback": trace}


def plain(value: Any) -> Any:
    """Return ``value`` as strict JSON, with None for numbers that are not finite and strings for unknown objects."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):  # numpy and torch
        return plain(value.tolist())
    return str(value)


def is_final(record: Mapping[str, Any]) -> bool:
    """Return whether a run would end in the same way again."""
    return record["outcome"] != FAILED


def is_complete(record: Mapping[str, Any]) -> bool:
    """Return whether a run completed with a finite loss."""
    return record["outcome"] == COMPLETE


def first_failure(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the first error and how to continue, with a leading space, or an empty string if there are no errors."""
    wrong = next((r for r in records if r["error"]), None)
    if wrong is None:
        return ""
    again = "Fix the cause and repeat the call with the same folder, which repeats the run."
    final = "This run will not be repeated. Try different values, or fix the code, which creates a new run."
    return f" The first failure: {wrong['error'].rstrip('.')}. {final if is_final(wrong) else again}"


def score(records: Collection[Mapping[str, Any]], seeds: int) -> float:
    """Return the score by which points are compared: the mean loss, or infinity unless every seed completed."""
    complete = len(records) == seeds and all(map(is_complete, records))
    return fmean(record["loss"] for record in records) if complete else math.inf


def lowest(points: Iterable[tuple[Any, Collection[Mapping[str, Any]]]], seeds: int) -> tuple[Any, float]:
    """Return the point with the lowest score and this score, or (None, inf) if no point completed for every seed."""
    scored = [(point, score(records, seeds)) for point, records in points]
    best, loss = min(scored, key=lambda own: own[1], default=(None, math.inf))
    return (best if loss < math.inf else None), loss
