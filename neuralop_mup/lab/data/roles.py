"""Datasets with roles: input and output fields on a common grid, with axes of known meaning."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from xarray import Dataset, Variable

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.arrays import CHANNEL, SAMPLE, TIME, is_channel, is_space, lazy

LEAST = 4  # minimum number of points along a grid axis
#: Suggested alternative for data that cannot be read as fields on one grid: tensors of the form (n, channels, *grid).
READY = "ProblemData(train=(x, y), val=(x_val, y_val)) of neuralop_mup.lab.problems"
_CLASSES = 16  # an output with at most this many distinct integers looks like class labels
_LABELS = "neuralop_mup: names of channels"  # private name, since a field in a file may have "labels"

Variables = Mapping[str, Variable]
Options = Mapping[str, Any]  # of the user, for reading files


def option(**read: Any) -> str:
    """Return options for reading files as text, in Python and shell syntax."""
    texts = {name: f'"{value}"' if isinstance(value, Mapping) else shlex.quote(str(value)) for name, value in read.items()}
    return f"read={read} (in the shell: {' '.join(f'--read.{name} {text}' for name, text in texts.items())})"


def fields_of(data: Dataset, role: str) -> dict[str, Variable]:
    """Return the variables with a role, "input" or "output", by their keys in the file."""
    names = [name for name in map(str, data.data_vars) if name.startswith(f"{role}:")]
    return {name.removeprefix(f"{role}:"): data[name].variable for name in names}


def spaces_of(data: Dataset) -> list[str]:
    """Return the axes of the grid, in the order of the first file or else of the first output with the most axes."""
    return list(data.attrs["spaces"])


def grid_of(data: Dataset) -> tuple[int, ...]:
    """Return the number of points along each axis of the grid."""
    return tuple(data.sizes[dim] for dim in spaces_of(data))


def labels_of(data: Dataset, role: str) -> tuple[str, ...]:
    """Return the channel names of all fields with a role."""
    found: list[str] = []
    for key, variable in fields_of(data, role).items():
        count = math.prod(points for dim, points in variable.sizes.items() if is_channel(dim))
        labels = variable.attrs.get(_LABELS, ())
        labels = labels if len(labels) == count else range(count)
        found += [f"{key} {label}" for label in labels] if count > 1 else [key]
    return tuple(found)


def described(data: Dataset, role: str) -> str:
    """Return a description of the fields with a role and their axes, such as ``u (sample time x y)``."""
    return " + ".join(f"{key} ({axes_text(variable)})" for key, variable in fields_of(data, role).items())


def axes_text(variable: Variable) -> str:
    """Return the axis names of a field, such as ``sample channel x``."""
    return " ".join(str(dim).partition(":")[0] for dim in variable.dims)


# From variables to a Dataset with roles


def field(role: str, key: str, values: Any, words: Sequence[str], labels: Sequence[str] = ()) -> dict[str, Variable]:
    """Return a field under a key that differs from all axis names, with a channel axis of its own and channel labels."""
    names = [f"{CHANNEL}:{key}:{axis}" if word == CHANNEL else word for axis, word in enumerate(words)]
    return {f"{role}:{key}": lazy(values, names, {_LABELS: tuple(labels)})}


def assemble(file: str, fields: Variables, coords: Mapping[str, Any] | None = None, **attrs: Any) -> Dataset:
    """Return variables on a common grid as a Dataset.

    Parameters
    ----------
    file : str
        Name of the file in messages.
    fields : mapping of str to Variable
        Fields as returned by :func:`field`. A field is constant along an axis that is absent or has one point.
    coords : mapping of str to array, optional
        Coordinate of each axis. Times may have one more entry than there are frames, as in PDEBench.
    **attrs
        Attributes of the Dataset.

    Raises
    ------
    MupError
        If the variables are not real-valued fields on a common grid, or if the output looks like class labels.
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
    orders = ([dim for dim in made[name].dims if is_space(dim)] for name in made if name.startswith("output:"))
    # Samples keep their numbers in the file when some of them are selected.
    numbers = {SAMPLE: np.arange(sizes[SAMPLE])} if SAMPLE in sizes else {}
    data = Dataset(made, numbers, attrs={"file": file, "format": "", "spaces": max(orders, key=len), **attrs})
    for dim, values in (coords or {}).items():
        if len(values) - sizes.get(dim, -1) in (0, dim == TIME):
            data = data.assign_coords({dim: values[: sizes[dim]]})
    return data


def _check_field(name: str, file: str, variable: Variable) -> None:
    role, _, key = name.partition(":")
    what = f"{key} in {file} is {variable.dtype} of shape {variable.shape}"
    if variable.dtype.kind not in "biuf":
        raise MupError(
            f"{what}, but fields must be real-valued. Pass the real and imaginary parts of a complex field as two channels, "
            f"np.stack([u.real, u.imag], axis=1), or pass tensors to a complex model with {READY}."
        )
    if variable.dtype.itemsize > 8:
        raise MupError(f"{what}, but torch supports at most float64. Use {key}.astype('float64').")
    if not variable.size:
        raise MupError(f"{what}, so it is empty. Provide samples, or omit the file.")
    if role == "output" and variable.dtype.kind != "f":
        values = np.unique(variable.isel({SAMPLE: slice(_CLASSES), TIME: 0}, missing_dims="ignore").values)
        if len(values) <= _CLASSES:
            raise MupError(
                f"{key} in {file} contains only the integers {', '.join(map(str, values))}, which look like classes, but an "
                f"output must be real-valued. If these values are real numbers, pass {key}.astype('float32')."
            )


def _check_grid(file: str, fields: Variables, sizes: Mapping[str, int]) -> None:
    """Raise MupError if lengths differ along an axis, or if inputs have an axis that the outputs lack."""
    held = ", ".join(f"{name.partition(':')[2]} {dict(variable.sizes)}" for name, variable in fields.items())
    outputs = {dim for name, variable in fields.items() if name.startswith("output:") for dim in variable.dims}
    for variable in fields.values():
        for dim, points in variable.sizes.items():
            is_known = dim in outputs or is_channel(dim) or (dim == SAMPLE and points == 1)
            if points != sizes[dim] or not is_known:
                raise MupError(
                    f"{file} contains {held}, with sizes {points} and {sizes[dim] if is_known else 1} along {dim}. Input "
                    "and output must have the same grid, number of samples and times. If all frames along an axis are "
                    "input, name that axis channel."
                )
    grid = [points for dim, points in sizes.items() if is_space(dim)]
    if not 1 <= len(grid) <= 3 or min(grid) < LEAST:
        raise MupError(f"{file} contains {held}. The grid must have one to three axes with at least {LEAST} points each.")
