"""A user's own files: formats, layouts, guesses, what is wrong with them, and data that does not fit in memory."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.problems import OwnData, get_problem
from neuralop_mup.lab.proxy import data_notes

RNG = np.random.default_rng(0)


def array(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def write(path: Path, **arrays):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".pt":
        torch.save({k: torch.from_numpy(v) for k, v in arrays.items()}, path)
    else:
        with h5py.File(path, "w") as file:
            file.update(arrays)
    return str(path)


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
        ((20, 16, 24), (20, 16, 24), (1, 1)),
        ((20, 3, 16, 24), (20, 2, 16, 24), (3, 2)),
        ((20, 16, 24), (20, 16, 24, 2), (1, 2)),
        ((20, 16, 24), (20, 2, 16, 24), (1, 2)),
        ((20, 8, 10, 12), (20, 8, 10, 12), (1, 1)),
        ((20, 2, 8, 10, 12), (20, 2, 8, 10, 12), (2, 2)),
    ],
)
def test_shapes_and_channels_are_guessed(tmp_path, suffix, x, y, channels):
    """Every sample of the first split is the file's, with the channels in front."""
    a, b = array(*x), array(*y)
    problem = OwnData(files=write(tmp_path / f"heat.{suffix}", x=a, y=b), shuffle=False)
    assert (problem.in_channels, problem.out_channels, problem.title) == (*channels, "heat")
    data = problem.load()
    assert counts(data) == [16, 2, 2] and problem.n_train == 16
    for values, raw, n in ((data.train, (a, b), slice(0, 16)), (data.test, (a, b), slice(18, 20))):
        for got, whole, count in zip(values, raw, channels, strict=True):
            whole = whole[n]
            if whole.ndim == 2 + problem.n_dim and whole.shape[1] != count:
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
    """PDEBench's 1D sets: tensor (samples, times, x) with coordinates. From the first time to the last, or step by step."""
    u = array(20, 11, 32)
    coordinates = {"t-coordinate": array(12), "x-coordinate": array(32)}
    file = write(tmp_path / "advection.hdf5", tensor=u, **coordinates)
    data = OwnData(files=file, shuffle=False).load()
    assert np.array_equal(data.train[0][:, 0], u[:16, 0]) and np.array_equal(data.train[1][:, 0], u[:16, 10])
    stepped = OwnData(files=file, time_step=5, shuffle=False)
    data = stepped.load()
    assert stepped.n_train == len(data.train[0]) == 32 and "times 0 → 5, 5 → 10" in stepped.description
    assert np.array_equal(data.train[0][:4, 0], u[[0, 0, 1, 1], [0, 5, 0, 5]])
    assert np.array_equal(data.train[1][:4, 0], u[[0, 0, 1, 1], [5, 10, 5, 10]])


def test_pdebench_layouts(tmp_path):
    darcy = write(tmp_path / "darcy.h5", nu=array(12, 16, 16), tensor=array(12, 1, 16, 16), **{"x-coordinate": array(16)})
    problem = OwnData(files=darcy)
    assert (problem.in_channels, problem.out_channels, problem.grid_shape) == (1, 1, (16, 16))
    flow = {name: array(12, 5, 16, 16) for name in ("Vx", "Vy", "density", "pressure")}
    cfd = OwnData(files=write(tmp_path / "cfd.h5", **flow), shuffle=False)
    assert (cfd.in_channels, cfd.out_channels) == (4, 4)
    assert np.array_equal(cfd.load().train[1][:, 2], flow["density"][: cfd.n_train, 4])
    samples = [array(6, 16, 16, 2) for _ in range(12)]
    groups = {f"{i:04d}/data": values for i, values in enumerate(samples)}
    swe = OwnData(
        files=write(tmp_path / "swe.h5", **groups, **{f"{i:04d}/grid/x": array(16) for i in range(12)}), shuffle=False
    )
    assert (swe.in_channels, swe.grid_shape) == (2, (16, 16))
    assert np.array_equal(swe.load().train[0][3], np.moveaxis(samples[3][0], -1, 0))


def test_neuralops_files_and_several_files(tmp_path):
    """neuralop's layout: train and test files, x of booleans without a channel axis."""
    train, test = array(20, 16, 16), array(6, 16, 16)
    files = [write(tmp_path / f"darcy_{n}_16.pt", x=y > 0, y=y) for n, y in (("train", train), ("test", test))]
    data = OwnData(files=files, shuffle=False).load()
    assert counts(data) == [18, 2, 6]
    assert np.array_equal(data.test[1][:, 0], test) and np.array_equal(data.val[1][:, 0], train[18:])
    more = [write(tmp_path / f"{i}.npz", x=array(8, 16), y=array(8, 16)) for i in range(3)]
    assert sum(counts(OwnData(files=more).load())) == 24
    with pytest.raises(MupError, match="files that are joined must agree"):
        _ = OwnData(files=(more[0], write(tmp_path / "x.npz", x=array(8, 18), y=array(8, 18)))).n_dim


def test_data_larger_than_memory_is_read_batch_by_batch(tmp_path):
    u = array(40, 2, 16)
    file = write(tmp_path / "big.h5", x=u, y=u[:, :1] * 3 + 1)
    whole, lazy = OwnData(files=file).load(), OwnData(files=file, in_memory=1e-9).load()
    assert torch.is_tensor(whole.train[0]) and not torch.is_tensor(lazy.train[0])
    assert whole.digest() == lazy.digest()
    for a, b in zip(whole.loaders(5, 1)[0], lazy.loaders(5, 1)[0], strict=True):
        assert torch.equal(a["x"], b["x"]) and torch.equal(a["y"], b["y"])
    one, other = (
        [(n.mean, n.std) for n in (processor.in_normalizer, processor.out_normalizer)]
        for processor in (whole.processor(), lazy.processor())
    )
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_the_channels_of_each_array_are_recognised(tmp_path, suffix):
    """Channels first in one array and last in the other."""
    x, y = array(20, 2, 16, 24), array(20, 16, 24, 3)
    mixed = OwnData(files=write(tmp_path / f"mixed.{suffix}", x=x, y=y), shuffle=False)
    data = mixed.load()
    assert (mixed.in_channels, mixed.out_channels, mixed.grid_shape) == (2, 3, (16, 24))
    assert np.array_equal(data.train[0], x[:16]) and np.array_equal(data.train[1], np.moveaxis(y, -1, 1)[:16])
    assert mixed.readings["input"] == "x (channels first)" and mixed.readings["output"] == "y (channels last)"


@pytest.mark.parametrize(
    ("said", "grid", "readings"),
    [
        ({}, (16, 16, 16), ("x (no channel axis)", "y (no channel axis)")),
        ({"channels": "first"}, (16, 16), ("x (channels first)", "y (channels first)")),
        ({"channels": "last"}, (16, 16), ("x (channels last)", "y (channels last)")),
        ({"channels": "x:first,y:last"}, (16, 16), ("x (channels first)", "y (channels last)")),
        ({"channels": "y:last"}, (16, 16), ("x (channels first)", "y (channels last)")),  # the other is what fits
    ],
)
def test_the_channel_axis_can_be_said_where_sizes_do_not_tell(tmp_path, said, grid, readings):
    problem = OwnData(files=write(tmp_path / "d.npz", x=array(12, 16, 16, 16), y=array(12, 16, 16, 16)), **said)
    assert (problem.grid_shape, problem.in_channels) == (grid, 16 if said else 1)
    assert (problem.readings["input"], problem.readings["output"]) == readings


@pytest.mark.parametrize("suffix", ["npz", "pt", "h5"])
@pytest.mark.parametrize("t", [{}, {"t": array(1)}, {"t": array(15)}])
def test_without_a_sign_of_time_nothing_is_a_time_axis(tmp_path, suffix, t):
    """Three fields of one shape: rows must not become times."""
    fields = {name: array(20, 16, 24) for name in ("a", "u0", "uT")}
    file = write(tmp_path / f"d.{suffix}", **fields, **t)
    with pytest.raises(MupError, match=r"which is the input .*read={'x': 'a\+u0', 'y': 'uT'}.*read={'y': 'a\+u0\+uT'}"):
        _ = OwnData(files=file).n_dim
    said = OwnData(files=file, x="a+u0", y="uT", shuffle=False)
    assert (said.in_channels, said.out_channels, said.grid_shape) == (2, 1, (16, 24))
    assert torch.equal(said.load().train[0][:, 1], torch.from_numpy(fields["u0"][:16]))


@pytest.mark.parametrize(
    ("times", "options"), [({"t": array(16)}, {}), ({"time": array(16)}, {}), ({}, {"y": "u"}), ({}, {"time_step": 3})]
)
def test_a_sign_of_time(tmp_path, times, options):
    """Times in the file, as many as the axis has, or what the user says."""
    timed = OwnData(files=write(tmp_path / "d.npz", u=array(20, 16, 24), **times), **options)
    assert timed.grid_shape == (24,)
    assert timed.readings["fields"].startswith("u (second axis: time")


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
    assert in_order.readings["splits"] == "in file order: train, val, test"
    assert drawn.readings["unused"] == "f" and drawn.load().digest() != in_order.load().digest()


def test_drawn_trajectories_stay_whole(tmp_path):
    u = np.broadcast_to(np.arange(20.0)[:, None, None], (20, 5, 16))
    data = OwnData(files=write(tmp_path / "u.npz", u=u), y="u", time_step=1).load()
    held = [set(part[0][:, 0, 0].tolist()) for part in (data.train, data.val, data.test)]
    assert [len(part) for part in held] == [16, 2, 2] and len(set.union(*held)) == 20


def test_test_files_stay_apart(tmp_path):
    x = np.broadcast_to(np.arange(120.0)[:, None], (120, 16))
    files = [write(tmp_path / f"w_{n}.npz", x=part, y=part) for n, part in (("train", x[:20]), ("test", x[100:]))]
    both = OwnData(files=files)
    data = both.load()
    assert data.test[0][:, 0, 0].tolist() == list(range(100, 120)) and data.val[0].max() < 20
    assert both.readings["splits"].startswith("test from w_test.npz; the others drawn at random")


@pytest.mark.parametrize(("n", "told"), [(94, True), (95, False)])
def test_few_validation_samples_are_warned_of(tmp_path, n, told):
    """Of 94 samples a tenth is 9, of 95 it is 10 (9.5, rounded to even), which will do."""
    write(tmp_path / "d.npz", x=array(n, 16), y=array(n, 16))
    n_val = OwnData(files="d.npz").load().counts()["val"]
    notes = [data_notes({"x": None, "y": None}, count, None, None) for count in (n_val, 1)]
    assert bool(notes[0]) == told and "on 1 validation sample:" in notes[1][0]


def test_the_sample_of_data_that_does_not_fit_in_memory(tmp_path):
    u = array(400, 2, 16)
    file = write(tmp_path / "big.h5", x=u, y=u)
    sample = OwnData(files=file, in_memory=1e-9, shuffle=False).load().sample()
    assert torch.equal(sample["x"], torch.from_numpy(u[:320:2])) and torch.equal(sample["x"], sample["y"])


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
        (spoiled(x=array(20, 16, 16) + 1j), {}, "x in .* is complex; give its real and imaginary parts as two channels"),
        (spoiled(x=np.array([["a"] * 16] * 20)), {}, "which are no numbers"),
        (spoiled(), {"y": "z"}, "has no 'z'; expected one of x, y"),
        (spoiled(), {"x": "x"}, "the output is not named"),
        (spoiled(x=array(3, 16, 16), y=array(3, 16, 16)), {}, "has 3 samples of shape .* at least 10"),
        (spoiled(y=array(19, 16, 16)), {}, "x and y in .*d.npz have 20 and 19 samples"),
        (spoiled(y=array(20, 16, 18)), {}, "grid 16×16 and the output 16×18"),
        (spoiled(x=array(20, 4, 4, 4, 4), y=array(20, 4, 4, 4, 4)), {"channels": "none"}, "have 4 axes"),
        (spoiled(x=array(20, 2), y=array(20, 2)), {}, "too coarse"),
        (spoiled(x=None, y=None, u=array(20, 16)), {}, "holds one array, u of shape .20, 16., without times"),
        (spoiled(x=None, y=None, u=array(20, 6, 16)), {"time_step": 6}, "time_step = 6, but .* has 6 times"),
        (spoiled(), {"time_step": 2}, "time_step = 2 is for one array with a time axis"),
        (spoiled(), {"split": (0.9, 0.2, 0.1)}, "a sum of 1 at most"),
        (spoiled(), {"channels": "second"}, "channels is 'second'"),
        (spoiled(x=None, y=None, a=array(20, 8), b=array(20, 9)), {}, r"a \(20, 8\), b \(20, 9\): which is the input"),
        (spoiled(x=None, y=None, u=array(20, 6, 16)), {}, r"nothing says that it has times. .* say so \(read={'y': 'u'}\)"),
        (spoiled(x=None, y=None, t=array(20)), {}, "no array of fields"),
        (spoiled(), {"channels": "x:second"}, r"channels is 'x:second'.*x:first,y:last"),
        (spoiled(), {"channels": "first,last"}, "channels is 'first,last'"),
        (spoiled(x=array(1, 1, 16), y=array(1, 1, 16)), {"channels": "first"}, "d.npz has 1 sample of shape"),
        (spoiled(), {"files": "nowhere.npz"}, r"no file nowhere.npz \(the folder has d.npz\)"),
        (spoiled(), {"files": "data.csv"}, r"must end in .npz, .pt"),
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


def lined(path, modes=6, n=24, points=32, **more):
    """Fields whose energy is all in two modes, the higher one ``modes``: 99.9 % is kept from there on."""
    grid = np.arange(points) * 2 * np.pi / points
    amplitude = RNG.standard_normal((n, 2, 1))
    y = amplitude[:, 0] * np.cos(grid) + amplitude[:, 1] * np.cos(modes * grid)
    return write(path, x=array(n, points), y=y, **more)


def test_the_command_tells_what_a_file_cannot_be(tmp_path, capsys):
    x = array(24, 32)
    write(tmp_path / "heat.npz", x=x, y=np.where(np.arange(24)[:, None] == 7, np.nan, x))
    assert main(["tune", "heat.npz"]) == 2
    assert "y in heat.npz has entries that are not finite, in sample 7 among" in capsys.readouterr().err


TINY = (
    "tune --data heat.npz --base.hidden_channels 4 --base.n_modes 4 --target.hidden_channels 8 --target.n_modes 8 "
    "--epochs 1 --batch_size 10 --n_workers 1 --base.n_layers 1 --target.n_layers 1"
)


def test_what_is_compared_may_change_and_settings_too(tmp_path, capsys):
    """Rules come and go in a folder without a run trained twice, and another batch size is other runs beside."""
    lined(tmp_path / "heat.npz", modes=2)
    line = f"{TINY} --space.lr [0.01]"
    results = Path("runs/heat-tune/results.jsonl")
    trained = {}
    for more, cells in (
        ("", ["operator-norm"]),
        ("--compare standard", ["operator-norm", "standard"]),
        ("", ["operator-norm"]),
        ("--compare none,standard", ["operator-norm", "none", "standard"]),
    ):
        assert main(f"{line} {more}".split()) == 0
        records = [json.loads(text) for text in results.read_text().splitlines()]
        assert [r["rule"] for r in records if r["size"] == "target"] == cells
        for r in records:  # a run that is trained again takes other seconds
            assert trained.setdefault((r["size"], r["rule"]), r["seconds"]) == r["seconds"]
    page = (results.parent / "report.md").read_text()
    assert "x (no channel axis)" in page and "drawn at random" in page
    assert main(line.replace("--batch_size 10", "--batch_size 5").split()) == 0
    other = [json.loads(text) for text in results.read_text().splitlines()]
    assert {r["seconds"] for r in other}.isdisjoint(trained.values()) and len(other) == 2
