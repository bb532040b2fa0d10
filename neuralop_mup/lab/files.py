"""Write and read the files of a study: text, checkpoints, and trained weights with their plan and data processor.

Each file is written completely or not at all, and reading a file never runs code.
"""

import errno
import glob
import json
import logging
import shutil
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from neuralop.data.transforms.data_processors import DefaultDataProcessor
from neuralop.data.transforms.normalizers import UnitGaussianNormalizer
from torch import nn

from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.errors import MupError
from neuralop_mup.files import whole_file
from neuralop_mup.lab.data.problem_data import ChannelNormalizer
from neuralop_mup.lab.outcome import plain
from neuralop_mup.losses.processor import PhysicalDataProcessor, sine_mollifier

_LOG = logging.getLogger(__name__)

#: Minimum number of seconds between two checkpoints, since an epoch may take less time than writing a checkpoint.
CHECKPOINT_INTERVAL = 60.0
#: Classes of data processors that a file can contain. Any other processor must be passed by the user when the file is read.
_KNOWN = (DefaultDataProcessor, PhysicalDataProcessor, UnitGaussianNormalizer, ChannelNormalizer)


def as_folder(folder: Any) -> Path:
    """Return the path of a folder, which need not exist. Raise MupError if it is not a path, or if it is a file."""
    if not isinstance(folder, (str, PathLike)):
        raise MupError(f"folder={folder!r} must be a path, such as 'runs/heat'.")
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise MupError(f"{path} is a file, but results need a folder. Choose another name.")
    return path


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Convert a failed write (no permission, full disk) to a MupError that names the folder.

    Raises
    ------
    MupError
        If a write fails.
    """
    try:
        yield
    except OSError as error:
        raise MupError(
            f"Cannot write to the folder {folder}: {error.strerror or error}. Free up space or choose another folder. "
            "Finished runs are kept, and repeating the command resumes the study."
        ) from error


def check_room(folder: Path, size: int) -> None:
    """Create a folder. Raise MupError if this fails or if fewer than ``size`` bytes are free."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < size:
            raise OSError(
                errno.ENOSPC,
                f"the weights, checkpoints and report need {size / 1e6:,.1f} MB, but less space is available",
            )


def put(folder: Path, path: Path, content: str) -> None:
    """Write a text file atomically. Raise MupError if it cannot be written."""
    with writing(folder), whole_file(path) as part:
        part.write_text(content, encoding="utf-8")


def save_torch(content: Any, path: Path) -> None:
    """Write a file with ``torch.save`` atomically. Raise OSError if it cannot be written."""
    with whole_file(path) as part:
        try:
            torch.save(content, part)
        except RuntimeError as error:  # a full disk
            raise OSError(None, str(error)) from error


def remove_file(path: Path) -> None:
    """Remove a file and the temporary files that a killed process left behind."""
    for left in (path, *path.parent.glob(f".{glob.escape(path.name)}.*.part")):
        left.unlink(missing_ok=True)


class Checkpoint:
    """Save and restore the state of training between epochs: weights, optimizer, schedule, sample order, random state.

    Parameters
    ----------
    path : Path
        Path of the checkpoint file.
    loader : DataLoader
        Loader of the training samples.
    key : str
        Fingerprint of everything that the run depends on. A checkpoint with a different key is not loaded.
    **parts
        Objects with ``state_dict`` and ``load_state_dict``. Their states must consist of tensors and plain values. A
        checkpoint that contains other objects is not loaded, since it could run code.
    """

    def __init__(self, path: Path, loader: Any, key: str, **parts: Any) -> None:
        self.path, self._loader, self._key, self._parts = path, loader, key, parts
        self._last = time.monotonic()

    def restore(self) -> tuple[int, float]:
        """Load the checkpoint, and return the epoch at which to continue and the training time so far in seconds.

        Return ``(0, 0.0)`` and change nothing if there is no checkpoint, if it cannot be read, or if it belongs to a
        different run.
        """
        if not self.path.exists():
            return 0, 0.0
        try:
            state = _read(self.path)
            problem = "" if state["key"] == self._key else "was written with different code, data or settings"
        except Exception as error:  # the exceptions of zip and pickle have no common base class
            problem = f"cannot be read ({type(error).__name__})"
        if problem:
            _LOG.warning(f"The checkpoint {self.path} {problem}, so its run starts from the beginning.")
            return 0, 0.0
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        if state["order"] is not None:
            self._loader.generator.set_state(state["order"])
        torch.set_rng_state(state["random"])
        return state["epoch"], state["seconds"]

    def save_if_due(self, epoch: int, seconds: float) -> None:
        """Save a checkpoint before ``epoch`` starts, unless the last one is recent.

        If the process is killed while saving, the previous checkpoint remains. If the file cannot be written, for example
        because the disk is full, the run continues with a warning, since its result does not depend on the checkpoint.
        """
        if time.monotonic() - self._last < CHECKPOINT_INTERVAL:
            return
        generator = getattr(self._loader, "generator", None)
        state = {
            **{name: part.state_dict() for name, part in self._parts.items()},
            "order": generator and generator.get_state(),
            "random": torch.get_rng_state(),
            "key": self._key,
            "epoch": epoch,
            "seconds": seconds,
        }
        try:
            save_torch(state, self.path)
        except OSError as error:
            _LOG.warning(
                f"The checkpoint {self.path} cannot be written ({error}). If this run is killed, it will start from the "
                "beginning."
            )
        self._last = time.monotonic()


def _read(path: Path) -> Any:
    """Read a torch file without running code. Raise an exception if it is corrupted: torch itself does not check this."""
    with zipfile.ZipFile(path) as whole:
        if damaged := whole.testzip():
            raise ValueError(f"{damaged} has changed since it was written")
    return torch.load(path, map_location="cpu", weights_only=True)


def keep_weights(model: nn.Module, processor: Any, path: Path, made: Mapping[str, Any]) -> None:
    """Write the weights, the plan, the processor and ``made``, plain values that describe how the model was built.

    Raises
    ------
    OSError
        If the file cannot be written. An existing file is then left unchanged.
    """
    kept = processor if is_known(processor) else None
    if kept is not None:
        kept.to("cpu")
    content = {
        "weights": model.to("cpu").state_dict(),
        "plan": get_plan(model).to_json(),
        "processor": kept,
        "made": json.dumps(plain(made)),
    }
    save_torch(content, path)


def is_known(processor: Any) -> bool:
    """Return whether a data processor can be stored in a file."""
    if not isinstance(processor, nn.Module) or getattr(processor, "model", None) is not None:
        return False
    return all(type(m) in _KNOWN for m in processor.modules()) and (
        getattr(processor, "mollifier", None) in (None, sine_mollifier)
    )


def read_weights(path: Path) -> dict[str, Any]:
    """Read a file that was written by :func:`keep_weights`.

    Returns
    -------
    dict
        ``weights``, ``plan`` (JSON), ``processor`` (None if there was none or if its class is unknown), and the dict
        ``made``.

    Raises
    ------
    MupError
        If the file is missing or damaged.
    """
    try:
        with torch.serialization.safe_globals([*_KNOWN, sine_mollifier, set]):
            content = _read(path)
        return {**content, "made": json.loads(content["made"])}
    except FileNotFoundError as error:
        raise MupError(f"The weights file {path} is missing. Repeat the call or command to retrain the run.") from error
    except Exception as error:  # the exceptions of zip and pickle have no common base class
        raise MupError(
            f"The weights file {path} is damaged and cannot be read ({type(error).__name__}). Remove it and repeat the "
            "call, which retrains only the target."
        ) from error
