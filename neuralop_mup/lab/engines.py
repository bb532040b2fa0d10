"""Engines execute runs in this process, in a new process per run, or on any process-based executor.

An engine has ``capacity`` (the number of concurrent runs), ``submit(function, *args)``, which returns a ``Future``, and
``close``. If a future raises an error, the process of the run has ended, and the run is repeated once.
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

_LOG = logging.getLogger(__name__)

_STARTS = 4  # maximum number of attempts to start a process that is killed before its run begins
#: Modules that the parent process imports, since importing torch and building the first model on "meta" takes seconds.
_LOADED = ["neuralop_mup.lab.training", "torch._dynamo"]


class InlineEngine:
    """Execute one run at a time, in this process and with its thread settings. Other engines have the same members.

    Attributes
    ----------
    capacity : int
        Number of concurrent runs.

    Examples
    --------
    Define an engine that prints a line for each run:

    >>> import neuralop_mup as nm
    >>> from neuralop_mup.lab.engines import InlineEngine
    >>> class Here(InlineEngine):
    ...     def submit(self, function, /, *args, **kwargs):
    ...         print("one more run")
    ...         return super().submit(function, *args, **kwargs)
    >>> how = {"executor": Here(), "folder": "runs", "progress": False}
    >>> nm.sweep(lambda config: config["lr"] ** 2, {"lr": [0.25, 0.5]}, **how).best
    one more run
    one more run
    {'lr': 0.25}
    """

    capacity = 1

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Execute one run. The future returns the result of the function, or raises an error if its process ended."""
        future: Future = Future()
        future.set_result(function(*args, **kwargs))
        return future

    def close(self) -> None:
        """Stop all runs."""


class LocalEngine:
    """Start a new process for each run, so that a killed process ends only its own run.

    On Linux, these processes are forked from a process that has already imported torch.

    Parameters
    ----------
    capacity : int
        Number of concurrent runs. They share the cores: each run uses ``cores // capacity`` threads.
    devices : sequence of str, default ()
        CUDA devices. Each run can access only one of them, as cuda:0.

    Raises
    ------
    MupError
        If this process cannot start other processes, because it is itself a worker that imported the main script.

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
        # On systems other than Linux, forking a process that has loaded torch is unsafe or impossible.
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
                # A forked process would otherwise inherit the environment of its parent.
                sent = {**os.environ, **own}, self._threads, self._there, sending, function
                process = self._context.Process(target=_train, args=sent)
                process.start()
                sending.close()  # so that reading fails when the process ends, even in the middle of an answer
                begun = False
                try:
                    begun = answers.recv()
                    answer = answers.recv()
                except (EOFError, OSError):
                    if begun:
                        raise RuntimeError("its process was terminated abruptly") from None
                    continue  # the process was killed before its run began, so the run is not the cause
                finally:
                    answers.close()
                    process.join()
                if isinstance(answer, Exception):
                    raise answer
                return answer
        finally:
            self._free.append(own)
        raise MupError(
            "The worker processes could not start: each one exited before its first run (see above). Define the train "
            "function at the top level of an importable module and make this call under `if __name__ == '__main__':`, or "
            "pass n_workers=1."
        )

    def close(self) -> None:
        """End every process."""
        self._here.close()
        self._watching.shutdown(wait=False)


def _train(environment: Mapping[str, str], threads: int, engine: Any, sending: Any, function: Callable[[], Any]) -> None:
    """Run the function in a new process: report the start of the run, and send its return value or exception."""
    # Ctrl-C reaches the whole process group, but only the parent should handle it.
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
    """End this process when the engine closes or its process ends; only the engine owns the other end of the pipe."""
    engine.poll(None)
    os._exit(1)


class ExecutorEngine:
    """Execute runs on an executor of another package (loky, Dask, mpi4py, …).

    The executor is shut down at the end only if a function created it.

    Parameters
    ----------
    executor : concurrent.futures.Executor, callable or str
        An executor, a function without arguments that returns one, or the import path of either, such as
        ``"package.module.name"``. Process pools (loky, the standard library) break as a whole when one process dies. A
        broken executor can be replaced only if it was created by a function.
    n_workers : int, optional
        Number of workers of the executor. Default: one per core of this machine.

    Raises
    ------
    MupError
        If ``executor`` is neither an executor nor a function.

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
            raise MupError(
                f"executor={executor!r} must be a concurrent.futures.Executor, such as executor=RayExecutor(), or a "
                "function that returns one."
            )
        self.executor = executor if self._make is None else self._make()
        self.capacity = n_workers or getattr(self.executor, "n_workers", cores())

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Submit the function to the executor. Replace a broken executor if possible."""
        try:
            return self.executor.submit(function, *args, **kwargs)
        except (BrokenExecutor, RuntimeError) as error:
            if self._make is None:
                why = str(error).partition("\n")[0]
                raise MupError(
                    f"The executor no longer accepts runs ({type(error).__name__}: {why}), because one of its processes was "
                    "killed or it was shut down. Finished runs are kept. Repeat the call with a new executor, or with a "
                    "function that returns one (executor=lambda: …)."
                ) from error
            self.executor = self._make()
            return self.executor.submit(function, *args, **kwargs)

    def close(self) -> None:
        """Shut down the executor if a function created it. Otherwise it stays open and finishes its runs."""
        if self._make is not None:
            self.executor.shutdown(wait=False)


class RayExecutor(Executor):
    """Execute each run as a Ray task. If the cluster has GPUs, each task uses one GPU.

    The executor uses the cluster that this program is connected to, or the cluster at ``RAY_ADDRESS``, or starts a cluster
    on this machine. Ray repeats a task if its node fails. Pass ``executor=RayExecutor()``, or on the command line
    ``--executor neuralop_mup.lab.engines.RayExecutor``.

    Raises
    ------
    MupError
        If the package ray is not installed.
    """

    def __init__(self) -> None:
        try:
            import ray
        except ImportError:
            raise MupError("RayExecutor requires the package ray. Install it with `pip install ray`.") from None
        self._ray = ray
        self._started = not ray.is_initialized()
        if self._started:
            ray.init(logging_level=logging.WARNING, log_to_driver=False)
        resources = ray.cluster_resources()
        self.n_workers = int(resources.get("GPU", 0) or resources.get("CPU", 0)) or 1
        options = {"num_cpus": 1, "num_gpus": min(1, resources.get("GPU", 0)), "max_retries": 3, "retry_exceptions": False}
        self._task = ray.remote(**options)(lambda function, args, kwargs: function(*args, **kwargs))

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Submit one run to the cluster."""
        return self._task.remote(function, args, kwargs).future()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop the cluster if this executor started it. Otherwise the cluster finishes the runs in progress."""
        if self._started:
            self._ray.shutdown()


def make_engine(
    executor: Any, train: Callable[..., Any], runs: int, n_workers: int | None = None, devices: Sequence[str] = ()
) -> Any:
    """Return the engine for these arguments.

    Parameters
    ----------
    executor : object, optional
        An engine, or an executor in any form that :class:`ExecutorEngine` accepts. Default: processes on this machine.
    train : callable
        Train function. If other processes will call it, the function checks that it can be sent to them.
    runs : int
        Number of runs, which limits the number of processes.
    n_workers : int, optional
        Number of concurrent runs. With 1, runs are executed in this process. Default: one per device or core, or 1 if
        ``train`` cannot be sent to other processes.
    devices : sequence of str
        CUDA devices of this machine. Each run uses one of them.

    Raises
    ------
    MupError
        If an argument is invalid.
    """
    if not callable(train):
        raise MupError(f"train must be a function that accepts a config dict and returns a loss, but got {train!r}.")
    if n_workers is not None:
        check_count("n_workers", n_workers)
    if hasattr(executor, "capacity"):
        return executor
    if executor is not None:
        engine: Any = ExecutorEngine(executor, n_workers)
        # Other executors may be able to send functions that pickle cannot serialize.
        why = _reason_not_sendable(train) if isinstance(engine.executor, ProcessPoolExecutor) else ""
    else:
        size = max(1, min(n_workers or len(devices) or cores(), runs))
        if n_workers == 1 or (size == 1 and len(devices) < 2):
            return InlineEngine()
        engine, why = LocalEngine(size, devices), _reason_not_sendable(train)
    if why and n_workers is executor is None:
        _LOG.warning(f"Runs are trained one after another, because other processes cannot import the train function: {why}.")
        return InlineEngine()
    if why:
        raise MupError(
            f"The train function cannot be sent to worker processes ({why}). Define it at the top level of a module, or "
            "pass n_workers=1."
        )
    return engine


def _reason_not_sendable(train: Any) -> str:
    """Return the reason why a train function cannot be sent to other processes, or an empty string if it can be sent."""
    main = sys.modules["__main__"]
    file = "" if getattr(main, "__spec__", None) else getattr(main, "__file__", None)
    if file and not os.path.exists(file):  # in this case, each process would print a traceback
        return f"this program was read from {file}, which other processes cannot import"
    try:
        sent = bytes(ForkingPickler.dumps(getattr(train, "parts", train)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return str(error)
    return "it is defined in a notebook or an interactive session" if file is None and b"__main__" in sent else ""


def cores() -> int:
    """Return the number of cores that this process may use, which can be smaller than that of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cuda_devices(device: str = "cuda") -> list[str]:
    """Return the CUDA devices of this process, by their names in ``CUDA_VISIBLE_DEVICES``.

    The list is empty if CUDA is not available, or if ``device`` is a single device or the CPU.
    """
    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    return [name.strip() for name in chosen.split(",")][:count]
