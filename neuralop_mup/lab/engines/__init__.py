"""Where runs are executed: in this process, in processes of their own, on any executor of processes, on Ray.

An engine is small: how many runs it takes at once, ``submit(function, *args)`` that gives a ``Future``, and ``close``. A
future that raises means that the run was lost with its process; the loop tries it once more. Planning and writing are the
loop's alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.engines.elsewhere import ExecutorEngine, RayEngine
from neuralop_mup.lab.engines.local import InlineEngine, LocalEngine, cuda_devices

__all__ = [
    "Engine",
    "ExecutorEngine",
    "InlineEngine",
    "LocalEngine",
    "RayEngine",
    "cuda_devices",
    "make_engine",
]


class Engine(Protocol):
    """What the loop needs of the place where runs are executed.

    Attributes
    ----------
    capacity : int
        Runs at once.
    loses_together : bool
        Whether one dead process takes the other runs along, so that none of them can be blamed.

    Examples
    --------
    An engine of one's own, which executes runs one by one:

    >>> from concurrent.futures import Future
    >>> import neuralop_mup as nm
    >>> class Here:
    ...     capacity, loses_together = 1, False
    ...     def submit(self, function, /, *args, **kwargs):
    ...         future = Future()
    ...         future.set_result(function(*args, **kwargs))
    ...         return future
    ...     def close(self):
    ...         pass
    >>> how = {"engine": Here(), "folder": "runs", "progress": False}
    >>> nm.sweep(lambda config: config["lr"] ** 2, {"lr": [0.25, 0.5]}, **how).best
    {'lr': 0.25}
    """

    capacity: int
    loses_together: bool

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Execute one run; the future gives what the function returns, or raises if its process ended."""
        ...

    def close(self) -> None:
        """Stop everything that runs."""
        ...


def make_engine(
    engine: str | Engine | None,
    executor: Any,
    train: Callable[..., Any],
    runs: int,
    n_workers: int | None = None,
    devices: Sequence[str] = (),
) -> Engine:
    """The engine that the arguments ask for.

    Parameters
    ----------
    engine : {"local", "ray"} or Engine, optional
    executor : concurrent.futures.Executor or callable, optional
        An executor, or a function that makes one, so that it can be replaced when a worker's death breaks it.
    train : callable
        Checked here where it is to be sent to other processes.
    runs : int
        No more processes are started than there are runs.
    n_workers : int, optional
        Runs at once; with 1 they are executed in this process.
    devices : sequence of str
        CUDA devices, one for each run of this machine.

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
    if engine not in (None, "local"):
        if isinstance(engine, str):
            raise MupError(f"There is no engine {engine!r}; {nearest(engine, ('local', 'ray'))}")
        return engine
    size = max(1, min(n_workers or len(devices) or os.cpu_count() or 1, runs))
    if size == 1 and len(devices) < 2:
        return InlineEngine()
    made = LocalEngine(size, devices)
    made.check(train)
    return made
