"""A user's own files: formats, layouts, guesses, what is wrong with them, and data that does not fit in memory."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from neuralop_mup.cli import main
from neuralop_mup.errors import MupError
from neuralop_mup.problems import OwnData, get_problem
from neuralop_mup.problems.own import _LazyData

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
            for name, values in arrays.items():
                file[name] = values
    return str(path)


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
    problem = OwnData(files=write(tmp_path / f"heat.{suffix}", x=a, y=b))
    assert (problem.in_channels, problem.out_channels, problem.title) == (*channels, "heat")
    data = problem.load()
    assert [len(pair[0]) for pair in (data.train, data.val, data.test)] == [16, 2, 2] and problem.n_train == 16
    for values, raw, n in ((data.train, (a, b), slice(0, 16)), (data.test, (a, b), slice(18, 20))):
        for got, whole, count in zip(values, raw, channels, strict=True):
            whole = whole[n]
            if whole.ndim == 2 + problem.n_dim and whole.shape[1] != count:
                whole = np.moveaxis(whole, -1, 1)
            expected = whole.reshape(len(whole), count, *problem.grid_shape)
            assert got.dtype == torch.float32 and np.array_equal(got.numpy(), expected)
    processor = problem.processor(data)
    processor.train()
    batch = processor.preprocess({"x": data.train[0], "y": data.train[1]})
    assert batch["x"].mean(dim=(0, *range(2, batch["x"].ndim))).abs().max() < 1e-5


def test_the_channel_axis_can_be_said(tmp_path):
    file = write(tmp_path / "d.npz", x=array(12, 16, 16, 16), y=array(12, 16, 16, 16))
    assert OwnData(files=file).grid_shape == (16, 16, 16)
    for channels in ("first", "last"):
        problem = OwnData(files=file, channels=channels)
        assert (problem.in_channels, problem.grid_shape) == (16, (16, 16))


def test_keys_types_split_and_crop(tmp_path):
    u = np.arange(12 * 9 * 9).reshape(12, 9, 9)
    file = write(tmp_path / "d.npz", other=array(3), mask=u % 2 == 0, u=u, v=2 * u)
    problem = OwnData(files=file, x="mask", y="u+v", split=(0.5, 0.25, 0.25), crop=True)
    data = problem.load()
    assert (problem.in_channels, problem.out_channels, problem.grid_shape) == (1, 2, (8, 8))
    assert [len(pair[0]) for pair in (data.train, data.val, data.test)] == [6, 3, 3]
    assert torch.equal(data.val[1][:, 1], torch.from_numpy(2.0 * u[6:9, :8, :8]).float())
    assert set(data.train[0].unique().tolist()) == {0.0, 1.0}


def test_one_array_in_time(tmp_path):
    """PDEBench's 1D sets: tensor (samples, times, x) with coordinates. From the first time to the last, or step by step."""
    u = array(20, 11, 32)
    coordinates = {"t-coordinate": array(12), "x-coordinate": array(32)}
    file = write(tmp_path / "advection.hdf5", tensor=u, **coordinates)
    data = OwnData(files=file).load()
    assert np.array_equal(data.train[0][:, 0], u[:16, 0]) and np.array_equal(data.train[1][:, 0], u[:16, 10])
    stepped = OwnData(files=file, time_step=5)
    data = stepped.load()
    assert stepped.n_train == len(data.train[0]) == 32 and "times 0 → 5, 5 → 10" in stepped.description
    assert np.array_equal(data.train[0][:4, 0], u[[0, 0, 1, 1], [0, 5, 0, 5]])
    assert np.array_equal(data.train[1][:4, 0], u[[0, 0, 1, 1], [5, 10, 5, 10]])


def test_pdebench_layouts(tmp_path):
    darcy = write(tmp_path / "darcy.h5", nu=array(12, 16, 16), tensor=array(12, 1, 16, 16), **{"x-coordinate": array(16)})
    problem = OwnData(files=darcy)
    assert (problem.in_channels, problem.out_channels, problem.grid_shape) == (1, 1, (16, 16))
    flow = {name: array(12, 5, 16, 16) for name in ("Vx", "Vy", "density", "pressure")}
    cfd = OwnData(files=write(tmp_path / "cfd.h5", **flow))
    data = cfd.load()
    assert (cfd.in_channels, cfd.out_channels) == (4, 4)
    assert np.array_equal(data.train[1][:, 2], flow["density"][: len(data.train[1]), 4])
    with h5py.File(tmp_path / "swe.h5", "w") as file:
        samples = [array(6, 16, 16, 2) for _ in range(12)]
        for i, values in enumerate(samples):
            file[f"{i:04d}/data"] = values
            file[f"{i:04d}/grid/x"] = array(16)
    swe = OwnData(files=str(tmp_path / "swe.h5"))
    data = swe.load()
    assert (swe.in_channels, swe.grid_shape) == (2, (16, 16))
    assert np.array_equal(data.train[0][3], np.moveaxis(samples[3][0], -1, 0))


def test_neuralops_files_and_several_files(tmp_path):
    """neuralop's layout: train and test files, x of booleans without a channel axis."""
    parts = {}
    for part, n in (("train", 20), ("test", 6)):
        parts[part] = array(n, 16, 16)
        pair = {"x": torch.from_numpy(parts[part] > 0), "y": torch.from_numpy(parts[part])}
        torch.save(pair, tmp_path / f"darcy_{part}_16.pt")
    problem = OwnData(files=(str(tmp_path / "darcy_train_16.pt"), str(tmp_path / "darcy_test_16.pt")))
    data = problem.load()
    assert [len(pair[0]) for pair in (data.train, data.val, data.test)] == [18, 2, 6]
    assert np.array_equal(data.test[1][:, 0], parts["test"]) and np.array_equal(data.val[1][:, 0], parts["train"][18:])
    more = [write(tmp_path / f"{i}.npz", x=array(8, 16), y=array(8, 16)) for i in range(3)]
    joined = OwnData(files=more).load()
    assert sum(len(pair[0]) for pair in (joined.train, joined.val, joined.test)) == 24
    with pytest.raises(MupError, match="files that are joined must agree"):
        _ = OwnData(files=(more[0], write(tmp_path / "x.npz", x=array(8, 18), y=array(8, 18)))).n_dim


def test_data_larger_than_memory_is_read_batch_by_batch(tmp_path):
    u = array(40, 2, 16)
    file = write(tmp_path / "big.h5", x=u, y=u[:, :1] * 3 + 1)
    small, large = OwnData(files=file), OwnData(files=file, in_memory=1e-9)
    whole, lazy = small.load(), large.load()
    assert isinstance(lazy, _LazyData) and not isinstance(whole, _LazyData)
    for a, b in zip(whole.loaders(5, 1)[0], lazy.loaders(5, 1)[0], strict=True):
        assert torch.equal(a["x"], b["x"]) and torch.equal(a["y"], b["y"])
    one, other = small.processor(whole), large.processor(lazy)
    for name in ("in_normalizer", "out_normalizer"):
        for number in ("mean", "std"):
            torch.testing.assert_close(getattr(getattr(one, name), number), getattr(getattr(other, name), number))


def test_the_cache_follows_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("NEURALOP_MUP_CACHE", str(tmp_path / "cache"))
    file = write(tmp_path / "d.npz", x=array(20, 16), y=array(20, 16))
    first = OwnData(files=file).load()
    assert torch.equal(OwnData(files=file).load().train[0], first.train[0])
    assert len(list((tmp_path / "cache").iterdir())) == 1
    write(tmp_path / "d.npz", x=array(20, 16), y=array(20, 16))
    assert not torch.equal(OwnData(files=file).load().train[0], first.train[0])


def spoiled(**change):
    good = {"x": array(20, 16, 16), "y": array(20, 16, 16)}
    return {k: v for k, v in {**good, **change}.items() if v is not None}


@pytest.mark.parametrize(
    ("arrays", "options", "told"),
    [
        (spoiled(y=np.full((20, 16, 16), np.nan)), {}, r"y in .*d.npz has entries that are not finite, in sample 0"),
        (spoiled(x=array(20, 16, 16) + 1j), {}, "x in .* is complex; give its real and imaginary parts as two channels"),
        (spoiled(x=np.array([["a"] * 16] * 20)), {}, "which are no numbers"),
        (spoiled(), {"y": "z"}, "has no 'z'; expected one of x, y"),
        (spoiled(), {"x": "x"}, "the output is not named"),
        (spoiled(x=array(3, 16, 16), y=array(3, 16, 16)), {}, "has 3 samples of shape .* at least 10"),
        (spoiled(y=array(19, 16, 16)), {}, "19 and 20 samples"),
        (spoiled(y=array(20, 16, 18)), {}, "grid 16×16 and the output 16×18"),
        (spoiled(x=array(20, 4, 4, 4, 4), y=array(20, 4, 4, 4, 4)), {"channels": "none"}, "have 4 axes"),
        (spoiled(x=array(20, 2), y=array(20, 2)), {}, "too coarse"),
        (spoiled(x=None, y=None, u=array(20, 16)), {}, "holds one array, u of shape .20, 16., without times"),
        (spoiled(x=None, y=None, u=array(20, 6, 16)), {"time_step": 6}, "time_step = 6, but .* has 6 times"),
        (spoiled(), {"time_step": 2}, "time_step = 2 is for one array with a time axis"),
        (spoiled(), {"split": (0.9, 0.2, 0.1)}, "a sum of 1 at most"),
        (spoiled(), {"channels": "second"}, "channels is 'second'"),
        (spoiled(x=None, y=None, a=array(20, 8), b=array(20, 9)), {}, r"a \(20, 8\), b \(20, 9\): which is the input"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(tmp_path, arrays, options, told):
    with pytest.raises(MupError, match=told):
        OwnData(files=write(tmp_path / "d.npz", **arrays), **options).load()


def test_files_that_are_missing_damaged_or_of_another_kind_are_told(tmp_path):
    write(tmp_path / "there.npz", x=array(20, 16), y=array(20, 16))
    with pytest.raises(MupError, match=r"no file nowhere.npz \(the folder has there.npz\)"):
        OwnData(files="nowhere.npz")
    with pytest.raises(MupError, match=r"must end in .npz, .pt"):
        OwnData(files="data.csv")
    for name in ("d.npz", "d.pt", "d.h5"):
        (tmp_path / name).write_bytes(b"nonsense")
        with pytest.raises(MupError, match=f"{name} cannot be read"):
            _ = get_problem("data", files=(name,)).n_dim


def test_transfer_on_ones_own_data(tmp_path, capsys):
    x = array(24, 33).cumsum(-1)
    write(tmp_path / "heat.npz", x=x, y=np.roll(x, 1, -1))
    line = "transfer --data heat.npz --data.split 0.5,0.25,0.25 --proxy.hidden_channels 4 --proxy.n_modes 4 --loss l2,h1"
    line += " --target.hidden_channels 8 --target.n_modes 8 --lr 0.01,0.02 --seeds 1 --epochs 1 --batch_size 4 --workers 1"
    assert main([*line.split(), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "heat: 1 → 1 channels on 33 points; 12 train, 6 val, 6 test" in shown and not Path("runs").exists()
    assert main(line.split()) == 0
    folder = Path("runs/heat-transfer")
    assert folder.is_dir() and (folder / "report.md").read_text().splitlines()[0] == "# μTransfer on heat"
    assert "test h1" in capsys.readouterr().out
    run = json.loads((folder / "run.json").read_text())
    assert run["settings"]["data"] == "heat" and run["settings"]["loss"] == "l2,h1"
    assert "33 points" in run["settings"]["read as"]
