"""Data that was read wrongly or refused with a proposal that does not work: pairs of files, links, named axes, types."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import xarray

from neuralop_mup.lab.data import OwnData
from neuralop_mup.lab.data.batches import as_tensor, masked, with_mask
from neuralop_mup.lab.data.given import as_source
from neuralop_mup.lab.data.roles import labels_of
from support.errors import refused
from support.files import array, assert_equal, write, write_hdf5

X, Y = array(40, 16), array(40, 16)
READ = {"shuffle": False}


def load(data, **read):
    return as_source(data, {**READ, **read}).load()


def save(path, values):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    np.save(path, values)
    return str(path)


# Files of input and output


@pytest.mark.parametrize("form", [list, tuple, lambda files: files[::-1]])
@pytest.mark.parametrize("names", ["x y", "x_train y_train", "Input7 output7", "in_0 out_0", "a/inputs/0 a/outputs/0"])
def test_a_pair_of_files_is_input_and_output(form, names):
    """A pair was two splits, or two states in time, and time_step=1 was proposed."""
    files = [save(f"{name}.npy", values) for name, values in zip(names.split(), (X, Y), strict=True)]
    assert_equal(load(form(files)).test, (X[36:, None], Y[36:, None]))


def test_a_folder_of_files_of_input_and_output_by_split():
    for split, slot in (("train", slice(30)), ("test", slice(30, 40))):
        save(f"heat/x_{split}.npy", X[slot])
        save(f"heat/y_{split}.npy", Y[slot])
    for data in ("heat", "heat/*.npy", {s: [f"heat/x_{s}.npy", f"heat/y_{s}.npy"] for s in ("train", "test")}):
        found = load(data)
        assert found.counts() == {"train": 27, "val": 3, "test": 10}
        assert_equal(found.test, (X[30:, None], Y[30:, None]))


def test_files_of_one_array_without_words_for_input_and_output():
    files = [save("a.npy", X), save("u.npy", Y)]
    with refused("a.npy u.npy x.npy y.npy {'time_step':1}"):
        load(files)
    load(files, time_step=1)
    with refused("a.npy u.npy x.npy y.npy {'time_step':1}"):
        load(tuple(files))
    own = OwnData(files=[save("x.npy", X), save("y.npy", Y)], y="data", time_step=1)
    assert own.readings["output"] == "data (time x)"  # keys of the user count more than the names of files
    with refused("u_train.npy {'time_step':1} 'last'"):
        load({split: save(f"u_{split}.npy", X) for split in ("train", "test")})
    with refused("16"):  # coordinates are no fields
        load([save("x.npy", np.arange(16.0)), save("y.npy", np.arange(16.0))])


# Links


def test_a_file_counts_once_under_all_its_names():
    file = write("s/m.npz", x=X, y=Y)
    os.symlink("m.npz", "s/a.npz")
    os.link(file, "s/z.npz")
    os.symlink("../s", "s/loop")
    for data in ("s", [file, file], "s/*.npz"):
        own = OwnData(files=data)
        assert own.files == {"all": ("s/m.npz",) if data != [file, file] else (file,)}
        assert sum(own.load().counts().values()) == 40
    with refused("two splits"):
        OwnData(files={"train": "s/m.npz", "test": "s/a.npz"})


@pytest.mark.parametrize("in_memory", [2.0, 0.0])
def test_links_in_hdf5_files_are_followed(in_memory):
    write_hdf5("other.h5", {"u": Y})
    with h5py.File("links.h5", "w") as file:
        file["x"], file["z/v"] = X, Y
        file["y"], file["z/up"] = h5py.SoftLink("/z/v"), h5py.SoftLink("/")
    with h5py.File("outside.h5", "w") as file:
        file["x"], file["y"] = X, h5py.ExternalLink("other.h5", "/u")
    for name in ("links.h5", "outside.h5"):
        assert_equal(load(name, x="x", y="y", in_memory=in_memory).test[1][list(range(4))], Y[36:, None])
    Path("other.h5").unlink()
    with refused("y outside.h5 /u missing"):
        load("outside.h5")


def test_a_link_to_a_group_is_no_further_sample():
    write_hdf5("g.h5", {f"{i:04}/{key}": array(16) for i in range(12) for key in "xy"})
    with h5py.File("g.h5", "a") as file:
        file["9999"] = h5py.SoftLink("/0003")
    assert sum(load("g.h5", x="*/x", y="*/y", dims="x").counts().values()) == 12


# Axes and coordinates of xarray


@pytest.mark.parametrize("dims", ["n x", "n y", "n x y", "n file", "n format", "n left", "n words", "n spaces"])
@pytest.mark.parametrize("in_memory", [2.0, 0.0])
def test_axes_may_have_any_name(dims, in_memory):
    values = array(40, *[16] * (len(dims.split()) - 1))
    x, y = (xarray.DataArray(each, dims=dims.split()) for each in (values, 2 * values))
    assert_equal(load((x, y), in_memory=in_memory).test[1][[0, 1]], 2 * values[36:38, None])
    for named in ({"x": x, "y": y}, [x, y]):
        assert_equal(load(named, in_memory=in_memory).test[1][[0, 1]], 2 * values[36:38, None])
    last = dims.split()[-1]
    whole = xarray.Dataset({"a": x, "b": y}, {last: np.arange(16.0)})
    assert_equal(load(whole, x="a", y="b", in_memory=in_memory).test[1][[0, 1]], 2 * values[36:38, None])


def test_names_of_channels_are_texts():
    """HDF5 gives bytes."""
    coords = {"channel": np.array(["p", "q"], "S1")}
    data = xarray.Dataset({key: (("n", "channel", "s"), array(40, 2, 16)) for key in "ab"}, coords)
    own = as_source(data, {"x": "a", "y": "b"})
    assert labels_of(own.first, "output") == ("b p", "b q")


def test_coordinates_of_a_pair_count():
    """They were dropped, so that an uneven grid and samples in another order passed."""
    x = xarray.DataArray(X, dims=("n", "s"), coords={"n": np.arange(40)})
    with refused("coordinates n drop_vars('n')"):
        load((x, x[::-1]))
    with refused("s uneven"):
        load((x.assign_coords(s=np.arange(16.0) ** 2),) * 2)


def test_files_with_another_distance_of_points_get_a_channel():
    """Files that differ in this alone were joined without a word. Another resolution of a split is no difference."""
    files = [write(f"f{i}.npz", a=X, u=Y, **{"x-coordinate": i * np.arange(16.0)}) for i in (1, 2)]
    own = OwnData(files=files, x="a", y="u", **READ)
    x = own.load().train[0]
    assert x.shape == (64, 2, 16)
    assert sorted(set(x[:, 1].flatten().tolist())) == [16, 32]
    assert "16to32" in own.readings["x length"].replace(" ", "")
    fine = write("fine.npz", a=array(40, 32), u=array(40, 32), **{"x-coordinate": np.arange(32) / 2})
    assert OwnData(files={"train": files[0], "test": fine}, x="a", y="u").in_channels == 1


# Shapes, types and keys


def test_given_splits_are_read_as_one_pair_is():
    """Given splits had a rule of their own, so that one array was read in two ways."""
    for shape in ((16,), (3, 16), (16, 1), (16, 16), (1, 16, 16), (3, 8, 8), (32, 64)):
        x = array(40, *shape)
        one, *splits = (as_source(form) for form in ((x, x), {"train": (x, x), "val": (x, x)}, ((x, x), [x, x])))
        for two in splits:
            assert two.load().train[0].shape == (40, *one.load().train[0].shape[1:])
    for shape, lines in (((10, 24), ("sample channel x", "sample x y")), ((8, 24, 18), ("sample channel x y",))):
        x = array(40, *shape)
        for form in ((x, x), {"train": (x, x), "val": (x, x)}, ((x, x), (x, x))):
            with refused(" ".join(f"'{line.replace(' ', '')}'" for line in lines)):
                as_source(form).load()
        for line in ("sample channel x y z", "sample x y z"):
            words = line.split()[: x.ndim]
            data = as_source({"train": (x, x), "val": (x, x)}, {"dims": " ".join(words)}).load()
            assert data.train[0].shape == (x.shape if "channel" in words else (40, 1, *shape))
    x, y = array(40, 8, 9, 5), array(40, 8, 9, 6)
    with refused("2ways 'samplexychannel'"):
        as_source({"train": (x, y), "val": (x, y)}).load()


@pytest.mark.parametrize("values", [X.astype(np.longdouble), torch.from_numpy(X).to_sparse()], ids=["longdouble", "sparse"])
def test_types_that_torch_or_numpy_lacks(values):
    names = "float64" if isinstance(values, np.ndarray) else "sparse to_dense()"
    for form in ((values, values), {"train": (values, values), "val": (values, values)}, {"x": values, "y": values}):
        with refused(names):
            load(form)
    with refused(names):
        as_tensor("x", values)
    if isinstance(values, np.ndarray):
        with refused(names):
            load(write("d.npz", x=values, y=Y))


@pytest.mark.parametrize(("key", "channels"), [("H+", 1), ("H++u", 2), ("u+H+", 2), ("u+H++c", 3)])
def test_keys_with_a_plus(key, channels):
    own = OwnData(files=write("ions.npz", **{"H+": Y, "u": X, "c": X, "a": X}), x="a", y=key, **READ)
    assert own.out_channels == channels
    assert np.array_equal(own.load().test[1][:, "H+" in key and key.index("H") // 2], Y[36:])


def test_the_mask_of_an_input():
    x = torch.randn(3, 2, 16)
    x[:, 1, :4] = torch.nan
    fill = torch.tensor([1.0, 2.0, 0.0])[None, :, None]
    batch = masked({"x": x, "y": x[:, :1]}, (fill[:, :2], fill[:, :1]))
    assert torch.equal(with_mask(x, fill), batch["x"])
    assert batch["x"][:, 1, :4].eq(2).all() and batch["x"][0, 2].tolist() == [0] * 4 + [1] * 12
