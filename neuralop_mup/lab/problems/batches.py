"""How samples become batches: pairs of fields in memory, and in files, of which many are read at once."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

SOME = 256  # samples that stand for all where a spectrum is taken,
_MANY = 2**24  # or fewer, so that they are no more numbers than this
_CHUNK = 64  # samples read at once in a pass over all,
_MUCH = 2**23  # or fewer, likewise
BLOCK = 2**20  # numbers of a block: pairs that follow each other in a file; here 4 MB,
WINDOW = 2**25  # and of the blocks that are read at once, from which batches are drawn: here 128 MB


def chunks_of(*fields: Any) -> Iterator[range]:
    """The numbers of all samples, some dozen MB at a time."""
    every, size = range(len(fields[0])), max(1, min(_CHUNK, _MUCH // _numbers(*fields)))
    return (every[start : start + size] for start in every[::size])


def spread(values: Any) -> range:
    """The numbers of some hundred samples, equally far apart: fewer where one is large, but two."""
    some = max(2, min(SOME, _MANY // _numbers(values)))
    return range(0, len(values), -(-len(values) // some))


def _numbers(*fields: Any) -> int:
    """How many numbers a sample has."""
    return sum(math.prod(values.shape[1:]) for values in fields)


class Pairs(Dataset):
    """Pairs of fields, a batch at a time; over several steps those that have as many after them in their trajectory."""

    def __init__(self, x: Any, y: Any, steps: int = 1, trajectory: int = 0) -> None:
        self.x, self.y, self.steps = x, y, steps
        self.numbers = [n for n in range(len(x)) if steps == 1 or n % trajectory <= trajectory - steps]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Sequence[int]) -> dict[str, torch.Tensor]:
        return batch_of(self.x, self.y, [self.numbers[i] for i in index], self.steps)


class Windows:
    """Batches of pairs in files, of which many are read at once: each pair once an epoch, nearly in the order of the files.

    Shuffled, the blocks of pairs that follow each other come in a random order. As many as fit a window are read at once,
    and batches are drawn at random from them: of 128 MB of fields, in blocks of 4 MB or of two chunks of the file. The order
    follows from the state of the generator before an epoch alone.

    Parameters
    ----------
    pairs : Pairs
    batch_size : int
    generator : torch.Generator, optional
        None for the stored order.
    """

    def __init__(self, pairs: Pairs, batch_size: int, generator: torch.Generator | None = None) -> None:
        self.pairs, self.batch_size, self.generator = pairs, batch_size, generator
        size = _numbers(pairs.x, pairs.y)
        self.window = max(1, WINDOW // size // batch_size) * batch_size
        self.block = max(1, min(self.window, max(BLOCK // size, 2 * pairs.x.pairs.chunk)))

    def __len__(self) -> int:
        return -(-len(self.pairs) // self.batch_size)

    def order(self) -> torch.Tensor:
        """Numbers of all pairs in the order of the next epoch."""
        order = torch.arange(len(self.pairs))
        if self.generator is None:
            return order
        starts = self.block * torch.randperm(-(-len(order) // self.block), generator=self.generator)
        order = (starts[:, None] + torch.arange(self.block)).flatten()
        windows = order[order < len(self.pairs)].split(self.window)
        return torch.cat([window[torch.randperm(len(window), generator=self.generator)] for window in windows])

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        numbers, rooms = torch.tensor(self.pairs.numbers), {}
        for window in self.order().split(self.window):
            take = self.pairs.x.pairs.hold(numbers[window], (0, 1), self.pairs.steps, rooms)
            for places in torch.arange(len(window)).split(self.batch_size):
                yield _batch(*take(places), self.pairs.steps)


def _batch(x: torch.Tensor, y: torch.Tensor, steps: int) -> dict[str, torch.Tensor]:
    """Of ``y``, in which steps are channels, those of the first one come first."""
    return {"x": x.float(), "y": y.unflatten(1, (steps, -1)).transpose(0, 1).flatten(0, 1).float()}


def batch_of(x: Any, y: Any, numbers: Sequence[int], steps: int = 1) -> dict[str, torch.Tensor]:
    """Pairs of these numbers, read once for both; ``y`` of several steps, those of the first one first."""
    if hasattr(x, "pairs"):  # they lie in files
        return _batch(*x.pairs.read(numbers, (0, 1), steps), steps)
    ahead = numbers if steps == 1 else [n + step for step in range(steps) for n in numbers]
    return {"x": x[numbers], "y": y[ahead]}


def advanced(x: torch.Tensor, prediction: torch.Tensor, history: int, beside: torch.Tensor | None = None) -> torch.Tensor:
    """The input a step later: its oldest frame goes, the prediction comes, and the rest stays, or is that of ``beside``."""
    frames, channels = x[:, : history * prediction.shape[1]], prediction.shape[1]
    rest = (x if beside is None else beside)[:, frames.shape[1] :]
    return torch.cat([frames[:, channels:], prediction, rest], dim=1)
