"""Formats of the field, recognised by what their specifications say, so that nobody has to name keys and axes.

A format looks at what a file holds and returns its fields, or nothing where the file is of another kind.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import xarray

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.arrays import lazy
from neuralop_mup.lab.data.axes import assemble, field_dims, fields_of
from neuralop_mup.lab.data.files import SPLIT_WORDS
from neuralop_mup.lab.data.names import CHANNEL, SAMPLE, TIME

_SCALARS = "scalars"  # attribute: the names of the parameters of the equation
_PARAMETERS = ("beta", "Nu", "rho", "eta", "zeta", "M")  # of PDEBench's files


@dataclass(frozen=True)
class Layout:
    """Arrays by their keys, with a word for each axis.

    Attributes
    ----------
    outputs, inputs : mapping
        Key → words. One word has as many points wherever it is, "one" has one point, and channels have any number.
    coords : mapping
        Axis → key of its coordinate; the file must have it.
    """

    outputs: Mapping[str, str]
    inputs: Mapping[str, str] = field(default_factory=dict)
    coords: Mapping[str, str] = field(default_factory=dict)

    def read(self, data: xarray.Dataset) -> xarray.Dataset | None:
        """Return the fields of a file that has these keys with these axes, and None for another file."""
        words = {key: text.split() for key, text in (self.inputs | self.outputs).items()}
        if not {*words, *self.coords.values()} <= set(data.variables):
            return None
        sizes: dict[str, set[int]] = {"one": {1}}
        for key, own in words.items():
            if len(own) != data[key].ndim:
                return None
            for word, points in zip(own, data[key].shape, strict=True):
                sizes.setdefault(word, set()).add(points)
        if any(len(points) > 1 for word, points in sizes.items() if word != CHANNEL):
            return None
        coords = {axis: data[key].values.ravel() for axis, key in self.coords.items()}
        if any(len(values) not in (n := max(sizes[axis]), n + (axis == TIME)) for axis, values in coords.items()):
            return None
        made = {}
        for key, own in words.items():
            dims = field_dims([CHANNEL if word == "one" else word for word in own], key)
            made[f"{'output' if key in self.outputs else 'input'}:{key}"] = lazy(data[key].variable, dims)
        least = len(sizes.keys() & {SAMPLE, *"xyz"})  # axes of a field that is constant in time
        wide = [key for key, values in data.variables.items() if values.ndim >= least and values.shape[0] > 1]
        left = [str(key) for key in wide if key not in (*words, *self.coords.values(), *"txyz")]
        return assemble(data.attrs["file"], made, coords, left=left)


def _first(layouts: Sequence[Layout], data: xarray.Dataset) -> xarray.Dataset | None:
    return next((found for layout in layouts if (found := layout.read(data)) is not None), None)


def with_scalars(data: xarray.Dataset, values: Mapping[str, Any]) -> xarray.Dataset:
    """Add numbers, one or one a sample, as inputs."""
    made = {}
    for name, numbers in values.items():
        numbers = np.asarray(numbers, np.float32)
        made[f"input:{name}"] = xarray.Variable((SAMPLE,) * numbers.ndim, numbers)
    return data.assign(made).assign_attrs({_SCALARS: [*data.attrs.get(_SCALARS, ()), *made]})


# The Well


def _the_well(data: xarray.Dataset) -> list[xarray.Dataset]:
    """Read as github.com/PolymathicAI/the_well specifies: groups of scalar, vector and tensor fields, with absent axes."""
    attrs, root = data.attrs, data.attrs.get("", {})
    if not {"dataset_name", "grid_type", "n_spatial_dims"} <= set(root) or "dimensions" not in attrs:
        return []
    spaces = list(map(str, attrs["dimensions"]["spatial_dims"]))
    fields: dict[str, xarray.Variable] = {}
    for order in range(3):
        for name in attrs[f"t{order}_fields"]["field_names"]:
            variable = _well_field(data, name, order, spaces)
            fields[f"{'output' if TIME in variable.dims else 'input'}:{name}"] = variable
    if not any(name.startswith("output:") for name in fields):
        raise MupError(f"{attrs['file']} has no field that varies in time, so that there is nothing to predict.")
    names = attrs.get("scalars", {}).get("field_names", ())
    says = {name: data[f"scalars/{name}"] for name in names}
    varying = [name for name in names if says[name].attrs["time_varying"]]  # these may be results of the prediction
    numbers = {name: says[name].values.ravel() for name in names if name not in varying}
    scalars = {name: values if says[name].attrs["sample_varying"] else values[0] for name, values in numbers.items()}
    keys = {axis: f"dimensions/{axis}" for axis in (TIME, *spaces)}
    coords = {axis: data[key].values.ravel() for axis, key in keys.items() if key in data.variables}
    return [with_scalars(assemble(attrs["file"], fields, coords, left=varying), scalars)]


def _well_field(data: xarray.Dataset, name: str, order: int, spaces: Sequence[str]) -> xarray.Variable:
    """Return a field with its axes.

    The specification omits axes along which it does not vary, while WellDataset writes them with one point. Tensors have two
    axes or one for both.
    """
    variable = data[f"t{order}_fields/{name}"].variable
    says, shape = variable.attrs, variable.shape
    lead = [word for word in (SAMPLE, TIME) if says[f"{word}_varying"]]
    varying = [space for space, varies in zip(spaces, says["dim_varying"], strict=True) if varies]
    labels = ["".join(each) for each in product(spaces, repeat=order)]
    for own, tensor in product((spaces, varying), (order, min(order, 1))):
        words = [*lead, *own, *[CHANNEL] * tensor]
        sizes = dict(zip(words, shape, strict=False))
        if len(words) == len(shape) and all(sizes[space] == 1 for space in set(own) - set(varying)):
            narrow = {space: 0 for space in set(own) - set(varying)}
            made = lazy(variable, field_dims(words, name), {"labels": labels if order else []})
            return made.isel(narrow)
    raise MupError(
        f"t{order}_fields/{name} in {data.attrs['file']} has the shape {shape}, and its attributes say that it varies along "
        f"{', '.join([*lead, *varying])}, as a field of order {order}: write one of the two again."
    )


# PDEBench, PDEArena and the first FNO paper

_FLUID = ("density", "pressure", "Vx", "Vy", "Vz")
_LINE, _PLANE = ({axis: f"{axis}-coordinate" for axis in axes} for axes in ("x", "xy"))
_PDEBENCH = (
    Layout({"tensor": "sample time x"}, coords=_LINE),
    Layout({"tensor": "sample one x y"}, {"nu": "sample x y"}, _PLANE),
    Layout(dict.fromkeys(_FLUID[:3], "sample time x"), coords=_LINE),
    Layout(dict.fromkeys(_FLUID[:4], "sample time x y"), coords=_LINE),
    Layout(dict.fromkeys(_FLUID, "sample time x y z"), coords=_LINE),
    Layout({"velocity": "sample time x y channel", "particles": "sample time x y one"}, {"force": "sample x y channel"}),
    Layout({"*/data": "sample time x channel"}, coords={"time": "*/grid/t", "x": "*/grid/x"}),
    Layout({"*/data": "sample time x y channel"}, coords={"time": "*/grid/t", "x": "*/grid/x", "y": "*/grid/y"}),
)


def _pdebench(data: xarray.Dataset) -> list[xarray.Dataset]:
    """Read pdebench/PDEBench: arrays of samples, or a group a sample; parameters of the equation are attributes."""
    found, attrs = _first(_PDEBENCH, data), data.attrs.get("", {})
    if found is None or found.left:
        return []
    at = {axis: f"{axis[0]}-coordinate" for axis in ("time", "y", "z")}
    coords = {axis: data[key].values[: found.sizes[axis]] for axis, key in at.items() if key in data and axis in found.dims}
    fitting = {axis: values for axis, values in coords.items() if len(values) == found.sizes[axis]}
    return [with_scalars(found.assign_coords(fitting), {name: attrs[name] for name in _PARAMETERS if name in attrs})]


_PDEARENA = (
    Layout(dict.fromkeys(("u", "vx", "vy"), "sample time x y")),
    Layout(dict.fromkeys(("d_field", "h_field"), "sample time x y z channel")),
)


def _pdearena(data: xarray.Dataset) -> list[xarray.Dataset]:
    """Read pdearena/pdearena: groups train, valid and test, with parameters of the equation for each sample."""
    found = []
    for group in ("train", "valid", "test"):
        keys = {str(key): str(key).removeprefix(f"{group}/") for key in data.variables if str(key).startswith(f"{group}/")}
        inner = data[list(keys)].rename(keys)
        lines = [Layout({key: "sample time x"}) for key in inner.variables if str(key).startswith("pde_")]
        made = _first((*_PDEARENA, *lines), inner)
        if made is not None:
            names = [name for name in ("buo_y", "v", "dt", "dx", "dy") if name in inner and inner[name].ndim == 1]
            scalars = {name: inner[name].values for name in names}
            found.append(with_scalars(made, scalars).assign_attrs(split=SPLIT_WORDS[group]))
    return found


_FIRST_FNO = (
    Layout({"u": "sample x"}, {"a": "sample x"}),
    Layout({"sol": "sample x y"}, {"coeff": "sample x y"}),
    Layout({"u": "sample x y time"}, coords={"time": "t"}),
)


def _first_fno(data: xarray.Dataset) -> list[xarray.Dataset]:
    """Read data of arXiv:2010.08895: Burgers, Darcy, and Navier–Stokes with time last and the initial state beside it."""
    found = _first(_FIRST_FNO, data) if data.attrs["file"].lower().endswith(".mat") else None
    if found is None or (TIME in found.sizes and not _is_flow(data)):
        return []
    return [found]


def _is_flow(data: xarray.Dataset) -> bool:
    shapes = [data[key].shape if key in data.variables else () for key in ("u", "a")]
    return shapes[0][:3] == shapes[1] and data["t"].size == shapes[0][3]


#: Name → function from what a file holds to its fields, one Dataset for each split in the file; none for other files.
FORMATS: dict[str, Callable[[xarray.Dataset], list[xarray.Dataset]]] = {
    "The Well": _the_well,
    "PDEBench": _pdebench,
    "PDEArena": _pdearena,
    "FNO paper": _first_fno,
}


def with_format(files: Mapping[str, Sequence[xarray.Dataset]], name: str | None = None) -> dict[str, list[xarray.Dataset]]:
    """Return the fields of files of a format that has a name, by split.

    Parameters
    ----------
    files : mapping
        "all", "train", "val" or "test" → what the files for it hold.

    Returns
    -------
    dict
        Split → Datasets with roles; empty where the files are of no known format.

    Raises
    ------
    MupError
        For files that do not agree, and for a file that is not of the first one's format.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.io import savemat
    >>> from neuralop_mup.lab.data.axes import labels_of
    >>> from neuralop_mup.lab.data.formats import with_format
    >>> from neuralop_mup.lab.data.readers import read_file
    >>> savemat("darcy.mat", {"coeff": np.random.rand(20, 8, 8), "sol": np.random.rand(20, 8, 8)})
    >>> data = with_format({"all": read_file("darcy.mat")})["all"][0]
    >>> data.format, labels_of(data, "input"), labels_of(data, "output")
    ('FNO paper', ('coeff',), ('sol',))
    """
    found: dict[str, list[xarray.Dataset]] = {}
    for split, raw in [(split, raw) for split, part in files.items() for raw in part]:
        name = name or next((each for each in FORMATS if _read_as(each, raw)), None)
        if name is None:
            return {}
        parts = _read_as(name, raw)
        if not parts:
            raise MupError(
                f"{raw.attrs['file']} is no file of {name}, as the first one is: take it out of the folder, name only the "
                "files of the data, or say with x, y and dims which array is what."
            )
        for part in parts:
            title = f"{name}, without {', '.join(part.left)}" if part.left else name
            own = part.attrs.get("split", split) if split == "all" else split
            found.setdefault(own, []).append(part.assign_attrs(format=title))
    found = _varying_scalars(found)
    return _own_test(found["all"]) if name == "PDEBench" and set(found) == {"all"} else found


def _read_as(name: str, data: xarray.Dataset) -> list[xarray.Dataset]:
    try:
        return FORMATS[name](data)
    except KeyError as error:
        raise MupError(
            f"{data.attrs['file']} is a file of {name}, but has no {error}, which is in the specification: write the file "
            "again, or say with x, y and dims which array is what."
        ) from error


def _varying_scalars(found: Mapping[str, Sequence[xarray.Dataset]]) -> dict[str, list[xarray.Dataset]]:
    """Leave out parameters of the equation that are equal in all samples: they tell a model nothing."""
    values: dict[str, set[float]] = {}
    for data in (data for group in found.values() for data in group):
        for name in data.attrs.get(_SCALARS, ()):
            values.setdefault(name, set()).update(data[name].values.ravel().tolist())
    same = [name for name, numbers in values.items() if len(numbers) < 2]
    return {split: [data.drop_vars(same, errors="ignore") for data in group] for split, group in found.items()}


def _own_test(parts: Sequence[xarray.Dataset]) -> dict[str, list[xarray.Dataset]]:
    """Return PDEBench's own test part: the first tenth of each array, the last tenth of samples that are groups."""
    found: dict[str, list[xarray.Dataset]] = {"train": [], "test": []}
    for data in parts:
        n = data.sizes[SAMPLE]
        in_groups = any(key.startswith("*/") for key in fields_of(data, "output"))
        test, train = (slice(int(0.9 * n), n), slice(int(0.9 * n))) if in_groups else (slice(int(0.1 * n)), slice(int(0.1 * n), n))
        title = f"{data.format}, which tests on samples {test.start or 0} to {test.stop - 1}"
        for split, samples in (("train", train), ("test", test)):
            part = data.isel(sample=samples).assign_attrs(format=title)
            found[split] += [part] if part.sizes[SAMPLE] else []
    return found if all(found.values()) and min(data.sizes[SAMPLE] for data in parts) > 9 else {"all": list(parts)}
