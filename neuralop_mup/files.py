"""Write files atomically: completely or not at all."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neuralop_mup.errors import MupError


@contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` at the end; on failure an existing file does not change.

    Concurrent writers use different temporary paths, so a reader always sees one complete file. The temporary file is
    created immediately, so a folder that is not writable raises before any work.

    Raises
    ------
    OSError
        If the file cannot be written: full disk, missing or read-only folder.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    open(part, "xb").close()
    try:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())  # otherwise a power cut may leave an empty file under the new name
        os.replace(part, target)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def replace_file(path: str | os.PathLike, what: str) -> Iterator[Path]:
    """Like :func:`whole_file`, but raise MupError, for paths from the user.

    Parameters
    ----------
    path : path
        File to write.
    what : str
        Description of the content, for the error message.

    Raises
    ------
    MupError
        If the file cannot be written: full disk, missing or read-only folder.
    """
    try:
        with whole_file(path) as part:
            yield part
    except OSError as error:
        raise MupError(
            f"Cannot write {what} to {os.fspath(path)!r}: {error.strerror or error}. Use a writable path."
        ) from error
