"""A user's own files: what the package infers, what it asks, splits, and data that does not fit in memory."""

import ast
import pickle
import re
import shlex

import h5py
import numpy as np
import pytest
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.data import OwnData, batches
from neuralop_mup.lab.data.given import as_source
from neuralop_mup.lab.fingerprint import fingerprint
from support.errors import refused
from support.files import array, assert_equal, write

RNG = np.random.default_rng(0)


def load(files, **read):
    return OwnData(files=files, **{"shuffle": False, **read}).load()


def write_arrays(path, shapes):
    return write(path, **{key: array(*shape) for key, shape in shapes.items()})


def lines_of(error):
    """Arguments that a message offers, as (Python, shell)."""
    found = re.findall(r"read=({.*?}) \(in the shell: (.*?)\)[,;. ]", str(error.value))
    return [(ast.literal_eval(python), shell) for python, shell in found]


# What is inferred


@pytest.mark.parametrize(
    ("x", "y", "channels"),
    [
        ((20, 32), (20, 32), (1, 1)),
        ((20, 1, 32), (20, 1, 32), (1, 1)),
        ((20, 32, 3), (20, 32, 2), (3, 2)),
        ((20, 16, 16), (20, 16, 16), (1, 1)),
        ((20, 3, 16, 24), (20, 2, 16, 24), (3, 2)),
        ((20, 16, 24), (20, 16, 24, 2), (1, 2)),
        ((20, 16, 24), (20, 2, 16, 24), (1, 2)),
        ((20, 8, 8, 8), (20, 8, 8, 8), (1, 1)),
        ((20, 2, 8, 10, 12), (20, 2, 8, 10, 12), (2, 2)),
    ],
)
def test_channel_axis_is_inferred_where_only_one_place_fits(x, y, channels):
    arrays = {"x": array(*x), "y": array(*y)}
    own = OwnData(files=write("heat.npz", **arrays), shuffle=False)
    assert (own.in_channels, own.out_channels, own.title) == (*channels, "heat")
    data = own.load()
    assert data.counts() == {"train": 16, "val": 2, "test": 2}
    for values, part, count in zip(arrays.values(), data.test, channels, strict=True):
        if values.shape[1:-1] == own.grid_shape:
            values = np.moveaxis(values, -1, 1)
        assert part.dtype == torch.float32
        assert np.array_equal(part, values[18:].reshape(2, count, *own.grid_shape))


def test_keys_types_split_and_crop():
    u = np.arange(12 * 9 * 9).reshape(12, 9, 9)
    file = write("d.npz", other=array(3), mask=u % 2 == 0, u=u, v=2 * u)
    data = load(file, x="mask", y="u+v", split=(0.5, 0.25, 0.25), crop=dict.fromkeys("xy", (0, 8)))
    assert data.counts() == {"train": 6, "val": 3, "test": 3}
    cropped = u[6:9, None, :8, :8]
    assert_equal(data.val, (cropped % 2 == 0, np.concatenate([cropped, 2 * cropped], axis=1)))


def test_what_is_learned_of_an_array_in_time_is_asked():
    """The length of t says which axis is time: PDEBench's times have one entry more than there are frames."""
    file = write("advection.hdf5", u=array(20, 11, 32), t=np.arange(12.0), s=array(32))
    with refused("11 {'time_step':1} {'time_step':'last'}"):
        OwnData(files=file).load()
    own = OwnData(files=file, time_step=1)
    assert own.readings["output"] == "u (sample time x)"


# What is asked


@pytest.mark.parametrize(
    ("dims", "grid", "channels"),
    [(None, (16, 16, 16), 1), ("sample channel x y", (16, 16), 16), ("sample x y channel", (16, 16), 16)],
)
def test_dims_name_the_channel_axis_of_a_cube(dims, grid, channels):
    own = OwnData(files=write_arrays("d.npz", {"x": (12, 16, 16, 16), "y": (12, 16, 16, 16)}), dims=dims)
    assert (own.grid_shape, own.in_channels) == (grid, channels)
    assert own.readings["input"] == f"x ({dims or 'sample x y z'})"


def test_unused_arrays_are_reported_and_a_given_input_is_kept():
    """A scalar per sample was once ignored in silence, and x= without y= was refused although y was the only other field."""
    nu = np.linspace(0, 1, 20)
    file = write("heat.npz", x=array(20, 16), y=array(20, 16), nu=nu, t=np.arange(3.0))
    assert OwnData(files=file).readings["not used"] == "nu (20,)"
    own = OwnData(files=file, x="x+nu")
    assert "not used" not in own.readings and own.in_channels == 2
    state = OwnData(
        files=write("state.npz", u=array(20, 9, 16), nu=nu), x="nu", time_step=1, dims={"u": "sample time x", "nu": "sample"}
    )
    assert (state.in_channels, state.out_channels) == (2, 1)
    with pytest.raises(MupError, match="unclear which array is the input"):
        load(write("three.npz", a=array(20, 16), b=array(20, 16), c=array(20, 16)), x="a")


def test_other_data_has_another_title(tmp_path, monkeypatch):
    """Two folders with train.npz and test.npz, and two files heat.npz, once shared a default folder for their runs."""
    pair = {"x": array(20, 16), "y": array(20, 16)}
    for name in ("a/heat", "b/heat", "a/split/train", "a/split/test", "b/split/train", "b/split/test"):
        write(tmp_path / f"{name}.npz", **pair)
    monkeypatch.chdir(tmp_path)
    for title in ("a/heat", "b/heat", "a/split", "b/split"):
        files = f"{title}.npz" if title.endswith("heat") else title
        assert OwnData(files=files).title == title == OwnData(files=str(tmp_path / files)).title
    monkeypatch.chdir(tmp_path / "a" / "split")
    assert OwnData(files=["train.npz", "test.npz"]).title == "split"
    assert OwnData(files="../../b/heat.npz").title == (tmp_path / "b" / "heat").relative_to(tmp_path.anchor).as_posix()


def test_keys_are_asked_where_no_array_is_x_or_y():
    file = write_arrays("d.npz", {"a": (20, 16, 16), "u0": (20, 16, 16), "uT": (20, 16, 16)})
    with refused("{'x':'a','y':'uT'} {'y':'uT','time_step':1}") as caught:
        OwnData(files=file).load()
    pair, state = (line for line, _ in lines_of(caught))
    assert OwnData(files=file, **pair).readings["output"] == "uT (sample x y)"
    with refused("'sampletimex' 'timexy'"):
        OwnData(files=file, **state).load()


def offered(caught):
    """All words for axes that a message offers."""
    ((line, _),) = lines_of(caught)
    more = re.findall(r"or dims=('.*?'|{.*?})[,.]", str(caught.value))
    return line, [line["dims"], *map(ast.literal_eval, more)]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((20, 11, 32), ["sample time x", "time x y"]),
        ((200, 48, 64), ["sample time x", "time x y", "sample x time"]),
        ((20, 11, 16, 16), ["sample time x y", "time x y z"]),
        ((20, 18, 2, 16, 16), ["sample time channel x y"]),
    ],
)
def test_a_state_that_can_be_read_in_two_ways_is_asked(shape, words):
    """One trajectory (time, x, y) was once read as samples, without a message."""
    file = write_arrays("d.h5", {"u": shape})
    if len(words) == 1:
        assert OwnData(files=file, time_step=1).readings["output"] == f"u ({words[0]})"
        return
    with refused("d.h5 u time_step" if len(shape) == 0 else "d.h5 u") as caught:
        OwnData(files=file, time_step=1).load()
    line, dims = offered(caught)
    assert dims[0] == words[0] and set(words) <= set(dims)
    for words in dims:
        own = OwnData(files=file, time_step=1, **{**line, "dims": words})
        assert own.readings["output"] == f"u ({words})"


def test_groups_of_samples_may_have_any_name():
    arrays = {f"sim_{i:03d}/u": array(11, 32) for i in range(20)} | {f"sim_{i:03d}/t": np.arange(11.0) for i in range(20)}
    own = OwnData(files=write("d.h5", **arrays), time_step=1)
    assert (own.readings["output"], own.load().counts()["train"]) == ("*/u (sample time x)", 160)


XY = {"x": "sample x", "y": "sample x y"}


@pytest.mark.parametrize(
    ("arrays", "read", "words"),
    [
        (
            {"x": (20, 16, 16), "y": (20, 16, 16, 10)},
            {},
            [{"x": "sample x y", "y": "sample x y channel"}, {"x": "sample x y", "y": "sample x y z"}],
        ),
        ({"x": (40, 16), "y": (40, 16, 16)}, {}, [XY, {"x": "sample channel", "y": "sample x y"}]),
        ({"x": (20, 8, 24), "y": (20, 8, 24)}, {}, ["sample x y", "sample channel x"]),
        ({"a": (20, 8, 12), "u": (20, 7, 8, 12)}, {"x": "a", "y": "u"}, [{"a": "sample y z", "u": "sample x y z"}]),
        ({"a": (20, 8, 12), "p": (20, 8), "y": (20, 8, 12)}, {"x": "a+p", "y": "y"}, []),
    ],
)
def test_all_offered_lines_work(capsys, arrays, read, words):
    """An offered line was once refused with the same message, or made constants of a field."""
    file = write_arrays("d.npz", arrays)
    with refused("d.npz") as caught:
        OwnData(files=file, **read).load()
    line, dims = offered(caught)
    assert len(dims) > 1 and all(each in dims for each in words)
    for each in dims:
        own = OwnData(files=file, **{**line, "dims": each})
        assert own.load().counts()["train"] >= 16
    ((_, shell),) = lines_of(caught)
    assert main(["data", file, *shlex.split(shell)]) == 0
    assert "points" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arrays", "read", "words"),
    [
        ({"x": (16, 16), "y": (16, 16)}, {}, ["x y", "sample x"]),
        ({"x": (12, 16, 16), "y": (12, 16, 16)}, {}, ["x y z", "sample x y"]),
        ({"u": (11, 16, 16)}, {"y": "u", "time_step": 1}, ["time x y", "sample time x"]),
    ],
)
def test_files_that_may_be_one_sample_each(arrays, read, words):
    """The rows of each file were once samples, some of them for training and some for the test."""
    files = [write_arrays(f"{i}.npz", arrays) for i in range(12)]
    with refused("0.npz") as caught:
        OwnData(files=files, **read).load()
    _, dims = offered(caught)
    assert set(words) <= set(dims)
    rows = list(arrays.values())[0][0]
    for each, n in zip(words, (12, 12 * rows), strict=False):
        assert sum(map(len, OwnData(files=files, **{**read, "dims": each}).split_indices.values())) == n


def test_files_with_one_frame_each_are_not_trajectories():
    """A folder of frames of 16×16 points was once read as trajectories on 16 points."""
    files = [write_arrays(f"{i}.npz", {"u": (16, 16)}) for i in range(12)]
    with refused("0.npz 12files {'dims':'timex'} {'join':'time'}"):
        OwnData(files=files, time_step=1).load()
    assert OwnData(files=files, time_step=1, dims="time x").grid_shape == (16,)
    assert OwnData(files=files, time_step=1, join="time", dims="time x y").grid_shape == (16, 16)


@pytest.mark.parametrize("shapes", [[(8, 16, 16)] * 11 + [(5, 16, 16)], [(8, 2, 16, 16)] * 12, [(8, 16, 16)] * 9])
def test_files_that_hold_many_samples(shapes):
    for i, shape in enumerate(shapes):
        write_arrays(f"{i}.npz", {"x": shape, "y": shape})
    assert sum(load("*.npz").counts().values()) == sum(shape[0] for shape in shapes)


def test_files_that_name_their_axes_are_not_asked_about():
    for i in range(12):
        write_arrays(f"{i}.h5", {"x": (8, 16), "y": (8, 16)})
        with h5py.File(f"{i}.h5", "a") as file:
            for values in file.values():
                values.dims[0].label, values.dims[1].label = "sample", "lon"
    assert sum(load("*.h5").counts().values()) == 96


# Splits


def test_splits_are_drawn_at_random_and_always_the_same():
    x = np.broadcast_to(np.arange(40.0)[:, None], (40, 16))
    file = write("sorted.npz", x=x, y=x, f=array(40, 16))
    in_order, drawn = load(file), load(file, shuffle=True)

    def numbers(data):
        return [part[0][:, 0, 0].tolist() for part in (data.train, data.val, data.test)]

    assert numbers(in_order) == [list(range(32)), [32, 33, 34, 35], [36, 37, 38, 39]]
    assert sorted(sum(numbers(drawn), [])) == list(range(40))
    # NumPy keeps the numbers of RandomState in all versions.
    assert numbers(drawn)[1] == sorted(np.random.RandomState(0).permutation(40)[32:36].tolist())
    assert torch.equal(*drawn.val)
    assert fingerprint(drawn) != fingerprint(in_order)


def test_drawn_trajectories_stay_whole():
    u = np.broadcast_to(np.arange(20.0)[:, None, None], (20, 5, 16))
    data = load(write("u.npz", u=u), y="u", time_step=1, shuffle=True, dims="sample time x")
    numbers = [set(part[0][:, 0, 0].tolist()) for part in (data.train, data.val, data.test)]
    assert [len(part) for part in numbers] == [16, 2, 2]
    assert len(set.union(*numbers)) == 20


# Data that does not fit in memory


def test_data_larger_than_memory_is_read_in_batches():
    u = array(400, 2, 16)
    file = write("big.h5", x=u, y=u[:, :1] * 3 + 1)
    whole, lazy = load(file), load(file, in_memory=1e-9)
    assert [torch.is_tensor(data.train[0]) for data in (whole, lazy)] == [True, False]
    assert fingerprint(lazy) == fingerprint(pickle.loads(pickle.dumps(lazy)))
    assert fingerprint(whole) != fingerprint(lazy)  # since its samples come in another order
    for name in ("in_normalizer", "out_normalizer"):
        one, other = (getattr(data.processor(), name) for data in (whole, lazy))
        torch.testing.assert_close((one.mean, one.std), (other.mean, other.std))
    assert torch.equal(lazy.sample()["x"], whole.train[0][::2])


def test_blocks_of_a_file_come_in_random_order(monkeypatch):
    """Ten blocks of 8 samples, three at once. A checkpoint between epochs keeps the order."""
    monkeypatch.setattr(batches, "BLOCK", 8 * 32)
    monkeypatch.setattr(batches, "WINDOW", 24 * 32)
    x = np.broadcast_to(np.arange(80.0)[:, None], (80, 16))
    files = {"train": write("big.h5", x=x, y=x), "val": write("val.h5", x=x, y=x)}
    one, other = (load(files, in_memory=1e-9).loaders(4, seed)[0] for seed in (3, 3))

    def epoch(loader):
        return torch.cat([batch["x"][:, 0, 0] for batch in loader]).int().tolist()

    first, state = epoch(one), one.generator.get_state()
    assert sorted(first) == list(range(80))
    for start in (0, 24, 48):
        window = first[start : start + 24]
        assert len({number // 8 for number in window}) == 3
        assert window != sorted(window)
    second = epoch(one)
    assert second != first
    other.generator.set_state(state)
    assert epoch(other) == second


def test_changed_file_is_refused_and_no_file_stays_open():
    file = write_arrays("big.h5", {"x": (40, 16), "y": (40, 16)})
    data = load(file, in_memory=0.0)
    before = fingerprint(data)
    with h5py.File(file, "a") as content:  # HDF5 refuses this while the file is open elsewhere
        content["y"][7] = 3.0
    for look in (data.check_unchanged, data.fingerprint_content):
        with refused("big.h5"):
            look()
    assert fingerprint(load(file, in_memory=0.0)) != before


# Wrong data


@pytest.mark.parametrize(
    ("offset", "size", "kind", "is_kept"),
    [
        (1e5, 1.0, "f8", True),
        (101325.0, 1e-3, "f8", False),
        (1e-50, 1e-50, "f8", False),
        (0.0, 1e20, "f4", True),
        (0.0, 1e31, "f4", False),
        (0.0, 1e-28, "f8", True),
        (0.0, 1e-36, "f8", False),
    ],
)
def test_values_that_single_precision_would_lose_are_refused(offset, size, kind, is_kept):
    """A pressure wave of 1 Pa beside 1e5 Pa is there in float32 to 0.3 %, one of 1e-3 Pa is not."""
    y = (offset + size * RNG.standard_normal((20, 1, 16))).astype(kind)
    x = np.concatenate([np.full_like(y, offset), y], axis=1)
    for form in (write("p.npz", x=x, y=y), (x, y), {"train": (x, y), "val": (x, y)}):
        if is_kept:
            got = as_source(form).load().train[1].double()
            assert float(got.std()) == pytest.approx(size, rel=0.2)
        else:
            with refused("single"):
                as_source(form).load()


GOOD = array(20, 16, 16)
ONE_NAN = np.where(np.arange(20)[:, None, None] == 7, np.nan, GOOD)


@pytest.mark.parametrize(
    ("changes", "options", "names"),
    [
        ({"y": ONE_NAN}, {}, "y d.npz 7"),
        ({"x": GOOD + 1j}, {}, "x d.npz complex"),
        ({"x": np.full((20, 16, 16), "a")}, {}, "x d.npz <U1"),
        ({"y": (GOOD > 0) + 1}, {}, "y d.npz 1,2 classes float32"),
        ({"y": np.array([{}] * 5, object)}, {}, "d.npz"),
        ({"y": array(20)}, {}, "d.npz (20,) sample"),
        ({}, {"y": "z", "x": "x"}, "d.npz 'z' x,y"),
        ({}, {"x": "q"}, "'q' x,y"),
        ({}, {"join": "time", "time_step": 1, "dims": "time x y"}, "4 'timexy'"),
        ({"x": array(3, 16, 16), "y": array(3, 16, 16)}, {}, "d 3 10"),
        ({"x": array(0, 16, 16), "y": array(0, 16, 16)}, {}, "y d.npz float32 (0,16,16)"),
        ({"y": array(19, 16, 16)}, {}, "(19,16,16) (20,16,16) sample"),
        ({"y": array(19, 16, 16)}, {"dims": "sample x y"}, "19 20 sample"),
        ({"y": array(20, 16, 18)}, {"dims": "sample x y"}, "16 18 y"),
        ({"x": array(20, 2), "y": array(20, 2)}, {}, "4 axes"),
        ({"u": np.float32(3)}, {"y": "u"}, "d.npz u() dims"),
        ({"u": array(20, 16)}, {"y": "u"}, "u (timex) 20 time_step"),
        ({"u": array(20, 6, 16)}, {"y": "u", "time_step": 6, "dims": "sample time x"}, "d.npz 6 time_step"),
        ({}, {"time_step": 2, "dims": "sample x y"}, "time_step history rollout d.npz"),
        ({}, {"split": (0.9, 0.2, 0.1)}, "split 0.2"),
        ({}, {"shuffle": 1}, "shuffle 1"),
        ({}, {"files": "nowhere.npz"}, "nowhere.npz"),
        ({}, {"files": __file__}, "test_own_data.py .npz .npy .pt"),
    ],
)
def test_wrong_data(changes, options, names):
    arrays = changes if "u" in changes else {"x": GOOD, "y": GOOD, **changes}
    with refused(names):
        OwnData(**{"files": write("d.npz", **arrays), **options}).load()
