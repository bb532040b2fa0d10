"""A user's own data, read from files: ``.npz``, ``.pt`` and HDF5; which array is what is guessed, told, and may be said.

Recognised besides plain pairs of arrays: neuralop's ``.pt`` files, PDEBench's HDF5 (``tensor`` with coordinates, one array a
variable, and one group a sample). HDF5 files larger than a bound are read batch by batch and never held as a whole.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.problems import cache
from neuralop_mup.problems.base import SPLITS, ProblemData
from neuralop_mup.problems.own_files import READERS, Source, open_source
from neuralop_mup.problems.own_layout import Layout, channels_of, channels_text, layout_of

if TYPE_CHECKING:
    from neuralop.data.transforms.data_processors import DefaultDataProcessor

__all__ = ["OwnData"]

_LEAST = 10  # samples
_SPREAD = 256  # training samples that stand for all where a spectrum is taken
_CHUNK = 64  # samples read at once in a pass over all


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """Fields from files of the user's own: input → output on a grid of one to three axes, any number of channels.

    Parameters
    ----------
    files : tuple of str
        ``.npz``, ``.pt``/``.pth``, or ``.h5``/``.hdf5``; several are joined, sample after sample. Files with "test" in their
        name hold the test set, where others do not.
    x, y : str, optional
        Keys of input and output; guessed from common names. ``y`` alone has times after the samples, and the output is a
        later time of the input. Without keys a time axis is only taken for one where the file has its times (``t``, as many
        as the axis has points) or is laid out as PDEBench's.
    channels : {"auto", "first", "last", "none"} or str
        Where the channel axis stands after the samples (and time): guessed from the sizes, for each array by itself.
        ``"x:first,y:last"`` says it of each.
    time_step : int, optional
        For an array with a time axis: every pair of times so many steps apart; default from the first time to the last.
    split : tuple of float
        Shares of train, val and test; trajectories stay whole.
    shuffle : bool
        Draw the splits at random, always the same way: files are often sorted, and their last samples are then of another
        kind than the first. False: train, val and test follow each other as in the files.
    crop : bool
        Drop the last point of each axis with an odd number of points.
    in_memory : float
        GB up to which data is read into memory and cached; larger HDF5 files are read batch by batch.
    """

    files: tuple[str, ...]
    x: str | None = None
    y: str | None = None
    channels: str = "auto"
    time_step: int | None = None
    split: tuple[float, ...] = (0.8, 0.1, 0.1)
    shuffle: bool = True
    crop: bool = False
    in_memory: float = 2.0

    name: ClassVar[str] = "data"
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    file_name: ClassVar[None] = None

    def __post_init__(self) -> None:
        files = (self.files,) if isinstance(self.files, (str, Path)) else tuple(self.files)
        object.__setattr__(self, "files", tuple(str(Path(f).expanduser()) for f in files))
        shares = (self.split,) if isinstance(self.split, (int, float)) else tuple(self.split)
        object.__setattr__(self, "split", tuple(map(float, shares)))
        if not isinstance(self.channels, str):  # as a list that a command read
            object.__setattr__(self, "channels", ",".join(map(str, self.channels)))
        channels_of(self.channels)
        if len(self.split) != 3 or min(self.split) <= 0 or sum(self.split) > 1 + 1e-9:
            raise MupError(
                f"split = {', '.join(f'{s:g}' for s in self.split)} must be three shares above 0 for train, val and test, "
                "with "
                "a sum of 1 at most, such as 0.8,0.1,0.1."
            )
        if self.time_step is not None and (not isinstance(self.time_step, int) or self.time_step < 1):
            raise MupError(f"time_step = {self.time_step!r} must be a whole number of 1 or more.")
        self.check_files()

    def check_files(self) -> None:
        """MupError unless every file is there."""
        if not self.files:
            raise MupError("No data file is named; give one or more, such as heat.npz.")
        for file in self.files:
            path = Path(file)
            if path.suffix.lower() not in READERS:
                raise MupError(f"{file} is no file that can be read here: its name must end in {', '.join(READERS)}.")
            if not path.is_file():
                there = (
                    sorted(p.name for p in path.parent.glob("*") if p.suffix.lower() in READERS)
                    if path.parent.is_dir()
                    else []
                )
                has = f"the folder has {', '.join(there[:8])}" if there else "its folder has no data file"
                raise MupError(f"There is no file {file} ({has}).")

    @property
    def title(self) -> str:
        """What the data is called in reports: the name of its file."""
        return Path(self.files[0]).stem

    # What is in the files

    @cached_property
    def _parts(self) -> dict[str, list[Source]]:
        """Sources by part: "test" for files that say so where others do not, "all" for the rest."""
        test = [f for f in self.files if "test" in Path(f).stem.lower()]
        rest = [f for f in self.files if f not in test]
        named = {"all": rest, "test": test} if test and rest else {"all": list(self.files)}
        in_time = self.time_step is not None
        return {part: [open_source(f, self.x, self.y, in_time) for f in files] for part, files in named.items()}

    @cached_property
    def _layout(self) -> Layout:
        sources = [s for group in self._parts.values() for s in group]
        layouts = [layout_of(s, self.channels, self.time_step, self.crop) for s in sources]
        for source, layout in zip(sources, layouts, strict=True):
            if layout != layouts[0]:
                raise MupError(
                    f"{source.file} holds {layout.text}, but {sources[0].file} holds {layouts[0].text}: files that are "
                    "joined "
                    "must agree."
                )
        return layouts[0]

    @property
    def n_dim(self) -> int:
        """Axes of the grid."""
        return len(self._layout.grid)

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Points per axis."""
        return self._layout.grid

    @property
    def in_channels(self) -> int:
        """Channels of the input."""
        return self._layout.x_channels

    @property
    def out_channels(self) -> int:
        """Channels of the output."""
        return self._layout.y_channels

    @cached_property
    def _counts(self) -> dict[str, int]:
        """Trajectories (or samples) of each split."""
        n = sum(s.n for s in self._parts["all"])
        extra = sum(s.n for s in self._parts.get("test", ()))
        if n + extra < _LEAST:
            held = f"{n + extra} {'sample' if n + extra == 1 else 'samples'}"
            raise MupError(
                f"{', '.join(self.files)} {'has' if len(self.files) == 1 else 'have'} {held} of shape "
                f"{self._layout.text}; at least {_LEAST} are needed to train, choose and test. If the first axis is not "
                "that "
                "of the samples, move it to the front."
            )
        train, val, test = self.split
        if extra:
            n_val = max(1, round(n * val / (train + val)))
            return {"train": n - n_val, "val": n_val, "test": extra}
        counts = {"val": max(1, round(n * val)), "test": max(1, round(n * test))}
        rest = n - sum(counts.values())
        return {"train": rest if sum(self.split) > 1 - 1e-9 else min(rest, max(1, round(n * train))), **counts}

    @property
    def n_train(self) -> int:
        """Samples to train on."""
        return self._counts["train"] * self._layout.pairs

    @property
    def n_val(self) -> int:
        """Samples by which hyperparameters are chosen."""
        return self._counts["val"] * self._layout.pairs

    @property
    def description(self) -> str:
        """How the files were read, in a line."""
        counts = ", ".join(f"{n * self._layout.pairs} {split}" for split, n in self._counts.items())
        return f"{self._layout.text}; {counts}"

    @property
    def readings(self) -> dict[str, str]:
        """What was guessed or said of the files, by what it is about: each array and its channels, and the splits."""
        layout, source = self._layout, self._parts["all"][0]
        told = {}
        if layout.steps:
            told["fields"] = f"{source.y_name} (second axis: time; {channels_text(layout.y_axis, source.y)})"
        else:
            told["input"] = f"{source.x_name} ({channels_text(layout.x_axis, source.x)})"
            told["output"] = f"{source.y_name} ({channels_text(layout.y_axis, source.y)})"
        if source.unused:
            told["unused"] = ", ".join(source.unused)
        whole = " of whole trajectories" if layout.pairs > 1 else ""
        if self.shuffle:
            told["splits"] = f"drawn at random{whole}, the same in every run; --data.shuffle no takes them in file order"
        else:
            told["splits"] = f"in file order{whole}: train, val, test"
        if "test" in self._parts:
            files = ", ".join(Path(s.file).name for s in self._parts["test"])
            told["splits"] = f"test from {files}; the others {told['splits'].removesuffix(', test')}"
        return told

    # What a run needs

    def losses(self) -> dict[str, tuple[float, Callable[..., torch.Tensor]]]:
        """The relative L2 error, by which hyperparameters are chosen."""
        from neuralop.losses import LpLoss

        return {"data": (1.0, LpLoss(d=self.n_dim, p=2))}

    def processor(self, data: ProblemData) -> DefaultDataProcessor:
        """neuralop's normalisation of x and y per channel, by the training data."""
        return data.processor()

    @property
    def key(self) -> str:
        """Of the files (path, size, time of change) and of how they are read."""
        stats = [(os.path.abspath(f), os.stat(f).st_size, os.stat(f).st_mtime_ns) for f in self.files]
        read = (self.x, self.y, self.channels, self.time_step, self.split, self.crop, self.shuffle)
        return hashlib.sha256(repr((stats, read)).encode()).hexdigest()

    def load(self, cache_dir: str | Path | None = None) -> ProblemData:
        """The data: mapped from the cache, or read batch by batch where the files are too large for that.

        Raises
        ------
        MupError
            For entries that are not finite, complex fields, or files that do not fit together.
        """
        fields = {split: self._fields(split) for split in SPLITS}
        size = sum(math.prod(f.shape) * 4 for pair in fields.values() for f in pair)
        if size > self.in_memory * 1e9 and all(s.lazy for group in self._parts.values() for s in group):
            return _LazyData(**fields)
        folder = cache.cache_folder(cache_dir)
        path = folder / f"{self.name}-{self.title}-{self.key[:24]}.safetensors"
        shapes = {
            f"{split}_{letter}": f.shape for split, pair in fields.items() for letter, f in zip("xy", pair, strict=True)
        }
        tensors = cache.read(path, self.key, shapes)
        if tensors is None:
            tensors = {}
            for split, pair in fields.items():
                for letter, values in zip("xy", pair, strict=True):
                    tensors[f"{split}_{letter}"] = torch.cat(list(values.chunks()))
            cache.store(path, self.key, tensors)
        return ProblemData(**{split: (tensors[f"{split}_x"], tensors[f"{split}_y"]) for split in SPLITS})

    def sample(self, cache_dir: str | Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Some hundred training samples, spread over all of them: ``x`` and ``y`` of shape ``(n, channels, *grid)``.

        Raises
        ------
        MupError
            As :meth:`load`.
        """
        x, y = self.load(cache_dir).train
        spread = range(0, len(x), -(-len(x) // _SPREAD))
        return x[spread], y[spread]

    def _fields(self, split: str) -> tuple[_Field, _Field]:
        counts, sources = self._counts, self._parts.get("test" if split == "test" else "all") or self._parts["all"]
        if "test" in self._parts and split == "test":
            order = np.arange(counts["test"])
        else:
            n = sum(s.n for s in sources)
            # RandomState's numbers are the same in every version of NumPy.
            drawn = np.random.RandomState(0).permutation(n) if self.shuffle else np.arange(n)
            start = {"train": 0, "val": counts["train"], "test": counts["train"] + counts["val"]}[split]
            # Ascending, so that a file that is read batch by batch is read from its beginning to its end.
            order = np.sort(drawn[start : start + counts[split]])
        return tuple(_Field(sources, self._layout, letter, order) for letter in "xy")


# Axes


class _Field:
    """Input or output of one split: indexed like a tensor of shape (n, channels, *grid), read when asked."""

    def __init__(self, sources: Sequence[Source], layout: Layout, letter: str, order: np.ndarray) -> None:
        self._sources, self._layout, self._letter, self._order = sources, layout, letter, order
        self._ends = np.cumsum([s.n for s in sources])
        channels = layout.x_channels if letter == "x" else layout.y_channels
        self.shape = (len(order) * layout.pairs, channels, *layout.grid)
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | Sequence[int]) -> torch.Tensor:
        if isinstance(index, (int, np.integer)):
            return self[[int(index)]][0]
        index = np.asarray(index, dtype=int)
        pairs = self._layout.pairs
        trajectory, pair = self._order[index // pairs], index % pairs
        result = torch.empty(len(index), *self.shape[1:])
        for number in np.unique(np.searchsorted(self._ends, trajectory, side="right")):
            here = np.flatnonzero(np.searchsorted(self._ends, trajectory, side="right") == number)
            start = self._ends[number - 1] if number else 0
            result[here] = self._read(self._sources[number], trajectory[here] - start, pair[here])
        return result

    def _read(self, source: Source, samples: np.ndarray, pair: np.ndarray) -> torch.Tensor:
        layout = self._layout
        arrays = source.x if self._letter == "x" and source.x else source.y
        axis = layout.x_axis if self._letter == "x" else layout.y_axis
        wanted, back = np.unique(samples, return_inverse=True)  # HDF5 reads in ascending order
        parts = []
        for array in arrays:
            values = np.asarray(array[wanted.tolist()])[back]
            if layout.steps:
                which = np.array([step[self._letter == "y"] for step in layout.steps])[pair]
                values = values[np.arange(len(values)), which]
            values = values.astype(np.float32)
            parts.append(values[:, None] if axis is None else np.moveaxis(values, -1, 1) if axis == -1 else values)
        values = np.concatenate(parts, axis=1)[(slice(None), slice(None), *map(slice, layout.grid))]
        bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if bad.any():
            name = (source.x_name if self._letter == "x" else "") or source.y_name
            raise MupError(
                f"{name} in {source.file} has entries that are not finite, in sample {int(samples[np.argmax(bad)])} among "
                "others: "
                "remove these samples or fill them in."
            )
        return torch.from_numpy(np.ascontiguousarray(values))

    def chunks(self) -> Iterator[torch.Tensor]:
        """All of it, some samples at a time."""
        for start in range(0, len(self), _CHUNK):
            yield self[range(start, min(start + _CHUNK, len(self)))]


class _LazyData(ProblemData):
    """Data that is never held as a whole."""

    def processor(self) -> DefaultDataProcessor:
        from neuralop.data.transforms.data_processors import DefaultDataProcessor
        from neuralop.data.transforms.normalizers import UnitGaussianNormalizer

        normalizers = []
        for values in self.train:
            count, total, squares = 0, 0.0, 0.0
            for chunk in values.chunks():
                chunk = chunk.double().transpose(0, 1).flatten(1)
                count, total, squares = count + chunk.shape[1], total + chunk.sum(1), squares + chunk.square().sum(1)
            mean = total / count
            std = ((squares - count * mean**2) / max(1, count - 1)).clamp_min(0).sqrt()
            shape = (1, -1, *[1] * (values.ndim - 2))
            normalizers.append(UnitGaussianNormalizer(mean=mean.float().view(shape), std=std.float().view(shape)))
        return DefaultDataProcessor(*normalizers)
