"""Where runs are executed: in this process, in processes of their own, or on any executor of processes.

An engine has ``capacity`` (runs at once), ``submit(function, *args)``, which returns a ``Future``, and ``close``. If a
future raises, the run was lost with its process, and the loop tries it once more.
"""

import functools
import logging
import multiprocessing
import os
import pickle
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from neuralop_mup.errors import MupError
from neuralop_mup.validation import check_count

_STARTS = 4  # attempts to start a process that is killed before its run begins
#: Modules that the parent of the processes loads: importing torch takes seconds, and a first model on "meta" does, too.
_LOADED = ["neuralop_mup.lab.training", "torch._dynamo"]


class InlineEngine:
    """One run at a time, in this process and with its thread settings. Other engines have the same members.

    Attributes
    ----------
    capacity : int
        Runs at once.

    Examples
    --------
    An engine that prints a line for each run:

    >>> import neuralop_mup as nm
    >>> from neuralop_mup.lab.engines import InlineEngine
    >>> class Here(InlineEngine):
    ...     def submit(self, function, /, *args, **kwargs):
    ...         print("one more run")
    ...         return super().submit(function, *args, **kwargs)
    >>> how = {"engine": Here(), "folder": "runs", "progress": False}
    >>> nm.sweep(lambda config: config["lr"] ** 2, {"lr": [0.25, 0.5]}, **how).best
    one more run
    one more run
    {'lr': 0.25}
    """

    capacity = 1

    def __init__(self, note: str = "") -> None:
        self.note = note  # the reason why there are no processes, for the user

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Execute one run. The future returns the function's result, or raises if its process ended."""
        future: Future = Future()
        future.set_result(function(*args, **kwargs))
        return future

    def close(self) -> None:
        """Stop all runs."""


class LocalEngine:
    """A new process for each run, so that a killed process ends only its own run.

    On Linux, processes are forked from one that has torch loaded.

    Parameters
    ----------
    capacity : int
        Runs at once. They share the cores: each has ``cores // capacity`` threads.
    devices : sequence of str, default ()
        CUDA devices, assigned in turn. A run sees only one of them, as cuda:0.

    Raises
    ------
    MupError
        If processes cannot be started from this program.

    Examples
    --------
    >>> from neuralop_mup.lab.engines import LocalEngine
    >>> engine = LocalEngine(2)
    >>> engine.capacity
    2
    >>> engine.close()
    """

    def __init__(self, capacity: int, devices: Sequence[str] = ()) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise MupError(
                "A worker process imported this script and reached the same call. Put the call under "
                "`if __name__ == '__main__':`, or pass n_workers=1."
            )
        # On other systems, forking a process that has loaded torch is unsafe or impossible.
        self._context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            self._context.set_forkserver_preload(_LOADED)
        self.capacity = capacity
        self._threads = max(1, cores() // capacity)
        self._free = [{"CUDA_VISIBLE_DEVICES": devices[i % len(devices)]} if devices else {} for i in range(capacity)]
        self._watching = ThreadPoolExecutor(capacity)
        self._there, self._here = self._context.Pipe(duplex=False)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Call the function in a new process."""
        return self._watching.submit(self._call, functools.partial(function, *args, **kwargs))

    def _call(self, function: Callable[[], Any]) -> Any:
        own = self._free.pop(0)
        try:
            for _ in range(_STARTS):
                answers, sending = self._context.Pipe(duplex=False)
                # A forked process has the environment of its parent.
                sent = {**os.environ, **own}, self._threads, self._there, sending, function
                process = self._context.Process(target=_train, args=sent)
                process.start()
                sending.close()  # so that reading ends with the process, also in the middle of an answer
                begun = False
                try:
                    begun = answers.recv()
                    answer = answers.recv()
                except (EOFError, OSError):
                    if begun:
                        raise RuntimeError("its process was terminated abruptly") from None
                    continue  # killed before its run began, which the run did not cause
                finally:
                    answers.close()
                    process.join()
                if isinstance(answer, Exception):
                    raise answer
                return answer
        finally:
            self._free.append(own)
        raise MupError(
            "The worker processes cannot start: each ended before its first run (see above). Define the train function at "
            "module level of a file that can be imported, call this under `if __name__ == '__main__':`, or pass n_workers=1."
        )

    def close(self) -> None:
        """End every process."""
        self._here.close()
        self._watching.shutdown(wait=False)


def _train(environment: Mapping[str, str], threads: int, engine: Any, sending: Any, function: Callable[[], Any]) -> None:
    """The main function of a process: report that the run begins, and send what the function returned or raised."""
    # Ctrl-C reaches the whole process group; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(engine,), daemon=True).start()
    os.environ.update(environment)
    torch.set_num_threads(threads)
    sending.send(True)
    try:
        answer = function()
    except Exception as error:
        answer = error
    sending.send(answer)


def _end_with(engine: Any) -> None:
    """End this process when the engine is closed or its process has ended: only the engine has the other end of the pipe."""
    engine.poll(None)
    os._exit(1)


def _not_sent(train: Any) -> str:
    """Return the reason why a train function cannot be sent to other processes; empty if it can."""
    main = sys.modules["__main__"]
    file = "" if getattr(main, "__spec__", None) else getattr(main, "__file__", None)
    if file and not os.path.exists(file):  # each process would print a traceback
        return f"this program was read from {file}, which they cannot import"
    try:
        sent = bytes(ForkingPickler.dumps(getattr(train, "parts", train)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return str(error)
    return "it stands in a notebook or a session, which they cannot import" if file is None and b"__main__" in sent else ""


class ExecutorEngine:
    """An executor of the user (loky, Dask, mpi4py, …). It stays open at the end, unless a function made it.

    Parameters
    ----------
    executor : concurrent.futures.Executor, callable or str
        An executor, or a function without arguments that makes one, or where it is found: ``"package.module.name"``. Pools
        of processes (loky, the standard library) break as a whole when one process dies. Only an executor that a function
        makes can then be replaced.
    n_workers : int, optional
        Runs at once: the number of workers of the executor. Default: one per core of this machine.

    Raises
    ------
    MupError
        If ``executor`` is not an executor.

    Examples
    --------
    >>> from concurrent.futures import ProcessPoolExecutor
    >>> from neuralop_mup.lab.engines import ExecutorEngine
    >>> engine = ExecutorEngine(lambda: ProcessPoolExecutor(2), n_workers=2)
    >>> engine.capacity
    2
    >>> engine.close()
    """

    def __init__(self, executor: Any, n_workers: int | None = None) -> None:
        with suppress(ImportError, AttributeError, ValueError):
            executor = pkgutil.resolve_name(executor) if isinstance(executor, str) else executor
        self._make = None if hasattr(executor, "submit") and not isinstance(executor, type) else executor
        if self._make is not None and not callable(executor):
            raise MupError(f"executor={executor!r} is not a concurrent.futures.Executor, nor a function that returns one.")
        self.executor = executor if self._make is None else self._make()
        self.capacity = n_workers or getattr(self.executor, "room", cores())

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Call the function in the executor; replace a broken executor if possible."""
        try:
            return self.executor.submit(function, *args, **kwargs)
        except (BrokenExecutor, RuntimeError) as error:
            if self._make is None:
                why = str(error).partition("\n")[0]
                raise MupError(
                    f"The executor accepts no more runs ({type(error).__name__}: {why}): one of its processes was killed, "
                    "or it was shut down. Finished runs are kept. Pass a new executor to the same call, or a function that "
                    "makes one (executor=lambda: …), which is called again whenever it breaks."
                ) from error
            self.executor = self._make()
            return self.executor.submit(function, *args, **kwargs)

    def close(self) -> None:
        """Shut down an executor that a function made. The user's executor stays open, and finishes the runs in progress."""
        if self._make is not None:
            self.executor.shutdown(wait=False)


class RayExecutor(Executor):
    """Executor with one Ray task per run, which has a GPU of its own if the cluster has any.

    It uses the cluster of this program, or that of ``RAY_ADDRESS``, or starts one on this machine. Ray repeats a task if its
    node fails. Pass ``executor=RayExecutor()``, or on the command line ``--executor neuralop_mup.lab.engines.RayExecutor``.

    Raises
    ------
    MupError
        Without the package ray.
    """

    def __init__(self) -> None:
        try:
            import ray
        except ImportError:
            raise MupError("RayExecutor needs the package ray: pip install ray.") from None
        self._ray = ray
        self._started = not ray.is_initialized()
        if self._started:
            ray.init(logging_level=logging.WARNING, log_to_driver=False)
        has = ray.cluster_resources()
        self.room = int(has.get("GPU", 0) or has.get("CPU", 0)) or 1
        task = ray.remote(lambda function, args, kwargs: function(*args, **kwargs))
        self._task = task.options(num_cpus=1, num_gpus=min(1, has.get("GPU", 0)), max_retries=3, retry_exceptions=False)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Send one run to the cluster."""
        return self._task.remote(function, args, kwargs).future()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop a cluster that was started here. Another cluster finishes the runs in progress."""
        if self._started:
            self._ray.shutdown()


def make_engine(
    engine: Any,
    executor: Any,
    train: Callable[..., Any],
    runs: int,
    n_workers: int | None = None,
    devices: Sequence[str] = (),
) -> Any:
    """Return the engine for these arguments.

    Parameters
    ----------
    engine : object like InlineEngine, optional
    executor : concurrent.futures.Executor or callable, optional
        An executor, or a function that makes one, so that it can be replaced when a worker's death breaks it.
    train : callable
        The train function. If other processes call it, check that it can be sent to them.
    runs : int
        The number of runs; there are no more processes than that.
    n_workers : int, optional
        Runs at once. With 1, they are executed in this process. Default: one per device or core, or 1 if ``train`` cannot be
        sent to other processes.
    devices : sequence of str
        CUDA devices, one for each run on this machine.

    Raises
    ------
    MupError
        If the arguments cannot work.
    """
    if not callable(train):
        raise MupError(f"train is {train!r}; pass a function that takes a config dict and returns a loss.")
    if n_workers is not None:
        check_count("n_workers", n_workers)
    if isinstance(engine, str) or (executor is not None and engine is not None):
        raise MupError(f"engine={engine!r} cannot be used: pass only executor, such as executor=RayExecutor().")
    if engine is not None:
        return engine
    if executor is not None:
        made: Any = ExecutorEngine(executor, n_workers)
        sends = isinstance(made.executor, ProcessPoolExecutor)  # others have their own ways to send what pickle cannot
    else:
        size = max(1, min(n_workers or len(devices) or cores(), runs))
        if n_workers == 1 or (size == 1 and len(devices) < 2):
            return InlineEngine()
        made, sends = LocalEngine(size, devices), True
    why = _not_sent(train) if sends else ""
    if why and n_workers is executor is None:
        return InlineEngine(f"runs are trained one by one, because the train function cannot be sent to processes: {why}")
    if why:
        raise MupError(
            f"The train function cannot be sent to worker processes ({why}). Define it at module level of a file, or pass "
            "n_workers=1."
        )
    return made


def cores() -> int:
    """Return the number of cores that this process may use; a job or a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cuda_devices(device: str = "cuda") -> list[str]:
    """Return the CUDA devices of this process, by their names in ``CUDA_VISIBLE_DEVICES``.

    There are none without CUDA, or if ``device`` names a single one or the CPU.
    """
    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    known = [name.strip() for name in chosen.split(",")] if chosen else list(map(str, range(torch.cuda.device_count())))
    return known[: torch.cuda.device_count()]
