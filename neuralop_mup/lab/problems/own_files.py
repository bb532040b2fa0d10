"""A user's files, read: which of their arrays are input and output, and how these are laid out.

A reader gives the arrays of a file by their keys. What a file does not say for certain is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neuralop_mup.errors import MupError, nearest

CHANNELS = {"first": 0, "last": -1, "none": None}  # words for the axis of the channels, after the samples (and times)
_LEAST = 4  # points on an axis of a grid
_NO_FIELDS = f"these are no fields on one grid of one to three axes with {_LEAST} points or more on each, so interpolate one"
#: Pairs of keys that are taken for input and output where the user names none.
_PAIRS = (
    *(("x", "y"), ("input", "output"), ("inputs", "outputs"), ("a", "u"), ("coeff", "sol"), ("nu", "tensor")),
    *(("x_train", "y_train"), ("source", "target"), ("features", "labels")),
)


class Hdf5Array:
    """A data set of an HDF5 file, or one of each group as PDEBench has it; the file is open only while it is read."""

    def __init__(self, file: str, keys: Sequence[str]) -> None:
        import h5py

        self.file, self.keys = file, keys
        with h5py.File(file, "r") as content:
            first = content[keys[0]]
            self.dtype, self.shape = first.dtype, first.shape if len(keys) == 1 else (len(keys), *first.shape)
        self.ndim = len(self.shape)

    def take(self, samples: np.ndarray, times: np.ndarray | None) -> np.ndarray:
        """Samples, or each at one of its times; of a sample that comes more than once only these are read, and at once."""
        import h5py

        result = np.empty((len(samples), *self.shape[1 if times is None else 2 :]), self.dtype)
        with h5py.File(self.file, "r") as content:
            for sample in np.unique(samples):
                here = np.flatnonzero(samples == sample)
                key, at = (self.keys[0], (sample,)) if len(self.keys) == 1 else (self.keys[sample], ())
                wanted, back = (..., ...) if times is None else np.unique(times[here], return_inverse=True)
                if times is not None and wanted[-1] - wanted[0] < len(wanted):  # HDF5 is slow with lists
                    wanted = slice(wanted[0], wanted[-1] + 1)
                result[here] = content[key][(*at, wanted)][back]
        return result


def _read_npz(file: str) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as content:
        return {key: content[key] for key in content.files}


def numpy_of(values: torch.Tensor) -> np.ndarray:
    """A tensor as an array; numpy has no bfloat16, so that becomes single precision."""
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _read_pt(file: str) -> dict[str, Any]:
    content = torch.load(file, map_location="cpu", weights_only=True)
    if isinstance(content, (tuple, list)) and len(content) == 2:
        content = dict(zip("xy", content, strict=True))
    if isinstance(content, torch.Tensor):
        content = {"data": content}
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, not a dict of tensors")
    return {key: numpy_of(value) for key, value in content.items() if isinstance(value, torch.Tensor)}


def _read_h5(file: str) -> dict[str, Any]:
    import h5py

    names: list[str] = []
    with h5py.File(file, "r") as content:
        content.visititems(lambda name, entry: names.append(name) if isinstance(entry, h5py.Dataset) else None)
    # PDEBench keeps some sets as one group a sample: 0000/data, 0001/data, …
    samples = sorted(name for name in names if name.partition("/")[0].isdecimal() and name.endswith("/data"))
    return {"data": Hdf5Array(file, samples)} if samples else {name: Hdf5Array(file, [name]) for name in names}


READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    ".npz": _read_npz,
    **dict.fromkeys((".pt", ".pth"), _read_pt),
    **dict.fromkeys((".h5", ".hdf5"), _read_h5),
}


@dataclass(frozen=True)
class Source:
    """Input and output in one file; the same arrays where they have times after the samples.

    Raises
    ------
    MupError
        If the arrays are no fields of real numbers with as many samples each.
    """

    file: str
    names: tuple[str, str]
    arrays: tuple[tuple[Any, ...], tuple[Any, ...]]  # samples first, each with channels of the field
    in_time: bool = False
    unused: tuple[str, ...] = ()  # keys of further fields

    def __post_init__(self) -> None:
        for name, arrays in zip(self.names, self.arrays, strict=True):
            kinds, shapes = {np.dtype(values.dtype).kind for values in arrays}, {tuple(values.shape) for values in arrays}
            if not kinds <= set("biuf") or len(shapes) > 1 or arrays[0].ndim < 2:
                raise MupError(
                    f"{name} in {self.file} is no field, {arrays[0].dtype} of shape {', '.join(map(str, shapes))}: fields "
                    "are real numbers on a grid after the axis of the samples, parts that are joined have one shape, and "
                    "of complex ones the real and imaginary parts are two channels, np.stack([u.real, u.imag], axis=1)."
                )
        counts = [arrays[0].shape[0] for arrays in self.arrays]
        if counts[0] != counts[1]:
            raise MupError(
                f"{' and '.join(self.names)} in {self.file} have {counts[0]} and {counts[1]} samples; there must be as many "
                "of each."
            )

    @property
    def n(self) -> int:
        """Samples."""
        return self.arrays[0][0].shape[0]

    @property
    def is_lazy(self) -> bool:
        """Whether the arrays are in the file still."""
        return all(isinstance(array, Hdf5Array) for arrays in self.arrays for array in arrays)

    def take(self, which: int, samples: np.ndarray, times: np.ndarray | None, axis: int | None) -> np.ndarray:
        """Inputs or outputs, each at one of its times where there are times, with channels after the samples.

        Parameters
        ----------
        which : {0, 1}
        samples, times : np.ndarray
        axis : {0, -1, None}
            Where the channels are in the file.
        """
        at = (samples,) if times is None else (samples, times)
        found = [a.take(samples, times) if isinstance(a, Hdf5Array) else a[at] for a in self.arrays[which]]
        return np.concatenate([v[:, None] if axis is None else np.moveaxis(v, -1, 1) if axis else v for v in found], axis=1)


def open_source(file: str, read: Any) -> Source:
    """The input and the output in a file.

    Parameters
    ----------
    file : str
    read
        How: ``x`` and ``y``, keys of input and output, several with a plus (``y`` alone has times after the samples).

    Raises
    ------
    MupError
        If the file cannot be read or has no such keys, if nothing says which array is what, or if the arrays are no fields
        of numbers with as many samples each.
    """
    try:
        content = READERS[Path(file).suffix.lower()](file)
    except Exception as error:  # a damaged file can fail in as many ways as zip, pickle and HDF5 know
        raise MupError(f"The file {file} cannot be read: {type(error).__name__}: {error}") from error
    x, y = read.x, read.y
    if x is None and y is None:
        x, y = next((pair for pair in _PAIRS if set(pair) <= set(content)), (None, None))
        fields = [key for key, values in content.items() if values.ndim > 1]
        if y is None and read.time_step is not None and len(fields) == 1:
            y = fields[0]
    if y is None:
        held = ", ".join(f"{key} {tuple(values.shape)}" for key, values in content.items()) or "no array"
        raise MupError(
            f"The file {file} holds {held}: which is the input and which the output? Name them, several with a plus, "
            "such as read={'x': 'a+b', 'y': 'u'}; one state whose second axis is time has no input, read={'y': 'u'}."
        )
    names = (x or y, y)
    taken = "+".join(names).split("+")
    for part in taken:
        if part not in content:
            raise MupError(f"The file {file} has no {part!r}; {nearest(part, content)}")
    arrays = tuple(tuple(content[part] for part in name.split("+")) for name in names)
    unused = tuple(key for key, values in content.items() if values.ndim > 1 and key not in taken)
    return Source(file, names, arrays, not x, unused)


@dataclass(frozen=True)
class Layout:
    """How arrays become fields of shape (n, channels, *grid)."""

    grid: tuple[int, ...]
    axes: tuple[int | None, int | None]  # of the channels of x and y after the samples (and the time): 0, -1 or None
    channels: tuple[int, int]
    steps: tuple[tuple[int, int], ...]  # times of input and output, where there is a time axis

    @property
    def pairs(self) -> int:
        """Samples that a trajectory gives."""
        return max(1, len(self.steps))

    @property
    def text(self) -> str:
        """``1 → 2 channels on 64×64 points``."""
        grid = "×".join(map(str, self.grid))
        return f"{self.channels[0]} → {self.channels[1]} channels on {grid} points"


def layout_of(source: Source, read: Any) -> Layout:
    """How the arrays of a file are laid out; ``read`` has ``channels``, ``time_step``, and ``crop``."""
    shapes = [tuple(arrays[0].shape[1:]) for arrays in source.arrays]
    steps: tuple[tuple[int, int], ...] = ()
    if source.in_time:
        times = shapes[0][0]
        step = read.time_step or times - 1
        if len(shapes[0]) < 2 or not 0 < step < times:
            raise MupError(
                f"{source.names[1]} in {source.file} has the shape {(source.n, *shapes[0])}, and must have times after the "
                f"samples, more than time_step = {step}: name input and output, read={{'x': …, 'y': …}}, or take a smaller "
                "time_step."
            )
        shapes = [shape[1:] for shape in shapes]
        steps = tuple((t, t + step) for t in range(0, times - step, step))
    elif read.time_step is not None:
        raise MupError(
            f"time_step = {read.time_step} is for one array with a time axis; {source.file} has an input and an output."
        )
    axes = _channel_axes(source, shapes, read)
    raw = _grid(shapes[0], axes[0])
    channels = [
        len(arrays) * (1 if axis is None else shape[axis])
        for arrays, shape, axis in zip(source.arrays, shapes, axes, strict=True)
    ]
    return Layout(tuple(n - n % 2 for n in raw) if read.crop else raw, axes, tuple(channels), steps)


def _channel_axes(source: Source, shapes: Sequence[tuple[int, ...]], read: Any) -> tuple[int | None, int | None]:
    """Where the channels of x and y are: what was said, or what alone leaves both the same grid.

    What was said of both in one word need not be there in both. An array of which several are joined is a channel already,
    and of fields with as many points on each axis all axes are the grid's.
    """
    allowed = [(0, -1, None) if len(arrays) == 1 else (None,) for arrays in source.arrays]
    if read.channels is not None:
        allowed = [(CHANNELS[read.channels], None)] * 2
    grids = {pair: [_grid(shape, axis) for shape, axis in zip(shapes, pair, strict=True)] for pair in product(*allowed)}
    fits = [pair for pair, (x, y) in grids.items() if x == y and 1 <= len(x) <= 3 and all(n >= _LEAST for n in x)]
    no_axis = (None, None)
    if fits and (len(fits) == 1 or read.channels is not None):
        return fits[0]
    if no_axis in fits and all(len(set(shape)) == 1 for shape in shapes):
        return no_axis
    shapes_of = [f"{name} of shape {tuple(parts[0].shape)}" for name, parts in zip(source.names, source.arrays, strict=True)]
    raise MupError(
        f"{source.file} holds {' and '.join(dict.fromkeys(shapes_of))}: "
        f"{'which of their axes is that of the channels is not certain' if fits else _NO_FIELDS}. Say where the channels "
        "are, read={'channels': 'first'}, last or none."
    )


def _grid(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return shape if axis is None else shape[1:] if axis == 0 else shape[:-1]


def channels_text(axis: int | None, arrays: Sequence[Any]) -> str:
    """``channels first``."""
    where = "no channel axis" if axis is None else f"channels {'first' if axis == 0 else 'last'}"
    return where if len(arrays) == 1 else f"{len(arrays)} arrays joined as channels, each with {where}"
