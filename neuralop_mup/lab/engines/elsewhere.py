"""Runs elsewhere: on any ``concurrent.futures.Executor`` of processes (loky's, Dask's ``client.get_executor()``, mpi4py's,
…), and as tasks on a Ray cluster.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.validation import check_number

__all__ = ["ExecutorEngine", "RayEngine"]


class ExecutorEngine:
    """An executor of the user's own. It is left open at the end, unless a function made it.

    Parameters
    ----------
    executor : concurrent.futures.Executor or callable
        An executor, or a function without arguments that makes one. Pools of processes break as a whole when one of them
        dies (loky's, the standard library's); only what a function makes can then be replaced.
    n_workers : int, optional
        Runs at once: as many as the executor has workers. Default: one per core of this machine.

    Raises
    ------
    MupError
        If it is no executor, or one of threads.

    Examples
    --------
    >>> from concurrent.futures import ProcessPoolExecutor
    >>> from neuralop_mup.lab.engines import ExecutorEngine
    >>> engine = ExecutorEngine(lambda: ProcessPoolExecutor(2), n_workers=2)
    >>> engine.capacity
    2
    >>> engine.close()
    """

    loses_together = True

    def __init__(self, executor: Executor | Callable[[], Executor], n_workers: int | None = None) -> None:
        self._make = None if hasattr(executor, "submit") and not isinstance(executor, type) else executor
        if self._make is not None and not callable(executor):
            raise MupError(f"executor={executor!r} is no concurrent.futures.Executor, and no function that makes one.")
        self._executor = executor if self._make is None else self._make()
        if isinstance(self._executor, ThreadPoolExecutor):
            raise MupError(
                "executor= is a pool of threads, in which runs would draw from each other's random numbers: give one of "
                "processes, or leave it out, and each run has a process of its own."
            )
        self.capacity = n_workers or os.cpu_count() or 1

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Call the function there; a broken executor is made anew if that is possible."""
        try:
            return self._executor.submit(function, *args, **kwargs)
        except (BrokenExecutor, RuntimeError) as error:
            if self._make is None:
                why = str(error).partition("\n")[0]
                raise MupError(
                    f"The executor takes no more runs ({type(error).__name__}: {why}): a process of it was killed, or it "
                    "was shut down. Finished runs are kept: give the same command a new executor, or a function that makes "
                    "one (executor=lambda: …), which is called again whenever it breaks."
                ) from error
            self._executor = self._make()
            return self._executor.submit(function, *args, **kwargs)

    def close(self) -> None:
        """End what a function made; the user's own executor is left open, and what it has begun runs to its end unread."""
        if self._make is not None:
            self._executor.shutdown(wait=False)


class RayEngine:
    """One Ray task a run: Ray places it on a node and GPU, and tries it again when the node dies.

    Parameters
    ----------
    address : str, optional
        Of a running cluster (``"auto"``, ``"ray://host:10001"``); by default one is started on this machine.
    n_workers : int, optional
        Runs at once at most; by default as many as the cluster has room for, looked up anew before each run.
    cpus, gpus : float, default 1, 0
        What a run asks for; half a GPU puts two runs on one.
    retries : int, default 3
        How many times Ray tries a run again whose process or node died.

    Raises
    ------
    MupError
        Without the package ray, if the cluster does not answer, or if a run asks for nothing.

    Examples
    --------
    >>> from neuralop_mup.lab.engines import RayEngine
    >>> engine = RayEngine(address="auto", gpus=0.5)  # doctest: +SKIP
    >>> nm.sweep(train, {"lr": [0.25, 0.5]}, engine=engine, folder="runs")  # doctest: +SKIP
    """

    loses_together = False

    def __init__(
        self, address: str | None = None, n_workers: int | None = None, cpus: float = 1, gpus: float = 0, retries: int = 3
    ) -> None:
        for what, number in (("cpus", cpus), ("gpus", gpus)):
            check_number(what, number)
        if not cpus and not gpus:
            raise MupError("cpus and gpus are both 0, so that any number of runs would have room: give one of them.")
        try:
            import ray
        except ImportError:
            raise MupError("The engine ray needs the package ray: pip install 'neuralop-mup[ray]'.") from None
        self._ray, self._most, self._needs = ray, n_workers, {"CPU": cpus, "GPU": gpus}
        self._started = not ray.is_initialized()
        if self._started:
            try:
                ray.init(address=address, logging_level=logging.WARNING, log_to_driver=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise MupError(f"No Ray cluster answers at {address!r}: {error}") from error
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": retries, "retry_exceptions": False}
        self._task = ray.remote(lambda function, args, kwargs: function(*args, **kwargs)).options(**options)
        self._refs: set[Any] = set()
        if not self.capacity:
            raise MupError(f"The Ray cluster has no node with {cpus:g} CPUs and {gpus:g} GPUs for a run.")

    @property
    def capacity(self) -> int:
        """Runs that the cluster has room for at present."""
        has = self._ray.cluster_resources()
        room = min(int(has.get(name, 0) // need) for name, need in self._needs.items() if need)
        return min(room, self._most) if self._most else room

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Send one run to the cluster."""
        ref = self._task.remote(function, args, kwargs)
        self._refs.add(ref)
        future = ref.future()
        future.add_done_callback(lambda _: self._refs.discard(ref))
        return future

    def close(self) -> None:
        """Cancel what still runs, and end a cluster that was started here."""
        for ref in list(self._refs):
            self._ray.cancel(ref, force=True)
        if self._started:
            self._ray.shutdown()
