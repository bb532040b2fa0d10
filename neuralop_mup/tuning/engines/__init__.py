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
from neuralop_mup.tuning.engines.batched import AT_ONCE, KEEP_MEMORY, ON_GPU, BatchedEngine, LostTogether, can_batch
from neuralop_mup.tuning.engines.executor import ExecutorEngine
from neuralop_mup.tuning.engines.local import InlineEngine, LocalEngine, local_engine
from neuralop_mup.tuning.engines.ray import RayEngine
from neuralop_mup.tuning.study import Study

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
    study: Study,
    n_workers: int | None = None,
    devices: Sequence[str] = (),
    one_by_one: bool = False,
) -> Engine:
    """The engine that the arguments ask for.

    Without ``engine``, runs that can be trained together are so where that is timed to be faster ("auto"). But not where
    somebody decided otherwise (``n_workers``, ``executor``), on a GPU, for which it is not proven, or where results must
    come one after the other: a pruner compares a run with finished ones, and a sampler learns nothing from runs under way.

    Parameters
    ----------
    engine : {"local", "ray", "batched", "auto"} or Engine, optional
        "batched" and "auto" are for train functions that can train several runs at once, as those of
        :func:`neuralop_mup.tune` and of the command line; "auto" times whether that is faster.
    executor : concurrent.futures.Executor or callable, optional
        An executor, or a function that makes one, so that it can be replaced when a worker's death breaks it.
    train, study
        What is sent to other processes is checked here. No more workers are started than there are runs.
    n_workers : int, optional
    devices : sequence of str
        CUDA devices, one for each worker of this machine.
    one_by_one : bool
        Whether results must come one after the other.

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
    on_gpu = bool(devices) or str(study.fixed.get("device")).startswith("cuda")
    if engine is n_workers is None and can_batch(train) and not (one_by_one or study.search or on_gpu):
        engine = "auto"
    if engine == "ray":
        return RayEngine(n_workers=n_workers)
    if engine not in (None, "local", "batched", "auto"):
        if isinstance(engine, str):
            raise MupError(f"There is no engine {engine!r}; {nearest(engine, ('local', 'ray', 'batched', 'auto'))}")
        return engine
    many = engine in ("batched", "auto")
    inner = local_engine(train, study, n_workers, devices, KEEP_MEMORY if many else None)
    if not many:
        return inner
    return BatchedEngine(inner, train, ON_GPU if on_gpu and not study.search else AT_ONCE, measure=engine == "auto")
