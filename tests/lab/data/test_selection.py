"""Thinning, crops, counts, trajectories of different lengths, and scalars beside the fields."""

import numpy as np
import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.data import OwnData
from neuralop_mup.lab.data.batches import BlockLoader
from support.errors import refused
from support.files import array, assert_equal, write, write_hdf5

READ = {"dims": "sample time x y", "time_step": 1, "shuffle": False}
U = array(20, 9, 16, 12)


@pytest.mark.parametrize("in_memory", [2.0, 0.0])
@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"every": 4}, U[:, :, ::4, ::4][:, :, :4, :3]),
        ({"every": {"x": 2, "time": 4}}, U[:, ::4, ::2]),
        ({"every": {"time": 2}, "time_step": 2}, U[:, ::4]),
        ({"crop": {"y": (2, 9), "time": (0, 5)}}, U[:, :5, :, 2:9]),
        ({"crop": {"x": (-8, None)}, "every": {"x": 2}}, U[:, :, 8::2]),
        ({"crop": {"x": (0, 16)}, "every": {"x": 3}}, U[:, :, ::3]),
    ],
)
def test_thinning_and_crops(in_memory, options, part):
    if options == {"every": 4}:  # three points are too few for an axis
        write("u.h5", u=np.concatenate([U, U], axis=3))
        part = np.concatenate([U, U], axis=3)[:, :, ::4, ::4]
    else:
        write("u.h5", u=U)
    own = OwnData(files="u.h5", in_memory=in_memory, **{**READ, **options})
    x, y = own.load().train
    order = list(range(len(x)))
    pairs = part[:16, :-1].reshape(-1, 1, *part.shape[2:]), part[:16, 1:].reshape(-1, 1, *part.shape[2:])
    assert_equal((x[order], y[order]), pairs)


def test_thinning_of_pairs_in_the_shell(capsys):
    write("a.npz", x=array(40, 64), y=array(40, 64))
    for option, points in (
        ("--read.every=4", 16),
        ("--read.crop={x: [0, 20]}", 20),
        ("--read.every={x: 8}", 8),
    ):
        assert main(["data", "a.npz", option]) == 0
        assert f"on {points} points" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"every": {"z": 2}}, "every 'z' x y"),
        ({"every": 0}, "every"),
        ({"every": 8}, "4 points"),
        ({"crop": {"w": (0, 4)}}, "crop 'w'"),
        ({"crop": 3}, "crop 3"),
        ({"crop": {"x": 5}}, "crop 5"),
        ({"dims": 5}, "dims 5"),
        ({"n_train": 17}, "n_train 17 16"),
        ({"split": (15, 5, 5)}, "20 15 5"),
        ({"uneven": "no"}, "uneven 'no'"),
        ({"join": "file"}, "join 'file'"),
    ],
)
def test_impossible_selections_are_refused(options, names):
    write("u.npz", u=U)
    with refused(names):
        OwnData(files="u.npz", **{**READ, **options}).load()


def test_counts():
    """Users of FNO code say how many samples they train and test on."""
    numbers = np.repeat(np.arange(60.0)[:, None], 16, axis=1) + 1
    write("a.npz", x=numbers, y=numbers)
    data = OwnData(files="a.npz", split=(40, 10, 5)).load()
    assert data.counts() == {"train": 40, "val": 10, "test": 5}
    fewer = OwnData(files="a.npz", n_train=20).load()
    assert fewer.counts() == {"train": 20, "val": 6, "test": 6}
    every = OwnData(files="a.npz").load()
    assert torch.equal(fewer.val[0], every.val[0])
    assert set(fewer.train[0][:, 0, 0].tolist()) < set(every.train[0][:, 0, 0].tolist())
    ordered = OwnData(files="a.npz", split=(40, 10, 10), n_train=3, shuffle=False).load()
    assert ordered.train[0][:, 0, 0].tolist() == [1, 2, 3]


def test_counts_in_the_shell(capsys):
    write("a.npz", x=array(60, 16), y=array(60, 16))
    assert main(["data", "a.npz", "--read.split", "40,10,10", "--read.n_train", "30"]) == 0
    assert "30 train, 10 val, 10 test" in capsys.readouterr().out


# Trajectories of different lengths


def groups(path="u.h5", shortest=4):
    """Ten trajectories of four to thirteen frames, each in a group of its own."""
    arrays = {f"{i:04}/u": array(shortest + i, 16) for i in range(10)}
    write_hdf5(path, arrays)
    return list(arrays.values())


@pytest.mark.parametrize("in_memory", [2.0, 0.0])
def test_trajectories_of_different_lengths(in_memory):
    """They were refused in one file, in files of their own and in arrays."""
    u = groups()
    for i, values in enumerate(u):
        np.save(f"run_{i}.npy", values)
    for read in ({"files": "u.h5"}, {"files": "run_*.npy", "dims": "time x"}):
        own = OwnData(**read, time_step=1, history=2, split=(8, 1, 1), in_memory=in_memory)
        data = own.load()
        for split, numbers in own.split_indices.items():
            x, y = getattr(data, split)
            expected = [(u[n][t : t + 2], u[n][[t + 2]]) for n in numbers for t in range(len(u[n]) - 2)]
            assert data.trajectories(split) == [len(u[n]) - 2 for n in numbers]
            for i, (before, after) in enumerate(expected):
                assert_equal((x[i], y[i]), (before, after))
            assert len(x) == len(expected)
        assert "4 to 13 frames" in own.readings["time"]


def test_a_rollout_stays_within_its_trajectory():
    u = groups()
    data = OwnData(files="u.h5", time_step=1, rollout=3, split=(8, 1, 1), in_memory=0.0).load()
    loader = data.loaders(8, 0)[0]
    assert isinstance(loader, BlockLoader)
    for batch in loader:
        steps = batch["y"].unflatten(0, (3, -1))
        for x, *y in zip(batch["x"], *steps, strict=True):
            n, t = next((n, t) for n, own in enumerate(u) for t in range(len(own)) if np.array_equal(own[t], x[0]))
            assert_equal([values[0] for values in y], u[n][t + 1 : t + 4])


def test_short_trajectories_are_left_out():
    groups(shortest=2)
    own = OwnData(files="u.h5", time_step=1, history=3, rollout=2, split=(5, 1, 1))
    assert sum(len(numbers) for numbers in own.split_indices.values()) == 7
    assert "3 of 10 trajectories are shorter" in own.readings["time"]
    with refused("u.h5 history=30"):
        OwnData(files="u.h5", time_step=1, history=30).load()


def build(**size):
    return FNO(in_channels=1, out_channels=1, n_layers=1, **size)


def test_training_on_trajectories_of_different_lengths():
    groups()
    read = {"time_step": 1, "split": (6, 2, 2)}
    target = {"hidden_channels": 4, "n_modes": (4,)}
    trained = nm.train(build, "u.h5", read=read, target=target, epochs=1, folder="r", progress=False)
    report = trained.report.read_text()
    assert "trajectory" in report and "from the first state" in report


def test_scalars_of_each_sample_are_constant_channels(capsys):
    u, nu, pair = array(20, 6, 16), np.arange(20.0), array(20, 2)
    write("a.npz", u=u, nu=nu, pair=pair)
    dims = {"u": "sample time x", "nu": "sample", "pair": "sample channel"}
    data = OwnData(files="a.npz", x="nu+pair", y="u", dims=dims, time_step=1, shuffle=False).load()
    x = data.train[0].numpy().reshape(16, 5, 4, 16)
    assert (x[:, :, 1] == nu[:16, None, None]).all() and (x[:, :, 2:] == pair[:16, None, :, None]).all()
    words = ["--read.x", "nu", "--read.y", "u", "--read.dims", "sample time x", "--read.time_step", "1"]
    assert main(["data", "a.npz", *words]) == 0
    assert "nu (sample)" in capsys.readouterr().out
