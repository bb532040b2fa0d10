"""Runs that differ in numbers only, trained together: groups of them are handed to another engine as one run each."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.tuning.space import params_key

__all__ = ["BatchedEngine", "LostTogether", "can_batch"]

#: Runs of a group at most. More gain little on a CPU, the results of a group come all at once, when it ends, and a sampler
#: learns nothing from runs under way.
AT_ONCE = 8
ON_GPU = 24
#: glibc gives large blocks back to the system after each use, and the next step would pay for fresh pages.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32)}

_Item = tuple[str, dict, Future]  # a run's group, its configuration, and what will be its result


class LostTogether(RuntimeError):
    """A run was lost with others of its group, of which any may be to blame."""


def can_batch(train: Any) -> bool:
    """Whether a train function can train several runs at once."""
    return hasattr(train, "many") and hasattr(train, "group")


class BatchedEngine:
    """Collects runs and hands groups of them to an engine of workers.

    How many runs of a kind are worth training at once is found by the first group of it; the others keep to that. Where it
    is one, runs are handed over one by one.

    Parameters
    ----------
    inner : Engine
        Where groups are executed: one at a time in each of its workers.
    train : object
        The study's train function, with ``group(config)``, equal for runs that may be trained together, and
        ``many({"configs": …, "at_once": …, "measure": …, "workers": …})``. That trains the first of these runs as one
        program and returns ``"ends"``, None for those that it left, ``"at_once"``, how many there should be in a program
        (None: not known), and ``"notes"``.
    at_once : int
        Runs of a group at most.
    measure : bool
        Whether it is timed what is faster, together or one by one.

    Attributes
    ----------
    note : callable
        Told in sentences how runs are trained.

    Raises
    ------
    MupError
        If the train function knows no groups.
    """

    loses_together = False  # of runs that died in one program, the driver is told LostTogether

    def __init__(self, inner: Any, train: Any, at_once: int = AT_ONCE, measure: bool = True) -> None:
        if not can_batch(train):
            raise MupError(
                f"The train function {train!r} trains one run at a time, so its runs cannot be batched: take the engine "
                "'local', or nm.tune(…, engine='batched'), which trains your model on your data."
            )
        self._inner, self._train, self._many = inner, None, None
        self._most, self._measure = at_once, measure
        self.capacity, self.workers = inner.capacity * at_once, inner.capacity
        self.note: Callable[[str], Any] = warnings.warn
        self._waiting: list[_Item] = []
        self._running: list[Future] = []
        self._at_once: dict[str, int] = {}  # by group, where it is known
        self._apart: set[str] = set()  # runs whose group died: each goes by itself from then on
        self._told: set[str] = set()
        self._lock = threading.Lock()  # results come in threads of the inner engine

    def submit(self, train: Callable[[dict], Any], config: Mapping[str, Any]) -> Future:
        """Keep a run until :meth:`flush`."""
        if train is not self._train:
            self._train, self._many = train, train.many
        future: Future = Future()
        key, own = train.group(config), params_key(config)
        with self._lock:
            self._waiting.append((f"{key} {own}" if own in self._apart else key, dict(config), future))
        return future

    def withdraw(self, future: Future) -> bool:
        """Drop a run that was not handed over yet; whether it was so."""
        with self._lock:
            kept = [item for item in self._waiting if item[2] is not future]
            found, self._waiting = len(kept) < len(self._waiting), kept
        return found

    def flush(self, pending: Iterable[Future]) -> None:
        """Start groups on the workers that are free: each gets its share of the runs that fit together.

        Parameters
        ----------
        pending : iterable of Future
            The runs whose results were not taken yet. While one of them has ended nothing is started: others of its group
            have ended with it, and what follows them should be of one group, too.
        """
        while group := self._next(pending):
            key, configs = group[0][0], [config for _, config, _ in group]
            asked = {"at_once": self._at_once.get(key), "measure": self._measure, "workers": self.workers}
            running = self._inner.submit(self._many, {"configs": configs, **asked})
            running.add_done_callback(partial(self._share_out, group))
            if not running.done():
                self._running.append(running)

    def _next(self, pending: Iterable[Future]) -> list[_Item]:
        """What a free worker should begin with."""
        with self._lock:
            self._running = [future for future in self._running if not future.done()]
            free = self._inner.capacity - len(self._running)
            if not self._waiting or free < 1 or any(future.done() for future in pending):
                return []
            key = self._waiting[0][0]
            alike = [item for item in self._waiting if item[0] == key]
            group = alike[: min(self._most, self._at_once.get(key, self._most), math.ceil(len(alike) / free))]
            taken = {future for *_, future in group}
            self._waiting = [item for item in self._waiting if item[2] not in taken]
            return group

    def _share_out(self, group: Sequence[_Item], running: Future) -> None:
        error = RuntimeError("it was cancelled") if running.cancelled() else running.exception()
        outcome, trace = (None, None) if error is not None else running.result()
        notes: list[str] = []
        with self._lock:
            if error is None and outcome["error"] is None:
                notes = self._take(group, outcome["metrics"])
            elif error is None and len(group) == 1:
                group[0][2].set_result((outcome, trace))
            else:
                if len(group) > 1 and not isinstance(error, MupError):
                    self._apart.update(params_key(config) for _, config, _ in group)
                    error = LostTogether(f"{len(group)} trained as one: {error or outcome['error']}")
                for *_, future in group:
                    future.set_exception(error)
        for note in notes:
            self.note(note)

    def _take(self, group: Sequence[_Item], found: Mapping[str, Any]) -> list[str]:
        """Keep what a group found; the notes that are new."""
        if found["at_once"] is not None:
            self._at_once[group[0][0]] = found["at_once"]
        ended = list(zip(group, found["ends"], strict=True))
        self._waiting[:0] = [item for item, end in ended if end is None]
        for (*_, future), end in ended:
            if end is not None:
                future.set_result(tuple(end))
        notes = [note for note in found["notes"] if note not in self._told]
        self._told.update(notes)
        return notes

    def check(self) -> None:
        """Let the workers be looked after."""
        self._inner.check()

    def close(self) -> None:
        """Stop everything that runs."""
        self._inner.close()
