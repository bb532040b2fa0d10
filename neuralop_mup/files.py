"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neuralop_mup.errors import MupError

__all__ = ["replace_file", "write_atomically"]


@contextmanager
def replace_file(path: str | os.PathLike, what: str) -> Iterator[Path]:
    """A path beside ``path`` to write to, which takes its place in the end; on a failure an older file stays as it was.

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
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise MupError(
            f"Cannot write {what} to {os.fspath(path)!r}: {error.strerror}. Give a path that you may write to."
        ) from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, text: str) -> None:
    """Replace the file as a whole, so that a reader never sees half of it."""
    part = path.with_name(path.name + ".part")
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
