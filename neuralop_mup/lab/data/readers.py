"""Readers that return the contents of files as lazy xarray Datasets, with one function per file type.

Opening a file reads only names, shapes and attributes.
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
from xarray import Dataset, Variable, open_dataset
from xarray.conventions import decode_cf_variable

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

_MODEL_KEYS = re.compile(r"(^|[./])(weight|bias)$|optimizer|exp_avg")  # keys in a checkpoint
_SCALE_ATTRS = ("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS")  # references cannot be pickled
_PACKED_ATTRS = ("scale_factor", "add_offset", "_Unsigned")
_MISSING_ATTRS = ("_FillValue", "missing_value")


def _until_changed(load: Callable[..., dict[str, Any]], maxsize: int = 4) -> Callable[..., dict[str, Any]]:
    """Cache the result of a function that loads a file until the file changes."""
    kept = functools.lru_cache(maxsize)(lambda path, stamp, **key: load(path, **key))
    return functools.wraps(load)(lambda path, **key: kept(path, stamp_of(path), **key))


# NumPy and torch


def _header(path: Path, key: str, file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the stored shape, memory order and dtype of an array in NumPy's format. The array data follows in the file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_columns, dtype = read(file)
    if dtype.hasobject:
        raise MupError(
            f"{key} in {path} contains Python objects, which may execute code when they are loaded. Save a numeric array, "
            f"np.asarray({key}, dtype='float32')."
        )
    return shape[:: -1 if in_columns else 1], in_columns, dtype


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
                file.seek(info.header_offset + 26)  # lengths of the name and the extra field, which precede the array
                start += sum(struct.unpack("<HH", file.read(4))) + info.header_offset + 30
                found[key] = flat_array(path, key, start, shape, in_columns, dtype)
            else:
                found[key] = Stored(functools.partial(_unpacked, key=key), path, key, shape, dtype, in_columns)
    return [dataset_of(found, str(path))]


@functools.partial(_until_changed, maxsize=1024)
def _unpacked(path: str, key: str) -> dict[str, Flat]:
    """Unpack an array once into a temporary file, which is removed together with the result."""
    with (
        zipfile.ZipFile(path) as archive,
        archive.open(f"{key}.npy") as member,
        tempfile.NamedTemporaryFile(delete=False) as whole,
    ):
        shape, _, dtype = _header(Path(path), key, member)
        shutil.copyfileobj(member, whole)
    found = Flat(whole.name, 0, shape, dtype)
    weakref.finalize(found, os.remove, whole.name)
    return {key: found}


@_until_changed
def _tensors(path: str) -> dict[str, np.ndarray]:
    """Return the tensors in nested dicts and sequences, memory-mapped if possible. A pair is read as x and y."""
    loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    found = dict(_tensors_in("", loaded))
    if any(_MODEL_KEYS.search(key) for key in found):
        raise MupError(
            f"The file {path} contains model weights or a training state, but no fields. Remove it from the folder, or pass "
            "only the files with data."
        )
    return found


def _tensors_in(key: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, torch.Tensor):
        yield key or ONLY_KEY, numpy_of(value)
    if isinstance(value, (tuple, list)):
        value = dict(zip("xy" if len(value) == 2 else map(str, range(len(value))), value, strict=True))
    if isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _tensors_in(f"{key}/{name}".strip("/"), entry)


def _read_whole(opener: Callable[[str], Mapping[str, Any]], path: Path) -> list[Dataset]:
    """Read a file with a function that returns its arrays by key."""
    found = {key: Stored(opener, path, key, array.shape, array.dtype) for key, array in opener(str(path)).items()}
    return [dataset_of(found, str(path))]


# MATLAB and HDF5


@_until_changed
def _matlab(path: str) -> dict[str, np.ndarray]:
    from scipy.io import loadmat

    return {k: v for k, v in loadmat(path).items() if isinstance(v, np.ndarray) and v.dtype.kind in "biufc"}


def _hdf5(path: str) -> Any:
    return h5py.File(path, "r")


def _plain(attrs: Any) -> dict[str, Any]:
    return {name: np.asarray(v).tolist() for name, v in attrs.items() if name not in _SCALE_ATTRS}


def _is_array(key: str, entry: Any) -> bool:
    """Return whether an entry is an array of data, not a MATLAB reference or a NetCDF dimension without a coordinate."""
    is_field = isinstance(entry, h5py.Dataset) and entry.shape is not None and not key.startswith("#")
    return is_field and not bytes(entry.attrs.get("NAME", b"")).startswith(b"This is a netCDF dimension but not")


def _has_bytes(path: Path, entry: h5py.Dataset) -> bool:
    """Return whether the bytes of the file are the values of an array, if it is not stored in chunks or elsewhere.

    That is not so behind a link to another file, while this process has the file open for writing, and for floating-point
    formats that NumPy does not have, such as bfloat16.
    """
    is_native = entry.dtype.kind == "f" and entry.id.get_type() == h5py.h5t.py_create(entry.dtype)
    return is_native and entry.file.mode == "r" and os.path.samefile(entry.file.filename, path)


def _variable_of(path: Path, key: str, entry: h5py.Dataset) -> Variable:
    """Return an array of an HDF5 file. Its axes have the names from the file only if all of them are named."""
    reversed = "MATLAB_class" in entry.attrs
    names = [key] if entry.is_scale else [axis[0].name.strip("/") if len(axis) else axis.label for axis in entry.dims]
    is_named = all(names) and len(set(names)) == len(names) and not reversed
    offset = entry.id.get_offset() if _has_bytes(path, entry) else None  # None for chunks
    array = Stored(_hdf5, path, key, entry.shape, entry.dtype, reversed, entry.chunks, offset)
    return lazy(array, names if is_named else unnamed_dims(key, entry.ndim), _plain(entry.attrs))


def _sample_groups(names: Sequence[str]) -> set[str]:
    """Return the groups that contain one sample each: those named by a number, or at least four named "word" plus number."""
    groups = {key.partition("/")[0] for key in names if "/" in key}
    words = Counter(group.rstrip(digits) for group in groups)
    return {group for group in groups if group.isdigit() or (group[-1].isdigit() and words[group.rstrip(digits)] > 3)}


def _entries(path: Path, prefix: str, group: h5py.Group, above: Sequence[Any] = ()) -> Iterator[tuple[str, Any]]:
    """Yield groups and arrays of a file by path, including those reached through links. Skip links to parent groups."""
    for name in group:
        try:
            entry = group[name]
        except (KeyError, OSError):
            raise MupError(
                f"{prefix}{name} in {path} is a link to {group.get(name, getlink=True).path}, which is missing. Restore the "
                "target of the link, or remove the link."
            ) from None
        yield f"{prefix}{name}", entry
        if isinstance(entry, h5py.Group) and entry not in (*above, group):
            yield from _entries(path, f"{prefix}{name}/", entry, (*above, group))


def _linked_files(path: Path, entries: Sequence[Any]) -> list[str]:
    """Return the other files that contain groups and arrays of a file, through external links or virtual arrays."""
    found = {os.fsdecode(h5py.h5f.get_name(entry.id)) for entry in entries}
    virtual = [entry for entry in entries if isinstance(entry, h5py.Dataset) and entry.is_virtual]
    # The path of a source is relative to the file with the virtual array. The path "." is this file itself.
    found |= {
        os.path.join(os.path.dirname(entry.file.filename), source.file_name)
        for entry in virtual
        for source in entry.virtual_sources()
    }
    return sorted(filter(os.path.isfile, found - {str(path)}))


def _read_hdf5(path: Path) -> list[Dataset]:
    """Read arrays by path. If each group is a sample, ``*`` replaces the group names in the keys and in ``attrs``.

    The arrays of such groups are joined along a new sample axis. An array that is equal in all groups and has at most one
    axis is not repeated. If lengths or coordinates differ, the result contains one Dataset per group.
    """
    whole: dict[str, Variable] = {}
    samples: dict[str, dict[str, Variable]] = defaultdict(dict)
    attrs: dict[str, Any] = {"file": str(path)}
    with h5py.File(path, "r") as file:
        entries = {"": file, **dict(_entries(path, "", file))}
        groups = _sample_groups(list(entries))
        distinct = {entry: group for group, entry in entries.items() if group in groups}  # a link does not add a sample
        for key, entry in entries.items():
            group, _, inner = key.partition("/")
            star = f"*/{inner}" if group in groups else key
            if not _is_array(key, entry):
                if star not in attrs:  # the attributes of the first sample are used for all
                    attrs[star] = _plain(entry.attrs)
            elif group in groups:
                samples[distinct[entries[group]]][star] = _variable_of(path, key, entry)
            else:
                whole[star] = _variable_of(path, key, entry)
        attrs["linked"] = _linked_files(path, list(entries.values()))
    whole = _decoded(whole)
    if not samples:
        return [Dataset(whole, attrs=attrs)]
    # HDF5 lists run10 before run2, but arrays with one entry per sample follow the numbers.
    names = sorted(samples, key=lambda name: [*map(int, re.findall(r"\d+", name))])
    parts = [_decoded(samples[name]) for name in names]  # each group may have its own packing
    whole |= {star: part for star, part in parts[0].items() if _is_equal([fields.get(star) for fields in parts])}
    parts = [{star: part for star, part in fields.items() if star not in whole} for fields in parts]
    differs = any(is_coordinate(star, part) and part.ndim < 2 for star, part in parts[0].items())
    if not differs and len({tuple((star, part.shape) for star, part in fields.items()) for fields in parts}) < 2:
        return [Dataset(whole | _stacked(parts), attrs=attrs)]
    return [
        Dataset(whole | _stacked([fields]), attrs=attrs | {"file": f"{path}/{name}"})
        for name, fields in zip(names, parts, strict=True)
    ]


def _stacked(samples: Sequence[Mapping[str, Variable]]) -> dict[str, Variable]:
    """Join the arrays of samples along a new axis. Coordinates of axes are those of the first sample."""
    found = {}
    for star, first in samples[0].items():
        is_axis = first.ndim == 1 and first.size > 1 and is_coordinate(star, first)
        found[star] = first if is_axis else join_variables([fields[star] for fields in samples])
    return found


def _is_equal(parts: Sequence[Variable | None]) -> bool:
    """Return whether an array with at most one axis exists in all groups with equal values. Others are not compared."""
    if parts[0].ndim > 1 or len({getattr(part, "shape", None) for part in parts}) > 1:
        return False
    values = parts[0].values
    return all(np.array_equal(values, part.values, equal_nan=values.dtype.kind in "fc") for part in parts[1:])


def _decoded(variables: Mapping[str, Variable]) -> dict[str, Variable]:
    """Unpack packed values and replace missing ones by NaN, following the CF conventions. Times remain numbers."""
    found = dict(variables)
    for key, variable in variables.items():
        for name in {*_PACKED_ATTRS, *_MISSING_ATTRS} & variable.attrs.keys():
            if np.size(variable.attrs[name]) == 1:  # NetCDF 4 stores an array with one entry, which xarray does not expect
                variable.attrs[name] = np.ravel(variable.attrs[name])[0]
        missing = [np.ravel(variable.attrs.get(name, np.nan))[0] for name in _MISSING_ATTRS]
        is_packed = any(name in variable.attrs for name in _PACKED_ATTRS)
        if variable.dtype.kind in "biuf" and (is_packed or any(np.isfinite(missing))):
            found[key] = decode_cf_variable(key, variable, decode_times=False, decode_timedelta=False)
    return found


def _read_netcdf(path: Path) -> list[Dataset]:
    """Read a NetCDF file older than NetCDF 4."""
    return [open_dataset(path, engine="scipy", decode_times=False, cache=False).assign_attrs(file=str(path))]


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
        dims = unnamed_dims(key, array.ndim)
        if names and all(names):
            dims = [f"{group}/{name}".strip("/") for name in names]
        if array.fill_value and any(name in attrs for name in _PACKED_ATTRS):
            attrs["_FillValue"] = array.fill_value  # zarr 2 stores it here; otherwise it is the value of missing chunks
        if isinstance(attrs.get("_FillValue"), str):  # xarray encodes floats like this
            attrs["_FillValue"] = float(np.frombuffer(base64.b64decode(attrs["_FillValue"]), "<f8")[0])
        found[key] = lazy(Stored(_zarr, path, key, array.shape, array.dtype, chunks=array.chunks), dims, attrs)
    if not found:
        raise ValueError("it contains no arrays")
    return [Dataset(_decoded(found), attrs={"file": str(path)})]


#: Suffix → function that reads the file as a list of one Dataset, or of several if lengths differ. Files that contain HDF5,
#: such as newer MATLAB and NetCDF files, are read as HDF5.
READERS: dict[str, Callable[[Path], list[Dataset]]] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".pt": functools.partial(_read_whole, _tensors),
    ".pth": functools.partial(_read_whole, _tensors),
    ".h5": _read_hdf5,
    ".hdf5": _read_hdf5,
    ".mat": functools.partial(_read_whole, _matlab),
    ".nc": _read_netcdf,
    ".nc4": _read_netcdf,
    ".zarr": _read_zarr,
}


def read_file(path: str | Path) -> list[Dataset]:
    """Return the contents of a file as lazy Datasets, with several Datasets if samples have different lengths.

    Parameters
    ----------
    path : str or Path
        File with a suffix in ``READERS``, or a ``.zarr`` folder.

    Returns
    -------
    list of Dataset
        Contents of the file. ``attrs["file"]`` is its path, and ``attrs["linked"]`` lists the files to which it links. The
        other entries of ``attrs`` are the attributes of groups by path and those of the file under the key "".

    Raises
    ------
    MupError
        If the file is empty, damaged, of a different type than its suffix, or contains model weights, or if a required
        library is missing.

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
            return _read_hdf5(path) if h5py.is_hdf5(path) else READERS[path.suffix.lower()](path)
    except MupError:
        raise
    except ImportError as error:
        raise MupError(f"Reading {path} requires {error.name}, which is not installed: pip install {error.name}.") from error
    except Exception as error:  # zip, pickle and HDF5 raise many types of errors for a damaged file
        state = "it is damaged, truncated" if path.is_dir() or path.stat().st_size else "it is empty"
        why = f"{state}, or not a {path.suffix} file of arrays"
        if isinstance(error, pickle.UnpicklingError) and zipfile.is_zipfile(path):
            why = "it contains a model, its state or other Python objects. Remove it from the folder, or save only tensors"
        reason = re.split(r"\n|\. ", f"{type(error).__name__}: {error}")[0]  # omit advice from other libraries
        raise MupError(f"The file {path} cannot be read: {why} ({reason}).") from error
