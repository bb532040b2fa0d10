"""Fields in files and arrays of the user's own: what they hold, how they are split, and how far they fit in memory."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems.batches import spread
from neuralop_mup.lab.problems.data import SPLITS, ProblemData, check_single
from neuralop_mup.lab.problems.fields import Source, check_whose, named, option
from neuralop_mup.lab.problems.formats import known
from neuralop_mup.lab.problems.readers import Lazy, content_of, contents_of, files_of
from neuralop_mup.lab.problems.splits import by_name, by_split, drawn
from neuralop_mup.lab.problems.windows import Pairs
from neuralop_mup.validation import check_count, check_number, is_number

_LEAST = 10  # samples
_PIECES = 10  # of a series in time, where there are too few of them for train, val and test


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
    x, y : str, optional
        Keys of input and output, several with a plus; "x" and "y" where none is given. ``y`` alone is a state in time, whose
        earlier frames are the input.
    dims : str or mapping of str to str, optional
        A word for each axis, of all arrays or by key: "sample", "time", "channel", and any other for an axis of the grid;
        what files say of their axes is used where it is left out. Without either the first axis is that of the samples (the
        second that of the time, with ``y`` alone), and channels come next or last where that alone leaves one grid.
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
    x: str | None = None
    y: str | None = None
    dims: Any = None
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
            given = by_split(self.files if isinstance(self.files, Mapping) else by_name(self.files))
            object.__setattr__(self, "files", {split: files_of(part) for split, part in given.items()})
            uses = Counter(file for part in self.files.values() for file in {Path(file).resolve() for file in part})
            if twice := [file for file, n in uses.items() if n > 1]:
                raise MupError(f"{twice[0]} is given for two splits: give each files of its own, or one file alone.")
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
        # Zarr's are folders.
        every = [inner for file in (*self._all, *mapped) for inner in (Path(file), *Path(file).rglob("*"))]
        return tuple((file.stat().st_size, file.stat().st_mtime_ns) for file in every)

    @property
    def title(self) -> str:
        """What the data is called in reports: the name of its file, if it has one."""
        return Path((self.files.get("all") or self.files["train"])[0]).stem if self._all else "the data given"

    # What it holds

    @cached_property
    def sources(self) -> dict[str, list[Source]]:
        """Inputs and outputs by split, each on a grid of its own; "all" for those that are to be split."""
        read = {name: getattr(self, name) for name in ("x", "y", "dims", "crop")}
        if self.arrays is not None:
            found = {split: [named(content_of(part), read)] for split, part in self.arrays.items()}
        else:
            found = known(self.files, read) or self._named(read)
        found = by_split(found)
        first = next(iter(found.values()))[0]
        for group in found.values():
            for source in group:
                held = [(s.labels(0), s.labels(1), len(s.grid), s.times > 0) for s in (source, first)]
                other = group[0] if held[0] == held[1] else first
                if held[0] != held[1] or (source.grid, source.times) != (other.grid, other.times):
                    raise MupError(
                        f"{source.file} holds {_held(source)}, but {other.file} {_held(other)}: files that are joined must "
                        "agree."
                    )
        return found

    def _named(self, read: Mapping[str, Any]) -> dict[str, list[Source]]:
        """Those of files of no format that has a name."""
        contents = {split: contents_of(files) for split, files in self.files.items()}
        for group in contents.values() if sum(map(len, contents.values())) >= _LEAST else ():
            check_whose(group, read)
        return {split: [named(content, read) for content in group] for split, group in contents.items()}

    @property
    def first(self) -> Source:
        """One of them, of the training data: those of a split have one grid and as many frames."""
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
        return self.first.channels[0] + (self.history * self.out_channels if self.first.times else 0)

    @property
    def out_channels(self) -> int:
        """Channels of the output."""
        return self.first.channels[1]

    # Splits

    def _frames(self, source: Source, cut: int) -> np.ndarray:
        """Frames of a trajectory that are used, a step of the model apart; none where there is no time axis."""
        times, file = source.times // cut, source.file
        if not times:
            if self.time_step is not None or self.history + self.rollout > 2:
                raise MupError(f"time_step, history and rollout are for data with a time axis, and {file} has none.")
            return np.arange(0)
        if self.time_step is None and not source.format:
            what = ", ".join(v.told for v in source.outputs)
            raise MupError(
                f"{file} holds {what} with {source.times} frames in time; say what is learned: each step to the next, "
                f"{option(time_step=1)}, or the first frame to the last, {option(time_step='last')}."
            )
        step = max(1, times - 1) if self.time_step == "last" else int(self.time_step or 1)
        if len(range(0, times, step)) < self.history + self.rollout:
            raise MupError(
                f"{file} has {times} frames in {'a trajectory' if cut == 1 else 'each of ten pieces'}, too few for "
                f"time_step = {step}, history = {self.history} and rollout = {self.rollout}: take smaller ones."
            )
        return np.arange(0, times, step)

    @cached_property
    def parts(self) -> dict[str, Pairs]:
        """Input and output of each split, read when asked."""
        whole = self.sources.get("all", [])
        n = sum(source.n for source in whole)
        cut = _PIECES if self.first.times and 0 < n < len(SPLITS) else 1  # of one or two trajectories pieces are split
        orders = {split: np.arange(sum(s.n for s in group)) for split, group in self.sources.items() if split != "all"}
        if whole:
            orders |= drawn(n * cut, self.split, orders, self.shuffle and cut == 1)
        found = {}
        for split in (name for name in SPLITS if name in orders):
            group, own = (self.sources[split], 1) if split in self.sources else (whole, cut)
            frames = self._frames(group[0], own)
            found[split] = Pairs(group, orders[split], frames, self.history, own, self.check_unchanged)
        if sum(map(len, found.values())) < _LEAST:
            raise MupError(
                f"{self.title} has {sum(map(len, found.values()))} samples in all, {self._text}; at least {_LEAST} are "
                "needed to train, choose and test. If the first axis is not that of the samples, move it to the front."
            )
        return found

    @property
    def split_indices(self) -> dict[str, np.ndarray]:
        """Which samples (or trajectories) each split has, in ascending order: their numbers in the files, one after the
        other, or in those of a split that has its own."""
        return {split: part.order for split, part in self.parts.items()}

    @property
    def _text(self) -> str:
        """``1 → 2 channels on 64×64 points``."""
        return f"{self.in_channels} → {self.out_channels} channels on {_by(self.grid_shape)} points"

    @property
    def readings(self) -> dict[str, str]:
        """What was found or said of the data, by what it is about: each array and its axes, the steps, and the splits."""
        train = self.parts["train"]
        counts = ", ".join(f"{len(part)} {split}" for split, part in self.parts.items())
        told = {"read as": f"{self._text}; {counts}", "format": self.first.format}
        for name, part in (("input", self.first.inputs), ("output", self.first.outputs)):
            told[name] = " + ".join(variable.told for variable in part)
        if len(train.frames):
            before, after = ", ".join(map(str, train.frames[: self.history])), train.frames[self.history]
            cut = f" in each of {train.cut} pieces, the last for validation and test" if train.cut > 1 else ""
            told["time"] = f"frames {before} → {after} of {self.first.times} and so on, {train.each} pairs{cut}"
            if self.rollout > 1:
                told["training"] = f"over {self.rollout} steps" + ", with the gradient of the last" * self.pushforward
        own = {split: group for split, group in self.sources.items() if split != "all"}
        whole = [f"{split} from {', '.join(Path(s.file).name for s in group)}" for split, group in own.items()]
        whole += [f"{split} on {_by(g[0].grid)} points" for split, g in own.items() if g[0].grid != self.grid_shape]
        whole += [f"{split} with {g[0].times} frames" for split, g in own.items() if g[0].times != self.first.times]
        if "all" in self.sources:
            parts = ", ".join(split for split in self.parts if split not in own)
            how = "drawn at random, the same in every run" if self.shuffle and train.cut == 1 else "in file order"
            other = f"; {option(shuffle=False)} takes them in file order" if how[0] == "d" else ""
            whole.append(f"{parts} from {'the others' if whole else 'all'} {how}{other}")
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
        for name, values in zip("xy", self.parts["train"].fields, strict=True):
            check_single(name, values.exact(spread(values)))
        pairs = {split: part.fields for split, part in self.parts.items()}
        if sum(math.prod(values.shape) * 4 for pair in pairs.values() for values in pair) <= self.in_memory * 1e9:
            pairs = {split: part.whole() for split, part in self.parts.items()}
            self.check_unchanged()
        lengths = {split: part.each for split, part in self.parts.items() if len(part.frames)}
        usual = lengths.get("train", 0)
        others = {split: each for split, each in lengths.items() if each != usual}
        return ProblemData(**pairs, trajectory=usual, lengths=others, **steps)


def _by(grid: Sequence[int]) -> str:
    return "×".join(map(str, grid))


def _held(source: Source) -> str:
    """What a file holds, for a comparison: ``a, b → u on 64×64 points, 11 frames``."""
    inputs, outputs = (", ".join(source.labels(which)[:8]) for which in (0, 1))
    frames = f", {source.times} frames" if source.times else ""
    return f"{inputs} → {outputs}, {source.channels[0]} → {source.channels[1]} channels on {_by(source.grid)} points{frames}"
