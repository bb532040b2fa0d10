"""Which arrays are input and output, and what each of their axes is.

The words come from the user, from the file, or from the only reading that fits all lengths. Where several readings fit, an
error lists them.
"""

import fnmatch
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import xarray

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.data.arrays import Joined, is_unnamed, lazy
from neuralop_mup.lab.data.names import CHANNEL, SAMPLE, TIME, coordinate_word, is_channel, usual_word
from neuralop_mup.lab.data.splits import LEAST

_MOST = 16  # channels that an axis without a name is taken for
_CLASSES = 16  # so few whole numbers look like names of classes
_SHOWN = 12  # arrays of a file in a message
_READINGS = 5  # likewise
_MANY = 10  # files of equal shapes that may be one sample each
_ABSENT = ((), (TIME,), (CHANNEL,), (TIME, CHANNEL))  # what an array may lack of the words for all arrays
_NUMBERS = ((SAMPLE,), (SAMPLE, CHANNEL))  # axes of per-sample scalars

Words = Mapping[str, Sequence[str]]


def option(**read: Any) -> str:
    """Return how files are to be read, as one writes it in Python and in the shell."""
    texts = {name: f'"{value}"' if isinstance(value, Mapping) else shlex.quote(str(value)) for name, value in read.items()}
    shell = " ".join(f"--read.{name} {text}" for name, text in texts.items())
    return f"read={read} (in the shell: {shell})"


# What a Dataset with roles holds


def fields_of(data: xarray.Dataset, role: str) -> dict[str, xarray.Variable]:
    """Return the variables of a role, "input" or "output", by their keys in the file."""
    named = {str(name).partition(":"): data[name].variable for name in data.data_vars}
    return {key: variable for (own, _, key), variable in named.items() if own == role}


def spaces_of(data: xarray.Dataset) -> list[str]:
    """Return the axes of the grid, in the order of the output with the most axes."""
    found = [
        [str(dim) for dim in variable.dims if dim not in (SAMPLE, TIME) and not is_channel(str(dim))]
        for variable in fields_of(data, "output").values()
    ]
    return max(found, key=len)


def grid_of(data: xarray.Dataset) -> tuple[int, ...]:
    """Return the number of points along each axis of the grid."""
    return tuple(data.sizes[dim] for dim in spaces_of(data))


def labels_of(data: xarray.Dataset, role: str) -> tuple[str, ...]:
    """Return the names of the channels of a role."""
    found: list[str] = []
    for key, variable in fields_of(data, role).items():
        count = math.prod(points for dim, points in variable.sizes.items() if is_channel(dim))
        names = [f"{key} {label}" for label in variable.attrs.get("labels") or range(count)]
        found += names if count > 1 else [key]
    return tuple(found)


def described(data: xarray.Dataset, role: str) -> str:
    """Return the fields of a role with their axes, such as ``u (sample time x y)``."""
    fields = fields_of(data, role).items()
    return " + ".join(f"{key} ({' '.join(dim.partition(':')[0] for dim in variable.dims)})" for key, variable in fields)


# From variables to a Dataset with roles


def field_dims(words: Sequence[str], key: str) -> list[str]:
    """Return names of the axes of a field. Channels of each array have a name of their own, since their numbers differ."""
    names = {CHANNEL: f"{CHANNEL}:{key}"}
    several = words.count(CHANNEL) > 1
    return [f"{names[word]}:{i}" if several and word == CHANNEL else names.get(word, word) for i, word in enumerate(words)]


def assemble(
    file: str, fields: Mapping[str, xarray.Variable], coords: Mapping[str, Any] | None = None, **attrs: Any
) -> xarray.Dataset:
    """Return variables on one grid as a Dataset.

    Parameters
    ----------
    file : str
        What messages call it.
    fields : mapping of str to Variable
        The names are "input:" or "output:" and a key, so that a field called like an axis is no coordinate. Along an axis
        that is absent or has one point, a field is constant.
    coords : mapping of str to array, optional
        Axis → its coordinate. The times of PDEBench have one entry more than there are frames.
    **attrs
        Attributes of the Dataset.

    Raises
    ------
    MupError
        If these are no fields of real numbers on one grid, or if the output looks like classes.
    """
    for name, variable in fields.items():
        _check_real(name.partition(":")[2], file, variable)
    sizes = _common_sizes(file, fields)
    made = {
        name: variable.isel({dim: 0 for dim, points in variable.sizes.items() if points == 1 < sizes.get(dim, 1)})
        for name, variable in fields.items()
    }
    data = xarray.Dataset(made, attrs={"file": file, "format": "", **attrs})
    for key, variable in fields_of(data, "output").items():
        _check_classes(key, file, variable)
    ends = {dim: (data.sizes.get(dim), values) for dim, values in (coords or {}).items()}
    return data.assign_coords({dim: at[:n] for dim, (n, at) in ends.items() if n and len(at) - n in (0, dim == TIME)})


def _check_real(key: str, file: str, variable: xarray.Variable) -> None:
    what = f"{key} in {file} is no field, {variable.dtype} of shape {variable.shape}:"
    if variable.dtype.kind not in "biuf":
        raise MupError(
            f"{what} a field is real numbers; the real and imaginary parts of complex ones are two channels, "
            "np.stack([u.real, u.imag], axis=1)."
        )
    if not variable.size:
        raise MupError(f"{what} it is empty; give samples, or leave out the file.")


def _common_sizes(file: str, fields: Mapping[str, xarray.Variable]) -> dict[str, int]:
    """Return the points along each axis; raise MupError where they differ between fields."""
    sizes: dict[str, int] = {}
    outputs = [variable for name, variable in fields.items() if name.startswith("output:")]
    for variable in (*outputs, *fields.values()):
        for dim, points in variable.sizes.items():
            # Inputs must not vary along an axis that the outputs lack; but samples may share one output.
            is_free = any(variable is output for output in outputs) or dim == SAMPLE or is_channel(dim)
            known = sizes.setdefault(dim, points if is_free else 1)
            sizes[dim] = max(known, points)
            if points not in (1, known) and (known > 1 or not is_free):
                held = ", ".join(f"{name.partition(':')[2]} {dict(v.sizes)}" for name, v in fields.items())
                raise MupError(
                    f"{file} holds {held}, with {points} and {known} along {dim}: input and output need one grid, as many "
                    "samples and the same times; an axis of frames that are all input is a channel's."
                )
    grid = tuple(n for dim, n in sizes.items() if dim not in (SAMPLE, TIME) and not is_channel(dim))
    if not 1 <= len(grid) <= 3 or min(grid) < LEAST:
        raise MupError(
            f"{', '.join(name.partition(':')[2] for name in fields)} in {file} have the grid {grid}: it needs one to three "
            f"axes with {LEAST} points or more on each."
        )
    return sizes


def _check_classes(key: str, file: str, variable: xarray.Variable) -> None:
    if variable.dtype.kind not in "biu":
        return
    values = np.unique(variable.isel({SAMPLE: slice(_CLASSES), TIME: 0}, missing_dims="ignore").values)
    if len(values) <= _CLASSES:
        raise MupError(
            f"{key} in {file} holds the whole numbers {', '.join(map(str, values))}: they look like classes, and an output "
            f"is real numbers; where they are such write them so, {key}.astype('float32')."
        )


# From a file to variables


def with_roles(
    raw: xarray.Dataset, read: Mapping[str, Any], group: Sequence[xarray.Dataset] = ()
) -> xarray.Dataset:
    """Return input and output of what a file holds.

    Parameters
    ----------
    raw : xarray.Dataset
        As a reader returns it.
    read : mapping
        ``x`` and ``y``: keys, several with a plus; one with a star stands for arrays that are a sample each. ``dims``: a
        word for each axis, as one text or as a dict from key to text. ``time_step``: given for a state in time.
    group : sequence of xarray.Dataset, optional
        What all files hold that are joined: lengths that differ between them are those of samples or times.

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
        words = _words_of(raw, arrays, inputs, outputs, read, group)
    except MupError as why:
        raise MupError(f"{_held(raw)}: {why}") from None
    if any(TIME in words[key] for key in outputs):
        inputs = [key for key in inputs if key not in outputs]  # their earlier frames are the input anyway
    roles = [("input", key) for key in inputs] + [("output", key) for key in outputs]
    fields = {f"{role}:{key}": lazy(arrays[key], field_dims(words[key], key), _labels(raw, arrays[key])) for role, key in roles}
    return assemble(raw.attrs["file"], fields, _coordinates(raw, arrays, words), words={key: [*w] for key, w in words.items()})


def _held(raw: xarray.Dataset) -> str:
    parts = [
        " ".join([f"{key} {v.shape} {v.dtype}", *(map(str, v.dims) if not any(map(is_unnamed, map(str, v.dims))) else ())])
        for key, v in raw.variables.items()
    ]
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return f"{raw.attrs['file']} holds {', '.join(parts[:_SHOWN]) or 'no array'}{more}"


def _keys(raw: xarray.Dataset, read: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the keys of input and output: the user's, or x and y, or the only field."""
    x, y = read.get("x"), read.get("y")
    wide = [str(key) for key, values in raw.data_vars.items() if values.ndim > 1 and not coordinate_word(key)]
    if x is None and y is None:
        is_pair = {"x", "y"} <= set(raw.data_vars) and (raw["y"].ndim > 1 or not wide)
        x, y = ("x", "y") if is_pair else (None, wide[0] if len(wide) == 1 else None)
    if y is None:
        raise MupError(f"which is the input and which the output? {_advice(raw, wide)}")
    return x.split("+") if x else [], y.split("+")


def _advice(raw: xarray.Dataset, wide: Sequence[str]) -> str:
    """Return the lines that name keys; the output is the last of the largest arrays."""
    if not wide:
        return "There is no array of two axes or more."
    y = max(wide, key=lambda key: (raw[key].size, wide.index(key)))
    others = [key for key in wide if key != y and raw[key].shape[0] == raw[y].shape[0]]
    pair = [f"{option(x=key, y=y)}, or" for key in others[:1]]
    moving = [key for key in wide if TIME in map(usual_word, map(str, raw[key].dims))]
    state = option(y="+".join(moving) or y, time_step=1)
    return " ".join(["Say so:", *pair, f"for one state in time {state}. A plus joins keys."])


def _array(raw: xarray.Dataset, key: str) -> xarray.Variable:
    """Return the variable of a key, or those of a pattern as one, a sample each."""
    if key in raw.variables:
        return raw[key].variable
    found = [raw[name].variable for name in sorted(fnmatch.filter(map(str, raw.variables), key))]
    if not found:
        raise MupError(f"there is no {key!r}; {nearest(key, list(map(str, raw.variables)))}")
    if len({part.shape for part in found}) > 1:
        raise MupError(f"those of {key!r} have different shapes, so that they are not samples of one field.")
    return lazy(Joined(found), [SAMPLE, *found[0].dims])


def _labels(raw: xarray.Dataset, variable: xarray.Variable) -> dict[str, Any]:
    """Return the names of channels, where the file has one coordinate of channels."""
    own = [dim for dim in variable.dims if usual_word(str(dim)) == CHANNEL and dim in raw.coords]
    return {"labels": [str(label) for label in raw[own[0]].values]} if len(own) == 1 else {}


def _coordinates(raw: xarray.Dataset, arrays: Mapping[str, xarray.Variable], words: Words) -> dict[str, np.ndarray]:
    """Return the coordinates of axes: those that the file ties to them, and arrays that have the name of one."""
    found = {word: variable.values.ravel() for word, variable in _named_coordinates(raw, arrays).items()}
    for key, variable in arrays.items():
        own = zip(variable.dims, words[key], strict=True)
        found |= {word: raw[dim].values for dim, word in own if dim in raw.coords and raw[dim].dtype.kind in "biufmM"}
    return {word: values for word, values in found.items() if word not in (SAMPLE, CHANNEL)}


def _named_coordinates(raw: xarray.Dataset, arrays: Mapping[str, xarray.Variable]) -> dict[str, xarray.Variable]:
    words = {key: coordinate_word(key) for key in raw.variables if key not in arrays}
    lines = {word: raw[key].variable.squeeze() for key, word in words.items() if word}
    return {word: line for word, line in lines.items() if line.ndim == 1 and line.dtype.kind in "biuf"}


def _words_of(
    raw: xarray.Dataset,
    arrays: Mapping[str, xarray.Variable],
    inputs: Sequence[str],
    outputs: Sequence[str],
    read: Mapping[str, Any],
    group: Sequence[xarray.Dataset],
) -> Words:
    """Return a word for each axis of each array: the user's, the file's, or those of the only reading."""
    dims = read.get("dims")
    if wrong := [key for key in (dims if isinstance(dims, Mapping) else ()) if key not in (*raw.variables, *arrays)]:
        raise MupError(f"dims says what the axes of {wrong[0]!r} are, which is not there.")
    said = {key: _said(variable, dims.get(key) if isinstance(dims, Mapping) else dims) for key, variable in arrays.items()}
    if any(said.values()):
        words = _completed(arrays, said)
    else:
        in_time = not inputs or read.get("time_step") is not None
        found = _readings(raw, arrays, outputs, in_time, group)
        if len(found) != 1:
            raise MupError(_question(found, read, in_time))
        words = found[0]
    if not inputs and not any(TIME in words[key] for key in outputs):
        raise MupError(
            f"{'+'.join(outputs)} has neither an input nor a time axis, whose earlier times would be its input. "
            f"Where each file is a time step, {option(join='time')}."
        )
    return words


def _said(variable: xarray.Variable, dims: Any) -> tuple[str, ...]:
    """Return the words for the axes of an array that the user or the file gives; () without any."""
    if dims is not None:
        words = dims.replace(",", " ").split() if isinstance(dims, str) else list(map(str, dims))
        is_joined = variable.dims[:1] == (SAMPLE,) and len(words) == variable.ndim - 1
        return (SAMPLE, *words) if is_joined else tuple(words)
    names = tuple(map(str, variable.dims))
    return () if any(map(is_unnamed, names)) else names


def _completed(arrays: Mapping[str, xarray.Variable], said: Words) -> Words:
    """Return words for all arrays. One with fewer axes than words has no time or no channels, or holds scalars."""
    most, words = max(said.values(), key=len), {}
    for key, variable in arrays.items():
        own = tuple(map(usual_word, said[key] or most))
        kept = [tuple(word for word in own if word not in left) for left in _ABSENT]
        fitting = [each for each in (*kept, *_NUMBERS) if len(each) == variable.ndim]
        if not fitting:
            raise MupError(f"{key} has {variable.ndim} axes, and the words for them are {' '.join(said[key] or most)!r}.")
        words[key] = fitting[0]
        if any(words[key].count(word) > 1 for word in words[key] if word != CHANNEL):
            raise MupError(f"two axes of {key} mean the same, {' '.join(said[key] or most)!r}.")
        if words[key] not in kept and words[key] == _NUMBERS[1]:
            _check_scalars(key, variable, arrays)
    return words


def _check_scalars(key: str, variable: xarray.Variable, arrays: Mapping[str, xarray.Variable]) -> None:
    if variable.shape[1] in {points for other in arrays.values() for points in other.shape[1:] if other is not variable}:
        raise MupError(
            f"{key} has as many values a sample as the grid has points on an axis, so that it may vary along that axis or be "
            f"scalars of the sample: name its axes, such as dims={{{key!r}: 'sample channel', …}}."
        )


# Readings of arrays without names


def _readings(
    raw: xarray.Dataset,
    arrays: Mapping[str, xarray.Variable],
    outputs: Sequence[str],
    in_time: bool,
    group: Sequence[xarray.Dataset],
) -> list[Words]:
    """Return the readings of all axes that agree with lengths and coordinates, the usual ones first.

    Samples come first. In time, the first axis may also be that of the time.
    """
    varying = {key: _varying_axes(key, group) for key in arrays}
    one_each = len(group) >= _MANY and not any(varying.values())  # each of many files may be one sample
    leads: list[tuple[str, ...]] = [(SAMPLE, TIME), (TIME,), (SAMPLE,), ()] if in_time else [(SAMPLE,), *[()] * one_each]
    shapes = {variable.shape: variable for variable in arrays.values()}  # arrays of one shape have the same axes
    ways = [list(dict.fromkeys(_ways(variable, leads))) for variable in shapes.values()]
    found = []
    for each in product(*ways):
        words = dict(zip(shapes, each, strict=True))
        found.append({key: words[variable.shape] for key, variable in arrays.items()})
    found = [words for words in found if _fits(arrays, words, outputs, in_time)]
    lines = {word: line.size for word, line in _named_coordinates(raw, arrays).items() if line.size > 1}
    lengths = {word: n for word, n in lines.items() if word in ("x", "y", "z") or (word == TIME and in_time)}
    found = [words for words in found if _agrees(arrays, words, lengths)] or found
    fixed = [words for words in found if not any(words[key][axis] not in (SAMPLE, TIME) for key in arrays for axis in varying[key])]
    found = fixed or found
    # Arrays that are joined are a channel each, and arrays of one shape with equal axes are fields without channels.
    wide = {key: variable.shape[1:] for key, variable in arrays.items() if variable.ndim > 2}
    is_cube = len(set(wide.values())) == 1 and all(len(set(points)) == 1 for points in wide.values())
    if (len(arrays) > 2 or is_cube) and not in_time and not one_each:
        plain = [words for words in found if not any(CHANNEL in words[key] for key in wide)]
        return plain or found
    return found


def _ways(variable: xarray.Variable, leads: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Give what the axes of an array may be; a first axis of one point is no axis of samples."""
    names = [None if is_unnamed(str(dim)) else usual_word(str(dim)) for dim in variable.dims]
    n = variable.ndim
    if n > 1 and variable.shape[0] == 1 and names[0] is None:
        yield from ((CHANNEL, *words) for words in _ways(variable[0], leads) if CHANNEL not in words)
        return
    ways = [(*lead, *words) for lead in leads for words in _grid_words(n - len(lead))]
    ways += [(SAMPLE, *words, TIME) for words in _grid_words(n - 2) if leads[0][-1] == TIME]
    for way in (*ways, *_NUMBERS):
        if len(way) == n and all(name in (None, word) for name, word in zip(names, way, strict=True)):
            yield way


def _grid_words(n_axes: int) -> Iterator[tuple[str, ...]]:
    """Give what so many axes may be: those of the grid, of which an array may lack some, or channels first or last."""
    yield from combinations("xyz", max(0, n_axes))
    yield (CHANNEL, *"xyz"[: n_axes - 1])
    yield (*"xyz"[: n_axes - 1], CHANNEL)


def _sizes(arrays: Mapping[str, xarray.Variable], words: Words) -> dict[str, set[int]]:
    sizes: dict[str, set[int]] = {}
    for key, own in words.items():
        for word, points in zip(own, arrays[key].shape, strict=True):
            sizes.setdefault(word, set()).add(points)
    return sizes


def _fits(arrays: Mapping[str, xarray.Variable], words: Words, outputs: Sequence[str], in_time: bool) -> bool:
    """Return whether a reading gives all fields one grid, with a time axis where there should be one."""
    sizes = _sizes(arrays, words)
    if max(sizes.pop(CHANNEL, {0})) > _MOST or any(len(points) > 1 for points in sizes.values()):
        return False
    lead = {word for word in sizes if word in (SAMPLE, TIME)}
    spaces = sizes.keys() - lead
    wanted = spaces | (lead - {TIME}) | ({TIME} if in_time else set())
    is_grid = sorted(spaces) == list("xyz"[: max(1, len(spaces))]) and min(min(sizes[word]) for word in spaces) >= LEAST
    return is_grid and all(set(words[key]) - {CHANNEL} == wanted for key in outputs)


def _agrees(arrays: Mapping[str, xarray.Variable], words: Words, lengths: Mapping[str, int]) -> bool:
    """Return whether a reading has the lengths of the coordinates; times may be those of the edges of the steps."""
    sizes = _sizes(arrays, words)
    return all(sizes.get(word, set()) & {n, n - (word == TIME)} for word, n in lengths.items())


def _question(found: Sequence[Words], read: Mapping[str, Any], in_time: bool) -> str:
    """Return the sentence that asks for a reading, with the lines to write."""
    lines: list[Any] = []
    for words in sorted(found, key=lambda words: len({frozenset(own) & {*"xyz"} for own in words.values()})):
        texts = {key: " ".join(own) for key, own in words.items()}
        lines.append(texts if len(set(texts.values())) > 1 else next(iter(texts.values())))
    given = {name: read[name] for name in "xy" if read.get(name)}
    what = f"its axes can be read in {len(found)} ways. Say which"
    if not found:
        what = "no reading of its axes fits, with samples first. Give a word for each axis"
        lines = ["sample time x y" if in_time else "sample x y"]
    others = "".join(f", or dims={line!r}" for line in lines[1:_READINGS])
    return (
        f"{what}: {option(**given, dims=lines[0])}{others}; sample, time and channel have a meaning, any other word is an axis "
        f"of the grid, and each needs {LEAST} points or more."
    )


def _varying_axes(key: str, group: Sequence[xarray.Dataset]) -> set[int]:
    """Return the axes of an array whose lengths differ between files."""
    shapes = [data[key].shape for data in group if key in data.variables]
    return {axis for shape in shapes for axis, n in enumerate(shape) if n != shapes[0][axis : axis + 1][0]} if len({*map(len, shapes)}) == 1 else set()
