"""Runs on any ``concurrent.futures.Executor``: loky's, Dask's ``client.get_executor()``, mpi4py's, …"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

from neuralop_mup import _version
from neuralop_mup.errors import MupError
from neuralop_mup.tuning.outcome import execute_elsewhere

__all__ = ["ExecutorEngine"]


class ExecutorEngine:
    """An executor of the user's own. It is left open at the end, unless a function made it.

    Parameters
    ----------
    executor : concurrent.futures.Executor or callable
        An executor, or a function without arguments that makes one. Pools of processes break as a whole when one of them
        dies (loky's, the standard library's); only what a function makes can then be replaced.
    n_workers : int, optional
        Runs at once: as many as the executor has workers. Default: one per core of this machine.
    """

    loses_together = True

    def __init__(self, executor: Executor | Callable[[], Executor], n_workers: int | None = None) -> None:
        self._make = None if hasattr(executor, "submit") else executor
        if self._make is not None and not callable(executor):
            raise MupError(f"executor={executor!r} is no concurrent.futures.Executor, and no function that makes one.")
        self._executor = executor if self._make is None else self._make()
        self.capacity = n_workers or os.cpu_count() or 1

    def submit(self, train: Callable[[dict], Any], config: Mapping[str, Any]) -> Future:
        """Execute one run there; a broken executor is made anew if that is possible."""
        try:
            return self._executor.submit(execute_elsewhere, _version.__version__, train, dict(config))
        except (BrokenExecutor, RuntimeError) as error:
            if self._make is None:
                why = str(error).partition("\n")[0]
                raise MupError(
                    f"The executor takes no more runs ({type(error).__name__}: {why}): a process of it was killed, or it "
                    "was shut down. Finished runs are kept: give the same command a new executor, or a function that makes "
                    "one (executor=lambda: …), which is called again whenever it breaks."
                ) from error
            self._executor = self._make()
            return self._executor.submit(execute_elsewhere, _version.__version__, train, dict(config))

    def check(self) -> None:
        """The executor looks after itself."""

    def close(self) -> None:
        """End what a function made; the user's own executor is left open, and what it has begun runs to its end unread."""
        if self._make is not None:
            self._executor.shutdown(wait=False)
