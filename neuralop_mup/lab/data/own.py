"""Fields in the user's files and arrays: their contents, their splits, and how they are loaded."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.batches import spread
from neuralop_mup.lab.data.files import by_split, files_by_split, files_of, is_counts
from neuralop_mup.lab.data.handles import reading, stamp_of
from neuralop_mup.lab.data.problem_data import ProblemData, check_single
from neuralop_mup.validation import check_number, is_number


def _each(value: Any) -> list[Any]:
    """Return the values of a dict, or a single value as a list."""
    return list(value.values()) if isinstance(value, Mapping) else [value]


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return value is None or (_is_whole(value) and value > 0)


def _are_words(words: Any) -> bool:
    """Return whether a value is a string, a sequence of strings or None."""
    return isinstance(words, str | None) or (isinstance(words, (tuple, list)) and all(isinstance(w, str) for w in words))


def _is_range(ends: Any) -> bool:
    """Return whether a value is a range of integers. None is an end of the axis, and negative numbers count from the end."""
    is_pair = isinstance(ends, (tuple, list)) and len(ends) == 2 and all(end is None or _is_whole(end) for end in ends)
    return is_pair and ((ends[0] or 0) >= 0 or ends[1] is None or ends[1] < 0)


def _is_split(split: Any) -> bool:
    is_triple = isinstance(split, (tuple, list)) and len(split) == 3 and all(is_number(part) and part > 0 for part in split)
    return is_triple and (is_counts(split) or abs(sum(split) - 1) < 1e-9)


def _is_one_of(*known: Any) -> tuple[Callable[[Any], bool], str]:
    # The types are compared, since 1 == True.
    return lambda value: type(value) is type(known[0]) and value in known, " or ".join(map(repr, known))


_KEY = (
    lambda key: isinstance(key, str | None),
    "a key given as a string, or several keys joined by a plus sign, such as 'u+v'",
)
_COUNT = (lambda count: count is not None and _is_count(count)), "a positive integer"
#: For each option, a function that checks its value and a description of valid values.
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "x": _KEY,
    "y": _KEY,
    "dims": (
        lambda dims: all(map(_are_words, _each(dims))),
        "a string of axis names, such as 'sample x y', or a dict of such strings",
    ),
    "time_step": (lambda step: step == "last" if isinstance(step, str) else _is_count(step), "a positive integer or 'last'"),
    "history": _COUNT,
    "rollout": _COUNT,
    "split": (
        _is_split,
        "three fractions for train, val and test that sum to 1, such as (0.8, 0.1, 0.1), or counts, such as (80, 10, 10)",
    ),
    "shuffle": _is_one_of(True, False),
    "n_train": (_is_count, "a positive integer"),
    "every": (lambda every: all(map(_is_count, _each(every))), "a positive integer, or a dict such as {'x': 4}"),
    "crop": (
        lambda crop: crop is None or (isinstance(crop, Mapping) and all(map(_is_range, crop.values()))),
        "a dict from axis to a range of integers, such as {'x': (0, 64)} (in the shell: --read.crop '{x: [0, 64]}')",
    ),
    "uneven": _is_one_of("error", "ignore", "channel"),
    "join": _is_one_of("sample", "time"),
    "nan": _is_one_of("error", "mask"),
}


def _distinct(files: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return each file once, even if links give it several names. Raise MupError for a file in two splits."""
    found: dict[tuple[int, int], tuple[str, str]] = {}
    for split, part in files.items():
        for file in sorted(part, key=os.path.islink):
            entry = os.stat(file)  # all names and links of a file have the same inode number
            if found.setdefault((entry.st_dev, entry.st_ino), (split, file))[0] != split:
                raise MupError(
                    f"{file} is assigned to two splits. Pass different files for each split, or pass this file alone."
                )
    kept = {file for _, file in found.values()}
    return {split: tuple(dict.fromkeys(file for file in part if file in kept)) for split, part in files.items()}


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """Fields in the user's files or arrays, with input and output on a grid of one to three axes.

    The fields may have any number of channels and may evolve in time.

    Parameters
    ----------
    files : path, sequence or mapping
        Files with a suffix in ``neuralop_mup.lab.data.files.SUFFIXES``, or folders and patterns such as ``"runs/*.h5"``. The
        samples of several files are concatenated, unless the names of the files or folders contain train, val and test. A
        mapping from these words assigns files explicitly. Without "val", the files of "train" are split further.
    x, y : str, optional
        Keys of the input and output, by default "x" and "y". Join several keys with a plus sign. ``y`` without ``x`` is a
        state that evolves in time, whose earlier frames are the input. Per-sample scalars in ``x`` become constant channels.
    dims : str or mapping of str to str, optional
        Name of each axis, for all arrays or by key: "sample", "time", "channel", or any other name for an axis of the grid.
        By default, the names come from the file. If it has none, the sample axis is first, and the channel axis is inferred
        if it is unambiguous. Otherwise an error lists the possible names.
    time_step : int or "last", optional
        For data with a time axis, the number of frames from the last input frame to the output. With "last", the model maps
        the first frame to the last. Required unless the files have a well-known format.
    history : int, default 1
        Number of input frames, ``time_step`` apart and joined as channels, the oldest first. Inputs that are constant in
        time follow them.
    rollout : int, default 1
        Number of steps over which a model is trained. Each step starts from the model's previous prediction.
    split : tuple of float or of int, default (0.8, 0.1, 0.1)
        Fractions or counts for train, val and test, applied to data that is not split yet. Trajectories stay whole, but if
        there are only one or two, they are cut into ten pieces, and the last pieces are used for val and test.
    shuffle : bool, default True
        Whether to draw the splits at random, in the same way every time. If False, train, val and test follow each other in
        file order.
    n_train : int, optional
        Maximum number of training samples or trajectories.
    every : int or mapping of str to int, optional
        Stride for all axes of the grid, or for each named axis: ``{"x": 4, "time": 5}``.
    crop : mapping of str to (int, int), optional
        Range of each axis to use, from a start to an end that is excluded: ``{"x": (0, 64)}``.
    uneven : {"error", "ignore", "channel"}, default "error"
        How to treat an unevenly spaced grid or uneven times. "channel" adds the time to the output as an input.
    join : {"sample", "time"}, default "sample"
        How to combine files. With "time", each file is a time step, and the files in a folder form one trajectory.
    nan : {"error", "mask"}, default "error"
        How to treat NaN, for example over land. "mask" fills NaN with the mean of the channel, adds an input channel that is
        1 where all values are known and 0 elsewhere, and excludes the other points from losses and errors.
    in_memory : float, default 2.0
        Maximum size in GB of data that is read into memory. Larger data is read batch by batch.
    arrays : mapping, optional
        Arrays to use instead of files: a mapping from "all", or from "train" and other splits, to arrays or xarray variables
        by key.
    stamps, linked : tuple, default ()
        Size and modification time of each file, and the files to which HDF5 files link. Set internally; do not pass them.

    Raises
    ------
    MupError
        If an option is invalid, or if files are missing, ambiguous, too few, or do not match.

    Examples
    --------
    >>> import numpy as np
    >>> from neuralop_mup.lab.data import OwnData
    >>> rng = np.random.default_rng(0)
    >>> np.savez("heat.npz", x=rng.random((40, 16)), y=rng.random((40, 16)))
    >>> heat = OwnData(files="heat.npz", split=(0.8, 0.1, 0.1))
    >>> heat.title, heat.grid_shape, heat.in_channels, heat.load().counts()
    ('heat', (16,), 1, {'train': 32, 'val': 4, 'test': 4})
    >>> np.savez("waves.npz", u=rng.random((20, 11, 16)))
    >>> waves = OwnData(files="waves.npz", y="u", dims="sample time x", time_step=1, history=2)
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
    split: tuple[float, ...] = (0.8, 0.1, 0.1)
    shuffle: bool = True
    n_train: int | None = None
    every: Any = None
    crop: Any = None
    uneven: str = "error"
    join: str = "sample"
    nan: str = "error"
    in_memory: float = 2.0
    arrays: Any = field(default=None, compare=False, repr=False)
    stamps: tuple = field(default=(), compare=False)  # size and modification time of the files when first inspected
    linked: tuple = field(default=(), compare=False)

    name: ClassVar[str] = "data"

    def __post_init__(self) -> None:
        if self.arrays is None:
            given = by_split(self.files if isinstance(self.files, Mapping) else files_by_split(self.files))
            object.__setattr__(self, "files", _distinct({split: files_of(part) for split, part in given.items()}))
        object.__setattr__(self, "stamps", self._stamped())
        for name, (is_possible, what) in _RULES.items():
            value = getattr(self, name)
            if not is_possible(value):
                raise MupError(f"{name} = {value!r} must be {what}.")
        check_number("in_memory", self.in_memory)
        if self.nan == "mask" and self.rollout > 1:
            raise MupError(
                "A rollout requires fields without NaN, since predictions have no mask. With nan='mask', set rollout=1."
            )

    @property
    def paths(self) -> tuple[str, ...]:
        """All files, or nothing for arrays."""
        return () if self.arrays is not None else sum(self.files.values(), ())

    def _stamped(self) -> tuple:
        mapped = [a.path for part in (self.arrays or {}).values() for a in part.values() if hasattr(a, "opener")]
        # A zarr file is a folder, so its inner files are included.
        every = [inner for file in (*self.paths, *mapped, *self.linked) for inner in (Path(file), *Path(file).rglob("*"))]
        return tuple(stamp_of(file) for file in every if file.exists())

    @property
    def title(self) -> str:
        """Path of the file without its suffix or, for several files, of their folder, relative to the current folder."""
        paths = [Path(os.path.abspath(file)).with_suffix("") for file in self.paths]
        if not paths:
            return "the given data"
        path = paths[0] if len(paths) == 1 else Path(os.path.commonpath([path.parent for path in paths]))
        here = Path.cwd()
        return path.relative_to(here.parent if path == here else here if here in path.parents else path.anchor).as_posix()

    # Contents

    @cached_property
    def sources(self) -> dict[str, list[Any]]:
        """Datasets with input and output by split, with "all" for data that is not split yet."""
        from neuralop_mup.lab.data import opening

        with reading():
            return opening.open_sources(self)

    @property
    def first(self) -> Any:
        """The first Dataset of the training data."""
        return (self.sources.get("all") or self.sources["train"])[0]

    def watch(self, linked: Sequence[str]) -> None:
        """Also check the files that HDF5 files link to for changes. In worker processes, their stamps are already known."""
        object.__setattr__(self, "linked", tuple(linked))
        object.__setattr__(self, "stamps", self.stamps + self._stamped()[len(self.stamps) :])

    def check_unchanged(self) -> None:
        """Raise MupError if a file has changed since it was first inspected."""
        if self._stamped() != self.stamps:
            raise MupError(
                f"{', '.join((*self.paths, *self.linked)) or self.title} changed or was removed while it was being read. "
                "Wait until it has been written, then repeat the call."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # omit cached data

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of points along each axis of the grid."""
        from neuralop_mup.lab.data.roles import grid_of

        return grid_of(self.first)

    @property
    def n_dim(self) -> int:
        """Number of axes of the grid."""
        return len(self.grid_shape)

    @property
    def in_channels(self) -> int:
        """Number of input channels, including frames and mask."""
        return self.parts["train"].fields[0].shape[1] + (self.nan == "mask")

    @property
    def out_channels(self) -> int:
        """Number of output channels."""
        return self.parts["train"].fields[1].shape[1]

    @cached_property
    def parts(self) -> dict[str, Any]:
        """Pairs of input and output of each split, read lazily."""
        from neuralop_mup.lab.data import opening

        return opening.open_parts(self)

    @property
    def split_indices(self) -> dict[str, np.ndarray]:
        """Indices of the samples, trajectories or pieces of trajectories in each split, in ascending order."""
        return {split: part.order for split, part in self.parts.items()}

    @property
    def readings(self) -> dict[str, str]:
        """Report lines about how the data was read: arrays and axes, steps, and splits."""
        from neuralop_mup.lab.data import opening

        return opening.describe(self)

    def load(self) -> ProblemData:
        """Return the data as float32 with channels first. Data larger than ``in_memory`` is read batch by batch.

        Returns
        -------
        ProblemData
            The data. Repeated calls return the same object.

        Raises
        ------
        MupError
            If values are not finite, fields are complex, files do not match or have changed, or if values vary too little
            for single precision.

        Examples
        --------
        >>> import numpy as np
        >>> from neuralop_mup.lab.data import OwnData
        >>> np.savez("heat.npz", x=np.random.rand(40, 16), y=np.random.rand(40, 16))
        >>> OwnData(files="heat.npz").load().counts()
        {'train': 32, 'val': 4, 'test': 4}
        """
        self.check_unchanged()
        return self._data

    @cached_property
    def _data(self) -> ProblemData:
        for name, values in zip("xy", self.parts["train"].fields, strict=True):
            check_single(name, values.exact(spread(values)))
        pairs = {split: part.fields for split, part in self.parts.items()}
        if sum(math.prod(values.shape) * 4 for pair in pairs.values() for values in pair) <= self.in_memory * 1e9:
            pairs = {split: part.whole() for split, part in self.parts.items()}
            self.check_unchanged()
        lengths = {split: part.lengths.tolist() for split, part in self.parts.items() if part.history}
        usual = set(chain(*lengths.values()))
        same = {"trajectory": usual.pop()} if len(usual) == 1 else {"lengths": lengths}
        return ProblemData(**pairs, **same, history=self.history, rollout=self.rollout, masked=self.nan == "mask")
