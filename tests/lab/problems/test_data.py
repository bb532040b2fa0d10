"""Data as training gets it: told apart split by split, looked through before anything is trained, and normalised."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from neuralop.models import FNO
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset, SubsetRandomSampler, TensorDataset, random_split

import neuralop_mup as nm
from neuralop_mup.errors import MupError
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.problems import ProblemData
from neuralop_mup.lab.problems.given import as_source
from neuralop_mup.lab.problems.loaders import Loaders


def fields(n=60, points=16, seed=0):
    k = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    s = torch.arange(points) / points * 2 * torch.pi
    x = (k[:, :1] * torch.sin(s) + k[:, 1:2] * torch.cos(s) + k[:, 2:] * torch.sin(2 * s))[:, None]
    return x, x.roll(1, -1) + 0.3 * x**2


class Dicts(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.y[i]}


ALL = Dicts(*fields())
PLAIN = DataLoader(Subset(ALL, range(50, 60)), 8)


def shifted(batch):
    batch = torch.utils.data.default_collate(batch)
    return {"x": batch["x"], "y": batch["y"] + 3.0}


def loader(**how):
    return DataLoader(ALL, **{"batch_size": 8, **how})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Subset(ALL, range(40)), Subset(ALL, range(1, 41))),
        (random_split(ALL, [40, 20])[0], ALL),
        (loader(), loader(drop_last=True)),
        (loader(), loader(collate_fn=shifted)),
        (loader(), loader(batch_size=4)),
        (loader(), loader(shuffle=True)),
        (loader(sampler=SubsetRandomSampler(range(30))), loader(sampler=SubsetRandomSampler(range(30, 60)))),
        (loader(sampler=[*range(8), *[9] * 52]), loader(sampler=[*range(8), *[30] * 52])),
        (loader(), ALL),  # whose samples are batched as the settings say
    ],
    ids=[
        "subset",
        "random_split",
        "drop_last",
        "collate_fn",
        "batch_size",
        "shuffle",
        "random sampler",
        "sampler",
        "data set",
    ],
)
@pytest.mark.parametrize("split", ["train", "val"])
def test_what_training_gets_tells_loaders_apart(one, other, split):
    """All of these once had one name, so that a folder gave back the other's numbers."""
    found = [Loaders({"train": PLAIN, "val": PLAIN, split: part}) for part in (one, other, one)]
    first, second, again = map(fingerprint, found)
    assert first == again != second


def test_what_is_drawn_by_torch_is_the_same_each_time_and_nothing_is_used_up():
    order = torch.Generator().manual_seed(3)
    data = Loaders({"train": loader(sampler=RandomSampler(ALL, generator=order)), "val": loader(shuffle=True)})
    states = [order.get_state(), torch.get_rng_state()]
    assert fingerprint(data) == fingerprint(data) and len(data.sample()["x"]) == 8
    data.check()
    assert all(map(torch.equal, states, [order.get_state(), torch.get_rng_state()]))


class Noisy(Dicts):
    """Augmented by random numbers that nobody seeds."""

    def __getitem__(self, i):
        return {"x": self.x[i] + 0.01 * np.random.randn(), "y": self.y[i]}


class Shuffled(list):
    """A loader of the user's own, in an order that is another one each time."""

    def __iter__(self):
        return iter(np.random.permutation(np.array(list(super().__iter__()), dtype=object)))


@pytest.mark.parametrize("train", [Noisy(*fields()), Shuffled(loader(batch_size=1))], ids=["augmented", "shuffled"])
def test_data_that_differs_each_time_is_told_and_its_runs_are_not_used_again(tmp_path, train):
    """Once they were trained by each call without a word."""
    data, told = (
        {"train": train, "val": PLAIN},
        "^train gives other batches each time it is read, so its runs are trained anew",
    )
    with pytest.warns(UserWarning, match=told):
        nm.tune(build, data, folder=tmp_path / "s", **HOW)
    prints = set()
    for _ in range(2):
        np.random.seed(0)  # then the first epoch is the same, and the next ones need not be
        with pytest.warns(UserWarning, match=told):
            prints.add(fingerprint(Loaders(data)))
    assert len(prints) == 2


def build(in_channels=1, **size):
    return FNO(in_channels=in_channels, out_channels=1, n_layers=1, **size)


HOW = {
    "base": {"hidden_channels": 4, "n_modes": (4,)},
    "target": {"hidden_channels": 8, "n_modes": (4,)},
    **{"space": {"lr": [0.02]}, "epochs": 1, "batch_size": 8, "n_workers": 1, "progress": False},
}


def test_another_fold_is_another_study_in_one_folder(tmp_path):
    """Validation folds of one data set, the later one of harder samples: the number of each is its own."""
    x, y = fields()
    y[50:] *= 4
    data = Dicts(x, y)

    def loss(val, folder):
        return nm.tune(build, (Subset(data, range(40)), Subset(data, val)), folder=tmp_path / folder, **HOW).loss

    loss(range(40, 50), "s")
    assert loss(range(50, 60), "s") == loss(range(50, 60), "fresh")


def of_the_well():
    """A batch as the_well's data sets give it: (batch, times, x, y, fields), and what is constant in time."""
    rng = torch.Generator().manual_seed(0)
    shapes = {"input_fields": (4, 2, 8, 6, 3), "output_fields": (4, 1, 8, 6, 3), "constant_fields": (4, 8, 6, 1)}
    return {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()} | {
        "constant_scalars": torch.arange(8.0).view(4, 2),
        "boundary_conditions": torch.zeros(4, 2, 2),
        "space_grid": torch.zeros(4, 8, 6, 2),
    }


def test_the_well_s_data_sets_as_they_come():
    """Times, oldest first, and what is constant become channels, those of each time together; others are left out."""
    whole = of_the_well()

    class Well(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return {name: values[i] for name, values in whole.items()}

    data = as_source((Well(), [whole])).load()
    (batch,) = data.loaders(4, 0)[1]["val"]
    assert sorted(batch) == ["x", "y"] and torch.equal(batch["y"], whole["output_fields"][:, 0].movedim(-1, 1))
    frames = [whole["input_fields"][:, t].movedim(-1, 1) for t in range(2)]
    numbers = whole["constant_scalars"][:, :, None, None].expand(4, 2, 8, 6)
    assert torch.equal(batch["x"], torch.cat([*frames, whole["constant_fields"].movedim(-1, 1), numbers], 1))
    assert data.sample()["x"].shape == (4, 9, 8, 6) and fingerprint(data) == fingerprint(as_source((Well(), [whole])).load())


@pytest.mark.parametrize("form", ["loaders", "data set"])
def test_neuralop_s_data_sets_as_they_come(tmp_path, form):
    """With the processor that they bring, the first of the test sets, and a part of the training data for validation."""
    from neuralop.data.datasets.pt_dataset import PTDataset

    for part, n, points in (("train", 30, 16), ("test", 8, 16), ("test", 8, 32)):
        fields_of = {name: torch.rand(n, points, points) for name in "xy"}
        torch.save(fields_of, tmp_path / f"darcy_{part}_{points}.pt")
    theirs = PTDataset(
        **{"root_dir": tmp_path, "dataset_name": "darcy", "n_train": 30, "n_tests": [8, 8], "batch_size": 4},
        **{"test_batch_sizes": [4, 4], "train_resolution": 16, "test_resolutions": [16, 32]},
    )
    given = theirs
    if form == "loaders":  # as load_darcy_flow_small gives them
        tests = {points: DataLoader(part, 4) for points, part in theirs.test_dbs.items()}
        given = (DataLoader(theirs.train_db, 4, shuffle=True), tests, theirs.data_processor)
    source = as_source(given)
    data = source.load()
    assert {k: len(part) for k, part in data.parts.items()} == {"train": 27, "val": 3, "test": 2 if form == "loaders" else 8}
    assert "27 train, 3 val, drawn at random" in source.readings["splits"]
    ours, brought = data.processor().out_normalizer, theirs.data_processor.out_normalizer
    assert ours is not brought and torch.equal(ours.mean, brought.mean)
    assert fingerprint(data) != fingerprint(Loaders(data.parts))


def test_arrays_of_xarray_keep_the_names_of_their_axes(tmp_path):
    xarray = pytest.importorskip("xarray")
    u = np.random.default_rng(0).standard_normal((12, 2, 16, 20)).astype("f4")
    turned = xarray.DataArray(u.transpose(2, 0, 3, 1), dims=("lat", "member", "lon", "channel"), name="u")
    whole = xarray.Dataset({"a": turned, "b": turned.isel(channel=0) * 2})
    read = {"x": "a", "y": "b", "shuffle": False}
    for data, how in (((turned, turned.isel(channel=0) * 2), {"shuffle": False}), (whole, read)):
        x, y = as_source(data, how).load().test
        assert np.array_equal(x, u[11:]) and np.array_equal(y[:, 0], 2 * u[11:, 0])
    split = as_source((whole.isel(member=slice(8)), whole.isel(member=slice(8, 12))), {"x": "a", "y": "b"}).load()
    assert split.counts() == {"train": 8, "val": 4} and np.array_equal(split.val[0], u[8:])
    moving = xarray.DataArray(np.cumsum(u[:, 0], 0), dims=("time", "lat", "lon"))
    with pytest.raises(MupError, match="12 frames in time; say what is learned: each step"):
        as_source(moving).load()


def test_mapped_arrays_are_read_batch_by_batch_here_and_in_other_processes(tmp_path):
    """Never held as a whole, and not sent to other processes; another content in the file is told."""
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "f4", (40, 1, 16))
    x[:] = np.arange(40)[:, None, None] + 1
    x.flush()
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for form in ((mapped, mapped), {"train": (mapped, mapped), "val": (mapped, mapped)}):
        source = as_source(form, {"in_memory": 0.0, "shuffle": False})
        again = pickle.loads(sent := pickle.dumps(source))
        assert len(sent) < 2000 and not torch.is_tensor(source.load().train[0])
        assert fingerprint(source.load()) == fingerprint(again.load())
        assert source.load().val[0][[1, 0]][:, 0, 0].tolist() == ([34, 33] if isinstance(form, tuple) else [2, 1])
    x[3] = 7
    x.flush()
    os.utime(tmp_path / "x.npy", ns=(1, 1))
    with pytest.raises(MupError, match="the data given changed while it was read"):
        source.load()


def spoilt(how, number):
    x, y = fields()
    if how == "NaN":
        y[number, 0, 3] = torch.nan
    else:
        y[number] = 0.0
    return x, y


@pytest.mark.parametrize("how", ["NaN", "zero"])
@pytest.mark.parametrize("form", ["arrays", "data sets", "loaders"])
@pytest.mark.parametrize(("split", "number"), [("train", 7), ("val", 47)])
def test_what_cannot_be_learned_or_measured_is_told_by_its_sample(tmp_path, how, form, split, number):
    x, y = spoilt(how, number)
    parts = [(x[:40], y[:40]), (x[40:], y[40:])]
    if form != "arrays":
        parts = [TensorDataset(*part) if form == "data sets" else DataLoader(TensorDataset(*part), 4) for part in parts]
    told = {"NaN": "has entries that are not finite, in", "zero": "is zero everywhere in"}[how]
    with pytest.raises(MupError, match=f"y of {split} {told} sample 7"):
        nm.tune(build, tuple(parts), folder=tmp_path / "s", **HOW)
    if how == "zero":
        as_source(tuple(parts)).load().check(relative=False)
    points = [{"x": torch.rand(9, 2), "y": torch.zeros(9, 1)}]  # a graph's, of which some may well be zero
    Loaders({"train": points, "val": points}).check()


@pytest.mark.parametrize("value", [0.1, 300.1])
@pytest.mark.filterwarnings("ignore:Channel 1 of x")
def test_a_constant_channel_is_normalised_to_zero_and_told(value):
    x, y = fields()
    data = ProblemData((torch.cat([x, torch.full_like(x, value)], 1), y), (x, y))
    with pytest.warns(UserWarning, match=f"Channel 1 of x is {value} everywhere: it is normalised to zero"):
        processor = data.processor()
    processor.train()
    got = processor.preprocess({"x": data.train[0], "y": y})["x"]
    assert not got[:, 1].any() and float(got[:, 0].std()) == pytest.approx(1, rel=1e-4)


def test_the_normaliser_is_exact_beside_a_large_mean():
    x = 1e5 + fields()[0].double()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        normalizer = ProblemData((x, x), (x, x)).processor().in_normalizer
    torch.testing.assert_close(normalizer.std.flatten(), x.std()[None], rtol=1e-9, atol=0)
    torch.testing.assert_close(normalizer.mean.flatten(), x.mean()[None], rtol=1e-15, atol=0)


def test_seeds_may_be_numpys(tmp_path):
    found = nm.tune(build, fields(), folder=tmp_path / "s", seeds=np.arange(2), **HOW)
    assert found.loss == nm.tune(build, fields(), folder=tmp_path / "s", seeds=(0, 1), **HOW).loss


def test_arrays_may_ask_for_gradients():
    x, y = (values.requires_grad_() for values in fields())
    assert not any(values.requires_grad for values in as_source({"train": (x, y), "val": (x, y)}).load().train)


def test_a_run_whose_file_changed_meanwhile_is_refused(tmp_path):
    """An HDF5 file that is read batch by batch, written to while the run is trained."""
    import h5py

    file, (x, y) = tmp_path / "d.h5", fields()
    with h5py.File(file, "w") as content:
        content.update({"x": x.numpy(), "y": y.numpy()})

    class Meddling(FNO):
        def forward(self, x, **kwargs):
            if self.training and torch.is_grad_enabled():
                with h5py.File(file, "a") as content:
                    content["y"][3] = 5.0
            return super().forward(x, **kwargs)

    def meddling(**size):
        return Meddling(in_channels=1, out_channels=1, n_layers=1, **size)

    with pytest.raises(MupError, match=r"d.h5 changed while it was read"):
        nm.tune(meddling, file, folder=tmp_path / "s", read={"in_memory": 0.0}, **HOW)


def test_a_pass_over_large_samples_holds_few_of_them_at_once():
    """Of fields of 2 MB each some dozen MB; the same numbers come out as of all at once."""
    x = torch.rand(1, 1, 1, 1).expand(120, 8, 256, 256)
    data, held = ProblemData((x, x), (x, x)), []

    class Told:
        shape, ndim, dtype = x.shape, x.ndim, x.dtype

        def __len__(self):
            return len(x)

        def __getitem__(self, numbers):
            held.append(len(numbers))
            return x[numbers]

    told = ProblemData((Told(), Told()), (x[:1], x[:1]))
    assert len(data.sample()["x"]) == len(told.sample()["y"]) == 30
    told.check()
    assert max(held) * 8 * 256**2 * 4 <= 2**26


def test_the_whole_of_a_large_file_is_never_held(tmp_path):
    """20 GB, of which nothing is written: read batch by batch in less memory than a tenth of it."""
    code = """
import resource, h5py
from neuralop_mup.lab.problems.given import as_source
with h5py.File("big.h5", "w") as file:
    for key in "xy":
        file.create_dataset(key, (76000, 2, 128, 128), "f4", chunks=(1, 2, 128, 128), fillvalue=1.5)
data = as_source("big.h5", {"dims": "sample channel x y"}).load()
batch, _ = next(iter(data.loaders(8, 0)[0])), data.sample()
assert batch["x"].shape == (8, 2, 128, 128) and float(batch["y"].mean()) == 1.5
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2e6  # kB
