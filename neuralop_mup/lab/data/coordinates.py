"""Checks of coordinates, since an FNO treats grids and times as evenly spaced."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from xarray import DataArray, Dataset, Variable

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.arrays import SAMPLE, TIME
from neuralop_mup.lab.data.roles import fields_of, option, spaces_of

STEP = "input:time step"


def check_coordinates(parts: Sequence[Dataset], uneven: str, step: int | str | None = 1) -> list[Dataset]:
    """Raise MupError for uneven grids and times and for decreasing times, and add spacings that vary between files.

    Warn about latitudes and repeated endpoints.

    Parameters
    ----------
    parts : sequence of Dataset
    uneven : {"error", "ignore", "channel"}
        "channel" adds the time from each frame to its output as an input.
    step : int or "last", default 1
        Number of frames from input to output. With "last", times need not be evenly spaced.
    """
    stride = 0 if step == "last" else int(step or 1)
    made = [_with_steps(data, stride) for data in parts] if uneven == "channel" and stride else list(parts)
    for dim in (TIME, *spaces_of(parts[0])):
        gaps = [_spacing(data, dim, uneven, stride) for data in parts]
        made = _with_varying(made, dim, gaps, stride)
        if dim != TIME:
            _check_axis(parts, dim, gaps)
    return made


def _check_axis(parts: Sequence[Dataset], dim: str, gaps: Sequence[float | None]) -> None:
    """Raise MupError if a grid axis increases in one file but decreases in another. Warn of latitudes and repeated ends."""
    signs = {float(np.sign(gap)): data.attrs["file"] for gap, data in zip(gaps, parts, strict=True) if gap is not None}
    if {-1.0, 1.0} <= signs.keys():
        raise MupError(
            f"{dim} increases in {signs[1.0]} but decreases in {signs[-1.0]}, so their grid points do not match. Sort both "
            f"files in the same direction, for example with xarray.open_dataset(file).sortby({dim!r})."
        )
    file = parts[0].attrs["file"]
    key, variable = next(item for item in fields_of(parts[0], "output").items() if dim in item[1].dims)
    some: dict[Any, Any] = {axis: slice(16) for axis in (SAMPLE, TIME) if axis in variable.dims}
    first, second, last = (variable.isel({**some, dim: place}).values.astype(float) for place in (0, 1, -1))
    size = np.abs(first - second).max()
    # A constant boundary value does not count as a repetition.
    if np.abs(first - last).max() <= 1e-6 * size and 0 < 1e-3 * size < np.ptp(first):
        warnings.warn(
            f"{key} in {file} has the same values at both ends of {dim}. An FNO treats the axis as periodic, so drop the "
            f"duplicate endpoint with {option(crop={dim: [0, -1]})}.",
            stacklevel=3,
        )
    if dim.lower() in ("lat", "latitude"):
        warnings.warn(
            f"{file} has the axis {dim}. The points of a latitude–longitude grid are closer together near the poles, but an "
            "FNO treats the grid as evenly spaced and periodic. Errors near the poles are weighted as much as errors "
            "elsewhere.",
            stacklevel=3,
        )


def _with_varying(parts: list[Dataset], dim: str, gaps: Sequence[float | None], stride: int) -> list[Dataset]:
    """Add the time step, or the length of a grid axis, as an input if it differs between files.

    Splits may differ in resolution, so lengths are compared only between files with the same number of points.
    """
    points = [stride if dim == TIME else data.sizes[dim] for data in parts]
    usual = dict(zip(reversed(points), reversed(gaps), strict=True))  # the spacing in the first file of each resolution
    if None in gaps or np.allclose(gaps, [usual[n] for n in points], rtol=1e-3, atol=0):
        return parts
    name = "time step" if dim == TIME else f"{dim} length"
    values = [np.float32(gap * n) for gap, n in zip(gaps, points, strict=True)]
    varying = {**parts[0].attrs.get("varying", {}), name: (np.abs(values).min(), np.abs(values).max())}
    return [
        data.assign({f"input:{name}": Variable((), value)}).assign_attrs(varying=varying)
        for data, value in zip(parts, values, strict=True)
    ]


def _spacing(data: Dataset, dim: str, uneven: str, stride: int) -> float | None:
    """Return the spacing of the points along an axis, or None if it is unknown or not used. Raise MupError if it varies."""
    if dim not in data.coords or data.sizes[dim] < 2 or data[dim].dtype.kind not in "biufmM":
        return None
    file, points = data.attrs["file"], data[dim].values.astype(float)
    gaps = np.diff(points)
    if dim == TIME and uneven != "ignore":
        _check_increasing(file, data[TIME], np.flatnonzero(gaps < 0))
    if dim == TIME and (uneven == "channel" or not stride):
        return None
    rounding = 4 * np.finfo(np.float32).eps * np.abs(points).max()
    if uneven != "ignore" and np.ptp(gaps) > 1e-3 * np.abs(gaps).mean() + rounding:
        what, channel = "an uneven grid", ""
        if dim == TIME:
            what = "uneven time steps"
            channel = f"split it into files at gaps, pass {option(uneven='channel')} to make the time step a channel, "
        raise MupError(
            f"{file} has {what}: {dim} = {', '.join(f'{at:.4g}' for at in points[:5])}, … {points[-1]:.4g}, with spacings "
            f"from {gaps.min():.4g} to {gaps.max():.4g}, but an FNO assumes equal spacing. Resample the data to equal "
            f"spacing, {channel}or pass {option(uneven='ignore')} to use the data unchanged."
        )
    return float(np.float32(gaps.mean()))


def _check_increasing(file: str, times: DataArray, falling: np.ndarray) -> None:
    """Raise MupError if times decrease, since a model would then predict earlier frames from later ones."""
    if times.isnull().any():
        raise MupError(f"{file} has times that are NaN. Remove these frames, or correct their times.")
    if len(falling):
        one, other = times.values[falling[0] : falling[0] + 2]
        raise MupError(
            f"{file} has times that decrease, for example from {one} to {other}, so a model would predict earlier frames "
            f"from later ones. Sort the data by time, for example with xarray.open_dataset(file).sortby({TIME!r}) or "
            f"np.flip(u, axis), or pass {option(uneven='ignore')} to use the stored order."
        )


def _with_steps(data: Dataset, stride: int) -> Dataset:
    """Add the time from each frame to its output as an input."""
    if TIME not in data.coords:
        raise MupError(
            f"{data.attrs['file']} contains no time values, so uneven='channel' cannot determine the time steps. Omit this "
            "option."
        )
    times = data[TIME].values.astype(float)
    ahead = np.pad(times, (0, stride), mode="edge")[stride:]  # the last frames have no output
    return data.assign({STEP: Variable((TIME,), (ahead - times).astype(np.float32))})
