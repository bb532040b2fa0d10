"""Formats of the field: files by their specifications, read without a word, and what is wrong with such files."""

from __future__ import annotations

import ast
import re
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from scipy.io import savemat

from neuralop_mup.errors import MupError
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.problems import OwnData
from neuralop_mup.lab.problems.formats import known

RNG = np.random.default_rng(0)


def array(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(path, arrays, attrs=()):
    """An HDF5 file of arrays by their paths, with attributes by the paths of what has them."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.update(arrays)
        for key, values in dict(attrs).items():
            file.require_group(key) if key not in file else None
            file[key].attrs.update(values)
    return path


def well(path, fields, scalars=(), dims=("x", "y"), **root):
    """A file of The Well: fields and scalars are name → (order, array, sample_varying, time_varying[, dim_varying])."""
    n, *_ = (values.shape[0] for _, values, sample, *_ in fields.values() if sample)
    arrays = {f"t{order}_fields/{name}": values for name, (order, values, *_) in fields.items()}
    attrs = {
        "/": {"dataset_name": "made", "grid_type": "cartesian", "n_spatial_dims": len(dims), "n_trajectories": n, **root}
    }
    for name, (order, _, sample, time, *varying) in fields.items():
        attrs[f"t{order}_fields/{name}"] = {
            "sample_varying": sample,
            "time_varying": time,
            "dim_varying": varying or [True] * len(dims),
        }
    for name, (values, sample, time) in dict(scalars).items():
        arrays[f"scalars/{name}"] = values
        attrs[f"scalars/{name}"] = {"sample_varying": sample, "time_varying": time}
    for order in range(3):
        attrs[f"t{order}_fields"] = {"field_names": [name for name, (own, *_) in fields.items() if own == order]}
    attrs |= {"scalars": {"field_names": list(dict(scalars))}, "dimensions": {"spatial_dims": list(dims)}}
    return write(path, arrays, attrs)


def taken(source, which, sample=0, time=None):
    return source.take(which, np.array([sample]), None if time is None else np.array([time]))[0].numpy()


def the_well(path, n=4, reynolds=1e3, order=("density", "buoyancy"), **more):
    """Scalar fields, of which one lacks x, one the time and one the samples, too, a vector and a tensor."""
    kinds = {"density": (0, array(n, 5, 8, 6), True, True), "buoyancy": (0, array(n, 5, 6), True, True, False, True)}
    fields = {key: kinds[key] for key in order} | {
        "porosity": (0, array(n, 8, 6), True, False),
        "mask": (0, array(8, 6), False, False),
        "velocity": (1, array(n, 5, 8, 6, 2), True, True),
        "stress": (2, array(n, 5, 8, 6, 2, 2), True, True),
    }
    scalars = {
        "Reynolds": (np.array([reynolds]), False, False),
        "amplitude": (np.arange(n) + 1.0, True, False),
        "gravity": (np.array(9.81), False, False),
        "energy": (array(5), False, True),
    }
    well(path, fields, scalars, **more)
    return {key: values for key, (_, values, *_) in fields.items()}


def test_the_well_in_full():
    """Channels stand as the specification has them; of the numbers those that vary anywhere are channels of the input."""
    made = [the_well(f"{name}.hdf5", n, reynolds) for name, n, reynolds in (("a", 4, 1e3), ("b", 2, 1e3), ("c", 3, 5e4))]
    found = known({"train": ["a.hdf5", "b.hdf5"], "test": ["c.hdf5"]}, {})
    assert {split: [source.n for source in group] for split, group in found.items()} == {"train": [4, 2], "test": [3]}
    for fields, reynolds, source in zip(made, (1e3, 1e3, 5e4), found["train"] + found["test"], strict=True):
        assert (source.format, source.times, source.grid) == ("The Well, without energy", 5, (8, 6))
        assert source.labels(0) == ("porosity", "mask", "Reynolds", "amplitude")
        tensor = tuple(f"stress {a}" for a in ("xx", "xy", "yx", "yy"))
        assert source.labels(1) == ("density", "buoyancy", "velocity x", "velocity y", *tensor)
        inputs, outputs = taken(source, 0, 1, 3), taken(source, 1, 1, 3)
        assert np.array_equal(inputs[:2], [fields["porosity"][1], fields["mask"]])
        assert (inputs[2:] == np.array([reynolds, 2.0], np.float32)[:, None, None]).all()
        assert np.array_equal(outputs[0], fields["density"][1, 3])
        assert np.array_equal(outputs[1], np.broadcast_to(fields["buoyancy"][1, 3], (8, 6)))
        assert np.array_equal(outputs[2:4], np.moveaxis(fields["velocity"][1, 3], -1, 0))
        assert np.array_equal(outputs[4:], np.moveaxis(fields["stress"][1, 3].reshape(8, 6, 4), -1, 0))


def test_axes_of_one_point_and_tensors_in_one_axis():
    """WellDataset reads fields that keep an axis of one point where they do not vary, and D² is one axis on the page."""
    fields = {"u": (0, array(2, 3, 8, 1), True, True, True, False), "s": (2, array(2, 3, 8, 6, 4), True, True)}
    source = known({"all": [well("a.hdf5", fields)]}, {})["all"][0]
    got = taken(source, 1, 1, 2)
    assert source.labels(1) == ("u", "s xx", "s xy", "s yx", "s yy")
    assert np.array_equal(got[0], np.broadcast_to(fields["u"][1][1, 2], (8, 6)))
    assert np.array_equal(got[1:], np.moveaxis(fields["s"][1][1, 2], -1, 0))


GRID = {"x-coordinate": np.arange(8.0), "y-coordinate": np.arange(6.0), "t-coordinate": np.arange(6.0)}
FLUID = ("density", "pressure", "Vx", "Vy", "Vz")
FORCED = {
    "velocity": array(20, 5, 8, 6, 2),
    "particles": array(20, 5, 8, 6, 1),
    "force": array(20, 8, 6, 2),
    "t": array(20, 5),
}


def cfd(*grid):
    return {key: array(20, 5, *grid) for key in FLUID[: 2 + len(grid)]} | GRID


def groups(*grid):
    coordinates = {f"{i:04}/grid/{word}": np.arange(5.0) for i in range(20) for word in ("t", *"xy"[: len(grid)])}
    return {f"{i:04}/data": array(5, *grid, 2) for i in range(20)} | coordinates


# Arrays, what is told of channels, how many frames, and the number of the first sample of train and test.
PDEBENCH = {
    "scalar": ({"tensor": array(20, 5, 8)} | GRID, "", "tensor", 5, (2, 0)),
    "darcy": ({"tensor": array(20, 1, 8, 6), "nu": array(20, 8, 6)} | GRID, "nu", "tensor", 0, (2, 0)),
    "fluid 1": (cfd(8), "", "density pressure Vx", 5, (2, 0)),
    "fluid 2": (cfd(8, 6), "", "density pressure Vx Vy", 5, (2, 0)),
    "fluid 3": (cfd(8, 6, 4), "", "density pressure Vx Vy Vz", 5, (2, 0)),
    "groups 1": (groups(8), "", "data data", 5, (0, 18)),
    "groups 2": (groups(8, 6), "", "data data", 5, (0, 18)),
    "incompressible": (FORCED, "force force", "velocity velocity particles", 5, (2, 0)),
}


@pytest.mark.parametrize("name", PDEBENCH)
def test_pdebench(name):
    """All layouts, with PDEBench's own test part: the first tenth of arrays, the last tenth of groups."""
    arrays, inputs, outputs, times, firsts = PDEBENCH[name]
    found = known({"all": [write("a.h5", arrays, {"/": {"beta": 0.1}})]}, {})
    assert {split: [source.n for source in group] for split, group in found.items()} == {"train": [18], "test": [2]}
    for split, first in zip(("train", "test"), firsts, strict=True):
        source = found[split][0]
        assert (source.format[:8], source.times) == ("PDEBench", times)
        for which, keys in ((0, inputs.split()), (1, outputs.split())):
            assert [label.split()[0] for label in source.labels(which)] == keys
            for label, got in zip(source.labels(which), taken(source, which, 1, 3 if times else None), strict=True):
                key, channel = (*label.split(), "0")[:2]
                values = arrays[key][first + 1] if key in arrays else arrays[f"{first + 1:04}/data"]
                values = values[3] if times and key != "force" else values
                values = values.reshape(*source.grid, -1)[..., int(channel)]
                assert np.array_equal(got, values)


def test_parameters_that_differ_between_files_are_channels():
    """PDEBench has a file for each parameter of the equation: several are told apart by a constant channel."""
    files = [
        write(f"{beta}.hdf5", {"tensor": array(20, 5, 8)} | GRID, {"/": {"beta": beta, "Nu": 1.0}}) for beta in (0.1, 0.4)
    ]
    found = known({"all": files}, {})
    assert [source.labels(0) for source in found["train"] + found["test"]] == [("beta",)] * 4
    assert [taken(source, 0, 0, 0).mean() for source in found["test"]] == pytest.approx([0.1, 0.4])
    assert known({"all": files[:1]}, {})["test"][0].labels(0) == ()


@pytest.mark.parametrize("layout", ["navier-stokes", "maxwell", "kuramoto-sivashinsky"])
def test_pdearena(layout):
    """A group a split, in files of their own or in one; the buoyancy is a channel, being other in each sample."""
    fields = {
        "navier-stokes": {"u": array(4, 5, 8, 6), "vx": array(4, 5, 8, 6), "vy": array(4, 5, 8, 6), "buo_y": np.arange(4.0)},
        "maxwell": {"d_field": array(4, 5, 8, 6, 4, 3), "h_field": array(4, 5, 8, 6, 4, 3)},
        "kuramoto-sivashinsky": {"pde_140-8": array(4, 5, 8), "dt": np.arange(4.0), "dx": np.full(4, 0.5)},
    }[layout]
    beside = {"t": array(4, 5), "x": array(4, 8)}
    files = [
        write(f"{layout}_{word}_42.h5", {f"{word}/{k}": v for k, v in (fields | beside).items()})
        for word in ("train", "valid")
    ]
    files.append(write(f"{layout}_test_42.h5", {f"test/{k}": v for k, v in (fields | beside).items()}))
    found = known({"all": files}, {})
    assert list(found) == ["train", "val", "test"]
    source = found["test"][0]
    labels, values, number = {
        "navier-stokes": (("u", "vx", "vy"), [fields.get(key) for key in ("u", "vx", "vy")], ("buo_y",)),
        "maxwell": (tuple(f"{k} {i}" for k in ("d_field", "h_field") for i in range(3)), None, ()),
        "kuramoto-sivashinsky": (("pde_140-8",), [fields.get("pde_140-8")], ("dt",)),
    }[layout]
    values = values or [fields[key][..., i] for key in ("d_field", "h_field") for i in range(3)]
    assert (source.labels(0), source.labels(1)) == (number, labels)
    assert np.array_equal(taken(source, 1, 2, 3), [each[2, 3] for each in values])
    assert (taken(source, 0, 2, 3) == 2.0).all()


@pytest.mark.parametrize("version", ["5", "7.3"])
@pytest.mark.parametrize("problem", ["burgers", "darcy", "navier-stokes"])
def test_first_fno(problem, version):
    """Time is the last axis, and never one of the grid; MATLAB 7.3 has all axes in reverse order."""
    a, u = {
        "burgers": (array(12, 8), array(12, 8)),
        "darcy": (array(12, 8, 6), array(12, 8, 6)),
        "navier-stokes": (array(12, 8, 6), array(12, 8, 6, 5)),
    }[problem]
    keys = ("coeff", "sol") if problem == "darcy" else ("a", "u")
    arrays = dict(zip(keys, (a, u), strict=True)) | {"t": np.arange(5.0)[None], "visc": np.ones((1, 1))}
    if version == "5":
        savemat("a.mat", arrays)
    else:
        write("a.mat", {key: values.T for key, values in arrays.items()}, dict.fromkeys(arrays, {"MATLAB_class": "double"}))
    source = known({"all": ["a.mat"]}, {})["all"][0]
    if problem == "navier-stokes":
        assert (source.times, source.format, source.labels(0)) == (5, "FNO paper, without a", ())
        assert np.array_equal(taken(source, 1, 2, 3)[0], u[2, :, :, 3])
    else:
        assert (source.times, source.format, source.labels(0)) == (0, "FNO paper", keys[:1])
        assert np.array_equal(taken(source, 0, 2)[0], a[2]) and np.array_equal(taken(source, 1, 2)[0], u[2])


OTHERS = {
    "tensor.h5": {"tensor": array(20, 5, 8)},  # no coordinates
    "series.h5": {"tensor": array(20, 5, 8, 6), "nu": array(20, 8, 6)} | GRID,  # Darcy has one frame
    "plane.h5": {key: array(20, 5, 8) for key in FLUID} | GRID,  # fields in three dimensions have five axes
    "root.h5": {key: array(4, 5, 8, 6) for key in ("u", "vx", "vy")},  # no group that is a split
    "well.h5": {"t0_fields/u": array(4, 5, 8, 6)},  # says nothing of itself
    "pair.npz": {"a": array(12, 8), "u": array(12, 8)},  # no file of MATLAB
    "first.mat": {"a": array(12, 8, 6), "u": array(12, 5, 8, 6), "t": array(1, 5)},  # time is not last
    "edges.mat": {"a": array(12, 8), "u": array(12, 9)},
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_a_format(name):
    """Keys, numbers of axes and what points along them must be as the specification has it."""
    {".npz": lambda p, a: np.savez(p, **a), ".mat": savemat}.get(Path(name).suffix, write)(name, OTHERS[name])
    assert known({"all": [name]}, {}) is None


def test_the_user_is_right():
    """Keys that are named count for more than a format."""
    savemat("a.mat", {"a": array(12, 8), "u": array(12, 8)})
    assert known({"all": ["a.mat"]}, {"x": "u", "y": "a"}) is None


def _without(key, name):
    the_well("a.hdf5")
    with h5py.File("a.hdf5", "a") as file:
        del (file[key].attrs if name in file[key].attrs else file[key])[name]


def _short_group():
    write("a.hdf5", groups(8) | {"0021/data": array(4, 8, 2)})


def _another():
    the_well("a.hdf5")
    write("b.hdf5", {"x": array(4, 8)})


WRONG = {
    "an attribute": (
        lambda: _without("t0_fields/density", "dim_varying"),
        "a.hdf5 is a file of The Well, but has no 'dim_v",
    ),
    "a field": (lambda: _without("t1_fields", "velocity"), "a.hdf5 .* has no 't1_fields/velocity'"),
    "axes": (
        lambda: well("a.hdf5", {"u": (0, array(4, 5, 8), True, True)}),
        "t0_fields/u in a.hdf5 has the shape .4, 5, 8.",
    ),
    "steady": (lambda: well("a.hdf5", {"u": (0, array(4, 8, 6), True, False)}), "a.hdf5 has no field that varies in time"),
    "a group": (_short_group, r"data in a.hdf5 cannot be read: .* its shape is \(4, 8, 2\), where \(5, 8, 2\) was expected"),
    "another": (_another, "b.hdf5 is no file of The Well, as the first one is"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_a_file(wrong):
    make, message = WRONG[wrong]
    make()
    with pytest.raises(MupError, match=message):
        OwnData(files=sorted(map(str, Path().glob("*.hdf5")))).load()


def _well_folder():
    for split, n in (("train", 6), ("valid", 3), ("test", 3)):
        the_well(f"data/{split}/a.hdf5", n)
    return "."


def _arena_folder():
    for word, n in (("train", 6), ("valid", 3), ("test", 3)):
        arrays = {f"{word}/{key}": array(n, 5, 8, 6) for key in ("u", "vx", "vy")} | {f"{word}/buo_y": np.full(n, 0.5)}
        write(f"smoke_{word}_42.h5", arrays)
    return "."


def _mat(problem):
    keys = ("coeff", "sol") if problem == "darcy" else ("a", "u")
    shape = (12, 8) if problem == "burgers" else (12, 8, 6)
    solution = array(*shape, *[5] * (problem == "navier-stokes"))
    savemat(f"{problem}.mat", {keys[0]: array(*shape), keys[1]: solution, "t": np.arange(5.0)[None]})
    return f"{problem}.mat"


def _generic(name):
    x, y = array(20, 1, 8, 6), array(20, 1, 8, 6)
    if name == "npy":
        Path("d").mkdir()
        np.save("d/x.npy", x)
        np.save("d/y.npy", y)
        return "d"
    if name in ("nc", "zarr"):
        xarray = pytest.importorskip("xarray")
        pytest.importorskip("zarr")
        made = xarray.Dataset({key: (("sample", "channel", "p", "q"), v) for key, v in (("x", x), ("y", y))})
        made.to_netcdf("d.nc", engine="h5netcdf") if name == "nc" else made.to_zarr("d.zarr", zarr_format=2)
    elif name == "7.3":
        return write("d.mat", {"x": x.T, "y": y.T}, dict.fromkeys("xy", {"MATLAB_class": "double"}))
    elif name == "pt":
        torch.save({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, "d.pt")
    else:
        {"npz": np.savez, "mat": lambda p, **a: savemat(p, a), "h5": lambda p, **a: write(p, a)}[name](f"d.{name}", x=x, y=y)
    return f"d.{name}"


# What makes it, channels of input and output, pairs of each split, and what is told.
SPLIT = {"train": 16, "val": 2, "test": 2}
IN_TIME = {"train": 64, "val": 8, "test": 8}
REPORTS = {
    "The Well": (_well_folder, (11, 8), {"train": 24, "val": 12, "test": 12}, "The Well, without energy"),
    **{
        f"PDEBench {name}": (
            partial(write, "a.h5", arrays),
            None,
            {"train": 16, "val": 2, "test": 2} if name == "darcy" else IN_TIME,
            "tests on samples 18 to 19" if "groups" in name else "tests on samples 0 to 1",
        )
        for name, (arrays, *_) in PDEBENCH.items()
    },
    "PDEArena": (_arena_folder, (3, 3), {"train": 24, "val": 12, "test": 12}, "PDEArena"),
    "FNO paper burgers": (partial(_mat, "burgers"), (1, 1), {"train": 10, "val": 1, "test": 1}, "FNO paper"),
    "FNO paper darcy": (partial(_mat, "darcy"), (1, 1), {"train": 10, "val": 1, "test": 1}, "FNO paper"),
    "FNO paper flow": (partial(_mat, "navier-stokes"), (1, 1), {"train": 40, "val": 4, "test": 4}, "FNO paper, without a"),
    **{
        name: (partial(_generic, name), (1, 1), SPLIT, "") for name in ("npz", "npy", "pt", "h5", "mat", "7.3", "nc", "zarr")
    },
}


@pytest.mark.parametrize("name", REPORTS)
def test_from_files_to_a_report_in_one_command(name, capsys):
    """Every layout that has a name and every kind of file, without an option about how it is read."""
    make, channels, counts, told = REPORTS[name]
    path = make()
    data = OwnData(files=path)
    assert (channels is None or (data.in_channels, data.out_channels) == channels) and data.load().counts() == counts
    assert told in data.readings.get("format", "")
    small = ["--target.hidden_channels", "8", "--target.n_modes", "4", "--target.n_layers", "1", "--batch_size", "5"]
    assert main(["train", "--data", path, *small, "--epochs", "1", "--folder", "r"]) == 0, capsys.readouterr().err
    assert told in Path("r", "report.md").read_text()


def test_four_frames_to_one_and_another_order():
    """The Well's baselines take four frames; a file whose channels stand in another order is refused."""
    data = OwnData(files=_well_folder(), history=4)
    assert (data.in_channels, data.load().counts()["train"]) == (4 * 8 + 3, 6)
    the_well("data/train/b.hdf5", order=("buoyancy", "density"))
    with pytest.raises(
        MupError, match="data/train/b.hdf5 holds .* → buoyancy, density, .*, but .*a.hdf5 .* → density, buoy"
    ):
        OwnData(files=".").load()


def test_a_format_without_a_name_takes_two_tries():
    """Of files that name their axes the message has the line to write; levels are channels, train.zarr is a file."""
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    axes = ("sample", "time", "lev", "lat", "lon")
    for split, n in (("train", 6), ("valid", 3), ("test", 3)):
        fields = {"u": (axes, array(n, 5, 2, 8, 6)), "pres": ((*axes[:2], *axes[3:]), array(n, 5, 8, 6))}
        xarray.Dataset(fields).to_zarr(f"sea/{split}.zarr", zarr_format=2)
    with pytest.raises(MupError, match=r"in time read={.*'time_step': 1} .in the shell: --read.y .*; a plus") as error:
        OwnData(files="sea").load()
    line = re.search(r"in time read=({.*?})", str(error.value))[1]
    data = OwnData(files="sea", **ast.literal_eval(line))
    assert (data.in_channels, data.load().counts()) == (3, {"train": 24, "val": 12, "test": 12})
