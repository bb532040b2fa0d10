"""Files of a study: text, training states, and what a kill left of them."""

import errno
import glob
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from neuralop_mup.errors import MupError
from neuralop_mup.files import whole_file


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failed write (no permission, full disk) into a sentence that names the folder.

    Raises
    ------
    MupError
    """
    try:
        yield
    except OSError as error:
        raise MupError(
            f"Cannot write to the folder {folder}: {error.strerror or error}. Free space there or choose another folder; "
            "finished runs are kept and the same command resumes."
        ) from error


def check_room(folder: Path, size: int) -> None:
    """Make a folder; MupError if it cannot be made, or has no room for so many bytes."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < size:
            raise OSError(errno.ENOSPC, f"weights, states and report need {size / 1e6:,.0f} MB, which are not free there")


def put(folder: Path, path: Path, content: str) -> None:
    """Write a file of a folder as a whole, so that a reader never sees half of it; MupError if it cannot be written."""
    with writing(folder), whole_file(path) as part:
        part.write_text(content, encoding="utf-8")


def save_torch(content: Any, path: Path) -> None:
    """``torch.save``, whose own writer tells of a full disk by a RuntimeError, with the OSError that others raise."""
    try:
        torch.save(content, path)
    except RuntimeError as error:
        raise OSError(None, str(error)) from error


def remove_file(path: Path) -> None:
    """Remove a file of one writer, and what a kill left of writing it."""
    for left in (path, *path.parent.glob(f".{glob.escape(path.name)}.*.part")):
        left.unlink(missing_ok=True)
