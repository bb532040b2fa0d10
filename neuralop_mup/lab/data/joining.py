"""Combination of several files into Datasets: pairs such as x.npy and y.npy, or time steps of one trajectory."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
from xarray import Dataset, Variable

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.arrays import (
    TIME,
    coordinate_word,
    dataset_of,
    is_coordinate,
    join_variables,
    lazy,
    unnamed_dims,
    usual_word,
)
from neuralop_mup.lab.data.files import role_of
from neuralop_mup.lab.data.readers import read_file
from neuralop_mup.lab.data.roles import option

_UNEVEN = 1.5  # ratio to the usual interval above which a file is missing, since times in file names are rounded
_DATES = 190_000  # numbers from here on may be dates such as 202001 or 20200131, which are not numbered evenly


def read_files(files: Sequence[str], join: str = "sample", pair: bool = True, uneven: str = "error") -> list[Dataset]:
    """Return the contents of files as a list of Datasets.

    Parameters
    ----------
    files : sequence of str
        Files to read. Two files whose names mark them as input and output, such as x.npy and y.npy, become one Dataset.
    join : str, default "sample"
        With "time", each file is a time step, and the files in a folder form one trajectory.
    pair : bool, default True
        Whether file names may indicate input and output. False if the user passes different keys.
    uneven : {"error", "ignore", "channel"}, default "error"
        With "error", files of time steps without times must be numbered without gaps.

    Examples
    --------
    >>> import numpy as np
    >>> from neuralop_mup.lab.data.joining import read_files
    >>> np.save("x.npy", np.zeros((40, 16)))
    >>> np.save("y.npy", np.zeros((40, 16)))
    >>> [list(data.variables) for data in read_files(["x.npy", "y.npy"])]
    [['x', 'y']]
    """
    folders: dict[Path, dict[Path, list[Dataset]]] = defaultdict(dict)
    for path in map(Path, files):
        folders[path.parent][path] = read_file(path)
    if join == "time":
        return [_trajectory(folder, found, uneven) for folder, found in folders.items()]
    pairs: dict[str, dict[Path, list[Dataset]]] = defaultdict(dict)
    for found in folders.values():
        for path, parts in found.items():
            pairs[role_of(path)[0] if pair else str(path)][path] = parts
    return [part for found in pairs.values() for part in _paired(found)]


def _paired(found: Mapping[Path, Sequence[Dataset]]) -> list[Dataset]:
    """Combine two files of one array each, named as input and output, into one Dataset. Return other files unchanged."""
    parts = [part for each in found.values() for part in each]
    arrays = {role_of(path)[1]: [*part.variables.values()] for path, part in zip(found, parts, strict=False)}
    is_pair = arrays.keys() == {"x", "y"} and [len(part.variables) for part in parts] == [1, 1]
    if not is_pair or all(values.ndim < 2 for (values,) in arrays.values()):  # two coordinates are not fields
        return parts
    named = {role: lazy(*arrays[role], unnamed_dims(role, arrays[role][0].ndim)) for role in "xy"}
    return [dataset_of(named, " and ".join(map(str, found))).assign_attrs(linked=linked_files(parts))]


def _trajectory(folder: Path, found: Mapping[Path, Sequence[Dataset]], uneven: str) -> Dataset:
    """Join files that contain one or more time steps each, ordered by their times or by the numbers in their names."""
    steps = [
        (path, place, step)
        for path, parts in found.items()
        for part in parts
        for place, step in enumerate(_steps_of(path, part))
    ]
    times = _times_of([step for *_, step in steps])
    numbers = {path: re.findall(r"\d+(?:\.\d+)?(?:[eE][-+]\d+)?", path.stem) for path in found}
    keys = [[time] for time in times] or [[*map(float, numbers[path]), place] for path, place, _ in steps]
    order = sorted(range(len(steps)), key=keys.__getitem__)
    unclear = [(a, b) for a, b in pairwise(order) if keys[a] == keys[b] or len(keys[a]) != len(keys[b])]
    if not times and not _are_decimals(numbers.values()):
        unclear.append((order[0], order[-1]))
    if unclear:
        one, other = (f"{steps[place][0]} (at {', '.join(map(str, keys[place]))})" for place in unclear[0])
        raise MupError(
            f"The order of the steps {one} and {other} is unclear. Store the time of each step in its file, or number the "
            f"file names (for example u_0007). Move unrelated files out of {folder}, or omit join='time'."
        )
    paths, _, parts = zip(*(steps[place] for place in order), strict=True)
    if uneven == "error" and not times:
        _check_numbers({path: numbers[path] for path in paths})
    fields = [key for key, values in parts[0].data_vars.items() if not is_coordinate(str(key), values)]
    shapes = [{key: part[key].shape for key in fields if key in part} for part in parts]
    if wrong := [path for path, shape in zip(paths, shapes, strict=True) if shape != shapes[0]]:
        raise MupError(
            f"{wrong[0]} contains arrays or shapes that differ from those in {paths[0]}, so the files in {folder} cannot be "
            "steps of one trajectory. Omit join='time', or remove the file from the folder."
        )
    made = {key: join_variables([part[key].variable for part in parts], TIME) for key in fields}
    made |= {key: v for key, v in parts[0].variables.items() if key not in fields and not _is_time(parts[0], key)}
    if times:
        made[TIME] = Variable(TIME, sorted(times))
    return Dataset(made, attrs={"file": str(folder), "linked": linked_files(parts)})


def _check_numbers(numbers: Mapping[Path, Sequence[str]]) -> None:
    """Raise MupError if the numbers in the names of files, in the order of the time steps, have a gap.

    Only the last number that differs is compared, and only between files that agree in the others.
    """
    columns = [column for column in zip(*numbers.values(), strict=True) if len(set(column)) > 1]
    if not columns or max(map(float, columns[-1])) >= _DATES:
        return
    gaps = {}
    for (one, before), (other, after) in pairwise(zip(numbers, zip(*columns, strict=True), strict=True)):
        if before[:-1] == after[:-1]:
            gaps[one, other] = float(after[-1]) - float(before[-1])
    usual = median_low(gaps.values() or [0.0])
    is_clock = all(len(text) == 4 and text.isdigit() and int(text) % 100 < 60 for text in columns[-1])
    for (one, other), gap in gaps.items():
        is_hour = is_clock and (gap - usual) % 40 == 0  # from 0845 to 0900
        if not (usual / _UNEVEN <= gap <= _UNEVEN * usual or is_hour):
            raise MupError(
                f"{other} follows {one} after an interval of {gap:g} in their numbers. The usual interval is {usual:g}, and "
                "an FNO assumes equal time steps. Add the missing files, or store the time of each step in its file. If the "
                f"steps are equal, pass {option(uneven='ignore')}."
            )


def linked_files(parts: Sequence[Dataset]) -> list[str]:
    """Return the files to which the files of some Datasets link."""
    return sorted({file for part in parts for file in part.attrs.get("linked", ())})


def _is_time(step: Dataset, key: Any) -> bool:
    """Return whether an array in a step is the time of that step."""
    return coordinate_word(key) == TIME or usual_word(str(key)) == TIME and step[key].ndim == 0


def _steps_of(path: Path, data: Dataset) -> list[Dataset]:
    """Return the time steps in a file: a single one, or those along its time axis."""
    dims = [dim for dim in data.dims if usual_word(str(dim)) == TIME]
    long = [dim for dim in dims if data.sizes[dim] != 1]
    times = [key for key, v in data.variables.items() if coordinate_word(key) == TIME and v.ndim == 1 < v.size]
    if wrong := long[1:] or [key for key in times if data[key].dims[0] not in dims]:
        raise MupError(
            f"{path} contains several time values, {wrong[0]}, and it is unclear which axis of the fields they belong to. "
            "Write one file per step, or omit join='time'."
        )
    data = data.isel({dim: 0 for dim in dims if dim not in long})
    return [data.isel({dim: place}) for dim in long for place in range(data.sizes[dim])] or [data]


def _times_of(steps: Sequence[Dataset]) -> list[float]:
    """Return the time of each step. Empty if there are no times, or if all are equal, such as the start of a forecast."""
    for key in [key for key in steps[0].variables if _is_time(steps[0], key)]:
        if all(key in step and step[key].size == 1 and step[key].dtype.kind in "biuf" for step in steps):
            units = {str(step[key].attrs.get("units")) for step in steps}
            if len(units) > 1:
                raise MupError(
                    f"The times in {steps[0].attrs['file']} and in other files have different units, "
                    f"{' and '.join(sorted(units)[:2])}. Store all times in the same unit, or omit them."
                )
            times = [float(step[key].values.item()) for step in steps]
            if np.isfinite(times).all() and (len(times) == 1 or len(set(times)) > 1):
                return times
    return []


def _are_decimals(texts: Sequence[Sequence[str]]) -> bool:
    """Return whether numbers with a point are decimal numbers, unlike those in the names run1.9 and run1.10."""
    digits = {text.partition(".")[2] for own in texts for text in own if "." in text}
    return len(set(map(len, digits))) < 2 or not any(re.search(r"\d0$", after) for after in digits)
