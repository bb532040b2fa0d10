"""Data as a user's own loaders or data sets give it, batch by batch."""

import copy
import uuid
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.batches import SOME, MappedLoader
from neuralop_mup.lab.data.problem_data import Splits


def _as_dict(batch: Any) -> Mapping[str, Any]:
    """A batch or a sample as a dict with "x" and "y"; MupError where it is neither that nor a pair."""
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


class Loaders(Splits):
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
            made[name] = MappedLoader(part, _as_dict)
        return made.pop("train"), made

    def processor(self) -> Any:
        """The one that the data brings; else None, since what units the batches have is not known."""
        return copy.deepcopy(self._processor)

    def sample(self) -> dict[str, Any]:
        """Some hundred samples of a data set, or a loader's first batch."""
        part = self.parts["train"]
        first = next(_epoch(self.loaders(SOME, 0)[0] if isinstance(part, Dataset) else part), None)
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
