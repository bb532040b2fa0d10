"""Resolution of paths, folders and patterns to files, and the splits of files and samples."""

import difflib
import glob
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neuralop_mup.errors import MupError, nearest

#: File suffixes that :mod:`neuralop_mup.lab.data.readers` supports.
SUFFIXES = (".npz", ".npy", ".pt", ".pth", ".h5", ".hdf5", ".mat", ".nc", ".nc4", ".zarr")
#: Words that identify a split, either as a key or in the name of a file or folder.
SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
SPLITS = ("train", "val", "test")
ONLY_KEY = "data"  # key of an array without a name
_SHOWN = 12  # maximum number of names in a message
_INPUT_WORDS = ("x", "in", "input", "inputs")
_ROLE_WORD = re.compile(r"(.*)(?<![a-z])(x|in|inputs?|y|out|outputs?|targets?)(?![a-z])(.*)", re.I | re.S)  # the last one


def is_readable(path: Path) -> bool:
    """Return whether a file has a suffix that can be read. Hidden files, such as those of macOS, are not data."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def readable_in(path: Path) -> list[Path]:
    """Return the path itself if it is a readable file, or the readable files in a folder and its subfolders, in order."""
    if is_readable(path):
        return [path]
    is_folder = path.is_dir() and not path.name.startswith(".")
    is_loop = path.is_symlink() and path.resolve() in path.absolute().parents
    inner = sorted(path.iterdir()) if is_folder and not is_loop else []
    return [file for entry in inner for file in readable_in(entry)]


def similar_names(path: str | Path) -> list[str]:
    """Return the names of files and folders next to a missing path that are most similar to its name."""
    names = [other.name for other in Path(path).parent.glob("[!.]*") if other.is_dir() or is_readable(other)]
    return difflib.get_close_matches(Path(path).name, names, _SHOWN, cutoff=0)


def files_of(given: str | Path | Iterable[str | Path]) -> tuple[str, ...]:
    """Return the files specified by paths, folders and patterns such as ``"runs/*.h5"``.

    Raises
    ------
    MupError
        If a path does not exist or has an unsupported type, or if there are no files.

    Examples
    --------
    >>> import numpy as np
    >>> from neuralop_mup.lab.data.files import files_of
    >>> np.save("a.npy", np.zeros((4, 16)))
    >>> files_of("*.npy")
    ('a.npy',)
    """
    files: list[Path] = []
    for entry in (given,) if isinstance(given, (str, Path)) else given:
        path = Path(os.path.expanduser(entry))  # unlike expanduser() of Path, it keeps ~name of an unknown user
        matches = [path] if path.exists() else [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        files += [file for match in matches for file in readable_in(match)] or [path]
    for path in files:
        if not path.exists():
            others = similar_names(path)
            beside = nearest(path.name, others) if others else f"{path.absolute().parent} contains no data files either."
            raise MupError(f"The file or folder {path} does not exist: {beside}")
        if path.suffix.lower() not in SUFFIXES:
            what = f"The folder {path} contains no files" if path.is_dir() else f"{path} is not a file"
            raise MupError(
                f"{what} of a supported type ({', '.join(SUFFIXES)}). Load other files in Python and pass arrays (x, y)."
            )
    if not files:
        raise MupError(f"{given!r} contains no data files. Pass one or more files, such as heat.npz or runs/*.h5.")
    return tuple(map(str, files))


def files_by_split(given: Any) -> dict[str, tuple[str, ...]]:
    """Return files by the split that their names or folders indicate, or under "all" if these do not distinguish splits."""
    files = files_of(given)
    folder = Path(os.path.expanduser(given)) if isinstance(given, (str, Path)) else Path()
    is_folder = isinstance(given, (str, Path)) and folder.is_dir() and not is_readable(folder)
    words = split_words([[file] for file in files], str(folder) if is_folder else None)
    if is_folder and set(words) == {"test"}:
        raise MupError(
            f"{folder} contains only test data, such as {files[0]}, and test data is never used for training. Put the "
            f"training data next to it, in {Path(files[0]).parent.parent / 'train'}."
        )
    if not {"val", "test"} & set(words) or len(set(words)) == 1:
        return {"all": files}
    if None in words:
        named = ", ".join(sorted(filter(None, set(words))))
        raise MupError(
            f"The names of other files assign them to {named}, but it is unclear which split {files[words.index(None)]} "
            "belongs to. Pass a dict of files, {'train': …, 'val': …, 'test': …}, or omit this file."
        )
    return {word: tuple(f for f, own in zip(files, words, strict=True) if own == word) for word in dict.fromkeys(words)}


def split_words(groups: Sequence[Sequence[str]], folder: str | None = None) -> list[str | None]:
    """Return the split that the names of each group of files indicate, or None if they indicate none or several.

    Only the part of each path below ``folder`` is considered, or else the part below their common folder.
    """
    paths = [[os.path.abspath(file) for file in group] for group in groups]
    common = folder or os.path.commonpath([os.path.dirname(path) for group in paths for path in group])
    found = []
    for group in paths:
        names = " ".join(os.path.relpath(path, common) for path in group)
        words = {SPLIT_WORDS[word] for word in re.findall("[a-z]+", names.lower()) if word in SPLIT_WORDS}
        found.append(words.pop() if len(words) == 1 else None)
    return found


def role_of(path: str | Path) -> tuple[str, str]:
    """Return the name without its last input or output word, and the role that this word indicates: "x", "y" or "".

    The rest of the name is the same for the input and the output, as in x_train.npy and y_train.npy, or inputs/7.npy and
    outputs/7.npy.
    """
    found = _ROLE_WORD.fullmatch(str(path))
    if found is None:
        return str(path), ""
    return f"{found[1]}*{found[3]}", "x" if found[2].lower() in _INPUT_WORDS else "y"


def by_split(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts by split. Without "val", "train" is renamed to "all" and divided later."""
    found = {SPLIT_WORDS.get(str(name).lower(), name): part for name, part in given.items()}
    if wrong := [name for name in found if name not in (*SPLITS, "all")]:
        raise MupError(f"Unknown split {wrong[0]!r} in data: {nearest(str(wrong[0]), SPLITS)}")
    if len(found) < len(given) or ("train" in found) == ("all" in found):
        names = ", ".join(map(repr, given)) or "nothing"
        raise MupError(f"The splits in data are {names}. Pass 'train' exactly once, and 'val' and 'test' at most once each.")
    return {"all" if name == "train" and "val" not in found else name: part for name, part in found.items()}


def draw(n: int, split: Sequence[float], known: Mapping[str, Any], shuffle: bool) -> dict[str, np.ndarray]:
    """Return the sample indices of each split that does not exist yet, in ascending order.

    Parameters
    ----------
    n : int
        Number of samples.
    split : sequence of float
        Fractions for train, val and test, or counts if all are integers.
    known : mapping
        Splits that already exist.
    shuffle : bool
        Whether to draw the samples at random, in the same way in every run.
    """
    wanted = {name: share for name, share in zip(SPLITS, split, strict=True) if name not in known}
    if is_counts(split):
        counts = {name: int(count) for name, count in wanted.items()}
    else:
        counts = {name: max(1, round(n * share / sum(wanted.values()))) for name, share in wanted.items()}
        counts["train"] += n - sum(counts.values())
    if counts["train"] < 1 or sum(counts.values()) > n:
        raise MupError(
            f"The training data has {n} samples, but split = {tuple(split)} requires more for {', '.join(wanted)}. Use "
            "smaller splits or more data."
        )
    # RandomState generates the same numbers in every version of NumPy.
    order = np.random.RandomState(0).permutation(n) if shuffle else np.arange(n)
    parts = np.split(order, np.cumsum([*counts.values()]))
    # Indices are sorted, so a file that is loaded batch by batch is read from beginning to end.
    return {name: np.sort(part) for name, part in zip(counts, parts, strict=False)}


def is_counts(split: Sequence[float]) -> bool:
    """Return whether a split is specified by numbers of samples."""
    return all(isinstance(count, int) and not isinstance(count, bool) for count in split)
