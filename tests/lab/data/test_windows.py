"""Data in time: windows of frames that are read once, training over several steps, and one long series."""

import h5py
import numpy as np
import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.lab.data import OwnData, batches
from neuralop_mup.lab.data.arrays import Stored
from neuralop_mup.lab.data.batches import BlockLoader, PairBatches
from neuralop_mup.lab.training import Unrolled
from support.errors import refused
from support.files import array, assert_equal, write

IN_TIME = {"y": "u", "time_step": 1, "dims": "sample time x"}
BESIDE = {"x": "mask", **IN_TIME, "dims": {"u": "sample time x", "mask": "sample x"}}


def series(n=20, times=21, points=16):
    """Waves that move by a point in each frame, u[i, t] = u[i, 0] rolled by t, and a field for each trajectory."""
    first = array(n, points)
    return np.stack([np.roll(first, t, axis=1) for t in range(times)], axis=1), array(n, points)


# Windows


@pytest.mark.parametrize("in_memory", [2.0, 0.0])
@pytest.mark.parametrize(("step", "history"), [(1, 1), (1, 4), (2, 3), ("last", 1)])
def test_a_window_is_its_frames_and_what_is_constant_in_time(in_memory, step, history):
    u, mask = series()
    speed = array(20)
    dims = {"u": "sample time x", "mask": "sample x", "speed": "sample"}
    read = {"x": "mask+speed", "y": "u", "dims": dims, "time_step": step, "history": history}
    own = OwnData(files=write("u.h5", u=u, mask=mask, speed=speed), in_memory=in_memory, **read)
    data, every = own.load(), 20 if step == "last" else step
    assert (own.in_channels, own.out_channels) == (history + 2, 1)
    for split, numbers in own.split_indices.items():
        x, y = getattr(data, split)
        starts = [(n, t) for n in numbers for t in range(0, 21 - history * every, every)]
        assert len(x) == len(y) == len(starts) == data.trajectory * len(numbers)
        order = np.random.RandomState(0).permutation(len(starts))
        for i, got_x, got_y in zip(order, x[order], y[order], strict=True):
            n, t = starts[i]
            frames = u[n, t : t + history * every + 1 : every]
            assert_equal((got_x, got_y), ([*frames[:-1], mask[n], np.full(16, speed[n])], frames[-1:]))


@pytest.mark.parametrize(("history", "rollout"), [(1, 1), (4, 1), (1, 3)])
def test_each_frame_is_read_once_in_an_epoch(monkeypatch, history, rollout):
    """A trajectory is read in one piece, inputs and outputs together. It used to read 140 times as many bytes."""
    u = array(20, 50, 64)
    file = write("t.h5", chunks=(1, 25, 64), u=u)
    data = OwnData(files=file, **IN_TIME, history=history, rollout=rollout, in_memory=0.0).load()
    sizes, getitem = [], h5py.Dataset.__getitem__
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda *a: sizes.append(np.asarray(getitem(*a)).nbytes) or getitem(*a))
    train = data.loaders(10, 0)[0]
    batch = next(iter(train))
    assert (batch["x"].shape, batch["y"].shape) == ((10, history, 64), (10 * rollout, 1, 64))
    sizes.clear()
    assert sum(1 for _ in train) == len(train)
    assert len(sizes) <= 16 and sum(sizes) <= 1.2 * u[:16].nbytes
    sizes.clear()
    data.check()
    assert sum(sizes) <= 1.2 * u.nbytes


def _h5(values, userblock=0, name="u.h5", **how):
    with h5py.File(name, "w", userblock_size=userblock) as file:
        file.create_dataset("u", data=values, **how)
    return name


def _linked(values):
    with h5py.File("link.h5", "w") as file:
        file["before"] = np.zeros(1000)  # the array has another position in the other file
        file["u"] = h5py.ExternalLink(_h5(values), "/u")
    return "link.h5"


def _unwritten(values):
    with h5py.File("u.h5", "w") as file:
        file.create_dataset("u", values.shape, "f4", fillvalue=2.5)
    values[:] = 2.5
    return "u.h5"


def _bfloat16(values):
    """h5py returns float32 for such numbers, which take two bytes in the file."""
    kind, space = h5py.h5t.IEEE_F32LE.copy(), h5py.h5s.create_simple(values.shape)
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    with h5py.File("u.h5", "w") as file:
        h5py.h5d.create(file.id, b"u", kind, space).write(h5py.h5s.ALL, h5py.h5s.ALL, values)
        file["later"] = np.zeros(values.size)
        values[:] = file["u"]
    return "u.h5"


def _npy(values):
    np.save("u.npy", values)
    return "u.npy"


@pytest.mark.parametrize(
    ("store", "dtype", "read", "is_direct"),
    [
        (_npy, "f4", {}, True),
        (_npy, "f8", {}, True),
        (_npy, ">f4", {}, False),
        (_npy, "i2", {}, False),
        (lambda values: _npy(np.asfortranarray(values)), "f4", {}, False),
        (lambda values: write("u.npz", u=values), "f4", {}, True),
        (_h5, "f4", {}, True),
        (lambda values: _h5(values, userblock=512), "f4", {}, True),
        (lambda values: _h5(values, chunks=(4, 5, 8)), "f4", {}, False),
        (_linked, "f4", {}, False),
        (_unwritten, "f4", {}, False),
        (_bfloat16, "f4", {"y": "u"}, False),
        (_h5, "f4", {"every": {"x": 2}}, False),
        (_h5, "f4", {"crop": {"x": (2, 12)}}, False),
        (_h5, "f4", {"dims": "time sample x"}, False),
        (_h5, "f4", {"time_step": 2}, False),
    ],
)
def test_rows_are_read_from_bytes_only_where_they_are_stored_as_in_memory(monkeypatch, store, dtype, read, is_direct):
    """Such rows skip the libraries, which makes an epoch up to twice as fast. Values and order must not change."""
    values = (100 * array(20, 20, 16)).astype(dtype)
    file, used, read_rows = store(values), [], Stored.read_rows
    monkeypatch.setattr(Stored, "read_rows", lambda *given: used.append(1) or read_rows(*given))
    own = OwnData(files=file, in_memory=0.0, shuffle=False, **{"dims": "sample time x", "time_step": 1, **read})
    x, y = own.load().train
    frames = values.swapaxes(0, 1) if read.get("dims") else values
    points = {"every": slice(None, None, 2), "crop": slice(2, 12)}.get(next(iter(read), ""), slice(None))
    frames = frames[:16, :: own.time_step, points]
    wanted = torch.from_numpy(frames.astype("f4"))
    assert torch.equal(x[range(len(x))], wanted[:, :-1].flatten(0, 1)[:, None])
    assert torch.equal(y[range(len(y))], wanted[:, 1:].flatten(0, 1)[:, None])
    assert bool(used) == is_direct


def test_a_file_that_this_process_is_still_writing_is_read_with_its_latest_values():
    """HDF5 keeps the last values that were written in memory."""
    with h5py.File("xy.h5", "w") as file:
        fields = [file.create_dataset(key, data=array(20, 16)) for key in "xy"]
        x, y = OwnData(files="xy.h5", in_memory=0.0, shuffle=False).load().train
        assert_equal((x[range(16)][:, 0], y[range(16)][:, 0]), [values[:16] for values in fields])


@pytest.mark.parametrize(("history", "rollout", "read"), [(3, 1, BESIDE), (1, 3, BESIDE), (2, 2, IN_TIME), (0, 1, {})])
def test_batches_of_windows_are_the_pairs_of_the_data(monkeypatch, history, rollout, read):
    """The memory for what is read is reused; a batch that was kept does not change."""
    monkeypatch.setattr(batches, "BLOCK", 2**7)
    monkeypatch.setattr(batches, "WINDOW", 2**10)
    u, mask = series()
    arrays, read = {"u": u, "mask": mask}, {**read, "history": history, "rollout": rollout}
    if not history:
        arrays, read = {"x": u.reshape(-1, 16), "y": 2 * u.reshape(-1, 16)}, {"dims": "sample x"}
    file = write("u.h5", **arrays)
    lazy, whole = (OwnData(files=file, in_memory=size, **read).load() for size in (0.0, 2.0))
    loader, pairs = lazy.loaders(7, 5)[0], PairBatches(*whole.train, rollout, whole.trajectories("train"))
    assert loader.block < loader.window < len(pairs) / 3
    again = BlockLoader(loader.pairs, 7, torch.Generator().manual_seed(5))
    for _ in range(2):
        order, got = again.order(), list(loader)
        assert sorted(order.tolist()) == list(range(len(pairs)))
        for batch, numbers in zip(got, order.split(7), strict=True):
            assert_equal(batch.values(), pairs[numbers.tolist()].values())
    assert len(list(zip(loader, loader, strict=True))) == len(loader)  # two at once


def test_files_of_different_precision_are_joined():
    """The highest precision wins, also in a window with frames of both."""
    names = [write(f"{kind}.h5", x=array(20, 16).astype(kind), y=array(20, 16).astype(kind)) for kind in ("f4", "f8")]
    for files in (names, names[::-1]):
        lazy, whole = (OwnData(files=files, dims="sample x", in_memory=size).load() for size in (0.0, 2.0))
        assert lazy.train[0].exact([0, 30]).dtype == torch.float64
        assert torch.equal(lazy.train[0][list(range(32))], whole.train[0])


def test_one_series_is_cut_into_pieces():
    """The last pieces are for validation and test."""
    u = np.broadcast_to(np.arange(100.0)[:, None], (100, 16)) + 1
    data = OwnData(files=write("u.npz", u=u), **{**IN_TIME, "dims": "time x"}).load()
    assert (data.counts(), data.trajectory) == ({"train": 72, "val": 9, "test": 9}, 9)
    assert_equal((data.val[0][:, 0, 0], data.test[1][:, 0, 0]), (range(81, 90), range(92, 101)))


@pytest.mark.parametrize(
    ("read", "names"),
    [
        ({"rollout": 30}, "21 time_step=1 history=1 rollout=30"),
        ({"time_step": "last", "rollout": 2}, "time_step=last"),
        ({"time_step": "first"}, "time_step 'first'"),
        ({"time_step": np.array([1, 2])}, "time_step array([1,2])"),
        ({"history": 0}, "history"),
        ({"history": None}, "history None"),
        ({"rollout": None}, "rollout None"),
        ({"x": "u", "y": "v", "rollout": 2}, "u rollout=1"),
    ],
)
def test_impossible_steps_are_refused(read, names):
    u, _ = series()
    with refused(names):
        OwnData(files=write("u.npz", u=u, v=u), **{**IN_TIME, "dims": "sample time x", **read}).load()


# Training over several steps


class Model(torch.nn.Module):
    """Takes a batch, as neuralop's models do."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(3, 1, 3, padding="same", padding_mode="circular").double()

    def forward(self, x, **batch):
        return self.conv(x)


def test_a_rollout_applies_the_model_to_its_own_predictions():
    """Like the obvious loop, in normalized units, with a channel that is constant in time beside the frames."""
    u, mask = series()
    data = OwnData(files=write("u.h5", u=3 * u + 1, mask=mask), rollout=3, history=2, **BESIDE).load()
    processor = data.processor()
    processor.train()
    batch = processor.preprocess(dict(next(iter(data.loaders(8, 0)[0]))))
    moved = [batch["x"][:, 1:2].roll(step, -1) for step in (1, 2, 3)]
    torch.testing.assert_close(batch["y"], torch.cat(moved), atol=1e-5, rtol=0)
    batch = {name: values.double() for name, values in batch.items()}
    model, frames, rest = Model(), [*batch["x"][:, :2].split(1, 1)], batch["x"][:, 2:]
    for _ in range(3):
        frames.append(model(torch.cat([*frames[-2:], rest], 1)))

    def gradient(predictions, targets):
        loss = sum((got - y).square().sum() for got, y in zip(predictions, targets, strict=True))
        return torch.autograd.grad(loss, model.conv.weight, retain_graph=True)[0]

    targets = batch["y"].split(8)
    got = Unrolled(model, data)(**batch)
    torch.testing.assert_close(got, torch.cat(frames[2:]))
    torch.testing.assert_close(gradient(got.split(8), targets), gradient(frames[2:], targets))


def build(in_channels=3, **size):
    return FNO(in_channels=in_channels, out_channels=1, n_layers=1, **size)


def tune(file, read, **more):
    sizes = {"base": {"hidden_channels": 4, "n_modes": (4,)}, "target": {"hidden_channels": 6, "n_modes": (4,)}}
    how = {"space": {"lr": [0.01]}, "epochs": 1, "compare": (), "n_workers": 1, "progress": False, **more}
    return nm.tune(build, file, read=read, folder="s", **sizes, **how)


def test_training_over_several_steps_from_file_to_score():
    """The score is the geometric mean of the errors along a rollout, here written out by hand."""
    u, mask = series(40, 10)
    file, read = write("u.npz", u=u, mask=mask), {**BESIDE, "history": 2, "rollout": 2}
    tuned = tune(file, read, score="rollout:5")
    assert "2 steps" in tuned.report.read_text()
    number, errors = tuned.split["val"], []
    x = np.stack([u[number, 0], u[number, 1], mask[number]], 1)
    for t in range(2, 7):
        step, true = tuned.predict(x)[:, 0], u[number, t]
        errors.append((np.linalg.norm(step - true, axis=1) / np.linalg.norm(true, axis=1)).mean())
        x = np.stack([x[:, 1], step, x[:, 2]], 1)
    assert tuned.loss == pytest.approx(np.prod(errors) ** 0.2, rel=1e-4)


def test_a_rollout_refuses_a_normalizer_that_differs_between_frames_and_targets():
    u, mask = series()
    file, read = write("u.npz", u=u, mask=mask), {**BESIDE, "history": 2}
    processor = OwnData(files=file, **read).load().processor()
    with refused("rollout=1 processor"):
        tune(file, {**read, "rollout": 2}, processor=processor)
