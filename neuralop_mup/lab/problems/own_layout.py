"""How the arrays of a file are laid out: which axes are channels, grid and times. What is not certain is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems.own_files import Source

CHANNELS = {"first": 0, "last": -1, "none": None}  # words for the axis of the channels, after the samples (and times)
_LEAST = 4  # points on an axis of a grid


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
        over = f", times {', '.join(f'{a} → {b}' for a, b in self.steps[:3])}{' …' if len(self.steps) > 3 else ''}"
        grid = "×".join(map(str, self.grid))
        return f"{self.channels[0]} → {self.channels[1]} channels on {grid} points{over if self.steps else ''}"


def layout_of(source: Source, read: Any) -> Layout:
    """How the arrays of a file are laid out; ``read`` has ``channels``, ``time_step``, ``crop`` and ``option``."""
    shapes = [tuple(arrays[0].shape[1:]) for arrays in source.arrays]
    steps: tuple[tuple[int, int], ...] = ()
    if source.in_time:
        times = shapes[0][0]
        step = read.time_step or times - 1
        if len(shapes[0]) < 2 or not 0 < step < times:
            raise MupError(
                f"{source.names[1]} in {source.file} has the shape {(source.n, *shapes[0])}, and must have times after the "
                f"samples, more than time_step = {step}: name input and output ({read.option(x='KEY', y='KEY')}), or take a "
                "smaller time_step."
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
    held = zip(source.names, source.arrays, strict=True)
    what = " and ".join(dict.fromkeys(f"{name} of shape {tuple(arrays[0].shape)}" for name, arrays in held))
    why = (
        "which of their axes is that of the channels is not certain"
        if fits
        else f"these are no fields on one grid of one to three axes with {_LEAST} points or more on each, so interpolate one"
    )
    raise MupError(
        f"{source.file} holds {what}: {why}. Say where the channels are, {read.option(channels='first')}, last or none."
    )


def _grid(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return shape if axis is None else shape[1:] if axis == 0 else shape[:-1]


def channels_text(axis: int | None, arrays: Sequence[Any]) -> str:
    """``channels first``."""
    where = "no channel axis" if axis is None else f"channels {'first' if axis == 0 else 'last'}"
    return where if len(arrays) == 1 else f"{len(arrays)} arrays joined as channels, each with {where}"
