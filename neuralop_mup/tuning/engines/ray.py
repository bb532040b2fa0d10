"""Runs as tasks on a Ray cluster, which places them on nodes and GPUs and tries them again when a node dies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from neuralop_mup import _version
from neuralop_mup.errors import MupError
from neuralop_mup.tuning.outcome import execute_elsewhere

__all__ = ["RayEngine"]


class RayEngine:
    """One Ray task a run.

    Parameters
    ----------
    address : str, optional
        Of a running cluster (``"auto"``, ``"ray://host:10001"``); by default one is started on this machine.
    n_workers : int, optional
        Runs at once at most; by default as many as the cluster has room for, looked up anew before each run.
    cpus, gpus : float
        What a run asks for; half a GPU puts two runs on one.
    retries : int
        How many times Ray tries a run again whose process or node died.

    Raises
    ------
    MupError
        Without the package ray, or if the cluster does not answer.
    """

    loses_together = False

    def __init__(
        self, address: str | None = None, n_workers: int | None = None, cpus: float = 1, gpus: float = 0, retries: int = 3
    ) -> None:
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
        self._task = ray.remote(execute_elsewhere).options(**options)
        self._refs: set[Any] = set()
        if not self.capacity:
            raise MupError(f"The Ray cluster has no node with {cpus:g} CPUs and {gpus:g} GPUs for a run.")

    @property
    def capacity(self) -> int:
        """Runs that the cluster has room for at present."""
        has = self._ray.cluster_resources()
        room = min(int(has.get(name, 0) // need) for name, need in self._needs.items() if need)
        return min(room, self._most) if self._most else room

    def submit(self, train: Callable[[dict], Any], config: Mapping[str, Any]) -> Future:
        """Send one run to the cluster."""
        ref = self._task.remote(_version.__version__, train, dict(config))
        self._refs.add(ref)
        future = ref.future()
        future.add_done_callback(lambda _: self._refs.discard(ref))
        return future

    def check(self) -> None:
        """Ray looks after its tasks."""

    def close(self) -> None:
        """Cancel what still runs, and end a cluster that was started here."""
        for ref in list(self._refs):
            self._ray.cancel(ref, force=True)
        if self._started:
            self._ray.shutdown()
