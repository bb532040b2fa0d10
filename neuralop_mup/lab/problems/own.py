"""Data in the forms that people have it: files, arrays, data sets, loaders, or a function that makes one of these.

A source has ``load()``, which gives :class:`ProblemData` or :class:`Loaders`, and is what goes to other processes. What is
larger than a bound is read batch by batch and never held as a whole.
"""

from __future__ import annotations

import math
import mmap
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, Subset, default_collate

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.problems.base import Problem
from neuralop_mup.lab.problems.data import SPLITS, Loaders, ProblemData, batch_of, check_single, chunks_of, spread
from neuralop_mup.lab.problems.fields import PLACES, Source, named
from neuralop_mup.lab.problems.formats import known
from neuralop_mup.lab.problems.readers import READERS, THE_ONE, Lazy, content_of, files_of, read_file
from neuralop_mup.validation import check_count, check_number, is_number

_LEAST = 10  # samples
_PIECES = 10  # of a series in time, where there are too few of them for train, val and test
_ARRAYS = (torch.Tensor, np.ndarray)
_FORMS = (
    "give the path of a file, arrays (x, y), a pair (train, val) or dict with 'train' and 'val' of files, loaders, data "
    "sets or (x, y) arrays, or a function that returns one of these"
)
#: Words that say a split, as a key or in the name of a file or folder.
_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """Fields of the user's own: input → output on a grid of one to three axes, any number of channels, perhaps in time.

    Parameters
    ----------
    files : path, sequence or mapping
        Of a suffix in ``neuralop_mup.lab.problems.readers.READERS``; folders and patterns such as ``"runs/*.h5"`` stand
        for the files in them. Several are joined, sample after sample, unless their names, or those of the folders that they
        are in, say train, val and test. A mapping from these words to files says which is which; without "val" the files of
        "train" are split further.
    format : str, optional
        A name in ``neuralop_mup.lab.problems.formats.FORMATS``, where files of another format would be wrong.
    x, y : str, optional
        Keys of input and output, several with a plus; "x" and "y" where none is given. ``y`` alone is a state in time, whose
        earlier frames are the input.
    dims : str or mapping of str to str, optional
        A word for each axis, of all arrays or by key: "sample", "time", "channel", and any other for an axis of the grid;
        what files say of their axes is used where it is left out.
    channels : {"first", "last", "none"}, optional
        Where the channel axis stands after the samples (and time). It need not be said where only one place leaves input
        and output the same grid.
    time_step : int or "last", optional
        Of data in time: frames from the last frame of the input to the output, or "last": from the first frame to the last.
        It must be said, unless the format of the files says it.
    history : int, default 1
        Frames of the input, ``time_step`` apart and joined as channels, the oldest first. What is constant in time comes
        after them.
    rollout : int, default 1
        Steps over which a model is trained, each from its own prediction before.
    pushforward : bool, default False
        Of a rollout: the gradient goes through the last step alone.
    split : tuple of float, default (0.8, 0.1, 0.1)
        Shares of train, val and test, for what is not split yet; trajectories stay whole, but one or two are cut in ten
        pieces, whose last ones are for val and test.
    shuffle : bool, default True
        Draw the splits at random, always the same way: files are often sorted, and their last samples are then of another
        kind than the first. False: train, val and test follow each other as in the files.
    crop : bool, default False
        Drop the last point of each axis with an odd number of points.
    in_memory : float, default 2.0
        GB up to which data is read into memory; larger data is read batch by batch.
    arrays : mapping, optional
        Instead of files: "all", or "train" and others, to arrays by their keys, or what xarray has.
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
    >>> np.savez("waves.npz", u=rng.random((20, 11, 16)))
    >>> waves = OwnData(files="waves.npz", y="u", time_step=1, history=2)
    >>> waves.in_channels, waves.load().counts()
    (2, {'train': 144, 'val': 18, 'test': 18})
    """

    files: Any = ()
    format: str | None = None
    x: str | None = None
    y: str | None = None
    dims: Any = None
    channels: str | None = None
    time_step: int | str | None = None
    history: int = 1
    rollout: int = 1
    pushforward: bool = False
    split: tuple[float, ...] = (0.8, 0.1, 0.1)
    shuffle: bool = True
    crop: bool = False
    in_memory: float = 2.0
    arrays: Any = field(default=None, compare=False, repr=False)
    stamps: tuple = field(default=(), compare=False)  # size and time of change of the files, when they were first looked at

    name: ClassVar[str] = "data"

    def __post_init__(self) -> None:
        if self.arrays is None:
            given = _splits(self.files if isinstance(self.files, Mapping) else _by_name(self.files))
            for split, part in given.items():
                given[split] = files_of(part)
                if not given[split]:
                    raise MupError(f"There is no data file in {part!r}; give one or more, such as heat.npz or runs/*.h5.")
            object.__setattr__(self, "files", given)
        object.__setattr__(self, "stamps", self._stamped())
        split = tuple(self.split) if isinstance(self.split, (tuple, list)) else ()
        if not all(is_number(share) and share > 0 for share in split) or len(split) != 3 or abs(sum(split) - 1) > 1e-9:
            raise MupError(
                f"split = {self.split!r} must be three shares, for train, val and test, above 0 and with the sum 1, such as "
                "(0.8, 0.1, 0.1)."
            )
        for flag in ("shuffle", "crop", "pushforward"):
            if not isinstance(getattr(self, flag), bool):
                raise MupError(f"{flag} is {getattr(self, flag)!r}; give True or False.")
        check_number("in_memory", self.in_memory)
        if self.channels not in (None, *PLACES):
            raise MupError(f"channels is {self.channels!r}; {nearest(str(self.channels), PLACES)}")
        if self.time_step not in (None, "last"):
            check_count("time_step", self.time_step)
        for name in ("history", "rollout"):
            check_count(name, getattr(self, name))
        if self.pushforward and self.rollout == 1:
            raise MupError("pushforward is for training over several steps: give rollout=2 or more with it.")

    @property
    def _all(self) -> tuple[str, ...]:
        return () if self.arrays is not None else sum(self.files.values(), ())

    def _stamped(self) -> tuple:
        mapped = [a.key for part in (self.arrays or {}).values() for a in part.values() if isinstance(a, Lazy)]
        every = [
            inner for file in (*self._all, *mapped) for inner in (Path(file), *Path(file).rglob("*"))
        ]  # Zarr's are folders
        return tuple((file.stat().st_size, file.stat().st_mtime_ns) for file in every)

    @property
    def title(self) -> str:
        """What the data is called in reports: the name of its file, if it has one."""
        return Path(self._all[0]).stem if self._all else "the data given"

    # What it holds

    @cached_property
    def sources(self) -> dict[str, list[Source]]:
        """Inputs and outputs by split, each on a grid of its own; "all" for those that are to be split."""
        read = {name: getattr(self, name) for name in ("format", "x", "y", "dims", "channels", "crop")}
        if self.arrays is not None:
            found = {split: [named(content_of(part), read)] for split, part in self.arrays.items()}
        else:
            found = known(self.files, read) or {k: [named(read_file(f), read) for f in v] for k, v in self.files.items()}
        found = _splits(found)
        first = next(iter(found.values()))[0]
        for group in found.values():
            for source in group:
                other = group[0] if source.grid != group[0].grid else first
                told = [(s.labels(0), s.labels(1), s.times, len(s.grid)) for s in (source, other)]
                if told[0] != told[1] or source.grid != group[0].grid:
                    held, before = map(_held, (source, other))
                    raise MupError(
                        f"{source.file} holds {held}, but {other.file} {before}: files that are joined must agree."
                    )
        return found

    @property
    def first(self) -> Source:
        """One of them, of the training data: all have the same channels and times, and most one grid."""
        return (self.sources.get("all") or self.sources["train"])[0]

    def check_unchanged(self) -> None:
        """Raise MupError if a file changed since it was first looked at."""
        if self._stamped() != self.stamps:
            raise MupError(
                f"{', '.join(self._all) or self.title} changed while it was read: wait until it is written, and give the "
                "same call again."
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
        """Channels of the input, those of its frames first."""
        return self.first.channels[0] + (self.history * self.out_channels if len(self.frames) else 0)

    @property
    def out_channels(self) -> int:
        """Channels of the output."""
        return self.first.channels[1]

    # In time

    @cached_property
    def pieces(self) -> int:
        """Pieces into which a trajectory is cut, which then are trajectories, since there are too few to be split."""
        few = self.first.times and sum(source.n for source in self.sources.get("all", ())) in range(1, len(SPLITS))
        return _PIECES if few else 1

    @cached_property
    def frames(self) -> np.ndarray:
        """Frames of a trajectory that are used, a step of the model apart; none where there is no time axis."""
        times, file = self.first.times // self.pieces, self.first.file
        if not times:
            if self.time_step is not None or self.history + self.rollout > 2:
                raise MupError(f"time_step, history and rollout are for data with a time axis, and {file} has none.")
            return np.arange(0)
        if self.time_step is None and not self.first.format:
            what = ", ".join(v.told for v in self.first.outputs)
            raise MupError(
                f"{file} holds {what} with {self.first.times} frames in time; say what is learned: each step to the next, "
                "read={'time_step': 1}, or the first frame to the last, read={'time_step': 'last'}."
            )
        step = max(1, times - 1) if self.time_step == "last" else self.time_step or 1
        if len(range(0, times, step)) < self.history + self.rollout:
            raise MupError(
                f"{file} has {times} frames in {'a trajectory' if self.pieces == 1 else 'each of ten pieces'}, too few for "
                f"time_step = {step}, history = {self.history} and rollout = {self.rollout}: take smaller ones."
            )
        return np.arange(0, times, step)

    @property
    def pairs(self) -> int:
        """Pairs (x, y) that each sample or trajectory gives."""
        return max(1, len(self.frames) - self.history)

    # Splits

    @cached_property
    def split_indices(self) -> dict[str, np.ndarray]:
        """Which samples (or trajectories) each split has, in ascending order: their numbers in the files, one after the
        other, or in those of a split that has its own."""
        sizes = {name: sum(s.n for s in group) * self.pieces for name, group in self.sources.items()}
        if sum(sizes.values()) * self.pairs < _LEAST:
            raise MupError(
                f"{self.title} has {sum(sizes.values())} samples in all, {self._text}; at least {_LEAST} are "
                "needed to train, choose and test. If the first axis is not that of the samples, move it to the front."
            )
        found = {name: np.arange(n) for name, n in sizes.items() if name != "all"}
        if "all" in sizes:
            found |= _drawn(sizes["all"], self.split, found, self.shuffle and self.pieces == 1)
        return {name: found[name] for name in SPLITS if name in found}

    @property
    def _text(self) -> str:
        """``1 → 2 channels on 64×64 points``."""
        return f"{self.in_channels} → {self.out_channels} channels on {_by(self.grid_shape)} points"

    @property
    def readings(self) -> dict[str, str]:
        """What was found or said of the data, by what it is about: each array and its axes, the steps, and the splits."""
        counts = ", ".join(f"{len(n) * self.pairs} {split}" for split, n in self.split_indices.items())
        told = {"read as": f"{self._text}; {counts}", "format": self.first.format}
        for name, part in (("input", self.first.inputs), ("output", self.first.outputs)):
            told[name] = " + ".join(variable.told for variable in part)
        if len(self.frames):
            before, after = ", ".join(map(str, self.frames[: self.history])), self.frames[self.history]
            cut = f" in each of {self.pieces} pieces, the last for validation and test" if self.pieces > 1 else ""
            told["time"] = f"frames {before} → {after} of {self.first.times} and so on, {self.pairs} pairs{cut}"
            if self.rollout > 1:
                told["training"] = f"over {self.rollout} steps" + ", with the gradient of the last" * self.pushforward
        whole = [
            f"{split} from {', '.join(Path(s.file).name for s in g)}" for split, g in self.sources.items() if split != "all"
        ]
        whole += [f"{split} on {_by(g[0].grid)} points" for split, g in self.sources.items() if g[0].grid != self.grid_shape]
        if "all" in self.sources:
            parts = ", ".join(split for split in self.split_indices if split not in self.sources)
            drawn = "drawn at random, the same in every run; read={'shuffle': False} takes them in file order"
            how = drawn if self.shuffle and self.pieces == 1 else "in file order"
            whole.append(f"{parts} from {'the others' if whole else 'all'} {how}")
        return {name: text for name, text in {**told, "splits": "; ".join(whole)}.items() if text}

    def load(self) -> ProblemData:
        """The data, float32 and channels first: read batch by batch where it is too large for anything else.

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
        steps = {"history": self.history, "rollout": self.rollout, "pushforward": self.pushforward}
        if self.rollout > 1 and any("time" in variable.axes for variable in self.first.inputs):
            names = ", ".join(variable.told for variable in self.first.inputs)
            raise MupError(
                f"{names} in {self.first.file} vary in time, so that no step follows from a prediction: rollout=1."
            )
        parts = {split: Pairs(self, split) for split in self.split_indices}
        for which, name in enumerate("xy"):
            check_single(name, parts["train"].read(spread(parts["train"].fields[0]), (which,))[0])
        pairs = {split: part.fields for split, part in parts.items()}
        if sum(math.prod(values.shape) * 4 for pair in pairs.values() for values in pair) <= self.in_memory * 1e9:
            pairs = {split: part.whole() for split, part in parts.items()}
            self.check_unchanged()
        return ProblemData(**pairs, trajectory=self.pairs if len(self.frames) else 0, **steps)


class Pairs:
    """Input and output of one split in files, read when asked.

    Attributes
    ----------
    fields : tuple of Field
        Input and output apart.
    """

    def __init__(self, data: OwnData, split: str) -> None:
        self.sources = data.sources.get(split) or data.sources["all"]
        self.order, self.frames, self.history, self.pieces = (
            data.split_indices[split],
            data.frames,
            data.history,
            data.pieces,
        )
        self.pairs, self.check_unchanged = data.pairs, data.check_unchanged
        self.ends = np.cumsum([source.n * self.pieces for source in self.sources])
        count, grid = len(self.order) * self.pairs, self.sources[0].grid
        self.fields = tuple(Field(self, i, (count, c, *grid)) for i, c in enumerate((data.in_channels, data.out_channels)))

    def read(self, index: Sequence[int], which: Sequence[int], steps: int = 1) -> list[torch.Tensor]:
        """Inputs (0), outputs (1) or both of some pairs, in the precision of the file.

        Outputs are those of so many steps, those of the first one first; a frame that several need is read once.
        """
        index = np.asarray(index, dtype=int)
        samples, starts = self.order[index // self.pairs], index % self.pairs
        numbers = np.searchsorted(self.ends, samples, side="right")
        found, places = [], []
        for number in np.unique(numbers):
            here, source = np.flatnonzero(numbers == number), self.sources[number]
            inside = samples[here] - self.ends[number] + source.n * self.pieces
            found.append(self._of(source, inside, starts[here], which, steps))
            places.append(here)
        parts = [torch.cat(part) if len(part) > 1 else part[0] for part in zip(*found, strict=True)]
        if len(found) > 1:
            parts = [part[np.argsort(np.concatenate(places))] for part in parts]
        return [part if part.ndim == len(self.fields[0].shape) else part.transpose(0, 1).flatten(0, 1) for part in parts]

    def _of(
        self, source: Source, samples: np.ndarray, starts: np.ndarray, which: Sequence[int], steps: int
    ) -> list[torch.Tensor]:
        """Those of one file; of outputs over several steps the steps are the second axis."""
        if not len(self.frames):
            return [source.take(i, samples) for i in which]
        wanted = np.arange(0 if 0 in which else self.history, self.history + (steps if 1 in which else 0))
        samples, piece = np.divmod(samples, self.pieces)
        times = self.frames[starts[:, None] + wanted] + (piece * (source.times // self.pieces))[:, None]
        whole = source.take(1, np.repeat(samples, len(wanted)), times.ravel()).unflatten(0, times.shape)
        found = []
        if 0 in which:
            beside = source.take(0, samples, times[:, self.history - 1])
            found.append(torch.cat([whole[:, : self.history].flatten(1, 2), beside], dim=1))
        if 1 in which:
            found.append(whole[:, -steps:].squeeze(1) if steps == 1 else whole[:, -steps:])
        return found

    def whole(self) -> tuple[torch.Tensor, ...]:
        """All of them in memory, read part by part."""
        parts = [batch_of(*self.fields, numbers) for numbers in chunks_of(len(self.fields[0]))]
        return tuple(torch.cat([part[letter] for part in parts]) for letter in "xy")


class Field:
    """Input or output of one split: indexed like a tensor of shape (n, channels, *grid), read when asked."""

    def __init__(self, pairs: Pairs, which: int, shape: tuple[int, ...]) -> None:
        self.pairs, self.which, self.shape, self.ndim = pairs, which, shape, len(shape)
        self.check_unchanged = pairs.check_unchanged

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | Sequence[int]) -> torch.Tensor:
        if isinstance(index, (int, np.integer)):
            return self[[int(index)]][0]
        return self.pairs.read(index, (self.which,))[0].float()


# What is given, by split


def _splits(given: Mapping[str, Any]) -> dict[str, Any]:
    """By split, one rule for all forms: what is called train is divided further, as "all", where nothing is called val."""
    found = {_WORDS.get(str(name).lower(), name): part for name, part in given.items()}
    if wrong := [name for name in found if name not in (*SPLITS, "all")]:
        raise MupError(f"data names {wrong[0]!r}; {nearest(str(wrong[0]), SPLITS)}")
    if len(found) < len(given) or ("train" in found) == ("all" in found):
        names = ", ".join(map(repr, given)) or "nothing"
        raise MupError(f"The data is given for {names}: give that of 'train' once, and of 'val' or 'test' or both.")
    return {"all" if name == "train" and "val" not in found else name: part for name, part in found.items()}


def _drawn(n: int, shares: Sequence[float], known: Mapping[str, Any], shuffle: bool) -> dict[str, np.ndarray]:
    """Numbers of the samples of each split that is not known, in ascending order."""
    wanted = {name: share for name, share in zip(SPLITS, shares, strict=True) if name not in known}
    counts = {name: max(1, round(n * share / sum(wanted.values()))) for name, share in wanted.items()}
    counts["train"] += n - sum(counts.values())
    if counts["train"] < 1:
        raise MupError(f"The training data has {n} samples, too few to take those of {', '.join(list(counts)[1:])} from it.")
    # RandomState's numbers are the same in every version of NumPy.
    drawn = np.random.RandomState(0).permutation(n) if shuffle else np.arange(n)
    ends = np.cumsum(list(counts.values()))[:-1]
    # Ascending, so that a file that is read batch by batch is read from its beginning to its end.
    return {name: np.sort(part) for name, part in zip(counts, np.split(drawn, ends), strict=True)}


def _by_name(given: Any) -> dict[str, tuple[str, ...]]:
    """Files by the split that their names say, or those of their folders; "all" where they do not say different ones."""
    entries: list[Path] = []
    for entry in [given] if isinstance(given, (str, Path)) else given:
        path = Path(entry).expanduser()
        # As The Well has it: data/train, data/valid, data/test.
        outer = [f for f in (path, path / "data") if f.is_dir() and f.suffix.lower() not in READERS]
        inner = [sub for folder in outer for sub in sorted(folder.iterdir()) if sub.is_dir() and _word(sub.name)]
        entries += [sub for sub in inner if sub.suffix.lower() not in READERS]  # train.zarr is a file
        entries.append(path)
    files = files_of(entries)
    words = _words([[file] for file in files])
    if not {"val", "test"} & set(words) or len(set(words)) == 1:
        return {"all": files}
    if None in words:
        raise MupError(
            f"{files[words.index(None)]} is beside files that are called {', '.join(sorted(filter(None, set(words))))}: say "
            "which split it is of, {'train': …, 'val': …, 'test': …}, or leave it out."
        )
    return {word: tuple(f for f, of in zip(files, words, strict=True) if of == word) for word in dict.fromkeys(words)}


def _words(groups: Sequence[Sequence[str]]) -> list[str | None]:
    """The split that the names of each group of files say, in what their paths do not have in common."""
    paths = [[os.path.abspath(file) for file in group] for group in groups]
    common = os.path.commonpath([os.path.dirname(path) for group in paths for path in group] or ["/"])
    found = [{_word(os.path.relpath(path, common)) for path in group} for group in paths]
    return [words.pop() if len(words) == 1 else None for words in found]


def _word(name: str) -> str | None:
    """The split that a name says, such as "darcy_train_16.pt" or "valid"; None for none or several."""
    found = {_WORDS[word] for word in re.findall("[a-z]+", name.lower()) if word in _WORDS}
    return found.pop() if len(found) == 1 else None


def _by(grid: Sequence[int]) -> str:
    return "×".join(map(str, grid))


def _held(source: Source) -> str:
    """What a file holds, for a comparison: ``a, b → u on 64×64 points, 11 frames``."""
    inputs, outputs = (", ".join(source.labels(which)[:8]) for which in (0, 1))
    frames = f", {source.times} frames" if source.times else ""
    return f"{inputs} → {outputs}, {source.channels[0]} → {source.channels[1]} channels on {_by(source.grid)} points{frames}"


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
    if not isinstance(read or {}, Mapping):
        raise MupError(f"read={read!r} must be a dict of how files are read, such as {{'channels': 'last'}}.")
    read = dict(read or {})
    known = {f.name for f in fields(OwnData)} - {"files", "arrays", "stamps"}
    if wrong := [name for name in read if name not in known]:
        raise MupError(f"read has no argument {wrong[0]!r}; {nearest(wrong[0], known)}")
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
    if all(arrays.values()) and (read or "all" in parts or not all(pairs.values())):
        return OwnData(arrays=_splits(arrays), **read)
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
    given = _fields(_splits(pairs), dtype) if all(pairs.values()) else _splits(parts)
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
        names = [word or name for word, name in zip(_words(list(map(files_of, data))), names, strict=True)]
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
    drawn = _drawn(len(whole[0] if is_pair else whole), shares, parts, shuffle=True)
    for split, numbers in drawn.items():
        parts[split] = tuple(v[numbers] for v in whole) if is_pair else Subset(whole, numbers.tolist())
    counts = ", ".join(f"{len(numbers)} {split}" for split, numbers in drawn.items())
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
        name: tuple(_field(f"{k} of {name}", v, dtype) for k, v in zip("xy", p, strict=True)) for name, p in pairs.items()
    }
    first = made.get("all") or made["train"]
    for name, (x, y) in made.items():
        kinds, like = ([(v.ndim, v.shape[1]) for v in pair] for pair in ((x, y), first))
        if len(x) != len(y) or not len(x) or kinds != like:
            shapes = [tuple(values.shape) for values in (x, y, *first)]
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
        check_single(name, values[spread(values)])
    return values.to(real.to_complex() if values.is_complex() else real)
