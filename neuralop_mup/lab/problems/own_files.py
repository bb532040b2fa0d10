"""A user's files, read: ``.npz``, ``.pt`` and HDF5, and which of their arrays are input and output.

Their layout, which axes are channels, grid and times, is in :mod:`own_layout`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neuralop_mup.errors import MupError, nearest

__all__ = ["READERS", "Source", "numpy_of", "open_source"]

#: Pairs of keys that are taken for input and output where the user names none.
_PAIRS = (
    *(("x", "y"), ("input", "output"), ("inputs", "outputs"), ("a", "u"), ("coeff", "sol"), ("nu", "tensor")),
    *(("x_train", "y_train"), ("source", "target"), ("features", "labels")),
)
_TIMES = ("t", "time", "times", "t-coordinate", "t_coordinate", "t_coord")  # keys of the times themselves
_COORDINATES = (*_TIMES, "grid")
_COORDINATE_ENDS = ("-coordinate", "_coordinate", "_coord", "_coords", "_grid")
_FLOW = {"Vx", "Vy", "Vz", "density", "pressure"}  # PDEBench's compressible flows: one array a variable, all in time


@dataclass(frozen=True)
class Source:
    """Input and output in one file; the same arrays where they have times after the samples.

    Raises
    ------
    MupError
        If the arrays are no fields of numbers with as many samples each.
    """

    file: str
    names: tuple[str, str]
    arrays: tuple[tuple[Any, ...], tuple[Any, ...]]  # or HDF5 datasets: samples first, each with channels of the field
    in_time: bool = False
    unused: tuple[str, ...] = ()  # keys of further fields

    def __post_init__(self) -> None:
        for name, arrays in zip(self.names, self.arrays, strict=True):
            for values in arrays:
                kind = np.dtype(str(values.dtype).removeprefix("torch.")).kind
                if kind == "c":
                    raise MupError(
                        f"{name} in {self.file} is complex; give its real and imaginary parts as two channels, "
                        "np.stack([u.real, u.imag], axis=1), or for a model of complex data (train, val) of (x, y) arrays."
                    )
                if kind not in "biuf":
                    raise MupError(f"{name} in {self.file} holds {values.dtype}, which are no numbers.")
                if values.shape != arrays[0].shape:
                    raise MupError(
                        f"The parts of {name} in {self.file} differ in shape, so they cannot be channels of one field."
                    )
            if len(arrays[0].shape) < 2:
                raise MupError(
                    f"{name} in {self.file} has one number a sample: fields have a grid after the axis of the samples."
                )
        counts = [len(arrays[0]) for arrays in self.arrays]
        if counts[0] != counts[1]:
            raise MupError(
                f"{' and '.join(self.names)} in {self.file} have {counts[0]} and {counts[1]} samples; there must be as many "
                "of each."
            )

    @property
    def n(self) -> int:
        """Samples."""
        return len(self.arrays[0][0])

    @property
    def lazy(self) -> bool:
        """Whether the arrays are in the file still."""
        return not isinstance(self.arrays[0][0], np.ndarray)


class _Samples:
    """HDF5 groups, one a sample, as one array."""

    def __init__(self, groups: Sequence[Any], key: str) -> None:
        self._groups, self._key = groups, key
        first = groups[0][key]
        self.shape, self.dtype = (len(groups), *first.shape), first.dtype

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: Sequence[int]) -> np.ndarray:
        return np.stack([self._groups[i][self._key][()] for i in index])


def _read_npz(file: str) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as content:
        return {key: content[key] for key in content.files}


def numpy_of(values: torch.Tensor) -> np.ndarray:
    """A tensor as an array; numpy has no bfloat16, so that becomes single precision."""
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _read_pt(file: str) -> dict[str, Any]:
    content = torch.load(file, map_location="cpu", weights_only=True)
    if isinstance(content, (tuple, list)) and len(content) == 2:
        content = dict(zip("xy", content, strict=True))
    if isinstance(content, torch.Tensor):
        content = {"data": content}
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, not a dict of tensors")
    return {key: numpy_of(value) for key, value in content.items() if isinstance(value, torch.Tensor)}


def _read_h5(file: str) -> dict[str, Any]:
    import h5py

    content = h5py.File(file, "r")
    found: dict[str, Any] = {}

    def take(name: str, entry: Any) -> None:
        if isinstance(entry, h5py.Dataset):
            found[name] = entry

    content.visititems(take)
    # PDEBench keeps some sets as one group a sample: 0000/data, 0001/data, …
    groups = [content[name] for name in sorted(content) if isinstance(content[name], h5py.Group) and name.isdecimal()]
    if groups and all("data" in group for group in groups):
        return {"data": _Samples(groups, "data")}
    return found


READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    ".npz": _read_npz,
    **dict.fromkeys((".pt", ".pth"), _read_pt),
    **dict.fromkeys((".h5", ".hdf5"), _read_h5),
}


def _is_coordinate(key: str) -> bool:
    """Whether a key names points of a grid or times, not a field."""
    name = key.lower().rsplit("/", 1)[-1]
    return name in _COORDINATES or name.endswith(_COORDINATE_ENDS) or "/grid/" in f"/{key.lower()}"


def _has_times(content: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Whether a file says that all its fields have times after the samples. Without a sign a row may be meant."""
    shapes = {tuple(v.shape) for v in fields.values()}
    if len(shapes) > 1 or len(next(iter(shapes))) < 3:
        return len(fields) == 1  # too few axes for anything else, and layout_of tells that times are missing
    if all(isinstance(v, _Samples) for v in fields.values()) or (len(fields) > 1 and set(fields) <= _FLOW):
        return True
    times = next(iter(shapes))[1]
    given = [tuple(v.shape) for k, v in content.items() if k.lower().rsplit("/", 1)[-1] in _TIMES]
    # PDEBench's one-dimensional sets have a time more among the coordinates than in the fields.
    known = set(fields) == {"tensor"} and "t-coordinate" in content
    return known or (times,) in given


def _question(file: str, content: Mapping[str, Any], fields: Mapping[str, Any], said: Callable[[str, str], str]) -> str:
    """What to ask where nothing says which array is what: with the options that would answer it."""
    held = ", ".join(f"{k} {tuple(v.shape)}" for k, v in content.items()) or "no array"
    if not fields:
        return f"The file {file} holds {held}: no array of fields, whose first axis is that of the samples."
    if len(fields) == 1:
        return (
            f"The file {file} holds {held}: one array of fields, and nothing says that it has times. If its second axis is "
            f"time, say so ({said(y=next(iter(fields)))}), or put input and output into two arrays, such as x and y."
        )
    *inputs, output = fields
    text = (
        f"The file {file} holds {held}: which is the input and which the output? Name them, several with a plus, such as "
        f"{said(x='+'.join(inputs), y=output)}."
    )
    if len({tuple(v.shape) for v in fields.values()}) == 1 and len(fields[output].shape) > 2:
        text += f" If all are one state whose second axis is time: {said(y='+'.join(fields))}."
    return text


def open_source(file: str, read: Any) -> Source:
    """The input and the output in a file.

    Parameters
    ----------
    file : str
    read
        How: ``x`` and ``y``, keys of input and output, several with a plus (``y`` alone has times after the samples);
        ``time_step``, which says that there are times; ``option(x=…)``, how a user says such a thing.

    Raises
    ------
    MupError
        If the file cannot be read or has no such keys, if nothing says which array is what, or if the arrays are no fields
        of numbers with as many samples each.
    """
    x, y = read.x, read.y
    try:
        content = READERS[Path(file).suffix.lower()](file)
    except Exception as error:  # a damaged file can fail in as many ways as zip, pickle and HDF5 know
        raise MupError(f"The file {file} cannot be read: {type(error).__name__}: {error}") from error
    for key in filter(None, (x, y)):
        for part in key.split("+"):
            if part not in content:
                raise MupError(f"The file {file} has no {part!r}; {nearest(part, content)}")
    fields = {k: v for k, v in content.items() if len(v.shape) >= 2 and not _is_coordinate(k)}
    if x is None and y is None:
        x, y = next(((a, b) for a, b in _PAIRS if a in content and b in content), (None, None))
        if y is None:
            if not fields or not (read.time_step is not None or _has_times(content, fields)):
                raise MupError(_question(file, content, fields, read.option))
            # One variable, or several of the same shape (PDEBench's flows): channels of one field in time.
            y = "+".join(fields)
    elif y is None:
        raise MupError(f"x is {x!r}, and the output is not named; give {read.option(y='KEY')} too ({', '.join(fields)}).")
    names = (x or y, y)
    arrays = tuple(tuple(content[part] for part in name.split("+")) for name in names)
    taken = "+".join(names).split("+")
    return Source(file, names, arrays, not x, tuple(key for key in fields if key not in taken))
