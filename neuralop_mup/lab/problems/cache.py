"""Files of tensors under a content key: written atomically, mapped when read, made anew when unreadable."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from neuralop_mup.errors import MupError
from neuralop_mup.files import whole_file
from neuralop_mup.lab.fingerprint import fingerprint

_verified: set[tuple[str, int, int]] = set()  # (path, time of change, size) of files whose content this process has checked


def cache_folder(folder: str | Path | None = None) -> Path:
    """The folder given, else ``$NEURALOP_MUP_CACHE``, else ``neuralop_mup`` in the user's cache."""
    chosen = folder or os.environ.get("NEURALOP_MUP_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    # The XDG specification asks to ignore a relative path.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "neuralop_mup"


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """:func:`~neuralop_mup.files.whole_file` in the cache's folder, which is made if it is not there.

    Raises
    ------
    MupError
        When the folder cannot be made or written, or the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial:
            yield partial
    except OSError as error:
        raise MupError(
            f"Cannot write to the cache folder {path.parent}: {error.strerror or error}. "
            "Make it writable, free some space, or name another folder in NEURALOP_MUP_CACHE."
        ) from error


@contextmanager
def alone(key: str) -> Iterator[None]:
    """Wait until no other process of this machine is in such a block with the same key."""
    from filelock import FileLock

    # Of the user's own: another's file in a folder that all share cannot be opened. Windows' folder is the user's.
    user = getattr(os, "getuid", lambda: "")()
    with FileLock(Path(tempfile.gettempdir()) / f"neuralop_mup-{user}-{key[:24]}.lock"):
        yield


def write(path: Path, key: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write the tensors with their key and their fingerprint."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {name: values.contiguous() for name, values in tensors.items()}
    try:
        save_file(tensors, path, {"key": key, "content": fingerprint(tensors)})
    except SafetensorError as error:  # how its writer tells a full disk
        raise OSError(None, str(error)) from error


def store(path: Path, key: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a file of tensors all at once."""
    with atomic(path) as partial:
        write(partial, key, tensors)


def read(path: Path, key: str) -> dict[str, torch.Tensor] | None:
    """The tensors at ``path``, or None if there is no such file or, with a warning, no readable one.

    They are mapped: processes that read the same file share its memory. Their content is checked once, by the first of them.
    """
    from safetensors import safe_open

    try:
        status = os.stat(path)
        with safe_open(path, framework="pt") as file:
            stored = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if stored.get("key") != key:
            raise ValueError("it holds the data of other arguments")
        known = (str(path), status.st_mtime_ns, status.st_size)
        if known not in _verified and multiprocessing.parent_process() is None:
            if fingerprint(tensors) != stored.get("content"):
                raise ValueError("its content is not what was written")
            _verified.add(known)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # a damaged file can fail in as many ways as its header and its tensors can
        warnings.warn(f"The cached file {path} cannot be read ({error}); its data is generated anew.", stacklevel=3)
        return None
    return tensors
