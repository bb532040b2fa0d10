"""Input and output: arrays whose axes are known, read as fields of shape ``(n, channels, *grid)``."""

import fnmatch
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import torch

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.problems.data import check_finite
from neuralop_mup.lab.problems.readers import BETWEEN, Content, Lazy, Stacked, read_rows

SPACES = ("space0", "space1", "space2")
_ORDER = ("sample", "time", "channel", *SPACES)
_LETTERS = dict(zip(SPACES, "xyz", strict=True))
_ABSENT = ((), ("time",), ("channel",), ("time", "channel"))  # what an array may lack of the words that are said for all
_NUMBERS = (("sample",), ("sample", "channel"))  # axes of what is no field
_LEAST = 4  # points on an axis of a grid
_CLASSES = 16  # whole numbers so few are names of classes
_TOLD = 12  # arrays of a file in a message
_HINT = (
    "a plus joins keys, any word but sample, time and channel is an axis of the grid, along an axis that it lacks an array "
    "is constant, and numbers beside the fields are 'sample channel'"
)

# Words for axes, in files and in ``dims``; any other is an axis of the grid.
_USUAL = {
    **dict.fromkeys(("sample", "samples", "batch", "b", "n", "member", "ensemble", "realization", "number"), "sample"),
    **dict.fromkeys(("trajectory", "trajectories", "case", "run", "simulation"), "sample"),
    **dict.fromkeys(("time", "times", "t", "step", "timestep", "valid_time", "lead_time"), "time"),
    **dict.fromkeys(("channel", "channels", "c", "variable", "variables", "component", "components", "feature"), "channel"),
    **dict.fromkeys(("level", "lev", "plev", "pressure_level", "isobaricinhpa"), "channel"),  # of the atmosphere
}


def _word(name: str) -> str | None:
    """What a name of an axis means, if it is a usual one."""
    return _USUAL.get(name.lower())


@dataclass(frozen=True, eq=False)
class Variable:
    """An array, and what each of its axes is.

    Attributes
    ----------
    name : str
        What messages call it: its key.
    array : array
        ``shape``, ``dtype`` and ``array[index]``, as in :class:`~neuralop_mup.lab.problems.readers.Content`.
    axes : tuple of str
        A word an axis: "sample", "time", "channel" (several are flattened in order), and "space0", "space1", "space2" for
        those of the grid, in any order. Along an axis that is absent or has one point everything is the same: no "time" is
        constant in time, no "sample" the same for all, and no space at all is a number, which becomes a constant channel.
    labels : tuple of str, default ()
        Names of its channels, where they are known.

    Examples
    --------
    >>> import numpy as np
    >>> from neuralop_mup.lab.problems.fields import Variable, source_of
    >>> a = Variable("a", np.random.rand(40, 16, 2), ("sample", "space0", "channel"))
    >>> viscosity = Variable("viscosity", np.random.rand(40), ("sample",))
    >>> u = Variable("u", np.random.rand(40, 16), ("sample", "space0"))
    >>> source = source_of("heat.npz", [a, viscosity], [u])
    >>> source.n, source.grid, source.labels(0), source.take(0, np.array([3, 5])).shape
    (40, (16,), ('a 0', 'a 1', 'viscosity'), torch.Size([2, 3, 16]))
    """

    name: str
    array: Any
    axes: tuple[str, ...]
    labels: tuple[str, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """Points along each axis, by its word; of several for channels the product."""
        sizes = {"channel": 1}
        for word, points in zip(self.axes, self.array.shape, strict=True):
            sizes[word] = sizes.get(word, 1) * points
        return sizes

    @property
    def chunk(self) -> int:
        """Fields that the file holds together, so that reading one of them costs as much as all."""
        chunks = getattr(self.array, "chunks", None) or ()
        return math.prod(n for word, n in zip(self.axes, chunks, strict=False) if word in ("sample", "time"))

    @property
    def told(self) -> str:
        """``u (sample channel x y)``: its axes in the words that say them."""
        return f"{self.name} ({' '.join(_LETTERS.get(word, word) for word in self.axes)})"

    def read(self, out: np.ndarray, samples: np.ndarray, times: np.ndarray | None) -> None:
        """Fill ``out``, ``(len(samples), channels, *grid)``, with the fields of these samples, each at its time."""
        sizes = self.sizes
        order = sorted(range(len(self.axes)), key=lambda place: _ORDER.index(self.axes[place]))
        spaces = {word: slice(n) for word, n in zip(SPACES, out.shape[2:], strict=False)}
        shape = (sizes["channel"], *(min(sizes.get(word, 1), n) for word, n in zip(SPACES, out.shape[2:], strict=False)))
        moving = [word for word in ("sample", "time") if sizes.get(word, 1) > 1] or ["sample"]
        numbers = {"sample": samples if sizes.get("sample", 1) > 1 else 0 * samples, "time": times}
        counts = [sizes.get(word, 1) for word in moving]
        rows = np.ravel_multi_index([numbers[word] for word in moving], counts)
        alike = (
            order == sorted(order)
            and math.prod(self.array.shape) == math.prod(counts) * out[:1].size
            and self.array.dtype == out.dtype
            and out.flags.c_contiguous
            and (np.diff(rows) > 0).all()
        )
        if alike and isinstance(self.array, Lazy) and (file := self.array.lies()):
            read_rows(*file, rows, out)
            return
        gap = 1 + BETWEEN // (math.prod(shape) * self.array.dtype.itemsize)
        # Frames of a trajectory are read at once, or trajectories at one time, whichever makes fewer pieces.
        ways = {words: _pieces([numbers[word] for word in words], gap) for words in permutations(moving)}
        words = min(ways, key=lambda words: len(ways[words]))
        for piece in ways[words]:
            at = {word: slice(int(numbers[word][piece].min()), int(numbers[word][piece].max()) + 1) for word in words}
            part = self.array[tuple({**at, **spaces}.get(word, slice(None)) for word in self.axes)]
            values = np.asarray(part).transpose(order).reshape(-1, *shape)
            inside = numbers[words[-1]][piece] - at[words[-1]].start
            every = len(inside) == len(values) and (np.diff(inside) == 1).all()
            out[piece] = values if every else values[inside]


def _pieces(numbers: Sequence[np.ndarray], gap: int) -> list[np.ndarray]:
    """Places of numbers that are read at once: equal in all but the last, which goes up with gaps that are not larger."""
    order = np.lexsort(numbers[::-1])
    ends = [np.diff(each[order]) > most for each, most in zip(numbers[::-1], (gap, 0), strict=False)]
    return np.split(order, np.flatnonzero(np.logical_or.reduce(ends)) + 1)


@dataclass(frozen=True)
class Source:
    """Input and output of one file, as fields.

    Attributes
    ----------
    file : str
        What messages call it.
    inputs, outputs : tuple of Variable
        Joined as channels, in this order. Of data in time the outputs' own earlier frames are the rest of the input;
        ``inputs`` are what is given besides, at each time or (no "time" axis) constant in time.
    n : int
        Samples, or trajectories.
    times : int
        Frames of each trajectory; 0: no time axis, input → output.
    grid : tuple of int
        Points that are used along "space0", "space1", …
    format : str, default ""
        Name of the format by whose specification the file was read, and what of it was left out.
    start : int, default 0
        The first of the file's samples that is taken, so that ``replace(source, start=5, n=10)`` is ten of them.
    """

    file: str
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    n: int
    times: int
    grid: tuple[int, ...]
    format: str = ""
    start: int = 0

    @property
    def channels(self) -> tuple[int, int]:
        """Of inputs and of outputs; the frames before are not among the inputs."""
        return len(self.labels(0)), len(self.labels(1))

    def labels(self, which: int) -> tuple[str, ...]:
        """Names of the channels of inputs (0) or outputs (1)."""
        found: list[str] = []
        for variable in (self.inputs, self.outputs)[which]:
            count = variable.sizes["channel"]
            names = [f"{variable.name} {label}" for label in variable.labels or range(count)]
            found += names if count > 1 else [variable.name]
        return tuple(found)

    def kind(self, which: int) -> np.dtype:
        """The precision: whole numbers become real ones that hold them, and bytes stand in this machine's order."""
        return np.result_type(np.float32, *(variable.array.dtype for variable in (self.inputs, self.outputs)[which]))

    def take(
        self, which: int, samples: np.ndarray, times: np.ndarray | None = None, out: np.ndarray | None = None
    ) -> torch.Tensor:
        """Inputs (0) or outputs (1), of these samples, ``(len(samples), channels, *grid)`` in the precision of the file.

        Parameters
        ----------
        which : int
        samples : array of int
            Numbers of samples or trajectories, in any order; those that come several times are read once.
        times : array of int, optional
            As many: the frame of each. None where nothing has a time axis.
        out : array, optional
            What is filled and given; a new one is made where it is left out.

        Raises
        ------
        MupError
            For what cannot be read, and for entries that are complex or not finite.
        """
        variables, samples = (self.inputs, self.outputs)[which], np.asarray(samples) + self.start
        ends = np.cumsum([variable.sizes["channel"] for variable in variables])
        out = np.empty((len(samples), self.channels[which], *self.grid), self.kind(which)) if out is None else out
        for variable, part in zip(variables, np.split(out, ends, axis=1), strict=False):
            try:
                variable.read(part, samples, times)
            except Exception as error:  # of a damaged file, in as many ways as zip and HDF5 know
                what = f"{variable.name} in {self.file} cannot be read: {type(error).__name__}: {error}"
                raise MupError(f"{what}; write or copy the file again.") from error
            check_finite(f"{variable.name} in {self.file}", torch.from_numpy(part), samples)
        return torch.from_numpy(out)


def _check_real(name: str, file: str, array: Any) -> None:
    told = f"{name} in {file} is no field, {array.dtype} of shape {tuple(array.shape)}:"
    if np.dtype(array.dtype).kind not in "biuf":
        raise MupError(
            f"{told} a field is real numbers; the real and imaginary parts of complex ones are two channels, "
            "np.stack([u.real, u.imag], axis=1)."
        )
    if not math.prod(array.shape):
        raise MupError(f"{told} it is empty; give samples, or leave out the file.")


def source_of(file: str, inputs: Sequence[Variable], outputs: Sequence[Variable], crop: bool = False) -> Source:
    """Variables as input and output on one grid.

    Parameters
    ----------
    file : str
        What messages call it.
    inputs, outputs : sequence of Variable
    crop : bool, default False
        Drop the last point of each axis with an odd number of points.

    Raises
    ------
    MupError
        If they are no fields of real numbers on one grid with as many samples and times each, or if the output is classes.
    """
    for variable in (*outputs, *inputs):
        _check_real(variable.name, file, variable.array)
    sizes, grid = _agreed(file, inputs, outputs)
    grid = tuple(points - points % 2 for points in grid) if crop else grid
    source = Source(file, tuple(inputs), tuple(outputs), sizes.get("sample", 1), sizes.get("time", 0), grid)
    some = np.arange(min(source.n, _CLASSES))
    for variable in (v for v in outputs if np.dtype(v.array.dtype).kind in "biu"):
        values = np.empty((len(some), variable.sizes["channel"], *grid), variable.array.dtype)
        variable.read(values, some, 0 * some)
        values = np.unique(values)
        if len(values) <= _CLASSES:
            told = ", ".join(map(str, values))
            raise MupError(
                f"{variable.name} in {file} holds the whole numbers {told}: they look like classes, and an output is real "
                f"numbers; where they are such write them so, {variable.name}.astype('float32')."
            )
    return source


def _agreed(file: str, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> tuple[dict[str, int], tuple[int, ...]]:
    """Points along each axis by its word, and those of the grid; MupError where they are not the same in all."""
    sizes: dict[str, int] = {}
    for variable in (*outputs, *inputs):
        for word, points in variable.sizes.items():
            # What the outputs do not vary along the inputs do not, either; but samples may have one output.
            known = sizes.setdefault(word, points if variable in outputs or word == "sample" else 1)
            sizes[word] = max(known, points)
            if word != "channel" and points not in (1, known) and (known > 1 or variable in inputs):
                every = ", ".join(f"{v.told} of shape {tuple(v.array.shape)}" for v in (*inputs, *outputs))
                raise MupError(
                    f"{file} holds {every}, with {points} and {known} along {_LETTERS.get(word, word)}: input and output "
                    "need one grid, as many samples and the same times; an axis of frames that are all input is a channel's."
                )
    grid = tuple(sizes[word] for word in SPACES if word in sizes)
    if not grid or min(grid) < _LEAST:
        raise MupError(
            f"{', '.join(v.told for v in outputs)} in {file} has the grid {grid}: it needs one to three axes with {_LEAST} "
            "points or more on each."
        )
    return sizes, grid


def named(content: Content, read: Mapping[str, Any]) -> Source:
    """Input and output of any content, by keys and by names of the axes.

    Parameters
    ----------
    content : Content
    read : mapping
        ``x`` and ``y``: keys, several with a plus; one with a star stands for arrays that are a sample each. ``dims``: a
        word an axis, "sample", "time", "channel", any other being an axis of the grid; one text for all or a dict from key
        to text. ``crop``.

    Raises
    ------
    MupError
        If this does not say which array and which axis is what; the message lists what there is and the line to write.

    Examples
    --------
    >>> import numpy as np
    >>> from neuralop_mup.lab.problems.fields import named
    >>> from neuralop_mup.lab.problems.readers import content_of
    >>> content = content_of({"a": np.zeros((40, 16, 16)), "u": np.zeros((40, 11, 16, 16))})
    >>> source = named(content, {"x": "a", "y": "u", "dims": "sample time x y"})
    >>> source.n, source.times, source.grid, source.channels
    (40, 11, (16, 16), (1, 1))
    """
    try:
        found = _found(content, read)
    except MupError as why:
        told = [
            f"{k} {tuple(a.shape)} {a.dtype} {' '.join(content.dims.get(k, ()))}".strip() for k, a in content.arrays.items()
        ]
        more = f" and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
        held = f"{content.name} holds {', '.join(told[:_TOLD]) or 'no array'}{more}"
        raise MupError(f"{held}: {why} {_advice(content, read)}".strip()) from None
    return source_of(content.name, *found, read.get("crop", False))


def _keys(content: Content, read: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Of input and output: those that were said, or x and y, or an array that is alone."""
    x, y = read.get("x"), read.get("y")
    if x is None and y is None:
        fields = [key for key in content.arrays if not content.is_axis(key)]
        alone = fields[0] if len(fields) == 1 and len(content.arrays[fields[0]].shape) > 2 else None
        return ("x", "y") if {"x", "y"} <= set(fields) else (None, alone)
    return x, y


def _found(content: Content, read: Mapping[str, Any]) -> tuple[list[Variable], list[Variable]]:
    """Inputs and outputs; MupError says what is not clear."""
    (x, y), dims = _keys(content, read), read.get("dims")
    if y is None:
        raise MupError("which is the input and which the output?")
    inputs, outputs = (x.split("+") if x else []), y.split("+")
    arrays = {key: _array(content, key) for key in (*outputs, *inputs)}
    if wrong := [key for key in (dims if isinstance(dims, Mapping) else ()) if key not in (*content.arrays, *arrays)]:
        raise MupError(f"dims says what the axes of {wrong[0]!r} are, which is not there.")

    def made(words: Mapping[str, Sequence[str]]) -> tuple[list[Variable], list[Variable]]:
        every = _variables(content, arrays, words)
        in_time = any("time" in every[key].axes for key in outputs)
        if not inputs and not in_time:
            raise MupError(f"{y} has neither an input nor a time axis, whose earlier times would be its input.")
        # In time its own earlier frames are the input.
        return [every[k] for k in inputs if not (in_time and k in outputs)], [every[k] for k in outputs]

    words = {key: _said(content, key, dims) for key in arrays}
    return made(words) if any(words.values()) else _guessed(content, arrays, made, ("sample",) if x else ("sample", "time"))


def option(**read: Any) -> str:
    """How files are to be read, as it is written in Python and in the shell."""
    texts = {name: f'"{value}"' if isinstance(value, Mapping) else shlex.quote(str(value)) for name, value in read.items()}
    shell = " ".join(f"--read.{name} {text}" for name, text in texts.items())
    return f"read={read} (in the shell: {shell})"


def _shapes(content: Content) -> dict[str, tuple[int, ...]]:
    """Of all arrays but coordinates and numbers, by their keys; of groups that are a sample each by a pattern."""
    # Of groups that are a sample each, a star stands for their names.
    stars = {
        k: (re.sub("^[^/]+/", "*/", k), a.shape) for k, a in content.arrays.items() if a.shape and not content.is_axis(k)
    }
    counts = Counter(stars.values())
    alike = {star: (n, *shape) for (star, shape), n in counts.items() if "*" in star and n >= _LEAST}
    return alike | {k: tuple(shape) for k, (star, shape) in stars.items() if star not in alike}


def _likely(fields: Mapping[str, tuple[int, ...]]) -> tuple[str | None, str | None]:
    """Keys that may be input and output, where nobody says so: the output is the last of the largest arrays."""
    y = max(fields, key=lambda key: (math.prod(fields[key]), list(fields).index(key)), default=None)
    return next((key for key in fields if key != y and fields[key][0] == fields[y][0]), None), y


def _advice(content: Content, read: Mapping[str, Any]) -> str:
    """Lines to write, each of which reads the content; nothing where there is none."""
    (x, y), said = _keys(content, read), {name: read[name] for name in "xy" if read.get(name)}
    shapes = _shapes(content)
    fields = {key: shape for key, shape in shapes.items() if len(shape) > 1 and _word(key.rpartition("/")[2]) != "time"}
    lines = _working(content, said, _of_pair(shapes, f"{x}+{y}".split("+"), "sample"))
    if fields and not lines:
        x, y = _likely(fields)
        lines = _working(content, {"x": x, "y": y}, _of_pair(fields, (x, y), "sample")) if x else []
        lines = lines if x and len(fields[x]) != len(fields[y]) else lines[:1]
    moving = [key for key in fields if "time" in map(_word, content.dims.get(key, ()))]
    in_time = _working(content, {"y": "+".join(moving) or y}, _of_state(fields, y))
    such = [f"such as {' or '.join(option(**line) for line in lines)}"] if lines else []
    such += ["with both in one file, a field each"] if y and not x else []
    such += [f"for one state in time {option(**line, time_step=1)}" for line in in_time[:1]]
    return f"Say so, {', or '.join(such)}; {_HINT}." if such else ""


def check_whose(contents: Sequence[Content], read: Mapping[str, Any]) -> None:
    """MupError where files of arrays of one shape may be a sample each or hold many, which would be split row by row."""
    (x, y), first = _keys(contents[0], read), contents[0]
    said = {name: read[name] for name in "xy" if read.get(name)}
    if y is None:
        x, y = _likely(_shapes(first))
        said = {"x": x, "y": y}
    keys = f"{x}+{y}".split("+") if x else [y]
    shapes = [{key: tuple(content.arrays[key].shape) for key in keys if key in content.arrays} for content in contents]
    is_known = read.get("dims") is not None or any(_said(first, key, None) for key in keys)
    if is_known or len(shapes[0]) < len(set(keys)) or any(each != shapes[0] for each in shapes):
        return
    time = () if x else ("time",)
    each, many = (_working(first, said, _of_pair(shapes[0], keys, *lead, *time)) for lead in ((), ("sample",)))
    each = [line for line in each if not any("sample" in v.axes for part in _found(first, line) for v in part)]
    if each:
        held, (n, *inner) = ", ".join(f"{key} {shape}" for key, shape in shapes[0].items()), shapes[0][keys[-1]]
        # Of a grid with as many points on each axis all are the grid's.
        lines = " or ".join(option(**line) for line in (many[:1] if len(set(inner)) == 1 else many))
        otherwise = f", or where it has {n} of them {lines}" if many else ""
        raise MupError(
            f"{len(contents)} files such as {first.name} hold {held}: where a file is one sample say {option(**each[0])}"
            f"{otherwise}."
        )


def _working(content: Content, keys: Mapping[str, Any], ways: Sequence[Any]) -> list[dict[str, Any]]:
    """Of what might be said of the axes what reads the content, one way for each meaning; of words by key the first ones."""
    works: dict[Any, dict[str, Any]] = {}
    is_known = any(key in content.dims for key in (keys.get("y") or "").split("+"))  # by the file
    for line in [keys] * is_known + [{**keys, "dims": dims} for dims in ways]:
        with suppress(MupError):
            found = _found(content, line)
            _agreed(content.name, *found)
            works.setdefault(tuple(variable.axes for part in found for variable in part), dict(line))
    by_key = [line for line in works.values() if isinstance(line.get("dims"), Mapping)]
    return [line for line in works.values() if line not in by_key[1:]]


def _forms(axes: int) -> list[str]:
    """What so many axes may be: those of the grid, of which an array may lack some, or channels first or last and others."""
    spaces, fewer = (list(combinations("xyz", max(0, count))) for count in (axes, axes - 1))
    return [" ".join(words) for words in (*spaces, *(("channel", *f) for f in fewer), *((*f, "channel") for f in fewer))]


def _of_pair(shapes: Mapping[str, Sequence[int]], keys: Sequence[str], *lead: str) -> list[Any]:
    """What might be said of the axes of arrays, these first: words for all, or by key, the same for those of one shape."""
    found = {key: tuple(shapes[key]) for key in keys if key in shapes}
    ways = {shape: [" ".join((*lead, words)) for words in _forms(len(shape) - len(lead))] for shape in found.values()}
    by_shape = (dict(zip(ways, words, strict=True)) for words in product(*ways.values()))
    by_key = [{key: words[shape] for key, shape in found.items()} for words in by_shape]
    return [words for each in ways.values() for words in each] + (by_key if len(ways) > 1 else [])


def _of_state(shapes: Mapping[str, Sequence[int]], key: str | None) -> list[str]:
    """What might be said of the axes of a state in time: that comes last where another array has all axes but that one, or
    where it alone has another number of points.
    """
    shape = tuple(shapes.get(key or "", ()))
    *others, last = shape[1:] or (0,)
    is_odd = shape[:-1] in shapes.values() or (len(others) > 1 and len({*others}) == 1 and _LEAST <= last != others[0])
    forms = _forms(len(shape) - 2)
    first, after = [f"sample time {words}" for words in forms], [f"sample {words} time" for words in forms]
    return after + first if is_odd else first + after


def _array(content: Content, key: str) -> Any:
    """The array of a key, or those of a pattern, one a sample."""
    found = sorted(fnmatch.filter(content.arrays, key)) if "*" in key else [key]
    if not set(found) <= set(content.arrays) or not found:
        raise MupError(f"there is no {key!r}; {nearest(key, content.arrays)}")
    parts = [content.arrays[name] for name in found]
    if len({tuple(part.shape) for part in parts}) > 1:
        raise MupError(f"those of {key!r} have different shapes, so that they are not samples of one field.")
    return Stacked(parts) if "*" in key else parts[0]


def _said(content: Content, key: str, dims: Any) -> tuple[str, ...]:
    """Words for the axes of an array, the user's or the file's; () where there are none."""
    said = dims.get(key) if isinstance(dims, Mapping) else dims
    if said is not None:
        return tuple(said.replace(",", " ").split() if isinstance(said, str) else said)
    words = content.dims.get(key, ())
    return () if any(re.fullmatch(r"(phony_)?dim_\d+", word) for word in words) else words


def _variables(content: Content, arrays: Mapping[str, Any], said: Mapping[str, Sequence[str]]) -> dict[str, Variable]:
    """Arrays with what each axis is, from its word; one with fewer axes than words has no time, no channels, or numbers."""
    most, places, words = max(said.values(), key=len), dict(_USUAL), {}
    for key, array in arrays.items():
        own = tuple(said[key] or most)
        kept = [tuple(w for w in own if _word(w) not in left) for left in _ABSENT]
        words[key] = next((each for each in (*kept, *_NUMBERS) if len(each) == len(array.shape)), None)
        if words[key] is None:
            raise MupError(f"{key} has {len(array.shape)} axes, and the words for them are {' '.join(own)!r}.")
        meant = [_word(word) or word for word in words[key]]
        if any(meant.count(word) > 1 for word in meant if word != "channel"):
            raise MupError(f"two axes of {key} mean the same, {' '.join(words[key])!r}.")
        for word in map(str.lower, words[key]):
            places.setdefault(word, f"space{len(set(places.values()) & set(SPACES))}")
    if len(set(places.values())) > len(_ORDER):
        raise MupError("these are more than three axes of a grid.")
    found = {
        key: Variable(key, arrays[key], tuple(places[word.lower()] for word in own), _labels(content, own))
        for key, own in words.items()
    }
    points = {count for variable in found.values() for word, count in variable.sizes.items() if word in SPACES}
    for key, variable in found.items():
        if words[key] == _NUMBERS[-1] != tuple(said[key]) and variable.sizes["channel"] in points:
            raise MupError(
                f"{key} has as many values a sample as the grid has points on an axis, so that it may vary along that or be "
                "numbers beside the fields."
            )
    return found


def _labels(content: Content, words: Sequence[str]) -> tuple[str, ...]:
    """Names of channels, where the file has a coordinate that gives them."""
    own = [word for word in words if _word(word) == "channel" and content.is_axis(word)]
    return tuple(map(str, np.asarray(content.arrays[own[0]][:]))) if len(own) == 1 else ()


def _guessed(content: Content, arrays: Mapping[str, Any], made: Callable[..., Any], lead: tuple[str, ...]) -> Any:
    """Variables where no words are said: after samples (and times) all axes are the grid's, or channels come first or last.

    One of these must leave all fields one grid. Of a grid with as many points on each axis all axes are the grid's, and
    arrays that are joined are a channel each. Where an array may lack the last axes of the others, nothing is certain.
    """
    inner = max(0, max(len(array.shape) for array in arrays.values()) - len(lead))
    spaces = tuple("xyzw"[: inner - 1] if inner else "")
    fits: dict[Any, Any] = {}
    every = [(*lead, *"xyzw"[:inner]), (*lead, "channel", *spaces), (*lead, *spaces, "channel")]
    ways = [dict.fromkeys(arrays, words) for words in (every[:1] if len(arrays) > 2 else every)]
    lacking = {key: (*lead, *"xyzw")[: len(array.shape)] for key, array in arrays.items()}
    for words in (*ways, lacking):
        with suppress(MupError):
            found = made(words)
            fits.setdefault(tuple(v.axes for part in found for v in part), (found, _agreed(content.name, *found)[1], words))
    if not fits:
        what = f"no fields with as many samples each on one grid of one to three axes of {_LEAST} points or more"
        raise MupError(f"with {' and '.join(lead)} first they are {what}.")
    (found, grid, words), ranks = next(iter(fits.values())), {len(array.shape) for array in arrays.values()} - {1}
    is_one = len(fits) == 1 and words is not lacking
    if not is_one and (len(ranks) > 1 or len(set(grid)) > 1 or len(grid) < inner):
        raise MupError("which axes are the grid's, and which is that of the channels is not certain.")
    return found
