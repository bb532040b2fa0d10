"""How the arrays of a file are laid out: which axes are channels, grid and times. Shapes tell what is not said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.problems.own_files import Source

__all__ = ["Layout", "channels_of", "channels_text", "layout_of"]

_CHANNELS = ("auto", "first", "last", "none")


@dataclass(frozen=True)
class Layout:
    """How arrays become fields of shape (n, channels, *grid)."""

    grid: tuple[int, ...]
    raw: tuple[int, ...]  # the grid in the file
    x_axis: int | None  # of the channels after the samples (and the time): 0, -1 or None
    y_axis: int | None
    x_channels: int
    y_channels: int
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
        return f"{self.x_channels} → {self.y_channels} channels on {grid} points{over if self.steps else ''}"


def layout_of(source: Source, channels: str, time_step: int | None, crop: bool) -> Layout:
    y = tuple(source.y[0].shape[1:])
    steps: tuple[tuple[int, int], ...] = ()
    if not source.x:
        if len(y) < 2 or y[0] < 2:
            raise MupError(
                f"{source.file} holds one array, {source.y_name} of shape {tuple(source.y[0].shape)}, without times after "
                "the samples: nothing to predict. Name input and output (--data.x, --data.y)."
            )
        times, y = y[0], y[1:]
        step = time_step or times - 1
        if step >= times:
            raise MupError(f"time_step = {step}, but {source.file} has {times} times.")
        steps = tuple((t, t + step) for t in range(0, times - step, step))
    elif time_step is not None:
        raise MupError(
            f"time_step = {time_step} is for one array with a time axis; {source.file} has an input and an output."
        )
    x = tuple(source.x[0].shape[1:]) if source.x else y
    x_axis, y_axis = _channel_axes(source, x, y, channels)
    grids = [_without(shape, axis) for shape, axis in ((x, x_axis), (y, y_axis))]
    if grids[0] != grids[1]:
        raise MupError(
            f"The input in {source.file} has the grid {_by(grids[0])} and the output {_by(grids[1])} (read with the "
            f"channels {channels}): both must be on one grid. Interpolate one of them, or say where the channels are "
            "(--data.channels)."
        )
    raw = grids[0]
    if not 1 <= len(raw) <= 3:
        raise MupError(
            f"The fields in {source.file} have {len(raw)} axes {_by(raw)} after samples and channels; one to three can be "
            "used. If one of them holds channels, say so (--data.channels first or last)."
        )
    grid = tuple(n - n % 2 for n in raw) if crop else raw
    if min(grid) < 4:
        raise MupError(f"The grid {_by(grid)} in {source.file} is too coarse; an axis needs 4 points at least.")
    count = [1 if axis is None else shape[axis] for shape, axis in ((x, x_axis), (y, y_axis))]
    return Layout(grid, raw, x_axis, y_axis, count[0] * max(1, len(source.x or source.y)), count[1] * len(source.y), steps)


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


def _channel_axes(source: Source, x: tuple, y: tuple, channels: str) -> tuple[int | None, int | None]:
    said = channels_of(channels)
    axes = {"first": 0, "last": -1, "none": None}
    if ":" not in channels and channels != "auto":
        # One array may lack the axis that the other has.
        axis = axes[channels]
        return (None if len(x) < len(y) else axis), (None if len(y) < len(x) else axis)
    if said != ("auto", "auto"):
        known = [axes[word] for word in said if word != "auto"]
        grids = [_without(shape, axes[word]) for word, shape in zip(said, (x, y), strict=True) if word != "auto"]
        if len(known) == 2:
            return known[0], known[1]
        other = y if said[1] == "auto" else x
        fits = [axis for axis in (None, 0, -1) if _without(other, axis) == grids[0]]
        guess = fits[0] if fits else None
        return (known[0], guess) if said[1] == "auto" else (guess, known[0])
    if len(x) != len(y):
        small, large = sorted((x, y), key=len)
        fits = [axis for axis in (0, -1) if _without(large, axis) == small]
        axis = fits[0] if fits else 0
        return (axis, None) if len(x) > len(y) else (None, axis)
    for pair in ((0, 0), (-1, -1), (0, -1), (-1, 0)):  # what both have alike comes first
        grids = [_without(shape, axis) for shape, axis in zip((x, y), pair, strict=True)]
        parts = (len(source.x or source.y), len(source.y))
        few = [_few(shape, axis, n) for shape, axis, n in zip((x, y), pair, parts, strict=True)]
        if len(x) > 1 and grids[0] == grids[1] and all(few):
            return pair
    return None, None


def _few(shape: tuple[int, ...], axis: int, parts: int) -> bool:
    """Whether an axis has as few entries as channels have. Several arrays are channels already: only 1 in each is."""
    most = 16 if parts == 1 else 1
    return shape[axis] <= most and shape[axis] <= min(_without(shape, axis), default=0) // 2


def channels_text(axis: int | None, arrays: Sequence[Any]) -> str:
    where = "no channel axis" if axis is None else f"channels {'first' if axis == 0 else 'last'}"
    return where if len(arrays) == 1 else f"{len(arrays)} arrays joined as channels, each with {where}"


def _without(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return shape if axis is None else shape[1:] if axis == 0 else shape[:-1]


def _by(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))
