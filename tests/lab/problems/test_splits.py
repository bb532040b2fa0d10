"""Which data trains, chooses and tests: one rule for tuples, lists, dicts, folders and patterns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems import OwnData
from neuralop_mup.lab.problems.given import as_source
from neuralop_mup.lab.score import Validation
from support.files import array, write


def held(source):
    """The numbers that the samples of each split begin with."""
    data = source.load()
    return {name: set(getattr(data, name)[0][:, 0, 0].int().tolist()) for name in data.counts()}


def numbered(start, n=20):
    return np.broadcast_to(np.arange(start, start + n, dtype="f4")[:, None] + 1, (n, 16))


FIRST, SECOND, THIRD = ({*range(start + 1, start + 21)} for start in (0, 100, 200))


def files(tmp_path, *names):
    for start, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, x=numbered(100 * start), y=numbered(100 * start))
    return [tmp_path / name for name in names]


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_splits_of_arrays_without_channels_are_read_as_one_pair_is(kind):
    """Once it was refused, and the training data called "all"."""
    train, other = ((kind(numbered(start).copy()),) * 2 for start in (0, 100))
    assert held(as_source((train, other))) == {"train": FIRST, "val": SECOND}
    drawn = held(as_source({"train": train, "test": other}))
    assert drawn["train"] | drawn["val"] == FIRST and drawn["test"] == SECOND
    x, y = other
    assert held(as_source((train, (x[:, None], y[:, None])))) == {"train": FIRST, "val": SECOND}  # of which one has them
    with pytest.raises(MupError, match=r"train has x of shape \(20, 1, 16\) and y of shape \(19, 1, 16\)"):
        as_source({"train": (x[:, None], y[1:, None]), "test": (x[:, None], y[:, None])})


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (("train.npz", "test.npz"), tuple),
        (("train.npz", "test.npz"), list),
        (("darcy_train_16.npz", "darcy_test_16.npz"), lambda given: {"train": given[0], "test": given[1]}),
        (("a.npz", "b_test.npz"), tuple),
        (("in/train/a.npz", "in/test/a.npz"), lambda given: given[0].parents[1]),
        (("in/data/train/a.npz", "in/data/test/a.npz"), lambda given: given[0].parents[2]),
        (("in/train.npz", "in/test.npz"), lambda given: given[0].parent),
        (("in/train.npz", "in/test.npz"), lambda given: f"{given[0].parent}/*.npz"),
    ],
)
def test_what_is_called_test_never_chooses(tmp_path, names, form):
    """One rule for tuple, list, dict, folder and pattern; once the test file of a tuple chose, and a list was pooled."""
    source = as_source(form(files(tmp_path, *names)))
    got = held(source)
    assert got["test"] == SECOND and got["train"] | got["val"] == FIRST and len(got["val"]) == 2
    assert "test from" in source.readings["splits"] and "train, val from the others" in source.readings["splits"]


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (("train.npz", "val.npz", "test.npz"), tuple),
        (("a.npz", "b.npz", "c.npz"), tuple),
        (("train/a.npz", "valid/a.npz", "test/a.npz"), lambda given: given[0].parents[1]),
        (("train.npz", "validation.npz", "test.npz"), list),
        (("a.npz", "b.npz", "c.npz"), lambda given: dict(zip(("train", "valid", "test"), given, strict=True))),
    ],
)
def test_three_splits(tmp_path, names, form):
    assert held(as_source(form(files(tmp_path, *names)))) == {"train": FIRST, "val": SECOND, "test": THIRD}


@pytest.mark.parametrize("names", [("a.npz", "b.npz"), ("train_0.npz", "train_1.npz"), ("test/a.npz", "test/b.npz")])
def test_files_that_say_no_splits_are_joined(tmp_path, names):
    assert set.union(*held(as_source(files(tmp_path, *names))).values()) == FIRST | SECOND


def test_a_folder_beside_the_data_that_only_sounds_like_a_split(tmp_path):
    """Logs of a training beside the files were once taken for the training data, and refused."""
    (tmp_path / "in/train_logs").mkdir(parents=True)
    (tmp_path / "in/train_logs/loss.txt").write_text("0.1")
    assert held(as_source(files(tmp_path, "in/a.npz")[0].parent)).keys() == {"train", "val", "test"}


@pytest.mark.parametrize(
    ("names", "form", "told"),
    [
        (("train.npz", "other.npz", "test.npz"), list, "other.npz is beside files that are called test, train: say which"),
        (("train_0.npz", "train_1.npz"), tuple, "are called train and train: say which is which"),
        (("b.npz", "val.npz", "train.npz"), tuple, "are called train and val and train"),
        (("test.npz", "b.npz"), tuple, "given for 'test', 'val': give that of 'train' once"),
        (("a.npz",), lambda given: {"train": given, "val": []}, "The val data is empty"),
        (("a.npz",), lambda given: {"train": given, "vla": given}, "data names 'vla'; expected one of test, train, val"),
        (("a.npz",), lambda given: (given[0], given[0]), "a.npz is given for two splits: give each files of its own"),
        (("in/test/a.npz",), lambda given: given[0].parents[1], "in has a folder for test data alone, test, and what is"),
        (("in/data/test/a.npz",), lambda given: given[0].parents[2], "put training data beside it, in .*in/data/train"),
        (("a.npz", "b.npz"), lambda given: {"train": given[0], "val": given[1], "valid": given[1]}, "once"),
    ],
)
def test_splits_that_are_not_clear_are_told(tmp_path, names, form, told):
    with pytest.raises(MupError, match=told):
        as_source(form(files(tmp_path, *names)))


def pairs_of(start, n=20):
    return torch.from_numpy(numbered(start, n).copy())[:, None], torch.from_numpy(numbered(start, n).copy())[:, None]


@pytest.mark.parametrize("form", [lambda pair: pair, lambda pair: TensorDataset(*pair)], ids=["arrays", "data sets"])
def test_a_part_of_the_training_data_is_for_validation_and_told(form):
    source = as_source({"train": form(pairs_of(0)), "test": form(pairs_of(100))})
    data = source.load()
    assert data.counts() == {"test": 20, "train": 18, "val": 2}
    assert source.readings["splits"] == "18 train, 2 val, drawn at random from the training data, the same in every run"
    assert as_source(TensorDataset(*pairs_of(0))).load().counts() == {"train": 16, "val": 2, "test": 2}
    with pytest.raises(MupError, match="too few to take those of val"):
        as_source({"train": form(pairs_of(0, 1)), "test": form(pairs_of(100))})
    with pytest.raises(
        MupError, match="train is a list; give .* Without validation data a part is taken of files, arrays and"
    ):
        as_source({"train": [{"x": 1, "y": 1}], "test": TensorDataset(*pairs_of(0))})
    with pytest.raises(MupError, match="The val data is empty"):
        as_source((TensorDataset(*pairs_of(0)), TensorDataset(*pairs_of(0, 0))))


def test_a_split_may_have_a_grid_of_its_own(tmp_path):
    """Errors are told by split; within a split all files have one grid."""
    write(tmp_path / "train.npz", x=array(20, 16), y=array(20, 16))
    write(tmp_path / "val.npz", x=array(8, 32), y=array(8, 32))
    source = as_source((tmp_path / "train.npz", tmp_path / "val.npz"))
    assert source.load().val[0].shape == (8, 1, 32) and "val on 32 points" in source.readings["splits"]
    with pytest.raises(MupError, match="files that are joined must agree"):
        as_source([tmp_path / "train.npz", write(tmp_path / "more.npz", x=array(8, 32), y=array(8, 32))]).load()


def test_a_split_may_have_trajectories_of_its_own_length(tmp_path):
    """Once refused, though each could be used: short ones to train on, a long one to roll out."""
    for name, times in (("train", 5), ("val", 9), ("test", 7)):
        write(tmp_path / f"{name}.npz", u=np.cumsum(array(6, times, 16), 1))
    source = as_source(tmp_path, {"y": "u", "time_step": 1})
    data = source.load()
    assert data.counts() == {"train": 24, "val": 48, "test": 36} and "val with 9 frames" in source.readings["splits"]
    assert [data.pairs_of(split) for split in data.counts()] == [4, 8, 6]
    seen = Validation(data)
    whole = np.load(tmp_path / "val.npz")["u"]
    assert seen.n_states == 9 and all(np.array_equal(seen.states(t)[:, 0], whole[:, t]) for t in range(9))
    with pytest.raises(MupError, match="files that are joined must agree"):
        as_source({"train": [tmp_path / "train.npz", tmp_path / "val.npz"]}, {"y": "u", "time_step": 1}).load()


def test_files_that_are_called_x_and_y_are_input_and_output(tmp_path):
    """Once joined as samples of one array, or refused."""
    x, y = numbered(0), numbered(100)
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        np.save(tmp_path / split / "x.npy", x)
        np.save(tmp_path / split / "y.npy", y)
    data = as_source(tmp_path).load()
    assert data.counts() == {"train": 18, "val": 2, "test": 20}
    assert np.array_equal(data.test[0][:, 0], x) and np.array_equal(data.test[1][:, 0], y)


def test_other_channels_are_told(tmp_path):
    write(tmp_path / "a.npz", x=array(10, 16, 2), y=array(10, 16))
    with pytest.raises(MupError, match="x → y, .*, but .* x 0, x 1 → y, .*: files that are joined must agree"):
        OwnData(files=[tmp_path / "a.npz", write(tmp_path / "b.npz", x=array(10, 16), y=array(10, 16))]).load()
