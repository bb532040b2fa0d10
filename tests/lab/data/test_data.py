"""Data as training gets it: fingerprints, checks before training, normalization, and forms of other libraries."""

import os
import pickle
import resource
import warnings

import h5py
import numpy as np
import pytest
import torch
import xarray
from neuralop.data.datasets.pt_dataset import PTDataset
from neuralop.models import FNO
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset, SubsetRandomSampler, TensorDataset, random_split

import neuralop_mup as nm
from neuralop_mup.lab.data import ProblemData
from neuralop_mup.lab.data.batches import chunks_of, spread
from neuralop_mup.lab.data.given import as_source
from neuralop_mup.lab.data.loaders import Loaders
from neuralop_mup.lab.fingerprint import fingerprint
from support.errors import refused
from support.files import array, assert_equal, write


def fields(n=60, points=16):
    k = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    s = torch.arange(points) / points * 2 * torch.pi
    x = (k[:, :1] * torch.sin(s) + k[:, 1:2] * torch.cos(s) + k[:, 2:] * torch.sin(2 * s))[:, None]
    return x, x.roll(1, -1) + 0.3 * x**2


class Dicts(Dataset):
    """Samples as dicts; ``noise`` adds random numbers that nobody seeds."""

    def __init__(self, noise=0.0, **arrays):
        self.arrays, self.noise = arrays, noise

    def __len__(self):
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, i):
        return {name: values[i] + self.noise * np.random.randn() for name, values in self.arrays.items()}


X, Y = fields()
ALL = Dicts(x=X, y=Y)
PLAIN = DataLoader(Subset(ALL, range(50, 60)), 8)


def shifted(batch):
    batch = torch.utils.data.default_collate(batch)
    return {"x": batch["x"], "y": batch["y"] + 3.0}


def loader(**how):
    return DataLoader(ALL, **{"batch_size": 8, **how})


# Fingerprints


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
        (loader(), ALL),
    ],
)
@pytest.mark.parametrize("split", ["train", "val"])
def test_different_loaders_have_different_fingerprints(one, other, split):
    """All of these once had one fingerprint, so that a folder returned the numbers of other data."""
    first, second, again = (fingerprint(Loaders({"train": PLAIN, "val": PLAIN, split: part})) for part in (one, other, one))
    assert first == again != second


def test_fingerprints_use_up_no_random_numbers():
    order = torch.Generator().manual_seed(3)
    data = Loaders({"train": loader(sampler=RandomSampler(ALL, generator=order)), "val": loader(shuffle=True)})
    states = [order.get_state(), torch.get_rng_state()]
    assert fingerprint(data) == fingerprint(data)
    data.sample()
    data.check()
    assert all(map(torch.equal, states, [order.get_state(), torch.get_rng_state()]))


class Shuffled(list):
    """A loader of the user's own, whose order differs each time."""

    def __iter__(self):
        return iter(np.random.permutation(np.array(list(super().__iter__()), dtype=object)))


@pytest.mark.parametrize(
    "train", [Dicts(noise=0.01, x=X, y=Y), Shuffled(loader(batch_size=1))], ids=["augmented", "shuffled"]
)
def test_data_that_differs_each_time_causes_a_warning(train):
    """Its runs are never reused: every fingerprint is a new one, also where the first epochs are equal."""
    prints = set()
    for _ in range(2):
        np.random.seed(0)
        with pytest.warns(UserWarning, match="^train"):
            prints.add(fingerprint(as_source({"train": train, "val": PLAIN}).load()))
    assert len(prints) == 2


# Forms


@pytest.mark.parametrize("form", ["loaders", "data set"])
def test_data_sets_of_neuralop(form):
    """Their processor is used, the first test set, and a part of the training data for validation."""
    for name, n, points in (("train_16", 30, 16), ("test_16", 8, 16), ("test_32", 8, 32)):
        write(f"darcy_{name}.pt", x=array(n, points, points), y=array(n, points, points))
    sizes = {"n_train": 30, "n_tests": [8, 8], "batch_size": 4, "test_batch_sizes": [4, 4]}
    theirs = PTDataset(".", "darcy", **sizes, train_resolution=16, test_resolutions=[16, 32])
    given = theirs
    if form == "loaders":  # as load_darcy_flow_small returns them
        tests = {points: DataLoader(part, 4) for points, part in theirs.test_dbs.items()}
        given = (DataLoader(theirs.train_db, 4, shuffle=True), tests, theirs.data_processor)
    data = as_source(given).load()
    sizes = {split: len(part) for split, part in data.parts.items()}
    assert sizes == {"train": 27, "val": 3, "test": 2 if form == "loaders" else 8}
    assert torch.equal(data.processor().out_normalizer.mean, theirs.data_processor.out_normalizer.mean)
    assert fingerprint(data) != fingerprint(Loaders(data.parts))


def test_xarray_keeps_the_names_of_axes():
    u = array(12, 2, 16, 20)
    turned = xarray.DataArray(u.transpose(2, 0, 3, 1), dims=("south", "member", "east", "channel"), name="u")
    whole = xarray.Dataset({"a": turned, "b": turned.isel(channel=0) * 2})
    read = {"x": "a", "y": "b", "shuffle": False}
    for data, how in (((whole["a"], whole["b"]), {"shuffle": False}), (whole, read)):
        assert_equal(as_source(data, how).load().test, (u[11:], 2 * u[11:, :1]))
    split = as_source((whole.isel(member=slice(8)), whole.isel(member=slice(8, 12))), {"x": "a", "y": "b"}).load()
    assert np.array_equal(split.val[0], u[8:])
    moving = xarray.DataArray(u[:, 0], dims=("time", "south", "east"))
    with refused("12 time_step"):
        as_source(moving).load()


def test_memory_maps_are_read_in_batches():
    """They are never held as a whole and not sent to other processes. A changed file is refused."""
    x = np.lib.format.open_memmap("x.npy", "w+", "f4", (40, 1, 16))
    x[:] = np.arange(40)[:, None, None] + 1
    x.flush()
    mapped = np.load("x.npy", mmap_mode="r")
    for form, numbers in (((mapped, mapped), [34, 33]), ({"train": (mapped, mapped), "val": (mapped, mapped)}, [2, 1])):
        source = as_source(form, {"in_memory": 0.0, "shuffle": False})
        sent = pickle.dumps(source)
        assert len(sent) < 2000
        assert not torch.is_tensor(source.load().train[0])
        assert fingerprint(source.load()) == fingerprint(pickle.loads(sent).load())
        assert source.load().val[0][[1, 0]][:, 0, 0].tolist() == numbers
    for change in (lambda: os.utime("x.npy", ns=(1, 1)), lambda: os.remove("x.npy")):
        change()
        with refused("changed"):
            source.load()
    assert_equal(as_source((mapped, mapped), {"shuffle": False}).load().val, (mapped[32:36], mapped[32:36]))


def test_arrays_that_require_gradients():
    x, y = (values.clone().requires_grad_() for values in (X, Y))
    assert not any(values.requires_grad for values in as_source({"train": (x, y), "val": (x, y)}).load().train)


def test_loaders_shuffle_pairs_by_their_seed():
    x = torch.arange(20.0)[:, None, None].expand(20, 1, 4)
    data = ProblemData((x, 2 * x), (x, x))

    def epoch(loader):
        batches = list(loader)
        assert all(torch.equal(2 * batch["x"], batch["y"]) for batch in batches)
        return torch.cat([batch["x"][:, 0, 0] for batch in batches]).tolist()

    one, again, other = (data.loaders(batch_size=8, seed=seed)[0] for seed in (3, 3, 4))
    first = epoch(one)
    assert sorted(first) == list(range(20))
    assert [epoch(loader) == first for loader in (again, other, one)] == [True, False, False]
    assert torch.equal(torch.cat([batch["y"] for batch in data.loaders(8, 0)[1]["val"]]), x)


# Checks and normalization


@pytest.mark.parametrize("form", [lambda *xy: xy, TensorDataset, lambda *xy: DataLoader(TensorDataset(*xy), 4)])
@pytest.mark.parametrize(("split", "number"), [("train", 7), ("val", 47)])
def test_samples_that_cannot_be_learned_are_named(form, split, number):
    for value, slot in ((torch.nan, (number, 0, 3)), (0.0, number)):
        y = Y.clone()
        y[slot] = value
        before = torch.get_rng_state()
        with refused(f"y {split} 7"):
            data = as_source((form(X[:40], y[:40]), form(X[40:], y[40:]))).load()
            data.check()
        assert torch.equal(torch.get_rng_state(), before)
    data.check(relative=False)


def test_values_of_graphs_may_be_zero():
    points = [{"x": torch.rand(9, 2), "y": torch.zeros(9, 1)}]
    Loaders({"train": points, "val": points}).check()


@pytest.mark.parametrize("value", [0.1, 300.1])
def test_a_constant_channel_becomes_zero(value):
    pair = torch.cat([X, torch.full_like(X, value)], 1), Y
    data = ProblemData(pair, pair)
    with pytest.warns(UserWarning, match=f"1.*x.*{value}"):
        processor = data.processor()
    processor.train()
    x = processor.preprocess({"x": data.train[0], "y": Y})["x"]
    assert not x[:, 1].any()
    assert float(x[:, 0].std()) == pytest.approx(1, rel=1e-4)


def test_the_normalizer_is_exact_beside_a_large_mean():
    x = 1e5 + X.double()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        normalizer = ProblemData((x, x), (x, x)).processor().in_normalizer
    torch.testing.assert_close(normalizer.std.flatten(), x.std()[None], rtol=1e-9, atol=0)
    torch.testing.assert_close(normalizer.mean.flatten(), x.mean()[None], rtol=1e-15, atol=0)


# Trainings


HOW = {
    "base": {"hidden_channels": 4, "n_modes": (4,)},
    "target": {"hidden_channels": 8, "n_modes": (4,)},
    **{"space": {"lr": [0.02]}, "epochs": 1, "batch_size": 30, "n_workers": 1, "progress": False},
}


def test_a_file_that_changes_during_a_run_is_refused():
    file = write("d.h5", x=X.numpy(), y=Y.numpy())

    class Meddling(FNO):
        def forward(self, x, **kwargs):
            if self.training and torch.is_grad_enabled():
                with h5py.File(file, "a") as content:
                    content["y"][3] = 5.0
            return super().forward(x, **kwargs)

    def build(**size):
        return Meddling(in_channels=1, out_channels=1, n_layers=1, **size)

    with refused("d.h5"):
        nm.tune(build, file, folder="s", read={"in_memory": 0.0}, **HOW)


# Memory


def test_a_pass_over_large_samples_holds_few_at_once():
    x = torch.empty(1).expand(120, 8, 256, 256)
    assert max(map(len, chunks_of(x, x))) * 2 * x[0].nbytes <= 2**26
    assert len(spread(x)) == 30


def test_a_large_file_is_never_held_as_a_whole():
    """The file has 20 GB, none of them written."""
    with h5py.File("big.h5", "w") as file:
        for key in "xy":
            file.create_dataset(key, (76000, 2, 128, 128), "f4", chunks=(1, 2, 128, 128), fillvalue=1.5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = as_source("big.h5", {"dims": "sample channel x y"}).load()
    batch, sample = next(iter(data.loaders(8, 0)[0])), data.sample()
    assert batch["x"].shape == (8, 2, 128, 128)
    assert float(sample["y"].mean()) == 1.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 1.5e6  # kB
