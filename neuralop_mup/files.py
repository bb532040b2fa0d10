"""Files that are written whole or not at all: the one place that does it, whoever writes."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neuralop_mup.errors import MupError


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
