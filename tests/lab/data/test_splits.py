"""Which data trains, selects and tests: one rule for tuples, lists, dicts, folders and patterns."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from neuralop_mup.lab.data.given import as_source
from neuralop_mup.lab.score import Validation
from support.errors import refused
from support.files import array, assert_equal, write


def numbers(source):
    """The first value of each sample, by split."""
    data = source.load()
    return {name: set(getattr(data, name)[0][:, 0, 0].int().tolist()) for name in data.counts()}


def numbered(start, n=20):
    """Samples whose values are their number; none is zero."""
    return np.repeat(np.arange(start, start + n, dtype="f4")[:, None] + 1, 16, axis=1)


FIRST, SECOND, THIRD = ({*range(start + 1, start + 21)} for start in (0, 100, 200))


def write_files(names):
    return [write(name, x=numbered(100 * i), y=numbered(100 * i)) for i, name in enumerate(names.split())]


def as_dict(*names):
    return lambda files: dict(zip(names, files, strict=True))


def pair_of(start, n=20):
    return torch.from_numpy(numbered(start, n))[:, None], torch.from_numpy(numbered(start, n))[:, None]


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_splits_of_arrays_without_channels(kind):
    """They are read as one pair is; they were once refused."""
    train, other = ((kind(numbered(start)),) * 2 for start in (0, 100))
    assert numbers(as_source((train, other))) == {"train": FIRST, "val": SECOND}
    drawn = numbers(as_source({"train": train, "test": other}))
    assert (drawn["train"] | drawn["val"], drawn["test"]) == (FIRST, SECOND)
    x, y = other
    with refused("train (20,1,16) (19,1,16)"):
        as_source({"train": (x[:, None], y[1:, None]), "test": (x[:, None], y[:, None])}).load()


@pytest.mark.parametrize(
    ("names", "form"),
    [
        ("train.npz test.npz", tuple),
        ("train.npz test.npz", list),
        ("darcy_train_16.npz darcy_test_16.npz", as_dict("train", "test")),
        ("a.npz b_test.npz", tuple),
        ("in/train/a.npz in/test/a.npz", lambda _: "in"),
        ("in/data/train/a.npz in/data/test/a.npz", lambda _: "in"),
        ("in/train.npz in/test.npz", lambda _: "in"),
        ("in/train.npz in/test.npz", lambda _: "in/*.npz"),
    ],
)
def test_test_data_never_selects(names, form):
    """A tuple's test file used to take part in selection, and lists were pooled."""
    got = numbers(as_source(form(write_files(names))))
    assert (got["test"], got["train"] | got["val"], len(got["val"])) == (SECOND, FIRST, 2)


@pytest.mark.parametrize(
    ("names", "form"),
    [
        ("train.npz val.npz test.npz", tuple),
        ("a.npz b.npz c.npz", tuple),
        ("train/a.npz valid/a.npz test/a.npz", lambda _: "."),
        ("train.npz validation.npz test.npz", list),
        ("a.npz b.npz c.npz", as_dict("train", "valid", "test")),
    ],
)
def test_three_splits(names, form):
    assert numbers(as_source(form(write_files(names)))) == {"train": FIRST, "val": SECOND, "test": THIRD}


@pytest.mark.parametrize("names", ["a.npz b.npz", "train_0.npz train_1.npz", "test/a.npz test/b.npz"])
def test_files_that_do_not_name_splits_are_joined(names):
    assert set.union(*numbers(as_source(write_files(names))).values()) == FIRST | SECOND


def test_a_folder_of_logs_is_not_a_split():
    """The folder of logs beside the data was once used as training data, and refused."""
    Path("in/train_logs").mkdir(parents=True)
    Path("in/train_logs/loss.txt").write_text("0.1")
    write_files("in/a.npz")
    assert numbers(as_source("in")).keys() == {"train", "val", "test"}


@pytest.mark.parametrize(
    ("names", "form", "message"),
    [
        ("train.npz other.npz test.npz", list, "other.npz test train"),
        ("train_0.npz train_1.npz", tuple, "train_0.npz train_1.npz"),
        ("b.npz val.npz train.npz", tuple, "b.npz val.npz train.npz"),
        ("test.npz b.npz", tuple, "'test' 'val' 'train'"),
        ("a.npz", lambda files: {"train": files, "val": []}, "val empty"),
        ("a.npz", lambda files: {"train": files, "vla": files}, "'vla' test train val"),
        ("a.npz", lambda files: (files[0], files[0]), "a.npz"),
        ("in/test/a.npz", lambda _: "in", "in test in/train"),
        ("in/data/test/a.npz", lambda _: "in", "in/data/train"),
        ("a.npz b.npz c.npz", as_dict("train", "val", "valid"), "'train' 'val' 'valid'"),
    ],
)
def test_unclear_splits_are_refused(names, form, message):
    with refused(message):
        as_source(form(write_files(names)))


@pytest.mark.parametrize("form", [tuple, lambda pair: TensorDataset(*pair)], ids=["arrays", "data sets"])
def test_a_part_of_the_training_data_is_for_validation(form):
    source = as_source({"train": form(pair_of(0)), "test": form(pair_of(100))})
    assert source.load().counts() == {"test": 20, "train": 18, "val": 2}
    assert "18 train, 2 val" in str(source.readings)
    with refused("train 1"):
        as_source({"train": form(pair_of(0, 1)), "test": form(pair_of(100))}).load()


def test_splits_of_data_sets():
    whole = TensorDataset(*pair_of(0))
    assert as_source(whole).load().counts() == {"train": 16, "val": 2, "test": 2}
    with refused("train list"):
        as_source({"train": [{"x": 1, "y": 1}], "test": whole})
    with refused("val empty"):
        as_source((whole, TensorDataset(*pair_of(0, 0))))


def test_each_split_may_have_its_own_grid():
    files = [write(f"{name}.npz", x=array(20, n), y=array(20, n)) for name, n in (("train", 16), ("val", 32), ("more", 32))]
    assert as_source(tuple(files[:2])).load().val[0].shape == (20, 1, 32)
    with refused("train.npz more.npz 16 32"):
        as_source([files[0], files[2]]).load()


def test_each_split_may_have_its_own_length_in_time():
    """Short trajectories to train on and a long one for rollouts were once refused."""
    for name, times in (("train", 5), ("val", 9), ("test", 7)):
        write(f"{name}.npz", u=array(6, times, 16))
    read = {"y": "u", "time_step": 1, "dims": "sample time x"}
    data = as_source(".", read).load()
    assert data.counts() == {"train": 24, "val": 48, "test": 36}
    assert [data.pairs_of(split) for split in data.counts()] == [4, 8, 6]
    validation, u = Validation(data), np.load("val.npz")["u"]
    assert np.array_equal(np.stack([validation.states(t)[:, 0] for t in range(validation.n_states)], 1), u)


def test_files_named_x_and_y_are_input_and_output():
    """They were once joined as samples of one array, or refused."""
    x, y = numbered(0), numbered(100)
    for split in ("train", "test"):
        Path(split).mkdir()
        np.save(f"{split}/x.npy", x)
        np.save(f"{split}/y.npy", y)
    data = as_source(".").load()
    assert data.counts() == {"train": 18, "val": 2, "test": 20}
    assert_equal(data.test, (x[:, None], y[:, None]))
