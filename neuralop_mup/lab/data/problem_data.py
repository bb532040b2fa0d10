"""Data in the form used for training: pairs of fields by split, with their checks, normalization and fingerprint."""

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import combinations
from typing import Any

import torch
from neuralop.data.transforms.normalizers import UnitGaussianNormalizer
from torch.nn.functional import pad
from torch.utils.data import DataLoader

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.batches import (
    BLOCK,
    WINDOW,
    BlockLoader,
    PairBatches,
    chunks_of,
    known_part,
    masked,
    spread,
)
from neuralop_mup.lab.data.files import SPLITS
from neuralop_mup.lab.data.handles import reading
from neuralop_mup.lab.fingerprint import fingerprint

Pair = tuple[torch.Tensor, torch.Tensor]
_FILLS = (-999.0, -9999.0, -99999.0, 1e20, 9.969209968386869e36)  # the last is NetCDF's default for floating-point numbers


class Splits:
    """Base class for pairs of fields and for loaders. ``_epochs()`` yields each split's name and an epoch of its batches."""

    title = "the given data"

    def load(self) -> Any:
        """Return the object itself, since the data is already loaded."""
        return self

    def check(self, relative: bool = True) -> None:
        """Check every sample of every split.

        Parameters
        ----------
        relative : bool, default True
            Whether errors are relative to the target, as neuralop's losses are.

        Raises
        ------
        MupError
            If values are not finite or, for relative errors, if a target is zero everywhere. The message names the split
            and the sample.

        Examples
        --------
        >>> import torch
        >>> from neuralop_mup.lab.problems import ProblemData
        >>> x = torch.randn(20, 1, 16)
        >>> ProblemData(train=(x, x), val=(x[:4], x[:4])).check()
        """
        seen = {}
        for name, batches in self._epochs():
            with closing(batches):  # closing the epoch of a loader restores torch's random state
                seen[name] = _check(name, batches, relative)
        for one, other in combinations(seen, 2):
            if n := sum(map({*seen[one]}.__contains__, seen[other])):
                warnings.warn(
                    f"{n} of {len(seen[other])} samples of {other} are also in {one}, so the error on {other} says little "
                    "about new samples. Use different samples in each split.",
                    stacklevel=3,
                )

    def check_unchanged(self) -> None:
        """Raise MupError if files that are read batch by batch have changed since they were first inspected."""

    def fingerprint_content(self) -> dict[str, Any]:
        """Return the content that identifies the data: every split in the form used for training.

        Raises
        ------
        MupError
            If files change while they are read.
        """
        content = {name: fingerprint([fingerprint(dict(batch)) for batch in batches]) for name, batches in self._epochs()}
        self.check_unchanged()
        return content


@dataclass(frozen=True, eq=False)
class ProblemData(Splits):
    """The data of one problem: a pair ``(x, y)`` for each of train, val and test.

    Attributes
    ----------
    train, val : tuple of torch.Tensor
        Pairs ``(x, y)`` of float32 tensors of shape ``(n, channels, *grid_shape)``, or of arrays in files, which are read
        when they are indexed.
    test : tuple of torch.Tensor, optional
        Same as ``train``, or None if there is no test data.
    trajectory : int, default 0
        Number of consecutive pairs from each trajectory, where the y of each pair is the x of the next. 0 if there are no
        trajectories.
    lengths : mapping of str to int or sequence of int
        The value of ``trajectory`` for splits in which it differs, or one value for each trajectory of a split.
    history : int, default 1
        Number of frames in each x. They are its first channels, the oldest first.
    rollout : int, default 1
        Number of steps over which a model is trained. Each step starts from the model's previous prediction. In training
        batches, ``y`` then contains the fields of all steps, those of the first step first.
    masked : bool, default False
        Whether NaN in x and y is filled with channel means. Batches then contain a "mask", and x has one more channel.
    readings : mapping of str to str
        Report lines about the data, by topic.

    Raises
    ------
    MupError
        If a pair is not two tensors of real or complex floating-point numbers with the same number of samples, or if the
        splits have different numbers of channels.

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
    lengths: Mapping[str, int | Sequence[int]] = field(default_factory=dict)
    history: int = 1
    rollout: int = 1
    masked: bool = False
    readings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (x, y) in self._pairs().items():
            check_tensor(f"x of {name}", x)
            check_tensor(f"y of {name}", y)
            if len(x) != len(y):
                raise MupError(f"x and y of {name} have {len(x)} and {len(y)} samples. They must have the same number.")
            channels, of_train = ([values.shape[1] for values in pair] for pair in ((x, y), self.train))
            if channels != of_train:
                raise MupError(
                    f"x and y of {name} have {channels[0]} and {channels[1]} channels, but those of train have "
                    f"{of_train[0]} and {of_train[1]}. All splits must have the same channels."
                )

    def loaders(self, batch_size: int, seed: int) -> tuple[Any, dict[str, Any]]:
        """Return loaders of batches ``{"x": …, "y": …}`` for neuralop's Trainer.

        Parameters
        ----------
        batch_size : int
            Number of samples per batch. The last batch may be smaller.
        seed : int
            Seed for the order of the training samples in all epochs.

        Returns
        -------
        train_loader : DataLoader or BlockLoader
            Loader that shuffles in each epoch. Data in files is shuffled in blocks, see :class:`BlockLoader`.
        eval_loaders : dict of DataLoader or BlockLoader
            Loaders ``{"val": …, "test": …}`` in the stored order.

        Examples
        --------
        >>> train, others = data.loaders(batch_size=8, seed=0)
        >>> [len(batch["x"]) for batch in train], list(others)
        ([8, 8, 4], ['val'])
        """
        order, made = torch.Generator().manual_seed(int(seed)), {}
        for name, (x, y) in self._pairs().items():
            is_train = name == "train"
            pairs = PairBatches(x, y, self.rollout if is_train else 1, self.trajectories(name))
            drawn = order if is_train else None
            if hasattr(x, "pairs"):
                made[name] = BlockLoader(pairs, int(batch_size), drawn, self._finished)
            else:
                made[name] = DataLoader(pairs, int(batch_size), is_train, generator=drawn, collate_fn=self._finished)
        return made.pop("train"), made

    @cached_property
    def normalizers(self) -> tuple[Any, ...]:
        """Normalizers of x and y."""
        return tuple(map(normalizer_of, self.train, "xy"))

    def _finished(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return a batch in the form used for training."""
        return masked(batch, [normalizer.mean for normalizer in self.normalizers]) if self.masked else batch

    def processor(self) -> Any:
        """Return neuralop's data processor, which normalizes x and y per channel with statistics of the training data.

        In ``train()`` mode, the processor normalizes the targets. In ``eval()`` mode, it converts the model's output back to
        the units of y, so validation errors are in the units of the solution. A constant channel becomes zero, and its
        prediction is the constant. In a rollout, the frames in x are normalized in the same way as y, since predictions
        become such frames.

        Returns
        -------
        neuralop.data.transforms.data_processors.DefaultDataProcessor
            The processor. Move it to the model's device with ``processor.to(device)``.

        Warns
        -----
        UserWarning
            If a channel is constant.

        Examples
        --------
        >>> processor = data.processor()
        >>> processor.train()
        >>> abs(float(processor.preprocess({"x": x, "y": x})["x"].mean())) < 1e-5
        True
        """
        from neuralop.data.transforms.data_processors import DefaultDataProcessor

        found, given = copy.deepcopy(self.normalizers)
        if self.rollout > 1:
            frames = self.history * given.mean.shape[1]
            for name in ("mean", "std"):
                getattr(found, name)[:, :frames] = torch.cat([getattr(given, name)] * self.history, dim=1)
        if self.masked:
            last = [0, 0] * (found.mean.ndim - 2) + [0, 1]  # the values 0 and 1 of the mask are not normalized
            found.mean, found.std = pad(found.mean, last), pad(found.std, last, value=1.0)
        return DefaultDataProcessor(found, given)

    def sample(self) -> dict[str, torch.Tensor]:
        """Return up to a few hundred training samples, evenly spaced over all of them.

        Returns
        -------
        dict of str to torch.Tensor
            Tensors ``x`` and ``y`` of shape ``(n, channels, *grid)``.

        Examples
        --------
        >>> {name: values.shape for name, values in data.sample().items()}
        {'x': torch.Size([20, 1, 16]), 'y': torch.Size([20, 1, 16])}
        """
        return self._finished(PairBatches(*self.train)[spread(self.train[0])])

    def trajectories(self, split: str) -> list[int]:
        """Return the number of pairs in each trajectory of a split. Empty if there are no trajectories.

        Examples
        --------
        >>> data.trajectories("val")
        []
        """
        each, n = self.lengths.get(split, self.trajectory), self.counts()[split]
        return list(each) if isinstance(each, Sequence) else [each] * (n // each if each else 0)

    def pairs_of(self, split: str) -> int:
        """Return the number of pairs in the shortest trajectory of a split, or 0 if there are no trajectories.

        Examples
        --------
        >>> data.pairs_of("val")
        0
        """
        return min(self.trajectories(split), default=0)

    def counts(self) -> dict[str, int | None]:
        """Return the number of samples in each split.

        Returns
        -------
        dict of str to int
            Number of samples by split. It has no entry "test" if there is no test data.

        Examples
        --------
        >>> data.counts()
        {'train': 20, 'val': 4}
        """
        return {name: len(x) for name, (x, _) in self._pairs().items()}

    def check_unchanged(self) -> None:
        """Raise MupError if files that are read batch by batch have changed since they were first inspected."""
        getattr(self.train[0], "check_unchanged", super().check_unchanged)()

    def fingerprint_content(self) -> dict[str, Any]:
        """Return the content of every split, the sizes of blocks, and the steps of a rollout."""
        # False belonged to an option that no longer exists. Without it, finished runs could not be found again.
        more = {
            "rollout": self.rollout > 1 and (self.rollout, self.history, False),
            "blocks": hasattr(self.train[0], "pairs") and (BLOCK, WINDOW),
            "lengths": {split: each for split, each in self.lengths.items() if isinstance(each, Sequence)},
            "masked": self.masked,
        }
        used = {name: value for name, value in more.items() if value}
        return {**super().fingerprint_content(), "trajectory": self.trajectory, **used}

    def _epochs(self) -> Iterator[tuple[str, Iterator[Mapping[str, Any]]]]:
        for name, (x, y) in self._pairs().items():
            pairs = PairBatches(x, y)
            with reading():
                yield name, (self._finished(pairs[numbers]) for numbers in chunks_of(x, y))

    def _pairs(self) -> dict[str, Pair]:
        return {name: pair for name in SPLITS if (pair := getattr(self, name)) is not None}


def check_tensor(name: str, values: Any) -> None:
    """Raise MupError if values are neither a floating-point tensor with samples and channels nor an array in a file."""
    if hasattr(values, "pairs"):
        return
    is_tensor = torch.is_tensor(values) and (values.is_floating_point() or values.is_complex()) and not values.requires_grad
    if not is_tensor or values.ndim < 3 or not len(values):
        kind = f"{tuple(values.shape)} {values.dtype}" if hasattr(values, "dtype") else type(values).__name__
        raise MupError(
            f"{name} is {kind}. Pass a floating-point tensor of shape (n, channels, *grid) with at least one sample and "
            "without gradients, such as torch.as_tensor(x).float()."
        )


def check_single(name: str, values: torch.Tensor) -> None:
    """Raise MupError if single precision loses more than a hundredth of the variation of a channel.

    Also raise MupError if values are so large or small that squared errors exceed the range of single precision. Warn if
    they contain a number that usually stands for missing values.
    """
    for fill in _FILLS:
        if (count := int((values == torch.tensor(fill, dtype=values.dtype)).sum())) > 1:
            warnings.warn(
                f"{name} is {fill:g} at {count} of {values.numel()} points that were inspected. If this number stands for "
                f"missing values, replace it with NaN, np.where({name} == {fill:g}, np.nan, {name}), and pass "
                "read={'nan': 'mask'}.",
                stacklevel=2,
            )
    wide = values.double().transpose(0, 1).flatten(1)
    std, most, lost = wide.std(1), wide.abs().amax(1), (wide - wide.float()).square().mean(1).sqrt()
    bad = (std > 1e-12 * most) & ((lost > 0.01 * std) | (std < 1e-30) | (most > 1e30))
    if bad.any():
        channel = int(bad.nonzero()[0])
        raise MupError(
            f"{name} varies by {float(std[channel]):.3g} around {float(wide[channel].mean()):.9g}, which single precision "
            "cannot resolve. Subtract the mean or a reference field, or change the units."
        )


def check_finite(name: str, values: torch.Tensor, numbers: Sequence[int]) -> None:
    """Raise MupError if a sample contains values that are not finite. ``numbers`` are the sample indices for the message."""
    if torch.isfinite(values.sum()):  # a fast check; the sum of finite values may overflow, so it is not conclusive
        return
    bad = ~torch.isfinite(values).flatten(1).all(1)
    if bad.any():
        raise MupError(
            f"Some values of {name} are not finite, for example in sample {numbers[int(bad.nonzero()[0])]}. Pass "
            "read={'nan': 'mask'} (in the shell: --read.nan mask) to fill them and train on the other points, or remove "
            "such samples."
        )


def _check(split: str, batches: Iterable[Mapping[str, Any]], relative: bool) -> list[bytes]:
    """Raise MupError for samples that are unusable for training. Return a hash of each sample.

    Only fields are checked, not graphs or point clouds.
    """
    seen, zeros = [], []
    for batch in batches:
        if not all(torch.is_tensor(batch[letter]) and batch[letter].ndim > 2 for letter in "xy"):
            break
        for letter in "xy":
            check_finite(f"{letter} of {split}", batch[letter], range(len(seen), len(seen) + len(batch[letter])))
        zeros.append(~known_part(batch["y"], batch).flatten(2).any(2))
        pair = (batch[letter].contiguous().numpy(force=True) for letter in "xy")
        seen += [blake2b(x.tobytes() + y.tobytes(), digest_size=16).digest() for x, y in zip(*pair, strict=True)]
    if relative and zeros:
        _check_nonzero(split, torch.cat(zeros))
    return seen


def _check_nonzero(split: str, zero: torch.Tensor) -> None:
    """Raise MupError if a sample is zero in all channels, or in a channel that is not zero in every sample.

    ``zero`` has the shape ``(samples, channels)``.
    """
    empty = zero.all(1) | (zero & ~zero.all(0)).any(1)
    if empty.any():
        sample = int(empty.nonzero()[0])
        channel = "" if zero[sample].all() else f"channel {int(zero[sample].nonzero()[0])} of "
        raise MupError(
            f"y is zero everywhere in {channel}sample {sample} of {split}, so its relative error is undefined. Remove such "
            'samples or use loss="floored-l2".'
        )


class ChannelNormalizer(UnitGaussianNormalizer):
    """neuralop's normalizer, but a channel with standard deviation 0 becomes exactly zero, and its inverse is the mean.

    Dividing the rounding errors of a constant channel by any number would leave a target that is not zero, and a relative
    loss divides by its norm.
    """

    def transform(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalized field."""
        return (x - self.mean) / torch.where(self.std > 0, self.std, torch.inf)


def normalizer_of(values: Any, name: str = "") -> Any:
    """Return a neuralop normalizer to mean 0 and standard deviation 1 per channel, for a tensor or an array in files.

    A channel that varies only by rounding errors becomes zero, with a warning if ``name`` is not empty.
    """
    count, shift, total, squares, most = 0, None, 0.0, 0.0, []
    with reading():
        for numbers in chunks_of(values):
            part = values[numbers]
            wide = part.to(torch.complex128 if part.is_complex() else torch.float64).transpose(0, 1).flatten(1)
            # Values are shifted by a mean, since a mean square loses all significant digits if the mean is large.
            known = torch.isfinite(wide)
            if shift is None:
                shift = wide.mean(1, keepdim=True) if known.all() else wide.nanmean(1, keepdim=True).nan_to_num()
            wide = torch.where(known, wide - shift, 0)
            count, total, squares = count + known.sum(1), total + wide.sum(1), squares + wide.abs().square().sum(1)
            most.append(wide.abs().amax(1))
    if not count.all():
        raise MupError(f"Channel {int(count.argmin())} of {name or 'the data'} is NaN at every point. Remove the channel.")
    mean = shift[:, 0] + total / count
    std = ((squares - (total / count).abs().square() * count) / (count - 1).clamp_min(1)).clamp_min(0).sqrt()
    # A rounding changes a value by up to eps / 2 of its size, so a constant that was computed in several steps varies by a
    # few eps. A field within 8 eps has at most 16 distinct values.
    constant = torch.stack(most).amax(0) <= 8 * torch.finfo(part.dtype).eps * mean.abs()
    for channel in constant.nonzero().flatten().tolist() if name else ():
        warnings.warn(
            f"Channel {channel} of {name} equals {mean[channel].item():.6g} up to rounding and is normalized to zero.",
            stacklevel=3,
        )
    std = torch.where(constant, 0, std).to(part.dtype.to_real())
    shape = (1, -1, *[1] * (values.ndim - 2))
    # The default eps, 1e-7, is added to the standard deviation and is meant for fields of order 1.
    return ChannelNormalizer(mean=mean.to(part.dtype).view(shape), std=std.view(shape), eps=0.0)
