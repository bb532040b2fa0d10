"""Identification of the input and output arrays and of the meaning of their axes.

The axis names come from the user, from the file, or from the only interpretation that fits all lengths. If several
interpretations fit, an error lists them.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from xarray import Dataset, Variable

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.data.arrays import (
    CHANNEL,
    SAMPLE,
    TIME,
    coordinate_word,
    is_coordinate,
    is_space,
    is_unnamed,
    usual_word,
)
from neuralop_mup.lab.data.files import ONLY_KEY, role_of, split_words
from neuralop_mup.lab.data.interpretations import Reading, Words, only_reading
from neuralop_mup.lab.data.roles import Options, Variables, assemble, field, option

_SHOWN = 12  # maximum number of a file's arrays in a message


def with_roles(raw: Dataset, read: Options, group: Sequence[Dataset] = ()) -> Dataset:
    """Return the input and output from the contents of a file.

    Parameters
    ----------
    raw : xarray.Dataset
        Contents of the file, as returned by a reader.
    read : mapping
        ``x`` and ``y`` are keys, with several keys joined by a plus sign. ``dims`` names each axis, as one string or as a
        dict from key to string. ``time_step`` is set for a state that evolves in time.
    group : sequence of xarray.Dataset, optional
        All files that are joined. If there are many files with equal shapes, each may be one sample.

    Raises
    ------
    MupError
        If an array or axis is ambiguous. The message lists the arrays and suggests the options to pass.

    Examples
    --------
    >>> import numpy as np
    >>> from neuralop_mup.lab.data.axes import with_roles
    >>> from neuralop_mup.lab.data.arrays import dataset_of
    >>> raw = dataset_of({"a": np.zeros((40, 16, 16)), "u": np.zeros((40, 11, 16, 16))})
    >>> data = with_roles(raw, {"x": "a", "y": "u", "dims": "sample time x y"})
    >>> dict(data.sizes)
    {'sample': 40, 'x': 16, 'y': 16, 'time': 11}
    """
    try:
        inputs, outputs = _keys(raw, read)
        arrays = {key: raw[key].variable for key in (*outputs, *inputs)}
        words = _words_of(raw, arrays, outputs, read, group)
    except MupError as why:
        raise MupError(f"{raw.attrs['file']} contains {_held(raw)}. {why}") from None
    if any(TIME in words[key] for key in outputs):
        inputs = [key for key in inputs if key not in outputs]  # earlier frames of the output are already the input
    fields: dict[str, Variable] = {}
    for role, key in [*product(["input"], inputs), *product(["output"], outputs)]:
        fields |= field(role, key, arrays[key], words[key], _labels(raw, arrays[key]))
    coords = _coordinates(raw, arrays, words)
    unused = [
        f"{key} {values.shape}"
        for key, values in raw.data_vars.items()
        if not (key in arrays or values.size < 2 or values.dtype.kind not in "biufc" or is_coordinate(str(key), values))
    ]
    data = assemble(raw.attrs["file"], fields, coords, words=words, unused=unused)
    unnamed = {word for key in arrays for word, dim in zip(words[key], arrays[key].dims, strict=True) if is_unnamed(dim)}
    sizes = [n for dim, n in data.sizes.items() if is_space(str(dim))]
    # A coordinate can belong to any unnamed axis of its length.
    unclear = [word for word in coords if word in unnamed and is_space(word) and sizes.count(data.sizes.get(word)) > 1]
    return data.assign_attrs(unclear=[] if read.get("dims") else unclear)


def _held(raw: Dataset) -> str:
    """Return a list of the arrays in a file, for a message."""
    lines = ((key, each.shape, each.dtype, *_said(each, None)) for key, each in raw.variables.items())
    found = [" ".join(map(str, line)) for line in lines]
    more = [f"{len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return ", ".join(found[:_SHOWN] + more) or "no arrays"


def _keys(raw: Dataset, read: Options) -> tuple[list[str], list[str]]:
    """Return the keys of the input and output: those of the user, x and y, or the only field."""
    x, y = read.get("x"), read.get("y")
    # The CF conventions name the arrays with the edges of the cells of a grid, such as time_bnds, in an attribute.
    bounds = {str(np.asarray(values.attrs.get("bounds")).astype(str)) for values in raw.variables.values()}
    wide = [
        str(key)
        for key, values in raw.data_vars.items()
        if values.ndim > 1 and key not in bounds and not is_coordinate(str(key), values)
    ]
    pairs = [pair for pair in (("x", "y"), ("input", "output")) if set(pair) <= set(raw.data_vars)]
    others = [key for key in wide if key not in sum(pairs, ())]  # the pair may only be the grid
    if x is None and y is None and len(pairs) == 1 and not any(_may_be_field(raw, pairs[0], key) for key in others):
        x, y = pairs[0]
    inputs, outputs = _split_keys(raw, x), _split_keys(raw, y)
    if y is None:
        outputs = [key for key in wide if key not in inputs]
        if not inputs and len(outputs) == 1 and read.get("time_step") is None and _role(raw, outputs[0]) == "x":
            inputs, outputs = outputs, []
        if len(outputs) != 1:
            raise MupError(_advice(raw, others if len(others) > 1 else wide, inputs))
    return inputs, outputs


def _split_keys(raw: Dataset, text: str | None) -> list[str]:
    """Split keys that are joined by a plus sign. A key itself may contain one, such as "H+" in "H++u"."""
    known = "|".join(sorted(map(re.escape, map(str, raw.variables)), key=len, reverse=True))  # longest first
    found = re.findall(rf"(?:^|\+)({known}|[^+]*)(?=\+|$)", text) if text else []
    for key in found:
        if list(raw.variables) == [ONLY_KEY] != [key]:
            raise MupError(
                f"Its only array has no key, so {key!r} cannot select it. If input and output are in two files, name these "
                "x and y, such as x.npy and y.npy, and do not pass keys."
            )
        if key not in raw.variables:
            raise MupError(f"Unknown key {key!r}: {nearest(key, list(raw.variables))}")
    return found


def _may_be_field(raw: Dataset, pair: tuple[str, str], key: str) -> bool:
    """Return whether an array other than x and y may be the field. In that case x and y may only be its grid."""
    x, y, other = (raw[name].variable for name in (*pair, key))
    if y.ndim < 2 or other.size > max(x.size, y.size):
        return True
    constant = [
        {axis for axis, dim in enumerate(v.dims) if np.array_equal(v.isel({dim: 0}), v.isel({dim: -1}))} for v in (x, y)
    ]
    is_mesh = all(constant) and constant[0] != constant[1]
    return other.shape[-x.ndim :] == x.shape and (other.ndim > x.ndim or is_mesh)


def _role(raw: Dataset, key: str) -> str:
    """Return the role that the name of an array indicates, or that of its file if it has no name: "x", "y" or ""."""
    return role_of(raw.attrs["file"] if key == ONLY_KEY else key)[1]


def _advice(raw: Dataset, wide: Sequence[str], inputs: Sequence[str]) -> str:
    """Return a suggestion of keys. Names indicate the input and the output, or else the output is the largest array."""
    if not wide:
        return (
            "None of these is a field with several samples. Stack the samples in Python (np.stack) and pass arrays (x, y) "
            "whose first axis is the samples."
        )
    if len(set(split_words([[key] for key in wide])) - {None}) > 1:
        return (
            "The names of the arrays assign them to different splits. Load them in Python and pass a dict, "
            "{'train': (x_train, y_train), 'test': (x_test, y_test)}. For a state that evolves in time, pass "
            "{'train': u_train, 'test': u_test} and read={'time_step': 1}."
        )
    ranks = {key: ("x", "", "y").index(_role(raw, key)) for key in wide}
    *others, y = sorted(wide, key=lambda key: (key not in inputs, ranks[key], raw[key].size))
    moving = [key for key in wide if TIME in map(usual_word, raw[key].dims)]
    state = f"For a state that evolves in time, pass {option(y='+'.join(moving) or y, time_step=1)}"
    if y in inputs:
        name, role = role_of(raw.attrs["file"])
        x_file, y_file = (raw.attrs["file"], name.replace("*", "y")) if role == "x" else ("x.npy", "y.npy")
        return (
            f"No other array can be the output. Pass arrays (x, y), two files {[x_file, y_file]} (in the shell: "
            f"{x_file},{y_file}), or one file that contains both. {state}."
        )
    x = "+".join(inputs) or min(others, key=lambda key: (ranks[key], key))
    return (
        f"It is unclear which array is the input and which is the output. Pass {option(x=x, y=y)}. {state}. Join several "
        "keys with a plus sign."
    )


def _labels(raw: Dataset, variable: Variable) -> list[str]:
    """Return the channel names if the file has a coordinate for the channel axis."""
    own = [dim for dim in variable.dims if usual_word(dim) == CHANNEL and dim in raw.coords]
    labels = raw[own[0]].values.tolist() if len(own) == 1 else []
    return [label.decode() if isinstance(label, bytes) else str(label) for label in labels]


def _coordinates(raw: Dataset, arrays: Variables, words: Reading) -> dict[str, np.ndarray]:
    """Return the coordinates of the axes: arrays named after an axis, and arrays that the file assigns to one.

    Coordinates in the group of a field come first, followed by those in its parent groups and then all others in file order.
    """
    found: dict[str, np.ndarray] = {}
    groups = {PurePosixPath(key).parent for key in arrays}
    near = groups.union(*(group.parents for group in groups))
    keys = [str(key) for key in raw.variables if key not in arrays and coordinate_word(str(key))]
    for key in sorted(keys, key=lambda key: sum(PurePosixPath(key).parent not in nearby for nearby in (groups, near))):
        values = raw[key].squeeze()
        if values.ndim == 1 and values.size > 1 and values.dtype.kind in "biuf":
            found.setdefault(str(coordinate_word(key)), values.values)
    for key, own in words.items():
        for dim, word in zip(arrays[key].dims, own, strict=True):
            if dim in raw.coords and word not in (SAMPLE, CHANNEL) and raw[dim].dtype.kind in "biufmM":
                found[word] = raw[dim].values
    return found


def _words_of(raw: Dataset, arrays: Variables, outputs: Sequence[str], read: Options, group: Sequence[Dataset]) -> Reading:
    """Return a name for each axis of each array, from the user, the file or the only possible interpretation."""
    dims = read.get("dims")
    in_time = len(outputs) == len(arrays)
    if isinstance(dims, Mapping) and (wrong := dims.keys() - arrays.keys() - raw.variables.keys()):
        raise MupError(f"dims names the axes of {min(wrong)!r}, but there is no array with this key.")
    said = {key: _said(variable, dims.get(key) if isinstance(dims, Mapping) else dims) for key, variable in arrays.items()}
    if any(set(own) - {SAMPLE} for own in said.values()):
        most = max(said.values(), key=len)
        words = {key: _fitted(key, arrays[key], own or most) for key, own in said.items()}
    else:
        lengths = {word: values.size for word, values in _coordinates(raw, arrays, {}).items()}
        words = only_reading(arrays, outputs, lengths, group, read)
    if in_time and not any(TIME in words[key] for key in outputs):
        raise MupError(
            f"{'+'.join(outputs)} has neither an input nor an axis with the name time. If its first axis is time, pass "
            f"{option(dims=' '.join((TIME, *words[outputs[0]][1:])))}. If each file is one time step, pass "
            f"{option(join='time')}."
        )
    return words


def _said(variable: Variable, dims: Any) -> Words:
    """Return the axis names that the user or the file gives for an array, or () if there are none."""
    if dims is None:
        return () if any(map(is_unnamed, variable.dims)) else variable.dims
    words = tuple(dims.replace(",", " ").split() if isinstance(dims, str) else dims)
    is_joined = variable.dims[:1] == (SAMPLE,) and len(words) == variable.ndim - 1  # joined from one group per sample
    return (SAMPLE, *words) if is_joined else words


def _fitted(key: str, variable: Variable, said: Words) -> Words:
    """Return the names of an array's own axes. It may lack time or channels, or have only one number per sample."""
    own = tuple(usual_word(str(word)) for word in said)
    ways = [tuple(word for word in own if word not in left) for left in ((), (TIME,), (CHANNEL,), (TIME, CHANNEL))]
    fitting = [way for way in (*ways, (SAMPLE,)) if len(way) == variable.ndim]
    if not fitting:
        raise MupError(
            f"{key} has {variable.ndim} axes, which do not match the axis names {' '.join(said)!r}. Use dims to pass one "
            "name for each axis."
        )
    single = [word for word in fitting[0] if word != CHANNEL]
    if len(set(single)) < len(single):
        raise MupError(
            f"Two axes of {key} have the same meaning in {' '.join(said)!r}. Use dims to give them different names."
        )
    return fitting[0]
