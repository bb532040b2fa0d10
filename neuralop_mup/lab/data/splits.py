"""Which samples are for training, validation and test, and which part of each sample is used."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.data.files import SPLIT_WORDS

SPLITS = ("train", "val", "test")


def by_split(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given by split; "train" is called "all", to be divided further, where nothing is called val."""
    found = {SPLIT_WORDS.get(str(name).lower(), name): part for name, part in given.items()}
    if wrong := [name for name in found if name not in (*SPLITS, "all")]:
        raise MupError(f"data names {wrong[0]!r}; {nearest(str(wrong[0]), SPLITS)}")
    if len(found) < len(given) or ("train" in found) == ("all" in found):
        names = ", ".join(map(repr, given)) or "nothing"
        raise MupError(f"The data is given for {names}: give that of 'train' once, and of 'val' or 'test' or both.")
    return {"all" if name == "train" and "val" not in found else name: part for name, part in found.items()}


def draw(n: int, split: Sequence[float], known: Mapping[str, Any], shuffle: bool) -> dict[str, np.ndarray]:
    """Return the numbers of the samples of each split that is not known, in ascending order.

    Parameters
    ----------
    n : int
    split : sequence of float
        Shares of train, val and test, or counts: whole numbers.
    known : mapping
        The splits that exist.
    shuffle : bool
        Whether they are drawn at random, the same in every run.
    """
    wanted = {name: share for name, share in zip(SPLITS, split, strict=True) if name not in known}
    if is_counts(split):
        counts = {name: int(count) for name, count in wanted.items()}
    else:
        counts = {name: max(1, round(n * share / sum(wanted.values()))) for name, share in wanted.items()}
        counts["train"] += n - sum(counts.values())
    if counts["train"] < 1 or sum(counts.values()) > n:
        text = ", ".join(f"{count} {name}" for name, count in counts.items() if count > 0 and name != "train")
        train = f"{counts['train']} train, " if is_counts(split) else ""
        raise MupError(f"The training data has {n} samples, too few to take {train}{text} from it.")
    # RandomState's numbers are the same in every version of NumPy.
    order = np.random.RandomState(0).permutation(n) if shuffle else np.arange(n)
    ends = np.cumsum([0, *counts.values()])
    # A file that is read batch by batch is read from its beginning to its end.
    return {name: np.sort(order[a:b]) for name, a, b in zip(counts, ends, ends[1:], strict=False)}


def is_counts(split: Sequence[float]) -> bool:
    """Return whether a split is given by counts of samples."""
    return all(isinstance(count, int) and not isinstance(count, bool) for count in split)
