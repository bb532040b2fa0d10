"""What the axes of arrays without names may be: the readings that agree with all lengths and coordinates."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from xarray import Dataset, Variable

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.arrays import CHANNEL, SAMPLE, TIME, is_space, is_unnamed, usual_word
from neuralop_mup.lab.data.roles import LEAST, READY, Variables, option

MOST_CHANNELS = 16  # an axis without a name may be channels only up to this length
_SHOWN = 5  # readings in a message
_MANY = 10  # files of equal shapes that may be one sample each

Words = tuple[str, ...]


def only_reading(
    arrays: Variables, outputs: Sequence[str], lengths: Mapping[str, int], group: Sequence[Dataset], read: Mapping[str, Any]
) -> dict[str, Words]:
    """Return the words for the axes of each array in the only reading that agrees with all lengths.

    Samples come first. For a state in time, the first axis may also be that of the time.

    Parameters
    ----------
    arrays : mapping of str to Variable
    outputs : sequence of str
        Keys of the output.
    lengths : mapping of str to int
        Axis → points of its coordinate.
    group : sequence of Dataset
        All files that are joined. Each of many files with equal shapes may be one sample.
    read : mapping
        The options of the user.

    Raises
    ------
    MupError
        For no reading or several; the message lists them.
    """
    in_time = len(outputs) == len(arrays) or read.get("time_step") is not None
    one_each = len(group) >= _MANY and all(len({data[key].shape for data in group if key in data}) == 1 for key in arrays)
    leads: list[Words] = [(SAMPLE, TIME), (TIME,), (SAMPLE,), ()] if in_time else [(SAMPLE,), *[()] * one_each]
    shapes = {variable.shape: variable for variable in arrays.values()}  # arrays of one shape have the same axes
    ways = [dict.fromkeys(_ways(variable, leads)) for variable in shapes.values()]
    fitting: list[dict[str, Words]] = []
    agreeing: list[dict[str, Words]] = []
    for each in product(*ways):
        words = {key: dict(zip(shapes, each, strict=True))[variable.shape] for key, variable in arrays.items()}
        if sizes := _sizes(arrays, words, outputs, in_time):
            fitting.append(words)
            known = {word: n - sizes.get(word, -1) for word, n in lengths.items() if in_time or word != TIME}
            if all(more in (0, word == TIME) for word, more in known.items()):
                agreeing.append(words)
    found = agreeing or fitting
    # Arrays that are joined are a channel each, and arrays of one shape with equal axes are fields without channels.
    wide = {key: variable.shape[1:] for key, variable in arrays.items() if variable.ndim > 2}
    is_cube = len({points for shape in wide.values() for points in shape}) == len(set(wide.values())) == 1
    if (len(arrays) > 2 or is_cube) and not in_time and not one_each:
        found = [words for words in found if not any(CHANNEL in words[key] for key in wide)] or found
    if len(found) != 1:
        raise MupError(_question(found, arrays, read, in_time))
    return found[0]


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
    return (
        sizes
        if is_grid and has_all and len(pairs) - len(channels) == len(sizes) and max([0, *channels]) <= MOST_CHANNELS
        else {}
    )


def _question(found: Sequence[Mapping[str, Words]], arrays: Variables, read: Mapping[str, Any], in_time: bool) -> str:
    """Return the sentence that asks for a reading, with the lines to write."""
    lines: list[Any] = []
    for words in sorted(found, key=lambda words: len({frozenset(filter(is_space, own)) for own in words.values()})):
        texts = {key: " ".join(own) for key, own in words.items()}
        lines.append(texts if len(set(texts.values())) > 1 else next(iter(texts.values())))
    counts = [f"{key} has {variable.shape[0]} samples" for key, variable in reversed(arrays.items()) if variable.ndim > 1]
    what = f"its axes can be read in {len(found)} ways."
    if not found:
        what = f"no reading of its axes fits. If samples come first, {', '.join(counts)}. For different grids pass {READY}."
    first, *others = lines or ["sample time x y" if in_time else "sample x y"]
    given = {name: read[name] for name in "xy" if read.get(name)}
    more = "".join(f", or dims={line!r}" for line in others[: _SHOWN - 1])
    return (
        f"{what} Give a word for each axis, {option(**given, dims=first)}{more}; sample, time and channel have a meaning, "
        f"any other word is an axis of the grid, and each needs {LEAST} points or more."
    )
