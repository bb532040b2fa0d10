"""Data sources from files, arrays, data sets, loaders, or a function that returns one of these.

The ``load()`` method of a source returns :class:`ProblemData` or :class:`Loaders`. Worker processes receive the source.
"""

import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, Subset, default_collate

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.data.files import ONLY_KEY, SPLITS, by_split, draw, files_of, role_of, split_words
from neuralop_mup.lab.data.loaders import Loaders
from neuralop_mup.lab.data.own import OwnData
from neuralop_mup.lab.data.problem_data import ProblemData, Splits
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.problems.base import Problem


class _Called:
    """Data from a function. Every process calls it, and it must return the same data each time.

    Parameters
    ----------
    function : callable
    read : mapping
        Options for reading files or arrays, as in :func:`as_source`.
    """

    def __init__(self, function: Callable[[], Any], read: Mapping[str, Any]) -> None:
        self.function, self.read, self.digest = function, read, ""
        self.title, self.readings = getattr(function, "__name__", "the given data"), {}

    def load(self) -> ProblemData | Loaders:
        """Return the data from the function. Raise MupError if it differs from the data of the first call."""
        source = as_source(self.function(), self.read)
        data, self.readings = source.load(), getattr(source, "readings", {})
        digest = fingerprint(data)
        if digest != (self.digest or digest):
            raise MupError(
                f"{self.title}() returned different data than at the start of the study; it must return the same data on "
                "every call."
            )
        self.digest = digest
        return data


def options_of(read: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options for reading files. Raise MupError for an unknown option."""
    if not isinstance(read or {}, Mapping):
        raise MupError(f"read={read!r} must be a dict of options for reading files, such as {{'time_step': 1}}.")
    known = {f.name for f in fields(OwnData)} - {"files", "arrays", "stamps", "linked"}
    for name in read or {}:
        if name not in known:
            option, _, axis = str(name).partition(".")
            shell = f" To set it for a single axis, use --read.{option} '{{{axis}: …}}'." if axis else ""
            raise MupError(f"Unknown option {name!r} in read: {nearest(option, known)}{shell}")
    return dict(read or {})


def as_source(data: Any, read: Mapping[str, Any] | None = None) -> Any:
    """Return data of any accepted form as a source with a ``load()`` method.

    Parameters
    ----------
    data : Any
        Data in one of the forms accepted by :func:`neuralop_mup.tune`.
    read : mapping, optional
        Options for reading files or arrays: arguments of :class:`OwnData`.

    Raises
    ------
    MupError
        If the data has none of these forms, or if its arrays do not fit together.
    """
    read = options_of(read)
    if callable(data) and not isinstance(data, Dataset):
        return _Called(data, read)
    if not read and isinstance(data, (Problem, OwnData, Splits)):
        return data
    data, processor = _from_neuralop(data)
    parts = _parts(data)
    if all(_are_paths(part) for part in parts.values()):
        return OwnData(files=parts.get("all", parts) if len(parts) == 1 else parts, **read)
    arrays = {name: _arrays(part) for name, part in parts.items()}
    if all(arrays.values()):
        return OwnData(arrays=arrays, **read)
    if read:
        raise MupError(
            "read= applies only to files and arrays. Omit it, and convert arrays to the form (n, channels, *grid) with "
            "x.movedim(-1, 1), or np.moveaxis(x, -1, 1) in NumPy."
        )
    if any(arrays.values()):
        kinds = [f"{name} is {'arrays' if arrays[name] else type(part).__name__}" for name, part in parts.items()]
        raise MupError(
            f"The splits have different forms: {', '.join(kinds)}. Pass every split in the same form, as arrays (x, y) or "
            "as a loader."
        )
    given, readings = _divided(by_split(parts))
    return Loaders(given, processor, readings)


def _parts(data: Any) -> dict[str, Any]:
    """Return the parts given for train, val and test, or the whole data under "all"."""
    is_one = _arrays(data) is not None or (isinstance(data, list) and _are_paths(data))
    if isinstance(data, Mapping) and not is_one:
        return dict(data)
    if is_one or not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        return {"all": data}
    names = list(SPLITS[: len(data)])
    if len(data) == 2 and _are_paths(data):
        (one, role), (other, other_role) = map(role_of, data)
        if one == other and role != other_role:  # files such as x.npy and y.npy are input and output, not two splits
            return {"all": list(data)}
    if all(_are_paths(part) for part in data):
        # Files with "test" in their names are never used for validation.
        names = [word or name for word, name in zip(split_words(list(map(files_of, data))), names, strict=True)]
    if len(set(names)) < len(names):
        raise MupError(
            f"The names of the files {data!r} assign them to {' and '.join(names)}. Pass a dict that assigns each file to a "
            f"different split, {{'train': …, 'val': …}}."
        )
    return dict(zip(names, data, strict=True))


def _from_neuralop(data: Any) -> tuple[Any, Any]:
    """Return the training data and the first test data from neuralop's loaders and data sets, and their processor."""
    if hasattr(data, "train_db") and hasattr(data, "test_dbs"):
        data = (data.train_db, data.test_dbs, data.data_processor)
    is_triple = isinstance(data, tuple) and len(data) == 3 and isinstance(data[1], Mapping) and _arrays(data[1]) is None
    if not is_triple or not (data[2] is None or hasattr(data[2], "preprocess")):
        return data, None
    train, tests, processor = data
    return dict(zip(("train", "test"), (train, *tests.values()), strict=False)), processor


def _divided(parts: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Divide a data set given under "all". Return the parts and the report lines about the split."""
    if "all" not in parts:
        return parts, {}
    whole = parts.pop("all")
    if isinstance(whole, DataLoader) and whole.collate_fn is default_collate:
        whole = whole.dataset if isinstance(whole.sampler, (RandomSampler, SequentialSampler)) else whole
    if not isinstance(whole, Dataset) or isinstance(whole, IterableDataset):
        raise MupError(
            f"{'train' if parts else 'data'} is a {type(whole).__name__}. Pass the path of a file, arrays (x, y), a pair "
            "(train, val) or a dict with 'train' and 'val' that contain files, loaders, data sets or arrays (x, y), or a "
            "function that returns one of these. Without validation data, a validation split can be taken only from files, "
            "arrays and data sets."
        )
    order = draw(len(whole), OwnData.split, parts, shuffle=True)
    parts |= {split: Subset(whole, numbers.tolist()) for split, numbers in order.items()}
    counts = ", ".join(f"{len(numbers)} {split}" for split, numbers in order.items())
    return parts, {"splits": f"{counts}, drawn at random from the training data, the same in every run"}


def _are_paths(value: Any) -> bool:
    """Return whether a value is a path or a non-empty sequence of paths."""
    entries = value if isinstance(value, (tuple, list)) else [value]
    return bool(entries) and all(isinstance(entry, (str, Path)) for entry in entries)


def _arrays(part: Any) -> dict[str, Any] | None:
    """Return arrays by key, including those of xarray, or None if the part is not an array form."""
    if isinstance(part, (torch.Tensor, np.ndarray)):
        part = {ONLY_KEY: part}
    elif hasattr(part, "data_vars"):  # an xarray Dataset
        part = {key: part[key] for key in part.variables}
    elif hasattr(part, "coords"):  # an xarray DataArray
        part = {part.name or ONLY_KEY: part, **{key: part[key] for key in part.coords if key in part.dims}}
    elif isinstance(part, (tuple, list)) and len(part) == 2:
        part = dict(zip("xy", part, strict=True))
    if isinstance(part, Mapping) and part.keys() == {"x", "y"} and any(hasattr(v, "coords") for v in part.values()):
        part = _pair_of_named(part["x"], part["y"])
    if not isinstance(part, Mapping) or not part or not all(hasattr(v, "dtype") for v in part.values()):
        return None
    return {str(key): _kept(values) for key, values in part.items()}


def _pair_of_named(x: Any, y: Any) -> dict[str, Any]:
    """Return a pair of DataArrays and their coordinates under keys that cannot conflict with axes named x and y."""
    coords: dict[str, Any] = {}
    for values in (x, y):
        for dim, at in getattr(values, "coords", {}).items():
            if dim in values.dims and not coords.setdefault(dim, at).equals(at):
                raise MupError(
                    f"x and y have different coordinates along {dim}, so it is unclear which entries belong together. To "
                    "keep only matching coordinates, use x, y = xarray.align(x, y). To pair entries by position, use "
                    f"x.drop_vars({dim!r}) and y.drop_vars({dim!r})."
                )
    return {"input": x, "output": y, **coords}


def _kept(values: Any) -> Any:
    """Return an array. A memory-mapped array becomes a lazy one, which each process maps only while reading."""
    is_file = type(values) is np.memmap and isinstance(values.base, mmap.mmap) and values.flags.c_contiguous
    # The file may be deleted or temporary, and changes of a copy-on-write map exist only in memory.
    if not is_file or values.mode == "c" or not os.path.exists(values.filename or ""):
        return values
    from neuralop_mup.lab.data.arrays import flat_array

    return flat_array(str(values.filename), ONLY_KEY, values.offset, values.shape, False, values.dtype)
