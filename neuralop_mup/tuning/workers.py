"""Where trials run: in this process, or in spawned ones that may die without taking the sweep along."""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.tuning.records import DIVERGED, plain

__all__ = ["Here", "Workers", "execute", "make_pool"]

Outcome = dict[str, Any]
STARTS = 4  # so many workers in a row may be killed while they start


def execute(train: Callable[[dict], Any], config: Mapping[str, Any]) -> Outcome:
    """Run one trial; what it raises becomes part of the outcome."""
    start = time.perf_counter()
    outcome: Outcome = {"state": "failed", "error": None, "loss": None, "metrics": {}, "traceback": None}
    try:
        value = train(copy.deepcopy(dict(config)))
        if isinstance(value, Mapping) and "loss" not in value:
            raise TypeError(f"train returned the keys {', '.join(map(str, value))}, but no 'loss'; add it.")
        metrics = value if isinstance(value, Mapping) else {"loss": value}
        try:
            loss = float(metrics["loss"])
        except (TypeError, ValueError):
            raise TypeError(
                f"train returned {metrics['loss']!r} as the loss; return a number, or a dict with one under 'loss'."
            ) from None
        outcome["metrics"] = plain(metrics)
        if math.isfinite(loss):
            outcome.update(state="complete", loss=loss)
        else:
            outcome["error"] = f"{DIVERGED}{loss}"
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())
        outcome["error"] = f"{type(error).__name__}: {text}" if text else type(error).__name__
        outcome["traceback"] = traceback.format_exc()
    outcome["seconds"] = time.perf_counter() - start
    return outcome


class Here:
    """One trial at a time, in this process and with its own thread settings."""

    size = 1

    def __init__(self, train: Callable[[dict], Any]) -> None:
        self._train = train
        self._jobs: list[tuple[int, Mapping[str, Any]]] = []

    def submit(self, job: int, config: Mapping[str, Any]) -> None:
        self._jobs.append((job, config))

    def wait(self) -> list[tuple[int, Outcome | str]]:
        """Outcomes of finished jobs; a text instead of an outcome says how a worker died."""
        job, config = self._jobs.pop()
        return [(job, execute(self._train, config))]

    def close(self) -> None:
        self._jobs.clear()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _worker_main(connection: Connection, payload: bytes, threads: int) -> None:
    # Ctrl-C reaches the whole process group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        train = pickle.loads(payload)
    except BaseException as error:
        connection.send(("broken", f"{type(error).__name__}: {error}"))
        return
    # Only if the train function brought it: OMP_NUM_THREADS holds for a torch that is imported later.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    with suppress(EOFError, OSError):  # the parent is gone, and this process follows it
        connection.send(("ready", None))
        while True:
            job, config = connection.recv()
            connection.send(("done", (job, execute(train, config))))


@contextmanager
def _child_environment(threads: int) -> Iterator[None]:
    """What a spawned process inherits: thread counts before torch loads, and a Ctrl-C that is not for it."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    # A handler that Python did not install (None) could not be put back, and only the main thread may set one.
    main = main and handler is not None
    if main:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(names, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if main:
            signal.signal(signal.SIGINT, handler)


class _Worker:
    def __init__(self, payload: bytes, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        # Not a daemon: a daemon may have no children, and data loaders may want some.
        self.process = context.Process(target=_worker_main, args=(theirs, payload, threads), daemon=False)
        with _child_environment(threads):
            self.process.start()
        theirs.close()
        self.job: int | None = None
        self.config: Mapping[str, Any] = {}
        self.ready = False

    def give(self, job: int, config: Mapping[str, Any]) -> None:
        self.job, self.config = job, dict(config)
        self.connection.send((job, self.config))

    def stop(self) -> None:
        self.process.terminate()
        self.process.join(2)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


class Workers:
    """Up to ``size`` spawned processes, started when first needed and replaced when they die."""

    def __init__(self, train: Callable[[dict], Any], size: int) -> None:
        self.size = size
        self._payload = pickle.dumps(train)
        self._threads = max(1, (os.cpu_count() or 1) // size)
        self._workers: list[_Worker] = []
        self._failed_starts = 0  # in a row

    def submit(self, job: int, config: Mapping[str, Any]) -> None:
        for worker in [w for w in self._workers if w.job is None]:
            try:
                worker.give(job, config)
                return
            except OSError:  # it died while idle
                self._drop(worker)
        worker = _Worker(self._payload, self._threads)
        self._workers.append(worker)
        with suppress(OSError):  # it died while starting; wait() says so
            worker.give(job, config)

    def _drop(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.stop()

    def _cannot_start(self, why: str) -> MupError:
        return MupError(
            f"The worker processes cannot start: {why}. Define the train function at module level of a file that can "
            "be imported, call this under `if __name__ == '__main__':`, or pass n_workers=1."
        )

    def wait(self) -> list[tuple[int, Outcome | str]]:
        """Outcomes of finished jobs; a text instead of an outcome says how a worker died."""
        finished: list[tuple[int, Outcome | str]] = []
        while not finished:
            busy = [w for w in self._workers if w.job is not None]
            wait([w.connection for w in busy] + [w.process.sentinel for w in busy])
            for worker in busy:
                job = worker.job
                try:
                    while worker.connection.poll():
                        kind, value = worker.connection.recv()
                        if kind == "broken":
                            raise self._cannot_start(value)
                        worker.ready = True
                        self._failed_starts = 0
                        if kind == "done":
                            worker.job = None
                            finished.append(value)
                    if worker.job is None or worker.process.is_alive():
                        continue
                    if worker.connection.poll():  # it answered and then died
                        continue
                except (EOFError, OSError):
                    worker.process.join()
                if worker.job is None:
                    continue
                code = worker.process.exitcode
                self._drop(worker)
                if not worker.ready:
                    # Killed (for its memory, by a user): its trial has not begun, so this is no death of the trial. What
                    # ends a worker by itself ends the next one too.
                    self._failed_starts += 1
                    if code is None or code >= 0 or self._failed_starts == STARTS:
                        raise self._cannot_start(f"one ended with exit code {code} before its first trial (see above)")
                    self.submit(job, worker.config)
                    continue
                how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
                finished.append((job, f"its worker process {how}"))
        return finished

    def close(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.stop()
        self._workers.clear()


def make_pool(
    train: Callable[[dict], Any], fixed: Mapping[str, Any], n_workers: int | None, n_trials: int
) -> Here | Workers:
    """The pool for ``n_trials`` trials.

    Raises
    ------
    MupError
        If ``n_workers`` is no positive integer, or if trials cannot be sent to other processes.
    """
    if not callable(train):
        raise MupError(f"train is {train!r}; give a function that takes a config dict and returns a loss.")
    if n_workers is not None and (not isinstance(n_workers, int) or n_workers < 1):
        raise MupError(f"n_workers={n_workers!r} must be a positive integer, or None for one per core.")
    size = max(1, min(n_workers or os.cpu_count() or 1, n_trials))
    if size == 1:
        return Here(train)
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise MupError(
            "A worker process imported this script and met the same call again; put the call under "
            "`if __name__ == '__main__':`, or pass n_workers=1."
        )
    for what, value in (("train function", train), ("fixed config", fixed)):
        try:
            pickle.dumps(value)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise MupError(
                f"The {what} cannot be sent to worker processes ({error}); define it at module level, or pass n_workers=1."
            ) from None
    return Workers(train, size)
