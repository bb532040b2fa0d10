"""Where runs are executed: in this process, in worker processes, on any ``concurrent.futures.Executor``, on Ray; batched:
several as one program.

An engine is small: how many runs it takes at once, ``submit(train, config)`` that gives a ``Future`` of
``execute``'s result, and ``close``. A future that raises means that the run was lost with
its process; the driver tries it once more. Planning and writing are the driver's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.tuning.engines.batched import AT_ONCE, BatchedEngine, LostTogether, batched_engine
from neuralop_mup.tuning.engines.executor import ExecutorEngine
from neuralop_mup.tuning.engines.local import InlineEngine, LocalEngine, local_engine
from neuralop_mup.tuning.engines.ray import RayEngine

__all__ = [
    "BatchedEngine",
    "Engine",
    "ExecutorEngine",
    "InlineEngine",
    "LocalEngine",
    "LostTogether",
    "RayEngine",
    "make_engine",
]


class Engine(Protocol):
    """What the driver needs of the place where runs are executed.

    Attributes
    ----------
    capacity : int
        Runs at once.
    loses_together : bool
        Whether one dead process takes the other runs along, so that none of them can be blamed.
    """

    capacity: int
    loses_together: bool

    def submit(self, train: Callable[[dict], Any], config: Mapping[str, Any]) -> Future:
        """Execute one run; the future gives ``(outcome, traceback)``."""
        ...

    def check(self) -> None:
        """Called now and then while no run ends."""
        ...

    def close(self) -> None:
        """Stop everything that runs."""
        ...


def make_engine(
    engine: str | Engine | None,
    executor: Any,
    train: Callable[[dict], Any],
    fixed: Any,
    n_workers: int | None,
    n_runs: int,
    devices: Sequence[str] = (),
    at_once: int = AT_ONCE,
) -> Engine:
    """The engine that the arguments ask for.

    Parameters
    ----------
    engine : {"local", "ray", "batched", "auto"} or Engine, optional
        "batched" and "auto" are for train functions that can train several runs at once, as those of
        :func:`neuralop_mup.tune` and of the command line; "auto" times whether that is faster.
    executor : concurrent.futures.Executor or callable, optional
        An executor, or a function that makes one, so that it can be replaced when a worker's death breaks it.
    train, fixed
        What is sent to other processes; checked here.
    n_workers : int, optional
    n_runs : int
        No more workers than runs are started.
    devices : sequence of str
        CUDA devices, one for each worker of this machine.
    at_once : int
        Runs trained together at most.

    Raises
    ------
    MupError
        For arguments that cannot work.
    """
    if not callable(train):
        raise MupError(f"train is {train!r}; give a function that takes a config dict and returns a loss.")
    if n_workers is not None and (not isinstance(n_workers, int) or isinstance(n_workers, bool) or n_workers < 1):
        raise MupError(f"n_workers={n_workers!r} must be a positive integer, or None for one per core.")
    if executor is not None:
        if engine is not None:
            raise MupError("engine and executor are two ways to say where runs are executed; give one of them.")
        return ExecutorEngine(executor, n_workers)
    if engine == "ray":
        return RayEngine(n_workers=n_workers)
    if engine in ("batched", "auto"):
        return batched_engine(train, fixed, n_workers, n_runs, devices, at_once, measure=engine == "auto")
    if isinstance(engine, str) and engine != "local":
        raise MupError(f"There is no engine {engine!r}; {nearest(engine, ('local', 'ray', 'batched', 'auto'))}")
    if engine is not None and engine != "local":
        return engine
    return local_engine(train, fixed, n_workers, n_runs, devices)
