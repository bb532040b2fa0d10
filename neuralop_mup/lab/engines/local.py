"""Runs on this machine: in this process, or each in a fresh process of its own, with its share of cores and its own GPU."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

from neuralop_mup.errors import MupError

__all__ = ["InlineEngine", "LocalEngine", "cuda_devices"]

_STARTS = 4  # so often a process may be killed before its run begins
#: Loaded by the process from which the others are forked: torch takes seconds, and again when a model is built on "meta".
_LOADED = ["neuralop_mup.lab.training", "torch._dynamo"]


class InlineEngine:
    """One run at a time, in this process and with its own thread settings."""

    capacity = 1
    loses_together = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Call the function now."""
        future: Future = Future()
        future.set_result(function(*args, **kwargs))
        return future

    def close(self) -> None:
        """Nothing is left running."""


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

    loses_together = False
    here = True  # it sees the folders that this process sees

    def __init__(self, capacity: int, devices: Sequence[str] = ()) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise MupError(
                "A worker process imported this script and met the same call again; put the call under "
                "`if __name__ == '__main__':`, or pass n_workers=1."
            )
        main = sys.modules["__main__"]
        # Processes run the main program again from its file; without this each one would say with a traceback that it
        # cannot.
        program = None if getattr(main, "__spec__", None) else getattr(main, "__file__", None)
        if program is not None and not os.path.exists(program):
            raise _cannot_start(f"this program was read from {program}, which they cannot import")
        # Elsewhere forking a process that has torch's libraries loaded is not safe, or there is no forking.
        self._context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            self._context.set_forkserver_preload(_LOADED)
        self.capacity, self._threads = capacity, max(1, (os.cpu_count() or 1) // capacity)
        self._free = [{"CUDA_VISIBLE_DEVICES": devices[i % len(devices)]} if devices else {} for i in range(capacity)]
        self._processes: set[Any] = set()
        self._lock, self._closed = threading.Lock(), False

    def check(self, train: Any) -> None:
        """MupError unless a train function can be sent to other processes."""
        try:
            ForkingPickler.dumps(getattr(train, "parts", train))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise MupError(
                f"The train function cannot be sent to worker processes ({error}); define it at module level, or pass "
                "n_workers=1."
            ) from None

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Call the function in a fresh process."""
        future: Future = Future()
        watching = (future, self._free.pop(0), (function, args, kwargs))
        threading.Thread(target=self._watch, args=watching, daemon=True).start()
        return future

    def _watch(self, future: Future, own: Mapping[str, str], call: tuple) -> None:
        """Have the function called, and set what becomes of it."""
        try:
            for _ in range(_STARTS):
                received, code = self._in_a_process(own, call)
                if received or self._closed or code >= 0:
                    break  # else it was killed (for its memory, by a user) before its run began: no death of the run
        except Exception as error:
            future.set_exception(_cannot_start(f"{type(error).__name__}: {error}"))
            return
        self._free.append(own)
        if len(received) == 2:
            value, error = received[1]
            future.set_result(value) if error is None else future.set_exception(error)
        elif self._closed or received:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            future.set_exception(RuntimeError(f"its process {how}"))
        else:
            future.set_exception(_cannot_start(f"one ended with exit code {code} before its first run (see above)"))

    def _in_a_process(self, own: Mapping[str, str], call: tuple) -> tuple[list[Any], int]:
        """What a process sent until it ended, and its exit code."""
        here, there = self._context.Pipe(duplex=False)
        # A forked process has the environment of the one that it is forked from.
        process = self._context.Process(target=_run, args=(there, {**os.environ, **own}, self._threads, *call))
        with self._lock:
            process.start()
            self._processes.add(process)
            if self._closed:
                process.kill()
        there.close()
        received = []
        with suppress(EOFError, OSError):
            while True:
                received.append(here.recv())
        multiprocessing.connection.wait([process.sentinel])
        with self._lock:  # starting another process asks for this one's exit code, too, which can be read once
            self._processes.discard(process)
            return received, process.exitcode

    def close(self) -> None:
        """End every process."""
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.kill()


def _cannot_start(why: str) -> MupError:
    return MupError(
        f"The worker processes cannot start: {why}. Define the train function at module level of a file that can "
        "be imported, call this under `if __name__ == '__main__':`, or pass n_workers=1."
    )


def _run(
    there: Any, environment: Mapping[str, str], threads: int, function: Callable[..., Any], args: tuple, kwargs: dict
) -> None:
    """What a process does; it ends with the one that wanted it."""
    # Ctrl-C reaches the whole process group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    os.environ.update(environment)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    there.send("begun")
    try:
        result = function(*args, **kwargs), None
    except Exception as error:
        result = None, error
    there.send(result)


def _die_with_parent() -> None:
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def cuda_devices(device: str = "cuda") -> list[str]:
    """CUDA devices that this process may use, by the names that ``CUDA_VISIBLE_DEVICES`` knows; none without torch's
    CUDA, nor for a ``device`` that names a single one or the CPU."""
    if device not in ("auto", "cuda"):
        return []
    import torch

    if not torch.cuda.is_available():
        return []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    known = [name.strip() for name in chosen.split(",")] if chosen else list(map(str, range(torch.cuda.device_count())))
    return known[: torch.cuda.device_count()]
