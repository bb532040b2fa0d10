"""Input and output of one split in files, pair by pair: of trajectories windows of frames, each frame read once."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from neuralop_mup.lab.problems.batches import chunks_of
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
        self.sources, self.order, self.frames, self.cut = sources, order, frames, cut
        self.check_unchanged, self.ends = check_unchanged, np.cumsum([source.n for source in sources])
        # Where there is no time axis each output is its only frame, and no frame is an input.
        self.used, self.history = (frames, history) if len(frames) else (np.zeros(1, int), 0)
        first, self.each = sources[0], len(self.used) - self.history
        self.times, self.chunk = max(1, first.times), first.outputs[0].chunk
        channels = first.channels[0] + self.history * first.channels[1], first.channels[1]
        self.fields = tuple(Field(self, which, (len(self), count, *first.grid)) for which, count in enumerate(channels))

    def __len__(self) -> int:
        return len(self.order) * self.each

    def read(self, index: Sequence[int], which: Sequence[int], steps: int = 1) -> list[torch.Tensor]:
        """Inputs (0), outputs (1) or both of some pairs, in the precision of the file; those of more steps as channels."""
        return self.hold(index, which, steps, {})(torch.arange(len(index)))

    def hold(
        self, index: Sequence[int], which: Sequence[int], steps: int, rooms: dict[int, np.ndarray]
    ) -> Callable[[torch.Tensor], list[torch.Tensor]]:
        """Read pairs, each frame once and in the order of the files; gives the function that copies those at some places.

        ``rooms``, a dict that is empty at first, keeps the memory for what is read next, in place of this.
        """
        index, history = np.asarray(index, dtype=int)[:, None], self.history
        samples, pieces = np.divmod(self.order[index // self.each], self.cut)
        begins = samples * self.times + pieces * (self.times // self.cut)
        numbers = begins + self.used[index % self.each + np.arange(history + steps)]
        # Of inputs alone the frames before, of outputs alone those after.
        frames, rows = self._read(1, numbers[:, history * (0 not in which) : history + steps * (1 in which)], rooms)
        before = [(frames, rows[:, :history])] if history else []
        beside = [self._read(0, numbers[:, [max(0, history - 1)]], rooms)] if 0 in which and self.sources[0].inputs else []
        parts = before + beside, [(frames, rows[:, -steps:])]
        return lambda places: [_copy(parts[each], places) for each in which]

    def _read(self, which: int, numbers: np.ndarray, rooms: dict[int, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """Frames, numbered through all trajectories, each once; and the place of each number among them."""
        wanted, places = np.unique(numbers, return_inverse=True)
        if which not in rooms or len(rooms[which]) < len(wanted):
            kind = np.result_type(*(source.kind(which) for source in self.sources))
            rooms[which] = np.empty((len(wanted), self.sources[0].channels[which], *self.sources[0].grid), kind)
        samples, times = np.divmod(wanted, self.times)
        for source, end in zip(self.sources, self.ends, strict=True):
            here = slice(*np.searchsorted(samples, (end - source.n, end)))
            if here.start < here.stop:
                with reading():
                    source.take(which, samples[here] - end + source.n, times[here], rooms[which][here])
        return torch.from_numpy(rooms[which]), torch.from_numpy(places.reshape(numbers.shape))

    def whole(self) -> tuple[torch.Tensor, ...]:
        """All of them in memory, read part by part."""
        pair = tuple(torch.empty(values.shape) for values in self.fields)
        with reading():
            for numbers in chunks_of(*self.fields):
                for whole, part in zip(pair, self.read(numbers, (0, 1)), strict=True):
                    whole[numbers.start : numbers.stop] = part
        return pair


def _copy(parts: Sequence[tuple[torch.Tensor, torch.Tensor]], places: torch.Tensor) -> torch.Tensor:
    """Frames of some pairs, joined as channels; of each part the frames and, pair by pair, where they are."""
    found = [
        frames.index_select(0, rows[places].flatten()).reshape(len(places), -1, *frames.shape[2:]) for frames, rows in parts
    ]
    return torch.cat(found, dim=1) if len(found) > 1 else found[0]


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
        return self.pairs.read(index, (self.which,))[0]
