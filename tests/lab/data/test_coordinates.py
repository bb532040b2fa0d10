"""What the coordinates of a file say: uneven grids and times, steps that differ, and which axis is which."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray

from neuralop_mup.lab.data import OwnData
from neuralop_mup.lab.data.given import as_source
from neuralop_mup.lab.data.readers import read_file
from neuralop_mup.lab.data.roles import labels_of
from neuralop_mup.lab.data.windows import RowReader
from support.errors import refused, warned
from support.files import array, write, write_hdf5

X = np.arange(8) / 8
UNEVEN = np.array([0.0, 1, 2, 4, 8, 16])


def pdebench(path, times, x=X):
    """A file in the layout of PDEBench, with 20 samples of five frames."""
    return write_hdf5(path, {"tensor": array(20, 5, 8), "x-coordinate": x, "t-coordinate": times})


def test_readers_keep_names_and_coordinates():
    """Files that name their axes and files that do not; nothing of a field is read."""
    data = xarray.Dataset({"u": (("member", "time", "pos"), array(12, 5, 8))}, {"pos": X, "time": np.arange(5.0)})
    data.to_netcdf("a.nc", engine="h5netcdf")
    own = OwnData(files="a.nc", y="u", time_step=1)
    assert np.array_equal(own.first["pos"], X) and np.array_equal(own.first["time"], np.arange(5.0))
    own = OwnData(files=pdebench("a.h5", np.arange(6.0)))
    assert dict(own.first.sizes) == {"sample": 18, "time": 5, "x": 8}
    assert np.array_equal(own.first["x"], X) and len(own.first["time"]) == 5
    assert not isinstance(read_file("a.h5")[0]["tensor"].variable._data, np.ndarray)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 20, 21, 64), "channel sample time x"),
        ((20, 21, 64), "sample time x"),
        ((20, 21, 64, 1), "sample time x channel"),
        ((20, 64, 21), "sample x time"),
        ((64, 21), "x time"),
    ],
)
def test_lengths_of_coordinates_identify_axes(shape, words):
    """The message once proposed "sample time x y", which learns one sample's history from another's."""
    write_hdf5("a.h5", {"tensor": array(*shape), "x-coordinate": np.arange(64.0), "t-coordinate": np.arange(22.0)})
    own = OwnData(files="a.h5", time_step=1)
    assert own.readings["output"] == f"tensor ({words})"
    assert own.load().counts()["train"] == (320 if "sample" in words else 8)


def test_edges_of_cells_are_not_fields():
    """Each file of CMIP6 has some. The message proposed time_bnds as the input."""
    data = xarray.Dataset({"tos": (("time", "x"), array(40, 8)), "time_bnds": (("time", "bnds"), array(40, 2))})
    data.assign_coords(time=("time", np.arange(40.0), {"bounds": "time_bnds"})).to_netcdf("a.nc", engine="scipy")
    assert OwnData(files="a.nc", time_step=1).readings["output"] == "tos (time x)"


def test_a_temperature_named_t_is_a_field_and_not_the_time():
    """It was ignored without a message, so that only the geopotential z was learned."""
    t, axes = array(40, 2, 8, 8), ("time", "level", "lat", "lon")
    Path("steps").mkdir()
    data = xarray.Dataset({"t": (axes, t)}, {"time": np.arange(40.0), "lat": np.arange(8.0)})
    data.to_netcdf("t.nc", engine="h5netcdf")
    with pytest.warns(UserWarning, match="poles"):
        assert OwnData(files="t.nc", time_step=1).readings["output"] == "t (time channel lat lon)"
    data.assign(z=(axes, t)).to_netcdf("tz.nc", engine="h5netcdf")
    for step in range(20):
        data.assign(z=(axes, t)).isel(time=step, level=0, drop=True).to_netcdf(f"steps/{step}.nc", engine="h5netcdf")
    for file, join in (("tz.nc", "sample"), ("steps", "time")):
        with refused("'y':'t+z' 'time_step':1"):
            OwnData(files=file, join=join, time_step=1).load()


@pytest.mark.parametrize(
    ("x", "y", "names"),
    [
        ((40, 16), (40, 11, 16), "{'y':'sampletimex','x':'samplex'}"),
        ((40, 16), (40, 16, 11), "{'y':'samplextime','x':'samplex'}"),
        ((40, 16, 16), (40, 11, 16, 16), "{'y':'sampletimexy','x':'samplexy'} {'y':'samplechannelxy','x':'samplexy'}"),
        ((40, 8, 9), (40, 10, 8, 9), "{'y':'sampletimexy','x':'samplexy'}"),
        ((40, 10, 12), (40, 10, 12), "'sampletimex' 'samplexy'"),
    ],
)
def test_times_beside_an_input_are_among_the_suggestions(x, y, names):
    """They were ignored, so that the second last pair was read as a field on a grid of three axes."""
    file = write("a.npz", x=array(*x), y=array(*y), t=np.arange(y[-1] if y[-1] == 11 else y[1]))
    with refused(names):
        OwnData(files=file).load()


@pytest.mark.parametrize(
    ("times", "x", "names"),
    [
        (UNEVEN, X, "a.h5 time=0,1,2,4,8,…8 from1to4 Resample {'uneven':'channel'} {'uneven':'ignore'}"),
        (np.arange(6.0), np.cos(np.arange(8) / 7 * np.pi), "a.h5 grid x=1,0.901, Resample {'uneven':'ignore'}"),
    ],
)
def test_uneven_times_and_grids_are_refused(times, x, names):
    """They were read as if they were even."""
    pdebench("a.h5", times, x)
    with refused(names):
        OwnData(files="a.h5").load()
    assert OwnData(files="a.h5", uneven="ignore").load().counts() == {"train": 64, "val": 8, "test": 8}


@pytest.mark.parametrize("times", [np.arange(6.0)[::-1], np.array([0.0, 1, 2, 0, 1, 2])])
@pytest.mark.parametrize("read", [{}, {"time_step": "last"}, {"uneven": "channel"}])
def test_times_that_decrease_are_refused(times, read):
    """The past was learned from the future."""
    pdebench("a.h5", times)
    with refused(f"a.h5 decrease sortby('time') {times.max()}to {{'uneven':'ignore'}}"):
        OwnData(files="a.h5", **read).load()
    assert OwnData(files="a.h5", uneven="ignore").load().counts()["train"] == 64


def test_times_that_are_nan_are_refused():
    """Missing dates were compared as numbers, and a channel of time steps was all NaN."""
    pdebench("a.h5", np.array([0.0, 1, np.nan, 3, 4, 5]))
    with refused("a.h5 NaN"):
        OwnData(files="a.h5").load()
    days = np.array(["2020-01-01", "NaT", "2020-01-03", "2020-01-04"], "datetime64[ns]")
    data = xarray.DataArray(array(20, 4, 16), dims=("sample", "time", "x"), coords={"time": days})
    with refused("NaN"):
        as_source(data, {"time_step": 1}).load()


def test_a_channel_that_is_nan_everywhere_is_refused():
    x = np.where(np.arange(2)[:, None] == 1, np.nan, array(40, 2, 16))
    with refused("Channel1 x NaN"):
        as_source((x, array(40, 1, 16)), {"nan": "mask"}).load().check()


def test_uneven_coordinates_of_every_kind_of_data():
    data = xarray.Dataset({"x": (("sample", "pos"), array(40, 16)), "y": (("sample", "pos"), array(40, 16))})
    uneven = data.assign_coords(pos=np.arange(16.0) ** 2)
    uneven.to_netcdf("a.nc", engine="h5netcdf")
    write("a.npz", u=array(20, 6, 16), t=UNEVEN)
    for given in ({"files": "a.nc"}, {"files": "a.npz", "time_step": 1}, {"arrays": {"all": uneven.variables}}):
        with refused("uneven"):
            OwnData(**given).load()
    assert OwnData(files="a.npz", time_step="last").load().counts()["train"] == 16  # one step, whose length does not vary


def test_the_step_as_a_channel():
    """Each pair has the time to its output as the last channel of its input."""
    pdebench("a.h5", UNEVEN)
    own = OwnData(files="a.h5", uneven="channel")
    x, _ = own.load().train
    assert labels_of(own.first, "input") == ("time step",)
    assert x[:4, 1, 0].tolist() == [1, 1, 2, 4]
    x, _ = OwnData(files="a.h5", uneven="channel", time_step=2).load().train
    assert x[:2, 1, 0].tolist() == [2, 6]
    pdebench("grid.h5", UNEVEN, UNEVEN[[0, 1, 2, 3, 4, 5, 5, 5]] + np.arange(8))
    with refused("grid.h5 uneven grid"):
        OwnData(files="grid.h5", uneven="channel").load()
    with refused("times uneven"):
        OwnData(files=write("b.npz", u=array(20, 6, 16)), dims="sample time x", time_step=1, uneven="channel").load()


def test_steps_that_differ_between_files_are_a_channel():
    """Files with steps of 1 and 5 were once joined without a word."""
    for step in (1, 5):
        pdebench(f"step{step}.h5", step * np.arange(6.0))
    own = OwnData(files="step*.h5")
    assert own.in_channels == 2
    assert set(own.load().train[0][:, 1].unique().tolist()) == {1.0, 5.0}
    assert own.readings["time step"].startswith("varies between files from 1 to 5")
    assert "time step" not in OwnData(files="step1.h5").readings
    test = OwnData(files={"train": "step1.h5", "test": "step5.h5"}).load().test[0]
    assert test[:, 1].unique().tolist() == [5.0]


def waves(n_points):
    return np.sin(np.linspace(0, 2 * np.pi, n_points) + 6 * np.random.default_rng(0).random((20, 6, 1)))


def test_a_repeated_end_point_causes_one_warning():
    read = {"dims": "sample time x", "time_step": 1}
    write("a.npz", u=waves(33))
    with warned("a.npz.*both ends of x.*'crop'") as found:
        OwnData(files="a.npz", **read).load()
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OwnData(files="a.npz", **read, crop={"x": (0, -1)}).load()
        boundary = np.where(np.isin(np.arange(33), (0, 32)), 0, waves(33))
        OwnData(files=write("b.npz", u=boundary), **read).load()  # both ends are zero, which is no repetition


def test_a_latitude_causes_one_warning():
    data = xarray.Dataset({"u": (("time", "lat", "lon"), array(40, 8, 16))}, {"lat": np.linspace(-70, 70, 8)})
    data.to_netcdf("a.nc", engine="h5netcdf")
    with warned("a.nc.*latitude") as found:
        own = OwnData(files="a.nc", y="u", time_step=1)
        own.load()
    assert len(found) == 1
    assert own.readings["output"] == "u (time lat lon)"
    assert RowReader(own.first, "output").shape == (1, 8, 16)
