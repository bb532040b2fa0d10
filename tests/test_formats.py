"""Formats of the field: files by their specifications, read without a word, and what is wrong with such files."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems.formats import FORMATS, known

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


def the_well(folder, n=4, reynolds=1e3, order=("density", "buoyancy"), split="train", name="a", dims=("x", "y")):
    """Every kind of field: scalars in time, one that lacks x, one constant in time, one in samples, too, a vector, a tensor."""
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
    well(Path(folder, "data", split, f"{name}.hdf5"), fields, scalars, dims)
    return {key: values for key, (_, values, *_) in fields.items()}


def test_the_well_in_full(tmp_path):
    """Splits are folders, channels stand as the specification has them, and only what varies is a channel of the input."""
    made = {split: the_well("w", n, 1e3, split=split) for split, n in (("train", 4), ("valid", 2), ("test", 3))}
    the_well("w", 1, 5e4, name="b")
    found = known(["w"], {})
    assert {split: [source.n for source in group] for split, group in found.items()} == {
        "train": [4, 1],
        "val": [2],
        "test": [3],
    }
    source = found["train"][0]
    assert (source.format, source.times, source.grid) == ("The Well, without energy", 5, (8, 6))
    assert source.labels(0) == ("porosity", "mask", "Reynolds", "amplitude")
    tensor = tuple(f"stress {a}" for a in ("xx", "xy", "yx", "yy"))
    assert source.labels(1) == ("density", "buoyancy", "velocity x", "velocity y", *tensor)
    for split, (group, *_) in zip(made, found.values(), strict=True):
        fields, inputs, outputs = made[split], taken(group, 0, 1, 3), taken(group, 1, 1, 3)
        assert np.array_equal(inputs[:2], [fields["porosity"][1], fields["mask"]])
        assert (inputs[2:] == np.array([1e3, 2.0], np.float32)[:, None, None]).all()
        assert np.array_equal(outputs[0], fields["density"][1, 3])
        assert np.array_equal(outputs[1], np.broadcast_to(fields["buoyancy"][1, 3], (8, 6)))
        assert np.array_equal(outputs[2:4], np.moveaxis(fields["velocity"][1, 3], -1, 0))
        assert np.array_equal(outputs[4:], np.moveaxis(fields["stress"][1, 3].reshape(8, 6, 4), -1, 0))


@pytest.mark.parametrize(
    ("given", "splits"), [("w/data", {"train", "test"}), ("w/data/train", {"train"}), ("w/data/test/a.hdf5", {"test"})]
)
def test_a_part_of_the_well(given, splits):
    for split in ("train", "test"):
        the_well("w", split=split)
    assert set(known([given], {})) == splits


def test_axes_of_one_point_and_tensors_in_one_axis():
    """WellDataset reads fields that keep an axis of one point where they do not vary, and D² is one axis on the page."""
    fields = {"u": (0, array(2, 3, 8, 1), True, True, True, False), "s": (2, array(2, 3, 8, 6, 4), True, True)}
    source = known([well("a.hdf5", fields)], {})["all"][0]
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
    found = known([write("a.h5", arrays, {"/": {"beta": 0.1}})], {})
    assert {split: [source.n for source in group] for split, group in found.items()} == {"train": [18], "test": [2]}
    for split, first in zip(("train", "test"), firsts, strict=True):
        source = found[split][0]
        assert (source.format, source.times) == ("PDEBench", times)
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
    found = known(files, {})
    assert [source.labels(0) for source in found["train"] + found["test"]] == [("beta",)] * 4
    assert [taken(source, 0, 0, 0).mean() for source in found["test"]] == pytest.approx([0.1, 0.4])
    assert known(files[:1], {})["test"][0].labels(0) == ()


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
    found = known(files, {})
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
    """Time is the last axis and never one of the grid; MATLAB 7.3 has all axes in reverse order."""
    a, u = {
        "burgers": (array(12, 8), array(12, 8)),
        "darcy": (array(12, 8, 6), array(12, 8, 6)),
        "navier-stokes": (array(12, 8, 6), array(12, 8, 6, 5)),
    }[problem]
    keys = ("coeff", "sol") if problem == "darcy" else ("a", "u")
    arrays = dict(zip(keys, (a, u), strict=True)) | {"t": np.arange(5.0)[None], "loss": np.ones((1, 1))}
    if version == "5":
        savemat("a.mat", arrays)
    else:
        write("a.mat", {key: values.T for key, values in arrays.items()}, dict.fromkeys(arrays, {"MATLAB_class": "double"}))
    source = known(["a.mat"], {})["all"][0]
    if problem == "navier-stokes":
        assert (source.times, source.format, source.labels(0)) == (5, "FNO paper, without a", ())
        assert np.array_equal(taken(source, 1, 2, 3)[0], u[2, :, :, 3])
    else:
        assert (source.times, source.format, source.labels(0)) == (0, "FNO paper", keys[:1])
        assert np.array_equal(taken(source, 0, 2)[0], a[2]) and np.array_equal(taken(source, 1, 2)[0], u[2])
