"""Formats of the field, known by what their specifications say, so that nobody has to name keys and axes.

A format looks at what a file holds and gives its fields, or nothing where the file is of another kind.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems.fields import SPACES, Source, Variable, source_of
from neuralop_mup.lab.problems.readers import Content, Stacked, read_file

_LETTERS = {"b": "sample", "t": "time", "c": "channel", "1": "channel", **dict(zip("xyz", SPACES, strict=True))}


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
    """Arrays by their keys, with a letter an axis: b samples, t time, c and 1 channels, x, y and z the grid.

    Attributes
    ----------
    inputs, outputs : dict
        Key → axes. One letter stands for as many points wherever it is, "1" for one point, and c for any number.
    beside : dict, default {}
        Key → axes of what else there is in a file of this layout; no letters for any axes.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    beside: Mapping[str, str] = field(default_factory=dict)

    def fields(self, arrays: Mapping[str, Any]) -> Fields | None:
        """Those of a file that has these keys with these axes."""
        axes = {**self.inputs, **self.outputs, **self.beside}
        if not set(axes) <= set(arrays):
            return None
        points: dict[str, set[int]] = {"1": {1}}
        for key, letters in axes.items():
            if letters and len(letters) != len(arrays[key].shape):
                return None
            for letter, count in zip(letters, arrays[key].shape, strict=False):
                points.setdefault(letter, set()).add(count)
        if any(len(counts) > 1 for letter, counts in points.items() if letter != "c"):
            return None
        inputs, outputs = (
            [Variable(key, arrays[key], tuple(_LETTERS[letter] for letter in part[key])) for key in part]
            for part in (self.inputs, self.outputs)
        )
        least = len(points.keys() & set("bxyz"))  # axes of a field that is constant in time
        wide = [key for key, array in arrays.items() if len(array.shape) >= least and array.shape[0] > 1]
        left = [key for key in wide if key not in (*self.inputs, *self.outputs, *"txyz")]
        return Fields(inputs, outputs, left=left)


def _first(layouts: Sequence[Layout], arrays: Mapping[str, Any]) -> Fields | None:
    return next((found for layout in layouts if (found := layout.fields(arrays))), None)


def _number(name: str, values: Any) -> Variable:
    """A parameter of the equation: an array without axes, or with one number a sample."""
    values = np.asarray(values, np.float32)
    return Variable(name, values, ("sample",) * values.ndim)


def _the_well(content: Content) -> list[Fields]:
    """As github.com/PolymathicAI/the_well specifies: groups of scalar, vector and tensor fields, with absent axes."""
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
    numbers, left = [], []
    for name in content.attrs.get("scalars", {}).get("field_names", ()):
        says, values = content.attrs[f"scalars/{name}"], np.ravel(content.arrays[f"scalars/{name}"][()])
        if says["time_varying"]:
            left.append(name)  # it may be a result of what is to be predicted
        else:
            numbers.append(_number(name, values if says["sample_varying"] else values[0]))
    return [Fields(constant, moving, numbers, left=left)]


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
    Layout({}, {"tensor": "btx"}, {"x-coordinate": ""}),
    Layout({"nu": "bxy"}, {"tensor": "b1xy"}, {"x-coordinate": "", "y-coordinate": ""}),
    *(Layout({}, dict.fromkeys(_FLUID[: 2 + n], "bt" + "xyz"[:n]), {"x-coordinate": ""}) for n in (1, 2, 3)),
    Layout({"force": "bxyc"}, {"velocity": "btxyc", "particles": "btxy1"}, {"t": "bt"}),
    Layout({}, {"data": "btxc"}, {"grid/t": "", "grid/x": ""}),
    Layout({}, {"data": "btxyc"}, {"grid/t": "", "grid/x": "", "grid/y": ""}),
)


def _pdebench(content: Content) -> list[Fields]:
    """pdebench/PDEBench: arrays of samples, or a group a sample; parameters of the equation are attributes."""
    arrays = content.arrays
    if groups := sorted(key for key in arrays if re.fullmatch(r"\d+/data", key)):
        first = groups[0].removesuffix("data")
        inside = {key.removeprefix(first): array for key, array in arrays.items() if key.startswith(first)}
        arrays = {**inside, "data": Stacked([arrays[key] for key in groups])}
    fields, attrs = _first(_PDEBENCH, arrays), content.attrs.get("", {})
    numbers = [_number(name, attrs[name]) for name in ("beta", "Nu", "rho", "eta", "zeta", "M") if name in attrs]
    return [replace(fields, numbers=numbers)] if fields and not fields.left else []


_PDEARENA = (
    Layout({}, dict.fromkeys(("u", "vx", "vy"), "btxy")),
    Layout({}, dict.fromkeys(("d_field", "h_field"), "btxyzc")),
)


def _pdearena(content: Content) -> list[Fields]:
    """pdearena/pdearena: groups train, valid and test, with parameters of the equation for each sample."""
    found = []
    for group, split in (("train", "train"), ("valid", "val"), ("test", "test")):
        inside = {
            key.removeprefix(f"{group}/"): array for key, array in content.arrays.items() if key.startswith(f"{group}/")
        }
        scalar = [Layout({}, {key: "btx"}, {"dt": "b", "dx": "b"}) for key in inside if key.startswith("pde_")]
        if fields := _first((*_PDEARENA, *scalar), inside):
            given = [name for name in ("buo_y", "v", "dt", "dx", "dy") if name in inside and len(inside[name].shape) == 1]
            found.append(replace(fields, numbers=[_number(name, inside[name][:]) for name in given], split=split))
    return found


_FIRST_FNO = (
    Layout({"a": "bx"}, {"u": "bx"}),
    Layout({"coeff": "bxy"}, {"sol": "bxy"}),
    Layout({}, {"u": "bxyt"}, {"a": "bxy", "t": ""}),
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


def known(files: Mapping[str, Sequence[str]], read: Mapping[str, Any]) -> dict[str, list[Source]] | None:
    """Sources of files of a format that has a name, by split.

    Parameters
    ----------
    files : mapping
        What they are for, "all" (to be split), "train", "val" or "test", to their paths.
    read : mapping
        ``crop``: as in OwnData. With ``x``, ``y`` or ``dims`` the user says what is what, and no format is looked for.

    Returns
    -------
    dict or None
        Split, "all" if it is not said, to sources with their ``format``; None where the files are of no known format.

    Raises
    ------
    MupError
        For files that do not agree, and for one that is not of the first one's format.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.io import savemat
    >>> from neuralop_mup.lab.problems.formats import known
    >>> savemat("darcy.mat", {"coeff": np.random.rand(20, 8, 8), "sol": np.random.rand(20, 8, 8)})
    >>> source = known({"all": ["darcy.mat"]}, {})["all"][0]
    >>> source.format, source.labels(0), source.labels(1), source.n
    ('FNO paper', ('coeff',), ('sol',), 20)
    """
    if any(read.get(word) is not None for word in ("x", "y", "dims")):
        return None
    name, found = None, []
    for split, file in [(split, file) for split, part in files.items() for file in part]:
        content = read_file(file)
        name = name or next((each for each in FORMATS if _fields(each, content)), None)
        if name is None:
            return None
        fields = _fields(name, content)
        if not fields:
            raise MupError(
                f"{file} is no file of {name}, as the first one is: take it out of the folder, name the files of the data "
                "alone, or say with x, y and dims which array is what."
            )
        found += [(each.split if each.split and split == "all" else split, file, each) for each in fields]
    values: dict[str, set[float]] = {}
    for number in (number for *_, each in found for number in each.numbers):
        values.setdefault(number.name, set()).update(number.array.ravel().tolist())
    sources: dict[str, list[Source]] = {}
    for split, file, each in found:
        # A parameter that is the same everywhere tells a model nothing.
        inputs = [*each.inputs, *(number for number in each.numbers if len(values[number.name]) > 1)]
        source = source_of(file, inputs, each.outputs, read.get("crop", False))
        told = f"{name}, without {', '.join(each.left)}" if each.left else name
        sources.setdefault(split, []).append(replace(source, format=told))
    return _own_test(sources["all"]) if name == "PDEBench" and set(sources) == {"all"} else sources


def _fields(name: str, content: Content) -> list[Fields]:
    try:
        return FORMATS[name](content)
    except KeyError as error:
        raise MupError(
            f"{content.name} is a file of {name}, but has no {error}, which is in the specification: write the file anew, "
            "or say with x, y and dims which array is what."
        ) from error


def _own_test(sources: Sequence[Source]) -> dict[str, list[Source]]:
    """PDEBench's own test part: of each array the first tenth, of samples that are groups the last."""
    parts: dict[str, list[Source]] = {"train": [], "test": []}
    for source in sources:
        if isinstance(source.outputs[0].array, Stacked):
            cuts = {"train": range(int(0.9 * source.n)), "test": range(int(0.9 * source.n), source.n)}
        else:
            cuts = {"train": range(int(0.1 * source.n), source.n), "test": range(int(0.1 * source.n))}
        told = f"{source.format}, which tests on samples {cuts['test'].start} to {cuts['test'].stop - 1}"
        for split, samples in cuts.items():
            parts[split] += [replace(source, start=samples.start, n=len(samples), format=told)] if samples else []
    return parts if all(parts.values()) else {"all": list(sources)}
