"""A user's files, read: a table of readers, and from the arrays of a file the two that are input and output, as fields.

A reader gives the arrays of a file by their keys, in memory or as something that is sliced like them. What a file does not
say for certain is asked for.
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
from neuralop_mup.lab.problems.data import check_finite

CHANNELS = {"first": 1, "last": -1, "none": None}  # words for the axis of the channels, that of the samples being 0
_LEAST = 4  # points on an axis of a grid


class Hdf5Array:
    """A data set of an HDF5 file, or one of each group as PDEBench has it; the file is open only while it is read."""

    def __init__(self, file: str, keys: Sequence[str]) -> None:
        import h5py

        self.file, self.keys = file, keys
        with h5py.File(file, "r") as content:
            first = content[keys[0]]
            self.dtype, self.shape = first.dtype, first.shape if len(keys) == 1 else (len(keys), *first.shape)

    def __getitem__(self, at: tuple[np.ndarray, ...]) -> np.ndarray:
        """Samples, or each at one of its times; of a sample that comes more than once only these are read, and at once."""
        import h5py

        samples, times = (*at, None)[:2]
        result = np.empty((len(samples), *self.shape[len(at) :]), self.dtype)
        with h5py.File(self.file, "r") as content:
            for sample in np.unique(samples):
                here = np.flatnonzero(samples == sample)
                key, inside = (self.keys[0], (sample,)) if len(self.keys) == 1 else (self.keys[sample], ())
                wanted, back = (..., ...) if times is None else np.unique(times[here], return_inverse=True)
                if times is not None and wanted[-1] - wanted[0] < len(wanted):  # HDF5 is slow with lists
                    wanted = slice(wanted[0], wanted[-1] + 1)
                result[here] = content[key][(*inside, wanted)][back]
        return result


def numpy_of(values: Any) -> np.ndarray:
    """An array, or a tensor as one; numpy has no bfloat16, so that becomes single precision."""
    if not isinstance(values, torch.Tensor):
        return values
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _read_npz(file: str) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as content:
        return dict(content)


def _read_pt(file: str) -> dict[str, Any]:
    content = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(content, dict):
        raise ValueError(
            f"it holds a {type(content).__name__}, and must hold a dict of tensors, torch.save({{'x': x, 'y': y}}, file)"
        )
    return {key: numpy_of(value) for key, value in content.items() if isinstance(value, torch.Tensor)}


def _read_h5(file: str) -> dict[str, Any]:
    import h5py

    names: list[str] = []
    with h5py.File(file, "r") as content:
        content.visititems(lambda name, entry: names.append(name) if isinstance(entry, h5py.Dataset) else None)
    # PDEBench keeps some sets as one group a sample: 0000/data, 0001/data, …
    samples = sorted(name for name in names if name.partition("/")[0].isdecimal() and name.endswith("/data"))
    return {"data": Hdf5Array(file, samples)} if samples else {name: Hdf5Array(file, [name]) for name in names}


#: Suffix → function from a path to named arrays, which have ``shape`` and ``dtype``, and are indexed by the
#: numbers of samples, or of samples and times.
READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    ".npz": _read_npz,
    **dict.fromkeys((".pt", ".pth"), _read_pt),
    **dict.fromkeys((".h5", ".hdf5"), _read_h5),
}


@dataclass(frozen=True)
class Source:
    """Input and output in one file, each as fields of shape ``(n, channels, *grid)``."""

    file: str
    names: tuple[str, str]
    n: int  # samples, or trajectories
    pairs: int  # that each of them gives
    arrays: tuple[tuple[Any, ...], ...]  # of input and output, samples first; several are joined as channels
    steps: tuple[tuple[int, int], ...]  # times of input and output, where there is a time axis after the samples
    axes: tuple[int | None, ...]  # of the channels, as CHANNELS has it, without the time
    channels: tuple[int, ...]
    grid: tuple[int, ...]

    @property
    def text(self) -> str:
        """``1 → 2 channels on 64×64 points``."""
        return f"{self.channels[0]} → {self.channels[1]} channels on {'×'.join(map(str, self.grid))} points"

    def told(self, which: int) -> str:
        """What was taken for the input (0) or the output (1): ``x (channels first)``."""
        word = next(word for word, axis in CHANNELS.items() if axis == self.axes[which])
        return f"{self.names[which]} ({'no channel axis' if word == 'none' else f'channels {word}'})"

    def take(self, which: int, samples: np.ndarray, pairs: np.ndarray) -> torch.Tensor:
        """Inputs (0) or outputs (1), in the precision of the file: of these samples, in time each of one of its pairs.

        Raises
        ------
        MupError
            For entries that are not finite.
        """
        at = (samples, np.array(self.steps)[pairs, which]) if self.steps else (samples,)
        parts, axis = [array[at] for array in self.arrays[which]], self.axes[which]
        whole = np.concatenate([v[:, None] if axis is None else np.moveaxis(v, axis, 1) for v in parts], axis=1)
        values = torch.from_numpy(whole[(slice(None), slice(None), *map(slice, self.grid))])
        check_finite(f"{self.names[which]} in {self.file}", values, samples)
        return values


def open_source(file: str, read: Any) -> Source:
    """The input and the output in a file.

    Parameters
    ----------
    file : str
    read
        How: ``x`` and ``y``, keys of input and output, several with a plus (``y`` alone has times after the samples), and
        what :func:`source_of` takes.

    Raises
    ------
    MupError
        If the file cannot be read or has no such keys, if nothing says which array is what, or for arrays that
        :func:`source_of` refuses.
    """
    try:
        content = READERS[Path(file).suffix.lower()](file)
    except Exception as error:  # a damaged file can fail in as many ways as zip, pickle and HDF5 know
        raise MupError(f"The file {file} cannot be read: {type(error).__name__}: {error}") from error
    x, y = ("x", "y") if read.x is None and read.y is None and {"x", "y"} <= set(content) else (read.x, read.y)
    if y is None:
        held = ", ".join(f"{key} {tuple(values.shape)}" for key, values in content.items()) or "no array"
        raise MupError(
            f"The file {file} holds {held}: which is the input and which the output? Name them, several with a plus, "
            "such as read={'x': 'a+b', 'y': 'u'}; one state whose second axis is time has no input, read={'y': 'u'}."
        )
    names = (x or y, y)
    for part in "+".join(names).split("+"):
        if part not in content:
            raise MupError(f"The file {file} has no {part!r}; {nearest(part, content)}")
    return source_of(file, names, tuple(tuple(content[part] for part in name.split("+")) for name in names), read, not x)


def source_of(file: str, names: tuple[str, str], arrays: tuple[Any, ...], read: Any, in_time: bool = False) -> Source:
    """Two arrays, or two tuples of arrays that are joined as channels, as input and output on one grid.

    Parameters
    ----------
    file, names
        What they are called.
    arrays : tuple of tuples of arrays
        Samples first.
    read
        How: ``channels``, ``time_step`` and ``crop``.
    in_time : bool, default False
        Whether times come after the samples; both are then the same arrays.

    Raises
    ------
    MupError
        If they are no fields of real numbers on one grid with as many samples each, and as many times as are asked for.
    """
    for name, parts in zip(names, arrays, strict=True):
        kinds, shapes = {np.dtype(values.dtype).kind for values in parts}, {tuple(values.shape) for values in parts}
        if not kinds <= set("biuf") or len(shapes) > 1 or len(parts[0].shape) < 2:
            raise MupError(
                f"{name} in {file} is no field, {parts[0].dtype} of shape {', '.join(map(str, shapes))}: fields "
                "are real numbers on a grid after the axis of the samples, parts that are joined have one shape, and "
                "of complex ones the real and imaginary parts are two channels, np.stack([u.real, u.imag], axis=1)."
            )
    shapes, steps = [tuple(parts[0].shape) for parts in arrays], ()
    if shapes[0][0] != shapes[1][0] or not shapes[0][0]:
        raise MupError(
            f"{' and '.join(names)} in {file} have {shapes[0][0]} and {shapes[1][0]} samples; there must be as many of "
            "each, one or more."
        )
    if in_time:
        times = shapes[1][1]
        step = read.time_step or times - 1
        if len(shapes[1]) < 3 or not 0 < step < times:
            raise MupError(
                f"{names[1]} in {file} has the shape {shapes[1]}, and must have times after the samples, more than "
                f"time_step = {step}: name input and output, read={{'x': …, 'y': …}}, or take a smaller time_step."
            )
        shapes = [shape[:1] + shape[2:] for shape in shapes]
        steps = tuple((t, t + step) for t in range(0, times - step, step))
    elif read.time_step is not None:
        raise MupError(f"time_step = {read.time_step} is for one array with a time axis; {file} has an input and an output.")
    axes = _channel_axes(file, names, arrays, shapes, read.channels)
    channels = [
        len(parts) * (1 if axis is None else shape[axis]) for parts, shape, axis in zip(arrays, shapes, axes, strict=True)
    ]
    grid = _grid(shapes[0], axes[0])
    grid = tuple(n - n % 2 for n in grid) if read.crop else grid
    return Source(file, names, shapes[0][0], max(1, len(steps)), arrays, steps, axes, tuple(channels), grid)


def _channel_axes(
    file: str, names: tuple[str, str], arrays: Sequence[Any], shapes: Sequence[tuple[int, ...]], said: str | None
) -> tuple[int | None, ...]:
    """Where the channels of x and y are: what was said, or what alone leaves both the same grid.

    What was said of both in one word need not be there in both. An array of which several are joined is a channel already,
    and of fields with as many points on each axis all axes are the grid's.
    """
    allowed = [(1, -1, None) if len(parts) == 1 else (None,) for parts in arrays]
    if said is not None:
        allowed = [(CHANNELS[said], None)] * 2
    fits = []
    for pair in product(*allowed):
        x, y = (_grid(shape, axis) for shape, axis in zip(shapes, pair, strict=True))
        if x == y and 1 <= len(x) <= 3 and min(x) >= _LEAST:
            fits.append(pair)
    if (None, None) in fits and said is None and all(len(set(shape[1:])) == 1 for shape in shapes):
        return None, None
    if fits and (len(fits) == 1 or said is not None):
        return fits[0]
    held = dict.fromkeys(f"{name} of shape {tuple(parts[0].shape)}" for name, parts in zip(names, arrays, strict=True))
    wrong = f"these are no fields on one grid of one to three axes with {_LEAST} points or more on each, so interpolate one"
    wrong = "which of their axes is that of the channels is not certain" if fits else wrong
    raise MupError(
        f"{file} holds {' and '.join(held)}: {wrong}. Say where the channels are, read={{'channels': 'first'}}, last or "
        "none."
    )


def _grid(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return shape[1:] if axis is None else shape[2:] if axis == 1 else shape[1:-1]
