"""Files that are open while somebody reads, and direct reading of rows, past the libraries."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neuralop_mup.errors import MupError

GAP = 2**16  # bytes: reading a gap of this size takes less time than a second call


class _Open(threading.local):
    """The open files of a thread, by function, path and process id: a handle must not go through a fork."""

    def __init__(self) -> None:
        self.files: dict[tuple, Mapping[str, Any]] = {}
        self.depth = 0


OPEN = _Open()


@contextmanager
def reading() -> Iterator[None]:
    """Keep files open within the block and close them at its end: an open HDF5 file prevents others from writing it."""
    OPEN.depth += 1
    try:
        yield
    finally:
        OPEN.depth -= 1
        if not OPEN.depth:
            OPEN.files.clear()


def stamp_of(path: str | Path) -> tuple[int, int]:
    """Return the size and the time of the last change of a file."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def read_rows(path: str, offset: int, rows: np.ndarray, out: np.ndarray) -> None:
    """Fill ``out`` from a file of consecutive rows; each run of consecutive row numbers is one call."""
    with open(path, "rb", buffering=GAP) as file:
        for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1):
            file.seek(offset + int(rows[run[0]]) * out[0].nbytes)
            if file.readinto(out[run[0] : run[-1] + 1]) < len(run) * out[0].nbytes:
                raise MupError(f"The file {path} is cut short: write or copy it again.")


def numpy_of(values: Any) -> Any:
    """Return a tensor as an array, bfloat16 as float32; leave arrays unchanged."""
    if not isinstance(values, torch.Tensor):
        return values
    if values.layout != torch.strided:
        raise MupError(f"A tensor is {str(values.layout).removeprefix('torch.')}, and fields are dense: give x.to_dense().")
    return (values.float() if values.dtype == torch.bfloat16 else values).detach().cpu().numpy()
