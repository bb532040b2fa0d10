"""Files, as named arrays that can be sliced without being read: a table from suffix to function.

Libraries read the files; ours is the table. What opens a file reads only names, shapes and attributes, and a file is
open only while something is read from it.
"""

from __future__ import annotations

import glob
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.io
import torch

from neuralop_mup.errors import MupError

THE_ONE = "data"  # the key of an array that is alone in its file and has no name there


@dataclass(frozen=True)
class Content:
    """What one file, or a dict of arrays in memory, holds; of a file nothing is read yet.

    Attributes
    ----------
    name : str
        The path as given, or "the data given".
    arrays : dict
        Key (in HDF5 the path in the file, without a slash in front) → array: ``shape``, ``dtype``, and ``array[index]``
        with a tuple of slices, ints and at most one sorted array of numbers, which reads only that and gives what
        ``np.asarray`` takes.
    dims : dict
        Key → names of the axes, one each, for the arrays of which the file says them (NetCDF, Zarr, xarray).
    attrs : dict
        Path of a group or array, "" for the file itself → its attributes, a dict; paths without attributes are not there.
        Those of HDF5 are Python's numbers and texts (``bytes`` where they have a fixed length), or lists of them.
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
    file : callable
        Opens the file and gives, as a context, its arrays by their keys.
    key : str
    view : callable
        Makes of that array one which is indexed by slices, ints and numbers.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    file: Callable[[], AbstractContextManager[Mapping[str, Any]]]
    key: str
    view: Callable[[Any], Any] = np.asarray

    @contextmanager
    def open(self) -> Iterator[Any]:
        """What is indexed so, with its file open."""
        with self.file() as arrays:
            yield self.view(arrays[self.key])

    def __getitem__(self, index: Any) -> np.ndarray:
        with self.open() as array:
            return np.asarray(array[index])


class Stacked:
    """Arrays of one shape, such as one a group of an HDF5 file, as one array with an axis in front."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts, self.dtype, self.shape = parts, parts[0].dtype, (len(parts), *parts[0].shape)

    def __getitem__(self, index: tuple[Any, ...]) -> np.ndarray:
        first, inside = index[0], index[1:]
        if isinstance(first, int):
            return self.parts[first][inside]
        return np.stack([self.parts[number][inside] for number in np.arange(len(self.parts))[first]])


@dataclass(frozen=True)
class Rows:
    """Some of the samples of an array, whose first axis they are."""

    array: Any
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, ...]:
        """With fewer samples."""
        return (self.stop - self.start, *self.array.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """As of all."""
        return self.array.dtype

    @contextmanager
    def open(self) -> Iterator[Rows]:
        """The same with its file open."""
        with opened(self.array) as array:
            yield replace(self, array=array)

    def __getitem__(self, index: tuple[Any, ...]) -> np.ndarray:
        first, *inside = index
        if isinstance(first, slice):
            first = slice(*(end + self.start for end in first.indices(self.stop - self.start)[:2]))
        else:
            first = first + self.start
        return np.asarray(self.array[(first, *inside)])


class _DataSet:
    """One of HDF5 that is indexed by numbers quickly, and turned where MATLAB wrote it, column by column."""

    def __init__(self, array: h5py.Dataset) -> None:
        self.array, self.turned = array, "MATLAB_class" in array.attrs
        self.shape = array.shape[::-1] if self.turned else array.shape

    def __getitem__(self, index: Any) -> np.ndarray:
        index = index if isinstance(index, tuple) else (index,)
        for place, at in enumerate(index):
            if isinstance(at, np.ndarray):  # HDF5 is slow with lists: what follows each other is read at once
                runs = np.split(at, np.flatnonzero(np.diff(at) != 1) + 1)
                parts = (slice(int(run[0]), int(run[-1]) + 1) for run in runs)
                return np.concatenate([self[(*index[:place], part, *index[place + 1 :])] for part in parts], axis=place)
        if self.turned:
            index = (*index, *[slice(None)] * (len(self.shape) - len(index)))[::-1]
        return np.asarray(self.array[index]).T if self.turned else self.array[index]


class _Once(dict):
    """Arrays that cannot be read in parts, each read when it is first used, and kept; another process reads for itself."""

    def __init__(self, read: Callable[[Path, str], np.ndarray], path: Path) -> None:
        self.read, self.path = read, path

    def __missing__(self, key: str) -> np.ndarray:
        self[key] = self.read(self.path, key)
        return self[key]

    def __reduce__(self) -> Any:
        return type(self), (self.read, self.path)


def opened(array: Any) -> AbstractContextManager[Any]:
    """The array with its file open, for several readings in a row."""
    return array.open() if hasattr(array, "open") else nullcontext(array)


def numpy_of(values: Any) -> Any:
    """A tensor as an array; numpy has no bfloat16, so that becomes single precision. Arrays as they are."""
    if not isinstance(values, torch.Tensor):
        return values
    return (values.float() if values.dtype == torch.bfloat16 else values).detach().cpu().numpy()


def content_of(data: Any, name: str = "the data given") -> Content:
    """Arrays in memory, as the content of a file.

    Parameters
    ----------
    data : mapping of str to array or tensor, xarray.Dataset or xarray.DataArray
        Those of xarray keep the names of their axes, and what they read later.
    name : str
        What messages call it.

    Examples
    --------
    >>> import torch
    >>> from neuralop_mup.lab.problems.readers import content_of
    >>> content_of({"u": torch.zeros(40, 16)}).arrays["u"].shape
    (40, 16)
    """
    if hasattr(data, "to_dataset"):  # a DataArray of xarray, which need not be installed
        data = data.to_dataset(name=data.name or THE_ONE)
    attrs = {"": dict(data.attrs)} if hasattr(data, "attrs") else {}
    data = {key: data[key] for key in getattr(data, "variables", data)}
    known = {key: values for key, values in data.items() if hasattr(values, "coords")}
    attrs |= {key: dict(values.attrs) for key, values in known.items() if values.attrs}
    dims = {key: tuple(map(str, values.dims)) for key, values in known.items()}
    return Content(name, {key: numpy_of(values) for key, values in data.items()}, dims, attrs)


def _lazy(path: Path, file: Callable[[Path], Any], view: Callable[[Any], Any] = np.asarray) -> Content:
    """The arrays that a function opens."""
    with file(path) as arrays:
        found = {key: Lazy(tuple(a.shape), a.dtype, partial(file, path), key, view) for key, a in arrays.items()}
    return Content(str(path), found)


def _read_npz(path: Path) -> Content:
    arrays: dict[str, Any] = {}
    once = partial(nullcontext, _Once(_npz_member, path))
    with zipfile.ZipFile(path) as members:
        for member in members.namelist():
            with members.open(member) as head:
                version, _ = np.lib.format.read_magic(head)
                shape, _, dtype = getattr(np.lib.format, f"read_array_header_{version}_0")(head)
            key = member.removesuffix(".npy")
            arrays[key] = Lazy(shape, dtype, once, key)
    return Content(str(path), arrays)


def _npz_member(path: Path, key: str) -> np.ndarray:
    return np.load(path, allow_pickle=False)[key]


def _read_mat(path: Path) -> Content:
    if h5py.is_hdf5(path):
        return _read_hdf5(path)
    kinds = {"double": "f8", "single": "f4", "logical": "?"}
    once = partial(nullcontext, _Once(_mat_variable, path))
    found = [
        (key, shape, kinds.get(kind, kind))
        for key, shape, kind in scipy.io.whosmat(str(path))
        if kind in kinds or "int" in kind
    ]
    return Content(str(path), {key: Lazy(shape, np.dtype(kind), once, key) for key, shape, kind in found})


def _mat_variable(path: Path, key: str) -> np.ndarray:
    return scipy.io.loadmat(str(path), variable_names=[key])[key]


def _npy(path: Path) -> Any:
    return nullcontext({THE_ONE: np.load(path, mmap_mode="r", allow_pickle=False)})


def _pt(path: Path) -> Any:
    """Tensors in dicts and sequences, a pair being x and y: mapped, but in the format before torch 1.6."""
    found: dict[str, np.ndarray] = {}

    def look(key: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[key or THE_ONE] = numpy_of(value)
        elif isinstance(value, (tuple, list)):
            look(key, dict(zip("xy" if len(value) == 2 else range(len(value)), value, strict=True)))
        elif isinstance(value, Mapping):
            for name, entry in value.items():
                look(f"{key}/{name}".strip("/"), entry)

    look("", torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)))
    return nullcontext(found)


def _read_pt(path: Path) -> Content:
    content = _lazy(path, _pt)
    if any(word in key for key in content.arrays for word in (".weight", ".bias", "optimizer")):
        raise MupError(
            f"The file {path} holds the weights of a model or a state of training, and no fields: take it out of the folder "
            "or name the files of the data alone."
        )
    return content


def _read_hdf5(path: Path) -> Content:
    content = Content(str(path), {})
    file = partial(h5py.File, path, "r")

    def look(key: str, entry: Any) -> None:
        if len(entry.attrs):
            content.attrs[key] = {name: getattr(v, "tolist", lambda v=v: v)() for name, v in entry.attrs.items()}
        if isinstance(entry, h5py.Dataset) and entry.shape is not None and not key.startswith("#"):  # MATLAB's own
            content.arrays[key] = Lazy(_DataSet(entry).shape, entry.dtype, file, key, _DataSet)
            scales = tuple(axis[0].name.strip("/") if len(axis) else axis.label for axis in entry.dims)
            if all(scales):
                content.dims[key] = scales

    with file() as root:
        look("", root)
        root.visititems(look)
    return content


def _xarray(path: Path) -> Any:
    import xarray

    options = {"engine": "zarr", "consolidated": False} if path.is_dir() else {}
    return xarray.open_dataset(path, decode_times=False, cache=False, **options)


def _read_xarray(path: Path) -> Content:
    with _xarray(path) as dataset:
        named, view = content_of(dataset, str(path)), attrgetter("variable")
        arrays = {key: Lazy(a.shape, a.dtype, partial(_xarray, path), key, view) for key, a in named.arrays.items()}
    return replace(named, arrays=arrays)


def _zarr(path: Path) -> Any:
    import zarr

    found = zarr.open(str(path), mode="r")
    arrays = [(THE_ONE, found)] if hasattr(found, "shape") else found.members(max_depth=None)
    return nullcontext({key: array for key, array in arrays if hasattr(array, "shape")})


def _read_zarr(path: Path) -> Content:
    with _zarr(path) as arrays:
        named = ["_ARRAY_DIMENSIONS" in a.attrs or getattr(a.metadata, "dimension_names", None) for a in arrays.values()]
    # xarray knows of packed numbers and of those that stand for none; it cannot open arrays whose axes have no names.
    return _read_xarray(path) if named and all(named) else _lazy(path, _zarr, attrgetter("oindex"))


#: Suffix → function from a path to its content.
READERS: dict[str, Callable[[Path], Content]] = {
    ".npz": _read_npz,
    ".npy": partial(_lazy, file=_npy),
    **dict.fromkeys((".pt", ".pth"), _read_pt),
    **dict.fromkeys((".h5", ".hdf5"), _read_hdf5),
    ".mat": _read_mat,
    **dict.fromkeys((".nc", ".nc4"), _read_xarray),
    ".zarr": _read_zarr,
}


def read_file(path: str | Path) -> Content:
    """What a file holds.

    Parameters
    ----------
    path : str or Path
        Of a suffix in ``READERS``; a ``.zarr`` is a folder.

    Raises
    ------
    MupError
        If it is empty, damaged, of another kind than its name says, or the weights of a model, and where a library is
        missing.

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
    except MupError:
        raise
    except ImportError as error:
        raise MupError(f"{path} needs {error.name}, which is not installed: pip install 'neuralop-mup[data]'.") from error
    except Exception as error:  # a damaged file can fail in as many ways as zip, pickle and HDF5 know
        state = "it is damaged, cut short" if path.is_dir() or path.stat().st_size else "it is empty"
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise MupError(f"The file {path} cannot be read: {state}, or no {path.suffix} of arrays ({reason}).") from error


def files_of(given: str | Path | Iterable[str | Path]) -> tuple[str, ...]:
    """The files that are meant: a folder stands for those in it that can be read, and so does a pattern such as "runs/*.h5".

    Parameters
    ----------
    given : path or iterable of path

    Raises
    ------
    MupError
        For a file that is not there, or of another kind.

    Examples
    --------
    >>> import numpy as np
    >>> from neuralop_mup.lab.problems.readers import files_of
    >>> np.save("a.npy", np.zeros((4, 16)))
    >>> files_of("*.npy")
    ('a.npy',)
    """
    files: list[str] = []
    for entry in (given,) if isinstance(given, (str, Path)) else given:
        path = Path(entry).expanduser()
        if path.is_dir() and path.suffix.lower() not in READERS:
            files += sorted(str(inner) for inner in path.iterdir() if inner.suffix.lower() in READERS)
        else:
            files += sorted(glob.glob(str(path))) if glob.has_magic(str(path)) and not path.exists() else [str(path)]
    for file in files:
        if Path(file).suffix.lower() not in READERS or not Path(file).exists():
            raise MupError(f"There is no file {file} that can be read here, of a name that ends in {', '.join(READERS)}.")
    return tuple(files)
