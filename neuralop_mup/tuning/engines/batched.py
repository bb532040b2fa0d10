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
from neuralop_mup.tuning.engines.local import local_engine

__all__ = ["BatchedEngine", "batched_engine"]

AT_ONCE = 24
#: glibc gives large blocks back to the system after each use, and the next step would pay for fresh pages.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


class BatchedEngine:
    """Collects runs and hands groups of them to an engine of workers.

    Parameters
    ----------
    inner : Engine
        Where groups are executed: one at a time in each of its workers.
    train : object
        The study's train function, with ``group(config)``, equal for runs that may be trained together, and
        ``many({"configs": …, "measure": …})``.
    at_once : int
        Runs of a group at most.
    measure : bool
        Whether each group times first what is faster, together or one by one.

    Raises
    ------
    MupError
        If the train function knows no groups.
    """

    loses_together = True  # a run that kills its process is found by running each one of its group by itself

    def __init__(self, inner: Any, train: Any, at_once: int = AT_ONCE, measure: bool = True) -> None:
        if not (hasattr(train, "many") and hasattr(train, "group")):
            raise MupError(
                f"The train function {train!r} trains one run at a time, so its runs cannot be batched: take the engine "
                "'local', or nm.tune(…, engine='batched'), which trains your model on your data."
            )
        self._inner, self._train, self._many = inner, None, None
        self._at_once, self._measure = at_once, measure
        self.capacity, self.workers = inner.capacity * at_once, inner.capacity
        self._waiting: list[tuple[str, dict, Future]] = []
        self._running: list[Future] = []
        self._told: set[str] = set()
        self._sharing = threading.Lock()

    def submit(self, train: Callable[[dict], Any], config: Mapping[str, Any]) -> Future:
        """Keep a run until :meth:`flush`."""
        if train is not self._train:
            self._train, self._many = train, train.many
        future: Future = Future()
        self._waiting.append((train.group(config), dict(config), future))
        return future

    def flush(self, pending: Iterable[Future]) -> None:
        """Start groups on the workers that are free: each gets its share of the runs that fit together.

        Parameters
        ----------
        pending : iterable of Future
            The runs whose results were not taken yet. While one of them has ended nothing is started: others of its group
            have ended with it, and what follows them should be of one group, too.
        """
        with self._sharing:
            if any(future.done() for future in pending):
                return
        self._running = [future for future in self._running if not future.done()]
        while self._waiting and (free := self._inner.capacity - len(self._running)) > 0:
            key = self._waiting[0][0]
            alike = [item for item in self._waiting if item[0] == key]
            group = alike[: min(self._at_once, math.ceil(len(alike) / free))]
            self._waiting = [item for item in self._waiting if item not in group]
            configs, futures = [item[1] for item in group], [item[2] for item in group]
            if len(group) == 1:
                running = self._inner.submit(self._train, configs[0])
                running.add_done_callback(partial(_pass_on, futures[0]))
            else:
                running = self._inner.submit(self._many, {"configs": configs, "measure": self._measure})
                running.add_done_callback(partial(self._share_out, futures))
            if not running.done():
                self._running.append(running)

    def _share_out(self, futures: Sequence[Future], group: Future) -> None:
        error = RuntimeError("it was cancelled") if group.cancelled() else group.exception()
        if error is None:
            outcome, _ = group.result()
            if outcome["error"] is None:
                with self._sharing:
                    for future, (end, trace) in zip(futures, outcome["metrics"]["ends"], strict=True):
                        future.set_result((end, trace))
                for note in set(outcome["metrics"]["notes"]) - self._told:
                    self._told.add(note)
                    warnings.warn(note, stacklevel=2)
                return
            error = RuntimeError(f"its group failed: {outcome['error']}")
        for future in futures:
            future.set_exception(error)

    def check(self) -> None:
        """Let the workers be looked after."""
        self._inner.check()

    def close(self) -> None:
        """Stop everything that runs."""
        self._inner.close()


def _pass_on(future: Future, inner: Future) -> None:
    error = RuntimeError("it was cancelled") if inner.cancelled() else inner.exception()
    if error is None:
        future.set_result(inner.result())
    else:
        future.set_exception(error)


def batched_engine(
    train: Any,
    fixed: Any,
    n_workers: int | None,
    n_runs: int,
    *,
    devices: Sequence[str] = (),
    at_once: int = AT_ONCE,
    measure: bool = True,
) -> BatchedEngine:
    """Worker processes on this machine that train groups of runs; arguments as for :func:`local_engine`."""
    inner = local_engine(train, fixed, n_workers, n_runs, devices, _KEEP_MEMORY)
    return BatchedEngine(inner, train, at_once, measure)
