"""Data in the forms that people have it, as loaders: files, tensors, data sets, loaders, or a function that makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from neuralop_mup.errors import MupError
from neuralop_mup.problems import OwnData, ProblemData
from neuralop_mup.problems.mode_energy import off_grid

__all__ = ["first_batch", "loaders_of", "read_data", "some_samples"]


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
            yield batch if isinstance(batch, Mapping) else dict(zip("xy", batch, strict=True))


def read_data(data: Any) -> Any:
    """The data itself, where it is given as a path or a function."""
    if isinstance(data, (str, Path)) or (isinstance(data, (tuple, list)) and all(isinstance(d, (str, Path)) for d in data)):
        data = OwnData(files=data)
    if callable(data):
        data = data()
    return data.load() if isinstance(data, OwnData) else data


def loaders_of(data: Any, batch_size: int, seed: int) -> tuple[Any, dict[str, Any], Any]:
    """Training loader, evaluation loaders by name, and what normalises their batches (None: nothing does)."""
    data = read_data(data)
    if isinstance(data, Mapping):
        splits = {k: data[k] for k in ("train", "val", "test") if k in data}
    elif isinstance(data, (tuple, list)) and len(data) in (2, 3):
        splits = dict(zip(("train", "val", "test"), data, strict=False))
    elif isinstance(data, ProblemData):
        return *data.loaders(batch_size=batch_size, seed=seed), data.processor()
    else:
        splits = {}
    if not {"train", "val"} <= set(splits):
        raise MupError(
            f"data is a {type(data).__name__}; give the path of a file, a pair (train, val) or dict with 'train' and 'val' "
            "of loaders, data sets or (x, y) tensors, or a function that returns one of these."
        )
    if all(isinstance(part, (tuple, list)) and isinstance(part[0], torch.Tensor) for part in splits.values()):
        pairs = {name: tuple(part) for name, part in splits.items()}
        whole = ProblemData(pairs["train"], pairs["val"], pairs.get("test", pairs["val"]))
        train, evals = whole.loaders(batch_size=batch_size, seed=seed)
        return train, {name: evals[name] for name in splits if name != "train"}, whole.processor()
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


def some_samples(first: Mapping[str, Any], loader: Iterable) -> dict[str, Any]:
    """Some hundred samples in one batch, where batches are fields of one grid."""
    if off_grid(first):
        return dict(first)
    batches = [b for b in islice(loader, -(-256 // len(first["x"]))) if b["x"].shape[1:] == first["x"].shape[1:]]
    return {name: torch.cat([batch[name] for batch in batches]) for name in ("x", "y")}
