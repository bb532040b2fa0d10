"""Formats of the field: files as their specifications describe them are read without an option."""

import ast
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray

from neuralop_mup.lab.cli import main
from neuralop_mup.lab.data import OwnData
from neuralop_mup.lab.data.formats import with_format
from neuralop_mup.lab.data.readers import read_file
from neuralop_mup.lab.data.roles import labels_of
from support.errors import refused
from support.files import array, assert_equal, needs_zarr, write, write_hdf5, write_matlab73

TRAIN_ARGUMENTS = "--target.hidden_channels 4 --target.n_modes 4 --target.n_layers 1 --epochs 1 --folder r"


def read(files, **how):
    own = OwnData(files=files, shuffle=False, **how)
    return own, own.load()


def labels(own):
    return labels_of(own.first, "input"), labels_of(own.first, "output")


def in_time(values):
    """Turn (samples, times, channels, *grid) into pairs of consecutive frames."""
    return values[:, :-1].reshape(-1, *values.shape[2:]), values[:, 1:].reshape(-1, *values.shape[2:])


# The Well


def write_well(path, fields, scalars=(), **root):
    """Write fields and scalars: name → (order, array, sample_varying, time_varying[, *dim_varying])."""
    arrays, attrs = {}, {"/": {"dataset_name": "made", "grid_type": "cartesian", "n_spatial_dims": 2, **root}}
    attrs |= {f"t{order}_fields": {"field_names": [k for k in fields if fields[k][0] == order]} for order in range(3)}
    attrs |= {"scalars": {"field_names": list(dict(scalars))}, "dimensions": {"spatial_dims": ["x", "y"]}}
    for name, (order, values, sample, time, *varying) in {**fields, **dict(scalars)}.items():
        key = f"scalars/{name}" if name in dict(scalars) else f"t{order}_fields/{name}"
        arrays[key] = values
        attrs[key] = {"sample_varying": sample, "time_varying": time, "dim_varying": varying or [True, True]}
    return write_hdf5(path, arrays, attrs)


def the_well(path, n=4, reynolds=1e3, order=("density", "buoyancy")):
    """Write fields of each order; some do not vary in x, in time or between samples. Return arrays by their names."""
    scalar_fields = {"density": (0, array(n, 5, 8, 6), True, True), "buoyancy": (0, array(n, 5, 6), True, True, False, True)}
    fields = {key: scalar_fields[key] for key in order} | {
        "porosity": (0, array(n, 8, 6), True, False),
        "mask": (0, array(8, 6), False, False),
        "velocity": (1, array(n, 5, 8, 6, 2), True, True),
        "stress": (2, array(n, 5, 8, 6, 2, 2), True, True),
    }
    scalars = {
        "Reynolds": (0, np.array([reynolds]), False, False),
        "amplitude": (0, np.arange(n) + 1.0, True, False),
        "gravity": (0, np.array(9.81), False, False),
        "energy": (0, array(5), False, True),
    }
    write_well(path, fields, scalars)
    return {key: values for key, (_, values, *_) in fields.items()}


def well_folder():
    for split, n in (("train", 6), ("valid", 3), ("test", 3)):
        the_well(f"data/{split}/a.hdf5", n)
    return "."


def test_the_well():
    """Scalars that differ between samples or files are inputs; a scalar in time may be a result and is left out."""
    the_well("a.hdf5", 4)
    the_well("b.hdf5", 2)
    test = the_well("c.hdf5", 3, reynolds=5e4)
    own, data = read({"train": ["a.hdf5", "b.hdf5"], "test": "c.hdf5"})
    assert (data.counts(), own.grid_shape) == ({"train": 20, "val": 4, "test": 12}, (8, 6))
    assert own.readings["format"] == "The Well, without energy"
    tensor = ("stress xx", "stress xy", "stress yx", "stress yy")
    moving = ("density", "buoyancy", "velocity x", "velocity y", *tensor)
    assert labels(own) == (("porosity", "mask", "Reynolds", "amplitude"), moving)
    frames = np.empty((3, 5, 8, 8, 6), np.float32)
    frames[:, :, 0] = test["density"]
    frames[:, :, 1] = test["buoyancy"][:, :, None]
    frames[:, :, 2:4] = np.moveaxis(test["velocity"], -1, 2)
    frames[:, :, 4:] = np.moveaxis(test["stress"].reshape(3, 5, 8, 6, 4), -1, 2)
    x, y = data.test
    assert_equal((x[:, :8], y), in_time(frames))
    constant = np.repeat(test["porosity"], 4, axis=0), np.tile(test["mask"], (12, 1, 1))
    assert_equal((x[:, 8], x[:, 9], x[:, 10:, 0, 0]), (*constant, [[5e4, 1 + i // 4] for i in range(12)]))
    assert (data.train[0][:, 10] == 1e3).all()


def test_the_well_with_axes_of_one_point():
    """WellDataset reads fields that keep an axis of one point where they do not vary, and tensors in one axis."""
    u, s = array(12, 3, 8, 1), array(12, 3, 8, 6, 4)
    own, data = read(write_well("a.hdf5", {"u": (0, u, True, True, True, False), "s": (2, s, True, True)}))
    assert labels(own)[1] == ("u", "s xx", "s xy", "s yx", "s yy")
    last = np.concatenate([np.broadcast_to(u[0, 2], (8, 6))[None], np.moveaxis(s[0, 2], -1, 0)])
    assert np.array_equal(data.train[1][1], last)


def test_the_well_with_another_order_of_fields():
    assert OwnData(files=well_folder(), history=4).in_channels == 4 * 8 + 3  # four frames, as The Well's baselines
    the_well("data/train/b.hdf5", order=("buoyancy", "density"))
    with refused("a.hdf5 b.hdf5 buoyancy,density density,buoyancy"):
        read(".")


# PDEBench

GRID = {"x-coordinate": np.arange(8.0), "y-coordinate": np.arange(6.0), "t-coordinate": np.arange(6.0)}
FLUID = ("density", "pressure", "Vx", "Vy", "Vz")


def fluid(*grid):
    return {key: array(20, 5, *grid) for key in FLUID[: 2 + len(grid)]}


# Layout: arrays that are channels of every frame, with a channel axis where they have one, and arrays constant in time.
LAYOUTS = {
    "scalar": ({"tensor": array(20, 5, 8)}, {}),
    "fluid 1": (fluid(8), {}),
    "fluid 2": (fluid(8, 6), {}),
    "fluid 3": (fluid(8, 6, 4), {}),
    "groups 1": ({"data": array(20, 5, 8, 2)}, {}),
    "groups 2": ({"data": array(20, 5, 8, 6, 2)}, {}),
    "forced": ({"velocity": array(20, 5, 8, 6, 2), "particles": array(20, 5, 8, 6, 1)}, {"force": array(20, 8, 6, 2)}),
}


def write_pdebench(name, path="a.h5", beta=0.1):
    frames, constant = LAYOUTS[name]
    arrays = {**frames, **constant, **({"t": array(20, 5)} if constant else GRID)}
    if "groups" in name:
        words = "txy"[: frames["data"].ndim - 2]
        shape = dict(zip("txy", frames["data"].shape[1:], strict=False))
        arrays = {f"{i:04}/grid/{word}": np.arange(float(shape[word])) for i in range(20) for word in words}
        arrays |= {f"{i:04}/data": values for i, values in enumerate(frames["data"])}
    return write_hdf5(path, arrays, {"/": {"beta": beta, "Nu": 1.0}})


def channels_first(arrays, place, has_channels):
    return np.concatenate([np.moveaxis(a, -1, place) if has_channels else np.expand_dims(a, place) for a in arrays], place)


@pytest.mark.parametrize("name", LAYOUTS)
def test_pdebench(name):
    """PDEBench's own test part is the first tenth of arrays, or the last tenth of groups."""
    own, data = read(write_pdebench(name))
    frames, constant = LAYOUTS[name]
    assert data.counts() == {"train": 64, "val": 8, "test": 8}
    assert ("18 to 19" if "groups" in name else "0 to 1") in own.readings["format"]
    has_channels = name[:6] in ("groups", "forced")
    every = channels_first(frames.values(), 2, has_channels)
    test, train = (every[18:], every[:16]) if "groups" in name else (every[:2], every[2:18])
    for (x, y), values in ((data.test, test), (data.train, train)):
        assert_equal((x[:, : every.shape[2]], y), in_time(values))
    forces = [channels_first(constant.values(), 1, True)[:2]] if constant else []
    assert all(np.array_equal(data.test[0][::4, 3:], force) for force in forces)


def test_pdebench_darcy():
    flow, nu = array(20, 1, 8, 6), array(20, 8, 6)
    own, data = read(write_hdf5("a.h5", {"tensor": flow, "nu": nu, **GRID}))
    assert (labels(own), data.counts()) == ((("nu",), ("tensor",)), {"train": 16, "val": 2, "test": 2})
    assert_equal(data.test, (nu[:2, None], flow[:2]))


def test_pdebench_files_with_few_samples_have_no_test_part_of_their_own():
    files = [write_hdf5(f"{n}.h5", {"tensor": array(n, 5, 8), **GRID}) for n in (20, 9)]
    own, data = read(files)
    assert "test set" not in own.readings["format"]
    assert sum(data.counts().values()) == 4 * 29


def test_pdebench_parameters_that_differ_between_files_are_channels():
    files = [write_pdebench("scalar", f"{beta}.hdf5", beta) for beta in (0.1, 0.4)]
    own, data = read(files)
    assert labels(own) == (("beta",), ("tensor",))
    assert data.test[0][:, 1, 0].tolist() == pytest.approx([0.1] * 8 + [0.4] * 8)
    assert labels(read(files[0])[0])[0] == ()


# PDEArena and the data of the first FNO paper

ARENA = {
    "flow": ({key: array(4, 5, 8, 6) for key in ("u", "vx", "vy")}, {"buo_y": np.arange(4.0)}),
    "maxwell": ({key: array(4, 5, 8, 6, 4, 3) for key in ("d_field", "h_field")}, {}),
    "kuramoto-sivashinsky": ({"pde_140-8": array(4, 5, 8)}, {"dt": np.arange(4.0), "dx": np.full(4, 0.5)}),
}


@pytest.mark.parametrize("name", ARENA)
def test_pdearena(name):
    """A group for each split, in several files or in one. Parameters that differ between samples are inputs."""
    fields, numbers = ARENA[name]
    inside = {**fields, **numbers, "t": array(4, 5), "x": array(4, 8)}
    words = ("train", "valid", "test")
    files = [write_hdf5(f"d_{word}_42.h5", {f"{word}/{key}": inside[key] for key in inside}) for word in words]
    whole = write_hdf5("d.h5", {f"{word}/{key}": inside[key] for key in inside for word in words})
    for given in (files, whole):
        own, data = read(given)
        assert (data.counts(), labels(own)[0]) == ({"train": 16, "val": 16, "test": 16}, tuple(numbers)[:1])
        x, y = (values.numpy() for values in data.test)
        assert_equal((x[:, : y.shape[1]], y), in_time(channels_first(fields.values(), 2, name == "maxwell")))
        assert (x[:, y.shape[1] :] == (np.arange(16) // 4).reshape(16, *[1] * (x.ndim - 1))).all()


@pytest.mark.parametrize("write_mat", [write, write_matlab73])
def test_files_of_the_first_fno_paper(write_mat):
    """Time is the last axis, and never one of the grid."""
    line, plane, flow = array(12, 8), array(12, 8, 6), array(12, 8, 6, 5)
    beside = {"t": np.arange(5.0)[None], "visc": np.ones((1, 1))}
    for name, arrays in (("burgers.mat", {"a": line, "u": line + 1}), ("darcy.mat", {"coeff": plane, "sol": plane + 1})):
        write_mat(name, **arrays, **beside)
        own, data = read(name)
        assert (own.readings["format"], labels(own)[0]) == ("FNO paper", tuple(arrays)[:1])
        assert_equal(data.train, (values[:10, None] for values in arrays.values()))
    write_mat("flow.mat", a=plane, u=flow, **beside)
    own, data = read("flow.mat")
    assert (own.readings["format"], labels(own)[0]) == ("FNO paper, without a", ())
    assert_equal(data.train, in_time(np.moveaxis(flow, -1, 1)[:10, :, None]))


# Files that only resemble a format, and wrong files

SIMILAR = {
    "tensor.h5": {"tensor": array(20, 5, 8)},  # no coordinates
    "series.h5": {"tensor": array(20, 5, 8, 6), "nu": array(20, 8, 6)} | GRID,  # Darcy has one frame
    "plane.h5": {key: array(20, 5, 8) for key in FLUID} | GRID,  # fields in three dimensions have five axes
    "another.h5": {"tensor": array(20, 5, 8), "other": array(20, 8)} | GRID,  # a field that the format does not have
    "root.h5": {key: array(4, 5, 8, 6) for key in ("u", "vx", "vy")},  # no group that is a split
    "well.h5": {"t0_fields/u": array(4, 5, 8, 6)},  # no attributes
    "pair.npz": {"a": array(12, 8), "u": array(12, 8)},  # not a file of MATLAB
    "first.mat": {"a": array(12, 8, 6), "u": array(12, 5, 8, 6), "t": array(1, 5)},  # time is not last
    "edges.mat": {"a": array(12, 8), "u": array(12, 9)},
}


@pytest.mark.parametrize("name", SIMILAR)
def test_files_that_only_resemble_a_format(name):
    write(name, **SIMILAR[name])
    assert with_format({"all": read_file(name)}) == {}


def test_keys_of_the_user_override_a_format():
    write("a.mat", a=array(12, 8), u=array(12, 8))
    assert labels(read("a.mat", x="u", y="a")[0]) == (("u",), ("a",))


def delete(key, name):
    the_well("a.hdf5")
    with h5py.File("a.hdf5", "a") as file:
        del (file[key].attrs if name in file[key].attrs else file[key])[name]


def write_another_file():
    the_well("a.hdf5")
    write("b.hdf5", x=array(4, 8))


@pytest.mark.parametrize(
    ("write_wrong", "names"),
    [
        (lambda: delete("t0_fields/density", "dim_varying"), "a.hdf5 Well dim_varying"),
        (lambda: delete("t1_fields", "velocity"), "a.hdf5 t1_fields/velocity"),
        (lambda: write_well("a.hdf5", {"u": (0, array(4, 5, 8), True, True)}), "t0_fields/u a.hdf5 (4,5,8)"),
        (lambda: write_well("a.hdf5", {"u": (0, array(4, 8, 6), True, False)}), "a.hdf5 time"),
        (write_another_file, "b.hdf5 Well"),
    ],
)
def test_wrong_file_of_a_format(write_wrong, names):
    write_wrong()
    with refused(names):
        read("*.hdf5")


# From files to a report


@pytest.mark.parametrize(
    ("make", "names"),
    [(well_folder, "The Well, without energy"), (lambda: write_pdebench("groups 1"), "samples 18 to 19")],
)
def test_from_files_to_a_report(make, names, capsys):
    assert main(["train", "--data", make(), *TRAIN_ARGUMENTS.split()]) == 0, capsys.readouterr().err
    assert names in Path("r", "report.md").read_text()


@needs_zarr
def test_file_with_named_axes_needs_one_option():
    """The message has the line to write. Levels of the atmosphere are channels, and train.zarr is one file."""
    axes = ("sample", "time", "lev", "south", "east")
    for split, n in (("train", 6), ("valid", 3), ("test", 3)):
        fields = {"u": (axes, array(n, 5, 2, 8, 6)), "pres": ((*axes[:2], *axes[3:]), array(n, 5, 8, 6))}
        xarray.Dataset(fields).to_zarr(f"sea/{split}.zarr", zarr_format=2)
    with refused("time_step --read.y") as caught:
        read("sea")
    line = re.search(r"in time, pass read=({.*?})", str(caught.value))[1]
    own, data = read("sea", **ast.literal_eval(line))
    assert (own.in_channels, data.counts()) == (3, {"train": 24, "val": 12, "test": 12})
