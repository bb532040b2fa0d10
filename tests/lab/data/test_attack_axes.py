"""Readings of axes, keys and coordinates that were silently wrong: each is now right or an error."""

import h5py
import numpy as np
import pytest
import xarray as xr

from neuralop_mup.lab.data import OwnData
from neuralop_mup.lab.data.given import as_source
from neuralop_mup.lab.data.roles import described, labels_of
from support.errors import refused
from support.files import array, write, write_hdf5


def load(files, **read):
    return OwnData(files=files, **{"shuffle": False, **read}).load()


def write_dims(path, values, dims, coords=None):
    xr.Dataset({"a": (dims, values), "u": (dims, 2 * values)}, coords).to_netcdf(path, engine="h5netcdf")
    return path


def test_files_with_their_axes_in_another_order_are_aligned():
    values = array(20, 16, 16)
    files = [
        write_dims("f0.nc", values, ("sample", "x", "y")),
        write_dims("f1.nc", values.swapaxes(1, 2), ("sample", "y", "x")),
    ]
    data = load(files, x="a", y="u")
    x = np.concatenate([data.train[0], data.val[0], data.test[0]])[:, 0]
    assert np.allclose(x, np.concatenate([values, values]))
    data = load({"train": files[0], "test": files[1]}, x="a", y="u")
    assert np.allclose(data.test[0][:, 0], values)


def test_files_with_other_axes_or_a_reversed_coordinate_are_refused():
    values, lat = array(20, 16, 16), np.arange(16.0)
    dims = ("sample", "lat", "lon")
    files = [write_dims("l0.nc", values, dims, {"lat": lat}), write_dims("l1.nc", values, dims, {"lat": lat[::-1]})]
    with refused("increases decreases l0.nc l1.nc lat"):
        load(files, x="a", y="u")
    with refused("not clear lat lon"):
        load([files[0], write_dims("o.nc", values, ("sample", "p", "q"))], x="a", y="u")


def test_grids_x_and_y_beside_a_field_are_no_pair():
    x, y = np.meshgrid(np.linspace(0, 1, 32), np.linspace(0, 1, 32), indexing="ij")
    for shape in ((50, 10, 32, 32), (20, 32, 32), (32, 32)):
        with refused("which input output u"):
            load(write("mesh.npz", x=x, y=y, u=array(*shape), t=np.arange(10.0)))


def test_one_sample_is_not_read_as_many():
    with refused("1samples"):
        load(write("one.npz", x=array(1, 64, 64), y=array(1, 64, 64)))
    with refused("2 ways"):
        load(write("one.npz", x=array(1, 64, 48), y=array(1, 64, 48)))
    data = load(write("channel.npz", x=array(1, 40, 16), y=array(40, 16)))
    assert data.counts() == {"train": 32, "val": 4, "test": 4}


@pytest.mark.parametrize("group", ["", "m/"])
def test_the_coordinate_nearest_to_the_field_counts(group):
    arrays = {f"{group}a": array(40, 16), f"{group}u": array(40, 16), f"{group}x": np.arange(16.0)}
    arrays |= {f"{name}/x": np.arange(16.0) ** 2 for name in "bcdefghiz"}
    data = load(write("two.h5", **arrays), x=f"{group}a", y=f"{group}u")
    assert data.counts() == {"train": 32, "val": 4, "test": 4}


@pytest.mark.filterwarnings("ignore:.*latitude")
@pytest.mark.parametrize("names", ["x y", "y x", "z y x", "lat lon", "longitude latitude"])
@pytest.mark.parametrize("shape", [(20, 16, 12, 8), (11, 20, 16, 12, 8), (16, 12, 8, 20)])
def test_lengths_of_coordinates_identify_axes_in_any_order(names, shape):
    """Many solvers store the last axis of space first, and HDF5 files often have no names of axes."""
    points = dict(zip(names.split(), (16, 12, 8), strict=False))
    shape = tuple(n for n in shape if n in {20, 11, *points.values()})
    coordinates = {name: np.linspace(0, 1, n) for name, n in {**points, "t": 20}.items()}
    own = OwnData(files=write("u.h5", u=array(*shape), **coordinates), time_step=1)
    lengths = {20: "time", 11: "sample", **{n: name for name, n in points.items()}}
    assert described(own.first, "output") == f"u ({' '.join(lengths[n] for n in shape)})"


def test_scalars_of_groups_do_not_name_the_axes_of_fields():
    runs = {f"run{i}/{key}": values for i in range(12) for key, values in (("u", array(11, 24)), ("nu", np.float64(i)))}
    own = OwnData(files=write_hdf5("runs.h5", runs), y="*/u", x="*/nu", time_step=1)
    assert described(own.first, "output") == "*/u (sample time x)" and described(own.first, "input") == "*/nu (sample)"


def test_what_is_suggested_for_grid_vectors_and_unpaired_files_can_be_passed():
    forcing, flow = array(40, 16, 12, 2), array(40, 16, 12, 1)
    file = write(
        "grid.npz", forcing=forcing, flow=flow, gridx=np.linspace(0, 1, 16)[None], gridy=np.linspace(0, 1, 12)[None]
    )
    read = {"x": "forcing+gridx+gridy", "y": "flow"}
    with refused("grid.npz 'gridx':'channelx' 'flow':'samplexychannel'"):
        OwnData(files=file, **read).load()
    dims = {"forcing": "sample x y channel", "flow": "sample x y channel", "gridx": "channel x", "gridy": "channel y"}
    assert OwnData(files=file, **read, dims=dims).in_channels == 4
    for name in "au":
        np.save(f"{name}.npy", array(40, 16))
    with refused("x.npy y.npy"):
        OwnData(files=["a.npy", "u.npy"], x="a", y="u").load()
    x = array(40, 10, 24)
    with refused("only trajectory y"):
        as_source((x, x + 1), {"dims": "sample time x"}).load()
    frames = write("u.npz", a=array(40, 32), u=array(40, 11, 32), t=np.arange(11.0), x=np.arange(32.0))
    with refused("'samplechannelx'"):
        OwnData(files=frames, x="a", y="u", dims={"a": "sample x", "u": "sample time x"}).load()


def test_maps_at_the_same_time_are_offered():
    """A file of t2m and u10 over time may be for a forecast, or for a map from one to the other."""
    fields = xr.Dataset({key: (("time", "y", "x"), array(40, 16, 12)) for key in ("a", "u")}, {"time": np.arange(40)})
    with refused("{'time_step':1} {'dims':'sampleyx'}"):
        as_source(fields, {"x": "a", "y": "u"}).load()
    assert as_source(fields, {"x": "a", "y": "u", "dims": "sample y x"}).load().counts()["train"] == 32


ALL = {"t": 11, "y": 16, "x": 12}


@pytest.mark.filterwarnings("ignore:.*latitude")
@pytest.mark.parametrize(
    ("arrays", "lengths", "expected"),
    [
        # The initial state lacks time. A coordinate identifies time, or it might be a third axis of the grid.
        ({"a": (30, 16, 12), "u": (30, 11, 16, 12)}, ALL, "sample time y x"),
        ({"a": (30, 16, 12), "u": (30, 11, 16, 12)}, {"t": 11, "lat": 16, "lon": 12}, "sample time lat lon"),
        ({"a": (30, 20, 24), "u": (30, 18, 20, 24)}, {"y": 20, "x": 24}, None),
        ({"a": (30, 20, 24), "u": (30, 18, 20, 24)}, {}, None),
        # Lengths give names, also if they do not decide what is a sample.
        ({"a": (30, 20, 24), "u": (30, 20, 24)}, {"x": 24}, "sample y x"),
        ({"a": (30, 3, 16, 12), "u": (30, 3, 16, 12)}, {"lat": 16, "lon": 12}, "sample channel lat lon"),
        # One axis fits no coordinate, or two axes fit the same one.
        ({"u": (30, 18, 16, 12)}, {"y": 16, "x": 12}, None),
        ({"u": (21, 30, 16)}, {"t": 21, "x": 16}, None),
        ({"u": (12, 11, 16, 12)}, ALL, None),
        # Rows are not samples if coordinates say that each file is one sample.
        ({"a": (64, 48), "u": (64, 48)}, {"y": 64, "x": 48}, None),
    ],
)
def test_readings_that_coordinates_decide_and_do_not_decide(arrays, lengths, expected):
    """Each of these was once read in silence as something else, or could be."""
    values = {key: array(*shape) for key, shape in arrays.items()}
    file = write("u.npz", **values, **{name: np.linspace(0, 1, n) for name, n in lengths.items()})
    read = {"y": "u", **({"x": "a"} if "a" in arrays else {"time_step": 1})}
    if expected is None:
        with refused("u.npz dims"):
            OwnData(files=file, **read).load()
    else:
        assert OwnData(files=file, **read).first.attrs["words"]["u"] == tuple(expected.split())


@pytest.mark.parametrize("scales", [{}, {1: "t", 2: "y", 3: "x"}, {0: "n", 1: "t", 2: "y", 3: "x"}])
def test_axes_of_equal_length_need_names_to_be_cropped(scales):
    """A crop of x was once applied to y. Names of some axes do not count."""
    points = {"n": 20, "t": 11, "y": 16, "x": 16}
    file = write_hdf5("u.h5", {"u": array(20, 11, 16, 16), **{name: np.linspace(0, 1, n) for name, n in points.items()}})
    with h5py.File(file, "a") as opened:
        for axis, name in scales.items():
            opened[name].make_scale(name)
            opened["u"].dims[axis].attach_scale(opened[name])
    assert OwnData(files=file, time_step=1).grid_shape == (16, 16)
    for read in ({"crop": {"x": (0, 12)}}, {"every": {"x": 2}}):
        if 0 in scales:
            assert OwnData(files=file, time_step=1, **read).grid_shape[0] == 16
        else:
            with refused("x y u.h5 dims"):
                OwnData(files=file, time_step=1, **read).load()
        dims = "sample time y x"
        assert OwnData(files=file, time_step=1, dims=dims, **read).grid_shape[0] == 16


def test_unequal_numbers_of_samples_are_named():
    with refused("xhas40samples yhas30samples"):
        load(write("d.npz", x=array(40, 16), y=array(30, 16)))


@pytest.mark.parametrize("labels", [3, "velocity", ["p", "q", "r"]])
def test_labels_that_a_file_has_are_not_names_of_channels(labels):
    arrays = {"x": array(20, 2, 8), "y": array(20, 2, 8)}
    file = write_hdf5("labels.h5", arrays, {"x": {"labels": labels}})
    own = OwnData(files=file)
    assert own.in_channels == 2
    assert labels_of(own.first, "input") == ("x 0", "x 1")


@pytest.mark.parametrize("name", ["format", "file", "words", "attrs", "steps", "spaces"])
def test_axes_may_have_the_names_of_attributes(name):
    values = array(40, 8, 16)
    arrays = {"x": values, "y": values}
    assert load(write("d.npz", **arrays), dims=f"sample {name} x").counts() == {"train": 32, "val": 4, "test": 4}
    with refused("time axis d.npz"):
        load(write("d.npz", **arrays), dims=f"sample {name} x", time_step=1)
    with refused("time_step d.npz"):
        load(write("d.npz", u=values), y="u", dims=f"sample time {name}")


def test_axes_with_a_colon_belong_to_the_grid():
    """They have the form of the names of fields and their channels."""
    values = array(40, 8, 16)
    for name in ("input:x", "channel:1"):
        data = load(write("d.npz", x=values, y=values), dims=f"sample {name} x")
        assert np.array_equal(data.test[0], values[36:, None])
        named = xr.Dataset(dict.fromkeys("ab", (("sample", name, "x"), values)), {name: np.arange(8.0)})
        assert np.array_equal(as_source(named, {"x": "a", "y": "b", "shuffle": False}).load().test[0], values[36:, None])
