"""Files, as named arrays that can be sliced without being read: a table from suffix to function.

Libraries read the files; ours is the table. What opens a file reads only names, shapes and attributes, and a file is
open only while something is read from it.
"""

import difflib
import glob
import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.io
import torch

from neuralop_mup.errors import MupError, nearest

BETWEEN = 2**16  # bytes that are read sooner than a second reading begins
THE_ONE = "data"  # the key of an array that is alone in its file and has no name there
_TOLD = 12  # names in a message
_OF_A_MODEL = re.compile(r"(^|[./])(weight|bias)$|optimizer|exp_avg")  # keys of a checkpoint


@dataclass(frozen=True)
class Content:
    """What one file, or a dict of arrays in memory, holds; of a file that can be read in parts nothing is read yet.

    Attributes
    ----------
    name : str
        The path as given, or "the data given".
    arrays : dict
        Key (in HDF5 the path in the file, without a slash in front) → array: ``shape``, ``dtype``, and ``array[index]``
        with a slice or a tuple of slices, which reads only that and gives what ``np.asarray`` takes.
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

    def is_axis(self, key: str) -> bool:
        """Whether an array is a coordinate, called like its only axis."""
        return self.dims.get(key) == (key.rpartition("/")[2],)


#: The files that are open, by what opens them, and what closes them.
_OPEN: ContextVar[tuple[ExitStack, dict[Any, Any]]] = ContextVar("open files")


@contextmanager
def reading() -> Iterator[None]:
    """What is read within opens each file once; all are closed at the end."""
    with ExitStack() as files:
        files.callback(_OPEN.reset, _OPEN.set(_OPEN.get(None) or (files, {})))
        yield


@dataclass(frozen=True, eq=False)
class Lazy:
    """An array in a file.

    Attributes
    ----------
    shape, dtype
        As of an ``np.ndarray``.
    file : callable
        Opens the file and gives, as a context, its arrays by their keys. Arrays of one file have one.
    key : str
    turned : bool, default False
        Whether the file has its axes in reverse order, as MATLAB writes, column by column.
    chunks : tuple of int, optional
        Shape of the pieces in which the file holds it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    file: Callable[[], AbstractContextManager[Mapping[str, Any]]]
    key: str
    turned: bool = False
    chunks: tuple[int, ...] | None = None

    def __getitem__(self, index: Any) -> np.ndarray:
        whole = [*index] if isinstance(index, tuple) else [index]
        whole += [slice(None)] * (len(self.shape) - len(whole))
        with reading():
            values = np.asarray(self.opened()[tuple(whole[:: -1 if self.turned else 1])])
        return values.T if self.turned else values

    def opened(self) -> Any:
        """The array of the library that reads the file, as long as that is open."""
        closing, files = _OPEN.get()
        if self.file not in files:
            files[self.file] = closing.enter_context(self.file())
        if self not in files:
            files[self] = files[self.file][self.key]
            if (shape := files[self].shape[:: -1 if self.turned else 1]) != self.shape:
                raise ValueError(f"its shape is {shape}, where {self.shape} was expected")
        return files[self]

    def lies(self) -> tuple[str, int] | None:
        """The file in which it stands as it would in memory, and its first byte there; None where it does not."""
        with reading():
            entry = self.opened()
            if isinstance(entry, np.memmap):
                return (str(entry.filename), entry.offset) if entry.flags.c_contiguous else None
            # Of chunks, and of what was never written, there is no first byte.
            alike = (
                isinstance(entry, h5py.Dataset)
                and not self.turned
                and entry.id.get_type() == h5py.h5t.py_create(self.dtype)
                and entry.id.get_offset() is not None
            )
            return (entry.file.filename, entry.id.get_offset()) if alike else None


def read_rows(path: str, offset: int, rows: np.ndarray, out: np.ndarray) -> None:
    """Fill ``out`` from a file that holds rows one after the other: each run of them at once, and nothing between."""
    with open(path, "rb", buffering=BETWEEN) as file:  # whose buffer spares calls where they are small
        for places in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1):
            file.seek(offset + int(rows[places[0]]) * out[0].nbytes)
            if file.readinto(out[places[0] : places[-1] + 1]) < len(places) * out[0].nbytes:
                raise ValueError("it is cut short")


class Stacked:
    """Arrays of one shape, such as one a group of an HDF5 file, as one array with an axis in front."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts, self.dtype, self.shape = parts, parts[0].dtype, (len(parts), *parts[0].shape)

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        return np.stack([part[index[1:]] for part in self.parts[index[0]]])


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
    data = {key: getattr(values, "variable", values) for key, values in getattr(data, "variables", data).items()}
    known = {key: values for key, values in data.items() if hasattr(values, "to_base_variable")}
    attrs |= {key: dict(values.attrs) for key, values in known.items() if values.attrs}
    dims = {key: tuple(map(str, values.dims)) for key, values in known.items()}
    return Content(name, {key: numpy_of(values) for key, values in data.items()}, dims, attrs)


def _lazy(path: Path, file: Callable[[Path], Any]) -> Content:
    """The arrays that a function opens."""
    opens = partial(file, path)
    with opens() as arrays:
        whole = content_of(arrays, str(path))
        chunks = {k: getattr(a, "encoding", {}).get("chunks") or getattr(a, "chunks", None) for k, a in whole.arrays.items()}
        found = {k: Lazy(tuple(a.shape), a.dtype, opens, k, chunks=chunks[k]) for k, a in whole.arrays.items()}
        return replace(whole, arrays=found)


def _read_npz(path: Path) -> Content:
    with np.lib.npyio.NpzFile(path) as members:  # np.load would take text for pickled arrays
        found = dict(members)
    if other := [key for key, values in found.items() if not isinstance(values, np.ndarray)]:
        raise ValueError(f"its {other[0]} is no array")
    return Content(str(path), found)


def _read_mat(path: Path) -> Content:
    if h5py.is_hdf5(path):
        return _read_hdf5(path)
    numbers = {k: v for k, v in scipy.io.loadmat(path).items() if isinstance(v, np.ndarray) and v.dtype.kind in "biufc"}
    return Content(str(path), numbers)


def _npy(path: Path) -> Any:
    return nullcontext({THE_ONE: np.lib.format.open_memmap(path, mode="r")})


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
    if any(_OF_A_MODEL.search(key) for key in content.arrays):
        raise MupError(
            f"The file {path} holds the weights of a model or a state of training, and no fields: take it out of the folder "
            "or name the files of the data alone."
        )
    return content


def _plain(attrs: Any) -> dict[str, Any]:
    return {name: getattr(v, "tolist", lambda v=v: v)() for name, v in attrs.items()}


def _read_hdf5(path: Path) -> Content:
    content, alike = Content(str(path), {}), {}
    opens = partial(h5py.File, path, "r")

    def look(name: bytes) -> None:
        key = name.decode()
        # Of groups that are a sample each the first one stands for all: there may be ten thousand.
        kind = re.sub(r"^\d+(?=/|$)", "0", key)
        if kind not in alike:
            entry = root[key]
            alike[kind] = None
            if len(entry.attrs):
                content.attrs[key] = _plain(entry.attrs)
            if isinstance(entry, h5py.Dataset) and entry.shape is not None and not key.startswith("#"):  # MATLAB's own
                turned = "MATLAB_class" in entry.attrs
                scales = tuple(axis[0].name.rpartition("/")[2] if len(axis) else axis.label for axis in entry.dims)
                shape, chunks = (part and part[:: -1 if turned else 1] for part in (entry.shape, entry.chunks))
                alike[kind] = Lazy(shape, entry.dtype, opens, key, turned, chunks), scales
        if alike[kind]:
            array, scales = alike[kind]
            content.arrays[key] = replace(array, key=key)
            if all(scales):
                content.dims[key] = scales

    with opens() as root:
        content.attrs[""] = _plain(root.attrs)
        h5py.h5o.visit(root.id, look)
    return content


@contextmanager
def _xarray(path: Path) -> Iterator[dict[str, Any]]:
    """The variables of NetCDF and Zarr, in a steady order, each behind the path of its group."""
    import xarray

    opened = xarray.open_groups if path.is_dir() or h5py.is_hdf5(path) else xarray.open_dataset
    how = {"engine": "zarr", "consolidated": False} if path.is_dir() else {}
    found = opened(path, decode_times=False, cache=False, **how)
    groups = found if isinstance(found, dict) else {"/": found}
    with ExitStack() as files:
        for group in groups.values():
            files.enter_context(group)
        every = {f"{group}/{key}".strip("/"): v for group, part in groups.items() for key, v in part.variables.items()}
        yield dict(sorted(every.items()))


def _zarr(path: Path) -> Any:
    import zarr

    found = zarr.open(str(path), mode="r")
    arrays = [(THE_ONE, found)] if hasattr(found, "shape") else sorted(found.members(max_depth=None))
    return nullcontext({key: array for key, array in arrays if hasattr(array, "shape")})


def _read_zarr(path: Path) -> Content:
    with _zarr(path) as arrays:
        named = ["_ARRAY_DIMENSIONS" in a.attrs or getattr(a.metadata, "dimension_names", None) for a in arrays.values()]
    # xarray knows of packed numbers and of those that stand for none; it cannot open arrays whose axes have no names.
    return _lazy(path, _xarray if named and all(named) else _zarr)


#: Suffix → function from a path to its content.
READERS: dict[str, Callable[[Path], Content]] = {
    ".npz": _read_npz,
    ".npy": partial(_lazy, file=_npy),
    **dict.fromkeys((".pt", ".pth"), _read_pt),
    **dict.fromkeys((".h5", ".hdf5"), _read_hdf5),
    ".mat": _read_mat,
    **dict.fromkeys((".nc", ".nc4"), partial(_lazy, file=_xarray)),
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
        raise MupError(f"{path} needs {error.name}, which is not installed: pip install {error.name}.") from error
    except Exception as error:  # a damaged file can fail in as many ways as zip, pickle and HDF5 know
        state = "it is damaged, cut short" if path.is_dir() or path.stat().st_size else "it is empty"
        why = f"{state}, or no {path.suffix} of arrays"
        if isinstance(error, pickle.UnpicklingError) and zipfile.is_zipfile(path):
            why = "it holds a model, its state or other objects of Python: take it out of the folder, or save tensors alone"
        if isinstance(error, PermissionError):
            why = "you may not read it"
        reason = re.split(r"\n|\. ", f"{type(error).__name__}: {error}")[0]  # not the advice of other libraries
        raise MupError(f"The file {path} cannot be read: {why} ({reason}).") from error


def contents_of(files: Sequence[str]) -> list[Content]:
    """What files hold, one content each; an array alone in a file named x and one in a file named y are one content.

    Examples
    --------
    >>> import numpy as np
    >>> from neuralop_mup.lab.problems.readers import contents_of
    >>> np.save("x.npy", np.zeros((40, 16)))
    >>> np.save("y.npy", np.zeros((40, 16)))
    >>> [list(content.arrays) for content in contents_of(["x.npy", "y.npy"])]
    [['x', 'y']]
    """
    found = {Path(file).stem: read_file(file) for file in files}
    if sorted(found) == ["x", "y"] and all(list(content.arrays) == [THE_ONE] for content in found.values()):
        arrays = {key: content.arrays[THE_ONE] for key, content in found.items()}
        return [Content(str(Path(files[0]).parent), arrays)]
    return [read_file(file) for file in files]


def readable(folder: Path) -> list[str]:
    """The files in a folder that can be read here."""
    return sorted(str(inner) for inner in folder.iterdir() if inner.suffix.lower() in READERS)


def near(path: str | Path) -> list[str]:
    """Names of files and folders beside a path that is not there, those most like its own."""
    names = [other.name for other in Path(path).parent.glob("[!.]*") if other.is_dir() or other.suffix.lower() in READERS]
    return difflib.get_close_matches(Path(path).name, names, _TOLD, cutoff=0)


def files_of(given: str | Path | Iterable[str | Path]) -> tuple[str, ...]:
    """The files that are meant: a folder stands for those in it that can be read, and so does a pattern such as "runs/*.h5".

    Parameters
    ----------
    given : path or iterable of path

    Raises
    ------
    MupError
        For a path that is not there or of another kind, a folder without a file of these kinds, and for none at all.

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
            files += readable(path) or [str(path)]
        else:
            files += (not path.exists() and sorted(glob.glob(str(path)))) or [str(path)]
    for path in map(Path, files):
        if not path.exists():
            others = near(path)
            beside = nearest(path.name, others) if others else f"nor is there another in {path.absolute().parent}."
            raise MupError(f"There is no file or folder {path}; {beside}")
        if path.suffix.lower() not in READERS:
            what = f"The folder {path} has no file" if path.is_dir() else f"{path} is no file"
            raise MupError(
                f"{what} that can be read here, of a name that ends in {', '.join(READERS)}: other files are given in "
                "Python, as arrays (x, y)."
            )
    if not files:
        raise MupError(f"There is no data file in {given!r}; give one or more, such as heat.npz or runs/*.h5.")
    return tuple(files)
