"""Data in time: windows of frames, each read once, training over several steps, and one long series."""

from __future__ import annotations

from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems import OwnData, batches
from neuralop_mup.lab.problems.batches import Pairs, Windows
from neuralop_mup.lab.problems.given import _kept as kept
from neuralop_mup.lab.training import Unrolled
from support.files import array, write


def series(n=20, times=21, points=16):
    """A wave that moves: u[i, t] is u[i, 0] moved by t points, with a constant beside it and a number of each trajectory."""
    first = array(n, points)
    return np.stack([np.roll(first, t, axis=1) for t in range(times)], axis=1), array(n, points), array(n)


@pytest.mark.parametrize("in_memory", [2.0, 0.0])
@pytest.mark.parametrize(("step", "history"), [(1, 1), (1, 4), (2, 3), ("last", 1)])
def test_a_window_is_its_frames_and_what_is_constant_in_time_is_input_alone(tmp_path, in_memory, step, history):
    u, mask, speed = series()
    file = write(tmp_path / "u.h5", u=u, mask=mask, speed=speed)
    dims = {"u": "sample time x", "mask": "sample x", "speed": "sample"}
    read = {"x": "mask+speed", "y": "u", "dims": dims, "time_step": step, "history": history}
    own = OwnData(files=file, in_memory=in_memory, **read)
    data, every = own.load(), 20 if step == "last" else step
    assert (own.in_channels, own.out_channels) == (history + 2, 1)
    for split, numbers in own.split_indices.items():
        x, y = getattr(data, split)
        pairs = [(n, t) for n in numbers for t in range(0, 21 - history * every, every)]
        order = np.random.RandomState(0).permutation(len(pairs))
        assert len(x) == len(y) == len(pairs) and data.trajectory == len(pairs) // len(numbers)
        for letter, values in (("x", x[order]), ("y", y[order])):
            for got, (n, t) in zip(values, (pairs[i] for i in order), strict=True):
                frames = [u[n, t + i * every] for i in range(history)]
                wanted = [*frames, mask[n], np.full(16, speed[n])] if letter == "x" else [u[n, t + history * every]]
                assert np.array_equal(got, np.stack(wanted))


def bytes_read(monkeypatch):
    read, whole = [], h5py.Dataset.__getitem__
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda *a: read.append(np.asarray(whole(*a)).nbytes) or whole(*a))
    return read


@pytest.mark.parametrize(("history", "rollout"), [(1, 1), (4, 1), (1, 3)])
def test_a_window_is_one_reading(tmp_path, monkeypatch, history, rollout):
    """Each frame is read once an epoch, input and output together, and a trajectory in one piece."""
    u = array(20, 50, 64)
    file = write(tmp_path / "t.h5", chunks=(1, 25, 64), u=u)
    data = OwnData(files=file, y="u", time_step=1, history=history, rollout=rollout, in_memory=0.0)
    data, frame = data.load(), u[0, 0].nbytes
    read = bytes_read(monkeypatch)
    train = data.loaders(10, 0)[0]
    batch = next(iter(train))
    assert batch["x"].shape == (10, history, 64) and batch["y"].shape == (10 * rollout, 1, 64)
    read.clear()
    assert sum(1 for _ in train) == len(train)
    assert len(read) == 16 and sum(read) == 16 * 50 * frame
    read.clear()
    data.check()
    assert sum(read) <= 1.2 * u.nbytes


@pytest.mark.parametrize("suffix", ["h5", "npy"])
@pytest.mark.parametrize(
    ("history", "rollout", "beside"), [(1, 1, False), (3, 1, True), (1, 3, True), (2, 2, False), (0, 1, True)]
)
def test_the_batches_of_all_windows_are_the_data_pair_for_pair(tmp_path, monkeypatch, suffix, history, rollout, beside):
    """In the order that the generator gives, with room for a few pairs that is used again and again; a kept batch stays."""
    monkeypatch.setattr(batches, "BLOCK", 2**7)
    monkeypatch.setattr(batches, "WINDOW", 2**10)
    u, mask, _ = series()
    if history:
        read = {"y": "u", "time_step": 1, "history": history, "rollout": rollout, **({"x": "mask"} if beside else {})}
        arrays, dims = {"u": u, "mask": mask}, {"u": "sample time x", "mask": "sample x"}
    else:
        read, dims, arrays = {}, "sample x", {"x": u.reshape(-1, 16), "y": 2 * u.reshape(-1, 16)}
    if suffix == "npy":
        for key, values in arrays.items():
            np.save(tmp_path / f"{key}.npy", values)
        arrays = {key: np.load(tmp_path / f"{key}.npy", mmap_mode="r") for key in arrays}
        given = {"arrays": {"all": {key: kept(values) for key, values in arrays.items()}}}
    else:
        given = {"files": write(tmp_path / "u.h5", **arrays)}
    lazy, whole = (OwnData(in_memory=size, dims=dims, **given, **read).load() for size in (0.0, 2.0))
    loader, pairs = lazy.loaders(7, 5)[0], Pairs(*whole.train, rollout, whole.trajectory)
    assert isinstance(loader, Windows) and loader.window < len(pairs) / 3 and loader.block < loader.window
    again = Windows(loader.pairs, 7, torch.Generator().manual_seed(5))
    for _ in range(2):
        order, seen, first = again.order(), [], None
        for batch, numbers in zip(loader, order.split(7), strict=True):
            wanted = pairs[numbers.tolist()]
            assert all(torch.equal(batch[letter], wanted[letter]) for letter in "xy")
            seen += numbers.tolist()
            first = first or ({letter: values.clone() for letter, values in batch.items()}, batch)
        assert sorted(seen) == list(range(len(pairs)))
        assert all(torch.equal(first[0][letter], first[1][letter]) for letter in "xy")
    both = zip(lazy.loaders(7, 5)[0], lazy.loaders(7, 5)[0], strict=True)
    assert all(torch.equal(one["x"], other["x"]) for one, other in both)
    assert len(list(zip(loader, loader, strict=True))) == len(loader)


def test_files_of_several_precisions_are_one(tmp_path):
    """In the finest of them, with frames of both in one window."""
    names = [
        write(tmp_path / f"{kind}.h5", x=array(20, 16).astype(kind), y=array(20, 16).astype(kind)) for kind in ("f4", "f8")
    ]
    for files in (names, names[::-1]):
        lazy, whole = (OwnData(files=files, dims="sample x", in_memory=size).load() for size in (0.0, 2.0))
        assert lazy.train[0].exact([0, 30]).dtype == torch.float64
        assert torch.equal(lazy.train[0][list(range(32))], whole.train[0])


def test_over_several_steps_a_model_is_applied_to_its_own_predictions(tmp_path):
    """As the loop that one would write, in normalised units, with a channel that is constant in time beside the frames."""
    u, mask, _ = series()
    read = {"x": "mask", "y": "u", "dims": {"u": "sample time x", "mask": "sample x"}, "time_step": 1, "history": 2}
    data = OwnData(files=write(tmp_path / "u.h5", u=3 * u + 1, mask=mask), rollout=3, **read).load()
    batch, once = next(iter(data.loaders(8, 0)[0])), data.processor()
    assert batch["y"].shape == (24, 1, 16)
    once.train()
    batch = once.preprocess(dict(batch))
    # A step moves a wave by a point, in whatever units.
    moved = [batch["x"][:, 1:2].roll(step, -1) for step in (1, 2, 3)]
    torch.testing.assert_close(batch["y"], torch.cat(moved), atol=1e-5, rtol=0)
    model = torch.nn.Conv1d(3, 1, 3, padding="same", padding_mode="circular").double()
    frames, rest, wanted = list(batch["x"][:, :2].double().split(1, 1)), batch["x"][:, 2:].double(), []
    for _ in range(3):
        wanted.append(model(torch.cat([*frames[-2:], rest], 1)))
        frames.append(wanted[-1])

    def gradient(steps, got):
        loss = sum(
            (part - true).square().sum() for part, true in zip(got, batch["y"].double().split(8)[-steps:], strict=True)
        )
        return torch.autograd.grad(loss, model.weight, retain_graph=True)[0]

    class Plain(torch.nn.Module):
        def forward(self, x, **batch):
            return model(x)

    got = Unrolled(Plain(), data)(**{**batch, "x": batch["x"].double()})
    torch.testing.assert_close(got, torch.cat(wanted))
    torch.testing.assert_close(gradient(3, got.split(8)), gradient(3, wanted))
    last = model(torch.cat([frames[-3].detach(), frames[-2].detach(), rest], 1))
    pushed = Unrolled(Plain(), replace(data, pushforward=True))(**{**batch, "x": batch["x"].double()})
    torch.testing.assert_close(gradient(3, pushed.split(8)), gradient(1, [last]))


def build(**size):
    return FNO(out_channels=1, n_layers=1, **{"in_channels": 1, **size})


def tuned_on(folder, file, read, **more):
    channels = {"in_channels": more.pop("in_channels", 1)}
    sizes = {"base": {"hidden_channels": 4, "n_modes": (4,)}, "target": {"hidden_channels": 8, "n_modes": (4,)}}
    sizes = {name: {**size, **channels} for name, size in sizes.items()}
    how = {"space": {"lr": [0.01]}, "epochs": 2, "n_workers": 1, "progress": False, **more}
    return nm.tune(build, file, read=read, folder=folder, **sizes, **how)


def test_training_over_several_steps_from_file_to_score(tmp_path):
    """Validation is of one step, and the score of a rollout knows frames and what is constant in time."""
    u, mask, _ = series(40, 10)
    file = write(tmp_path / "u.npz", u=u, mask=mask)
    read = {"x": "mask", "y": "u", "dims": {"u": "sample time x", "mask": "sample x"}, "time_step": 1, "history": 2}
    ways = ({}, {"rollout": 2}, {"rollout": 2, "pushforward": True})
    tuned = [tuned_on(tmp_path / "s", file, {**read, **way}, score="rollout:5", in_channels=3) for way in ways]
    assert len({found.loss for found in tuned}) == 3
    page, several = tuned[2].report.read_text(), tuned[1]
    assert "over 2 steps, with the gradient of the last" in page
    number, errors = several.split["val"], []
    x = np.stack([u[number, 0], u[number, 1], mask[number]], 1)
    for t in range(2, 7):
        step, true = several.predict(x)[:, 0], u[number, t]
        errors.append((np.linalg.norm(step - true, axis=1) / np.linalg.norm(true, axis=1)).mean())
        x = np.stack([x[:, 1], step, x[:, 2]], 1)
    assert several.loss == pytest.approx(np.prod(errors) ** 0.2, rel=1e-4)


@pytest.mark.parametrize(
    ("read", "told"),
    [
        ({"rollout": 30}, "21 frames in a trajectory, too few for time_step = 1, history = 1 and rollout = 30"),
        ({"time_step": "last", "rollout": 2}, "too few for time_step = 20"),
        ({"pushforward": True}, "pushforward is for training over several steps"),
        ({"time_step": "first"}, "time_step is 'first'"),
        ({"history": 0}, "history"),
        ({"x": "u", "y": "v", "rollout": 2}, r"u \(sample time x\) in .* vary in time, so that no step follows"),
    ],
)
def test_steps_that_cannot_be_are_told(tmp_path, read, told):
    u = series()[0]
    file = write(tmp_path / "u.npz", u=u, v=u)
    with pytest.raises(MupError, match=told):
        OwnData(files=file, **{"y": "u", "time_step": 1, "dims": "sample time x", **read}).load()


def test_a_rollout_needs_its_own_normaliser(tmp_path):
    file = write(tmp_path / "u.npz", u=series()[0])
    processor = OwnData(files=file, y="u", time_step=1).load().processor()
    read = {"y": "u", "time_step": 1, "rollout": 2}
    with pytest.raises(MupError, match="A rollout needs frames that are normalised as predictions are"):
        tuned_on(tmp_path / "s", file, read, processor=processor)


def test_one_series_is_cut_in_pieces(tmp_path):
    """Of one trajectory the last pieces are for validation and test."""
    u = np.broadcast_to(np.arange(100.0)[:, None], (100, 16)) + 1
    own = OwnData(files=write(tmp_path / "u.npz", u=u), y="u", dims="time x", time_step=1)
    data = own.load()
    assert data.counts() == {"train": 72, "val": 9, "test": 9} and data.trajectory == 9
    assert data.val[0][:, 0, 0].tolist() == list(range(81, 90)) and data.test[1][:, 0, 0].tolist() == list(range(92, 101))
    assert "9 pairs in each of 10 pieces" in own.readings["time"] and "in file order" in own.readings["splits"]
