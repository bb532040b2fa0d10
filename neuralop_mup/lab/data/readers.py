"""Files of each kind as lazy xarray Datasets: a table from suffix to function.

Opening a file reads names, shapes and attributes only.
"""

import base64
import functools
import os
import pickle
import re
import shutil
import struct
import tempfile
import weakref
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import digits
from typing import Any

import h5py
import numpy as np
import torch
from xarray import Dataset, Variable, decode_cf, open_dataset

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.arrays import (
    Flat,
    Stored,
    dataset_of,
    flat_array,
    is_coordinate,
    join_variables,
    lazy,
    unnamed_dims,
)
from neuralop_mup.lab.data.files import ONLY_KEY
from neuralop_mup.lab.data.handles import numpy_of, reading, stamp_of

_MODEL_KEYS = re.compile(r"(^|[./])(weight|bias)$|optimizer|exp_avg")  # keys of a checkpoint
_SCALE_ATTRS = ("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS")  # references do not pickle
_PACKED_ATTRS = ("scale_factor", "add_offset")
_MISSING_ATTRS = ("_FillValue", "missing_value")


def _until_changed(load: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """Keep what a function loads from a file, until the file changes."""
    kept = functools.lru_cache(maxsize=4)(lambda path, stamp: load(path))
    return functools.wraps(load)(lambda path: kept(path, stamp_of(path)))


# NumPy and torch


def _header(path: Path, key: str, file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read shape, order and type of an array in NumPy's format; its numbers follow in the file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_columns, dtype = read(file)
    if dtype.hasobject:
        raise MupError(
            f"{key} in {path} holds objects of Python, which may run code: save an array of numbers, "
            f"np.asarray({key}, dtype='float32')."
        )
    return shape, in_columns, dtype


def _read_npy(path: Path) -> list[Dataset]:
    with open(path, "rb") as file:
        header = _header(path, ONLY_KEY, file)
        return [dataset_of({ONLY_KEY: flat_array(path, ONLY_KEY, file.tell(), *header)}, str(path))]


def _read_npz(path: Path) -> list[Dataset]:
    found: dict[str, Stored] = {}
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for info in archive.infolist():
            key = info.filename.removesuffix(".npy")
            with archive.open(info) as member:
                shape, in_columns, dtype = _header(path, key, member)
                start = member.tell()
            if info.compress_type == zipfile.ZIP_STORED:
                file.seek(info.header_offset + 26)  # lengths of name and extra field, which stand before the array
                start += sum(struct.unpack("<HH", file.read(4))) + info.header_offset + 30
                found[key] = flat_array(path, key, start, shape, in_columns, dtype)
            else:
                found[key] = Stored(_Unpacked, path, key, shape, dtype, in_columns)
    return [dataset_of(found, str(path))]


class _Unpacked(dict):
    """The arrays of a compressed .npz file, each unpacked when somebody asks for it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __missing__(self, key: str) -> Flat:
        return _unpacked(self.path, key, stamp_of(self.path))


@functools.lru_cache(maxsize=1024)
def _unpacked(path: str, key: str, stamp: tuple) -> Flat:
    """Unpack an array once, into a temporary file that exists as long as the result."""
    with zipfile.ZipFile(path).open(f"{key}.npy") as member, tempfile.NamedTemporaryFile(delete=False) as whole:
        shape, in_columns, dtype = _header(Path(path), key, member)
        shutil.copyfileobj(member, whole)
    found = Flat(whole.name, 0, shape[:: -1 if in_columns else 1], dtype)
    weakref.finalize(found, os.remove, whole.name)
    return found


@_until_changed
def _tensors(path: str) -> dict[str, np.ndarray]:
    """Return the tensors in dicts and sequences, mapped where torch can; a pair is x and y."""
    return _tensors_in("", torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)))


def _tensors_in(key: str, value: Any) -> dict[str, np.ndarray]:
    if isinstance(value, torch.Tensor):
        return {key or ONLY_KEY: numpy_of(value)}
    if isinstance(value, (tuple, list)):
        value = dict(zip("xy" if len(value) == 2 else map(str, range(len(value))), value, strict=True))
    if not isinstance(value, Mapping):
        return {}
    parts = [_tensors_in(f"{key}/{name}".strip("/"), entry) for name, entry in value.items()]
    return {inner: array for part in parts for inner, array in part.items()}


def _read_opened(path: Path, opener: Callable[[str], Mapping[str, Any]]) -> list[Dataset]:
    """Read what a function opens as arrays that have a shape and a type."""
    found = {key: Stored(opener, path, key, array.shape, array.dtype) for key, array in opener(str(path)).items()}
    return [dataset_of(found, str(path))]


def _read_tensors(path: Path) -> list[Dataset]:
    found = _read_opened(path, _tensors)
    if any(_MODEL_KEYS.search(str(key)) for key in found[0].variables):
        raise MupError(
            f"The file {path} holds the weights of a model or a state of training, and no fields: take it out of the "
            "folder, or name the files with data."
        )
    return found


# MATLAB and HDF5


@_until_changed
def _matlab(path: str) -> dict[str, np.ndarray]:
    from scipy.io import loadmat

    return {k: v for k, v in loadmat(path).items() if isinstance(v, np.ndarray) and v.dtype.kind in "biufc"}


def _read_mat(path: Path) -> list[Dataset]:
    return _read_hdf5(path) if h5py.is_hdf5(path) else _read_opened(path, _matlab)


def _hdf5(path: str) -> Any:
    return h5py.File(path, "r")


def _plain(attrs: Any) -> dict[str, Any]:
    return {name: getattr(v, "tolist", lambda v=v: v)() for name, v in attrs.items() if name not in _SCALE_ATTRS}


def _is_array(key: str, entry: Any) -> bool:
    """Return whether an entry is an array: not MATLAB's references, nor a dimension of NetCDF without a coordinate."""
    is_field = isinstance(entry, h5py.Dataset) and entry.shape is not None and not key.startswith("#")
    return is_field and not bytes(entry.attrs.get("NAME", b"")).startswith(b"This is a netCDF dimension but not")


def _variable_of(path: Path, key: str, entry: h5py.Dataset) -> Variable:
    """Return an array of an HDF5 file with the names that the file has for its axes, all or none."""
    reversed = "MATLAB_class" in entry.attrs
    shape, chunks = (part and part[:: -1 if reversed else 1] for part in (entry.shape, entry.chunks))
    names = [key] if entry.is_scale else [axis[0].name.strip("/") if len(axis) else axis.label for axis in entry.dims]
    is_named = all(names) and len(set(names)) == len(names) and not reversed
    array = Stored(_hdf5, path, key, shape, entry.dtype, reversed, chunks)
    return lazy(array, names if is_named else unnamed_dims(key, len(shape)), _plain(entry.attrs))


def _sample_groups(names: Sequence[str]) -> set[str]:
    """Return the groups that are a sample each: called by a number, or four or more by one word and a number."""
    groups = {key.partition("/")[0] for key in names if "/" in key}
    words = Counter(group.rstrip(digits) for group in groups)
    return {group for group in groups if group.isdigit() or (group[-1].isdigit() and words[group.rstrip(digits)] > 3)}


def _entries(path: Path, prefix: str, group: h5py.Group, above: Sequence[Any] = ()) -> Iterator[tuple[str, Any]]:
    """Give groups and arrays of a file by their paths, those behind links too; a link to a group above is left out."""
    for name in group:
        try:
            entry = group[name]
        except (KeyError, OSError):
            raise MupError(
                f"{prefix}{name} in {path} is a link to {group.get(name, getlink=True).path}, which is missing: bring back "
                "the file or array that it refers to, or remove the link."
            ) from None
        yield f"{prefix}{name}", entry
        if isinstance(entry, h5py.Group) and entry not in (*above, group):
            yield from _entries(path, f"{prefix}{name}/", entry, (*above, group))


def _read_hdf5(path: Path) -> list[Dataset]:
    """Read arrays by their paths. Where groups are a sample each, ``*`` stands for their names.

    An array of the groups gets an axis of samples. One that is equal in all groups and has at most one axis stays single.
    Where lengths or coordinates differ, the result is a Dataset for each group.
    """
    whole: dict[str, Variable] = {}
    samples: dict[str, dict[str, Variable]] = defaultdict(dict)
    attrs: dict[str, Any] = {"file": str(path)}
    with h5py.File(path, "r") as file:
        attrs[""] = _plain(file.attrs)
        entries = dict(_entries(path, "", file))
        groups = _sample_groups(list(entries))
        distinct = {entry: group for group, entry in entries.items() if group in groups}  # a link is no further sample
        for key, entry in entries.items():
            group, _, inner = key.partition("/")
            star = f"*/{inner}" if group in groups else key
            if star in attrs or (group in groups and distinct[entries[group]] != group):
                continue  # the attributes of the first sample are used for all
            if not _is_array(key, entry):
                attrs[star] = _plain(entry.attrs)
            elif group in groups:
                samples[group][star] = _variable_of(path, key, entry)
            else:
                whole[star] = _variable_of(path, key, entry)
    parts = [_decoded(fields) for fields in samples.values()]  # each group may have its own packing
    shared = {star: part for star, part in (parts[0] if parts else {}).items() if _is_equal([p.get(star) for p in parts])}
    parts = [{star: part for star, part in fields.items() if star not in shared} for fields in parts]
    differs = any(is_coordinate(star, part) and part.ndim < 2 for fields in parts for star, part in fields.items())
    if not differs and len({tuple((star, part.shape) for star, part in fields.items()) for fields in parts}) < 2:
        joined = {star: join_variables([fields[star] for fields in parts]) for star in (parts[0] if parts else ())}
        return [Dataset(_decoded(whole) | shared | joined, attrs=attrs)]
    found = []
    for group, fields in zip(samples, parts, strict=True):
        single = {star: part if _is_axis(star, part) else join_variables([part]) for star, part in fields.items()}
        found.append(Dataset(_decoded(whole) | shared | single, attrs=attrs | {"file": f"{path}/{group}"}))
    return found


def _is_axis(key: str, variable: Variable) -> bool:
    """Return whether an array is the coordinate of one axis."""
    return variable.ndim == 1 and variable.size > 1 and is_coordinate(key, variable)


def _is_equal(parts: Sequence[Variable | None]) -> bool:
    """Return whether arrays of one axis or none exist in all groups with equal values; larger ones are not compared."""
    first = parts[0]
    if first is None or first.ndim > 1 or any(part is None or part.shape != first.shape for part in parts):
        return False
    values = first.values
    return all(
        np.array_equal(values, part.values, equal_nan=values.dtype.kind in "fc") for part in parts[1:] if part is not None
    )


def _decoded(variables: Mapping[str, Variable]) -> dict[str, Variable]:
    """Unpack packed numbers and put NaN for missing ones, as the CF conventions say; times stay numbers."""
    coded = []
    for variable in variables.values():
        missing = [np.ravel(variable.attrs.get(name, np.nan))[0] for name in _MISSING_ATTRS]
        is_packed = any(name in variable.attrs for name in _PACKED_ATTRS)
        coded.append(variable.dtype.kind in "biuf" and (is_packed or any(np.isfinite(missing))))
    if not any(coded):
        return dict(variables)
    found = decode_cf(Dataset(variables), decode_times=False, decode_timedelta=False, decode_coords=False)
    return {key: found[key].variable for key in variables}


def _read_netcdf(path: Path) -> list[Dataset]:
    """Read NetCDF 4 as HDF5; the older format is one of scipy's."""
    if h5py.is_hdf5(path):
        return _read_hdf5(path)
    found = open_dataset(path, engine="scipy", decode_times=False, cache=False)
    return [found.assign_attrs({"file": str(path)})]


# Zarr


def _zarr(path: str) -> dict[str, Any]:
    import zarr

    found = zarr.open(path, mode="r")
    every = [(ONLY_KEY, found)] if hasattr(found, "shape") else sorted(found.members(max_depth=None))
    return {key: array for key, array in every if hasattr(array, "shape")}


def _read_zarr(path: Path) -> list[Dataset]:
    found = {}
    for key, array in _zarr(str(path)).items():
        attrs = dict(array.attrs)
        names = attrs.pop("_ARRAY_DIMENSIONS", None) or getattr(array.metadata, "dimension_names", None)
        group = key.rpartition("/")[0]
        is_named = bool(names) and all(names)
        dims = [f"{group}/{name}".strip("/") for name in names] if is_named else unnamed_dims(key, array.ndim)
        if array.fill_value and any(name in attrs for name in _PACKED_ATTRS):
            attrs["_FillValue"] = array.fill_value  # zarr 2 has it here; elsewhere it stands for chunks that are absent
        if isinstance(attrs.get("_FillValue"), str):  # as xarray writes real numbers
            attrs["_FillValue"] = float(np.frombuffer(base64.b64decode(attrs["_FillValue"]), "<f8")[0])
        found[key] = lazy(Stored(_zarr, path, key, array.shape, array.dtype, chunks=array.chunks), dims, attrs)
    if not found:
        raise ValueError("it has no array")
    return [Dataset(_decoded(found), attrs={"file": str(path)})]


#: Suffix → function from a path to what the file holds: one Dataset, or several where lengths differ.
READERS: dict[str, Callable[[Path], list[Dataset]]] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    **dict.fromkeys((".pt", ".pth"), _read_tensors),
    **dict.fromkeys((".h5", ".hdf5"), _read_hdf5),
    ".mat": _read_mat,
    **dict.fromkeys((".nc", ".nc4"), _read_netcdf),
    ".zarr": _read_zarr,
}


def read_file(path: str | Path) -> list[Dataset]:
    """Return what a file holds: lazy Datasets, several where samples have different lengths.

    Parameters
    ----------
    path : str or Path
        With a suffix of ``READERS``; a ``.zarr`` is a folder.

    Returns
    -------
    list of Dataset
        ``attrs["file"]`` is the path. Attributes of groups are there by their paths, those of the file under "".

    Raises
    ------
    MupError
        If the file is empty, damaged, of another kind than its name says, or the weights of a model, or if a library is
        missing.

    Examples
    --------
    >>> import numpy as np
    >>> from neuralop_mup.lab.data.readers import read_file
    >>> np.savez("heat.npz", x=np.zeros((40, 16)))
    >>> read_file("heat.npz")[0]["x"].shape
    (40, 16)
    """
    path = Path(path)
    try:
        with reading():
            return READERS[path.suffix.lower()](path)
    except MupError:
        raise
    except ImportError as error:
        raise MupError(f"{path} needs {error.name}, which is not installed: pip install {error.name}.") from error
    except Exception as error:  # zip, pickle and HDF5 raise many kinds of errors for a damaged file
        state = "it is damaged, cut short" if path.is_dir() or path.stat().st_size else "it is empty"
        why = f"{state}, or no {path.suffix} of arrays"
        if isinstance(error, pickle.UnpicklingError) and zipfile.is_zipfile(path):
            why = "it holds a model, its state or other objects of Python: take it out of the folder, or save only tensors"
        reason = re.split(r"\n|\. ", f"{type(error).__name__}: {error}")[0]  # without the advice of other libraries
        raise MupError(f"The file {path} cannot be read: {why} ({reason}).") from error
