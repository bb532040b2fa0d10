"""Data in the forms that people have it, as loaders: files, tensors, data sets, loaders, or a function that makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from neuralop_mup.errors import MupError
from neuralop_mup.problems import OwnData, ProblemData
from neuralop_mup.problems.base import SPLITS
from neuralop_mup.problems.mode_energy import off_grid
from neuralop_mup.problems.own_files import Source, numpy_of

__all__ = ["first_batch", "loaders_of", "n_samples", "read_data", "some_samples"]

_FORMS = (
    "give the path of a file, arrays (x, y), a pair (train, val) or dict with 'train' and 'val' of loaders, data sets or "
    "(x, y) arrays, or a function that returns one of these"
)


class _Named:
    """A loader whose pairs become ``{"x": …, "y": …}``, as neuralop's Trainer takes them."""

    def __init__(self, loader: Iterable) -> None:
        self._loader = loader
        self.batch_size = getattr(loader, "batch_size", 1)
        self.generator = getattr(loader, "generator", None)
        self.dataset = getattr(loader, "dataset", loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Mapping[str, torch.Tensor]]:
        for batch in self._loader:
            if not isinstance(batch, Mapping) and not _is_pair(batch):
                size = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
                raise MupError(
                    f"A batch of the data is a {type(batch).__name__}{size}, and which part of it is what is not known: "
                    "loaders and data sets must give dicts with 'x' and 'y' or pairs (x, y) of tensors. For fields in lists "
                    "give np.asarray of them."
                )
            yield batch if isinstance(batch, Mapping) else dict(zip("xy", batch, strict=True))


class _Arrays(OwnData):
    """One pair of arrays, taken as a file with the keys x and y is: channels found, split, checked."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.__dict__["files"] = ("data",)
        source = Source(file="data", x=(x,), y=(y,), n=len(x), lazy=False, x_name="x", y_name="y")
        self.__dict__["_parts"] = {"all": [source]}

    def load(self, cache_dir: str | Path | None = None) -> ProblemData:
        """The splits; nothing is written to the cache."""
        fields = {split: tuple(torch.cat(list(f.chunks())) for f in self._fields(split)) for split in SPLITS}
        return ProblemData(**fields)


def read_data(data: Any, dtype: torch.dtype | None = None) -> Any:
    """The data itself, where it is given as a path, a function or arrays; other forms are returned as they are.

    Parameters
    ----------
    data : Any
        In one of the forms of :func:`neuralop_mup.tune`.
    dtype : torch.dtype, optional
        Real precision to which arrays are cast, the model's; None leaves them as they are.

    Raises
    ------
    MupError
        For arrays that cannot be what they are given as: of which split, which array, which sample.
    """
    if isinstance(data, (str, Path)) or (isinstance(data, (tuple, list)) and all(isinstance(d, (str, Path)) for d in data)):
        data = OwnData(files=data)
    if callable(data):
        data = data()
    if isinstance(data, Mapping) and {"x", "y"} <= set(data) and "train" not in data:
        data = (data["x"], data["y"])
    if _is_pair(data):
        data = _Arrays(*_as_many("data", *map(_numpy, data)))
    if isinstance(data, OwnData):
        return data.load()
    splits = _splits(data)
    pairs = {name: pair for name, part in splits.items() if (pair := _pair(part)) is not None}
    if not pairs or not {"train", "val"} <= set(splits):
        return data
    if len(pairs) < len(splits):
        other = next(name for name in splits if name not in pairs)
        raise MupError(
            f"{next(iter(pairs))} is a pair of arrays and {other} is a {type(splits[other]).__name__}: give all of them "
            "alike, as arrays or as loaders."
        )
    fields = {name: _fields(name, *pair, dtype) for name, pair in pairs.items()}
    for name, (x, y) in fields.items():
        for letter, values, like in zip("xy", (x, y), fields["train"], strict=True):
            if values.shape[1] != like.shape[1] or values.ndim != like.ndim:
                raise MupError(
                    f"{letter} of {name} has the shape {tuple(values.shape)}, and that of train {tuple(like.shape)}: they "
                    "must have the same channels and axes."
                )
    return ProblemData(fields["train"], fields["val"], fields.get("test", fields["val"]))


def _splits(data: Any) -> dict[str, Any]:
    """What is given for train, val and test; empty where that cannot be seen."""
    if isinstance(data, Mapping):
        return {k: data[k] for k in SPLITS if k in data}
    if isinstance(data, (tuple, list)) and len(data) in (2, 3):
        return dict(zip(SPLITS, data, strict=False))
    return {}


def _is_array(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray))


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_is_array, value))


def _pair(part: Any) -> tuple[Any, Any] | None:
    """The arrays of a split that is given as such."""
    if isinstance(part, Mapping) and {"x", "y"} <= set(part):
        part = (part["x"], part["y"])
    if _is_array(part):
        raise MupError(f"A split is one array of shape {tuple(part.shape)}; give each as a pair (x, y) of input and output.")
    return tuple(part) if _is_pair(part) else None


def _numpy(values: Any) -> np.ndarray:
    values = numpy_of(values) if isinstance(values, torch.Tensor) else values
    if values.dtype.kind == "c":
        raise MupError(
            "x or y is complex. Give its real and imaginary parts as two channels, or for a model of complex data "
            "(train, val) of (x, y) arrays."
        )
    if values.dtype.kind not in "biuf":
        raise MupError(f"x or y holds {values.dtype}, which are no numbers.")
    return values


def _as_many(name: str, x: Any, y: Any) -> tuple[Any, Any]:
    if min(x.ndim, y.ndim) < 2 or len(x) != len(y):
        raise MupError(
            f"{name} has x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}: there must be as many samples "
            "of each, samples first, (n, channels, *grid)."
        )
    if not len(x):
        raise MupError(f"{name} has no sample, x of shape {tuple(x.shape)}: give one or more, better ten.")
    return x, y


def _fields(name: str, x: Any, y: Any, dtype: torch.dtype | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and output of one split as tensors, checked."""
    made = []
    for letter, values in (("x", x), ("y", y)):
        values = torch.as_tensor(values) if isinstance(values, torch.Tensor) or values.dtype.kind in "biufc" else None
        if values is None:
            raise MupError(f"{letter} of {name} holds no numbers.")
        if dtype is None and not (values.is_floating_point() or values.is_complex()):
            values = values.to(torch.get_default_dtype())
        elif dtype is not None:
            values = values.to(dtype.to_complex() if values.is_complex() else dtype)
        if values.ndim < 3:
            raise MupError(
                f"{letter} of {name} has the shape {tuple(values.shape)}, but fields are (n, channels, *grid): give the "
                f"axis of the one channel, {letter}[:, None]."
            )
        made.append(values)
    x, y = _as_many(name, *made)
    # Fewer channels than points: fields of one channel on a finer grid differ in their last axis, too.
    if x.shape[2:] != y.shape[2:] and x.shape[1:-1] == y.shape[1:-1] and max(x.shape[-1], y.shape[-1]) < min(x.shape[1:-1]):
        raise MupError(
            f"{name} has x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}: their channels are last. Fields are "
            "(n, channels, *grid): give x.movedim(-1, 1) and y.movedim(-1, 1), or with numpy np.moveaxis(x, -1, 1)."
        )
    for letter, values in (("x", x), ("y", y)):
        bad = ~torch.isfinite(values).flatten(1).all(1)
        if bad.any():
            raise MupError(
                f"{letter} of {name} has entries that are not finite, in sample {int(bad.nonzero()[0])} (one of "
                f"{int(bad.sum())}): remove these samples or fill them in."
            )
    return x, y


def loaders_of(data: Any, batch_size: int, seed: int) -> tuple[Any, dict[str, Any], Any]:
    """Training loader, evaluation loaders by name, and what normalises their batches (None: nothing does)."""
    data = read_data(data)
    if isinstance(data, ProblemData):
        train, evals = data.loaders(batch_size=batch_size, seed=seed)
        if data.test is data.val:  # none was given
            del evals["test"]
        return train, evals, data.processor()
    splits = _splits(data)
    if not {"train", "val"} <= set(splits):
        raise MupError(f"data is a {type(data).__name__}; {_FORMS}.")
    made = {}
    for name, part in splits.items():
        if isinstance(part, Dataset):
            order = torch.Generator().manual_seed(seed)
            part = DataLoader(part, batch_size, shuffle=name == "train", generator=order if name == "train" else None)
        made[name] = _Named(part)
    return made.pop("train"), made, None


def first_batch(loader: Iterable) -> Mapping[str, torch.Tensor]:
    batch = next(iter(loader), None)
    if not isinstance(batch, Mapping) or not {"x", "y"} <= set(batch):
        raise MupError("The training data gives no batch, or one without 'x' and 'y'.")
    return batch


def n_samples(loader: Any) -> int | None:
    """Samples that a loader goes through; None where it does not say."""
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError):
        return None


def some_samples(first: Mapping[str, Any], loader: Iterable) -> dict[str, Any]:
    """Some hundred samples in one batch, where batches are fields of one grid."""
    if off_grid(first):
        return dict(first)
    batches = [b for b in islice(loader, -(-256 // len(first["x"]))) if b["x"].shape[1:] == first["x"].shape[1:]]
    return {name: torch.cat([batch[name] for batch in batches]) for name in ("x", "y")}
