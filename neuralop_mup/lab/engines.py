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

_STARTS = 4  # so often a process may be killed before its run begins
#: Loaded by the process from which the others are forked: torch takes seconds, and again when a model is built on "meta".
_LOADED = ["neuralop_mup.lab.training", "torch._dynamo"]


class InlineEngine:
    """One run at a time, in this process and with its own thread settings. An engine of one's own has the same members.

    Attributes
    ----------
    capacity : int
        Runs at once.

    Examples
    --------
    An engine of one's own, which says what it is sent:

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
        self.note = note  # why there are no processes, to be shown

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Execute one run; the future gives what the function returns, or raises if its process ended."""
        future: Future = Future()
        future.set_result(function(*args, **kwargs))
        return future

    def close(self) -> None:
        """Stop everything that runs."""


class LocalEngine:
    """Each run a fresh process, forked on Linux from one that has torch loaded; one that is killed is that run's alone.

    Parameters
    ----------
    capacity : int
        Runs at once. Each has as many threads as cores come to it.
    devices : sequence of str, default ()
        CUDA devices, shared out in turn: a run sees one of them alone, as cuda:0.

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
                "A worker process imported this script and met the same call again; put the call under "
                "`if __name__ == '__main__':`, or pass n_workers=1."
            )
        # Elsewhere forking a process that has torch's libraries loaded is not safe, or there is no forking.
        self._context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            self._context.set_forkserver_preload(_LOADED)
        self.capacity = capacity
        self._threads = max(1, cores() // capacity)
        self._free = [{"CUDA_VISIBLE_DEVICES": devices[i % len(devices)]} if devices else {} for i in range(capacity)]
        self._watching = ThreadPoolExecutor(capacity)
        self._there, self._here = self._context.Pipe(duplex=False)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Call the function in a fresh process."""
        return self._watching.submit(self._call, functools.partial(function, *args, **kwargs))

    def _call(self, function: Callable[[], Any]) -> Any:
        own = self._free.pop(0)
        try:
            for _ in range(_STARTS):
                answers, sending = self._context.Pipe(duplex=False)
                # A forked process has the environment of the one that it is forked from.
                sent = {**os.environ, **own}, self._threads, self._there, sending, function
                process = self._context.Process(target=_train, args=sent)
                process.start()
                sending.close()  # so that what is read ends with the process, in the middle of an answer, too
                begun = False
                try:
                    begun = answers.recv()
                    answer = answers.recv()
                except (EOFError, OSError):
                    if begun:
                        raise RuntimeError("its process was terminated abruptly") from None
                    continue  # killed (for its memory, by a user) before its run began: no death of the run
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
    """All that a process does: it says that its run begins, and sends what the function returned or raised."""
    # Ctrl-C reaches the whole process group; the parent alone decides what it means.
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
    """End this process once the engine is closed, or its process has ended: the other end of the pipe is there alone."""
    engine.poll(None)
    os._exit(1)


def _not_sent(train: Any) -> str:
    """Why a train function cannot be sent to other processes; empty where it can."""
    main = sys.modules["__main__"]
    file = "" if getattr(main, "__spec__", None) else getattr(main, "__file__", None)
    if file and not os.path.exists(file):  # which each process would tell with a traceback
        return f"this program was read from {file}, which they cannot import"
    try:
        sent = bytes(ForkingPickler.dumps(getattr(train, "parts", train)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return str(error)
    return "it stands in a notebook or a session, which they cannot import" if file is None and b"__main__" in sent else ""


class ExecutorEngine:
    """An executor of the user's own (loky's, Dask's, mpi4py's, …). It is left open at the end, unless a function made it.

    Parameters
    ----------
    executor : concurrent.futures.Executor, callable or str
        An executor, or a function without arguments that makes one, or where it is found: ``"package.module.name"``. Pools
        of processes break as a whole when one of them dies (loky's, the standard library's); only what a function makes can
        then be replaced.
    n_workers : int, optional
        Runs at once: as many as the executor has workers. Default: one per core of this machine.

    Raises
    ------
    MupError
        If it is no executor.

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
        """Call the function there; a broken executor is made anew if that is possible."""
        try:
            return self.executor.submit(function, *args, **kwargs)
        except (BrokenExecutor, RuntimeError) as error:
            if self._make is None:
                why = str(error).partition("\n")[0]
                raise MupError(
                    f"The executor takes no more runs ({type(error).__name__}: {why}): a process of it was killed, or it "
                    "was shut down. Finished runs are kept: give the same command a new executor, or a function that makes "
                    "one (executor=lambda: …), which is called again whenever it breaks."
                ) from error
            self.executor = self._make()
            return self.executor.submit(function, *args, **kwargs)

    def close(self) -> None:
        """End what a function made; the user's own executor is left open, and what it has begun runs to its end unread."""
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
        """End a cluster that was started here; on another one, what has begun runs to its end unread."""
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
        Checked here where it is to be sent to other processes.
    runs : int
        No more processes are started than there are runs.
    n_workers : int, optional
        Runs at once; with 1 they are executed in this process. Default: one per device or core, or 1 where ``train`` cannot
        be sent to other processes.
    devices : sequence of str
        CUDA devices, one for each run of this machine.

    Raises
    ------
    MupError
        For arguments that cannot work.
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
        return InlineEngine(f"runs are trained one by one, since the train function cannot be sent to processes: {why}")
    if why:
        raise MupError(
            f"The train function cannot be sent to worker processes ({why}); define it at module level of a file, or pass "
            "n_workers=1."
        )
    return made


def cores() -> int:
    """Cores that this process may use, which a cluster's job or a container may have fewer of than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cuda_devices(device: str = "cuda") -> list[str]:
    """CUDA devices that this process may use, by the names that ``CUDA_VISIBLE_DEVICES`` knows; none without torch's
    CUDA, nor for a ``device`` that names a single one or the CPU."""
    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    known = [name.strip() for name in chosen.split(",")] if chosen else list(map(str, range(torch.cuda.device_count())))
    return known[: torch.cuda.device_count()]
