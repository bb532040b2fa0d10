"""Interpretations of unnamed axes that agree with all lengths. If several agree, an error lists them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from xarray import Dataset, Variable

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.arrays import CHANNEL, SAMPLE, TIME, is_space, is_unnamed, usual_word
from neuralop_mup.lab.data.roles import LEAST, READY, Options, Variables, option

_MOST_CHANNELS = 16  # maximum length of an unnamed axis that may be the channel axis
_OFFERED = 5  # maximum number of interpretations in a message
_MANY = 10  # minimum number of files with equal shapes that may be one sample each
#: Possible names for the axes of an array, by their number, for a suggestion.
_EXAMPLES = ("", "sample", "sample x", "sample x y", "sample x y channel", "sample time x y channel")

Words = tuple[str, ...]
Reading = Mapping[str, Words]  # the axis names of each array


def only_reading(
    arrays: Variables, outputs: Sequence[str], lengths: Mapping[str, int], group: Sequence[Dataset], read: Options
) -> Reading:
    """Return the axis names of each array in the only interpretation that agrees with all lengths.

    The sample axis comes first. For a state that evolves in time, the first axis may also be time. An output with a separate
    input has a time axis only if there are as many times.

    Parameters
    ----------
    arrays : mapping of str to Variable
    outputs : sequence of str
        Keys of the output.
    lengths : mapping of str to int
        Number of points in the coordinate of each axis.
    group : sequence of Dataset
        All files that are joined. If there are many files with equal shapes, each may be one sample.
    read : mapping
        Options passed by the user.

    Raises
    ------
    MupError
        If there is no interpretation or more than one. The message lists them.
    """
    in_time = len(outputs) == len(arrays) or read.get("time_step") is not None
    one_each = len(group) >= _MANY and all(len({data[key].shape for data in group if key in data}) == 1 for key in arrays)
    leads: list[Words] = [(SAMPLE, TIME), (TIME,), (SAMPLE,), ()] if in_time else [(SAMPLE,), *[()] * one_each]
    if TIME in lengths and not in_time:
        leads.insert(0, (SAMPLE, TIME))
    shapes = {variable.shape: variable for variable in arrays.values()}  # arrays of equal shape have the same axes
    ways = [dict.fromkeys(_ways(variable, leads, in_time and bool(lengths))) for variable in shapes.values()]
    fitting: list[Reading] = []
    agreeing: list[Reading] = []
    for each in product(*ways):
        words = {key: dict(zip(shapes, each, strict=True))[variable.shape] for key, variable in arrays.items()}
        if sizes := _sizes(arrays, words, outputs, in_time):
            if in_time or TIME not in sizes:
                fitting.append(words)
            known = [word for word in lengths if in_time or TIME in sizes or word != TIME]
            if all(lengths[word] - sizes.get(word, -1) in (0, word == TIME) for word in known):
                agreeing.append(words)
    found = agreeing or fitting
    if not agreeing and (certain := _by_lengths(arrays, outputs, lengths, in_time)):
        is_other = len(found) == 1 and _roles(found[0]) != _roles(certain)
        found = [certain, *found[:is_other]]
    # Joined arrays each become one channel. Arrays of the same shape with axes of equal length are fields without channels.
    wide = {key: variable.shape[1:] for key, variable in arrays.items() if variable.ndim > 2}
    is_cube = len({points for shape in wide.values() for points in shape}) == len(set(wide.values())) == 1
    if (len(arrays) > 2 or is_cube) and not in_time and not one_each:
        found = [words for words in found if not any(CHANNEL in words[key] for key in wide)] or found
    found = [_named_by_lengths(words, arrays, lengths) for words in found]
    if len(found) == 1 and not in_time and (missing := _missing_axes(found[0], arrays, lengths)):
        found += [{key: tuple(TIME if w in missing else w for w in own) for key, own in found[0].items()}]
    if len(found) != 1:
        raise MupError(_question(found, arrays, read))
    words = found[0][outputs[0]]
    if one_each and words[0] == TIME and TIME not in lengths and is_unnamed(str(arrays[outputs[0]].dims[0])):
        raise MupError(
            f"If each of the {len(group)} files is a trajectory with time as its first axis, pass "
            f"{option(dims=' '.join(words))}. If each is a single time step, pass {option(join='time')}."
        )
    return found[0]


def _grid_sizes(words: Reading, arrays: Variables) -> dict[str, int]:
    """Return the number of points along each axis of the grid."""
    return {word: n for key, own in words.items() for word, n in zip(own, arrays[key].shape, strict=True) if is_space(word)}


def _missing_axes(words: Reading, arrays: Variables, lengths: Mapping[str, int]) -> set[str]:
    """Return the grid axes that have no coordinate and that only some fields have. In an output, this may be time."""
    grids = [own for own in words.values() if any(map(is_space, own))]
    unknown = {word for word, n in _grid_sizes(words, arrays).items() if lengths.get(word) != n}
    return {word for word in unknown if not all(word in own for own in grids)}


def _named_by_lengths(words: Reading, arrays: Variables, lengths: Mapping[str, int]) -> Reading:
    """Give each grid axis the name of the coordinate that has its length, if there is only one."""
    sizes = _grid_sizes(words, arrays)
    of_space = {word: n for word, n in lengths.items() if is_space(word)}
    single = {n: word for word, n in of_space.items() if [*of_space.values()].count(n) == [*sizes.values()].count(n) == 1}
    names = {word: single[n] for word, n in sizes.items() if n in single}
    unused = [word for word in "xyz" if word not in names.values()]
    for word in sorted(sizes.keys() - names.keys(), key=lambda word: (word not in unused, word)):
        names[word] = word if word in unused else unused[0]
        unused.remove(names[word])
    return {key: tuple(names.get(word, word) for word in own) for key, own in words.items()}


def _by_lengths(arrays: Variables, outputs: Sequence[str], lengths: Mapping[str, int], in_time: bool) -> Reading | None:
    """Return the axis names of all arrays if coordinates of different lengths identify all axes but that of the samples."""
    axes = {n: word for word, n in lengths.items()}
    found = {}
    for key, variable in arrays.items():
        words = [
            axes.get(n, "" if axis else SAMPLE) if is_unnamed(dim) else usual_word(dim)
            for axis, (dim, n) in enumerate(variable.sizes.items())
        ]
        is_whole = key not in outputs or set(lengths) <= set(words)
        has_time = TIME in words if in_time else TIME not in words or SAMPLE in words
        is_distinct = len(set(words)) == len(words) and len(axes) == len(lengths) > 0
        if "" in words or not (is_distinct and is_whole and has_time):
            return None
        found[key] = tuple(words)
    return found


def _roles(words: Reading) -> list[Words]:
    """Return the axis names of each array, with the same name for all axes of the grid."""
    return [tuple("x" if is_space(word) else word for word in own) for own in words.values()]


def _ways(variable: Variable, leads: Sequence[Words], time_last: bool) -> Iterator[Words]:
    """Yield the possible names for the axes of an array. A first axis of length 1 may be a channel or a sample.

    ``time_last`` includes a single trajectory with its time axis last. Only the lengths of coordinates can confirm it.
    """
    names = [None if is_unnamed(dim) else usual_word(dim) for dim in variable.dims]
    n = variable.ndim
    if n > 1 and variable.shape[0] == 1 and names[0] is None:
        yield from ((CHANNEL, *words) for words in _ways(variable[0], leads, time_last) if CHANNEL not in words)
        if () in leads:
            return  # a single sample and a single channel give the same data
    ways = [(*lead, *words) for lead in leads for words in _grid_words(n - len(lead))]
    if leads[0][-1] == TIME and names[:1] == [None]:
        ways += [(SAMPLE, *words, TIME) for words in _grid_words(n - 2)]
        ways += [(*words, TIME) for words in _grid_words(n - 1) if time_last]
    for way in (*ways, (SAMPLE,), (SAMPLE, CHANNEL)):
        if len(way) == n and all(name in (None, word) for name, word in zip(names, way, strict=True)):
            yield way


def _grid_words(n_axes: int) -> Iterator[Words]:
    """Yield the possible names of ``n_axes`` axes: a subset of the grid axes, or the grid with channels first or last."""
    yield from combinations("xyz", max(0, n_axes))
    yield (CHANNEL, *"xyz"[: n_axes - 1])
    yield (*"xyz"[: n_axes - 1], CHANNEL)


def _sizes(arrays: Variables, words: Reading, outputs: Sequence[str], in_time: bool) -> dict[str, int]:
    """Return the length of each axis if an interpretation gives all fields the same grid and times, else an empty dict."""
    pairs = {pair for key, own in words.items() for pair in zip(own, arrays[key].shape, strict=True)}
    channels = [points for word, points in pairs if word == CHANNEL]
    sizes = {word: points for word, points in pairs if word != CHANNEL}
    grid = [points for word, points in sizes.items() if is_space(word)]
    wanted = set(sizes) | ({TIME} if in_time else set())
    is_grid = sorted(filter(is_space, sizes)) == list("xyz"[: max(1, len(grid))]) and min(grid) >= LEAST
    has_all = all(set(words[key]) - {CHANNEL} == wanted for key in outputs)
    return (
        sizes
        if is_grid and has_all and len(pairs) - len(channels) == len(sizes) and max([0, *channels]) <= _MOST_CHANNELS
        else {}
    )


def _question(found: Sequence[Reading], arrays: Variables, read: Options) -> str:
    """Return a message that asks for the axis names and suggests the options to pass."""

    def rank(words: Reading) -> tuple[int, int]:
        """Return the number of different axes, without channels, and of arrays with channels. Few come first."""
        axes = {frozenset(own) - {CHANNEL} for own in words.values()}
        return len(axes), sum(CHANNEL in own for own in words.values())

    lines: list[Any] = []
    for words in sorted(found, key=rank):
        texts = {key: " ".join(own) for key, own in words.items()}
        lines.append(texts if len(set(texts.values())) > 1 else min(texts.values()))
    counts = [f"{key} has {variable.shape[0]} samples" for key, variable in reversed(arrays.items()) if variable.ndim > 1]
    what = f"Its axes can be interpreted in {len(found)} ways."
    if not found:
        what = (
            f"No interpretation of its axes fits all lengths. If the sample axis is first, {', '.join(counts)}. For fields "
            f"on different grids, pass {READY}."
        )
        lines = [{key: "channel x" if v.shape[:1] == (1,) else _EXAMPLES[min(v.ndim, 5)] for key, v in arrays.items()}]
    first, *others = lines
    given = {name: read[name] for name in "xy" if read.get(name)}
    more = "".join(f", or dims={line!r}" for line in others[: _OFFERED - 1])
    return (
        f"{what} Name each axis with {option(**given, dims=first)}{more}. The names sample, time and channel have a special "
        f"meaning. Any other name is an axis of the grid, which must have at least {LEAST} points."
    )
