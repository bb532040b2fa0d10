"""Runs on this machine: in this process, or in worker processes, each with its own share of cores and its own GPU.

Each worker is a ``ProcessPoolExecutor`` of one process, so that a worker that is killed breaks a pool that nobody shares;
it is replaced, and the others do not notice.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import lru_cache
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.tuning.outcome import execute
from neuralop_mup.tuning.study import Study

__all__ = ["InlineEngine", "LocalEngine", "WorkerLost", "cuda_devices", "local_engine"]

STARTS = 4  # so many workers in a row may be killed while they start


class WorkerLost(RuntimeError):
    """The worker process of a run ended under it."""


class InlineEngine:
    """One run at a time, in this process and with its own thread settings."""

    capacity = 1
    loses_together = False

    def submit(self, train: Callable[[dict], Any], config: Mapping[str, Any]) -> Future:
        """Execute the run now."""
        future: Future = Future()
        future.set_result(execute(train, config))
        return future

    def check(self) -> None:
        """Nothing can be stuck."""

    def close(self) -> None:
        """Nothing is left running."""


class LocalEngine:
    """Worker processes on this machine, started when first needed and replaced when they die.

    Parameters
    ----------
    size : int
        Workers.
    devices : sequence of str
        CUDA devices, shared out in turn: worker i sees ``devices[i % len(devices)]`` alone, as cuda:0.
    environment : mapping of str to str, optional
        Further variables that workers start with.
    """

    loses_together = False

    def __init__(self, size: int, devices: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self.capacity = size
        threads = max(1, (os.cpu_count() or 1) // size)
        shared = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **(environment or {})}
        own = [{"CUDA_VISIBLE_DEVICES": devices[i % len(devices)]} if devices else {} for i in range(size)]
        self._workers = [_Worker({**shared, **gpu}) for gpu in own]
        self._failed_starts = 0  # in a row
        self._lock = threading.Lock()
        self._closed = False
        self._dumped: tuple[Any, bytes] = None, b""

    def submit(self, train: Callable[[dict], Any], config: Mapping[str, Any]) -> Future:
        """Give the run to an idle worker."""
        if self._dumped[0] is not train:
            self._dumped = train, pickle.dumps(train)
        future: Future = Future()
        worker = next(w for w in self._workers if not w.busy)
        worker.busy = True
        self._begin(worker, future, (self._dumped[1], dict(config)))
        return future

    def _begin(self, worker: _Worker, future: Future, job: tuple[bytes, dict]) -> None:
        def ended(inner: Future) -> None:
            error = inner.exception()
            if error is None:
                with self._lock:
                    self._failed_starts = 0
            elif isinstance(error, BrokenProcessPool):
                error = self._lost(worker, error)
            if error == "again":
                self._begin(worker, future, job)
                return
            worker.busy = False
            if error is None:
                future.set_result(inner.result())
            else:
                future.set_exception(error)

        try:
            worker.inner = inner = worker.submit(*job)
        except Exception as error:  # such as a script whose import calls this again
            worker.busy = False
            future.set_exception(_cannot_start(f"{type(error).__name__}: {error}"))
            return
        inner.add_done_callback(ended)

    def _lost(self, worker: _Worker, error: Exception) -> Exception | str:
        """What a dead worker means for its run: lost, or "again" if it had not begun."""
        code, begun = worker.exit_code(), worker.has_begun()
        worker.replace()
        if self._closed:
            return WorkerLost("the engine was closed")
        if begun:
            how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
            return WorkerLost(f"its worker process {how}")
        # Killed (for its memory, by a user) before its run began: that is no death of the run. What ends a worker by itself
        # ends the next one too.
        with self._lock:
            self._failed_starts += 1
            if (code is None or code < 0) and self._failed_starts < STARTS:  # None: it is gone, its code not known yet
                return "again"
        return _cannot_start(f"one ended with exit code {code} before its first run (see above)")

    def check(self) -> None:
        """Notice a worker that died while its run was handed over, which its pool may not: called when nothing ends for
        long."""
        for worker in self._workers:
            if worker.busy and worker.is_dead() and not worker.inner.done():
                with suppress(InvalidStateError):
                    worker.inner.set_exception(BrokenProcessPool("the worker died while it was given a run"))

    def close(self) -> None:
        """End every worker."""
        self._closed = True
        for worker in self._workers:
            worker.stop()


def _cannot_start(why: str) -> MupError:
    return MupError(
        f"The worker processes cannot start: {why}. Define the train function at module level of a file that can "
        "be imported, call this under `if __name__ == '__main__':`, or pass n_workers=1."
    )


class _Worker:
    """A pool of one process, and the environment that it starts with."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.busy = False
        self.inner: Future = Future()  # of the present run
        self._pool: ProcessPoolExecutor | None = None
        self._broken: list[
            ProcessPoolExecutor
        ] = []  # kept: the thread that finds a pool broken may be the one that frees it

    def submit(self, payload: bytes, config: dict) -> Future:
        if self._pool is None:
            self._context = _Context(self._environment)
            # Without a lock: a worker that is killed while it holds one would stop us, too.
            self._begun = self._context.RawValue("b", 0)
            threads = int(self._environment["OMP_NUM_THREADS"])
            self._pool = ProcessPoolExecutor(1, self._context, _start_worker, (threads, self._begun))
        self._begun.value = 0
        try:
            return self._pool.submit(_run, payload, config)
        except BrokenProcessPool:  # it died while idle
            self.replace()
            return self.submit(payload, config)

    def has_begun(self) -> bool:
        return bool(self._begun.value)

    def exit_code(self) -> int | None:
        process = self._context.process
        if process is None:
            return None
        process.join(5)
        return process.exitcode

    def is_dead(self) -> bool:
        process = self._context.process
        return process is not None and not process.is_alive()

    def replace(self) -> None:
        """Start anew with the next run; called from the thread that found the pool broken, which must not wait for
        itself."""
        if self._pool is not None:
            self._broken.append(self._pool)
        self._pool = None

    def stop(self) -> None:
        if self._pool is None:
            return
        process = self._context.process
        if process is not None and process.is_alive():
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Process(SpawnProcess):
    """A spawned process that starts with an environment of its own and without the parent's Ctrl-C."""

    environment: Mapping[str, str] = {}

    def start(self) -> None:
        with _child_environment(self.environment):
            super().start()


class _Context(SpawnContext):
    """Makes such processes, and remembers the last one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__()
        self._environment = environment
        self.process: Any = None

    def Process(self, *args: Any, **kwargs: Any) -> Any:
        self.process = _Process(*args, **kwargs)
        self.process.environment = self._environment
        return self.process


_environment_lock = threading.Lock()


@contextmanager
def _child_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """What a spawned process inherits: variables that must be set before torch loads, and a Ctrl-C that is not for it."""
    with _environment_lock:
        before = {name: os.environ.get(name) for name in changes}
        # Only the main thread may set a handler, and one that Python did not install (None) could not be put back.
        main = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGINT) if main else None
        if handler is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.environ.update(changes)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            if handler is not None:
                signal.signal(signal.SIGINT, handler)


_begun: Any = None


def _start_worker(threads: int, begun: Any) -> None:
    """First thing in a worker."""
    global _begun
    _begun = begun
    # Ctrl-C reaches the whole process group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # Only if the script brought torch already: OMP_NUM_THREADS holds for a torch that is imported later.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _run(payload: bytes, config: dict) -> Any:
    try:
        train = _loaded(payload)
    except Exception as error:
        raise _cannot_start(f"{type(error).__name__}: {error}") from None
    _begun.value = 1
    return execute(train, config)


@lru_cache(maxsize=1)
def _loaded(payload: bytes) -> Callable[[dict], Any]:
    return pickle.loads(payload)


def cuda_devices() -> list[str]:
    """CUDA devices that this process may use, by the names that ``CUDA_VISIBLE_DEVICES`` knows; none without torch's
    CUDA."""
    import torch

    if not torch.cuda.is_available():
        return []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    known = [name.strip() for name in chosen.split(",")] if chosen else list(map(str, range(torch.cuda.device_count())))
    return known[: torch.cuda.device_count()]


def local_engine(
    train: Callable[[dict], Any],
    study: Study,
    n_workers: int | None,
    devices: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> InlineEngine | LocalEngine:
    """An engine for a study: this process if one worker is enough, else worker processes.

    Raises
    ------
    MupError
        If runs cannot be sent to other processes.
    """
    n_runs = len(study.planned()) * len(study.seeds)
    size = max(1, min(n_workers or len(devices) or os.cpu_count() or 1, n_runs))
    if size == 1:
        return InlineEngine()
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise MupError(
            "A worker process imported this script and met the same call again; put the call under "
            "`if __name__ == '__main__':`, or pass n_workers=1."
        )
    main = sys.modules["__main__"]
    # A worker runs the main program again from its file; without this each one would say with a traceback that it cannot.
    program = None if getattr(main, "__spec__", None) else getattr(main, "__file__", None)
    if program is not None and not os.path.exists(program):
        raise _cannot_start(f"this program was read from {program}, which they cannot import")
    for what, value in (("train function", train), ("fixed config", {**study.fixed, "sizes": dict(study.sizes)})):
        try:
            pickle.dumps(value)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise MupError(
                f"The {what} cannot be sent to worker processes ({error}); define it at module level, or pass n_workers=1."
            ) from None
    return LocalEngine(size, devices, environment)
