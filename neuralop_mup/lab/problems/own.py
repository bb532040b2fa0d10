"""A user's own data, read from files: ``.npz``, ``.pt`` and HDF5, split into train, val and test.

HDF5 files larger than a bound are read batch by batch and never held as a whole.
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

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.problems.data import SPLITS, ProblemData, check_finite, check_single, spread
from neuralop_mup.lab.problems.own_files import CHANNELS, READERS, Layout, Source, channels_text, layout_of, open_source
from neuralop_mup.validation import check_count, check_flag, check_number, is_number

_LEAST = 10  # samples
#: Files with such a word in their name hold that split.
_NAMED = re.compile(r"(?:^|[^a-z])(train|val|valid|validation|test)(?:ing)?(?:[^a-z]|$)")


@dataclass(frozen=True, kw_only=True)
class _Read:
    """How arrays are read and split, whatever they come from; see :class:`OwnData`."""

    x: str | None = None
    y: str | None = None
    channels: str | None = None
    time_step: int | None = None
    split: tuple[float, ...] = (0.8, 0.1, 0.1)
    shuffle: bool = True
    crop: bool = False
    in_memory: float = 2.0

    def __post_init__(self) -> None:
        split = () if isinstance(self.split, (str, float, int)) else tuple(self.split)
        if not all(is_number(share) and share > 0 for share in split) or len(split) != 3 or abs(sum(split) - 1) > 1e-9:
            raise MupError(
                f"split = {self.split!r} must be three shares, for train, val and test, above 0 and with the sum 1, such as "
                "(0.8, 0.1, 0.1)."
            )
        object.__setattr__(self, "split", tuple(map(float, split)))
        check_flag("shuffle", self.shuffle)
        check_flag("crop", self.crop)
        check_number("in_memory", self.in_memory)
        if self.channels not in (None, *CHANNELS):
            raise MupError(f"channels is {self.channels!r}; {nearest(str(self.channels), CHANNELS)}")
        if self.time_step is not None:
            check_count("time_step", self.time_step)

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # without what was read

    def option(self, **said: Any) -> str:
        """How a user says something of the data: an argument in Python."""
        return f"read={said!r}"

    @cached_property
    def parts(self) -> dict[str, list[Source]]:
        """Inputs and outputs by split; "all" for those that are to be split."""
        raise NotImplementedError

    @cached_property
    def _layout(self) -> Layout:
        sources = [s for group in self.parts.values() for s in group]
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
        sizes = {name: sum(s.n for s in group) for name, group in self.parts.items()}
        if sum(sizes.values()) < _LEAST:
            files = dict.fromkeys(s.file for group in self.parts.values() for s in group)
            raise MupError(
                f"{', '.join(files)} has {sum(sizes.values())} samples in all, {self._layout.text}; at least {_LEAST} are "
                "needed to train, choose and test. If the first axis is not that of the samples, move it to the front."
            )
        found = {name: np.arange(n) for name, n in sizes.items() if name != "all"}
        if "all" in sizes:
            n = sizes["all"]
            shares = {name: share for name, share in zip(SPLITS, self.split, strict=True) if name not in found}
            counts = {name: max(1, round(n * share / sum(shares.values()))) for name, share in shares.items()}
            counts["train"] += n - sum(counts.values())
            # RandomState's numbers are the same in every version of NumPy.
            drawn = np.random.RandomState(0).permutation(n) if self.shuffle else np.arange(n)
            ends = np.cumsum(list(counts.values()))[:-1]
            # Ascending, so that a file that is read batch by batch is read from its beginning to its end.
            found |= {name: np.sort(part) for name, part in zip(counts, np.split(drawn, ends), strict=True)}
        return {name: found[name] for name in SPLITS if name in found}

    @property
    def description(self) -> str:
        """How the data was read, in a line."""
        counts = ", ".join(f"{len(n) * self._layout.pairs} {split}" for split, n in self.split_indices.items())
        return f"{self._layout.text}; {counts}"

    @property
    def readings(self) -> dict[str, str]:
        """What was found or said of the data, by what it is about: each array and its channels, and the splits."""
        layout, source = self._layout, next(iter(self.parts.values()))[0]
        channels = list(map(channels_text, layout.axes, source.arrays))
        told = {what: f"{source.names[i]} ({channels[i]})" for i, what in enumerate(("input", "output"))}
        if layout.steps:
            told = {"fields": f"{source.names[1]} (second axis: time; {channels[1]})"}
        if source.unused:
            told["unused"] = ", ".join(source.unused)
        own = [f"{k} from {', '.join(Path(s.file).name for s in g)}" for k, g in self.parts.items() if k != "all"]
        if "all" in self.parts:
            whole = " of whole trajectories" if layout.pairs > 1 else ""
            drawn = f"drawn at random{whole}, the same in every run; {self.option(shuffle=False)} takes them in file order"
            own.append(("the others " if own else "") + (drawn if self.shuffle else f"in file order{whole}"))
        return {**told, "splits": "; ".join(own)}

    def check_unchanged(self) -> None:
        """Raise MupError if what is read is not what it was."""

    def load(self) -> ProblemData:
        """The data, float32 and channels first: read batch by batch where the files are too large for anything else.

        Returns
        -------
        ProblemData
            The same each time: it is made once.

        Raises
        ------
        MupError
            For entries that are not finite, complex fields, files that do not fit together or change while they are read,
            and values of which single precision does not hold how they vary.

        Examples
        --------
        >>> import numpy as np
        >>> from neuralop_mup.lab.problems import OwnData
        >>> np.savez("heat.npz", x=np.random.rand(40, 16), y=np.random.rand(40, 16))
        >>> OwnData(files="heat.npz").load().counts()
        {'train': 32, 'val': 4, 'test': 4}
        """
        self.check_unchanged()
        return self._data

    @cached_property
    def _data(self) -> ProblemData:
        pairs = {split: (Field(self, split, 0), Field(self, split, 1)) for split in self.split_indices}
        for name, values in zip("xy", pairs["train"], strict=True):
            check_single(name, values.read(spread(len(values))))
        size = sum(math.prod(values.shape) * 4 for pair in pairs.values() for values in pair)
        if size <= self.in_memory * 1e9 or not all(s.is_lazy for group in self.parts.values() for s in group):
            pairs = {split: tuple(values[range(len(values))] for values in pair) for split, pair in pairs.items()}
            self.check_unchanged()
        return ProblemData(**pairs, trajectory=len(self._layout.steps))


@dataclass(frozen=True, kw_only=True)
class OwnData(_Read):
    """Fields from files of the user's own: input → output on a grid of one to three axes, any number of channels.

    Parameters
    ----------
    files : path, sequence or mapping
        ``.npz``, ``.pt``/``.pth``, or ``.h5``/``.hdf5``; folders and patterns such as ``"runs/*.h5"`` stand for the files in
        them. Several are joined, sample after sample; files with "train", "val" or "test" as a word in their name hold that
        split, where others do not. A mapping from "train", "val" and "test" to files says which is which; without "val"
        the files of "train" are split further.
    x, y : str, optional
        Keys of input and output, several with a plus; where none is given, a common pair such as ``x`` and ``y``. ``y``
        alone has times after the samples, and the output is a later time of the input.
    channels : {"first", "last", "none"}, optional
        Where the channel axis stands after the samples (and time). It need not be said where only one place leaves input
        and output the same grid.
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
        GB up to which data is read into memory; larger HDF5 files are read batch by batch.
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
    >>> heat.title, heat.grid_shape, heat.in_channels, heat.load().counts()
    ('heat', (16,), 1, {'train': 32, 'val': 4, 'test': 4})
    """

    files: Any
    stamps: tuple = field(default=(), compare=False)  # size and time of change of the files, when they were first looked at

    name: ClassVar[str] = "data"

    def __post_init__(self) -> None:
        given = self.files
        if isinstance(given, Mapping):
            if "train" not in given or not set(given) <= set(SPLITS):
                names = ", ".join(map(repr, given)) or "nothing"
                raise MupError(f"The files are given for {names}: give those of 'train' and of 'val' or 'test' or both.")
            object.__setattr__(self, "files", {name: _expanded(given[name]) for name in SPLITS if name in given})
        else:
            object.__setattr__(self, "files", _expanded(given))
        super().__post_init__()
        if not self._all:
            raise MupError(f"There is no data file {given!r}; give one or more, such as heat.npz or runs/*.h5.")
        for path in map(Path, self._all):
            if path.suffix.lower() not in READERS or not path.is_file():
                there = ", ".join(sorted(p.name for p in path.parent.glob("*") if p.suffix.lower() in READERS)[:3])
                raise MupError(
                    f"There is no file {path} that can be read here, of a name that ends in {', '.join(READERS)} (the "
                    f"folder has {there or 'no such'})."
                )
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
    def parts(self) -> dict[str, list[Source]]:
        """Inputs and outputs by split; "all" for those that are to be split."""
        if isinstance(self.files, Mapping):
            parts = {"all" if name == "train" and "val" not in self.files else name: f for name, f in self.files.items()}
        else:
            words = list(map(_split_of, self.files))
            # "train" beside "test" alone, or beside files that name no split, is what is split further.
            whole = "val" not in words or None in words
            parts = {}
            for file, word in zip(self.files, words, strict=True):
                parts.setdefault("all" if word is None or (whole and word == "train") else word, []).append(file)
            if len(parts) == 1:
                parts = {"all": self.files}
        return {part: [open_source(f, self) for f in files] for part, files in parts.items()}

    def check_unchanged(self) -> None:
        """Raise MupError if a file changed since it was first looked at."""
        if self._stamped() != self.stamps:
            raise MupError(
                f"{', '.join(self._all)} changed while it was read: wait until it is written, and give the same call again."
            )


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
        else:
            files += sorted(glob.glob(str(path))) if glob.has_magic(str(path)) and not path.exists() else [str(path)]
    return tuple(files)


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnArrays(_Read):
    """One pair of arrays, read as a file with the keys x and y is: channels found, split, checked."""

    arrays: tuple[np.ndarray, np.ndarray]
    title: ClassVar[str] = "the data given"

    @cached_property
    def parts(self) -> dict[str, list[Source]]:
        """All in one."""
        x, y = self.arrays
        return {"all": [Source("data", ("x", "y"), ((x,), (y,)))]}


class Field:
    """Input or output of one split: indexed like a tensor of shape (n, channels, *grid), read when asked."""

    def __init__(self, source: _Read, split: str, which: int) -> None:
        self._of, self._which, self._order = source, which, source.split_indices[split]
        self._sources = source.parts.get(split) or source.parts["all"]
        self._layout = source._layout
        self.shape = (len(self._order) * self._layout.pairs, self._layout.channels[which], *self._layout.grid)
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | Sequence[int]) -> torch.Tensor:
        return self[[int(index)]][0] if isinstance(index, (int, np.integer)) else self.read(index).float()

    def check_unchanged(self) -> None:
        """Raise MupError if a file changed since it was first looked at."""
        self._of.check_unchanged()

    def read(self, index: Sequence[int]) -> torch.Tensor:
        """Some of the fields, in the precision of the file."""
        index, layout, which = np.asarray(index, dtype=int), self._layout, self._which
        samples, pair = self._order[index // layout.pairs], index % layout.pairs
        times = np.array(layout.steps)[pair, which] if layout.steps else None
        ends = np.cumsum([source.n for source in self._sources])
        numbers, found = np.searchsorted(ends, samples, side="right"), []
        for number in np.unique(numbers):
            here, source = np.flatnonzero(numbers == number), self._sources[number]
            own = samples[here] - ends[number] + source.n
            values = source.take(which, own, None if times is None else times[here], layout.axes[which])
            values = torch.from_numpy(values[(slice(None), slice(None), *map(slice, layout.grid))])
            check_finite(f"{source.names[which]} in {source.file}", values, own)
            found.append((here, values))
        result = torch.empty(len(index), *self.shape[1:], dtype=found[0][1].dtype if found else None)
        for here, values in found:
            result[here] = values
        return result
