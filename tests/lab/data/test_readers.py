"""Files of each kind: what is read, how much of a file is read, names of axes, and files that cannot be read."""

import builtins
import os
import pickle
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import xarray

from neuralop_mup.lab.data import OwnData, windows
from neuralop_mup.lab.data.arrays import Flat, dataset_of
from neuralop_mup.lab.data.axes import with_roles
from neuralop_mup.lab.data.files import files_of
from neuralop_mup.lab.data.readers import read_file
from neuralop_mup.lab.data.roles import assemble, described, field, labels_of
from support.errors import refused
from support.files import HAS_ZARR, array, assert_equal, needs_zarr, write, write_hdf5, write_matlab73

if HAS_ZARR:
    import zarr

RNG = np.random.default_rng(0)
A, U = array(12, 8, 9).astype(float), array(12, 7, 8, 9)
AXES = {"a": ("member", "south", "east"), "u": ("member", "time", "south", "east")}


def dataset(**arrays):
    return xarray.Dataset({key: (AXES[key], arrays[key]) for key in arrays}, {"south": np.arange(8.0), "east": np.arange(9)})


def write_netcdf(path, engine="h5netcdf", **arrays):
    dataset(**arrays).to_netcdf(path, engine=engine)


def write_zarr(path, version=2, **arrays):
    dataset(**arrays).to_zarr(path, zarr_format=version, consolidated=False)


def write_old_pt(path, **arrays):
    torch.save({key: torch.from_numpy(arrays[key]) for key in arrays}, path, _use_new_zipfile_serialization=False)


WITHOUT_NAMES = {
    "d.npz": write,
    "packed.npz": np.savez_compressed,
    "d.pt": write,
    "old.pth": write_old_pt,
    "d.h5": write,
    "d.hdf5": write,
    "d.mat": partial(write, label="text", cell=np.array(["a", 1], object)),
    "new.mat": write_matlab73,
    "renamed.h5": write_matlab73,
    "plain.zarr": lambda path, **arrays: zarr.save(path, **arrays),
}
WITH_NAMES = {
    "d.nc": write_netcdf,
    "old.nc": partial(write_netcdf, engine="scipy"),
    "renamed.hdf5": write_netcdf,
    "d.zarr": write_zarr,
    "new.zarr": partial(write_zarr, version=3),
}
WRITE = WITHOUT_NAMES | WITH_NAMES


def load(path, **read):
    return OwnData(files=path, shuffle=False, **read).load()


def take(data, role, samples, times=0):
    """Fields of these samples, each at its time, in any order."""
    reader = windows.RowReader(data, role)
    rows, places = np.unique(np.asarray(samples) * reader.n_times + times, return_inverse=True)
    out = np.empty((len(rows), *reader.shape), reader.dtype)
    reader.read(rows, out)
    return out[places]


def in_file(name, y="u", dims="sample time x y"):
    (raw,) = read_file(name)
    return with_roles(raw, {"y": y, "dims": dims})


def roles(**variables):
    """A Dataset of variables: name of the role and key → array and words for its axes."""
    made = {}
    for name, (values, words) in variables.items():
        role, _, key = name.partition("_")
        made |= field(role, key, values, words.split())
    return assemble("d", made)


# What is read


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_zarr) if "zarr" in name else name for name in WRITE])
def test_file_of_each_kind(name):
    """NetCDF and Zarr of xarray name their axes, also under a name of HDF5."""
    WRITE[name](name, a=A, u=U)
    dims = {} if name in WITH_NAMES else {"dims": "sample time south east"}
    samples, times = np.array([9, 0, 1]), np.array([5, 0, 2])
    for in_memory in (2.0, 0.0):
        own = OwnData(files=name, x="a", y="u", time_step=1, shuffle=False, in_memory=in_memory, **dims)
        assert own.readings["output"] in ("u (sample time south east)", "u (sample time deep/south deep/east)")
        pairs = [values[(6 * samples + times).tolist()] for values in pickle.loads(pickle.dumps(own)).load().train]
        frames = U[samples, times], A[samples], U[samples, times + 1]
        assert_equal(pairs, (np.stack(frames[:2], axis=1), frames[2][:, None]))


def test_array_without_a_name():
    np.save("u.npy", U)
    torch.save(torch.from_numpy(U), "u.pt")
    for name in ("u.npy", "u.pt"):
        x, _ = load(name, dims="sample time x y", time_step=1).train
        assert np.array_equal(x[20, 0], U[3, 2])
    torch.save((torch.from_numpy(A), torch.from_numpy(2 * A)), "pair.pt")
    assert_equal(load("pair.pt", dims="sample x y").test, (A[11:, None], 2 * A[11:, None]))
    torch.save({"train": {"x": torch.from_numpy(A)}, "n": 3}, "nested.pt")
    assert list(read_file("nested.pt")[0].variables) == ["train/x"]


@pytest.mark.parametrize(
    ("name", "write_group"),
    [("g.nc", xarray.Dataset.to_netcdf), pytest.param("g.zarr", xarray.Dataset.to_zarr, marks=needs_zarr)],
)
def test_groups_of_netcdf_and_zarr(name, write_group):
    """Groups were once left out, and the order of keys was another one each time."""
    how = {"engine": "h5netcdf"} if name == "g.nc" else {"zarr_format": 2, "consolidated": False}
    write_group(dataset(a=A, u=U), name, **how)
    write_group(dataset(a=A, u=U + 1), name, group="deep", mode="a", **how)
    (raw,) = read_file(name)
    assert {"a", "deep/a", "deep/south", "deep/east", "deep/u", "south", "east", "u"} <= set(raw.variables)
    _, y = load(name, x="deep/a", y="deep/u", time_step=1).train
    assert np.array_equal(y[2, 0], U[0, 3] + 1)


def test_objects_in_memory():
    raw = dataset_of({"a": torch.from_numpy(A), "u": dataset(u=U)["u"]})
    data = with_roles(raw, {"x": "a", "y": "u", "dims": {"a": "n south east"}})
    assert np.array_equal(take(data, "input", [2])[0, 0], A[2])
    half = torch.zeros(3, dtype=torch.bfloat16, requires_grad=True)
    assert dataset_of({"u": half})["u"].dtype == np.float32
    assert dataset_of({"u": half.to(torch.float8_e4m3fn)})["u"].dtype == np.float32
    conjugate = torch.tensor([1 + 2j]).conj()  # torch negates and conjugates only when values are used
    assert [dataset_of({"u": values})["u"].item() for values in (conjugate, conjugate.imag)] == [1 - 2j, -2]


def test_group_for_each_sample():
    write_hdf5("d.h5", {f"{i:04d}/data": values for i, values in enumerate(U)})
    x, y = load("d.h5", y="*/data", dims="time x y", time_step=1).train
    assert np.array_equal(x[[25, 13], 0], U[[4, 2], [1, 1]])
    part = in_file("d.h5", "*/data").isel(sample=slice(2, 6))
    assert np.array_equal(take(part, "output", [3, 0, 1], [5, 2, 3])[:, 0], U[[5, 2, 3], [5, 2, 3]])


# How it is read


def test_only_what_a_batch_needs_is_read(monkeypatch):
    """Frames are read once. Small gaps between them are read too, since another reading takes longer."""
    u = RNG.standard_normal((5, 7, 96, 96))
    write("d.h5", chunks=(1, 1, 96, 96), u=u)
    write("small.h5", chunks=(1, 1, 8, 9), u=U)
    sizes, getitem = [], h5py.Dataset.__getitem__
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda *a: sizes.append(np.asarray(getitem(*a)).nbytes) or getitem(*a))
    large, small = map(in_file, ("d.h5", "small.h5"))
    take(large, "output", [3, 3, 3, 0], [2, 3, 2, 6])
    assert (len(sizes), sum(sizes)) == (2, 3 * u[0, 0].nbytes)
    take(large, "output", [3, 3], [2, 4])
    assert len(sizes) == 4
    take(small, "output", [3, 3], [2, 4])
    assert len(sizes) == 5


@pytest.mark.parametrize(
    ("kind", "storage"),
    [
        ("f4", {}),
        ("f8", {}),
        ("f4", {"chunks": (1, 3, 8, 9)}),
        (">f4", {}),
        ("i2", {}),
        ("f4", {"external": "raw.bin"}),
        ("f4", {"order": "C"}),
        ("f4", {"order": "F"}),
        ("f4", {"zip": np.savez}),
        ("f4", {"zip": np.savez_compressed}),
    ],
)
def test_every_way_of_storing_an_array(kind, storage):
    u = (10 * U).astype(np.dtype(kind).newbyteorder("="))
    file = "d.npy" if "order" in storage else "d.npz" if "zip" in storage else "d.h5"
    if "order" in storage:
        np.save(file, np.asarray(u, **storage))
    elif "zip" in storage:
        storage["zip"](file, data=u)
    else:
        with h5py.File(file, "w", userblock_size=512) as content:
            content["before"] = np.arange(5)
            content.create_dataset("data", data=u, dtype=kind, **storage)
    data = in_file(file, "data")
    samples, times = [0, 0, 1, 3, 3, 4], [5, 6, 0, 2, 3, 6]
    frames = take(data, "output", samples, times)
    assert frames.dtype == (np.float64 if kind == "f8" else np.float32)
    assert np.array_equal(frames[:, 0], u[samples, times].astype(frames.dtype))
    assert np.array_equal(take(data.isel(sample=slice(3, 5)), "output", [1, 0], [6, 2]), frames[[5, 3]])
    assert np.array_equal(take(data.isel(x=slice(2, 6)), "output", [3], [2]), frames[[3], :, 2:6])
    assert np.array_equal(take(data.isel(time=slice(0, None, 2)), "output", [3], [1]), frames[[3]])


def test_file_that_ends_too_soon():
    np.save("short.npy", np.zeros((20, 16)))
    os.truncate("short.npy", 1000)
    with refused("short.npy truncated"):
        dict(read_file("short.npy")[0].load())


def test_slices_of_an_array_in_a_file():
    """Any slices and integers give what they give for an array in memory."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        values = rng.random(tuple(rng.integers(1, 5, rng.integers(0, 5))))
        Path("flat.bin").write_bytes(b"abc" + values.tobytes())
        ends = rng.integers(0, 5, (values.ndim, 3)).tolist()
        key = tuple(a % n if a == b else slice(a, b, 1 + c) for n, (a, b, c) in zip(values.shape, ends, strict=True))
        got = Flat("flat.bin", 3, values.shape, values.dtype)[key]
        assert np.array_equal(got, values[key]) and got.shape == values[key].shape


def test_axes_in_any_order():
    """Numbers become constant channels, several channel axes are flattened, and arrays repeat along absent axes."""
    tensor = RNG.standard_normal((2, 9, 12, 8, 3))
    strip, numbers, everywhere, forcing = (RNG.standard_normal(shape) for shape in ((12, 9), (12, 2), (8, 9), (1, 7, 8, 9)))
    inputs = {
        "input_strip": (strip, "sample y"),
        "input_numbers": (numbers, "sample channel"),
        "input_everywhere": (everywhere, "x y"),
        "input_one": (np.array([[3.0]]), "sample time"),
        "input_forcing": (forcing, "sample time x y"),
    }
    data = roles(**inputs, output_u=(U, "sample time x y"), output_tensor=(tensor, "channel y sample x channel"))
    assert labels_of(data, "input") == ("strip", "numbers 0", "numbers 1", "everywhere", "one", "forcing")
    samples, times = np.array([3, 0, 3, *RNG.permutation(12)]), RNG.integers(0, 7, 15)
    x, y = take(data, "input", samples, times), take(data, "output", samples, times)
    strips = np.broadcast_to(strip[samples][:, None], (15, 8, 9))
    assert_equal((x[:, 0], x[:, 1:3, 4, 4], x[1, 3], x[:, 5]), (strips, numbers[samples], everywhere, forcing[0, times]))
    assert (x[:, 4] == 3.0).all()
    expected = tensor.transpose(2, 0, 4, 3, 1)[samples].reshape(15, 6, 8, 9)
    assert_equal((y[:, 1:], y[:, 0]), (expected, U[samples, times]))
    part = data.isel(sample=slice(2, 4))
    assert_equal((take(part, "input", [1], times[:1]), take(part, "output", [1], times[:1])), (x[:1], y[:1]))


def test_many_trajectories_at_few_times():
    data = roles(output_u=(U, "time sample x y"))
    samples, times = RNG.permutation(7), RNG.integers(0, 3, 7)
    assert np.array_equal(take(data, "output", samples, times)[:, 0], U[times, samples])


@pytest.mark.parametrize("kind", [">f4", ">f8", "f2", "?", "u1", "i2", "i8", ">i4"])
def test_number_types_that_torch_lacks(kind):
    x = (RNG.random((5, 16)) * 100).astype(kind)
    data = roles(input_x=(x, "sample x"), output_y=(RNG.random((5, 16)), "sample x"))
    assert np.array_equal(take(data, "input", range(5))[:, 0], x.astype(float))


# Names of axes


def test_names_of_axes():
    """Usual names in any order. An array with fewer axes than names is constant in time or holds numbers."""
    raw = dataset_of({"a": A, "u": U, "viscosity": RNG.random(12), "four": RNG.random((12, 4))})
    data = with_roles(raw, {"x": "a+viscosity", "y": "u", "dims": "n t south east"})
    assert described(data, "input") == "a (sample south east) + viscosity (sample)"
    data = with_roles(raw, {"x": "four", "y": "u", "dims": {"u": "batch, step, q, p", "four": "sample channel"}})
    assert (len(labels_of(data, "input")), described(data, "output")) == (4, "u (sample time q p)")
    data = with_roles(raw, {"x": "u", "y": "u", "dims": "sample time x y"})
    assert labels_of(data, "input") == ()  # its earlier frames are the input
    turned = dataset_of({"a": A, "v": A.transpose(2, 0, 1)})
    data = with_roles(turned, {"x": "a", "y": "v", "dims": {"a": "n p q", "v": "q n p"}})
    assert np.array_equal(take(data, "input", range(12)), take(data, "output", range(12)))


def test_coordinates_name_channels():
    data = xarray.Dataset({"u": (("time", "variable", "south", "east"), U)}, {"variable": list("abcdefg")})
    found = with_roles(dataset_of(data.variables), {"y": "u"})
    assert labels_of(found, "output") == tuple(f"u {letter}" for letter in "abcdefg")
    assert dict(found.sizes) == {"time": 12, "channel:u:1": 7, "south": 8, "east": 9}


def test_numbers_beside_fields_need_no_names():
    y, numbers = RNG.random((20, 16, 16)), RNG.random((20, 3))
    for extra in (numbers, numbers[:, 0]):
        data = with_roles(dataset_of({"a": y, "p": extra, "y": y}), {"x": "a+p", "y": "y"})
        assert len(labels_of(data, "input")) == 1 + extra[0].size
        last = take(data, "input", range(20))[:, -1]
        assert (last == extra.reshape(20, -1)[:, -1, None, None]).all()
    only = with_roles(dataset_of({"x": numbers, "y": y}), {})
    assert (len(labels_of(only, "input")), only.sizes["x"]) == (3, 16)


@pytest.mark.parametrize(
    ("read", "names"),
    [
        ({}, "(12,8,9) float64 'a' 'u' --read.x --read.y"),
        ({"y": "n"}, "sample time"),
        ({"y": "v"}, "'v' a,n,u"),
        ({"x": "a", "y": "u", "dims": "sample x"}, "u 4 'samplex'"),
        ({"x": "a", "y": "u", "dims": "sample p q r s"}, "u 4 'samplepqrs'"),
        ({"x": "a", "y": "u", "dims": {"u": "p q r s", "a": "p q r"}}, "8 7 q"),
        ({"x": "a", "y": "u", "dims": "time step x y"}, "u 'timestepxy'"),
        ({"x": "a", "y": "u", "dims": {"v": "n t x y"}}, "dims 'v'"),
        ({"x": "two", "y": "u"}, "'two'"),
        ({"y": "a", "dims": "sample x y"}, "input time"),
        ({"x": "u", "y": "a", "dims": {"a": "sample x y", "u": "sample time x y"}}, "7 1 time channel"),
    ],
)
def test_unclear_arrays_are_refused(read, names):
    with refused(names):
        with_roles(dataset_of({"a": A, "u": U, "n": np.arange(12.0)}), read)


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (("x_train", "y_train", "x_test", "y_test"), "splits {'train':(x_train,y_train),"),
        (("u_train", "u_test"), "splits {'train':u_train,"),
        (("train/a", "train/u", "test/a", "test/u"), "splits"),
        (("train_a", "train_u"), "--read.xtrain_a--read.ytrain_u"),
        (("a", "u", "x", "y"), "--read.xa--read.yu"),  # x and y are a mesh
    ],
)
def test_the_suggested_arrays_are_of_one_split_and_not_the_mesh(keys, names):
    """The message once proposed to train on x_test and y_test, or from X_train to Y_val, or from the mesh's x to its y."""
    mesh = dict(zip("xy", np.meshgrid(np.arange(9.0), np.arange(8.0)), strict=True))
    with refused(names):
        with_roles(dataset_of({key: mesh[key] + np.zeros((12, 1, 1)) if key in mesh else A for key in keys}), {})


# Files that cannot be read


@pytest.mark.parametrize("suffix", ["npz", "npy", "pt", "pth", "h5", "mat", "nc"])
@pytest.mark.parametrize(("bytes_", "reason"), [(b"", "empty"), (b"time,u\n0,1\n" * 20, "damaged")])
def test_file_without_arrays(suffix, bytes_, reason):
    Path(f"d.{suffix}").write_bytes(bytes_)
    with refused(f"d.{suffix} {reason}"):
        load(f"d.{suffix}")


@pytest.mark.parametrize("name", ["d.npz", "d.pt", "old.pth", "d.h5", "d.mat", "new.mat", "d.nc", "old.nc"])
def test_file_cut_short(name):
    WRITE[name](name, a=A, u=U)
    os.truncate(name, os.path.getsize(name) // 2)
    with refused(name):
        load(name, x="a", y="u", dims={"a": "sample p q", "u": "sample time p q"}, time_step=1)


LAYER = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("saved", "names"),
    [
        (torch.nn.Sequential(LAYER).state_dict(), "model.pt weights"),
        (LAYER.state_dict(), "model.pt weights"),
        (LAYER, "model.pt model tensors"),
    ],
)
def test_models_are_not_data(saved, names):
    torch.save(saved, "model.pt")
    with refused(names):
        load("model.pt")


def test_folder_and_pattern_stand_for_their_files():
    for name in ("a/a.h5", "b/b.npz"):
        write(name, a=A)
    Path("c/c.zarr/a").mkdir(parents=True)
    Path("c/c.zarr/.zgroup").touch()
    Path("a/notes.txt").write_text("of the data")
    Path("d").mkdir()
    assert files_of("a") == ("a/a.h5",)
    assert files_of("c/c.zarr") == ("c/c.zarr",)
    assert files_of(["c", "?/*.npz"]) == ("c/c.zarr", "b/b.npz")
    wrong = {
        "a/notes.txt": ".npz",
        "d": ".npz",
        "a/b.h5": "'a.h5'",
        "d/b.h5": str(Path("d").absolute()),
        "e": "",
        "?/*.pt": "",
    }
    for given, name in wrong.items():
        with refused(f"{given} {name}"):
            files_of(given)
    Path("d.zarr").mkdir()
    with refused("d.zarr"):
        load("d.zarr")


@needs_zarr
def test_missing_library(monkeypatch):
    name, library = "d.zarr", "zarr"
    WRITE[name](name, a=A, u=U)
    import_ = builtins.__import__

    def without(module, *args, **kwargs):
        if module.partition(".")[0] == library:
            raise ModuleNotFoundError(name=library)
        return import_(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with refused(f"{name} {library}"):
        read_file(name)


# Arrays beside the fields


def test_only_arrays_of_several_numbers_are_reported_as_unused():
    own = OwnData(files=write("d.npz", x=array(20, 16), y=array(20, 16), seed=np.array(3), other=np.ones(5)))
    assert own.readings["not used"] == "other (5,)"


def test_an_unknown_key_among_joined_ones_is_named():
    with refused("'nope' u v y"):
        OwnData(files=write("d.npz", u=array(20, 16), v=array(20, 16), y=array(20, 16)), x="nope+u", y="y").load()


def test_joined_arrays_and_keys_with_a_plus_sign():
    """Three arrays of one shape are fields without channels, since each becomes one channel."""
    arrays = {key: array(20, 4, 16) for key in ("H+", "u", "y")}
    own = OwnData(files=write("d.npz", **arrays), x="H++u", y="y")
    assert (own.readings["input"], own.in_channels) == ("H+ (sample x y) + u (sample x y)", 2)


def test_coordinates_come_from_the_group_of_the_field_or_the_groups_above_it():
    """The grid of another group is uneven, but it is not the grid of this field."""
    even, uneven = np.arange(16.0), np.arange(16.0) ** 2
    write_hdf5("d.h5", {"a/b/u": array(20, 11, 16), "a/a/x": uneven, "a/x": even, "x": uneven})
    assert OwnData(files="d.h5", y="a/b/u", dims="sample time x", time_step=1).load().counts()["train"] == 160


def test_a_coordinate_of_another_length_does_not_hide_the_only_reading():
    """Times of another simulation, and positions of the faces between the cells."""
    path = write("d.npz", a=array(20, 16), b=array(20, 16), t=np.arange(7.0), **{"x-coordinate": np.arange(17.0)})
    assert OwnData(files=path, x="a", y="b").readings["input"] == "a (sample x)"
    grid = {"x-coordinate": np.arange(4.0), "y-coordinate": np.arange(16.0), "t": np.arange(7.0)}
    path = write("e.npz", a=array(20, 4, 16), b=array(20, 4, 16), **grid)
    assert OwnData(files=path, x="a", y="b").readings["input"] == "a (sample x y)"


@pytest.mark.parametrize("n", [3, 4])
def test_four_numbered_groups_are_samples(n):
    write_hdf5("d.h5", {f"run{i}/{key}": array(8, 9) for i in range(n) for key in "xy"})
    if n > 3:
        assert OwnData(files="d.h5", x="*/x", y="*/y", dims="sample x y", split=(2, 1, 1)).grid_shape == (8, 9)
    else:
        with refused("run0/x run2/y"):
            OwnData(files="d.h5").load()


def test_a_field_that_is_equal_in_all_groups_belongs_to_each_sample():
    """Only arrays with one axis, such as coordinates, are read once."""
    x = array(8, 9)
    write_hdf5("d.h5", {f"run{i}/{key}": x if key == "x" else array(8, 9) for i in range(10) for key in "xy"})
    own = OwnData(files="d.h5", x="*/x", y="*/y", dims="sample x y")
    assert own.readings["input"] == "*/x (sample x y)"
    assert_equal([own.load().train[0]], [[x[None]] * 8])


def test_a_file_without_fields_is_refused():
    with refused("d.npz np.stack"):
        OwnData(files=write("d.npz", a=np.arange(9.0))).load()
    torch.save([(torch.randn(1, 16), torch.randn(1, 16)) for _ in range(20)], "pairs.pt")
    with refused("pairs.pt np.stack"):
        OwnData(files="pairs.pt").load()


def test_an_input_without_an_output_is_refused():
    np.save("x.npy", array(20, 16))
    with refused("x.npy,y.npy"):
        OwnData(files="x.npy").load()
