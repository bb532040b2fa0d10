"""Data from the user's loaders or data sets, batch by batch."""

import copy
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.batches import SOME
from neuralop_mup.lab.data.problem_data import Splits


def _as_dict(batch: Any) -> Mapping[str, Any]:
    """Return a batch or a sample as a dict with "x" and "y". Raise MupError for other forms."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2 and all(map(torch.is_tensor, batch)):
        batch = dict(zip("xy", batch, strict=True))
    if not isinstance(batch, Mapping) or not {"x", "y"} <= set(batch):
        has = f" with the keys {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else ""
        raise MupError(
            f"A batch of the data is a {type(batch).__name__}{has}, but loaders and data sets must return dicts with 'x' "
            "and 'y' or pairs (x, y) of tensors. Convert lists of fields to arrays with np.asarray."
        )
    return batch


class _Dicts:
    """A loader whose batches are dicts."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.generator = loader, getattr(loader, "generator", None)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return map(_as_dict, self.loader)


class Loaders(Splits):
    """Data from the user's loaders or data sets. It is not normalized.

    Parameters
    ----------
    parts : mapping of str to DataLoader, Dataset or iterable of batches
        Data for "train", "val" and optionally "test".
    processor : neuralop DataProcessor, optional
        Data processor that belongs to the data.
    readings : mapping of str to str
        Report lines about the data, by topic.
    """

    def __init__(self, parts: Mapping[str, Any], processor: Any = None, readings: Mapping[str, str] | None = None) -> None:
        self.parts, self._processor, self.readings = dict(parts), processor, dict(readings or {})
        for name, part in self.parts.items():
            if not hasattr(part, "__len__"):
                raise MupError(
                    f"{name} is a {type(part).__name__} without a length, so the end of an epoch is undefined. Pass a data "
                    "set or a loader of known length."
                )
            if not len(part):
                raise MupError(f"The {name} data is empty. Provide samples, or omit this split.")

    def loaders(self, batch_size: int, seed: int) -> tuple[Any, dict[str, Any]]:
        """Return the training loader and a dict of the others. ``batch_size`` and ``seed`` apply only to data sets."""
        order, made = torch.Generator().manual_seed(int(seed)), {}
        for name, part in self.parts.items():
            if isinstance(part, Dataset):
                is_drawn = name == "train" and not isinstance(part, IterableDataset)
                part = DataLoader(part, int(batch_size), is_drawn, generator=order if is_drawn else None)
            made[name] = _Dicts(part)
        return made.pop("train"), made

    def processor(self) -> Any:
        """Return the data processor that belongs to the data. Without one, return None, since the units are unknown."""
        return copy.deepcopy(self._processor)

    def sample(self) -> dict[str, Any]:
        """Return up to a few hundred samples from a data set, or the first batch from a loader."""
        part = self.parts["train"]
        first = next(_epoch(self.loaders(SOME, 0)[0] if isinstance(part, Dataset) else part), None)
        if first is None:
            raise MupError("The training data is empty: it yields no batches.")
        return dict(first)

    def counts(self) -> dict[str, int | None]:
        """Return the number of samples in each split, or None for a loader, since it may repeat or omit samples."""
        return {name: len(part) if isinstance(part, Dataset) else None for name, part in self.parts.items()}

    def fingerprint_content(self) -> dict[str, Any]:
        """Return the content of one epoch of each split, as determined by sampler, ``collate_fn`` and ``drop_last``.

        Warns
        -----
        UserWarning
            If a split yields different batches each time. Its fingerprint then differs in each call.
        """
        content, again = super().fingerprint_content(), super().fingerprint_content()
        for name in content:
            if content[name] != again[name]:
                content[name] = f"unknown {uuid.uuid4().hex}"
                warnings.warn(
                    f"{name} yields different batches each time it is iterated over, so its runs are never reused. Draw "
                    "its random numbers with torch, which is seeded here, and do not use a separate generator.",
                    stacklevel=2,
                )
        brought = {} if self._processor is None else {"processor": self._processor}
        # Samples from a data set are batched here, whereas those from a loader are already batched.
        batched = [name for name, part in self.parts.items() if not isinstance(part, Dataset)]
        return {**content, **brought, "batched": batched}

    def _epochs(self) -> Iterator[tuple[str, Iterator[Mapping[str, Any]]]]:
        return ((name, _epoch(part)) for name, part in self.parts.items())


def _epoch(part: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the batches of a loader, or each sample of a data set as a batch, without changing the random state."""
    with untouched(part):
        torch.manual_seed(0)
        yield from map(_as_dict, DataLoader(part, 1) if isinstance(part, Dataset) else part)


@contextmanager
def untouched(loader: Any) -> Iterator[None]:
    """Restore the random states of torch, of a loader and of its sampler on exit."""
    drawing = (getattr(owner, "generator", None) for owner in (loader, getattr(loader, "sampler", None)))
    states = [(generator, generator.get_state()) for generator in drawing if generator is not None]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for generator, state in states:
            generator.set_state(state)
