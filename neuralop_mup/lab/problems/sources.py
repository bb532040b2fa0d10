"""Data in the forms that people have it: files, arrays, data sets, loaders, a problem, or a function that makes one of
these.

A source has ``load()``, which gives :class:`ProblemData` or :class:`Loaders`, and is what goes to other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.problems.base import Problem
from neuralop_mup.lab.problems.data import SPLITS, Loaders, ProblemData, check_single, spread
from neuralop_mup.lab.problems.own import OwnArrays, OwnData
from neuralop_mup.lab.problems.own_files import numpy_of

_ARRAYS = (torch.Tensor, np.ndarray)
_FORMS = (
    "give the path of a file, arrays (x, y), a pair (train, val) or dict with 'train' and 'val' of files, loaders, data "
    "sets or (x, y) arrays, or a function that returns one of these"
)


@dataclass(frozen=True)
class _Called:
    """A function that every process calls, and that must give the same data each time."""

    function: Callable[[], Any]
    read: Mapping[str, Any] | None
    dtype: torch.dtype | None
    digest: str | None = None

    @property
    def title(self) -> str:
        return getattr(self.function, "__name__", "the data given")

    def fixed(self, data: ProblemData | Loaders) -> _Called:
        """The same, from which nothing but this data is accepted."""
        return replace(self, digest=fingerprint(data))

    def load(self) -> ProblemData | Loaders:
        """What the function gives now.

        Raises
        ------
        MupError
            If it is not what it was.
        """
        data = as_source(self.function(), self.read, self.dtype).load()
        if self.digest is not None and fingerprint(data) != self.digest:
            raise MupError(f"{self.title}() gives other data than when the study began: it must give the same each time.")
        return data


def as_source(data: Any, read: Mapping[str, Any] | None = None, dtype: torch.dtype | None = None) -> Any:
    """The data in any form, as something that can be loaded.

    Parameters
    ----------
    data : Any
        In one of the forms of :func:`neuralop_mup.tune`.
    read : mapping, optional
        How files or one pair of arrays are read: arguments of :class:`OwnData`.
    dtype : torch.dtype, optional
        Real precision to which arrays of given splits are cast, the model's; None leaves them as they are.

    Raises
    ------
    MupError
        For what is in none of these forms, and for arrays that cannot be what they are given as.
    """
    if not isinstance(read or {}, Mapping):
        raise MupError(f"read={read!r} must be a dict of how files are read, such as {{'channels': 'last'}}.")
    read = dict(read or {})
    known = {f.name for f in fields(OwnArrays)} - {"arrays"}
    if wrong := [name for name in read if name not in known]:
        raise MupError(f"read has no argument {wrong[0]!r}; {nearest(wrong[0], known)}")
    if callable(data) and not isinstance(data, Dataset):
        return _Called(data, read, dtype)
    pair = _pair(data)
    if pair is not None:
        return OwnArrays(arrays=tuple(numpy_of(v) if torch.is_tensor(v) else v for v in pair), **read)
    parts = _parts(data)
    if _all_are(data, (str, Path)) and not parts:
        return OwnData(files=data, **read)
    if parts and all(_all_are(part, (str, Path)) for part in parts.values()):
        return OwnData(files=parts, **read)
    if read:
        raise MupError(
            "read= says how files or a pair of arrays (x, y) are read, and the data is given otherwise: leave it out, and "
            "bring arrays into the form (n, channels, *grid) by x.movedim(-1, 1), or with numpy np.moveaxis(x, -1, 1)."
        )
    if isinstance(data, (Problem, OwnData, OwnArrays, ProblemData, Loaders)):
        return data
    if not {"train", "val"} <= set(parts):
        raise MupError(f"data is a {type(data).__name__}; {_FORMS}.")
    pairs = {name: _pair(part) for name, part in parts.items()}
    if not any(pairs.values()) and not any(isinstance(part, _ARRAYS) for part in parts.values()):
        return Loaders(parts)
    if not all(pairs.values()):
        kinds = ", ".join(
            f"{name} a {'pair of arrays' if pairs[name] else type(part).__name__}" for name, part in parts.items()
        )
        raise MupError(f"{kinds}: give each split alike, as a pair of arrays (x, y) of input and output, or as a loader.")
    made = {
        name: tuple(_field(f"{k} of {name}", v, dtype) for k, v in zip("xy", p, strict=True)) for name, p in pairs.items()
    }
    for name, (x, y) in made.items():
        if len(x) != len(y) or not len(x):
            raise MupError(
                f"{name} has x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}: there must be as many samples of "
                "each, one or more and samples first, (n, channels, *grid)."
            )
        for letter, values, like in zip("xy", (x, y), made["train"], strict=True):
            if values.shape[1] != like.shape[1] or values.ndim != like.ndim:
                raise MupError(
                    f"{letter} of {name} has the shape {tuple(values.shape)}, and that of train {tuple(like.shape)}: they "
                    "must have the same channels and axes."
                )
    found = ProblemData(**made)
    found.check(relative=False)
    return found


def _parts(data: Any) -> dict[str, Any]:
    """What is given for train, val and test; empty where that cannot be seen."""
    if isinstance(data, Mapping):
        if wrong := [name for name in data if name not in SPLITS]:
            raise MupError(f"data names {wrong[0]!r}; {nearest(str(wrong[0]), SPLITS)}")
        return dict(data)
    joined = isinstance(data, list) and _all_are(data, (str, Path))
    is_splits = isinstance(data, (tuple, list)) and len(data) in (2, 3) and not joined
    return dict(zip(SPLITS, data, strict=False)) if is_splits else {}


def _all_are(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of these kinds, or a sequence of such."""
    entries = value if isinstance(value, (tuple, list)) else [value]
    return bool(entries) and all(isinstance(entry, kinds) for entry in entries)


def _pair(part: Any) -> tuple[Any, Any] | None:
    """Input and output where both are given as arrays."""
    if isinstance(part, Mapping) and {"x", "y"} <= set(part):
        part = (part["x"], part["y"])
    return tuple(part) if isinstance(part, (tuple, list)) and len(part) == 2 and _all_are(part, _ARRAYS) else None


def _field(name: str, values: Any, dtype: torch.dtype | None) -> torch.Tensor:
    """Input or output of one split as a tensor."""
    if isinstance(values, np.ndarray) and values.dtype.kind not in "biufc":
        raise MupError(f"{name} holds no numbers.")
    values = torch.as_tensor(values).detach()
    if values.ndim < 3:
        raise MupError(
            f"{name} has the shape {tuple(values.shape)}, but fields are (n, channels, *grid): give the axis of the one "
            f"channel, {name[0]}[:, None]."
        )
    real = dtype or (values.dtype.to_real() if values.is_floating_point() or values.is_complex() else torch.float32)
    if real == torch.float32 and len(values):
        check_single(name, values[spread(len(values))])
    return values.to(real.to_complex() if values.is_complex() else real)
