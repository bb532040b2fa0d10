"""What every data set is: pairs of fields or loaders, each split told from others through what training gets of it."""

import copy
import math
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from neuralop_mup.errors import MupError
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.problems.readers import reading

Pair = tuple[torch.Tensor, torch.Tensor]
SPLITS = ("train", "val", "test")
_SOME = 256  # samples that stand for all where a spectrum is taken,
_MANY = 2**24  # or fewer, so that they are no more numbers than this
_CHUNK = 64  # samples read at once in a pass over all,
_MUCH = 2**23  # or fewer, likewise
_BLOCK = 2**20  # numbers of a block: pairs that follow each other in a file; here 4 MB,
_WINDOW = 2**25  # and of the blocks that are read at once, from which batches are drawn: here 128 MB


class _Splits:
    """What pairs of fields and loaders have in common; ``_epochs()`` gives each split's name and an epoch of its batches."""

    title = "the data given"

    def load(self) -> Any:
        """Itself: it is there already."""
        return self

    def check(self, relative: bool = True) -> None:
        """Look at every sample of every split.

        Parameters
        ----------
        relative : bool, default True
            Whether errors are relative to the target, as neuralop's losses are.

        Raises
        ------
        MupError
            For entries that are not finite and, where errors are relative, targets that are zero everywhere; it names
            split and sample.

        Examples
        --------
        >>> import torch
        >>> from neuralop_mup.lab.problems import ProblemData
        >>> x = torch.randn(20, 1, 16)
        >>> ProblemData(train=(x, x), val=(x[:4], x[:4])).check()
        """
        for name, batches in self._epochs():
            _check(name, batches, relative)

    def check_unchanged(self) -> None:
        """Raise MupError if files that are read batch by batch changed since they were first looked at."""

    def fingerprint_content(self) -> dict[str, Any]:
        """What tells the data from other data: every split through what training gets of it.

        Raises
        ------
        MupError
            If files change while they are read.
        """
        content = {name: fingerprint([fingerprint(dict(batch)) for batch in batches]) for name, batches in self._epochs()}
        self.check_unchanged()
        return content


@dataclass(frozen=True, eq=False)
class ProblemData(_Splits):
    """The data of one problem: a pair ``(x, y)`` for each of train, val and test.

    Attributes
    ----------
    train, val : tuple of torch.Tensor
        ``(x, y)``, float32, each of shape ``(n, channels, *grid_shape)``. Or arrays in files, which are read when they are
        indexed.
    test : tuple of torch.Tensor, optional
        As ``train``; None where there is no test data.
    trajectory : int, default 0
        Pairs that each trajectory gave, one after the other, the y of each the x of the next; 0 for no trajectories.
    lengths : mapping of str to int
        The same for splits where it is another number.
    history : int, default 1
        Frames of a trajectory in each x, as its first channels, the oldest first.
    rollout : int, default 1
        Steps over which a model is trained, each from its own prediction before; ``y`` of a training batch then holds as
        many fields a sample, those of the first step first.
    pushforward : bool, default False
        Whether the gradient of these goes through the last step alone.
    readings : mapping of str to str
        What is to be told of the data, by what it is about.

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
    lengths: Mapping[str, int] = field(default_factory=dict)
    history: int = 1
    rollout: int = 1
    pushforward: bool = False
    readings: Mapping[str, str] = field(default_factory=dict)

    def loaders(self, batch_size: int, seed: int) -> tuple[Any, dict[str, Any]]:
        """Loaders of batches ``{"x": …, "y": …}`` as neuralop's Trainer takes them.

        Parameters
        ----------
        batch_size : int
            Samples a batch; the last batch may be smaller.
        seed : int
            Fixes the order of the training samples, epoch by epoch.

        Returns
        -------
        train_loader : DataLoader or Windows
            Shuffled anew each epoch: all samples of data in memory; those in files as :class:`Windows` says.
        eval_loaders : dict of DataLoader or Windows
            ``{"val": …, "test": …}``, in the stored order.

        Examples
        --------
        >>> train, others = data.loaders(batch_size=8, seed=0)
        >>> [len(batch["x"]) for batch in train], list(others)
        ([8, 8, 4], ['val'])
        """
        order, made = torch.Generator().manual_seed(int(seed)), {}
        for name, (x, y) in self._pairs().items():
            is_train = name == "train"
            pairs = _Pairs(x, y, self.rollout if is_train else 1, self.trajectory)
            drawn = order if is_train else None
            if hasattr(x, "pairs"):
                made[name] = Windows(pairs, int(batch_size), drawn)
                continue
            samples = SequentialSampler(pairs) if drawn is None else RandomSampler(pairs, generator=drawn)
            # A whole batch is one indexing, where torch's default would collate sample by sample.
            batches = BatchSampler(samples, int(batch_size), drop_last=False)
            made[name] = DataLoader(pairs, batch_size=None, sampler=batches, generator=drawn)
        return made.pop("train"), made

    def processor(self) -> Any:
        """neuralop's data processor, with x and y normalized per channel by the training data.

        In ``train()`` mode the targets are normalized; in ``eval()`` mode the model's output is put back into
        the units of y, so that a validation error is one of the solution itself. A channel that is the same everywhere
        becomes zero. Over several steps the frames in x are normalized as y is, since predictions become such frames.

        Returns
        -------
        neuralop.data.transforms.data_processors.DefaultDataProcessor
            To be moved to the model's device, ``processor.to(device)``.

        Warns
        -----
        UserWarning
            Of a channel that is the same everywhere.

        Examples
        --------
        >>> processor = data.processor()
        >>> processor.train()
        >>> abs(float(processor.preprocess({"x": x, "y": x})["x"].mean())) < 1e-5
        True
        """
        from neuralop.data.transforms.data_processors import DefaultDataProcessor

        found, given = map(normalizer_of, self.train, "xy")
        if self.rollout > 1:
            frames = self.history * given.mean.shape[1]
            for name in ("mean", "std"):
                getattr(found, name)[:, :frames] = torch.cat([getattr(given, name)] * self.history, dim=1)
        return DefaultDataProcessor(found, given)

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
        return batch_of(*self.train, spread(self.train[0]))

    def pairs_of(self, split: str) -> int:
        """Pairs that each trajectory of a split gave; 0 for no trajectories.

        Examples
        --------
        >>> data.pairs_of("val")
        0
        """
        return self.lengths.get(split, self.trajectory)

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
        return {name: len(x) for name, (x, _) in self._pairs().items()}

    def check_unchanged(self) -> None:
        """Raise MupError if files that are read batch by batch changed since they were first looked at."""
        getattr(self.train[0], "check_unchanged", super().check_unchanged)()

    def fingerprint_content(self) -> dict[str, Any]:
        """The content of every split, its order where it is read in blocks, and over how many steps a model is trained."""
        more: dict[str, Any] = {"rollout": (self.rollout, self.history, self.pushforward)} if self.rollout > 1 else {}
        if hasattr(self.train[0], "pairs"):
            more["blocks"] = (_BLOCK, _WINDOW)
        return {**super().fingerprint_content(), "trajectory": self.trajectory, **more}

    def _epochs(self) -> Iterator[tuple[str, Iterator[Mapping[str, Any]]]]:
        for name, (x, y) in self._pairs().items():
            with reading():
                yield name, (batch_of(x, y, numbers) for numbers in chunks_of(x, y))

    def _pairs(self) -> dict[str, Pair]:
        return {name: pair for name in SPLITS if (pair := getattr(self, name)) is not None}


def chunks_of(*fields: Any) -> Iterator[range]:
    """The numbers of all samples, some dozen MB at a time."""
    every, size = range(len(fields[0])), max(1, min(_CHUNK, _MUCH // _numbers(*fields)))
    return (every[start : start + size] for start in every[::size])


def spread(values: Any) -> range:
    """The numbers of some hundred samples, equally far apart: fewer where one is large, but two."""
    some = max(2, min(_SOME, _MANY // _numbers(values)))
    return range(0, len(values), -(-len(values) // some))


def _numbers(*fields: Any) -> int:
    """How many numbers a sample has."""
    return sum(math.prod(values.shape[1:]) for values in fields)


class _Pairs(Dataset):
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
    pairs : _Pairs
    batch_size : int
    generator : torch.Generator, optional
        None for the stored order.
    """

    def __init__(self, pairs: _Pairs, batch_size: int, generator: torch.Generator | None = None) -> None:
        self.pairs, self.batch_size, self.generator = pairs, batch_size, generator
        size = _numbers(pairs.x, pairs.y)
        self.window = max(1, _WINDOW // size // batch_size) * batch_size
        self.block = max(1, min(self.window, max(_BLOCK // size, 2 * pairs.x.pairs.chunk)))

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


def check_single(name: str, values: torch.Tensor) -> None:
    """MupError where single precision loses more than a hundredth of how a channel varies: beside a large mean, or tiny."""
    if values.dtype != torch.float64:
        return
    wide = values.transpose(0, 1).flatten(1)
    std, lost = wide.std(1), (wide - wide.float()).square().mean(1).sqrt()
    bad = (std > 1e-12 * wide.abs().amax(1)) & (lost > 0.01 * std)
    if bad.any():
        channel = int(bad.nonzero()[0])
        raise MupError(
            f"{name} varies by {float(std[channel]):.3g} around {float(wide[channel].mean()):.9g}, which single precision "
            "does not hold: subtract the mean or another field from it, or take other units."
        )


def check_finite(name: str, values: torch.Tensor, numbers: Sequence[int]) -> None:
    """MupError for samples with entries that are not finite; ``numbers``: what the samples are called."""
    if torch.isfinite(values.sum()):  # which is quick; a sum may be too large
        return
    bad = ~torch.isfinite(values).flatten(1).all(1)
    if bad.any():
        raise MupError(
            f"{name} has entries that are not finite, in sample {numbers[int(bad.nonzero()[0])]} among others: remove these "
            "samples or fill them in."
        )


def _check(split: str, batches: Iterable[Mapping[str, Any]], relative: bool) -> None:
    """MupError for a sample of fields that nothing can be learned from; graphs and points are taken as they are."""
    first = 0
    for batch in batches:
        if not all(torch.is_tensor(batch[letter]) and batch[letter].ndim > 2 for letter in "xy"):
            return
        numbers = range(first, first := first + len(batch["y"]))
        for letter in "xy":
            check_finite(f"{letter} of {split}", batch[letter], numbers)
        zero = ~batch["y"].flatten(1).any(1)
        if relative and zero.any():
            raise MupError(
                f"y of {split} is zero everywhere in sample {numbers[int(zero.nonzero()[0])]}, so that an error relative to "
                "it has no meaning: remove such samples, or give a loss that is not relative, loss=function(y_pred, y, "
                "**batch)."
            )


def normalizer_of(values: Any, name: str = "") -> Any:
    """neuralop's normalizer to mean 0 and standard deviation 1 per channel, of a tensor or an array in files.

    A channel that does not vary, but for rounding, becomes zero; one with a ``name`` is warned of.
    """
    from neuralop.data.transforms.normalizers import UnitGaussianNormalizer

    count, shift, total, squares = 0, None, 0.0, 0.0
    with reading():
        for numbers in chunks_of(values):
            part = values[numbers]
            wide = part.to(torch.complex128 if part.is_complex() else torch.float64).transpose(0, 1).flatten(1)
            # About a large mean squares have no digits left.
            shift = wide.mean(1, keepdim=True) if shift is None else shift
            wide = wide - shift
            count, total, squares = count + wide.shape[1], total + wide.sum(1), squares + wide.abs().square().sum(1)
    mean = shift[:, 0] + total / count
    std = ((squares - (total / count).abs().square() * count) / max(1, count - 1)).clamp_min(0).sqrt()
    constant = std <= 4 * torch.finfo(part.dtype).eps * mean.abs()
    for channel in constant.nonzero().flatten().tolist() if name else ():
        warnings.warn(
            f"Channel {channel} of {name} is {mean[channel].item():.6g} everywhere: it is normalised to zero.", stacklevel=3
        )
    std = torch.where(constant, 1.0, std).to(part.dtype.to_real())
    shape = (1, -1, *[1] * (values.ndim - 2))
    return UnitGaussianNormalizer(mean=mean.to(part.dtype).view(shape), std=std.view(shape))


class _Named:
    """A loader whose pairs become ``{"x": …, "y": …}``, as neuralop's Trainer takes them."""

    def __init__(self, loader: Iterable) -> None:
        self._loader = loader
        self.batch_size, self.generator = getattr(loader, "batch_size", 1), getattr(loader, "generator", None)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Mapping[str, torch.Tensor]]:
        return map(_as_dict, self._loader)


def _as_dict(batch: Any) -> Mapping[str, Any]:
    """A batch or a sample as a dict with "x" and "y"; MupError where it is neither that nor a pair."""
    if isinstance(batch, Mapping) and {"input_fields", "output_fields"} <= set(batch):
        batch = _of_the_well(batch)
    if isinstance(batch, (tuple, list)) and len(batch) == 2 and all(map(torch.is_tensor, batch)):
        batch = dict(zip("xy", batch, strict=True))
    if not isinstance(batch, Mapping) or not {"x", "y"} <= set(batch):
        has = f" of {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else ""
        raise MupError(
            f"A batch of the data is a {type(batch).__name__}{has}, and which part of it is what is not known: loaders and "
            "data sets must give dicts with 'x' and 'y' or pairs (x, y) of tensors. For fields in lists give np.asarray of "
            "them."
        )
    return batch


def _of_the_well(batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """A batch of The Well's data sets, times first and channels last: times and what is constant become channels."""
    found = {}
    for letter, name in zip("xy", ("input_fields", "output_fields"), strict=True):
        found[letter] = batch[name].movedim(-1, 2).flatten(1, 2)
    grid = found["x"].shape[2:]
    beside = [batch["constant_fields"].movedim(-1, 1)] if "constant_fields" in batch else []
    for name in {"constant_scalars"} & set(batch):
        beside.append(batch[name][(..., *[None] * len(grid))].expand(*batch[name].shape, *grid))
    return {"x": torch.cat([found["x"], *(values for values in beside if values.numel())], dim=1), "y": found["y"]}


class Loaders(_Splits):
    """Data as a user's own loaders or data sets give it; nothing is normalized.

    Parameters
    ----------
    parts : mapping of str to DataLoader, Dataset or iterable of batches
        "train", "val" and perhaps "test".
    processor : neuralop DataProcessor, optional
        Of the data, where it brings one.
    readings : mapping of str to str
        What is to be told of it, by what it is about.
    """

    def __init__(self, parts: Mapping[str, Any], processor: Any = None, readings: Mapping[str, str] | None = None) -> None:
        self.parts, self._processor, self.readings = dict(parts), processor, dict(readings or {})
        for name, part in self.parts.items():
            if not hasattr(part, "__len__"):
                raise MupError(
                    f"{name} is a {type(part).__name__} without a length, so that an epoch has no end: give a data set or a "
                    "loader of known length."
                )
            if not len(part):
                raise MupError(f"The {name} data is empty: give samples, or leave out the split.")

    def loaders(self, batch_size: int, seed: int) -> tuple[Any, dict[str, Any]]:
        """Training loader and the others, by name; ``batch_size`` and ``seed`` are for data sets."""
        order, made = torch.Generator().manual_seed(int(seed)), {}
        for name, part in self.parts.items():
            if isinstance(part, Dataset):
                is_drawn = name == "train" and not isinstance(part, IterableDataset)
                part = DataLoader(part, int(batch_size), **({"shuffle": True, "generator": order} if is_drawn else {}))
            made[name] = _Named(part)
        return made.pop("train"), made

    def processor(self) -> Any:
        """The one that the data brings; else None, since what units the batches have is not known."""
        return copy.deepcopy(self._processor)

    def sample(self) -> dict[str, Any]:
        """Some hundred samples of a data set, or a loader's first batch."""
        part = self.parts["train"]
        first = next(_epoch(self.loaders(_SOME, 0)[0] if isinstance(part, Dataset) else part), None)
        if first is None:
            raise MupError("The training data gives no batch: it is empty.")
        return dict(first)

    def counts(self) -> dict[str, int | None]:
        """Samples of each split; None of a loader, which need not give all of them, nor each once."""
        return {name: len(part) if isinstance(part, Dataset) else None for name, part in self.parts.items()}

    def fingerprint_content(self) -> dict[str, Any]:
        """An epoch of each split, through sampler, ``collate_fn`` and ``drop_last``.

        Warns
        -----
        UserWarning
            Of a split that is another one each time it is read, which then has a fingerprint that nothing else has.
        """
        content, again = super().fingerprint_content(), super().fingerprint_content()
        for name in content:
            if content[name] != again[name]:
                content[name] = f"unknown {uuid.uuid4().hex}"
                warnings.warn(
                    f"{name} gives other batches each time it is read, so its runs are trained anew by each call and not "
                    "used again: draw its random numbers by torch, without a generator of its own, since torch is seeded "
                    "here.",
                    stacklevel=2,
                )
        brought = {} if self._processor is None else {"processor": self._processor}
        # Samples of a data set are batched here, those of a loader are batches already.
        batched = [name for name, part in self.parts.items() if not isinstance(part, Dataset)]
        return {**content, **brought, "batched": batched}

    def _epochs(self) -> Iterator[tuple[str, Iterator[Mapping[str, Any]]]]:
        return ((name, _epoch(part)) for name, part in self.parts.items())


def _epoch(part: Any) -> Iterator[Mapping[str, Any]]:
    """The batches that a loader gives, or each sample of a data set as a batch; no random number is used up."""
    drawing = (getattr(owner, "generator", None) for owner in (part, getattr(part, "sampler", None)))
    states = [(generator, generator.get_state()) for generator in drawing if generator is not None]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield from map(_as_dict, DataLoader(part, 1) if isinstance(part, Dataset) else part)
    finally:
        for generator, state in states:
            generator.set_state(state)
