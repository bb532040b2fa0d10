"""Formats of the field, known by what their specifications say, so that nobody has to name keys and axes.

A format looks at what a file holds and gives its fields, or nothing where the file is of another kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.problems.fields import SPACES, Source, Variable, source_of
from neuralop_mup.lab.problems.readers import Content, Stacked, files_of, opened, read_file

_SPLITS = {"train": "train", "valid": "val", "val": "val", "test": "test"}  # folders, and groups of PDEArena
_LETTERS = {"b": "sample", "t": "time", "c": "channel", **dict(zip("xyz", SPACES, strict=True))}


@dataclass(frozen=True)
class Fields:
    """What a format finds in a file.

    Attributes
    ----------
    inputs, outputs : sequence of Variable
        As in :class:`~neuralop_mup.lab.problems.fields.Source`.
    numbers : sequence of Variable, default ()
        Parameters of the equation, one number or one a sample: inputs, too, where they are not the same everywhere.
    split : str, default ""
        "train", "val" or "test", where the file says which it is.
    left : sequence of str, default ()
        Keys of fields in the file that are neither input nor output.
    """

    inputs: Sequence[Variable]
    outputs: Sequence[Variable]
    numbers: Sequence[Variable] = ()
    split: str = ""
    left: Sequence[str] = ()


@dataclass(frozen=True)
class Layout:
    """Arrays by their keys, with a letter an axis: b samples, t time, c channels, x, y and z the grid.

    Attributes
    ----------
    inputs, outputs : dict
        Key → axes.
    beside : tuple of str
        Other keys that a file of this layout has.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    beside: tuple[str, ...] = ()

    def fields(self, arrays: Mapping[str, Any]) -> Fields | None:
        """Those of a file that has these keys, of these numbers of axes."""
        axes = {**self.inputs, **self.outputs}
        if not {*axes, *self.beside} <= set(arrays) or any(len(arrays[key].shape) != len(axes[key]) for key in axes):
            return None
        inputs, outputs = (
            [Variable(key, arrays[key], tuple(_LETTERS[letter] for letter in part[key])) for key in part]
            for part in (self.inputs, self.outputs)
        )
        grid = set("xyz").intersection(*axes.values())
        fields = [key for key, array in arrays.items() if len(array.shape) > len(grid) and array.shape[0] > 1]
        left = [key for key in fields if key not in (*axes, *"txyz")]
        return Fields(inputs, outputs, left=left)


def _first(layouts: Sequence[Layout], arrays: Mapping[str, Any]) -> Fields | None:
    return next((found for layout in layouts if (found := layout.fields(arrays))), None)


def _number(name: str, values: Any) -> Variable:
    """A parameter of the equation: an array without axes, or with one number a sample."""
    values = np.asarray(values, np.float32)
    return Variable(name, values, ("sample",) * values.ndim)


def _the_well(content: Content) -> list[Fields]:
    """PolymathicAI/the_well, docs/data_format.md: groups of scalar, vector and tensor fields, with absent axes."""
    root = content.attrs.get("", {})
    if not {"dataset_name", "grid_type", "n_spatial_dims"} <= set(root) or "dimensions" not in content.attrs:
        return []
    moving: list[Variable] = []
    constant: list[Variable] = []
    for order in range(3):
        for name in content.attrs[f"t{order}_fields"]["field_names"]:
            key = f"t{order}_fields/{name}"
            axes = _well_axes(content, key, order)
            variable = Variable(name, content.arrays[key], axes)
            labels = tuple(map("".join, product(content.attrs["dimensions"]["spatial_dims"], repeat=order)))
            if len(labels) == variable.sizes["channel"]:
                variable = replace(variable, labels=labels)
            (moving if "time" in axes else constant).append(variable)
    if not moving:
        raise MupError(f"{content.name} has no field that varies in time, so that there is nothing to predict.")
    numbers = {name: _number(name, root[name]) for name in root.get("simulation_parameters", ())}
    left = []
    for name in content.attrs.get("scalars", {}).get("field_names", ()):
        says, values = content.attrs[f"scalars/{name}"], content.arrays[f"scalars/{name}"]
        if says["time_varying"]:
            left.append(name)  # it may be a result of what is to be predicted
        else:
            values = np.ravel(values[()])
            numbers[name] = _number(name, values if says["sample_varying"] else values[0])
    return [Fields(constant, moving, list(numbers.values()), left=left)]


def _well_axes(content: Content, key: str, order: int) -> tuple[str, ...]:
    """The axes of a field, from what it says of itself.

    Axes along which it does not vary are absent in the specification, and have one point where WellDataset reads them;
    tensors have two axes or one for both.
    """
    says, shape = content.attrs[key], content.arrays[key].shape
    lead = [word for word in ("sample", "time") if says[f"{word}_varying"]]
    varying = [space for space, varies in zip(SPACES, says["dim_varying"], strict=False) if varies]
    for spaces, tensor in product((SPACES[: len(says["dim_varying"])], varying), (order, min(order, 1))):
        axes = (*lead, *spaces, *("channel",) * tensor)
        if len(axes) == len(shape) and all(
            points == 1 for word, points in zip(axes, shape, strict=True) if word in SPACES and word not in varying
        ):
            return axes
    raise MupError(
        f"{key} in {content.name} has the shape {tuple(shape)}, and says of itself that it varies along "
        f"{', '.join([*lead, *varying])}, as a field of order {order}: write one of the two anew."
    )


_FLUID = ("density", "pressure", "Vx", "Vy", "Vz")
_PDEBENCH = (
    Layout({}, {"tensor": "btx"}, ("x-coordinate",)),
    Layout({"nu": "bxy"}, {"tensor": "bcxy"}, ("x-coordinate", "y-coordinate")),
    *(Layout({}, dict.fromkeys(_FLUID[: 2 + n], "bt" + "xyz"[:n]), ("x-coordinate",)) for n in (1, 2, 3)),
    Layout({"force": "bxyc"}, {"velocity": "btxyc", "particles": "btxyc"}, ("t",)),
    Layout({}, {"data": "btxc"}, ("grid/t", "grid/x")),
    Layout({}, {"data": "btxyc"}, ("grid/t", "grid/x", "grid/y")),
)


def _pdebench(content: Content) -> list[Fields]:
    """pdebench/PDEBench: arrays of samples, or a group a sample; parameters of the equation are attributes."""
    arrays = content.arrays
    if groups := sorted(key for key in arrays if re.fullmatch(r"\d+/data", key)):
        parts = tuple(arrays[key] for key in groups)
        odd = [key for key, part in zip(groups, parts, strict=True) if part.shape != parts[0].shape]
        if odd:
            raise MupError(
                f"{odd[0]} in {content.name} has the shape {arrays[odd[0]].shape}, and {groups[0]} {parts[0].shape}: "
                "samples of one file must agree."
            )
        first = groups[0].removesuffix("data")
        inside = {key.removeprefix(first): array for key, array in arrays.items() if key.startswith(first)}
        arrays = {**inside, "data": Stacked(parts)}
    fields, attrs = _first(_PDEBENCH, arrays), content.attrs.get("", {})
    numbers = [_number(name, attrs[name]) for name in ("beta", "Nu", "rho", "eta", "zeta", "M") if name in attrs]
    return [replace(fields, numbers=numbers)] if fields else []


_PDEARENA = (
    Layout({}, dict.fromkeys(("u", "vx", "vy"), "btxy")),
    Layout({}, dict.fromkeys(("d_field", "h_field"), "btxyzc")),
)


def _pdearena(content: Content) -> list[Fields]:
    """pdearena/pdearena: groups train, valid and test, with parameters of the equation for each sample."""
    found = []
    for group, split in _SPLITS.items():
        inside = {
            key.removeprefix(f"{group}/"): array for key, array in content.arrays.items() if key.startswith(f"{group}/")
        }
        scalar = [Layout({}, {key: "btx"}, ("dt", "dx")) for key in inside if key.startswith("pde_")]
        if fields := _first((*_PDEARENA, *scalar), inside):
            given = [name for name in ("buo_y", "v", "dt", "dx", "dy") if name in inside and len(inside[name].shape) == 1]
            found.append(replace(fields, numbers=[_number(name, inside[name][:]) for name in given], split=split))
    return found


_FIRST_FNO = (
    Layout({"a": "bx"}, {"u": "bx"}),
    Layout({"coeff": "bxy"}, {"sol": "bxy"}),
    Layout({}, {"u": "bxyt"}, ("a", "t")),
)


def _first_fno(content: Content) -> list[Fields]:
    """Data of arXiv:2010.08895: Burgers, Darcy, and Navier-Stokes with the time last and the initial state besides."""
    fields = _first(_FIRST_FNO, content.arrays) if Path(content.name).suffix == ".mat" else None
    return [fields] if fields else []


#: Name → function from what a file holds to its fields, one entry a split in the file; none if it is of another kind.
FORMATS: dict[str, Callable[[Content], list[Fields]]] = {
    "The Well": _the_well,
    "PDEBench": _pdebench,
    "PDEArena": _pdearena,
    "FNO paper": _first_fno,
}


@dataclass(frozen=True)
class Rows:
    """Some of the samples of an array, whose first axis they are."""

    array: Any
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, ...]:
        """With fewer samples."""
        return (self.stop - self.start, *self.array.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """As of all."""
        return self.array.dtype

    @contextmanager
    def open(self) -> Iterator[Rows]:
        """The same with its file open."""
        with opened(self.array) as array:
            yield replace(self, array=array)

    def __getitem__(self, index: tuple[Any, ...]) -> np.ndarray:
        first, *inside = index
        return np.asarray(self.array[(slice(*(n + self.start for n in first.indices(len(self))[:2])), *inside)])

    def __len__(self) -> int:
        return self.stop - self.start


def files_below(path: str | Path) -> list[str]:
    """The files that are meant: of a folder those in it, and in folders of splits below it, ``data/train`` or ``train``."""
    inner = [Path(path, top, split) for top in (".", "data") for split in _SPLITS]
    return [*files_of(path), *files_of(place for place in inner if place.is_dir())]


def known(paths: Sequence[Any] | Mapping[str, Sequence[Any]], read: Mapping[str, Any]) -> dict[str, list[Source]] | None:
    """Sources of files of a format that has a name, by split.

    Parameters
    ----------
    paths : sequence of path or mapping
        Files and folders, also such that hold a folder for each split; or such by what they are for: "all" (to be split),
        "train", "val", "test".
    read : mapping
        ``format``: a name in ``FORMATS``, where another would be wrong. ``crop``: as in OwnData. With ``x``, ``y``, ``dims``
        or ``channels`` the user says what is what, and no format is looked for.

    Returns
    -------
    dict or None
        Split, "all" if it is not said, to sources with their ``format``; None where the files are of no known format.

    Raises
    ------
    MupError
        If they are not of the format that is given, and for files that do not agree.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.io import savemat
    >>> from neuralop_mup.lab.problems.formats import known
    >>> savemat("darcy.mat", {"coeff": np.random.rand(20, 8, 8), "sol": np.random.rand(20, 8, 8)})
    >>> source = known(["darcy.mat"], {})["all"][0]
    >>> source.format, source.labels(0), source.labels(1), source.n
    ('FNO paper', ('coeff',), ('sol',), 20)
    """
    wanted = read.get("format")
    if wanted is None and any(read.get(word) is not None for word in ("x", "y", "dims", "channels")):
        return None
    if wanted not in (None, *FORMATS):
        raise MupError(f"There is no format {wanted!r}; {nearest(str(wanted), FORMATS)}")
    parts = paths if isinstance(paths, Mapping) else {"all": paths}
    files = [(part, file) for part, given in parts.items() for path in given for file in files_below(path)]
    name, found = wanted, []
    for part, file in files:
        content = read_file(file)
        name = name or next((each for each in FORMATS if _fields(each, content)), None)
        if name is None:
            return None
        fields = _fields(name, content)
        if not fields:
            raise MupError(
                f"{file} is no file of {name}, {'which format= asks for' if wanted else f'as {files[0][1]} is'}: take it out "
                "of the folder, name the files of the data alone, or say with x, y and dims which array is what."
            )
        found += [(_split(part, file, each), file, each) for each in fields]
    if name is None:
        return None
    numbers = [number for *_, each in found for number in each.numbers]
    values = {number.name: {float(v) for n in numbers if n.name == number.name for v in n.array.flat} for number in numbers}
    sources: dict[str, list[Source]] = {}
    for split, file, each in found:
        # A parameter that is the same everywhere tells a model nothing.
        inputs = [*each.inputs, *(number for number in each.numbers if len(values[number.name]) > 1)]
        source = source_of(file, inputs, each.outputs, read.get("crop", False))
        told = f"{name}, without {', '.join(each.left)}" if each.left else name
        sources.setdefault(split, []).append(replace(source, format=told))
    _check_alike([source for group in sources.values() for source in group])
    return _own_test(sources["all"]) if name == "PDEBench" and set(sources) == {"all"} else sources


def _fields(name: str, content: Content) -> list[Fields]:
    try:
        return FORMATS[name](content)
    except KeyError as error:
        raise MupError(
            f"{content.name} is a file of {name}, but has no {error}, which is in the specification: write the file anew, "
            "or say with x, y and dims which array is what."
        ) from error


def _split(part: str, file: str, fields: Fields) -> str:
    """What is said of the files, by the file itself, or by the folder that it is in."""
    return part if part != "all" else fields.split or _SPLITS.get(Path(file).parent.name, "all")


def _check_alike(sources: Sequence[Source]) -> None:
    """Raise MupError for channels in another order, or another grid."""
    texts = [
        f"{', '.join(source.labels(0)) or 'nothing besides'} → {', '.join(source.labels(1))} on "
        f"{'×'.join(map(str, source.grid))} points"
        for source in sources
    ]
    for source, text in zip(sources, texts, strict=True):
        if text != texts[0]:
            raise MupError(
                f"{source.file} holds {text}, but {sources[0].file} holds {texts[0]}: files that are joined must agree."
            )


def _own_test(sources: Sequence[Source]) -> dict[str, list[Source]]:
    """PDEBench's own test part: of each array the first tenth, of samples that are groups the last."""
    parts: dict[str, list[Source]] = {"train": [], "test": []}
    for source in sources:
        grouped = isinstance(source.outputs[0].array, Stacked)
        cut = int(0.9 * source.n) if grouped else int(0.1 * source.n)
        for split, start, stop in zip(
            ("train", "test") if grouped else ("test", "train"), (0, cut), (cut, source.n), strict=True
        ):
            if start < stop:
                parts[split].append(_some(source, start, stop))
    return parts if all(parts.values()) else {"all": list(sources)}


def _some(source: Source, start: int, stop: int) -> Source:
    """Some of the samples."""
    inputs, outputs = (
        tuple(replace(v, array=Rows(v.array, start, stop)) if "sample" in v.axes else v for v in part)
        for part in (source.inputs, source.outputs)
    )
    return replace(source, inputs=inputs, outputs=outputs, n=stop - start)
