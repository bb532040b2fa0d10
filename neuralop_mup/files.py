"""Files that are written whole or not at all: the one place that does it, whoever writes."""

from __future__ import annotations

import glob
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError

__all__ = ["remove_file", "replace_file", "save_torch", "whole_file", "write_atomically"]


@contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[Path]:
    """A path beside ``path`` to write to, which takes its place when the block ends; on a failure an older file stays.

    Each writer has a path of its own, so several that write the same file at once each write a whole one, and a reader sees
    one of these. The file is made at once: a folder that cannot be written is told before the work.

    Raises
    ------
    OSError
        If the file cannot be written: a full disk, a folder that is missing or not writable.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    open(part, "xb").close()
    try:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())  # else a power cut may leave the new name with none of the content
        os.replace(part, target)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def replace_file(path: str | os.PathLike, what: str) -> Iterator[Path]:
    """:func:`whole_file` for a path that the user gave.

    Parameters
    ----------
    path : path
        The file to write.
    what : str
        What is written, for the message.

    Raises
    ------
    MupError
        If the file cannot be written: a full disk, a folder that is missing or not writable.
    """
    try:
        with whole_file(path) as part:
            yield part
    except OSError as error:
        raise MupError(
            f"Cannot write {what} to {os.fspath(path)!r}: {error.strerror or error}. Give a path that you may write to."
        ) from error


def write_atomically(path: Path, text: str) -> None:
    """Replace a file of text as a whole, so that a reader never sees half of it.

    Raises
    ------
    MupError
        If the file cannot be written.
    """
    with replace_file(path, path.name) as part:
        part.write_text(text, encoding="utf-8")


def save_torch(content: Any, path: Path) -> None:
    """``torch.save``, whose own writer tells of a full disk by a RuntimeError, with the OSError that others raise."""
    import torch

    try:
        torch.save(content, path)
    except RuntimeError as error:
        raise OSError(None, str(error)) from error


def remove_file(path: Path) -> None:
    """Remove a file of one writer, and what a kill left of writing it."""
    for left in (path, *path.parent.glob(f".{glob.escape(path.name)}.*.part")):
        left.unlink(missing_ok=True)
