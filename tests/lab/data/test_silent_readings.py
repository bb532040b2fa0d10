"""Data that was read wrongly or refused with a proposal that does not work: pairs of files, links, named axes, types."""

import os
import pickle
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import xarray

from neuralop_mup.lab.data import OwnData
from neuralop_mup.lab.data.batches import as_tensor, masked, with_mask
from neuralop_mup.lab.data.given import as_source
from neuralop_mup.lab.data.problem_data import ProblemData, normalizer_of
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


PAIR_OF_FILES = "['x.npy','y.npy'] x.npy,y.npy (x,y)"


@pytest.mark.parametrize(
    ("data", "read", "names"),
    [
        (lambda: save("x.npy", X), {}, PAIR_OF_FILES),
        (lambda: save("x.npy", X), {"x": "data"}, PAIR_OF_FILES),
        (lambda: save("x.npy", array(40, 16, 16)), {}, PAIR_OF_FILES),
        (lambda: {s: save(f"in/{s}.npy", X) for s in ("train", "test")}, {}, "['in/train.npy','y/train.npy']"),
        (lambda: save("x_train.npy", X), {}, "['x_train.npy','y_train.npy'] {'y':'data','time_step':1}"),
        (lambda: write("d.npz", input=X, nu=X[:, 0]), {}, f"{PAIR_OF_FILES} {{'y':'input','time_step':1}}"),
        (lambda: {"x": X}, {}, PAIR_OF_FILES),
        (lambda: save("field.npy", X), {}, "time_step 'last' (x,y) ['x.npy','y.npy']"),
    ],
)
def test_an_input_without_output(data, read, names):
    """It was read as a state that evolves in time, and time_step=1 was proposed."""
    with refused(names):
        load(data(), **read)
    assert load(save("x.npy", X), time_step=1).counts()["train"] > 9


@pytest.mark.parametrize(
    ("keys", "x", "names"),
    [
        ("Y X", None, "{'x':'X','y':'Y'}"),
        ("target input", None, "{'x':'input','y':'target'}"),
        ("target X a", None, "{'x':'X','y':'target'}"),
        ("b a", None, "{'x':'b','y':'a'}"),
        ("c a b", "b", "{'x':'b','y':'a'}"),
        ("X Y u", "u", "{'x':'u','y':'Y'}"),
    ],
)
def test_suggested_keys_are_not_reversed(keys, x, names):
    """The last array in the file was proposed as the output, also if it was called X or given as the input."""
    file = write("d.npz", **dict.fromkeys(keys.split(), X))
    with refused(names):
        load(file, x=x)


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


@pytest.mark.parametrize("kind", ["link", "group", "virtual", "pair"])
@pytest.mark.parametrize("is_copied", [False, True])
def test_changes_of_linked_files_are_noticed(kind, is_copied):
    """Only the file with the links was watched. A copy is what a worker process receives."""
    write_hdf5("far/other.h5", {"g/u": Y})
    files = [write_hdf5("in/x.h5", {"a": X}), "in/y.h5"] if kind == "pair" else [write_hdf5("in/a.h5", {"a": X})]
    with h5py.File(files[-1], "a") as content:
        if kind == "virtual":
            layout = h5py.VirtualLayout(Y.shape, Y.dtype)
            layout[:] = h5py.VirtualSource("../far/other.h5", "g/u", Y.shape)
            content.create_virtual_dataset("u", layout)
        elif kind == "group":
            content["g"] = h5py.ExternalLink("../far/other.h5", "/g")
        else:
            content["u"] = h5py.ExternalLink("../far/other.h5", "/g/u")
    read = {} if kind == "pair" else {"x": "a", "dims": "sample x"}
    own = OwnData(files=files, in_memory=0.0, **read)
    data = own.load()
    own = pickle.loads(pickle.dumps(own)) if is_copied else own
    own.load()
    write_hdf5("far/other.h5", {"g/u": Y})
    os.utime("far/other.h5", (0, 0))
    for look in (own.load, data.check_unchanged):
        with refused("other.h5 changed"):
            look()


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


# Samples that belong together


@pytest.mark.parametrize(
    ("arrays", "read"),
    [
        ({"x": array(8, 9), "y": array(8, 9), "nu": array(3)}, {"x": "x+nu", "y": "y", "dims": "x y"}),
        ({"x": array(12, 8, 9), "y": array(8, 9)}, {"dims": {"x": "sample x y", "y": "x y"}}),
    ],
)
def test_an_input_has_no_more_samples_than_the_output(arrays, read):
    """Three parameters of one sample made three samples with the same output, in all splits."""
    for number in range(10):
        write(f"d/s{number}.npz", **arrays)
    with refused("sample s0.npz"):
        load("d", **read)


@pytest.mark.parametrize("name", ["run{}", "{}", "sim_{}"])
def test_groups_follow_their_numbers(name):
    """HDF5 lists run10 before run2, and an array with one entry per sample was paired in another order."""
    groups = {f"{name.format(number)}/u": number + np.arange(8) / 100 for number in range(12)}
    write_hdf5("g.h5", {**groups, "nu": np.arange(12.0)})
    x, y = load("g.h5", x="nu", y="*/u", dims={"nu": "sample", "*/u": "x"}).train
    assert torch.equal(x[:, 0, 0], y[:, 0, 0].floor())


@pytest.mark.parametrize(("n", "is_read"), [(1, False), (2, False), (12, True)])
def test_the_last_frame_of_a_trajectory_in_pieces(n, is_read):
    """The pairs were 0 to 3 and 4 to 7, and the report said 0 to 39."""
    u = np.arange(40.0)[None, :, None] + np.zeros((n, 1, 8))
    if is_read:
        x, y = load(u, dims="sample time x", time_step="last").train
        assert (x.unique().tolist(), y.unique().tolist()) == ([0.0], [39.0])
    else:
        with refused("trajectories time_step"):
            load(u, dims="sample time x", time_step="last")


def test_changes_of_a_map_in_memory_are_read():
    """They were ignored: the file was read again."""
    save("y.npy", Y)
    mapped = np.load("y.npy", mmap_mode="c")
    mapped += 5
    assert load((X, mapped)).train[1].mean() > 4


def test_a_sample_whose_known_values_are_zero_is_refused():
    y = array(40, 2, 16) + 1
    y[5], y[5, :, 0] = 0, np.nan
    data = load((array(40, 1, 16), y), nan="mask", dims="sample channel x")
    with refused("zero sample 5"):
        data.check()


def pdebench(u):
    return write_hdf5("pde.h5", {"tensor": u, "x-coordinate": np.arange(8.0), "t-coordinate": np.arange(u.shape[1])})


@pytest.mark.parametrize(
    ("n", "data", "read"),
    [
        (40, lambda u: write("d.npz", x=u[:, 0], y=u[:, 1]), {"crop": {"sample": (5, None)}, "dims": "sample x"}),
        (40, lambda u: write("d.npz", x=u[:, 0], y=u[:, 1]), {"every": {"sample": 3}, "dims": "sample x"}),
        (40, lambda u: write("d.npz", x=u[:, 0], y=u[:, 1]), {"shuffle": True, "dims": "sample x"}),
        (40, pdebench, {}),
        (40, pdebench, {"n_train": 30}),
        (25, lambda u: u[23:25], {"dims": "sample time x", "time_step": 1}),
    ],
)
@pytest.mark.parametrize("in_memory", [2.0, 0.0])
def test_messages_name_a_sample_by_its_number_in_the_file(n, data, read, in_memory):
    """Samples were counted from the first one that was used, or within a piece of a trajectory."""
    u = array(n, 20, 8)
    u[24] = np.nan
    with refused("sample24." if n == 40 else "sample1."):
        load(data(u), **read, in_memory=in_memory)


def test_an_empty_crop_is_refused():
    with refused("crop empty"):
        load((X, Y), crop={"sample": (5, 5)})


PAIR = torch.zeros(20, 1, 16), torch.ones(20, 1, 16)


@pytest.mark.parametrize(
    ("splits", "names"),
    [
        ({"train": (X[:, None], Y[:, None])}, "x train (40,1,16) float32 torch"),
        ({"train": (PAIR[0], PAIR[1][:19])}, "train 20 19"),
        ({"val": (PAIR[0], torch.ones(20, 2, 16))}, "val 1 2 channels"),
        ({"val": (PAIR[0][:0], PAIR[1][:0])}, "x val (0,1,16)"),
        ({"test": (PAIR[0], PAIR[1].int())}, "y test int32"),
        ({"train": (PAIR[0].clone().requires_grad_(), PAIR[1])}, "x train gradients"),
        ({"train": (PAIR[0][:, 0], PAIR[1])}, "x train (20,16)"),
    ],
)
def test_ready_pairs_are_checked(splits, names):
    """Messages send users to ProblemData, which trained on pairs that do not match, or ended in a traceback."""
    with refused(names):
        ProblemData(**{"train": PAIR, "val": PAIR, **splits})


@pytest.mark.parametrize("constant", [0.0, 1e-4, 1e6])
@pytest.mark.parametrize("steps", [0, 1, -3])
def test_a_constant_channel_is_measured_by_itself(constant, steps):
    """The error of a channel of 1e-4 counted ten thousand times, and that of one that varies by a rounding even more."""
    y = np.stack([Y, np.full_like(Y, constant)], axis=1)
    y[::3, 1] += np.float32(constant) * np.float32(steps * 2.0**-23)
    with pytest.warns(UserWarning, match="up to rounding"):
        output = load((X, y), dims={"x": "sample x", "y": "sample channel x"}).processor().out_normalizer
    y = torch.tensor(y, requires_grad=True)
    normalized = output.transform(y)
    normalized.sum().backward()
    assert normalized[:, 1].abs().max() == 0 and y.grad[:, 1].abs().max() == 0
    restored = output.inverse_transform(torch.randn(40, 2, 16))[:, 1]
    assert torch.allclose(restored, y[:, 1], rtol=1e-6, atol=0)


def test_a_channel_with_a_rare_peak_is_not_constant():
    """Its standard deviation is that of rounding."""
    y = torch.ones(100, 1, 10_000)
    y[50, 0, 0] += 3e-4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(normalizer_of(y, "y").transform(y).std()) == pytest.approx(1, rel=1e-3)


def test_the_first_suggestion_gives_input_and_output_the_same_samples():
    files = [
        save(f"{key}_{i}.npy", array(*shape)) for key, shape in (("x", (16, 16)), ("y", (2, 16, 16))) for i in range(12)
    ]
    with refused("{'dims':{'y':'channelxy','x':'xy'}}(intheshell"):
        load(files)
