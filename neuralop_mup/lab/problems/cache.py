"""Files of tensors under a content key: written atomically, mapped when read, made anew when unreadable."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from neuralop_mup.errors import MupError
from neuralop_mup.files import whole_file

__all__ = ["alone", "atomic", "cache_folder", "content_key", "read", "store", "write"]

_verified: set[tuple[str, int, int]] = set()  # (path, time of change, size) of files whose digest this process has checked


def cache_folder(folder: str | Path | None = None) -> Path:
    """The folder given, else ``$NEURALOP_MUP_CACHE``, else ``neuralop_mup`` in the user's cache."""
    chosen = folder or os.environ.get("NEURALOP_MUP_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    # The XDG specification asks to ignore a relative path.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "neuralop_mup"


def content_key(description: Mapping[str, Any]) -> str:
    """sha256, in hex, of a description made of plain values; 1 and 1.0 are the same value."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(entry) for entry in value]
        if value is None or isinstance(value, str):
            return value
        return int(value) if float(value).is_integer() else float(value)

    return hashlib.sha256(json.dumps(plain(description), sort_keys=True).encode()).hexdigest()


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
    """Write the tensors with their key and their digest."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {name: values.contiguous() for name, values in tensors.items()}
    try:
        save_file(tensors, path, {"key": key, "digest": _digest(tensors)})
    except SafetensorError as error:  # how its writer tells a full disk
        raise OSError(None, str(error)) from error


def store(path: Path, key: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a file of tensors all at once."""
    with atomic(path) as partial:
        write(partial, key, tensors)


def read(path: Path, key: str) -> dict[str, torch.Tensor] | None:
    """The tensors at ``path``, or None if there is no such file or, with a warning, no readable one.

    They are mapped: processes that read the same file share its memory. Its digest is checked once, by the first of them.
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
            if _digest(tensors) != stored.get("digest"):
                raise ValueError("its content does not match its digest")
            _verified.add(known)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # a damaged file can fail in as many ways as its header and its tensors can
        warnings.warn(f"The cached file {path} cannot be read ({error}); its data is generated anew.", stacklevel=3)
        return None
    return tensors


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().numpy().data)
    return digest.hexdigest()
