"""Files of tensors under a content key: written atomically, checked when read, made anew when unreadable."""

from __future__ import annotations

import hashlib
import io
import json
import os
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from neuralop_mup.errors import MupError

__all__ = ["atomic", "cache_folder", "content_key", "read", "write"]

_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_folder(folder: str | Path | None = None) -> Path:
    """The folder given, else ``$NEURALOP_MUP_CACHE``, else ``neuralop_mup`` in the user's cache."""
    if folder is not None:
        return Path(folder).expanduser()
    if chosen := os.environ.get("NEURALOP_MUP_CACHE"):
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
def atomic(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content appears at ``path`` all at once when the block ends, and not at all if it fails.

    Each writer has a temporary file of its own in the same folder: two processes that make the same file do
    the work twice, and a reader sees the one or the other, never a mixture.

    Raises
    ------
    MupError
        When the folder cannot be made or written, or the disk is full.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "xb") as stream:
            yield stream
        os.replace(partial, path)
    except OSError as error:
        raise MupError(
            f"Cannot write to the cache folder {path.parent}: {error.strerror or error}. "
            "Make it writable, free some space, or name another folder in NEURALOP_MUP_CACHE."
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write(stream: BinaryIO, key: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write the tensors and their key, preceded by the digest of both."""
    body = io.BytesIO()
    torch.save({"key": key, "tensors": dict(tensors)}, body)
    stream.write(hashlib.sha256(body.getbuffer()).digest())
    stream.write(body.getbuffer())


def read(path: Path, key: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor] | None:
    """The tensors at ``path``, or None if there is no such file or, with a warning, no readable one."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content[_DIGEST_BYTES:]).digest() != content[:_DIGEST_BYTES]:
            raise ValueError("its content does not match its digest")
        stored = torch.load(io.BytesIO(content[_DIGEST_BYTES:]), weights_only=True)
        if stored["key"] != key:
            raise ValueError("it holds the data of other arguments")
        tensors = stored["tensors"]
        if {name: tuple(value.shape) for name, value in tensors.items()} != dict(shapes):
            raise ValueError("its tensors have other shapes")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # a damaged file can fail in as many ways as pickle and zip know
        warnings.warn(f"The cached file {path} cannot be read ({error}); its data is generated anew.", stacklevel=3)
        return None
    return tensors
