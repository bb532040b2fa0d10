"""Write files atomically: completely or not at all."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neuralop_mup.errors import MupError


@contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` on success; on failure, an existing file is left unchanged.

    Concurrent writers use different temporary paths, so a reader always sees one complete file. The temporary file is
    created immediately, so that an unwritable folder raises an error before any work is done.

    Raises
    ------
    OSError
        If the file cannot be written, e.g. because the disk is full or the folder is missing or read-only.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    open(part, "xb").close()
    try:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())  # otherwise a power failure may leave an empty file
        os.replace(part, target)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def replace_file(path: str | os.PathLike, what: str) -> Iterator[Path]:
    """Like :func:`whole_file`, but raise MupError instead of OSError.

    Parameters
    ----------
    path : path
        File to write.
    what : str
        Description of the content, for the error message.

    Raises
    ------
    MupError
        If the file cannot be written, e.g. because the disk is full or the folder is missing or read-only.
    """
    try:
        with whole_file(path) as part:
            yield part
    except OSError as error:
        raise MupError(
            f"Cannot write {what} to {os.fspath(path)!r}: {error.strerror or error}. Use a writable path."
        ) from error
