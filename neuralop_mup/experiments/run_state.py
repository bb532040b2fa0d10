"""The state of a training run on disk, so that a run of days goes on after a kill where it was."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from neuralop_mup.errors import MupError
from neuralop_mup.files import remove_file, save_torch, whole_file

__all__ = ["RunState"]


class RunState:
    """One run's checkpoint: weights, optimizer, schedule, order of the samples and random numbers, between epochs.

    Parameters
    ----------
    folder : str or Path
        Where checkpoints of any number of runs lie; each run has a file named after its configuration.
    config : mapping
        Everything that decides the run.
    every : float
        Seconds between two checkpoints, at least: epochs may be much shorter than writing the weights.
    """

    def __init__(self, folder: str | os.PathLike, config: Mapping[str, Any], every: float = 300.0) -> None:
        text = json.dumps(config, sort_keys=True, default=str)
        self.path = Path(folder) / f"run-{hashlib.sha256(text.encode()).hexdigest()[:24]}.pt"
        self.every = every
        self._last = time.monotonic()

    def attach(self, loader: DataLoader, **parts: Any) -> None:
        """What makes the state: the training loader, and whatever has ``state_dict`` and ``load_state_dict``."""
        self._loader, self._parts = loader, parts

    def restore(self) -> tuple[int, float, float]:
        """The epoch to go on with, the seconds spent before and the last epoch's training loss.

        ``(0, 0.0, nan)`` and nothing changed without a checkpoint.

        Raises
        ------
        MupError
            If the file is there and cannot be read, or does not fit.
        """
        if not self.path.exists():
            return 0, 0.0, math.nan
        try:
            # Optimizers keep plain values, but the model's state_dict carries constructor arguments, functions among them.
            state = torch.load(self.path, map_location="cpu", weights_only=False)
            for name, part in self._parts.items():
                part.load_state_dict(state[name])
            if state["order"] is not None:
                self._loader.generator.set_state(state["order"])
            torch.set_rng_state(state["random"])
            return state["epoch"], state["seconds"], state["train_loss"]
        except Exception as error:  # a damaged file can fail in as many ways as pickle and zip know
            raise MupError(
                f"The checkpoint {self.path} cannot be read ({type(error).__name__}: {error}); remove it to train this "
                "run from the start."
            ) from error

    def save_if_due(self, epoch: int, seconds: float) -> None:
        """Save before ``epoch`` starts, unless the last checkpoint is recent."""
        if time.monotonic() - self._last >= self.every:
            self.save(epoch, seconds)

    def save(self, epoch: int, seconds: float, train_loss: float = math.nan) -> None:
        """Save before ``epoch`` starts, all at once, so that a kill leaves the old state.

        Where that fails, as on a full disk, the run goes on with a warning: its result does not depend on it.
        """
        state = {name: _compact(part.state_dict()) for name, part in self._parts.items()}
        generator = getattr(self._loader, "generator", None)
        order, random = generator and generator.get_state(), torch.get_rng_state()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            state |= {"order": order, "random": random, "epoch": epoch, "seconds": seconds}
            with whole_file(self.path) as part:
                save_torch({**state, "train_loss": train_loss}, part)
        except OSError as error:
            warnings.warn(f"The checkpoint {self.path} cannot be written, so a kill would cost more: {error}", stacklevel=2)
        self._last = time.monotonic()

    def remove(self) -> None:
        """The run is done, or diverged: nobody goes on from here, and the file may hold gigabytes."""
        remove_file(self.path)


def _compact(state: Any) -> Any:
    """The state with copies of the tensors that are slices: a slice would bring all that it is cut from into the file."""

    def own(value: Any) -> Any:
        sliced = isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() > value.nbytes
        return value.clone() if sliced else value

    copied = tree_map(own, state)
    if hasattr(state, "_metadata"):  # of a module's state
        copied._metadata = state._metadata
    return copied
