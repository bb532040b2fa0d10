"""Files that stay open while they are being read, and conversion of tensors to arrays."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from neuralop_mup.errors import MupError

GAP = 2**16  # size in bytes of a gap that is faster to read than to skip with a second call


class _Open(threading.local):
    """Open files of a thread, by function, path and process id, since a handle must not survive a fork."""

    def __init__(self) -> None:
        self.files: dict[tuple, Mapping[str, Any]] = {}
        self.depth = 0


OPEN = _Open()


@contextmanager
def reading() -> Iterator[None]:
    """Keep files open within the block and close them at its end, since an open HDF5 file cannot be written by others."""
    OPEN.depth += 1
    try:
        yield
    finally:
        OPEN.depth -= 1
        if not OPEN.depth:
            OPEN.files.clear()


def stamp_of(path: str | Path) -> tuple[int, int]:
    """Return the size and the modification time of a file."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def numpy_of(values: Any) -> Any:
    """Return a tensor as an array, as float32 if NumPy does not have its format (bfloat16). Return arrays unchanged."""
    if not isinstance(values, torch.Tensor):
        return values
    if values.layout != torch.strided:
        raise MupError(
            f"Fields must be dense tensors, but got the layout {str(values.layout).removeprefix('torch.')}. Pass "
            "x.to_dense()."
        )
    if values.is_meta:
        raise MupError("Fields must have values, but got a tensor on the meta device. Pass tensors on the CPU or a GPU.")
    is_unknown = values.is_floating_point() and values.dtype not in (torch.float16, torch.float32, torch.float64)
    return (values.float() if is_unknown else values).numpy(force=True)
