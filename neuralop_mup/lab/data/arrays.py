"""Arrays in files as lazy xarray variables. A slice is read from the file only when it is indexed."""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from xarray import Dataset, Variable
from xarray.backends import BackendArray
from xarray.core import indexing

from neuralop_mup.errors import MupError, error_text
from neuralop_mup.lab.data.handles import OPEN, numpy_of, reading

_FEW = 256  # if a step skips fewer values than this, reading all of them is faster

#: Axes with a meaning. Every other axis belongs to the grid or, if its name starts with "channel:", to one array's channels.
SAMPLE, TIME, CHANNEL = "sample", "time", "channel"

_USUAL = {
    **dict.fromkeys(("sample", "samples", "batch", "b", "n", "member", "ensemble", "realization", "number"), SAMPLE),
    **dict.fromkeys(("trajectory", "trajectories", "case", "run", "simulation"), SAMPLE),
    **dict.fromkeys(("time", "times", "t", "step", "timestep", "valid_time", "lead_time", "prediction_timedelta"), TIME),
    **dict.fromkeys(("time_counter", "ocean_time"), TIME),  # NEMO and ROMS
    **dict.fromkeys(("channel", "channels", "c", "variable", "variables", "component", "components", "feature"), CHANNEL),
    **dict.fromkeys(("level", "lev", "plev", "pressure_level", "isobaricinhpa"), CHANNEL),  # atmospheric levels
}
_COORDINATE = re.compile(
    r"(?:.*/)?(time|times|t|x|y|z|lat|lon|latitude|longitude)(?:[-_]?(?:coordinates?|coords?|grid))?", re.I
)


def usual_word(name: str) -> str:
    """Return the standard name of an axis: "sample", "time" or "channel" if its name has that meaning, else its own name.

    Names with a colon belong to arrays and their channels.
    """
    last = name.rpartition("/")[2].replace(":", "_")
    return _USUAL.get(last.lower(), last)


def coordinate_word(key: str) -> str | None:
    """Return the axis for which an array with this name is the coordinate, such as "x" for "x-coordinate"."""
    found = _COORDINATE.fullmatch(str(key))
    return usual_word(found[1].lower()) if found else None


def is_coordinate(key: str, values: Any) -> bool:
    """Return whether the name of an array marks it as a coordinate.

    Arrays x, y and z with several axes may be fields, and so may others with three axes. With two axes, those are the
    latitudes and longitudes of a curved grid, or the times of each sample, unless t is a temperature (lat lon).
    """
    word, dims = coordinate_word(key), [str(dim) for dim in values.squeeze().dims]
    if word == TIME and len(dims) == 2:
        return any(is_unnamed(dim) or usual_word(dim) == TIME for dim in dims)
    return word is not None and len(dims) < (2 if word in ("x", "y", "z") else 3)


def is_channel(dim: str) -> bool:
    """Return whether an axis contains channels."""
    return dim.partition(":")[0] == CHANNEL


def is_space(dim: str) -> bool:
    """Return whether an axis belongs to the grid."""
    return dim not in (SAMPLE, TIME) and not is_channel(dim)


class Flat:
    """An array that is stored in a file as it would be in memory. The file is mapped only while a slice is copied.

    Parameters
    ----------
    path : str
    offset : int
        Position of the first byte in the file.
    shape : sequence of int
    dtype : dtype
    """

    def __init__(self, path: str, offset: int, shape: Sequence[int], dtype: Any) -> None:
        self.path, self.offset, self.shape, self.dtype = path, offset, tuple(shape), np.dtype(dtype)

    def __getitem__(self, key: tuple) -> np.ndarray:
        size = math.prod(self.shape) * self.dtype.itemsize
        if os.path.getsize(self.path) < self.offset + size:
            raise ValueError("the file is truncated")
        if not size:  # an empty file cannot be mapped
            return np.empty(self.shape, self.dtype)[key]
        return np.array(np.memmap(self.path, self.dtype, "r", self.offset, self.shape)[key])


class _Lazy(BackendArray):
    """An array that is read in parts, by a method ``read`` for a tuple of integers and slices."""

    def __getitem__(self, key: Any) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self.read)


class Stored(_Lazy):
    """An array in a file. It is pickled as a path and a key.

    Parameters
    ----------
    opener : callable
        Function that opens the file and returns its arrays by key.
    path : path
    key : str
    shape : sequence of int
        Shape in the file.
    dtype : dtype
    reversed : bool, default False
        Whether the file stores the axes in reverse order, as MATLAB does.
    chunks : sequence of int, optional
        Shape of the chunks in which the file stores the array.
    offset : int, optional
        Position of the first byte, if the file stores the array contiguously and uncompressed. Ignored for reversed axes.
    """

    def __init__(
        self,
        opener: Callable[[str], Mapping[str, Any]],
        path: str | Path,
        key: str,
        shape: Sequence[int],
        dtype: Any,
        reversed: bool = False,
        chunks: Sequence[int] | None = None,
        offset: int | None = None,
    ) -> None:
        self.opener, self.path, self.key = opener, str(path), key
        self.stored, self.dtype, self.reversed = tuple(shape), np.dtype(dtype), reversed
        turn = slice(None, None, -1 if reversed else 1)
        self.shape, self.chunks = self.stored[turn], tuple(chunks or ())[turn]
        self.offset = None if reversed else offset

    def read(self, key: tuple) -> np.ndarray:
        """Read the part selected by a tuple of integers and slices. Raise MupError if the file is damaged."""
        with self._damage_reported(), reading():
            values = _read_slices(self.opened(), key[::-1] if self.reversed else key)
        return values.T if self.reversed else values

    def read_rows(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Read ``rows``, in ascending order, directly from the file into ``out``. Requires ``offset``."""
        size = out[0].nbytes
        with self._damage_reported(), open(self.path, "rb") as file:
            for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1):
                file.seek(self.offset + int(rows[run[0]]) * size)
                if file.readinto(out[run[0] : run[-1] + 1]) < len(run) * size:
                    raise ValueError("the file is truncated")

    @contextmanager
    def _damage_reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # zip, pickle and HDF5 raise many types of errors for a damaged file
            raise MupError(
                f"Cannot read {self.key} from {self.path} ({error_text(error)}). The file may be damaged; write or copy it "
                "again."
            ) from error

    def opened(self) -> Any:
        """Return the array object of the library that reads the file."""
        files, place = OPEN.files, (self.opener, self.path, os.getpid())
        if (place, self.key) not in files:
            if place not in files:
                files[place] = self.opener(self.path)
            array = files[place][self.key]
            # xarray would silently cast a different dtype, and would cast complex numbers to their real parts.
            if (tuple(array.shape), np.dtype(array.dtype)) != (self.stored, self.dtype):
                raise ValueError(
                    f"the array has dtype {array.dtype} and shape {array.shape}, but had dtype {self.dtype} and shape "
                    f"{self.stored} before"
                )
            files[place, self.key] = array
        return files[place, self.key]


def flat_array(path: str | Path, key: str, offset: int, shape: Sequence[int], reversed: bool, dtype: Any) -> Stored:
    """Return an array that is stored contiguously in a file, starting at a byte offset."""
    opener = partial(_flat, key=key, offset=offset, shape=shape, dtype=dtype)
    return Stored(opener, path, key, shape, dtype, reversed, offset=offset)


def _flat(path: str, key: str, **place: Any) -> dict[str, Flat]:
    return {key: Flat(path, **place)}


def _read_slices(array: Any, key: Sequence[Any]) -> np.ndarray:
    """Read slices. Slices with small steps are read without the step, since HDF5 reads each step separately."""
    wanted, thinned = list(key), []
    for axis, part in enumerate(key):
        if isinstance(part, slice):
            is_small = math.prod(array.shape[axis + 1 :]) < _FEW
            wanted[axis] = slice(part.start, part.stop) if is_small else part
            thinned.append(slice(None, None, part.step) if is_small else slice(None))
    return np.asarray(array[tuple(wanted)])[tuple(thinned)]


class Joined(_Lazy):
    """Variables of the same shape, stacked along a new first axis. ``xarray.concat`` would read all of them."""

    def __init__(self, parts: Sequence[Variable]) -> None:
        self.parts, self.shape = parts, (len(parts), *parts[0].shape)
        self.dtype = np.result_type(*{part.dtype for part in parts})

    def read(self, key: tuple) -> np.ndarray:
        """Read the part selected by a tuple of integers and slices."""
        if not isinstance(key[0], slice):
            return self.parts[key[0]][key[1:]].values.astype(self.dtype, copy=False)
        return np.stack([part[key[1:]].values for part in self.parts[key[0]]], dtype=self.dtype)


def lazy(array: Any, dims: Sequence[str], attrs: Mapping[str, Any] | None = None) -> Variable:
    """Return a variable for an array or another variable, without reading its data."""
    if isinstance(array, Variable):
        made = array.to_base_variable()
        made.dims = tuple(dims)
        made.attrs.update(attrs or {})
        return made
    data = indexing.LazilyIndexedArray(array) if isinstance(array, BackendArray) else numpy_of(array)
    return Variable(dims, data, attrs)


def unnamed_dims(key: str, n_axes: int) -> list[str]:
    """Return a unique name for each axis, since xarray identifies axes with equal names."""
    return [f"{key}#{axis}" for axis in range(n_axes)]


def is_unnamed(dim: str) -> bool:
    """Return whether the name of an axis was generated, by :func:`unnamed_dims` or by NetCDF."""
    return "#" in dim or dim.removeprefix("phony_").removeprefix("dim_").isdigit()


def join_variables(parts: Sequence[Variable], dim: str = SAMPLE) -> Variable:
    """Return variables of the same shape as one variable with a new first axis."""
    return lazy(Joined(parts), [dim, *(name.rpartition("/")[2] for name in parts[0].dims)], parts[0].attrs)


def dataset_of(arrays: Mapping[str, Any], file: str = "the given data") -> Dataset:
    """Return arrays, tensors or variables, given by key, as a Dataset.

    Parameters
    ----------
    arrays : mapping of str to array, tensor or xarray variable
        Axes without names get unique names.
    file : str
        Name of the data in messages.

    Examples
    --------
    >>> import torch
    >>> from neuralop_mup.lab.data.arrays import dataset_of
    >>> dataset_of({"u": torch.zeros(40, 16)})["u"].shape
    (40, 16)
    """
    made = {}
    for key, values in arrays.items():
        dims = getattr(values, "dims", None) or unnamed_dims(key, len(values.shape))
        made[key] = lazy(getattr(values, "variable", values), dims)
    try:
        return Dataset(made, attrs={"file": file})
    except ValueError as error:
        raise MupError(
            f"The arrays in {file} have conflicting sizes: {error}. Shorten the longer array with x.isel({{dim: slice(n)}})."
        ) from None
