"""Data in the forms that people have it: files, arrays, data sets, loaders, or a function that makes one of these.

A source has ``load()``, which gives :class:`ProblemData` or :class:`Loaders`, and is what goes to other processes. HDF5
files larger than a bound are read batch by batch and never held as a whole.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Dataset

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.problems.base import Problem
from neuralop_mup.lab.problems.data import SPLITS, Loaders, ProblemData, check_single, spread
from neuralop_mup.lab.problems.fields import PLACES, Source, named
from neuralop_mup.lab.problems.readers import content_of, files_of, numpy_of, read_file
from neuralop_mup.validation import check_count, check_number, is_number

_LEAST = 10  # samples
_ARRAYS = (torch.Tensor, np.ndarray)
_FORMS = (
    "give the path of a file, arrays (x, y), a pair (train, val) or dict with 'train' and 'val' of files, loaders, data "
    "sets or (x, y) arrays, or a function that returns one of these"
)


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """Fields from files of the user's own: input → output on a grid of one to three axes, any number of channels.

    Parameters
    ----------
    files : path, sequence or mapping
        Of a suffix in :data:`neuralop_mup.lab.problems.readers.READERS`; folders and patterns such as ``"runs/*.h5"`` stand
        for the files in them. Several are joined, sample after sample. A mapping from "train", "val" and "test" to files
        says which is which; without "val" the files of "train" are split further.
    x, y : str, optional
        Keys of input and output, several with a plus; "x" and "y" where none is given. ``y`` alone has times after the
        samples, and the output is a later time of the input.
    dims : str or mapping of str to str, optional
        A word for each axis, of all arrays or by key: "sample", "time", "channel", and any other for an axis of the grid;
        what files say of their axes is used where it is left out.
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
    arrays : tuple of np.ndarray, optional
        Input and output, instead of files: what a file with the keys x and y would hold.
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

    files: Any = ()
    x: str | None = None
    y: str | None = None
    dims: Any = None
    channels: str | None = None
    time_step: int | None = None
    split: tuple[float, ...] = (0.8, 0.1, 0.1)
    shuffle: bool = True
    crop: bool = False
    in_memory: float = 2.0
    arrays: Any = field(default=None, compare=False, repr=False)
    stamps: tuple = field(default=(), compare=False)  # size and time of change of the files, when they were first looked at

    name: ClassVar[str] = "data"

    def __post_init__(self) -> None:
        given = self.files if isinstance(self.files, Mapping) else {"all": self.files}
        if isinstance(self.files, Mapping) and ("train" not in given or not set(given) <= set(SPLITS)):
            names = ", ".join(map(repr, given)) or "nothing"
            raise MupError(f"The files are given for {names}: give those of 'train' and of 'val' or 'test' or both.")
        pooled = {"train": "all"} if "val" not in given else {}  # a part of them is for validation
        object.__setattr__(self, "files", {pooled.get(name, name): files_of(part) for name, part in given.items()})
        if not self._all and self.arrays is None:
            raise MupError(
                f"There is no data file {given.get('all', given)!r}; give one or more, such as heat.npz or runs/*.h5."
            )
        object.__setattr__(self, "stamps", self._stamped())
        split = tuple(self.split) if isinstance(self.split, (tuple, list)) else ()
        if not all(is_number(share) and share > 0 for share in split) or len(split) != 3 or abs(sum(split) - 1) > 1e-9:
            raise MupError(
                f"split = {self.split!r} must be three shares, for train, val and test, above 0 and with the sum 1, such as "
                "(0.8, 0.1, 0.1)."
            )
        for flag in ("shuffle", "crop"):
            if not isinstance(getattr(self, flag), bool):
                raise MupError(f"{flag} is {getattr(self, flag)!r}; give True or False.")
        check_number("in_memory", self.in_memory)
        if self.channels not in (None, *PLACES):
            raise MupError(f"channels is {self.channels!r}; {nearest(str(self.channels), PLACES)}")
        if self.time_step is not None:
            check_count("time_step", self.time_step)

    @property
    def _all(self) -> tuple[str, ...]:
        return sum(self.files.values(), ())

    def _stamped(self) -> tuple:
        return tuple((os.stat(f).st_size, os.stat(f).st_mtime_ns) for f in self._all)

    @property
    def title(self) -> str:
        """What the data is called in reports: the name of its file, if it has one."""
        return Path(self._all[0]).stem if self._all else "the data given"

    @cached_property
    def sources(self) -> dict[str, list[Source]]:
        """Inputs and outputs by split; "all" for those that are to be split."""
        read = {"x": self.x, "y": self.y, "dims": self.dims, "channels": self.channels, "crop": self.crop}
        found = {part: [named(read_file(file), read) for file in files] for part, files in self.files.items()}
        if self.arrays is not None:
            content = content_of(dict(zip("xy", self.arrays, strict=True)))
            found = {"all": [named(content, {**read, "x": "x", "y": "y"})]}
        every = sum(found.values(), [])
        for source in every:
            told, other = (f"{s.channels} channels on {s.grid} points, {s.times} times" for s in (source, every[0]))
            if told != other:
                raise MupError(
                    f"{source.file} holds {told}, but {every[0].file} holds {other}: files that are joined must agree."
                )
        return found

    @cached_property
    def steps(self) -> tuple[tuple[int, int], ...]:
        """Frames of input and output of each pair that a trajectory gives; () without a time axis."""
        times = self.first.times
        if not times and self.time_step is not None:
            raise MupError(
                f"time_step = {self.time_step} is for one array with a time axis; {self.first.file} has an input and an "
                "output."
            )
        step = self.time_step or times - 1
        if times and not 0 < step < times:
            raise MupError(f"{self.first.file} has {times} times, too few for time_step = {step}: take a smaller one.")
        return tuple((t, t + step) for t in range(0, times - step, step))

    @property
    def first(self) -> Source:
        """One of them: all have the same channels, grid and times."""
        return next(source for group in self.sources.values() for source in group)

    def check_unchanged(self) -> None:
        """Raise MupError if a file changed since it was first looked at."""
        if self._stamped() != self.stamps:
            raise MupError(
                f"{', '.join(self._all)} changed while it was read: wait until it is written, and give the same call again."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # without what was read

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Points per axis."""
        return self.first.grid

    @property
    def n_dim(self) -> int:
        """Axes of the grid."""
        return len(self.grid_shape)

    @property
    def in_channels(self) -> int:
        """Channels of the input."""
        return self.first.channels[0] + (self.first.channels[1] if self.steps else 0)

    @property
    def _text(self) -> str:
        """``1 → 2 channels on 64×64 points``."""
        return f"{self.in_channels} → {self.out_channels} channels on {'×'.join(map(str, self.grid_shape))} points"

    @property
    def out_channels(self) -> int:
        """Channels of the output."""
        return self.first.channels[1]

    @cached_property
    def split_indices(self) -> dict[str, np.ndarray]:
        """Which samples (or trajectories) each split has, in ascending order: their numbers in the files, one after the
        other, or in those of a split that has its own."""
        sizes = {name: sum(s.n for s in group) for name, group in self.sources.items()}
        if sum(sizes.values()) < _LEAST:
            raise MupError(
                f"{self.title} has {sum(sizes.values())} samples in all, {self._text}; at least {_LEAST} are "
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
    def readings(self) -> dict[str, str]:
        """What was found or said of the data, by what it is about: each array and its channels, and the splits."""
        told = {"input": self.first.inputs, "output": self.first.outputs}
        told = {name: " + ".join(variable.told for variable in part) for name, part in told.items() if part}
        whole = [f"{k} from {', '.join(Path(s.file).name for s in g)}" for k, g in self.sources.items() if k != "all"]
        if "all" in self.sources:
            drawn = "drawn at random, the same in every run; read={'shuffle': False} takes them in file order"
            whole.append(("the others " if whole else "") + (drawn if self.shuffle else "in file order"))
        counts = ", ".join(f"{len(n) * max(1, len(self.steps))} {split}" for split, n in self.split_indices.items())
        return {"read as": f"{self._text}; {counts}", **told, "splits": "; ".join(whole)}

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
        if sum(math.prod(values.shape) * 4 for pair in pairs.values() for values in pair) <= self.in_memory * 1e9:
            pairs = {split: tuple(values[range(len(values))] for values in pair) for split, pair in pairs.items()}
            self.check_unchanged()
        return ProblemData(**pairs, trajectory=len(self.steps))


class Field:
    """Input or output of one split: indexed like a tensor of shape (n, channels, *grid), read when asked."""

    def __init__(self, source: OwnData, split: str, which: int) -> None:
        self._which, self._order, self.check_unchanged = which, source.split_indices[split], source.check_unchanged
        self._sources = source.sources.get(split) or source.sources["all"]
        self._steps, self._pairs = np.array(source.steps), max(1, len(source.steps))
        channels = source.out_channels if which else source.in_channels
        self.shape = (len(self._order) * self._pairs, channels, *source.grid_shape)
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | Sequence[int]) -> torch.Tensor:
        return self[[int(index)]][0] if isinstance(index, (int, np.integer)) else self.read(index).float()

    def read(self, index: Sequence[int]) -> torch.Tensor:
        """Some of the fields, in the precision of the file."""
        index = np.asarray(index, dtype=int)
        samples, pairs = self._order[index // self._pairs], index % self._pairs
        ends = np.cumsum([source.n for source in self._sources])
        numbers, places, found = np.searchsorted(ends, samples, side="right"), [], []
        for number in np.unique(numbers):
            here, source = np.flatnonzero(numbers == number), self._sources[number]
            at = samples[here] - ends[number] + source.n
            if len(self._steps):
                times = self._steps[pairs[here], self._which]
                whole = source.take(1, at, times)
                found.append(whole if self._which else torch.cat([whole, source.take(0, at, times)], dim=1))
            else:
                found.append(source.take(self._which, at))
            places.append(here)
        return torch.cat(found)[np.argsort(np.concatenate(places))]


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
        self.title = getattr(function, "__name__", "the data given")

    def load(self) -> ProblemData | Loaders:
        """What the function gives now; MupError if it is not what it gave first."""
        data = as_source(self.function(), self.read, self.dtype).load()
        digest = fingerprint(data)
        if digest != (self.digest or digest):
            raise MupError(f"{self.title}() gives other data than when the study began: it must give the same each time.")
        self.digest = digest
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
    known = {f.name for f in fields(OwnData)} - {"files", "arrays", "stamps"}
    if wrong := [name for name in read if name not in known]:
        raise MupError(f"read has no argument {wrong[0]!r}; {nearest(wrong[0], known)}")
    if callable(data) and not isinstance(data, Dataset):
        return _Called(data, read, dtype)
    parts = _parts(data)
    if all(_all_are(part, (str, Path)) for part in parts.values()):
        return OwnData(files=parts.get("all", parts), **read)
    pairs = {name: _pair(part) for name, part in parts.items()}
    if pairs.get("all"):
        return OwnData(arrays=tuple(map(numpy_of, pairs["all"])), **read)
    if read:
        raise MupError(
            "read= says how files or a pair of arrays (x, y) are read, and the data is given otherwise: leave it out, and "
            "bring arrays into the form (n, channels, *grid) by x.movedim(-1, 1), or with numpy np.moveaxis(x, -1, 1)."
        )
    if isinstance(data, (Problem, OwnData, ProblemData, Loaders)):
        return data
    if not {"train", "val"} <= set(parts):
        raise MupError(f"data is a {type(data).__name__}; {_FORMS}.")
    if all(pairs.values()):
        return ProblemData(**_fields(pairs, dtype))
    if any(pairs.values()) or any(isinstance(part, _ARRAYS) for part in parts.values()):
        kinds = [f"{name} a {'pair of arrays' if pairs[name] else type(part).__name__}" for name, part in parts.items()]
        raise MupError(
            f"{', '.join(kinds)}: give each split alike, as a pair of arrays (x, y) of input and output, or as a loader."
        )
    return Loaders(parts)


def _parts(data: Any) -> dict[str, Any]:
    """What is given for train, val and test, or for all of them."""
    if isinstance(data, Mapping) and not {"x", "y"} <= set(data):
        if wrong := [name for name in data if name not in SPLITS]:
            raise MupError(f"data names {wrong[0]!r}; {nearest(str(wrong[0]), SPLITS)}")
        return dict(data)
    joined = isinstance(data, list) and _all_are(data, (str, Path))
    is_splits = isinstance(data, (tuple, list)) and len(data) in (2, 3) and not joined and _pair(data) is None
    return dict(zip(SPLITS, data, strict=False)) if is_splits else {"all": data}


def _all_are(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of these kinds, or a sequence of such."""
    entries = value if isinstance(value, (tuple, list)) else [value]
    return bool(entries) and all(isinstance(entry, kinds) for entry in entries)


def _pair(part: Any) -> tuple[Any, Any] | None:
    """Input and output where both are given as arrays."""
    if isinstance(part, Mapping) and {"x", "y"} <= set(part):
        part = (part["x"], part["y"])
    return tuple(part) if isinstance(part, (tuple, list)) and len(part) == 2 and _all_are(part, _ARRAYS) else None


def _fields(pairs: Mapping[str, tuple[Any, Any]], dtype: torch.dtype | None) -> dict[str, tuple[torch.Tensor, ...]]:
    """Arrays of given splits as tensors; MupError where they do not fit together."""
    made = {
        name: tuple(_field(f"{k} of {name}", v, dtype) for k, v in zip("xy", p, strict=True)) for name, p in pairs.items()
    }
    for name, (x, y) in made.items():
        kinds, like = ([(v.ndim, v.shape[1]) for v in pair] for pair in ((x, y), made["train"]))
        if len(x) != len(y) or not len(x) or kinds != like:
            shapes = [tuple(values.shape) for values in (x, y, *made["train"])]
            raise MupError(
                f"{name} has x of shape {shapes[0]} and y of shape {shapes[1]}, and train {shapes[2]} and {shapes[3]}: "
                "there must be as many samples of each, one or more and samples first, (n, channels, *grid), and all splits "
                "must have the same channels and axes."
            )
    return made


def _field(name: str, values: Any, dtype: torch.dtype | None) -> torch.Tensor:
    """Input or output of one split as a tensor."""
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
