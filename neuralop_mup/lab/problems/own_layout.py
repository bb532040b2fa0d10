"""How the arrays of a file are laid out: which axes are channels, grid and times. Shapes tell what is not said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.problems.own_files import Source

__all__ = ["Layout", "channels_of", "channels_text", "layout_of"]

_CHANNELS = {"first": 0, "last": -1, "none": None, "auto": None}  # words for the axis
_AXES = (0, -1, None)
#: Axes of the channels of x and y where nothing is said: what both have alike comes first.
_GUESSES = ((0, 0), (-1, -1), (0, -1), (-1, 0), (None, 0), (None, -1), (0, None), (-1, None), (None, None))


@dataclass(frozen=True)
class Layout:
    """How arrays become fields of shape (n, channels, *grid)."""

    grid: tuple[int, ...]
    raw: tuple[int, ...]  # the grid in the file
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
        over = f", times {', '.join(f'{a} → {b}' for a, b in self.steps[:3])}{' …' if len(self.steps) > 3 else ''}"
        return f"{self.channels[0]} → {self.channels[1]} channels on {_by(self.grid)} points{over if self.steps else ''}"


def layout_of(source: Source, read: Any) -> Layout:
    """How the arrays of a file are laid out; ``read`` has ``channels``, ``time_step``, ``crop`` and ``option``."""
    said = read.option
    shapes = [tuple(arrays[0].shape[1:]) for arrays in source.arrays]
    steps: tuple[tuple[int, int], ...] = ()
    if source.in_time:
        times = shapes[0][0]
        if len(shapes[0]) < 2 or times < 2:
            raise MupError(
                f"{source.file} holds one array, {source.names[1]} of shape {(source.n, *shapes[0])}, without times after "
                f"the samples: nothing to predict. Name input and output ({said(x='KEY', y='KEY')})."
            )
        shapes = [shape[1:] for shape in shapes]
        step = read.time_step or times - 1
        if step >= times:
            raise MupError(f"time_step = {step}, but {source.file} has {times} times.")
        steps = tuple((t, t + step) for t in range(0, times - step, step))
    elif read.time_step is not None:
        raise MupError(
            f"time_step = {read.time_step} is for one array with a time axis; {source.file} has an input and an output."
        )
    axes = _channel_axes(shapes, [len(arrays) for arrays in source.arrays], read.channels)
    grids = _grids(shapes, axes)
    if grids[0] != grids[1]:
        raise MupError(
            f"The input in {source.file} has the grid {_by(grids[0])} and the output {_by(grids[1])} (read with the "
            f"channels {read.channels}): both must be on one grid. Interpolate one of them, or say where the channels are "
            f"({said(channels='first')}, last or none)."
        )
    raw = grids[0]
    if not 1 <= len(raw) <= 3:
        raise MupError(
            f"The fields in {source.file} have {len(raw)} axes {_by(raw)} after samples and channels; one to three can be "
            f"used. If one of them holds channels, say so ({said(channels='first')} or last)."
        )
    grid = tuple(n - n % 2 for n in raw) if read.crop else raw
    if min(grid) < 4:
        raise MupError(f"The grid {_by(grid)} in {source.file} is too coarse; an axis needs 4 points at least.")
    channels = [
        len(arrays) * (1 if axis is None else shape[axis])
        for arrays, shape, axis in zip(source.arrays, shapes, axes, strict=True)
    ]
    return Layout(grid, raw, axes, tuple(channels), steps)


def channels_of(text: str) -> tuple[str, str]:
    """What was said of the channels of x and of y."""
    said = {"x": "auto", "y": "auto"}
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        letter, colon, where = part.rpartition(":")
        if where not in _CHANNELS or (colon and letter not in said) or (not colon and len(parts) > 1):
            raise MupError(
                f"channels is {text!r}: {nearest(where, _CHANNELS)} For input and output by themselves write x:first,y:last."
            )
        said |= {letter: where} if colon else dict.fromkeys(said, where)
    return said["x"], said["y"]


def _channel_axes(shapes: Sequence[tuple[int, ...]], parts: Sequence[int], channels: str) -> tuple[int | None, int | None]:
    """Where the channels of x and y are: what was said, and of that the first that leaves both the same grid."""
    said = channels_of(channels)
    # Said of both in one word, one array may lack the axis that the other has.
    lacking = [] if ":" in channels else [None]
    allowed = [_AXES if word == "auto" else [_CHANNELS[word], *lacking] for word in said]
    nothing_said = said == ("auto", "auto")
    pairs = _GUESSES if nothing_said else list(product(*allowed))
    for pair in pairs:
        x, y = _grids(shapes, pair)
        guessed = nothing_said and None not in pair
        if x == y and (not guessed or all(map(_few, shapes, pair, parts))):
            return pair
    return pairs[-1] if "auto" in said else pairs[0]


def _few(shape: tuple[int, ...], axis: int, parts: int) -> bool:
    """Whether an axis has as few entries as channels have. Several arrays are channels already: only 1 in each is."""
    most = 16 if parts == 1 else 1
    return shape[axis] <= most and shape[axis] <= min(_without(shape, axis), default=0) // 2


def channels_text(axis: int | None, arrays: Sequence[Any]) -> str:
    where = "no channel axis" if axis is None else f"channels {'first' if axis == 0 else 'last'}"
    return where if len(arrays) == 1 else f"{len(arrays)} arrays joined as channels, each with {where}"


def _without(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return shape if axis is None else shape[1:] if axis == 0 else shape[:-1]


def _grids(shapes: Sequence[tuple[int, ...]], axes: Sequence[int | None]) -> list[tuple[int, ...]]:
    return [_without(shape, axis) for shape, axis in zip(shapes, axes, strict=True)]


def _by(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))
