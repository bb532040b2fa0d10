"""What every data set is: three pairs of tensors or three loaders, with a digest of what is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from neuralop_mup.errors import MupError
from neuralop_mup.validation import check_count

if TYPE_CHECKING:
    from neuralop.data.transforms.data_processors import DataProcessor

__all__ = ["SPLITS", "Loaders", "Pair", "ProblemData", "Some", "chunks_of", "normalizer_of", "parts_of"]

Pair = tuple[torch.Tensor, torch.Tensor]
SPLITS = ("train", "val", "test")
_SOME = 256  # samples that stand for all where a spectrum is taken
_CHUNK = 64  # samples read at once in a pass over all


class _Pairs(Dataset):
    """Pairs as dicts; a whole batch is one indexing, where torch's default would collate sample by sample."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int | list[int]) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "y": self.y[index]}

    __getitems__ = __getitem__


@dataclass(frozen=True, eq=False)
class ProblemData:
    """The data of one problem: a pair ``(x, y)`` for each of train, val and test.

    Attributes
    ----------
    train, val : tuple of torch.Tensor
        ``(x, y)``, float32, each of shape ``(n, channels, *grid_shape)``; the x of a problem in space-time is a view
        that repeats the initial state along time. Or arrays in files, which are read when they are indexed.
    test : tuple of torch.Tensor, optional
        As ``train``; None where there is no test data.
    trajectory : int, default 0
        Pairs that each trajectory gave, one after the other, the y of each the x of the next; 0 for no trajectories.

    Examples
    --------
    >>> import torch
    >>> from neuralop_mup.lab.problems import ProblemData
    >>> x = torch.randn(20, 1, 16)
    >>> data = ProblemData(train=(x, x), val=(x[:4], x[:4]))
    >>> data.counts(), data.sample()["x"].shape
    ({'train': 20, 'val': 4}, torch.Size([20, 1, 16]))
    """

    train: Pair
    val: Pair
    test: Pair | None = None
    trajectory: int = 0

    def loaders(self, batch_size: int, seed: int) -> tuple[DataLoader, dict[str, DataLoader]]:
        """Loaders of batches ``{"x": …, "y": …}`` as neuralop's Trainer takes them.

        Parameters
        ----------
        batch_size : int
            Samples a batch; the last batch may be smaller.
        seed : int
            Fixes the order of the training samples, epoch by epoch.

        Returns
        -------
        train_loader : DataLoader
            Shuffled anew each epoch.
        eval_loaders : dict of DataLoader
            ``{"val": …, "test": …}``, in the stored order.

        Raises
        ------
        MupError
            For a batch size below 1 or a seed that is no non-negative integer.

        Examples
        --------
        >>> train, others = data.loaders(batch_size=8, seed=0)
        >>> [len(batch["x"]) for batch in train], list(others)
        ([8, 8, 4], ['val'])
        """
        check_count("batch_size", batch_size)
        check_count("seed", seed, least=0)
        pairs = {name: _Pairs(*getattr(self, name)) for name in self.counts()}
        return _loaders(pairs, int(batch_size), int(seed), collate_fn=dict)

    def processor(self) -> DataProcessor | None:
        """neuralop's data processor, with x and y normalized per channel by the training data.

        In ``train()`` mode the targets are normalized; in ``eval()`` mode the model's output is put back into
        the units of y, so that a validation error is one of the solution itself.

        Returns
        -------
        neuralop.data.transforms.data_processors.DefaultDataProcessor
            To be moved to the model's device, ``processor.to(device)``.

        Examples
        --------
        >>> processor = data.processor()
        >>> processor.train()
        >>> abs(float(processor.preprocess({"x": x, "y": x})["x"].mean())) < 1e-5
        True
        """
        from neuralop.data.transforms.data_processors import DefaultDataProcessor

        return DefaultDataProcessor(*map(normalizer_of, self.train))

    def sample(self) -> dict[str, torch.Tensor]:
        """Some hundred training samples, spread over all of them: ``x`` and ``y`` of shape ``(n, channels, *grid)``.

        Returns
        -------
        dict of str to torch.Tensor
            ``x`` and ``y``.

        Examples
        --------
        >>> {name: values.shape for name, values in data.sample().items()}
        {'x': torch.Size([20, 1, 16]), 'y': torch.Size([20, 1, 16])}
        """
        spread = range(0, len(self.train[0]), -(-len(self.train[0]) // _SOME))
        return {letter: values[spread] for letter, values in zip("xy", self.train, strict=True)}

    def counts(self) -> dict[str, int | None]:
        """Samples of each split.

        Returns
        -------
        dict of str to int
            Without "test" where there is none.

        Examples
        --------
        >>> data.counts()
        {'train': 20, 'val': 4}
        """
        return {name: len(pair[0]) for name in SPLITS if (pair := getattr(self, name)) is not None}

    def coarser(self, stride: Sequence[int]) -> ProblemData:
        """The same at every so manieth point of each axis; views, of tensors in memory.

        Parameters
        ----------
        stride : sequence of int
            One number an axis.

        Returns
        -------
        ProblemData
            As many samples on the coarser grid.

        Examples
        --------
        >>> data.coarser([4]).train[0].shape
        torch.Size([20, 1, 4])
        """
        cut = (slice(None), slice(None), *(slice(None, None, step) for step in stride))
        pairs = {name: tuple(values[cut] for values in getattr(self, name)) for name in self.counts()}
        return replace(self, **pairs)

    def digest(self) -> str:
        """sha256 of the content of every split.

        Returns
        -------
        str
            64 hex digits.

        Examples
        --------
        >>> data.digest() == ProblemData(train=(x.clone(), x), val=(x[:4], x[:4])).digest()
        True
        """
        whole = hashlib.sha256()
        for name in self.counts():
            for values in getattr(self, name):
                whole.update(f"{name} {tuple(values.shape)} ".encode())
                for part in parts_of(values):
                    whole.update(_bytes(part))
        return whole.hexdigest()

    def fingerprint_content(self) -> Any:
        """What tells it from other data."""
        return self.digest(), self.trajectory

    def check(self, relative: bool = True) -> None:
        """Look at every sample of every split."""
        for name in self.counts():
            x, y = getattr(self, name)
            _check(name, ({"x": x[n], "y": y[n]} for n in chunks_of(len(x))), relative)


def _check(split: str, batches: Iterable[Mapping[str, Any]], relative: bool) -> None:
    """MupError for a sample that nothing can be learned from."""
    first = 0
    for batch in batches:
        if not all(torch.is_tensor(batch[letter]) for letter in "xy"):
            return
        for letter in "xy":
            bad = ~torch.isfinite(batch[letter]).flatten(1).all(1)
            if bad.any():
                raise MupError(
                    f"{letter} of {split} has entries that are not finite, in sample {first + int(bad.nonzero()[0])} among "
                    "others: remove these samples or fill them in."
                )
        zero = ~batch["y"].flatten(1).any(1)
        if relative and zero.any():
            raise MupError(
                f"y of {split} is zero everywhere in sample {first + int(zero.nonzero()[0])}, so that an error relative to "
                "it has no meaning: remove such samples, or give a loss that is not relative, loss=function(y_pred, y, "
                "**batch)."
            )
        first += len(batch["y"])


def chunks_of(count: int, size: int = _CHUNK) -> Iterator[range]:
    """The numbers below ``count``, ``size`` at a time."""
    return (range(count)[start : start + size] for start in range(0, count, size))


def parts_of(values: Any) -> Iterator[torch.Tensor]:
    """An array some samples at a time: one in files may not fit in memory."""
    return (values[numbers] for numbers in chunks_of(len(values)))


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data if tensor.numel() else b""


def tensors_digest(values: Any) -> bytes:
    """sha256 of what a batch or a sample holds, whatever its structure."""
    leaves, shape = torch.utils._pytree.tree_flatten(values)
    whole = hashlib.sha256(str(shape).encode())
    for leaf in leaves:
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
            leaf = torch.from_numpy(np.ascontiguousarray(leaf))
        if isinstance(leaf, torch.Tensor):
            whole.update(f"{tuple(leaf.shape)} {leaf.dtype}".encode())
            whole.update(_bytes(torch.atleast_1d(leaf.resolve_conj())))
        else:
            whole.update(repr(leaf).encode())
    return whole.digest()


def normalizer_of(values: Any) -> Any:
    """neuralop's normalizer to mean 0 and standard deviation 1 per channel, of a tensor or an array in files."""
    from neuralop.data.transforms.normalizers import UnitGaussianNormalizer

    if isinstance(values, torch.Tensor):
        normalizer = UnitGaussianNormalizer(dim=[0, *range(2, values.ndim)])
        normalizer.fit(values)
        return normalizer
    count, total, squares = 0, 0.0, 0.0
    for part in parts_of(values):
        part = part.double().transpose(0, 1).flatten(1)
        count, total, squares = count + part.shape[1], total + part.sum(1), squares + part.square().sum(1)
    mean = total / count
    std = ((squares - count * mean**2) / max(1, count - 1)).clamp_min(0).sqrt()
    shape = (1, -1, *[1] * (values.ndim - 2))
    return UnitGaussianNormalizer(mean=mean.float().view(shape), std=std.float().view(shape))


def _loaders(parts: Mapping[str, Any], batch_size: int, seed: int, **how: Any) -> tuple[Any, dict[str, Any]]:
    """Training loader, which draws its order by the seed, and the others, by name; what is no data set is one already."""
    order = torch.Generator().manual_seed(seed)
    drawn = {"train": {"shuffle": True, "generator": order}}
    made = {
        name: DataLoader(part, batch_size, **drawn.get(name, {}), **how) if isinstance(part, Dataset) else part
        for name, part in parts.items()
    }
    return made.pop("train"), made


class Some:
    """The first so many batches of a loader, in each epoch those of a new order."""

    def __init__(self, loader: Any, batches: int) -> None:
        self.loader, self.batches = loader, batches
        self.batch_size, self.dataset = loader.batch_size, loader.dataset

    @property
    def generator(self) -> torch.Generator | None:
        """What draws the order."""
        return self.loader.generator

    def __len__(self) -> int:
        return min(self.batches, len(self.loader))

    def __iter__(self) -> Iterator[Any]:
        return islice(self.loader, self.batches)


class _Named:
    """A loader whose pairs become ``{"x": …, "y": …}``, as neuralop's Trainer takes them."""

    def __init__(self, loader: Iterable) -> None:
        self._loader = loader
        self.batch_size = getattr(loader, "batch_size", 1)
        self.generator = getattr(loader, "generator", None)
        self.dataset = getattr(loader, "dataset", loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Mapping[str, torch.Tensor]]:
        for batch in self._loader:
            is_pair = isinstance(batch, (tuple, list)) and len(batch) == 2 and all(map(torch.is_tensor, batch))
            if not isinstance(batch, Mapping) and not is_pair:
                size = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
                raise MupError(
                    f"A batch of the data is a {type(batch).__name__}{size}, and which part of it is what is not known: "
                    "loaders and data sets must give dicts with 'x' and 'y' or pairs (x, y) of tensors. For fields in lists "
                    "give np.asarray of them."
                )
            batch = batch if isinstance(batch, Mapping) else dict(zip("xy", batch, strict=True))
            if not {"x", "y"} <= set(batch):
                raise MupError(f"A batch of the data has {', '.join(map(repr, batch))}: it must have 'x' and 'y'.")
            yield batch


class Loaders:
    """Data as a user's own loaders or data sets give it; nothing is normalized.

    Parameters
    ----------
    parts : mapping of str to DataLoader, Dataset or iterable of batches
        "train", "val" and perhaps "test".
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = dict(parts)
        for name, part in self.parts.items():
            if not hasattr(part, "__len__"):
                raise MupError(
                    f"{name} is a {type(part).__name__} without a length, so that an epoch has no end: give a data set or a "
                    "loader of known length."
                )

    def loaders(self, batch_size: int, seed: int) -> tuple[Any, dict[str, Any]]:
        """Training loader and the others, by name; ``batch_size`` and ``seed`` are for data sets."""
        train, evals = _loaders(self.parts, batch_size, seed)
        return _Named(train), {name: _Named(loader) for name, loader in evals.items()}

    def processor(self) -> None:
        """None: what units the batches have is not known."""
        return None

    def sample(self) -> dict[str, Any]:
        """Some hundred samples in one batch, where batches are fields of one grid; else the first batch."""
        loader = self.loaders(_CHUNK, 0)[0]
        first = next(iter(loader), None)
        if first is None:
            raise MupError("The training data gives no batch: it is empty.")
        if not all(torch.is_tensor(first[k]) and first[k].ndim > 2 for k in "xy") or set(first) != {"x", "y"}:
            return dict(first)
        batches = [b for b in islice(loader, -(-_SOME // len(first["x"]))) if b["x"].shape[1:] == first["x"].shape[1:]]
        return {name: torch.cat([batch[name] for batch in batches]) for name in "xy"}

    def counts(self) -> dict[str, int | None]:
        """Samples of each split; None where a loader does not say."""
        samples = {name: _samples_of(part) for name, part in self.parts.items()}
        return {name: None if found is None else len(found) for name, found in samples.items()}

    def digest(self) -> str:
        """sha256 of every sample, in any order where data comes in batches alone.

        Raises
        ------
        MupError
            If the data is not the same each time it is read.
        """
        whole = hashlib.sha256()
        for name, part in self.parts.items():
            found = _digest_of(part)
            if found != _digest_of(part):
                raise MupError(
                    f"The data of {name!r} is another one each time it is read, so that nothing tells what a run was "
                    "trained on: draw it by torch's random numbers, which are seeded here, or once beforehand."
                )
            whole.update(name.encode() + found)
        return whole.hexdigest()

    def fingerprint_content(self) -> Any:
        """What tells it from other data."""
        return self.digest()

    def check(self, relative: bool = True) -> None:
        """Look at every sample of every split."""
        train, evals = self.loaders(_CHUNK, 0)
        for name, loader in {"train": train, **evals}.items():
            order = loader.generator and loader.generator.get_state()
            with torch.random.fork_rng(devices=[]):
                _check(name, loader, relative)
            if order is not None:
                loader.generator.set_state(order)


def _samples_of(part: Any) -> Any:
    """What knows its samples and their number; None where there are batches alone."""
    dataset = getattr(part, "dataset", part)
    return dataset if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") else None


def _digest_of(part: Any) -> bytes:
    """Of a data set sample by sample; of an iterable of batches the sum over them, whose order may be drawn."""
    dataset = _samples_of(part)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if dataset is not None and not isinstance(dataset, IterableDataset):
            whole = hashlib.sha256()
            for i in range(len(dataset)):
                whole.update(tensors_digest(dataset[i]))
            return whole.digest()
        total = sum(int.from_bytes(tensors_digest(batch), "big") for batch in part)
    return (total % 2**256).to_bytes(32, "big")
