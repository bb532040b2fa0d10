"""Which arrays are input and output, and what each of their axes is.

The words come from the user, from the file, or from the only reading that fits all lengths. Where several readings fit, an
error lists them.
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from xarray import Dataset, Variable

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.data.arrays import (
    CHANNEL,
    SAMPLE,
    TIME,
    Joined,
    coordinate_word,
    is_coordinate,
    is_unnamed,
    lazy,
    usual_word,
)
from neuralop_mup.lab.data.readings import Words, only_reading
from neuralop_mup.lab.data.roles import Variables, assemble, field, option

_SHOWN = 12  # arrays of a file in a message


def with_roles(raw: Dataset, read: Mapping[str, Any], group: Sequence[Dataset] = ()) -> Dataset:
    """Return input and output of what a file holds.

    Parameters
    ----------
    raw : xarray.Dataset
        As a reader returns it.
    read : mapping
        ``x`` and ``y``: keys, several with a plus; one with a star stands for arrays that are a sample each. ``dims``: a
        word for each axis, as one text or as a dict from key to text. ``time_step``: given for a state in time.
    group : sequence of xarray.Dataset, optional
        All files that are joined. Each of many files with equal shapes may be one sample.

    Raises
    ------
    MupError
        If array or axis are not clear; the message lists what there is and the line to write.

    Examples
    --------
    >>> import numpy as np
    >>> from neuralop_mup.lab.data.axes import with_roles
    >>> from neuralop_mup.lab.data.readers import dataset_of
    >>> raw = dataset_of({"a": np.zeros((40, 16, 16)), "u": np.zeros((40, 11, 16, 16))})
    >>> data = with_roles(raw, {"x": "a", "y": "u", "dims": "sample time x y"})
    >>> dict(data.sizes)
    {'sample': 40, 'x': 16, 'y': 16, 'time': 11}
    """
    try:
        inputs, outputs = _keys(raw, read)
        arrays = {key: _array(raw, key) for key in (*outputs, *inputs)}
        _check_patterns(raw, list(arrays))
        words = _words_of(raw, arrays, outputs, read, group)
    except MupError as why:
        raise MupError(f"{raw.attrs['file']} holds {_held(raw)}: {why}") from None
    fields: dict[str, Variable] = {}
    in_time = any(TIME in words[key] for key in outputs)
    for key in inputs:
        if not (in_time and key in outputs):  # their earlier frames are the input anyway
            fields |= field("input", key, arrays[key], words[key], _labels(raw, arrays[key]))
    for key in outputs:
        fields |= field("output", key, arrays[key], words[key], _labels(raw, arrays[key]))
    return assemble(raw.attrs["file"], fields, _coordinates(raw, arrays, words), words=words)


def _held(raw: Dataset) -> str:
    """Return the arrays of a file, for a message."""
    found = []
    for key, variable in raw.variables.items():
        names = () if _is_unnamed(variable) else variable.dims
        found.append(" ".join(map(str, (key, variable.shape, variable.dtype, *names))))
    more = [f"{len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return ", ".join(found[:_SHOWN] + more) or "no array"


def _is_unnamed(variable: Variable) -> bool:
    return any(map(is_unnamed, variable.dims))


def _keys(raw: Dataset, read: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the keys of input and output: the user's, or x and y, or the only field."""
    x, y = read.get("x"), read.get("y")
    wide = [str(key) for key, values in raw.data_vars.items() if values.ndim > 1 and not is_coordinate(str(key), values)]
    if x is None and y is None:
        pairs = [pair for pair in (("x", "y"), ("input", "output")) if set(pair) <= set(raw.data_vars)]
        is_pair = len(pairs) == 1 and not any(_may_be_field(raw, pairs[0], key) for key in wide)
        x, y = pairs[0] if is_pair else (None, wide[0] if len(wide) == 1 else None)
    if y is None:
        for key in _split_keys(raw, x):
            _array(raw, key)  # raises an error for a key that is not there
        raise MupError(f"which is the input and which the output? {_advice(raw, wide)}")
    return _split_keys(raw, x), _split_keys(raw, y)


def _split_keys(raw: Dataset, text: str | None) -> list[str]:
    """Return the keys that a plus joins. A key of the file may have a plus itself, such as "H+" in "H++u"."""
    found: list[str] = []
    rest = (text or "").split("+") if text else []
    while rest:
        ends = [end for end in range(len(rest), 0, -1) if "+".join(rest[:end]) in raw.variables]
        end = ends[0] if ends else 1
        found, rest = [*found, "+".join(rest[:end])], rest[end:]
    return found


def _may_be_field(raw: Dataset, pair: tuple[str, str], key: str) -> bool:
    """Return whether an array beside x and y may be the field, so that x and y may only be its grid."""
    x, y, other = (raw[name].variable for name in (*pair, key))
    if key in pair or y.ndim < 2 or other.size > max(x.size, y.size):
        return key not in pair
    constant = [
        {axis for axis, dim in enumerate(v.dims) if np.array_equal(v.isel({dim: 0}), v.isel({dim: -1}))} for v in (x, y)
    ]
    is_mesh = all(constant) and constant[0] != constant[1]
    return other.shape[-x.ndim :] == x.shape and (other.ndim > x.ndim or is_mesh)


def _advice(raw: Dataset, wide: Sequence[str]) -> str:
    """Return the lines that name keys; the output may be the last of the largest arrays."""
    if not wide:
        return "There is no array of two axes or more."
    *others, y = sorted(wide, key=lambda key: raw[key].size)
    moving = [key for key in wide if TIME in map(usual_word, raw[key].dims)]
    state = f"for one state in time {option(y='+'.join(moving) or y, time_step=1)}"
    pair = f"{option(x=min(others), y=y)}, or " if others else ""
    return f"Say so: {pair}{state}. A plus joins keys."


def _array(raw: Dataset, key: str) -> Variable:
    """Return the variable of a key, or those of a pattern as one, a sample each."""
    if key in raw.variables:
        return raw[key].variable
    names = sorted(fnmatch.filter(raw.variables, key), key=lambda name: _number_of(key, name))
    if not names:
        raise MupError(f"there is no {key!r}; {nearest(key, list(raw.variables))}")
    found = [raw[name].variable for name in names]
    if len({part.shape for part in found}) > 1:
        raise MupError(f"those of {key!r} have different shapes, so that they are not samples of one field.")
    return lazy(Joined(found), [SAMPLE, *found[0].dims])


def _number_of(pattern: str, name: str) -> tuple[tuple[float, ...], str]:
    """Return the numbers and the text that the stars of a pattern stand for in a name: ``a_*`` and a_10 give 10."""
    first, last = re.split(r"[*?[]", pattern)[0], re.split(r"[]*?]", pattern)[-1]
    text = name[len(first) : len(name) - len(last)]
    return tuple(map(float, re.findall(r"\d+(?:\.\d+)?", text))), text


def _check_patterns(raw: Dataset, keys: Sequence[str]) -> None:
    """Raise MupError unless the arrays of all patterns have the same numbers, so that each input has its output."""
    each = {}
    for key in keys:
        if key not in raw.variables:
            found = sorted(_number_of(key, name) for name in fnmatch.filter(raw.variables, key))
            numbers = [number for number, _ in found]
            is_numbered = all(numbers) and len(set(numbers)) == len(numbers)
            each[key] = numbers if is_numbered else [text for _, text in found]
    for key, found in each.items():
        first, wanted = next(iter(each.items()))
        if found != wanted:
            raise MupError(
                f"the arrays of {first!r} and {key!r} ({len(wanted)} and {len(found)}) do not have the same numbers, so "
                f"that it is not clear which output belongs to which input. Rename them as {first.replace('*', '1')}, "
                f"{key.replace('*', '1')}, {first.replace('*', '2')}, {key.replace('*', '2')}, and so on."
            )


def _labels(raw: Dataset, variable: Variable) -> list[str]:
    """Return the names of channels, where the file has a coordinate of channels."""
    own = [dim for dim in variable.dims if usual_word(dim) == CHANNEL and dim in raw.coords]
    labels = raw[own[0]].values.tolist() if len(own) == 1 else []
    return [label.decode() if isinstance(label, bytes) else str(label) for label in labels]


def _coordinates(raw: Dataset, arrays: Variables, words: Mapping[str, Words]) -> dict[str, np.ndarray]:
    """Return the coordinates of axes: arrays that have the name of one, and those that the file ties to them.

    Coordinates in the group of a field come first, then those in the groups above, then all others in the file's order.
    """
    found: dict[str, np.ndarray] = {}
    groups = {key.rpartition("/")[0] for key in arrays}

    def rank(key: str) -> int:
        own = key.rpartition("/")[0]
        return 0 if own in groups else 1 if not own or any(group.startswith(f"{own}/") for group in groups) else 2

    for key in sorted((str(key) for key in raw.variables if key not in arrays), key=rank):
        values = raw[key].values.squeeze() if coordinate_word(key) else np.empty(0)
        if values.ndim == 1 and values.size > 1 and values.dtype.kind in "biuf":
            found.setdefault(str(coordinate_word(key)), values)
    for key, own in words.items():
        for dim, word in zip(arrays[key].dims, own, strict=True):
            if dim in raw.coords and word not in (SAMPLE, CHANNEL) and raw[dim].dtype.kind in "biufmM":
                found[word] = raw[dim].values
    return found


def _words_of(
    raw: Dataset, arrays: Variables, outputs: Sequence[str], read: Mapping[str, Any], group: Sequence[Dataset]
) -> dict[str, Words]:
    """Return a word for each axis of each array: the user's, the file's, or those of the only reading."""
    dims = read.get("dims")
    in_time = len(outputs) == len(arrays)
    if isinstance(dims, Mapping) and (wrong := dims.keys() - arrays.keys() - raw.variables.keys()):
        raise MupError(f"dims says what the axes of {min(wrong)!r} are, which is not there.")
    said = {key: _said(variable, dims.get(key) if isinstance(dims, Mapping) else dims) for key, variable in arrays.items()}
    if any(said.values()):
        most = max(said.values(), key=len)
        words = {key: _fitted(key, arrays[key], own or most) for key, own in said.items()}
    else:
        lengths = {word: values.size for word, values in _coordinates(raw, arrays, {}).items()}
        words = only_reading(arrays, outputs, lengths, group, read)
    if in_time and not any(TIME in words[key] for key in outputs):
        raise MupError(
            f"{'+'.join(outputs)} has neither an input nor a time axis. Where each "
            f"file is a time step, {option(join='time')}."
        )
    return words


def _said(variable: Variable, dims: Any) -> Words:
    """Return the words for the axes of an array that the user or the file gives; () without any."""
    if dims is None:
        return () if _is_unnamed(variable) else variable.dims
    words = tuple(dims.replace(",", " ").split() if isinstance(dims, str) else dims)
    is_joined = variable.dims[:1] == (SAMPLE,) and len(words) == variable.ndim - 1  # of groups that are a sample each
    return (SAMPLE, *words) if is_joined else words


def _fitted(key: str, variable: Variable, said: Words) -> Words:
    """Return the words for an array from those for all: it may have no time, no channels, or one number per sample."""
    if wrong := [word for word in map(str, said) if ":" in word]:
        words = " ".join(word.replace(":", "_") for word in map(str, said))
        raise MupError(
            f"{key} has an axis {wrong[0]!r}, and names with a colon are reserved for arrays. Give other words for the "
            f"axes, {option(dims=words)}."
        )
    own = tuple(map(usual_word, said))
    ways = [tuple(word for word in own if word not in left) for left in ((), (TIME,), (CHANNEL,), (TIME, CHANNEL))]
    fitting = [way for way in (*ways, (SAMPLE,)) if len(way) == variable.ndim]
    if not fitting:
        raise MupError(f"{key} has {variable.ndim} axes, and the words for them are {' '.join(said)!r}.")
    single = [word for word in fitting[0] if word != CHANNEL]
    if len(set(single)) < len(single):
        raise MupError(f"two axes of {key} mean the same, {' '.join(said)!r}.")
    return fitting[0]
