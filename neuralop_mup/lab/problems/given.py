"""Data in the forms that people have it: files, arrays, data sets, loaders, or a function that makes one of these.

A source has ``load()``, which gives :class:`ProblemData` or :class:`Loaders`, and is what goes to other processes.
"""

import mmap
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, Subset, default_collate

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.problems.base import Problem
from neuralop_mup.lab.problems.batches import spread
from neuralop_mup.lab.problems.data import SPLITS, ProblemData, check_single
from neuralop_mup.lab.problems.loaders import Loaders
from neuralop_mup.lab.problems.own import OwnData
from neuralop_mup.lab.problems.readers import THE_ONE, Lazy, files_of
from neuralop_mup.lab.problems.splits import by_split, drawn, words_of

_ARRAYS = (torch.Tensor, np.ndarray)
_FORMS = (
    "give the path of a file, arrays (x, y), a pair (train, val) or dict with 'train' and 'val' of files, loaders, data "
    "sets or (x, y) arrays, or a function that returns one of these"
)


class _Called:
    """A function that every process calls, and that must give the same data each time.

    Parameters
    ----------
    function : callable
    read, dtype
        As for :func:`as_source`.
    """

    def __init__(self, function: Callable[[], Any], read: Mapping[str, Any] | None, dtype: torch.dtype | None) -> None:
        self.function, self.read, self.dtype, self.digest = function, read, dtype, ""
        self.title, self.readings = getattr(function, "__name__", "the data given"), {}

    def load(self) -> ProblemData | Loaders:
        """What the function gives now; MupError if it is not what it gave first."""
        source = as_source(self.function(), self.read, self.dtype)
        data, self.readings = source.load(), getattr(source, "readings", {})
        digest = fingerprint(data)
        if digest != (self.digest or digest):
            raise MupError(f"{self.title}() gives other data than when the study began: it must give the same each time.")
        self.digest = digest
        return data


def options_of(read: Mapping[str, Any] | None) -> dict[str, Any]:
    """How files are to be read, as was said; MupError for what no reader knows."""
    if not isinstance(read or {}, Mapping):
        raise MupError(f"read={read!r} must be a dict of how files are read, such as {{'time_step': 1}}.")
    known = {f.name for f in fields(OwnData)} - {"files", "arrays", "stamps"}
    if wrong := [name for name in read or {} if name not in known]:
        raise MupError(f"read has no argument {wrong[0]!r}; {nearest(wrong[0], known)}")
    return dict(read or {})


def as_source(data: Any, read: Mapping[str, Any] | None = None, dtype: torch.dtype | None = None) -> Any:
    """The data in any form, as something that can be loaded.

    Parameters
    ----------
    data : Any
        In one of the forms of :func:`neuralop_mup.tune`.
    read : mapping, optional
        How files or arrays are read: arguments of :class:`OwnData`.
    dtype : torch.dtype, optional
        Real precision to which arrays of given splits are cast, the model's; None leaves them as they are.

    Raises
    ------
    MupError
        For what is in none of these forms, and for arrays that cannot be what they are given as.
    """
    read = options_of(read)
    if callable(data) and not isinstance(data, Dataset):
        return _Called(data, read, dtype)
    if not read and isinstance(data, (Problem, OwnData, ProblemData, Loaders)):
        return data
    data, processor = _of_neuralop(data)
    parts = _parts(data)
    if all(_all_are(part, (str, Path)) for part in parts.values()):
        return OwnData(files=parts.get("all", parts) if len(parts) == 1 else parts, **read)
    arrays = {name: _arrays(part) for name, part in parts.items()}
    pairs = {name: _pair(part) for name, part in parts.items()}
    lacks_channels = any(values.ndim < 3 for pair in pairs.values() for values in pair or ())
    if all(arrays.values()) and (read or "all" in parts or lacks_channels or not all(pairs.values())):
        return OwnData(arrays=by_split(arrays), **read)
    if read:
        raise MupError(
            "read= says how files or arrays are read, and the data is given otherwise: leave it out, and "
            "bring arrays into the form (n, channels, *grid) by x.movedim(-1, 1), or with numpy np.moveaxis(x, -1, 1)."
        )
    if not all(pairs.values()) and any(arrays[name] or isinstance(part, _ARRAYS) for name, part in parts.items()):
        kinds = [f"{name} a {'pair of arrays' if pairs[name] else type(part).__name__}" for name, part in parts.items()]
        raise MupError(
            f"{', '.join(kinds)}: give each split alike, as a pair of arrays (x, y) of input and output, or as a loader."
        )
    given = _fields(by_split(pairs), dtype) if all(pairs.values()) else by_split(parts)
    given, told = _divided(given) if "all" in given else (given, {})
    return ProblemData(**given, readings=told) if all(pairs.values()) else Loaders(given, processor, told)


def _parts(data: Any) -> dict[str, Any]:
    """What is given for train, val and test, or for all of them."""
    if isinstance(data, _ARRAYS):
        return {"all": {THE_ONE: data}}
    if isinstance(data, Mapping) and not hasattr(data, "coords") and _arrays(data) is None:
        return dict(data)
    joined = isinstance(data, list) and _all_are(data, (str, Path))
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3) or joined or _arrays(data) is not None:
        return {"all": data}
    names = list(SPLITS[: len(data)])
    if all(_all_are(part, (str, Path)) for part in data):
        # What is called test is never for validation.
        names = [word or name for word, name in zip(words_of(list(map(files_of, data))), names, strict=True)]
    if len(set(names)) < len(names):
        raise MupError(f"{data!r} are called {' and '.join(names)}: say which is which, {{'train': …, 'val': …}}.")
    return dict(zip(names, data, strict=True))


def _of_neuralop(data: Any) -> tuple[Any, Any]:
    """Of neuralop's loaders and data sets the training data and the first of the test data, and their processor."""
    if hasattr(data, "train_db") and hasattr(data, "test_dbs"):
        data = (data.train_db, data.test_dbs, data.data_processor)
    is_one = isinstance(data, tuple) and len(data) == 3 and isinstance(data[1], Mapping) and _arrays(data[1]) is None
    if not is_one or not (data[2] is None or hasattr(data[2], "preprocess")):
        return data, None
    train, tests, processor = data
    return dict(zip(("train", "test"), (train, *tests.values()), strict=False)), processor


def _divided(parts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Data sets or arrays of which "all" is divided further, and what is to be told of it."""
    parts = dict(parts)
    whole, shares = parts.pop("all"), OwnData.split
    if isinstance(whole, DataLoader) and whole.collate_fn is default_collate:
        whole = whole.dataset if isinstance(whole.sampler, (RandomSampler, SequentialSampler)) else whole
    is_pair = isinstance(whole, tuple) and _all_are(whole, _ARRAYS)
    if not is_pair and (not isinstance(whole, Dataset) or isinstance(whole, IterableDataset)):
        raise MupError(
            f"{'train' if parts else 'data'} is a {type(whole).__name__}; {_FORMS}. Without validation data a part is taken "
            "of files, arrays and data sets alone."
        )
    order = drawn(len(whole[0] if is_pair else whole), shares, parts, shuffle=True)
    for split, numbers in order.items():
        parts[split] = tuple(v[numbers] for v in whole) if is_pair else Subset(whole, numbers.tolist())
    counts = ", ".join(f"{len(numbers)} {split}" for split, numbers in order.items())
    told = f"{counts}, drawn at random from the training data, the same in every run"
    return parts, {"splits": told}


def _all_are(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of these kinds, or a sequence of such."""
    entries = value if isinstance(value, (tuple, list)) else [value]
    return bool(entries) and all(isinstance(entry, kinds) for entry in entries)


def _arrays(part: Any) -> dict[str, Any] | None:
    """Arrays by their keys, those of xarray among them; None where something else is given."""
    if hasattr(part, "coords"):  # what xarray has, which need not be installed
        part = {key: part[key] for key in part.variables} if hasattr(part, "data_vars") else {part.name or THE_ONE: part}
    elif isinstance(part, (tuple, list)) and len(part) == 2:
        part = dict(zip("xy", part, strict=True))
    if not isinstance(part, Mapping) or not part or not all(hasattr(v, "dtype") for v in part.values()):
        return None
    return {str(key): _kept(values) for key, values in part.items()}


def _kept(values: Any) -> Any:
    """An array; one that is mapped from a file is mapped while it is read, and in other processes likewise."""
    if type(values) is not np.memmap or not isinstance(values.base, mmap.mmap) or not values.flags.c_contiguous:
        return values
    file = str(values.filename)
    return Lazy(values.shape, values.dtype, partial(_mapped, file, values.dtype, values.offset, values.shape), file)


def _mapped(file: str, dtype: np.dtype, offset: int, shape: tuple[int, ...]) -> Any:
    return nullcontext({file: np.memmap(file, dtype, "r", offset, shape)})


def _pair(part: Any) -> tuple[Any, Any] | None:
    """Input and output where both are given as arrays in memory."""
    if isinstance(part, Mapping) and {"x", "y"} <= set(part):
        part = (part["x"], part["y"])
    is_pair = isinstance(part, (tuple, list)) and len(part) == 2 and _all_are(part, _ARRAYS)
    return tuple(part) if is_pair and not any(isinstance(_kept(values), Lazy) for values in part) else None


def _fields(pairs: Mapping[str, tuple[Any, Any]], dtype: torch.dtype | None) -> dict[str, tuple[torch.Tensor, ...]]:
    """Arrays of given splits as tensors; MupError where they do not fit together."""
    made = {
        name: tuple(_field(f"{k} of {_told(name)}", v, dtype) for k, v in zip("xy", p, strict=True))
        for name, p in pairs.items()
    }
    first = made.get("all") or made["train"]
    for name, (x, y) in made.items():
        kinds, like = ([(v.ndim, v.shape[1]) for v in pair] for pair in ((x, y), first))
        if len(x) != len(y) or not len(x) or kinds != like:
            shapes = [tuple(values.shape) for values in (x, y, *first)]
            raise MupError(
                f"{_told(name)} has x of shape {shapes[0]} and y of shape {shapes[1]}, and train {shapes[2]} and "
                f"{shapes[3]}: there must be as many samples of each, one or more and samples first, (n, channels, *grid), "
                "and all splits must have the same channels and axes."
            )
    return made


def _told(split: str) -> str:
    """What a split is called where "all" is what was given as train, to be divided further."""
    return "train" if split == "all" else split


def _field(name: str, values: Any, dtype: torch.dtype | None) -> torch.Tensor:
    """Input or output of one split as a tensor."""
    values = torch.as_tensor(values).detach()
    real = dtype or (values.dtype.to_real() if values.is_floating_point() or values.is_complex() else torch.float32)
    if real == torch.float32 and len(values):
        check_single(name, values[spread(values)])
    return values.to(real.to_complex() if values.is_complex() else real)
