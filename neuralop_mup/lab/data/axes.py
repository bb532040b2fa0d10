"""Which arrays are input and output, and what each of their axes is.

The words come from the user, from the file, or from the only reading that fits all lengths. Where several readings fit, an
error lists them.
"""

import fnmatch
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
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
    is_channel,
    is_coordinate,
    is_space,
    is_unnamed,
    lazy,
    usual_word,
)

LEAST = 4  # points on an axis of a grid
_MOST = 16  # an axis without a name may be channels only up to this length
_CLASSES = 16  # so few whole numbers look like names of classes
_SHOWN = 12  # arrays of a file in a message
_READINGS = 5  # likewise
_LABELS = "neuralop_mup: names of channels"  # a private attribute, because a field in a file may have "labels"
_MANY = 10  # files of equal shapes that may be one sample each

Variables = Mapping[str, Variable]
Words = tuple[str, ...]


def option(**read: Any) -> str:
    """Return how files are to be read, as one writes it in Python and in the shell."""
    texts = {name: f'"{value}"' if isinstance(value, Mapping) else shlex.quote(str(value)) for name, value in read.items()}
    return f"read={read} (in the shell: {' '.join(f'--read.{name} {text}' for name, text in texts.items())})"


# Fields, grid and labels of a Dataset


def fields_of(data: Dataset, role: str) -> dict[str, Variable]:
    """Return the variables of a role, "input" or "output", by their keys in the file."""
    names = [str(name) for name in data.data_vars if str(name).startswith(f"{role}:")]
    return {name.partition(":")[2]: data[name].variable for name in names}


def spaces_of(data: Dataset) -> list[str]:
    """Return the axes of the grid, in the order of the first file, else of the first output that has all."""
    if "spaces" in data.attrs:
        return list(data.attrs["spaces"])
    found = [[dim for dim in variable.dims if is_space(dim)] for variable in fields_of(data, "output").values()]
    return max(found, key=len)


def grid_of(data: Dataset) -> tuple[int, ...]:
    """Return the number of points along each axis of the grid."""
    return tuple(data.sizes[dim] for dim in spaces_of(data))


def n_channels(variable: Variable) -> int:
    """Return the number of channels of a field."""
    return math.prod(points for dim, points in variable.sizes.items() if is_channel(dim))


def labels_of(data: Dataset, role: str) -> tuple[str, ...]:
    """Return the names of the channels of a role."""
    found: list[str] = []
    for key, variable in fields_of(data, role).items():
        count = n_channels(variable)
        labels = variable.attrs.get(_LABELS, ())
        labels = labels if len(labels) == count else range(count)
        found += [f"{key} {label}" for label in labels] if count > 1 else [key]
    return tuple(found)


def described(data: Dataset, role: str) -> str:
    """Return the fields of a role with their axes, such as ``u (sample time x y)``."""
    words = {key: [dim.partition(":")[0] for dim in variable.dims] for key, variable in fields_of(data, role).items()}
    return " + ".join(f"{key} ({' '.join(own)})" for key, own in words.items())


# From variables to a Dataset with roles


def field(role: str, key: str, values: Any, words: Sequence[str], labels: Sequence[str] = ()) -> dict[str, Variable]:
    """Return a field under a name that is no axis. The channels of each array have an axis of their own, and labels."""
    names = [f"{CHANNEL}:{key}:{axis}" if word == CHANNEL else word for axis, word in enumerate(words)]
    return {f"{role}:{key}": lazy(values, names, {_LABELS: tuple(labels)})}


def assemble(file: str, fields: Variables, coords: Mapping[str, Any] | None = None, **attrs: Any) -> Dataset:
    """Return variables on one grid as a Dataset.

    Parameters
    ----------
    file : str
        What messages call it.
    fields : mapping of str to Variable
        As :func:`field` returns them. Along an axis that is absent or has one point, a field is constant.
    coords : mapping of str to array, optional
        Axis → its coordinate. The times of PDEBench have one entry more than there are frames.
    **attrs
        Attributes of the Dataset.

    Raises
    ------
    MupError
        If these are no fields of real numbers on one grid, or if the output looks like classes.
    """
    sizes: dict[str, int] = {}
    for name, variable in fields.items():
        _check_field(name, file, variable)
        for dim, points in variable.sizes.items():
            sizes[dim] = max(points, sizes.get(dim, 1))
    made = {}
    for name, variable in fields.items():
        single = {dim: 0 for dim, points in variable.sizes.items() if points == 1 < sizes[dim]}
        made[name] = variable.isel(single)
    _check_grid(file, made, sizes)
    data = Dataset(made, attrs={"file": file, "format": "", **attrs})
    for dim, values in (coords or {}).items():
        if len(values) - sizes.get(dim, -1) in (0, dim == TIME):
            data = data.assign_coords({dim: values[: sizes[dim]]})
    return data


def _check_field(name: str, file: str, variable: Variable) -> None:
    role, _, key = name.partition(":")
    what = f"{key} in {file} is no field, {variable.dtype} of shape {variable.shape}:"
    kind = variable.dtype.kind
    if kind not in "biuf":
        raise MupError(
            f"{what} a field is real numbers; the real and imaginary parts of complex ones are two channels, "
            "np.stack([u.real, u.imag], axis=1)."
        )
    if variable.dtype.itemsize > 8:
        raise MupError(f"{what} torch has at most float64: write {key}.astype('float64').")
    if not variable.size:
        raise MupError(f"{what} it is empty; give samples, or leave out the file.")
    if role == "output" and kind != "f":
        values = np.unique(variable.isel({SAMPLE: slice(_CLASSES), TIME: 0}, missing_dims="ignore").values)
        if len(values) <= _CLASSES:
            raise MupError(
                f"{key} in {file} holds the whole numbers {', '.join(map(str, values))}: they look like classes, and an "
                f"output is real numbers; where they are such write them so, {key}.astype('float32')."
            )


def _check_grid(file: str, fields: Variables, sizes: Mapping[str, int]) -> None:
    """Raise MupError unless all fields have the same points along each axis, and inputs no axis that outputs lack."""
    held = ", ".join(f"{name.partition(':')[2]} {dict(variable.sizes)}" for name, variable in fields.items())
    outputs = {dim for name, variable in fields.items() if name.startswith("output:") for dim in variable.dims}
    for variable in fields.values():
        for dim, points in variable.sizes.items():
            is_known = dim in outputs or dim == SAMPLE or is_channel(dim)
            if points != sizes[dim] or not is_known:
                raise MupError(
                    f"{file} holds {held}, with {points} and {sizes[dim] if is_known else 1} along {dim}: input and output "
                    "need one grid, as many samples and the same times; an axis of frames that are all input is a channel's."
                )
    grid = [points for dim, points in sizes.items() if is_space(dim)]
    if not 1 <= len(grid) <= 3 or min(grid) < LEAST:
        raise MupError(f"{file} holds {held}: the grid needs one to three axes with {LEAST} points or more on each.")


# From a file to variables


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
    return list(map(str, raw[own[0]].values)) if len(own) == 1 else []


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
        is_moving = in_time or read.get("time_step") is not None
        found = _readings(raw, arrays, outputs, is_moving, group)
        if len(found) != 1:
            raise MupError((_unequal(arrays) if not found else "") + _question(found, read, is_moving))
        words = found[0]
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


# Readings of arrays without names


def _readings(
    raw: Dataset, arrays: Variables, outputs: Sequence[str], in_time: bool, group: Sequence[Dataset]
) -> list[dict[str, Words]]:
    """Return the readings of all axes that agree with lengths and coordinates, the usual ones first.

    Samples come first. In time, the first axis may also be that of the time.
    """
    alike = all(len({data[key].shape for data in group if key in data.variables}) == 1 for key in arrays)
    one_each = len(group) >= _MANY and alike  # each of many files may be one sample
    leads: list[Words] = [(SAMPLE, TIME), (TIME,), (SAMPLE,), ()] if in_time else [(SAMPLE,), *[()] * one_each]
    shapes = {variable.shape: variable for variable in arrays.values()}  # arrays of one shape have the same axes
    ways = [dict.fromkeys(_ways(variable, leads)) for variable in shapes.values()]
    lengths = {word: values.size for word, values in _coordinates(raw, arrays, {}).items() if in_time or word != TIME}
    fitting: list[dict[str, Words]] = []
    agreeing: list[dict[str, Words]] = []
    for each in product(*ways):
        words = {key: dict(zip(shapes, each, strict=True))[variable.shape] for key, variable in arrays.items()}
        if sizes := _sizes(arrays, words, outputs, in_time):
            fitting.append(words)
            if all(n - sizes.get(word, -1) in (0, word == TIME) for word, n in lengths.items()):
                agreeing.append(words)
    found = agreeing or fitting
    # Arrays that are joined are a channel each, and arrays of one shape with equal axes are fields without channels.
    wide = {key: variable.shape[1:] for key, variable in arrays.items() if variable.ndim > 2}
    is_cube = len({points for shape in wide.values() for points in shape}) == len(set(wide.values())) == 1
    if (len(arrays) > 2 or is_cube) and not in_time and not one_each:
        plain = [words for words in found if not any(CHANNEL in words[key] for key in wide)]
        return plain or found
    return found


def _ways(variable: Variable, leads: Sequence[Words]) -> Iterator[Words]:
    """Give what the axes of an array may be; a first axis of one point may be a channel or one sample."""
    names = [None if is_unnamed(dim) else usual_word(dim) for dim in variable.dims]
    n = variable.ndim
    if n > 1 and variable.shape[0] == 1 and names[0] is None:
        yield from ((CHANNEL, *words) for words in _ways(variable[0], leads) if CHANNEL not in words)
        if () in leads:
            return  # one sample or one channel give the same data
    ways = [(*lead, *words) for lead in leads for words in _grid_words(n - len(lead))]
    if leads[0][-1] == TIME and names[0] is None:
        ways += [(SAMPLE, *words, TIME) for words in _grid_words(n - 2)]
    for way in (*ways, (SAMPLE,), (SAMPLE, CHANNEL)):
        if len(way) == n and all(name in (None, word) for name, word in zip(names, way, strict=True)):
            yield way


def _grid_words(n_axes: int) -> Iterator[Words]:
    """Give the words for so many axes: axes of the grid (an array may have fewer than others), or channels first or last."""
    yield from combinations("xyz", max(0, n_axes))
    yield (CHANNEL, *"xyz"[: n_axes - 1])
    yield (*"xyz"[: n_axes - 1], CHANNEL)


def _sizes(arrays: Variables, words: Mapping[str, Words], outputs: Sequence[str], in_time: bool) -> dict[str, int]:
    """Return the points along each axis where a reading gives all fields one grid and, perhaps, times; else nothing."""
    pairs = {pair for key, own in words.items() for pair in zip(own, arrays[key].shape, strict=True)}
    channels = [points for word, points in pairs if word == CHANNEL]
    sizes = {word: points for word, points in pairs if word != CHANNEL}
    grid = [points for word, points in sizes.items() if is_space(word)]
    wanted = set(sizes) | ({TIME} if in_time else set())
    is_grid = sorted(filter(is_space, sizes)) == list("xyz"[: max(1, len(grid))]) and min(grid) >= LEAST
    has_all = all(set(words[key]) - {CHANNEL} == wanted for key in outputs)
    return sizes if is_grid and has_all and len(pairs) - len(channels) == len(sizes) and max([0, *channels]) <= _MOST else {}


def _unequal(arrays: Variables) -> str:
    """Return a sentence about arrays with different numbers of samples, if samples are first."""
    counts = {key: variable.shape[0] for key, variable in arrays.items() if variable.ndim > 1}
    if len(set(counts.values())) < 2:
        return ""
    held = ", ".join(f"{key} has {count} samples" for key, count in reversed(counts.items()))
    return f"{held}, if samples come first; give as many samples of each. If samples are elsewhere: "


def _question(found: Sequence[Mapping[str, Words]], read: Mapping[str, Any], in_time: bool) -> str:
    """Return the sentence that asks for a reading, with the lines to write."""
    lines: list[Any] = []
    for words in sorted(found, key=lambda words: len({frozenset(filter(is_space, own)) for own in words.values()})):
        texts = {key: " ".join(own) for key, own in words.items()}
        lines.append(texts if len(set(texts.values())) > 1 else next(iter(texts.values())))
    given = {name: read[name] for name in "xy" if read.get(name)}
    what = f"its axes can be read in {len(found)} ways. Say which"
    if not found:
        what = "no reading of its axes fits, with samples first. Give a word for each axis"
        lines = ["sample time x y" if in_time else "sample x y"]
    others = "".join(f", or dims={line!r}" for line in lines[1:_READINGS])
    return (
        f"{what}: {option(**given, dims=lines[0])}{others}; sample, time and channel have a meaning, any other word is an "
        f"axis of the grid, and each needs {LEAST} points or more."
    )
