"""Input and output: arrays whose axes are known, read as fields of shape ``(n, channels, *grid)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems.data import check_finite
from neuralop_mup.lab.problems.readers import Content, opened

SPACES = ("space0", "space1", "space2")
_ORDER = {name: place for place, name in enumerate(("sample", "time", "channel", *SPACES))}


@dataclass(frozen=True)
class Variable:
    """An array, and what each of its axes is.

    Attributes
    ----------
    name : str
        What messages call it: its key.
    array : array
        ``shape``, ``dtype`` and ``array[index]``, as in :class:`~neuralop_mup.lab.problems.readers.Content`.
    axes : tuple of str
        A word an axis: "sample", "time", "channel" (several are flattened in order), and "space0", "space1", "space2" for
        those of the grid, in any order. Along an axis that is absent or has one point everything is the same: no "time" is
        constant in time, no "sample" the same for all, and no space at all is a number, which becomes a constant channel.

    Examples
    --------
    >>> import numpy as np
    >>> from neuralop_mup.lab.problems.fields import Variable, source_of
    >>> a = Variable("a", np.random.rand(40, 16, 2), ("sample", "space0", "channel"))
    >>> viscosity = Variable("viscosity", np.random.rand(40), ("sample",))
    >>> u = Variable("u", np.random.rand(40, 16), ("sample", "space0"))
    >>> source = source_of("heat.npz", [a, viscosity], [u])
    >>> source.n, source.grid, source.channels, source.take(0, np.array([3, 5])).shape
    (40, (16,), (3, 1), torch.Size([2, 3, 16]))
    """

    name: str
    array: Any
    axes: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """Points along each axis, by its word; of several for channels the product."""
        sizes: dict[str, int] = {}
        for word, points in zip(self.axes, self.array.shape, strict=True):
            sizes[word] = sizes.get(word, 1) * points
        return sizes

    def read(self, samples: np.ndarray, times: np.ndarray | None, grid: tuple[int, ...]) -> np.ndarray:
        """Fields of these samples, each at its time, ``(len(samples), channels, *grid)``; each piece is read once."""
        sizes = self.sizes
        moving = [word for word in ("sample", "time") if word in sizes]
        flat = np.zeros(len(samples), int)
        for word in moving:
            flat = flat * sizes[word] + (samples if word == "sample" else times)
        wanted, back = np.unique(flat, return_inverse=True)
        # Numbers that follow each other along the last of these axes are read at once.
        last = sizes[moving[-1]] if moving else 1
        ends = np.flatnonzero((np.diff(wanted) != 1) | (wanted[1:] % last == 0)) + 1
        with opened(self.array) as array:
            pieces = [self._piece(array, run[0], len(run), moving, last, grid) for run in np.split(wanted, ends)]
        return np.broadcast_to(np.concatenate(pieces)[back], (len(samples), sizes.get("channel", 1), *grid))

    def _piece(
        self, array: Any, first: int, count: int, moving: Sequence[str], last: int, grid: tuple[int, ...]
    ) -> np.ndarray:
        """Those that follow each other, ``(count, channels, *grid)``, with one point along a space that is absent."""
        wanted = {word: slice(points) for word, points in zip(SPACES, grid, strict=False)}
        if moving:
            wanted[moving[-1]] = slice(first % last, first % last + count)
        if len(moving) > 1:
            wanted[moving[0]] = slice(first // last, first // last + 1)
        values = np.asarray(array[tuple(wanted.get(word, slice(None)) for word in self.axes)])
        order = sorted(range(len(self.axes)), key=lambda place: _ORDER[self.axes[place]])
        here = {word: values.shape[place] for place, word in enumerate(self.axes)}
        spaces = (here.get(word, 1) for word in SPACES[: len(grid)])
        return values.transpose(order).reshape(count, self.sizes.get("channel", 1), *spaces)


@dataclass(frozen=True)
class Source:
    """Input and output of one file, as fields.

    Attributes
    ----------
    file : str
        What messages call it.
    inputs, outputs : tuple of Variable
        Joined as channels, in this order. Of data in time the outputs' own earlier frames are the rest of the input;
        ``inputs`` are what is given besides, at each time or (no "time" axis) constant in time.
    n : int
        Samples, or trajectories.
    times : int
        Frames of each trajectory; 0: no time axis, input → output.
    grid : tuple of int
        Points that are used along "space0", "space1", …
    """

    file: str
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    n: int
    times: int
    grid: tuple[int, ...]

    @property
    def channels(self) -> tuple[int, int]:
        """Of inputs and of outputs; the frames before are not among the inputs."""
        inputs, outputs = (sum(v.sizes.get("channel", 1) for v in part) for part in (self.inputs, self.outputs))
        return inputs, outputs

    def take(self, which: int, samples: np.ndarray, times: np.ndarray | None = None) -> torch.Tensor:
        """Inputs (0) or outputs (1), of these samples, ``(len(samples), channels, *grid)`` in the precision of the file.

        Parameters
        ----------
        which : int
        samples : array of int
            Numbers of samples or trajectories, in any order; those that come several times are read once.
        times : array of int, optional
            As many: the frame of each. None where nothing has a time axis.

        Raises
        ------
        MupError
            For entries that are not finite.
        """
        variables = (self.inputs, self.outputs)[which]
        whole = np.zeros((len(samples), 0, *self.grid), np.float32)
        parts = [whole, *(variable.read(np.asarray(samples), times, self.grid) for variable in variables)]
        # Whole numbers become real ones that hold them, and bytes stand in this machine's order.
        kind = np.result_type(np.float32, *(part.dtype for part in parts))
        values = torch.from_numpy(np.concatenate(parts, axis=1, dtype=kind))
        for variable, part in zip(variables, values.split([part.shape[1] for part in parts[1:]], dim=1), strict=True):
            check_finite(f"{variable.name} in {self.file}", part, samples)
        return values


def source_of(file: str, inputs: Sequence[Variable], outputs: Sequence[Variable], crop: bool = False) -> Source:
    """Variables as input and output on one grid.

    Parameters
    ----------
    file : str
        What messages call it.
    inputs, outputs : sequence of Variable
    crop : bool, default False
        Drop the last point of each axis with an odd number of points.

    Raises
    ------
    MupError
        If they are no fields of real numbers on one grid with as many samples and times each.
    """
    sizes: dict[str, int] = {}
    for variable in (*inputs, *outputs):
        for word, points in variable.sizes.items():
            if word != "channel" and points != 1:
                if sizes.setdefault(word, points) != points:
                    raise MupError(f"{variable.name} in {file} has {points} points along {word}, others {sizes[word]}.")
    grid = tuple(sizes[word] for word in SPACES if word in sizes)
    grid = tuple(points - points % 2 for points in grid) if crop else grid
    return Source(file, tuple(inputs), tuple(outputs), sizes.get("sample", 1), sizes.get("time", 0), grid)


def named(content: Content, read: Mapping[str, Any]) -> Source:
    """Input and output of any content, by keys and by names of the axes.

    Parameters
    ----------
    content : Content
    read : mapping
        ``x`` and ``y``: keys, several with a plus. ``dims``: a word an axis, "sample", "time", "channel", any other being an
        axis of the grid: one text for all or a dict from key to text. ``channels``: "first", "last" or "none". ``crop``.

    Raises
    ------
    MupError
        If this does not say which array and which axis is what; the message lists what there is and the line to write.
    """
    raise NotImplementedError
