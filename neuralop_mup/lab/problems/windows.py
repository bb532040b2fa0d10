"""Input and output of one split in files, pair by pair: of trajectories windows of frames, each frame read once."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from neuralop_mup.lab.problems.data import chunks_of
from neuralop_mup.lab.problems.fields import Source
from neuralop_mup.lab.problems.readers import reading


class Pairs:
    """Input and output of one split in files, read when asked.

    Parameters
    ----------
    sources : sequence of Source
        Of the files of the split, one after the other.
    order : array of int
        Which of their samples (or trajectories, or pieces of these) the split has.
    frames : array of int
        Of each trajectory, a step of the model apart; none where there is no time axis.
    history : int
        Frames of an input.
    cut : int
        Pieces into which each trajectory is cut.
    check_unchanged : callable
        Raises MupError if a file changed since it was first looked at.

    Attributes
    ----------
    fields : tuple of Field
        Input and output apart.
    each : int
        Pairs that each sample or trajectory gives.
    chunk : int
        Pairs that a file holds together, so that one of them costs as much as all.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        order: np.ndarray,
        frames: np.ndarray,
        history: int,
        cut: int,
        check_unchanged: Callable[[], None],
    ) -> None:
        self.sources, self.order, self.frames, self.history, self.cut = sources, order, frames, history, cut
        self.check_unchanged, self.each = check_unchanged, max(1, len(frames) - history)
        self.ends, self.chunk = np.cumsum([source.n * cut for source in sources]), sources[0].outputs[0].chunk
        first, n = sources[0], len(order) * self.each
        channels = first.channels[0] + len(frames[:history]) * first.channels[1], first.channels[1]
        self.fields = tuple(Field(self, which, (n, count, *first.grid)) for which, count in enumerate(channels))

    def __len__(self) -> int:
        return len(self.order) * self.each

    def read(self, index: Sequence[int], which: Sequence[int], steps: int = 1) -> list[torch.Tensor]:
        """Inputs (0), outputs (1) or both of some pairs, in the precision of the file; each frame is read once.

        Outputs have one more axis, the second one: those of so many steps.
        """
        index = np.asarray(index, dtype=int)
        samples, starts = self.order[index // self.each], index % self.each
        files = np.searchsorted(self.ends, samples, side="right")
        found: list[torch.Tensor] = []
        for number in np.unique(files):
            here, source = np.flatnonzero(files == number), self.sources[number]
            inside, piece = np.divmod(samples[here] - self.ends[number] + source.n * self.cut, self.cut)
            begins = starts[here, None] if len(self.frames) else None
            with reading():
                parts = self._of(source, inside, piece * (source.times // self.cut), begins, which, steps)
            if len(here) == len(index):
                return parts
            found = found or [part.new_empty((len(index), *part.shape[1:])) for part in parts]
            for whole, part in zip(found, parts, strict=True):
                whole[here] = part
        return found

    def _of(
        self, source: Source, samples: np.ndarray, first: np.ndarray, starts: Any, which: Sequence[int], steps: int
    ) -> list[torch.Tensor]:
        """Those of one file; ``first``: the frame with which each piece of a trajectory begins."""
        if starts is None:
            return [source.take(i, samples) if i == 0 else source.take(i, samples)[:, None] for i in which]
        wanted = np.arange(0 if 0 in which else self.history, self.history + (steps if 1 in which else 0))
        times = self.frames[starts + wanted] + first[:, None]
        frames, back = np.unique(samples[:, None] * source.times + times, return_inverse=True)
        whole, places = source.take(1, *np.divmod(frames, source.times)), torch.from_numpy(back.reshape(times.shape))
        found = []
        if 0 in which:
            x = whole[places[:, : self.history]].flatten(1, 2)
            beside = [source.take(0, samples, times[:, self.history - 1])] if source.inputs else []
            found.append(torch.cat([x, *beside], dim=1) if beside else x)
        if 1 in which:
            found.append(whole[places[:, -steps:]])
        return found

    def whole(self) -> tuple[torch.Tensor, ...]:
        """All of them in memory, read part by part."""
        pair = tuple(torch.empty(values.shape) for values in self.fields)
        with reading():
            for numbers in chunks_of(*self.fields):
                x, y = self.read(numbers, (0, 1))
                for whole, part in zip(pair, (x, y[:, 0]), strict=True):
                    whole[numbers.start : numbers.stop] = part
        return pair


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
        return self.exact(index).float()

    def exact(self, index: Sequence[int]) -> torch.Tensor:
        """Those of some pairs in the precision of the file."""
        values = self.pairs.read(index, (self.which,))[0]
        return values[:, 0] if self.which else values
