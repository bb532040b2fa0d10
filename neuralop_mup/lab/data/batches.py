"""Batches of pairs of fields, in memory or in files. Pairs in files are read many at a time."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.handles import numpy_of

SOME = 256  # maximum number of samples that represent the whole data set, for example in a spectrum
_MANY = 2**24  # maximum number of values in these samples
_CHUNK = 64  # maximum number of samples that are read at once in a pass over all samples
_MUCH = 2**23  # maximum number of values in these samples
BLOCK = 2**20  # number of values in a block of consecutive pairs in a file (4 MB)
WINDOW = 7 * 2**22  # number of values in a window of blocks, which is read at once (117 MB)


def chunks_of(*fields: Any) -> Iterator[range]:
    """Return the indices of all samples, in chunks of a few dozen MB."""
    every, size = range(len(fields[0])), max(1, min(_CHUNK, _MUCH // _numbers(*fields)))
    return (every[start : start + size] for start in every[::size])


def spread(values: Any) -> range:
    """Return the indices of a few hundred evenly spaced samples; fewer if samples are large, but at least two."""
    some = max(2, min(SOME, _MANY // _numbers(values)))
    return range(0, len(values), -(-len(values) // some))


def _numbers(*fields: Any) -> int:
    """Return the number of values in one sample."""
    return sum(math.prod(values.shape[1:]) for values in fields)


class PairBatches(Dataset):
    """Pairs of fields, indexed by the sample indices of a batch.

    Parameters
    ----------
    x, y : tensor or LazyField
    steps : int, default 1
        Number of steps in a rollout. Only pairs that are followed by enough pairs in their trajectory are used.
    lengths : sequence of int
        Number of pairs in each trajectory.
    """

    def __init__(self, x: Any, y: Any, steps: int = 1, lengths: Sequence[int] = ()) -> None:
        self.x, self.y, self.steps = x, y, steps
        self.numbers = np.arange(len(x))
        if steps > 1:
            ends = np.repeat(np.cumsum(lengths), lengths)
            self.numbers = self.numbers[ends - self.numbers >= steps]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Sequence[int]) -> dict[str, torch.Tensor]:
        numbers = self.numbers[list(index)].tolist()
        if hasattr(self.x, "pairs"):  # for pairs in files, a single read returns both fields
            x, y = self.x.pairs.read(numbers, (0, 1), self.steps)
            return {"x": x.float(), "y": y.float()}
        return {"x": self.x[numbers], "y": self.y[[n + step for step in range(self.steps) for n in numbers]]}

    __getitems__ = __getitem__  # lets torch fetch a whole batch at once instead of sample by sample


class BlockLoader:
    """Load batches of pairs from files. Each epoch uses every pair once, in approximately the order of the files.

    With a generator, blocks of pairs are shuffled. A window of several blocks is read at once, and batches are drawn from it
    at random. A window has 117 MB, and a block has 4 MB or two chunks of the file. The order depends only on the state of
    the generator before the epoch.

    Parameters
    ----------
    pairs : PairBatches
    batch_size : int
    generator : torch.Generator, optional
        Source of the random order. If None, the pairs keep the stored order.
    finish : callable, default dict
        Function that is applied to each batch.
    """

    def __init__(self, pairs: PairBatches, batch_size: int, generator: Any = None, finish: Any = dict) -> None:
        self.pairs, self.batch_size, self.generator, self.finish = pairs, batch_size, generator, finish
        size = _numbers(pairs.x, pairs.y)
        self.window = max(1, WINDOW // size // batch_size) * batch_size
        self.block = max(1, min(self.window, max(BLOCK // size, 2 * pairs.x.pairs.chunk)))

    def __len__(self) -> int:
        return -(-len(self.pairs) // self.batch_size)

    def order(self) -> torch.Tensor:
        """Return the indices of all pairs in the order of the next epoch."""
        order = torch.arange(len(self.pairs))
        if self.generator is None:
            return order
        starts = self.block * torch.randperm(-(-len(order) // self.block), generator=self.generator)
        order = (starts[:, None] + torch.arange(self.block)).flatten()
        windows = order[order < len(self.pairs)].split(self.window)
        return torch.cat([window[torch.randperm(len(window), generator=self.generator)] for window in windows])

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        rooms: dict[str, np.ndarray] = {}
        for window in self.order().split(self.window):
            take = self.pairs.x.pairs.hold(self.pairs.numbers[window.numpy()], (0, 1), self.pairs.steps, rooms)
            for places in torch.arange(len(window)).split(self.batch_size):
                x, y = take(places)
                yield self.finish({"x": x.float(), "y": y.float()})


def known_part(fields: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return the fields with zeros where the batch's mask is 0, that is, where values are unknown."""
    return fields * batch["mask"] if "mask" in batch else fields


def masked(batch: Mapping[str, torch.Tensor], fill: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Fill NaN in x and y. Add a channel to x and a "mask" to the batch, which are 1 where values are known and else 0.

    Raise MupError if a channel of y has no known value in a sample, since its relative error would be 0/0.
    """
    x, y = batch["x"], batch["y"]
    mask = torch.isfinite(y)
    lost = ~mask.flatten(2).any(2)
    if lost.any():
        raise MupError(
            f"Channel {int(lost.nonzero()[0, 1])} of y is NaN at every point of at least one sample, so the error of that "
            "sample is undefined. Remove such samples or the channel."
        )
    return {"x": with_mask(x, fill[0]), "y": torch.where(mask, y, fill[1]), "mask": mask.to(y.dtype)}


def with_mask(x: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
    """Replace NaN in an input by a value for each channel, and append the mask as a channel.

    Parameters
    ----------
    x : torch.Tensor
        Input of shape ``(n, channels, *grid)``.
    fill : torch.Tensor
        Values of shape ``(1, channels, 1, …)``. Additional channels, such as that of a mask, are ignored.
    """
    known = torch.isfinite(x)
    filled = torch.where(known, x, fill[:, : x.shape[1]].to(x))
    return torch.cat([filled, known.all(1, keepdim=True).to(x.dtype)], dim=1)


def as_tensor(name: str, values: Any) -> torch.Tensor:
    """Return a numeric array as a tensor, and raise MupError for anything else.

    The array is copied if necessary, since torch supports neither foreign byte orders nor negative strides.
    """
    if isinstance(values, torch.Tensor) and values.layout == torch.strided:
        return values.detach()
    try:
        values = np.asarray(numpy_of(values))
    except ValueError as error:  # nested lists of different lengths
        raise MupError(f"{name} cannot be converted to an array: {error}") from None
    if values.dtype.kind not in "biufc" or values.dtype.itemsize > (16 if values.dtype.kind == "c" else 8):
        raise MupError(f"{name} must be an array with a dtype that torch supports, such as float64, but got {values.dtype}.")
    return torch.as_tensor(np.ascontiguousarray(values, values.dtype.newbyteorder("=")).reshape(values.shape))


def advanced(x: torch.Tensor, prediction: torch.Tensor, history: int, beside: torch.Tensor | None = None) -> torch.Tensor:
    """Return the input of the next step: the prediction replaces the oldest frame. Other channels come from ``beside``."""
    frames, channels = x[:, : history * prediction.shape[1]], prediction.shape[1]
    rest = (x if beside is None else beside)[:, frames.shape[1] :]
    return torch.cat([frames[:, channels:], prediction, rest], dim=1)
