"""A user's own data, read from files: ``.npz``, ``.pt`` and HDF5; which array is what is guessed, told, and may be said.

Recognised besides plain pairs of arrays: neuralop's ``.pt`` files, PDEBench's HDF5 (``tensor`` with coordinates, one array a
variable, and one group a sample). HDF5 files larger than a bound are read batch by batch and never held as a whole.
"""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems.data import SPLITS, ProblemData, parts_of
from neuralop_mup.lab.problems.own_files import READERS, Source, open_source
from neuralop_mup.lab.problems.own_layout import Layout, channels_of, channels_text, layout_of
from neuralop_mup.validation import check_count, check_flag, check_number, is_number

__all__ = ["OwnArrays", "OwnData"]

_LEAST = 10  # samples
#: Files with such a word in their name hold that split.
_NAMED = re.compile(r"(?:^|[^a-z])(train|val|valid|validation|test)(?:ing)?(?:[^a-z]|$)")


@dataclass(frozen=True, kw_only=True)
class _Read:
    """How arrays are read and split, whatever they come from; see :class:`OwnData`."""

    x: str | None = None
    y: str | None = None
    channels: str = "auto"
    time_step: int | None = None
    split: tuple[float, ...] = (0.8, 0.1, 0.1)
    shuffle: bool = True
    crop: bool = False
    in_memory: float = 2.0

    def __post_init__(self) -> None:
        shares = (self.split,) if isinstance(self.split, (int, float, str)) else tuple(self.split)
        for share in shares:
            if not is_number(share):
                raise MupError(
                    f"split = {self.split!r} must be three shares, for train, val and test, such as (0.8, 0.1, 0.1)."
                )
        object.__setattr__(self, "split", tuple(map(float, shares)))
        check_flag("shuffle", self.shuffle)
        check_flag("crop", self.crop)
        check_number("in_memory", self.in_memory)
        if not isinstance(self.channels, str):  # as a list that a command read
            object.__setattr__(self, "channels", ",".join(map(str, self.channels)))
        channels_of(self.channels)
        if len(self.split) != 3 or min(self.split) <= 0 or sum(self.split) > 1 + 1e-9:
            raise MupError(
                f"split = {', '.join(f'{s:g}' for s in self.split)} must be three shares above 0 for train, val and test, "
                "with a sum of 1 at most, such as 0.8,0.1,0.1."
            )
        if self.time_step is not None:
            check_count("time_step", self.time_step)

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # without open files

    def option(self, **said: Any) -> str:
        """How a user says something of the data: an argument in Python."""
        return f"read={said!r}"

    @cached_property
    def _parts(self) -> dict[str, list[Source]]:
        """Sources by split; "all" for those that are to be split."""
        raise NotImplementedError

    @cached_property
    def _layout(self) -> Layout:
        sources = [s for group in self._parts.values() for s in group]
        layouts = [layout_of(s, self) for s in sources]
        for source, layout in zip(sources, layouts, strict=True):
            if layout != layouts[0]:
                raise MupError(
                    f"{source.file} holds {layout.text}, but {sources[0].file} holds {layouts[0].text}: files that are "
                    "joined must agree."
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
        return self._layout.channels[0]

    @property
    def out_channels(self) -> int:
        """Channels of the output."""
        return self._layout.channels[1]

    @cached_property
    def split_indices(self) -> dict[str, np.ndarray]:
        """Which samples (or trajectories) each split has, in ascending order: their numbers in the files, one after the
        other, or in those of a split that has its own."""
        sizes = {name: sum(s.n for s in group) for name, group in self._parts.items()}
        found = {name: np.arange(n) for name, n in sizes.items() if name != "all"}
        total = sum(sizes.values())
        if total < _LEAST:
            files = dict.fromkeys(s.file for group in self._parts.values() for s in group)
            raise MupError(
                f"{', '.join(files)} {'has' if len(files) == 1 else 'have'} {total} {'sample' if total == 1 else 'samples'} "
                f"of shape {self._layout.text}; at least {_LEAST} are needed to train, choose and test. If the first axis "
                "is not that of the samples, move it to the front."
            )
        if "all" not in sizes:
            return found
        n = sizes["all"]
        shares = {name: share for name, share in zip(SPLITS, self.split, strict=True) if name not in found}
        whole = sum(shares.values()) if found else 1.0
        counts = {name: max(1, round(n * share / whole)) for name, share in shares.items()}
        rest = n - sum(count for name, count in counts.items() if name != "train")
        uses_all = found or sum(self.split) > 1 - 1e-9
        counts["train"] = rest if uses_all else min(rest, counts["train"])
        # RandomState's numbers are the same in every version of NumPy.
        drawn = np.random.RandomState(0).permutation(n) if self.shuffle else np.arange(n)
        ends = np.cumsum(list(counts.values()))
        # Ascending, so that a file that is read batch by batch is read from its beginning to its end.
        found |= {name: np.sort(part) for name, part in zip(counts, np.split(drawn, ends), strict=False)}
        return {name: found[name] for name in SPLITS if name in found}

    @property
    def n_train(self) -> int:
        """Samples to train on."""
        return len(self.split_indices["train"]) * self._layout.pairs

    @property
    def n_val(self) -> int:
        """Samples by which hyperparameters are chosen."""
        return len(self.split_indices["val"]) * self._layout.pairs

    @property
    def description(self) -> str:
        """How the data was read, in a line."""
        counts = ", ".join(f"{len(n) * self._layout.pairs} {split}" for split, n in self.split_indices.items())
        return f"{self._layout.text}; {counts}"

    @property
    def readings(self) -> dict[str, str]:
        """What was guessed or said of the data, by what it is about: each array and its channels, and the splits."""
        layout, source = self._layout, next(iter(self._parts.values()))[0]
        channels = list(map(channels_text, layout.axes, source.arrays))
        told = {what: f"{source.names[i]} ({channels[i]})" for i, what in enumerate(("input", "output"))}
        if layout.steps:
            told = {"fields": f"{source.names[1]} (second axis: time; {channels[1]})"}
        if source.unused:
            told["unused"] = ", ".join(source.unused)
        own = [f"{k} from {', '.join(Path(s.file).name for s in g)}" for k, g in self._parts.items() if k != "all"]
        if "all" in self._parts:
            whole = " of whole trajectories" if layout.pairs > 1 else ""
            drawn = f"drawn at random{whole}, the same in every run; {self.option(shuffle=False)} takes them in file order"
            how = drawn if self.shuffle else f"in file order{whole}: train, val, test"
            own.append(f"the others {how.removesuffix(', test') if own else how}" if own else how)
        return {**told, "splits": "; ".join(own)}

    def load(self, cache_dir: str | Path | None = None) -> ProblemData:
        """The data, read batch by batch where the files are too large for anything else.

        Raises
        ------
        MupError
            For entries that are not finite, complex fields, or arrays that do not fit together.
        """
        fields = {split: self._fields(split) for split in self.split_indices}
        size, trajectory = sum(math.prod(f.shape) * 4 for pair in fields.values() for f in pair), len(self._layout.steps)
        if size > self.in_memory * 1e9 and all(s.lazy for group in self._parts.values() for s in group):
            return ProblemData(**fields, trajectory=trajectory)
        read = {split: tuple(torch.cat(list(parts_of(f))) for f in pair) for split, pair in fields.items()}
        return ProblemData(**read, trajectory=trajectory)

    def _fields(self, split: str) -> tuple[_Field, _Field]:
        sources = self._parts.get(split) or self._parts["all"]
        return tuple(_Field(sources, self._layout, which, self.split_indices[split]) for which in (0, 1))


@dataclass(frozen=True, kw_only=True)
class OwnData(_Read):
    """Fields from files of the user's own: input → output on a grid of one to three axes, any number of channels.

    Parameters
    ----------
    files : path, sequence or mapping
        ``.npz``, ``.pt``/``.pth``, or ``.h5``/``.hdf5``; folders and patterns such as ``"runs/*.h5"`` stand for the files in
        them. Several are joined, sample after sample; files with "train", "val" or "test" as a word in their name hold that
        split, where others do not. A mapping from "train", "val" and "test" to files says which is which.
    x, y : str, optional
        Keys of input and output; guessed from common names. ``y`` alone has times after the samples, and the output is a
        later time of the input. Without keys a time axis is only taken for one where the file has its times (``t``, as many
        as the axis has points) or is laid out as PDEBench's.
    channels : {"auto", "first", "last", "none"} or str, default "auto"
        Where the channel axis stands after the samples (and time): guessed from the sizes, for each array by itself.
        ``"x:first,y:last"`` says it of each.
    time_step : int, optional
        For an array with a time axis: every pair of times so many steps apart; default from the first time to the last.
    split : tuple of float, default (0.8, 0.1, 0.1)
        Shares of train, val and test; trajectories stay whole.
    shuffle : bool, default True
        Draw the splits at random, always the same way: files are often sorted, and their last samples are then of another
        kind than the first. False: train, val and test follow each other as in the files.
    crop : bool, default False
        Drop the last point of each axis with an odd number of points.
    in_memory : float, default 2.0
        GB up to which data is read into memory and cached; larger HDF5 files are read batch by batch.
    stamps : tuple, default ()
        Filled in by itself: size and time of change of each file.

    Raises
    ------
    MupError
        For a value that cannot work; for files that are not there, or whose arrays cannot be told apart, do not fit together
        or are too few.

    Examples
    --------
    >>> import numpy as np
    >>> from neuralop_mup.lab.problems import OwnData
    >>> rng = np.random.default_rng(0)
    >>> np.savez("heat.npz", x=rng.random((40, 16)), y=rng.random((40, 16)))
    >>> heat = OwnData(files="heat.npz", split=(0.8, 0.1, 0.1))
    >>> heat.title, heat.grid_shape, heat.in_channels, heat.n_train
    ('heat', (16,), 1, 32)
    """

    files: Any
    stamps: tuple = field(default=(), compare=False)  # size and time of change of the files, when they were first looked at

    name: ClassVar[str] = "data"
    file_name: ClassVar[None] = None

    def __post_init__(self) -> None:
        given = self.files
        if isinstance(given, Mapping):
            if not {"train", "val"} <= set(given) <= set(SPLITS):
                names = ", ".join(map(repr, given)) or "nothing"
                raise MupError(f"The files are given for {names}: give those of 'train', 'val' and perhaps 'test'.")
            object.__setattr__(self, "files", {name: _expanded(given[name]) for name in SPLITS if name in given})
        else:
            object.__setattr__(self, "files", _expanded(given))
        super().__post_init__()
        if not self._all:
            raise MupError(f"There is no data file {given!r}; give one or more, such as heat.npz or runs/*.h5.")
        for file in self._all:
            path = Path(file)
            if path.suffix.lower() not in READERS:
                raise MupError(f"{file} is no file that can be read here: its name must end in {', '.join(READERS)}.")
            if not path.is_file():
                there = sorted(p.name for p in path.parent.glob("*") if p.suffix.lower() in READERS)
                names = f"{', '.join(there[:3])}{' …' if len(there) > 3 else ''}" if there else "no data file"
                raise MupError(f"There is no file {file} (the folder has {names}).") from FileNotFoundError(file)
        object.__setattr__(self, "stamps", self._stamped())

    @property
    def _all(self) -> tuple[str, ...]:
        return sum(self.files.values(), ()) if isinstance(self.files, Mapping) else self.files

    def _stamped(self) -> tuple:
        return tuple((os.stat(f).st_size, os.stat(f).st_mtime_ns) for f in self._all)

    @property
    def title(self) -> str:
        """What the data is called in reports: the name of its file."""
        return Path(self._all[0]).stem

    @cached_property
    def _parts(self) -> dict[str, list[Source]]:
        parts = self.files
        if not isinstance(parts, Mapping):
            words = list(map(_split_of, self.files))
            # "train" beside "test" alone, or beside files that name no split, is what is split further.
            whole = "val" not in words or None in words
            parts = {}
            for file, word in zip(self.files, words, strict=True):
                parts.setdefault("all" if word is None or (whole and word == "train") else word, []).append(file)
            if len(parts) == 1:
                parts = {"all": self.files}
        return {part: [open_source(f, self) for f in files] for part, files in parts.items()}

    def load(self, cache_dir: str | Path | None = None) -> ProblemData:
        """The data: mapped from the cache, or read batch by batch where the files are too large for that.

        Parameters
        ----------
        cache_dir : str or Path, optional
            As for :meth:`Problem.load`.

        Returns
        -------
        ProblemData
            Float32, channels first.

        Raises
        ------
        MupError
            For entries that are not finite, complex fields, files that do not fit together or change while they are read.

        Examples
        --------
        >>> OwnData(files="heat.npz").load("cache").counts()
        {'train': 32, 'val': 4, 'test': 4}
        """
        data = super().load()
        if self._stamped() != self.stamps:
            raise MupError(
                f"{', '.join(self._all)} changed while it was read: wait until it is written, and give the same call again."
            )
        return data


def _split_of(file: str) -> str | None:
    """The split that a word of the file's name says."""
    found = _NAMED.search(Path(file).stem.lower())
    return found and next(split for split in SPLITS if found[1].startswith(split[:3]))


def _expanded(given: Any) -> tuple[str, ...]:
    """The files that are meant, folders and patterns among them."""
    files: list[str] = []
    for entry in (given,) if isinstance(given, (str, Path)) else tuple(given):
        path = Path(entry).expanduser()
        if path.is_dir():
            files += sorted(str(p) for p in path.iterdir() if p.suffix.lower() in READERS)
        elif glob.has_magic(str(path)) and not path.exists():
            files += sorted(glob.glob(str(path)))
        else:
            files.append(str(path))
    return tuple(files)


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnArrays(_Read):
    """One pair of arrays, read as a file with the keys x and y is: channels found, split, checked."""

    arrays: tuple[np.ndarray, np.ndarray]
    title: ClassVar[str] = "the data given"

    @cached_property
    def _parts(self) -> dict[str, list[Source]]:
        x, y = self.arrays
        return {"all": [Source("data", ("x", "y"), ((x,), (y,)))]}


class _Field:
    """Input or output of one split: indexed like a tensor of shape (n, channels, *grid), read when asked."""

    def __init__(self, sources: Sequence[Source], layout: Layout, which: int, order: np.ndarray) -> None:
        self._sources, self._layout, self._which, self._order = sources, layout, which, order
        self._ends = np.cumsum([s.n for s in sources])
        self.shape = (len(order) * layout.pairs, layout.channels[which], *layout.grid)
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
        numbers = np.searchsorted(self._ends, trajectory, side="right")
        for number in np.unique(numbers):
            here = np.flatnonzero(numbers == number)
            start = self._ends[number - 1] if number else 0
            result[here] = self._read(self._sources[number], trajectory[here] - start, pair[here])
        return result

    def _read(self, source: Source, samples: np.ndarray, pair: np.ndarray) -> torch.Tensor:
        layout, axis = self._layout, self._layout.axes[self._which]
        wanted, back = np.unique(samples, return_inverse=True)  # HDF5 reads in ascending order
        parts = []
        for array in source.arrays[self._which]:
            values = np.asarray(array[wanted.tolist()])[back]
            if layout.steps:
                values = values[np.arange(len(values)), np.array(layout.steps)[pair, self._which]]
            values = values.astype(np.float32)
            parts.append(values[:, None] if axis is None else np.moveaxis(values, -1, 1) if axis == -1 else values)
        values = np.concatenate(parts, axis=1)[(slice(None), slice(None), *map(slice, layout.grid))]
        bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if bad.any():
            raise MupError(
                f"{source.names[self._which]} in {source.file} has entries that are not finite, in sample "
                f"{int(samples[np.argmax(bad)])} among others: remove these samples or fill them in."
            )
        return torch.from_numpy(np.ascontiguousarray(values))
