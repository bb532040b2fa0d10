"""Files, as named arrays that can be sliced without being read: a table from suffix to function.

Libraries read the files; ours is the table. What opens a file reads only names, shapes and attributes, and a file is
open only while something is read from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neuralop_mup.errors import MupError


@dataclass(frozen=True)
class Content:
    """What one file, or a dict of arrays in memory, holds; of a file nothing is read yet.

    Attributes
    ----------
    name : str
        The path as given, or "the data given".
    arrays : dict
        Key (in HDF5 the path in the file, without a slash in front) → array: ``shape``, ``dtype``, and ``array[index]``
        with a tuple of slices and ints, which reads only that and gives an ``np.ndarray``.
    dims : dict
        Key → names of the axes, one each, for the arrays of which the file says them (NetCDF, Zarr, xarray).
    attrs : dict
        Path of a group or array, "" for the file itself → its attributes, a dict; paths without attributes are not there.
        Numbers are NumPy's, texts ``str``, lists of texts ``list`` of ``str``.
    """

    name: str
    arrays: dict[str, Any]
    dims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    attrs: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Lazy:
    """An array in a file.

    Attributes
    ----------
    shape, dtype
        As of an ``np.ndarray``.
    open : callable
        Opens the file and gives, as a context, what is sliced by a tuple of slices and ints.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    open: Callable[[], AbstractContextManager[Any]]

    def __getitem__(self, index: Any) -> np.ndarray:
        with self.open() as array:
            return np.asarray(array[index])


@dataclass(frozen=True)
class Stacked:
    """Arrays of one shape, such as one a group of an HDF5 file, as one array with an axis in front."""

    parts: tuple[Any, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the parts, with their number in front."""
        return (len(self.parts), *self.parts[0].shape)

    @property
    def dtype(self) -> np.dtype:
        """That of the parts."""
        return self.parts[0].dtype

    def __getitem__(self, index: Any) -> np.ndarray:
        first, *inside = index if isinstance(index, tuple) else (index,)
        if isinstance(first, slice):
            return np.stack([part[tuple(inside)] for part in self.parts[first]])
        return self.parts[first][tuple(inside)]


def opened(array: Any) -> AbstractContextManager[Any]:
    """The array with its file open, for several readings in a row."""
    return array.open() if isinstance(array, Lazy) else nullcontext(array)


def numpy_of(values: Any) -> Any:
    """A tensor as an array; numpy has no bfloat16, so that becomes single precision. Arrays as they are."""
    if not isinstance(values, torch.Tensor):
        return values
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def content_of(arrays: Mapping[str, Any], name: str = "the data given") -> Content:
    """A dict of arrays or tensors in memory, as the content of a file.

    Parameters
    ----------
    arrays : mapping of str to array or tensor
    name : str
        What messages call it.
    """
    return Content(name, {key: numpy_of(values) for key, values in arrays.items()})


def _read_npz(path: Path) -> Content:
    with np.load(path, allow_pickle=False) as content:
        return Content(str(path), dict(content))


def _read_hdf5(path: Path) -> Content:
    import h5py

    arrays: dict[str, Any] = {}
    attrs: dict[str, dict[str, Any]] = {}

    def look(name: str, entry: Any) -> None:
        if entry.attrs:
            attrs[name] = {key: _plain(value) for key, value in entry.attrs.items()}
        if isinstance(entry, h5py.Dataset):
            arrays[name] = Lazy(entry.shape, entry.dtype, lambda: _hdf5(path, name))

    with h5py.File(path, "r") as file:
        look("", file)
        file.visititems(look)
    return Content(str(path), arrays, {}, attrs)


@contextmanager
def _hdf5(path: Path, key: str) -> Iterator[Any]:
    import h5py

    with h5py.File(path, "r") as file:
        yield file[key]


def _plain(value: Any) -> Any:
    """An attribute without HDF5's types: text as str."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "OS":
        return [_plain(entry) for entry in value.ravel()]
    return value.decode() if isinstance(value, bytes) else value


#: Suffix → function from a path to its content.
READERS: dict[str, Callable[[Path], Content]] = {
    ".npz": _read_npz,
    **dict.fromkeys((".h5", ".hdf5"), _read_hdf5),
}


def read_file(path: str | Path) -> Content:
    """What a file holds.

    Parameters
    ----------
    path : str or Path
        Of a suffix in ``READERS``.

    Raises
    ------
    MupError
        If it cannot be read.

    Examples
    --------
    >>> import numpy as np
    >>> from neuralop_mup.lab.problems.readers import read_file
    >>> np.savez("heat.npz", x=np.zeros((40, 16)))
    >>> read_file("heat.npz").arrays["x"].shape
    (40, 16)
    """
    path = Path(path)
    try:
        return READERS[path.suffix.lower()](path)
    except Exception as error:  # a damaged file can fail in as many ways as zip, pickle and HDF5 know
        raise MupError(f"The file {path} cannot be read: {type(error).__name__}: {error}") from error
