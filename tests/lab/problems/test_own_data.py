"""A user's own files: formats, layouts, what is wrong with them, and data that does not fit in memory."""

from __future__ import annotations

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
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.plan import data_notes
from neuralop_mup.lab.problems import OwnData, batches, get_problem
from neuralop_mup.lab.problems.given import as_source
from support.files import array, write

RNG = np.random.default_rng(0)


def counts(data):
    return [len(pair[0]) for pair in (data.train, data.val, data.test)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("suffix", ["npz", "pt", "h5"])
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
def test_channels_stand_where_they_alone_can(tmp_path, suffix, x, y, channels):
    """Every sample of the first split is the file's, with the channels in front."""
    a, b = array(*x), array(*y)
    problem = OwnData(files=write(tmp_path / f"heat.{suffix}", x=a, y=b), shuffle=False)
    assert (problem.in_channels, problem.out_channels, problem.title) == (*channels, "heat")
    data = problem.load()
    assert counts(data) == [16, 2, 2]
    for values, raw, n in ((data.train, (a, b), slice(0, 16)), (data.test, (a, b), slice(18, 20))):
        for got, whole, count in zip(values, raw, channels, strict=True):
            whole = whole[n]
            if whole.ndim == 2 + problem.n_dim and whole.shape[1:-1] == problem.grid_shape:
                whole = np.moveaxis(whole, -1, 1)
            expected = whole.reshape(len(whole), count, *problem.grid_shape)
            assert got.dtype == torch.float32 and np.array_equal(got.numpy(), expected)


def test_keys_types_split_and_crop(tmp_path):
    u = np.arange(12 * 9 * 9).reshape(12, 9, 9)
    file = write(tmp_path / "d.npz", other=array(3), mask=u % 2 == 0, u=u, v=2 * u)
    problem = OwnData(files=file, x="mask", y="u+v", split=(0.5, 0.25, 0.25), crop=True, shuffle=False)
    data = problem.load()
    assert (problem.in_channels, problem.out_channels, problem.grid_shape) == (1, 2, (8, 8))
    assert counts(data) == [6, 3, 3]
    assert torch.equal(data.val[1][:, 1], torch.from_numpy(2.0 * u[6:9, :8, :8]).float())
    assert set(data.train[0].unique().tolist()) == {0.0, 1.0}


def test_one_array_in_time(tmp_path):
    """(samples, times, x), and a group a sample: from the first time to the last, or by steps."""
    u, more = array(20, 11, 32), [array(6, 16, 16, 2) for _ in range(12)]
    file = write(tmp_path / "advection.hdf5", u=u, t=array(12), s=array(32))
    with pytest.raises(MupError, match=r"or for one state in time read={'y': 'u', 'dims': 'sample time x', 'time_step': 1}"):
        OwnData(files=file).load()
    two = r"u \(sample time x\) with 11 frames in time; .* next, read={'time_step': 1} .in the shell: .*'time_step': 'last'}"
    with pytest.raises(MupError, match=two):  # once it was the first to the last, without a word
        OwnData(files=file, y="u").load()
    data = OwnData(files=file, y="u", time_step="last", shuffle=False).load()
    assert np.array_equal(data.train[0][:, 0], u[:16, 0]) and np.array_equal(data.train[1][:, 0], u[:16, 10])
    for in_memory in (2.0, 0.0):
        stepped = OwnData(files=file, y="u", time_step=5, shuffle=False, in_memory=in_memory)
        data = stepped.load()
        assert len(data.train[0]) == 32
        assert np.array_equal(data.train[0][[0, 1, 2, 3]][:, 0], u[[0, 0, 1, 1], [0, 5, 0, 5]])
        assert np.array_equal(data.train[1][[3, 0, 1, 1]][:, 0], u[[1, 0, 0, 0], [10, 5, 10, 10]])
    groups = {f"{i:04d}/data": values for i, values in enumerate(more)} | {f"{i:04d}/grid/x": array(16) for i in range(12)}
    swe = OwnData(
        files=write(tmp_path / "swe.h5", **groups), y="*/data", dims="sample time x y channel", time_step=5, shuffle=False
    )
    assert (swe.in_channels, swe.grid_shape) == (2, (16, 16))
    assert np.array_equal(swe.load().train[0][3], np.moveaxis(more[3][0], -1, 0))


def test_neuralops_files(tmp_path):
    """x of booleans without a channel axis; train is split further, test stays apart. As neuralop's own class reads them."""
    from neuralop.data.datasets.pt_dataset import PTDataset

    train, test = array(20, 16, 16), array(6, 16, 16)
    train_file, test_file = (
        write(tmp_path / f"darcy_{n}_16.pt", x=y > 0, y=y) for n, y in (("train", train), ("test", test))
    )
    own = OwnData(files={"train": train_file, "test": test_file}, shuffle=False)
    data = own.load()
    assert counts(data) == [18, 2, 6] and own.readings["splits"].startswith(
        "test from darcy_test_16.pt; train, val from the others"
    )
    assert np.array_equal(data.test[1][:, 0], test) and np.array_equal(data.val[1][:, 0], train[18:])
    theirs = PTDataset(
        **{"root_dir": tmp_path, "dataset_name": "darcy", "n_train": 18, "n_tests": [6], "batch_size": 1},
        **{"test_batch_sizes": [1], "train_resolution": 16, "test_resolutions": [16], "input_subsampling_rate": [1]},
        output_subsampling_rate=[1],
    )
    assert torch.equal(torch.stack([sample["x"] for sample in theirs.train_db]), data.train[0])
    assert torch.equal(torch.stack([sample["y"] for sample in theirs.test_dbs[16]]), data.test[1])


def test_several_files(tmp_path):
    more = [write(tmp_path / f"{i}.npz", x=array(8, 16), y=array(8, 16)) for i in range(3)]
    assert sum(counts(OwnData(files=more).load())) == 24
    assert sum(counts(OwnData(files=f"{tmp_path}/[01].npz").load())) == 16
    with pytest.raises(MupError, match="files that are joined must agree"):
        _ = OwnData(files=(more[0], write(tmp_path / "x.npz", x=array(8, 18), y=array(8, 18)))).n_dim
    with pytest.raises(MupError, match="given for 'test': give that of 'train' once, and of 'val' or 'test'"):
        OwnData(files={"test": more})


def test_data_larger_than_memory_is_read_batch_by_batch(tmp_path):
    u = array(400, 2, 16)
    file = write(tmp_path / "big.h5", x=u, y=u[:, :1] * 3 + 1)
    whole, lazy = OwnData(files=file).load(), OwnData(files=file, in_memory=1e-9).load()
    assert torch.is_tensor(whole.train[0]) and not torch.is_tensor(lazy.train[0])
    assert fingerprint(lazy) == fingerprint(pickle.loads(pickle.dumps(lazy)))
    assert fingerprint(whole) != fingerprint(lazy)  # whose samples come in another order
    for split in ("val", "test"):
        for a, b in zip(whole.loaders(5, 1)[1][split], lazy.loaders(5, 1)[1][split], strict=True):
            assert torch.equal(a["x"], b["x"]) and torch.equal(a["y"], b["y"])
    one, other = (
        [(n.mean, n.std) for n in (processor.in_normalizer, processor.out_normalizer)]
        for processor in (whole.processor(), lazy.processor())
    )
    torch.testing.assert_close(one, other)
    assert torch.equal(lazy.sample()["x"], whole.train[0][::2])


def test_blocks_of_a_file_come_in_a_random_order_and_each_sample_once_an_epoch(tmp_path, monkeypatch):
    """Ten blocks of 8 samples, three at once; the order follows from the generator's state before the epoch alone."""
    monkeypatch.setattr(batches, "BLOCK", 8 * 32)
    monkeypatch.setattr(batches, "WINDOW", 24 * 32)
    x = np.broadcast_to(np.arange(80.0)[:, None], (80, 16))
    file = write(tmp_path / "big.h5", x=x, y=x)
    files = {"train": file, "val": write(tmp_path / "val.h5", x=x, y=x)}
    one, other = (OwnData(files=files, in_memory=1e-9).load().loaders(4, seed)[0] for seed in (3, 3))

    def epoch(loader):
        batches = list(loader)
        assert len(batches) == len(loader) == 20 and all(torch.equal(batch["x"], batch["y"]) for batch in batches)
        return torch.cat([batch["x"][:, 0, 0] for batch in batches]).int().tolist()

    first, state = epoch(one), one.generator.get_state()
    assert sorted(first) == list(range(80)) and first == epoch(other)
    for start in (0, 24, 48):
        blocks = {number // 8 for number in first[start : start + 24]}
        assert len(blocks) == 3 and first[start : start + 24] != sorted(first[start : start + 24])
    second = epoch(one)
    assert second != first
    other.generator.set_state(state)  # as a checkpoint has it, between epochs
    assert epoch(other) == second
    assert sorted(blocks) != [6, 7, 8]


def test_a_file_that_is_read_batch_by_batch_may_not_change_and_is_never_kept_open(tmp_path):
    file = write(tmp_path / "big.h5", x=array(40, 16), y=array(40, 16))
    data = OwnData(files=file, in_memory=0.0).load()
    before = fingerprint(data)
    data.check_unchanged()
    with h5py.File(file, "a") as content:  # refused by HDF5 while another has it open
        content["y"][7] = 3.0
    for look in (data.check_unchanged, data.fingerprint_content):
        with pytest.raises(MupError, match="big.h5 changed while it was read"):
            look()
    assert fingerprint(OwnData(files=file, in_memory=0.0).load()) != before


def test_of_a_trajectory_only_what_is_asked_for_is_read(tmp_path, monkeypatch):
    """Once 140 times as many bytes."""
    file = write(tmp_path / "t.h5", chunks=(1, 1, 24576), u=array(20, 50, 24576))
    data = OwnData(files=file, y="u", time_step=1, in_memory=0.0).load()
    read, whole = [], h5py.Dataset.__getitem__
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda *a: read.append(np.asarray(whole(*a)).nbytes) or whole(*a))
    x = data.train[0][np.random.RandomState(0).permutation(len(data.train[0]))[:20]]
    assert sum(read) == x.nbytes


@pytest.mark.parametrize(
    ("offset", "size", "kind", "kept"),
    [
        (1e5, 1.0, "f8", True),
        (101325.0, 1e-3, "f8", False),
        (1e-50, 1e-50, "f8", False),
        *((0.0, size, kind, kept) for size, kept in ((1e20, 1), (1e31, 0), (1e-28, 1), (1e-36, 0)) for kind in ("f4", "f8")),
    ],
)
def test_what_single_precision_would_lose_is_refused(tmp_path, offset, size, kind, kept):
    """Pressures in Pa: a wave of 1 Pa is there in float32 to 0.3 %, one of 1e-3 Pa is not; a constant loses nothing.

    Errors of fields of 1e-36 are hardly numbers there.
    """
    y = (offset + size * RNG.standard_normal((20, 1, 16))).astype(kind)
    x = np.concatenate([np.full_like(y, offset), y], axis=1)
    forms = (write(tmp_path / "p.npz", x=x, y=y), (x, y), {"train": (x, y), "val": (x, y)})
    for form in forms:
        if kept:
            got = as_source(form, dtype=torch.float32).load().train[1].double()
            assert float(got.std()) == pytest.approx(size, rel=0.2)
        else:
            with pytest.raises(MupError, match="which single precision does not hold: subtract"):
                as_source(form, dtype=torch.float32).load()


@pytest.mark.parametrize(
    ("said", "grid", "readings"),
    [
        ({}, (16, 16, 16), ("x (sample x y z)", "y (sample x y z)")),
        ({"dims": "sample channel x y"}, (16, 16), ("x (sample channel x y)", "y (sample channel x y)")),
        ({"dims": "sample x y channel"}, (16, 16), ("x (sample x y channel)", "y (sample x y channel)")),
    ],
)
def test_the_channel_axis_can_be_said_where_sizes_do_not_tell(tmp_path, said, grid, readings):
    problem = OwnData(files=write(tmp_path / "d.npz", x=array(12, 16, 16, 16), y=array(12, 16, 16, 16)), **said)
    assert (problem.grid_shape, problem.in_channels) == (grid, 16 if said else 1)
    assert (problem.readings["input"], problem.readings["output"]) == readings
    one = OwnData(files=write(tmp_path / "one.npz", x=array(12, 16, 24), y=array(12, 16, 24, 5)), dims="sample x y channel")
    assert (one.in_channels, one.out_channels, one.grid_shape) == (1, 5, (16, 24))  # said of both, there in one


@pytest.mark.parametrize("suffix", ["npz", "pt", "h5"])
def test_which_array_is_which_is_asked_for(tmp_path, suffix):
    fields = {name: array(20, 16, 16) for name in ("a", "u0", "uT")}
    file = write(tmp_path / f"d.{suffix}", **fields, t=array(16))
    with pytest.raises(MupError, match=r"which is the input .*read={'x': 'a', 'y': 'uT', 'dims': 'sample x y'}"):
        _ = OwnData(files=file).n_dim
    said = OwnData(files=file, x="a+u0", y="uT", shuffle=False)
    assert (said.in_channels, said.out_channels, said.grid_shape) == (2, 1, (16, 16))
    assert torch.equal(said.load().train[0][:, 1], torch.from_numpy(fields["u0"][:16]))
    timed = OwnData(files=file, y="uT", time_step=1)
    assert timed.grid_shape == (16,) and timed.readings["output"] == "uT (sample time x)"


@pytest.mark.parametrize(
    ("arrays", "grid", "channels"),
    [
        ({"u": (20, 11, 32)}, (32,), 1),
        ({"u": (20, 11, 16, 16)}, (16, 16), 1),
        ({"u": (20, 11, 2, 16, 16)}, (16, 16), 2),
        ({"u": (20, 11, 16, 16, 3)}, (16, 16), 3),
        ({f"sim_{i:03d}/{key}": shape for i in range(20) for key, shape in (("u", (11, 32)), ("t", (11,)))}, (32,), 1),
    ],
)
def test_the_line_that_is_offered_works(tmp_path, arrays, grid, channels):
    """Of a file that needs words the message gives a line to write; as it stands there it reads the file."""
    file = write(tmp_path / "d.h5", **{key: array(*shape) for key, shape in arrays.items()})
    with pytest.raises(MupError, match="which is the input|say what is learned") as caught:
        OwnData(files=file).load()
    offered = re.search(r"(?:one state in time|each step to the next,) read=({.*?}) ", str(caught.value))
    data = OwnData(files=file, **ast.literal_eval(offered[1]))
    assert (data.in_channels, data.out_channels, data.grid_shape) == (channels, channels, grid)
    assert data.load().counts()["train"] == 160  # 16 of 20 trajectories, ten pairs each


@pytest.mark.parametrize(
    ("arrays", "read", "offered"),
    [
        (
            {"x": (40, 64), "y": (40, 64, 21)},
            {},
            ["sample x channel", {"x": "sample x", "y": "sample x y"}, "sample x time"],
        ),
        (
            {"x": (40, 64), "y": (40, 64, 21)},
            {"dims": "sample x y"},
            ["sample x channel", {"x": "sample x", "y": "sample x y"}, "sample x time"],
        ),
        (
            {"a": (20, 16, 16), "u": (20, 16, 16, 10)},
            {},
            ["sample x y channel", {"a": "sample x y", "u": "sample x y z"}, "sample x y time"],
        ),
        ({"a": (20, 8, 12), "u": (20, 7, 8, 12)}, {}, ["sample channel x y", {"a": "sample y z"}, "sample time x y"]),
        ({"u": (20, 8, 8, 10), "t": (20, 11)}, {"x": "u"}, ["sample x y time"]),
        ({"x": (40, 3), "y": (40, 32)}, {}, [{"x": "sample channel", "y": "sample x"}]),
        (
            {"x": (40, 16), "y": (40, 16, 16)},
            {},
            ["sample channel x", "sample x channel", {"x": "sample x"}, "sample x time"],
        ),
        (
            {"a": (20, 8, 12), "p": (20, 8), "y": (20, 8, 12)},
            {"x": "a+p", "y": "y"},
            ["sample x channel", {"a": "sample x y", "p": "sample x", "y": "sample x y"}, "sample x time"],
        ),
    ],
)
def test_all_that_is_offered_works(tmp_path, capsys, arrays, read, offered):
    """Arrays with other axes each: once a line was offered that was answered with itself, or made constants of a field."""
    file = write(tmp_path / "d.npz", **{key: array(*shape) for key, shape in arrays.items()})
    with pytest.raises(MupError) as caught:
        OwnData(files=file, **read).load()
    lines = re.findall(r"read=({.*?}) \(in the shell: (.*?)\)[,; ]", str(caught.value))
    got = [ast.literal_eval(python) for python, _ in lines]
    for line, dims in zip(got, offered, strict=True):
        assert line["dims"] == dims if isinstance(dims, str) else dims.items() <= line["dims"].items()
    for line, (_, shell) in zip(got, lines, strict=True):
        own = OwnData(files=file, **line)
        assert len(own.load().train[0]) and not any("channel" in v.axes and len(v.axes) == 2 for v in own.first.inputs[:-1])
        assert main(["data", file, *shlex.split(shell)]) == 0 and own.readings["read as"] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arrays", "read", "each", "many"),
    [
        ({"x": (16, 16), "y": (16, 16)}, {}, "x y", "sample x"),
        ({"a": (16, 16), "nu": (), "u": (16, 16)}, {}, "x y", "sample x"),
        ({"x": (12, 16, 16), "y": (12, 16, 16)}, {}, "x y z", "sample x y"),
        ({"x": (2, 16, 16), "y": (16, 16)}, {}, "channel x y", None),
        ({"x": (16,), "y": (16,)}, {}, "x", None),
        ({"u": (11, 16, 16)}, {"y": "u", "time_step": 1}, "time x y", "sample time x"),
    ],
)
def test_files_that_may_be_a_sample_each_are_asked_about(tmp_path, arrays, read, each, many):
    """Once the rows of each were samples, some of them for training and some for the test."""
    files = [write(tmp_path / f"{i}.npz", **{key: array(*shape) for key, shape in arrays.items()}) for i in range(12)]
    with pytest.raises(MupError, match="12 files such as .*0.npz hold .*: where a file is one sample say read=") as caught:
        OwnData(files=files, **read).load()
    lines = [ast.literal_eval(line) for line in re.findall(r"read=({.*?}) \(in", str(caught.value))]
    assert [line["dims"] for line in lines] == [dims for dims in (each, many) if dims]
    for line in lines:
        own = OwnData(files=files, **{**read, **line})
        assert sum(map(len, own.split_indices.values())) == (12 if line is lines[0] else 12 * list(arrays.values())[0][0])
        assert own.load().train


def test_files_of_which_it_is_clear_what_they_hold_are_not_asked_about(tmp_path):
    """Shards of which one is shorter, of more axes than a sample has, that name their axes, or fewer than ten."""
    shapes = {
        "short": [(8, 16, 16)] * 11 + [(5, 16, 16)],
        "channels": [(8, 2, 16, 16)] * 12,
        "few": [(8, 16, 16)] * 9,
    }
    for name, every in shapes.items():
        (tmp_path / name).mkdir()
        for i, shape in enumerate(every):
            write(tmp_path / name / f"{i}.npz", x=array(*shape), y=array(*shape))
        assert sum(counts(OwnData(files=tmp_path / name).load())) == sum(shape[0] for shape in every)
    (tmp_path / "named").mkdir()
    for i in range(12):
        with h5py.File(tmp_path / "named" / f"{i}.h5", "w") as file:
            for key in "xy":
                file[key] = array(8, 16)
                for axis, word in zip(file[key].dims, ("sample", "lon"), strict=True):
                    axis.label = word
    assert sum(counts(OwnData(files=tmp_path / "named").load())) == 96


def test_an_input_with_fewer_axes_is_repeated_along_the_others(tmp_path):
    x, y = array(20, 16), array(20, 16, 8)
    file = write(tmp_path / "d.npz", x=x, y=y)
    data = OwnData(files=file, dims={"x": "sample x", "y": "sample x y"}, shuffle=False).load()
    assert np.array_equal(data.train[0][:, 0], np.broadcast_to(x[:16, :, None], (16, 16, 8)))
    assert np.array_equal(data.train[1][:, 0], y[:16])
    numbers = OwnData(files=file, dims={"x": "sample channel", "y": "sample x y"})  # which then was said
    assert numbers.in_channels == 16


def test_splits_are_drawn_and_told(tmp_path):
    """A sorted file: in file order the last samples are for validation, drawn they are from all of it, every time alike."""
    x = np.broadcast_to(np.arange(40.0)[:, None], (40, 16))
    file = write(tmp_path / "sorted.npz", x=x, y=x, f=array(40, 16))
    in_order, drawn, again = OwnData(files=file, shuffle=False), OwnData(files=file), OwnData(files=file)

    def held(problem):
        data = problem.load()
        return [part[0][:, 0, 0].tolist() for part in (data.train, data.val, data.test)]

    assert held(in_order) == [list(range(32)), [32, 33, 34, 35], [36, 37, 38, 39]]
    assert held(drawn) == held(again) and sorted(sum(held(drawn), [])) == list(range(40))
    # NumPy's RandomState(0).permutation(40), whose numbers no version changes.
    assert held(drawn)[1] == sorted(np.random.RandomState(0).permutation(40)[32:36].tolist())
    assert torch.equal(*drawn.load().val)  # input and output are still pairs
    assert "drawn at random, the same in every run" in drawn.readings["splits"]
    assert in_order.readings["splits"] == "train, val, test from all in file order"
    assert fingerprint(drawn.load()) != fingerprint(in_order.load())


def test_drawn_trajectories_stay_whole(tmp_path):
    u = np.broadcast_to(np.arange(20.0)[:, None, None], (20, 5, 16))
    data = OwnData(files=write(tmp_path / "u.npz", u=u), y="u", time_step=1).load()
    held = [set(part[0][:, 0, 0].tolist()) for part in (data.train, data.val, data.test)]
    assert [len(part) for part in held] == [16, 2, 2] and len(set.union(*held)) == 20


@pytest.mark.parametrize(("n", "told"), [(94, True), (95, False)])
def test_few_validation_samples_are_warned_of(tmp_path, n, told):
    """Of 94 samples a tenth is 9, of 95 it is 10 (9.5, rounded to even), which will do."""
    write(tmp_path / "d.npz", x=array(n, 16), y=array(n, 16))
    n_val = OwnData(files="d.npz").load().counts()["val"]
    notes = [data_notes({"x": None, "y": None}, count, None, None) for count in (n_val, 1)]
    assert bool(notes[0]) == told and "on 1 validation sample:" in notes[1][0]


def spoiled(**change):
    good = {"x": array(20, 16, 16), "y": array(20, 16, 16), **change}
    return {k: v for k, v in good.items() if v is not None}


@pytest.mark.parametrize(
    ("arrays", "options", "told"),
    [
        (
            spoiled(y=np.full((20, 16, 16), np.nan)),
            {},
            r"y in .*d.npz has entries that are not finite, in sample [0-9]+ among",
        ),
        (
            spoiled(x=array(20, 16, 16) + 1j),
            {},
            "x in .* is no field, complex.*the real and imaginary parts of complex ones are two channels",
        ),
        (spoiled(x=np.full((20, 16, 16), "a")), {}, "x in .* is no field, <U1 of shape"),
        (spoiled(y=array(20)), {}, "d.npz holds .*y .20,. float32: with sample first they are no fields with"),
        (spoiled(), {"y": "z", "x": "x"}, "d.npz holds .*: there is no 'z'; expected one of x, y"),
        (spoiled(), {"x": "x"}, "which is the input and which the output"),
        (spoiled(x=array(3, 16, 16), y=array(3, 16, 16)), {}, "d has 3 samples in all, .* at least 10"),
        (spoiled(x=array(0, 16, 16), y=array(0, 16, 16)), {}, r"y in .*d.npz is no field, float32 of shape \(0, 16, 16\)"),
        (spoiled(y=array(19, 16, 16)), {}, "with sample first they are no fields with as many samples each on one grid"),
        (spoiled(y=array(20, 16, 18)), {"dims": "sample x y"}, "with 16 and 18 along y: input and output need one grid"),
        (
            spoiled(x=array(20, 8, 24), y=array(20, 8, 24)),
            {},
            "channels is not certain. Say so, such as read={'dims': 'sample x y'} .*'sample channel x'}",
        ),
        (spoiled(x=array(20, 2), y=array(20, 2)), {}, "one to three axes of 4 points or more"),
        (spoiled(x=None, y=None, u=array(20, 16)), {"y": "u"}, "with sample and time first they are no fields"),
        (
            spoiled(x=None, y=None, u=array(20, 6, 16)),
            {"y": "u", "time_step": 6},
            "d.npz has 6 frames in a trajectory, too few for time_step = 6",
        ),
        (spoiled(), {"time_step": 2}, "time_step, history and rollout are for data with a time axis, and .*d.npz has none"),
        (spoiled(), {"split": (0.9, 0.2, 0.1)}, "with the sum 1"),
        (spoiled(x=None, y=None, t=array(20)), {}, "holds t .20,. float32: which is the input"),
        (spoiled(), {"files": "nowhere.npz"}, "no file or folder nowhere.npz; "),
        (spoiled(), {"files": __file__}, r"test_own_data.py is no file that can be read .*ends in .npz, .npy, .pt"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(tmp_path, arrays, options, told):
    with pytest.raises(MupError, match=told):
        OwnData(**{"files": write(tmp_path / "d.npz", **arrays), **options}).load()


@pytest.mark.parametrize("name", ["d.npz", "d.pt", "d.h5"])
def test_damaged_files_are_told(tmp_path, name):
    (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(MupError, match=f"{name} cannot be read"):
        _ = get_problem("data", files=(name,)).n_dim


def test_the_command_tells_what_a_file_cannot_be(tmp_path, capsys):
    x = array(24, 32)
    write(tmp_path / "heat.npz", x=x, y=np.where(np.arange(24)[:, None] == 7, np.nan, x))
    assert main(["tune", "heat.npz"]) == 2
    assert "y in heat.npz has entries that are not finite, in sample 7 among" in capsys.readouterr().err
