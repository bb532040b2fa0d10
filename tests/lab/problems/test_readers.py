"""Files of each kind as named arrays, sliced without being read; what their axes are; and what is wrong with a file."""

from __future__ import annotations

import builtins
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems import fields
from neuralop_mup.lab.problems.fields import Variable, named, source_of
from neuralop_mup.lab.problems.readers import Stacked, content_of, files_of, read_file

xarray, zarr = pytest.importorskip("xarray"), pytest.importorskip("zarr")
RNG = np.random.default_rng(0)
A, U = RNG.standard_normal((5, 8, 9)), RNG.standard_normal((5, 7, 8, 9)).astype(np.float32)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def matlab(path, **arrays):
    """As MATLAB 7.3 writes: its own header, and each array column by column, so that HDF5 has the axes reversed."""
    with h5py.File(path, "w", userblock_size=512) as file:
        file["#refs#/a"] = np.zeros(3)
        for key, values in arrays.items():
            file[key] = values.T
            file[key].attrs["MATLAB_class"] = np.bytes_("double")
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")


def tensors(path, new=True, **arrays):
    torch.save({k: torch.from_numpy(v) for k, v in arrays.items()}, path, _use_new_zipfile_serialization=new)


def hdf5(path, how=None, **arrays):
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            file.create_dataset(key, data=values, **(how or {}))


def dataset(a, u):
    points = {"lat": np.linspace(-1, 1, a.shape[1]), "lon": np.arange(a.shape[2])}
    return xarray.Dataset({"a": (("member", "lat", "lon"), a), "u": (("member", "time", "lat", "lon"), u)}, points)


WRITE = {
    "d.npz": np.savez,
    "packed.npz": np.savez_compressed,
    "d.pt": tensors,
    "old.pth": lambda path, **arrays: tensors(path, False, **arrays),
    "d.h5": hdf5,
    "d.hdf5": hdf5,
    "d.mat": lambda path, **arrays: scipy.io.savemat(path, {**arrays, "label": "text", "cell": np.array(["a", 1], object)}),
    "new.mat": matlab,
    "renamed.h5": matlab,
    "d.nc": lambda path, **arrays: dataset(**arrays).to_netcdf(path, engine="h5netcdf"),
    "old.nc": lambda path, **arrays: dataset(**arrays).to_netcdf(path, engine="scipy"),
    "d.zarr": lambda path, **arrays: dataset(**arrays).to_zarr(path, zarr_format=2, consolidated=False),
    "new.zarr": lambda path, **arrays: dataset(**arrays).to_zarr(path, zarr_format=3, consolidated=False),
    "plain.zarr": zarr.save,
    # Of NetCDF under the name of HDF5 the names of the axes are known, too.
    "renamed.hdf5": lambda path, **arrays: dataset(**arrays).to_netcdf(path, engine="h5netcdf"),
}


@pytest.mark.parametrize("name", WRITE)
def test_a_file_of_each_kind(name):
    """Keys, shapes, slices, and fields of any samples at any times, in this process and in another."""
    WRITE[name](name, a=A, u=U)
    content = read_file(name)
    assert {"a": A.shape, "u": U.shape}.items() <= {key: tuple(v.shape) for key, v in content.arrays.items()}.items()
    got = content.arrays["u"][1:4, 2:5, :, 3:4]
    assert np.array_equal(got, U[1:4, 2:5, :, 3:4]) and content.arrays["u"].dtype == np.float32
    assert np.array_equal(content.arrays["u"][3:], U[3:]) and list(content.arrays) == list(read_file(name).arrays)
    known = {"a": ("lat", "lon"), "u": ("time", "lat", "lon")}
    if "u" in content.dims:
        assert {key: content.dims[key][1:] for key in "au"} == known
    read = {} if "u" in content.dims else {"dims": "sample time lat lon"}
    source = pickle.loads(pickle.dumps(named(content, {"x": "a", "y": "u", **read})))
    assert (source.n, source.times, source.grid, source.channels) == (5, 7, (8, 9), (1, 1))
    samples, times = np.array([4, 1, 1, 0]), np.array([0, 6, 5, 3])
    assert np.array_equal(source.take(0, samples, times)[:, 0].numpy(), A[samples])
    assert np.array_equal(source.take(1, samples, times)[:, 0].numpy(), U[samples, times])
    shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()  # nothing has it open


def test_arrays_that_have_no_name():
    np.save("u.npy", U)
    torch.save(torch.from_numpy(U), "u.pt")
    zarr.save("u.zarr", U)
    for name in ("u.npy", "u.pt", "u.zarr"):
        source = named(read_file(name), {"dims": "sample time x y"})
        assert np.array_equal(source.take(1, np.array([3]), np.array([2]))[0, 0].numpy(), U[3, 2])
    torch.save((torch.from_numpy(A), torch.from_numpy(A) + 1), "pair.pt")
    torch.save({"train": {"x": torch.from_numpy(A)}, "n": 3}, "nested.pt")
    assert named(read_file("pair.pt"), {"dims": "sample x y"}).channels == (1, 1)
    assert list(read_file("nested.pt").arrays) == ["train/x"]


def test_groups_and_the_order_of_keys():
    """NetCDF and Zarr with groups, once read without them; Zarr's keys once came in another order each time."""
    for name, how in (("g.nc", {"engine": "h5netcdf"}), ("g.zarr", {"zarr_format": 2, "consolidated": False})):
        write = xarray.Dataset.to_zarr if name == "g.zarr" else xarray.Dataset.to_netcdf
        write(dataset(A, U), name, **how)
        write(dataset(A, U + 1), name, group="deep", mode="a", **how)
        content = read_file(name)
        keys = ["a", "deep/a", "deep/lat", "deep/lon", "deep/u", "lat", "lon", "u"]
        assert list(content.arrays) == keys and content.is_axis("deep/lat")
        source = named(content, {"x": "deep/a", "y": "deep/u"})
        assert np.array_equal(source.take(1, np.array([2]), np.array([3]))[0, 0].numpy(), U[2, 3] + 1)
    zarr.save("p.zarr", **dict.fromkeys("hgfedcba", A))
    assert list(read_file("p.zarr").arrays) == list("abcdefgh")


def test_many_groups_open_quickly(monkeypatch):
    """A group a sample: the first one is looked at, the others are known by their names."""
    hdf5("d.h5", **{f"{i:04d}/{key}": U[i] for i in range(5) for key in ("data", "grid/x")})
    looked, whole = [], h5py.Group.__getitem__
    monkeypatch.setattr(h5py.Group, "__getitem__", lambda *a: looked.append(a[1]) or whole(*a))
    content = read_file("d.h5")
    assert len(content.arrays) == 10 and set(looked) == {"/", "0000", "0000/data", "0000/grid", "0000/grid/x"}


def test_one_sample_of_its_own_beside_many():
    """With a time axis: the same for all samples, and for those of a part of the file."""
    u, forcing = RNG.standard_normal((10, 4, 16)), RNG.standard_normal((1, 4, 16))
    axes = ("sample", "time", "space0")
    source = source_of("d", [Variable("f", forcing, axes)], [Variable("u", u, axes)])
    for some, first in ((source, 0), (replace(source, start=6, n=4), 6)):
        samples, times = np.array([3, 0, 3]), np.array([1, 3, 0])
        assert np.array_equal(some.take(0, samples, times)[:, 0].numpy(), forcing[0, times])
        assert np.array_equal(some.take(1, samples, times)[:, 0].numpy(), u[first + samples, times])


def test_objects_in_memory():
    data = dataset(A, U)
    frame = content_of(data["u"])
    assert set(frame.arrays) == {"u", "lat", "lon"} and frame.dims["u"][0] == "member"
    for content in (content_of(data), content_of({"a": torch.from_numpy(A), "u": data["u"]})):
        source = named(content, {"x": "a", "y": "u", "dims": {"a": "sample lat lon"}})
        assert np.array_equal(source.take(0, np.array([2]), np.array([0]))[0, 0].numpy(), A[2])
    assert content_of({"u": torch.zeros(3, dtype=torch.bfloat16, requires_grad=True)}).arrays["u"].dtype == np.float32


def test_only_what_is_asked_for_is_read(monkeypatch):
    """Of HDF5 what a batch needs, each frame once; what lies between is read where that is quicker than to ask again."""
    u = RNG.standard_normal((5, 7, 96, 96))
    hdf5("d.h5", {"chunks": (1, 1, 96, 96)}, u=u)
    read, whole = [], h5py.Dataset.__getitem__
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda *a: read.append(np.asarray(whole(*a)).nbytes) or whole(*a))
    source = named(read_file("d.h5"), {"y": "u", "dims": "sample time x y"})
    source.take(1, np.array([3, 3, 3, 0]), np.array([2, 3, 2, 6]))
    assert (len(read), sum(read)) == (2, 3 * u[0, 0].nbytes)
    read.clear()
    source.take(1, np.array([3, 3]), np.array([2, 4]))
    assert len(read) == 2
    hdf5("d.h5", {"chunks": (1, 1, 8, 9)}, u=U)
    named(read_file("d.h5"), {"y": "u", "dims": "sample time x y"}).take(1, np.array([3, 3]), np.array([2, 4]))
    assert len(read) == 3


@pytest.mark.parametrize(
    ("how", "change", "straight"),
    [
        ({}, {}, True),
        ({}, {"userblock_size": 512}, True),
        ({}, {"libver": "latest"}, True),
        ({"chunks": (1, 3, 8, 9)}, {}, False),
        ({"dtype": ">f4"}, {}, False),
        ({"dtype": "f8"}, {}, True),
        ({"dtype": "i2"}, {}, False),
        ({"external": "raw.bin"}, {}, False),
        ({"npy": "C"}, {}, True),
        ({"npy": "F"}, {}, False),
    ],
)
def test_what_lies_in_a_file_as_in_memory_is_read_past_the_library(monkeypatch, how, change, straight):
    """Wherever it begins in the file, and with what is not wanted between; all else by the library."""
    u, file = (10 * U).astype(np.dtype(how.get("dtype", "f4")).newbyteorder("=")), "d.npy" if "npy" in how else "d.h5"
    if "npy" in how:
        np.save(file, np.asarray(u, order=how["npy"]))
    else:
        with h5py.File(file, "w", **change) as content:
            content["before"] = np.arange(5)
            content.create_dataset("u", data=u, **how)
    rows, read = [], fields.read_rows
    monkeypatch.setattr(fields, "read_rows", lambda *a: rows.extend(a[2]) or read(*a))
    source = named(read_file(file), {"y": "data" if "npy" in how else "u", "dims": "sample time x y"})
    rows.clear()
    got = source.take(1, np.array([0, 0, 1, 3, 3, 4]), np.array([5, 6, 0, 2, 3, 6]))
    assert got.dtype == (torch.float64 if u.dtype == "f8" else torch.float32)
    assert np.array_equal(got[:, 0], u[[0, 0, 1, 3, 3, 4], [5, 6, 0, 2, 3, 6]].astype(got.numpy().dtype))
    assert rows == [5, 6, 7, 23, 24, 34] * straight
    # Out of order, and twice, it is the same.
    assert np.array_equal(source.take(1, np.array([3, 0, 3]), np.array([2, 5, 2]))[:, 0], got[[3, 0, 3], 0])


def test_a_file_that_ends_too_soon_is_told():
    out, rows = np.empty((2, 1, 16)), np.array([0, 2])
    np.zeros(40).tofile("short.bin")
    with pytest.raises(ValueError, match="it is cut short"):
        fields.read_rows("short.bin", 0, rows, out)


def test_a_file_in_pieces_is_one():
    hdf5("d.h5", **{f"{i:04d}/data": U[i] for i in range(5)})
    source = named(read_file("d.h5"), {"y": "*/data", "dims": "sample time x y"})
    assert np.array_equal(source.take(1, np.array([4, 2]), np.array([1, 6]))[:, 0].numpy(), U[[4, 2], [1, 6]])
    source = source_of("d.h5", [], [Variable("u", read_file("d.h5").arrays["0002/data"], ("sample", "space0", "space1"))])
    some = replace(source, start=2, n=4)
    assert np.array_equal(some.take(1, np.array([3, 0, 1]))[:, 0].numpy(), U[2, [5, 2, 3]])
    stacked = Stacked(U)
    assert np.array_equal(stacked[slice(3, 4), slice(2)], U[3:4, :2]) and stacked.shape == U.shape
    hdf5("odd.h5", a=U[0], b=U[0, :3])
    with pytest.raises(MupError, match="those of '\\*' have different shapes"):
        named(read_file("odd.h5"), {"y": "*"})


def test_axes_in_any_order_and_what_is_the_same_along_them():
    """Numbers become constant channels, several channel axes are flattened in order, and absent axes repeat."""
    tensor = RNG.standard_normal((2, 9, 5, 8, 3))  # channel, y, sample, x, channel
    strip, numbers, everywhere = RNG.standard_normal((5, 9)), RNG.standard_normal((5, 2)), RNG.standard_normal((8, 9))
    source = source_of(
        "d.h5",
        [
            Variable("strip", strip, ("sample", "space1")),
            Variable("numbers", numbers, ("sample", "channel")),
            Variable("everywhere", everywhere, ("space0", "space1")),
            Variable("one", np.array([[3.0]]), ("sample", "time")),
        ],
        [
            Variable("tensor", tensor, ("channel", "space1", "sample", "space0", "channel")),
            Variable("u", U, ("sample", "time", "space0", "space1")),
        ],
    )
    assert source.channels == (5, 7) and source.labels(0) == ("strip", "numbers 0", "numbers 1", "everywhere", "one")
    samples, times = np.array([3, 0, 3]), np.array([6, 0, 1])
    x, y = source.take(0, samples, times).numpy(), source.take(1, samples, times).numpy()
    assert np.array_equal(x[:, 0], np.broadcast_to(strip[samples][:, None], (3, 8, 9)))
    assert np.array_equal(x[:, 1:3, 4, 4], numbers[samples])
    assert np.array_equal(x[1, 3], everywhere) and (x[:, 4] == 3.0).all()
    expected = tensor.transpose(2, 0, 4, 3, 1)[samples].reshape(3, 6, 8, 9)
    assert np.array_equal(y[:, :6], expected) and np.array_equal(y[:, 6], U[samples, times])
    some = replace(source, start=2, n=2)
    assert np.array_equal(some.take(1, np.array([1]), times[:1]).numpy(), y[:1])
    cropped = source_of("d.h5", [], [Variable("u", U, ("sample", "time", "space0", "space1"))], crop=True)
    assert cropped.grid == (8, 8) and cropped.take(0, samples, times).shape == (3, 0, 8, 8)
    assert np.array_equal(cropped.take(1, samples, times)[:, 0].numpy(), U[samples, times, :, :8])


def test_many_trajectories_at_few_times():
    u = RNG.standard_normal((40, 3, 16))
    source = source_of("d", [], [Variable("u", u, ("sample", "time", "space0"))])
    samples, times = RNG.permutation(40), RNG.integers(0, 3, 40)
    assert np.array_equal(source.take(1, samples, times)[:, 0].numpy(), u[samples, times])


@pytest.mark.parametrize("kind", [">f4", ">f8", "f2", "?", "u1", "i2", "i8", ">i4"])
def test_what_torch_cannot_hold_becomes_what_it_can(kind):
    values, axes = (RNG.random((5, 16)) * 100).astype(kind), ("sample", "space0")
    source = source_of("d", [Variable("a", values, axes)], [Variable("u", RNG.random((5, 16)), axes)])
    got = source.take(0, np.arange(5))
    assert got.dtype in (torch.float32, torch.float64) and np.array_equal(got[:, 0].double().numpy(), values.astype(float))


def test_words_for_axes():
    """The user's or the file's, in any order, with the usual names; with fewer axes than words it is constant or numbers."""
    content = content_of({"a": A, "u": U, "viscosity": RNG.random(5), "four": RNG.random((5, 4))})
    source = named(content, {"x": "a+viscosity", "y": "u", "dims": "n t lat lon"})
    assert [v.told for v in source.inputs] == ["a (sample x y)", "viscosity (sample)"]
    source = named(content, {"x": "four", "y": "u", "dims": {"u": "batch, step, q, p", "four": "sample channel"}})
    assert source.labels(0) == ("four 0", "four 1", "four 2", "four 3") and source.outputs[0].told == "u (sample time x y)"
    assert named(content, {"x": "u", "y": "u", "dims": "sample time x y"}).inputs == ()  # its earlier frames are the input
    turned = named(
        content_of({"a": A, "v": A.transpose(2, 0, 1)}), {"x": "a", "y": "v", "dims": {"a": "n p q", "v": "q n p"}}
    )
    assert turned.grid == (9, 8) and torch.equal(*(turned.take(which, np.arange(5)) for which in (0, 1)))
    data = xarray.Dataset({"u": (("time", "variable", "lat", "lon"), U)}, {"variable": list("abcdefg")})
    labelled = named(content_of(data), {"y": "u"})
    assert labelled.labels(1) == tuple(f"u {c}" for c in "abcdefg") and (labelled.n, labelled.times) == (1, 5)
    over = named(content_of(data), {"x": "u", "y": "u", "dims": "sample channel lat lon"})
    assert (over.n, over.times) == (5, 0)


def test_numbers_beside_fields_need_no_words():
    n, grid = 20, (16, 16)
    fields, numbers = RNG.random((n, *grid)), RNG.random((n, 3))
    for extra in (numbers, numbers[:, 0]):
        source = named(content_of({"a": fields, "p": extra, "y": fields}), {"x": "a+p", "y": "y"})
        assert source.channels == (1 + extra[0].size, 1)
        assert (source.take(0, np.arange(n))[:, -1] == torch.from_numpy(extra.reshape(n, -1)[:, -1, None, None])).all()
    only = named(content_of({"x": numbers, "y": fields}), {})
    assert only.channels == (3, 1) and only.grid == grid


def saved(model):
    torch.save(model.state_dict(), "model.pt")
    return "model.pt"


def cut(name, at=0.5):
    """A file of this kind that is not there as a whole."""
    WRITE[name](name, a=A, u=U)
    path = Path(name)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * at)])
    return name


def named_as(name, begin):
    Path(name).write_bytes(begin)
    return name


def folder(name):
    Path(name).mkdir()
    return name


def arrays_of(name, **arrays):
    hdf5(name, **arrays)
    return name


WRONG = {
    **{
        f"empty {s}": (lambda s=s: named_as(f"d.{s}", b""), f"d.{s} cannot be read: it is empty, or no .{s} of arrays")
        for s in ("npz", "npy", "pt", "h5", "mat", "nc")
    },
    **{
        f"text {s}": (
            lambda s=s: named_as(f"d.{s}", b"time,u\n0,1\n" * 20),
            rf"d.{s} cannot be read: it is damaged, cut short",
        )
        for s in ("npz", "npy", "pt", "pth", "h5", "mat", "nc")
    },
    **{
        f"cut {name}": (lambda name=name: cut(name), f"{name} cannot be read: ")
        for name in ("d.npz", "d.pt", "old.pth", "d.h5", "d.mat", "new.mat", "d.nc", "old.nc")
    },
    "HDF5 as npz": (
        lambda: shutil.copy(WRITE["d.h5"]("d.h5", a=A) or "d.h5", "d.npz"),
        "d.npz cannot be read",
    ),
    "npz as HDF5": (lambda: shutil.copy(np.savez("d.npz", a=A) or "d.npz", "d.h5"), "d.h5 cannot be read"),
    "npz as pt": (lambda: shutil.copy(np.savez("d.npz", a=A) or "d.npz", "d.pt"), "d.pt cannot be read"),
    "empty zarr": (lambda: folder("d.zarr"), "d.zarr cannot be read"),
    "HDF5 without arrays": (lambda: arrays_of("d.h5"), "d.h5 holds no array: which is the input"),
    "no sample": (lambda: arrays_of("d.h5", x=A[:0], y=A[:0]), r"y in d.h5 is no field, float64 of shape \(0, 8, 9\)"),
    "weights": (lambda: saved(torch.nn.Sequential(torch.nn.Linear(2, 2))), "model.pt holds the weights of a model"),
    "weights of one layer": (lambda: saved(torch.nn.Linear(2, 2)), "model.pt holds the weights .* out of the folder"),
    "a model": (lambda: torch.save(torch.nn.Linear(2, 2), "model.pt") or "model.pt", "model.pt .* holds a model, its state"),
    "pickled arrays": (
        lambda: np.savez("d.npz", x=A, y=np.array([{}] * 5, object)) or "d.npz",
        "d.npz cannot be read: .*Object arrays cannot be loaded",
    ),
    "complex": (lambda: arrays_of("d.h5", x=A, y=A + 1j), "y in d.h5 is no field, complex128 .* two channels"),
    "texts": (lambda: arrays_of("d.h5", x=A, y=np.full(A.shape, b"a")), r"y in d.h5 is no field, \|S1"),
    "not finite": (
        lambda: arrays_of("d.h5", x=A, y=np.where(A.max() == A, np.nan, A)),
        "y in d.h5 has entries that are not finite, in sample",
    ),
    "classes": (
        lambda: arrays_of("d.h5", x=A, y=(A > 0) + 1),
        "y in d.h5 holds the whole numbers 1, 2: they look like classes",
    ),
    "other grids": (lambda: arrays_of("d.h5", x=A, y=A[:, :7, :6]), "with 8 and 7 along x: input and output need one grid"),
    "other samples": (lambda: arrays_of("d.h5", x=A, y=A[:4]), "with 5 and 4 along sample: .* as many samples"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_file_is_one_sentence(case):
    make, told = WRONG[case]
    with pytest.raises(MupError, match=told) as caught:
        content = read_file(make())
        keys = {"x": "a", "y": "u", "dims": {"a": "sample p q", "u": "sample time p q"}}
        source = named(content, keys if "u" in content.arrays else {"dims": "sample p q"})
        for which in (0, 1):
            source.take(which, np.arange(source.n), np.zeros(source.n, int))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (
            {},
            r"the data given holds a \(5, 8, 9\) float64, u .*'sample channel x y'} .in the shell: --read.x a .*, or",
        ),
        (
            {"y": "n"},
            r"u .*: with sample and time first they are no fields .*={'x': 'a', 'y': 'u', 'dims': 'sample channel x y'}",
        ),
        ({"y": "v"}, "there is no 'v'; expected one of a, n, u"),
        ({"x": "a", "y": "u", "dims": "sample x"}, "u has 4 axes, and the words for them are 'sample x'."),
        ({"x": "a", "y": "u", "dims": "sample p q r s"}, "u has 4 axes, and the words for them are 'sample p q r s'."),
        ({"x": "a", "y": "u", "dims": {"u": "p q r s", "a": "p q r"}}, "these are more than three axes of a grid"),
        ({"x": "a", "y": "u", "dims": "time step x y"}, "two axes of u mean the same, 'time step x y'"),
        ({"x": "a", "y": "u", "dims": {"v": "n t x y"}}, "dims says what the axes of 'v' are, which is not there"),
        ({"x": "two", "y": "u"}, "there is no 'two'"),
        ({"y": "a", "dims": "sample x y"}, "a has neither an input nor a time axis"),
        (
            {"x": "u", "y": "a", "dims": {"a": "sample x y", "u": "sample time x y"}},
            "with 7 and 1 along time: .* is a channel's",
        ),
    ],
)
def test_what_is_not_clear_is_asked_for(read, told):
    with pytest.raises(MupError, match=told):
        named(content_of({"a": A, "u": U, "n": np.arange(5.0)}), read)


def test_a_folder_and_a_pattern_stand_for_their_files():
    for name in ("b.npz", "a.h5", "c.zarr"):
        WRITE[{"b.npz": "d.npz", "a.h5": "d.h5", "c.zarr": "plain.zarr"}[name]](f"{folder(name[0])}/{name}", a=A, u=U)
    Path("a/notes.txt").write_text("of the data")
    assert files_of("a") == (str(Path("a/a.h5")),) and files_of("c/c.zarr") == ("c/c.zarr",)
    assert files_of(["c", "?/*.npz"]) == (str(Path("c/c.zarr")), "b/b.npz")
    Path("d").mkdir()
    wrong = {
        "a/notes.txt": "a/notes.txt is no file that can be read here, of a name that ends in .npz, .npy",
        "d": "The folder d has no file that can be read here",
        "a/b.h5": "There is no file or folder a/b.h5; did you mean 'a.h5'",
        "d/b.h5": r"There is no file or folder d/b.h5; nor is there another in /.*/d\.",
        "e": "There is no file or folder e; ",
        "?/*.pt": r"There is no file or folder \?/\*.pt; ",
    }
    for given, told in wrong.items():
        with pytest.raises(MupError, match=told):
            files_of(given)


@pytest.mark.parametrize(("name", "library"), [("d.nc", "xarray"), ("d.zarr", "zarr")])
def test_a_library_that_is_missing_is_named(name, library, monkeypatch):
    WRITE[name](name, a=A, u=U)
    whole = builtins.__import__

    def without(module, *args, **kwargs):
        if module.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)
        return whole(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MupError, match=rf"{name} needs {library}, .* pip install {library}"):
        read_file(name)
