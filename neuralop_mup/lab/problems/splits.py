"""Which samples are for training, validation and test: what is given for each, what names say, and what is drawn."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.problems.data import SPLITS
from neuralop_mup.lab.problems.readers import READERS, files_of, readable

#: Words that say a split, as a key or in the name of a file or folder.
_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def by_split(given: Mapping[str, Any]) -> dict[str, Any]:
    """By split, one rule for all forms: what is called train is divided further, as "all", where nothing is called val."""
    found = {_WORDS.get(str(name).lower(), name): part for name, part in given.items()}
    if wrong := [name for name in found if name not in (*SPLITS, "all")]:
        raise MupError(f"data names {wrong[0]!r}; {nearest(str(wrong[0]), SPLITS)}")
    if len(found) < len(given) or ("train" in found) == ("all" in found):
        names = ", ".join(map(repr, given)) or "nothing"
        raise MupError(f"The data is given for {names}: give that of 'train' once, and of 'val' or 'test' or both.")
    return {"all" if name == "train" and "val" not in found else name: part for name, part in found.items()}


def drawn(n: int, shares: Sequence[float], known: Mapping[str, Any], shuffle: bool) -> dict[str, np.ndarray]:
    """Numbers of the samples of each split that is not known, in ascending order."""
    wanted = {name: share for name, share in zip(SPLITS, shares, strict=True) if name not in known}
    counts = {name: max(1, round(n * share / sum(wanted.values()))) for name, share in wanted.items()}
    counts["train"] += n - sum(counts.values())
    if counts["train"] < 1:
        raise MupError(f"The training data has {n} samples, too few to take those of {', '.join(list(counts)[1:])} from it.")
    # RandomState's numbers are the same in every version of NumPy.
    drawn = np.random.RandomState(0).permutation(n) if shuffle else np.arange(n)
    ends = np.cumsum(list(counts.values()))[:-1]
    # Ascending, so that a file that is read batch by batch is read from its beginning to its end.
    return {name: np.sort(part) for name, part in zip(counts, np.split(drawn, ends), strict=True)}


def by_name(given: Any) -> dict[str, tuple[str, ...]]:
    """Files by the split that their names say, or those of their folders; "all" where they do not say different ones."""
    entries: list[str | Path] = []
    for entry in [given] if isinstance(given, (str, Path)) else given:
        path = Path(entry).expanduser()
        # As The Well has it: data/train, data/valid, data/test.
        outer = [f for f in (path, path / "data") if f.is_dir() and f.suffix.lower() not in READERS]
        inner = [sub for folder in outer for sub in sorted(folder.iterdir()) if sub.is_dir() and _word(sub.name)]
        # train.zarr is a file, and folders of something else may be called train_logs.
        named = [sub for sub in inner if sub.suffix.lower() not in READERS and (sub.name.lower() in _WORDS or readable(sub))]
        if {_word(sub.name) for sub in named} == {"test"}:
            raise MupError(
                f"{path} has a folder for test data alone, {named[0].name}, and what is called test is never trained on: "
                f"put training data beside it, in {named[0].parent / 'train'}."
            )
        entries += [*named, *(readable(path) if named else [path])]
    files = files_of(entries)
    words = words_of([[file] for file in files])
    if not {"val", "test"} & set(words) or len(set(words)) == 1:
        return {"all": files}
    if None in words:
        raise MupError(
            f"{files[words.index(None)]} is beside files that are called {', '.join(sorted(filter(None, set(words))))}: say "
            "which split it is of, {'train': …, 'val': …, 'test': …}, or leave it out."
        )
    return {word: tuple(f for f, of in zip(files, words, strict=True) if of == word) for word in dict.fromkeys(words)}


def words_of(groups: Sequence[Sequence[str]]) -> list[str | None]:
    """The split that the names of each group of files say, in what their paths do not have in common."""
    paths = [[os.path.abspath(file) for file in group] for group in groups]
    common = os.path.commonpath([os.path.dirname(path) for group in paths for path in group] or ["/"])
    found = [{_word(os.path.relpath(path, common)) for path in group} for group in paths]
    return [words.pop() if len(words) == 1 else None for words in found]


def _word(name: str) -> str | None:
    """The split that a name says, such as "darcy_train_16.pt" or "valid"; None for none or several."""
    found = {_WORDS[word] for word in re.findall("[a-z]+", name.lower()) if word in _WORDS}
    return found.pop() if len(found) == 1 else None
