"""Several files as a list of Datasets: x.npy beside y.npy, or time steps that form one trajectory."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from xarray import Dataset

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.arrays import TIME, coordinate_word, is_coordinate, lazy, unnamed_dims, usual_word
from neuralop_mup.lab.data.files import role_of
from neuralop_mup.lab.data.readers import dataset_of, join_variables, read_file


def read_files(files: Sequence[str], join: str = "sample") -> list[Dataset]:
    """Return what files hold, as a list of Datasets.

    Parameters
    ----------
    files : sequence of str
        Arrays in two files that their names call input and output, such as x.npy and y.npy, become one Dataset.
    join : str, default "sample"
        "time": each file is a time step, and the files of a folder are one trajectory.

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
        return [_trajectory(folder, found) for folder, found in folders.items()]
    read = {path: parts for found in folders.values() for path, parts in found.items()}
    pairs: dict[str, list[Path]] = defaultdict(list)
    for path in read:
        pairs[role_of(path)[0]].append(path)
    return [part for paths in pairs.values() for part in _paired({path: read[path] for path in paths})]


def _paired(found: Mapping[Path, Sequence[Dataset]]) -> list[Dataset]:
    """Return two files of one array each, which their names call input and output, as one Dataset; others as they are."""
    parts = [part for each in found.values() for part in each]
    arrays = {role_of(path)[1]: part.variables for path, part in zip(found, parts, strict=False)}
    if not len(parts) == len(found) == 2 or arrays.keys() != {"x", "y"} or any(len(held) != 1 for held in arrays.values()):
        return parts
    values = {role: next(iter(held.values())) for role, held in sorted(arrays.items())}
    if max(each.ndim for each in values.values()) < 2:  # two coordinates are no fields
        return parts
    file = " and ".join(map(str, found))
    return [dataset_of({role: lazy(each, unnamed_dims(role, each.ndim)) for role, each in values.items()}, file)]


def _trajectory(folder: Path, found: Mapping[Path, Sequence[Dataset]]) -> Dataset:
    """Join files of one or more time steps each, in the order of their times or of the numbers in their names."""
    if several := [path for path, parts in found.items() if len(parts) > 1]:
        raise MupError(
            f"{several[0]} holds {len(found[several[0]])} samples of different lengths or coordinates, so that the files of "
            f"{folder} are not the steps of one trajectory: leave out join='time'."
        )
    steps = [(path, step) for path, (whole,) in found.items() for step in _steps_of(path, whole)]
    times = _times_of([step for _, step in steps])
    keys: Sequence[Any] = times or _numbers_of(folder, list(found), [path for path, _ in steps])
    order = sorted(range(len(steps)), key=lambda place: keys[place])
    if same := [(a, b) for a, b in pairwise(order) if times and times[a] == times[b]]:
        one, other = (steps[place][0] for place in same[0])
        raise MupError(
            f"{other} and {one} hold the same time, {times[same[0][0]]:g}, so that the order of the steps in {folder} is "
            "unclear: write other times, or take one of the two out of the folder."
        )
    (first_path, first), *_ = ordered = [steps[place] for place in order]
    fields = [key for key, values in first.data_vars.items() if not is_coordinate(str(key), values)]
    shapes = [{key: step[key].shape for key in fields if key in step} for _, step in ordered]
    if wrong := [path for (path, _), shape in zip(ordered, shapes, strict=True) if shape != shapes[0]]:
        raise MupError(
            f"{wrong[0]} holds other arrays or shapes than {first_path}, so that the files of {folder} are not the steps of "
            "one trajectory: leave out join='time', or take the file out of the folder."
        )
    made = {key: join_variables([step[key].variable for _, step in ordered], TIME) for key in fields}
    made |= {key: first[key].variable for key in first.variables if key not in fields and not _is_time(first, key)}
    at = {TIME: (TIME, [times[place] for place in order])} if times else {}
    return Dataset({**made, **at}, attrs={"file": str(folder)})


def _is_time(step: Dataset, key: Any) -> bool:
    """Return whether an array of a step is its time."""
    return coordinate_word(key) == TIME or usual_word(str(key)) == TIME and step[key].ndim == 0


def _steps_of(path: Path, data: Dataset) -> list[Dataset]:
    """Return the time steps of a file: one, or those along its axis of time."""
    dims = [dim for dim in data.dims if usual_word(str(dim)) == TIME]
    long = [dim for dim in dims if data.sizes[dim] != 1]
    times = [key for key, v in data.variables.items() if coordinate_word(str(key)) == TIME and v.ndim == 1 and v.size > 1]
    if wrong := long[1:] or [key for key in times if data[key].dims[0] not in dims]:
        raise MupError(
            f"{path} holds several times, {wrong[0]}, and it is unclear which axis of the fields they belong to: write a "
            "file for each step, or leave out join='time'."
        )
    data = data.isel({dim: 0 for dim in dims if dim not in long})
    return [data.isel({dim: place}) for dim in long for place in range(data.sizes[dim])] or [data]


def _times_of(steps: Sequence[Dataset]) -> list[float]:
    """Return the time of each step; nothing if there are none, or if all are equal, such as that of a forecast's start."""
    for key in filter(partial(_is_time, steps[0]), steps[0].variables):
        if all(key in step and step[key].size == 1 and step[key].dtype.kind in "biuf" for step in steps):
            units = {str(step[key].attrs.get("units")) for step in steps}
            if len(units) > 1:
                raise MupError(
                    f"The times of {steps[0].attrs['file']} and of other files have different units, "
                    f"{', '.join(sorted(units)[:2])}: write all times in one unit, or leave them out."
                )
            times = [float(step[key].values.item()) for step in steps]
            if np.isfinite(times).all() and (len(times) == 1 or len(set(times)) > 1):
                return times
    return []


def _numbers_of(folder: Path, files: Sequence[Path], paths: Sequence[Path]) -> list[tuple[float, ...]]:
    """Return the numbers in the name of the file of each step; raise MupError unless they give the files an order."""
    texts = {path: re.findall(r"\d+(?:\.\d+)?(?:e[-+]\d+)?", path.stem) for path in files}
    numbers = {path: tuple(map(float, own)) for path, own in texts.items()}
    several = [path for path in files if len(numbers[path]) != len(numbers[files[0]])]
    places: dict[tuple[float, ...], Path] = {}
    several += [path for path in files if places.setdefault(numbers[path], path) != path]
    # Names such as run1.9 and run1.10 are no decimal numbers.
    digits_after = {len(text.partition(".")[2]) for own in texts.values() for text in own if "." in text}
    padded = [path for path, own in texts.items() if any(re.search(r"\.\d+0$", text) for text in own)]
    if several or (len(digits_after) > 1 and padded):
        raise MupError(
            f"The names {files[0].name} and {(several or padded)[0].name} do not give the order of the steps in {folder}, "
            "and the files hold no times: number the steps, such as u_0007, and keep other files elsewhere."
        )
    return [numbers[path] for path in paths]
