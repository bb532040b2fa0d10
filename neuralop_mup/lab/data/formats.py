"""Well-known data formats. Files in these formats need neither keys nor axis names.

Each format is a function that inspects the contents of a file and returns its fields, or nothing if the file has a different
format.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from xarray import Dataset, Variable

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.arrays import CHANNEL, SAMPLE, TIME, coordinate_word
from neuralop_mup.lab.data.axes import with_roles
from neuralop_mup.lab.data.files import SPLIT_WORDS
from neuralop_mup.lab.data.roles import assemble, field, fields_of, grid_of

_SCALARS = "scalars"  # attribute with the names of the equation parameters
_PARAMETERS = ("beta", "Nu", "rho", "eta", "zeta", "M")  # equation parameters in PDEBench files

#: Outputs, inputs and coordinates by key, with a name for each axis. The axis "one" has a single point.
Layout = tuple[Mapping[str, str], ...]


def _first(layouts: Sequence[Layout], data: Dataset) -> list[Dataset]:
    """Return the fields of a file in the first layout that matches its keys and axes, or an empty list if none matches."""
    for outputs, inputs, coords in layouts:
        words = {**inputs, **outputs}
        dims = {key: text.replace("one", CHANNEL) for key, text in words.items()}
        try:
            axes = [dict(zip(text.split(), data[key].shape, strict=True)) for key, text in words.items()]
            found = with_roles(data, {"x": "+".join(inputs), "y": "+".join(outputs), "dims": dims})
        except (KeyError, ValueError):  # an array is missing, has other axes, or has another grid (MupError)
            continue
        is_single = all(sizes.get("one", 1) == 1 for sizes in axes)
        if is_single and all(key in data.variables and axis in found.coords for key, axis in coords.items()):
            n_axes = len(grid_of(found))
            wide = [key for key, values in data.variables.items() if values.ndim > n_axes and values.shape[0] > 1]
            return [found.assign_attrs(left=[key for key in wide if key not in words and coordinate_word(key) is None])]
    return []


def with_scalars(data: Dataset, values: Mapping[str, Any]) -> Dataset:
    """Add scalars as inputs. Each is a single number or has one number per sample."""
    made = {}
    for name, numbers in values.items():
        numbers = np.asarray(numbers, np.float32)
        made |= field("input", name, numbers, (SAMPLE,) * numbers.ndim)
    return data.assign(made).assign_attrs({_SCALARS: list(made)})


# The Well


def _the_well(data: Dataset) -> list[Dataset]:
    """Read the format of github.com/PolymathicAI/the_well: groups of scalar, vector and tensor fields that may lack axes."""
    attrs, root = data.attrs, data.attrs.get("", {})
    if not {"dataset_name", "grid_type", "n_spatial_dims"} <= set(root) or "dimensions" not in attrs:
        return []
    spaces = list(map(str, attrs["dimensions"]["spatial_dims"]))
    fields: dict[str, Variable] = {}
    for order in range(3):
        for name in attrs[f"t{order}_fields"]["field_names"]:
            fields |= _well_field(data, name, order, spaces)
    if not any(name.startswith("output:") for name in fields):
        raise MupError(f"{attrs['file']} contains no field that varies in time, so there is nothing to predict.")
    scalars, left = {}, []
    for name in attrs.get("scalars", {}).get("field_names", ()):
        own, values = data[f"scalars/{name}"].attrs, data[f"scalars/{name}"].values.ravel()
        if own["time_varying"]:
            left.append(name)  # it may depend on the fields to predict
        else:
            scalars[name] = values if own["sample_varying"] else values[0]
    axes = [axis for axis in (TIME, *spaces) if f"dimensions/{axis}" in data.variables]
    coords = {axis: data[f"dimensions/{axis}"].values.ravel() for axis in axes}
    return [with_scalars(assemble(attrs["file"], fields, coords, left=left), scalars)]


def _well_field(data: Dataset, name: str, order: int, spaces: Sequence[str]) -> dict[str, Variable]:
    """Return a field with named axes.

    The specification omits axes along which a field is constant, whereas WellDataset stores them with one point. The
    components of a tensor are stored along two axes or along a single one.
    """
    variable = data[f"t{order}_fields/{name}"].variable
    says, shape = variable.attrs, variable.shape
    lead = [word for word in (SAMPLE, TIME) if says[f"{word}_varying"]]
    varying = [space for space, varies in zip(spaces, says["dim_varying"], strict=True) if varies]
    labels = ["".join(each) for each in product(spaces, repeat=order)] if order else []
    for own, tensor in product((spaces, varying), (order, min(order, 1))):
        words = [*lead, *own, *[CHANNEL] * tensor]
        sizes = dict(zip(words, shape, strict=False))
        narrow = {space: 0 for space in own if space not in varying}
        if len(words) == len(shape) and all(sizes[space] == 1 for space in narrow):
            found = field("output" if TIME in lead else "input", name, variable, words, labels)
            return {key: values.isel(narrow) for key, values in found.items()}
    raise MupError(
        f"t{order}_fields/{name} in {data.attrs['file']} has shape {shape}, which contradicts its attributes: a field of "
        f"order {order} that varies along {', '.join([*lead, *varying])}. Correct the array or the attributes."
    )


# PDEBench, PDEArena and the first FNO paper

_FLUID = ("density", "pressure", "Vx", "Vy", "Vz")
_PDEBENCH: tuple[Layout, ...] = (
    ({"tensor": "sample time x"}, {}, {"x-coordinate": "x"}),
    ({"tensor": "sample one x y"}, {"nu": "sample x y"}, {"x-coordinate": "x", "y-coordinate": "y"}),
    (dict.fromkeys(_FLUID[:3], "sample time x"), {}, {"x-coordinate": "x"}),
    (dict.fromkeys(_FLUID[:4], "sample time x y"), {}, {"x-coordinate": "x"}),
    (dict.fromkeys(_FLUID, "sample time x y z"), {}, {"x-coordinate": "x"}),
    ({"velocity": "sample time x y channel", "particles": "sample time x y one"}, {"force": "sample x y channel"}, {}),
    ({"*/data": "sample time x channel"}, {}, {"*/grid/t": "time", "*/grid/x": "x"}),
    ({"*/data": "sample time x y channel"}, {}, {"*/grid/t": "time", "*/grid/x": "x", "*/grid/y": "y"}),
)


def _pdebench(data: Dataset) -> list[Dataset]:
    """Read the format of pdebench/PDEBench: arrays of samples or one group per sample, with parameters as attributes."""
    attrs = data.attrs.get("", {})
    parameters = {name: attrs[name] for name in _PARAMETERS if name in attrs}
    return [with_scalars(found, parameters) for found in _first(_PDEBENCH, data) if not found.attrs["left"]]


_PDEARENA: tuple[Layout, ...] = (
    (dict.fromkeys(("u", "vx", "vy"), "sample time x y"), {}, {}),
    (dict.fromkeys(("d_field", "h_field"), "sample time x y z channel"), {}, {}),
)


def _pdearena(data: Dataset) -> list[Dataset]:
    """Read the format of pdearena/pdearena: groups train, valid and test, with equation parameters for each sample."""
    found = []
    for group in ("train", "valid", "test"):
        keys = [key for key in data.variables if key.startswith(f"{group}/")]
        inner = data[keys].rename({key: key.removeprefix(f"{group}/") for key in keys})
        lines: list[Layout] = [({key: "sample time x"}, {}, {}) for key in inner.variables if key.startswith("pde_")]
        for made in _first((*_PDEARENA, *lines), inner):
            names = [name for name in ("buo_y", "v", "dt", "dx", "dy") if name in inner and inner[name].ndim == 1]
            scalars = {name: inner[name].values for name in names}
            found.append(with_scalars(made, scalars).assign_attrs(split=SPLIT_WORDS[group]))
    return found


_FIRST_FNO: tuple[Layout, ...] = (
    ({"u": "sample x"}, {"a": "sample x"}, {}),
    ({"sol": "sample x y"}, {"coeff": "sample x y"}, {}),
    ({"u": "sample x y time"}, {"a": "sample x y"}, {"t": "time"}),
)


def _first_fno(data: Dataset) -> list[Dataset]:
    """Read the data of arXiv:2010.08895: Burgers, Darcy, and Navier–Stokes with time last and a separate initial state."""
    found = _first(_FIRST_FNO, data) if data.attrs["file"].lower().endswith(".mat") else []
    # The initial state is already the first frame of the input.
    return [each.drop_vars("input:a").assign_attrs(left=["a"]) if TIME in each.dims else each for each in found]


#: Functions that extract the fields from a file's contents, by format name. Each returns one Dataset for each split in the
#: file, or an empty list if the file has a different format.
FORMATS = {
    "The Well": _the_well,
    "PDEBench": _pdebench,
    "PDEArena": _pdearena,
    "FNO paper": _first_fno,
}


def with_format(files: Mapping[str, Sequence[Dataset]], name: str | None = None) -> dict[str, list[Dataset]]:
    """Return the fields of files in a well-known format, by split.

    Parameters
    ----------
    files : mapping
        Contents of the files for each split: "all", "train", "val" or "test".
    name : str, optional
        Name of the format. By default, it is determined from the first file.

    Returns
    -------
    dict
        Datasets with roles for each split. Empty if the files have no known format.

    Raises
    ------
    MupError
        If a file violates its format or has a different format than the first file.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.io import savemat
    >>> from neuralop_mup.lab.data.roles import labels_of
    >>> from neuralop_mup.lab.data.formats import with_format
    >>> from neuralop_mup.lab.data.readers import read_file
    >>> savemat("darcy.mat", {"coeff": np.random.rand(20, 8, 8), "sol": np.random.rand(20, 8, 8)})
    >>> data = with_format({"all": read_file("darcy.mat")})["all"][0]
    >>> data.attrs["format"], labels_of(data, "input"), labels_of(data, "output")
    ('FNO paper', ('coeff',), ('sol',))
    """
    found: dict[str, list[Dataset]] = {}
    for split, raw in [(split, raw) for split, part in files.items() for raw in part]:
        name = name or next((each for each in FORMATS if _read_as(each, raw)), None)
        if name is None:
            return {}
        parts = _read_as(name, raw)
        if not parts:
            raise MupError(
                f"{raw.attrs['file']} does not have the format of the first file, which is {name}. Remove it from the "
                "folder, or specify the arrays and axes with x, y and dims."
            )
        for part in parts:
            title = f"{name}, without {', '.join(part.attrs['left'])}" if part.attrs["left"] else name
            own = part.attrs.get("split", split) if split == "all" else split
            found.setdefault(own, []).append(part.assign_attrs(format=title))
    found = _varying_scalars(found)
    return _own_test(found["all"]) if name == "PDEBench" and set(found) == {"all"} else found


def _read_as(name: str, data: Dataset) -> list[Dataset]:
    try:
        return FORMATS[name](data)
    except KeyError as error:
        raise MupError(
            f"{data.attrs['file']} appears to have the format {name}, but lacks {error}, which the specification requires. "
            "Write the file again, or specify the arrays and axes with x, y and dims."
        ) from error


def _varying_scalars(found: Mapping[str, Sequence[Dataset]]) -> dict[str, list[Dataset]]:
    """Omit equation parameters that are equal in all samples, since they carry no information."""
    values: dict[str, set[float]] = {}
    for data in (data for group in found.values() for data in group):
        for name in data.attrs.get(_SCALARS, ()):
            values.setdefault(name, set()).update(data[name].values.ravel().tolist())
    same = [name for name, numbers in values.items() if len(numbers) < 2]
    return {split: [data.drop_vars(same, errors="ignore") for data in group] for split, group in found.items()}


def _own_test(parts: Sequence[Dataset]) -> dict[str, list[Dataset]]:
    """Return PDEBench's own test split: the first tenth of each array, or the last tenth if each sample is a group."""
    found: dict[str, list[Dataset]] = {"train": [], "test": []}
    if min(data.sizes[SAMPLE] for data in parts) < 10:
        return {"all": list(parts)}
    for data in parts:
        n = data.sizes[SAMPLE]
        test, train = slice(0, int(0.1 * n)), slice(int(0.1 * n), n)
        if any(key.startswith("*/") for key in fields_of(data, "output")):
            train, test = slice(0, int(0.9 * n)), slice(int(0.9 * n), n)
        data = data.assign_attrs(
            format=f"{data.attrs['format']}, with samples {test.start} to {test.stop - 1} as the test set"
        )
        found["train"].append(data.isel(sample=train))
        found["test"].append(data.isel(sample=test))
    return found
