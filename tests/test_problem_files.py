"""neuralop's own data sets from files on disk, here tiny ones of the same format."""

from __future__ import annotations

import math

import pytest
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems import get_problem

SHAPES = {
    "darcy-files": ("darcy", (8, 8), (8, 8)),
    "navier-stokes-files": ("nsforcing", (8, 8), (8, 8)),
    "burgers-files": ("burgers", (8,), (7, 8)),  # an odd number of times, as in neuralop's
}
SIZES = {"n_train": 5, "n_val": 2, "n_test": 3, "grid": 8}


def fields(name: str, samples: int, seed: int) -> dict[str, torch.Tensor]:
    _, x, y = SHAPES[name]
    draw = torch.Generator().manual_seed(seed)
    content = {"x": torch.randn(samples, *x, generator=draw), "y": torch.randn(samples, *y, generator=draw)}
    if name == "darcy-files":
        content["x"] = content["x"] > 0  # neuralop's coefficients are booleans
    return content


@pytest.fixture(params=sorted(SHAPES))
def name(request):
    return request.param


@pytest.fixture
def folder(name, tmp_path):
    for seed, (part, samples) in enumerate((("train", 9), ("test", 4))):
        torch.save(fields(name, samples, seed), tmp_path / f"{SHAPES[name][0]}_{part}_8.pt")
    return tmp_path


def problem(name, folder, **changes):
    more = {"time_points": 6} if name == "burgers-files" else {}
    return get_problem(name, **{**SIZES, **more, "data_root": str(folder), **changes})


def test_splits_come_from_the_right_files(name, folder):
    p = problem(name, folder)
    data = p.load(folder / "cache")
    assert not (folder / "cache").exists()  # the files are the cache
    train, test = fields(name, 9, 0), fields(name, 4, 1)
    for split, source, part in (("train", train, slice(0, 5)), ("val", train, slice(5, 7)), ("test", test, slice(0, 3))):
        x, y = getattr(data, split)
        assert x.shape == y.shape == (getattr(p, f"n_{split}"), 1, *p.grid_shape) and x.dtype == y.dtype == torch.float32
        expected = source["y"][part]
        assert torch.equal(y[:, 0], expected[:, :6] if name == "burgers-files" else expected)
        for values in x[:, 0].unbind(1) if name == "burgers-files" else [x[:, 0]]:
            assert torch.equal(values, source["x"][part].float())
    assert list(p.losses()) == ["data"]


def test_neuralop_reads_the_same_numbers(folder, name):
    from neuralop.data.datasets.pt_dataset import PTDataset

    theirs = PTDataset(
        root_dir=folder,
        dataset_name=SHAPES[name][0],
        n_train=5,
        n_tests=[3],
        batch_size=1,
        test_batch_sizes=[1],
        train_resolution=8,
        test_resolutions=[8],
        input_subsampling_rate=[1] * len(SHAPES[name][1][:-1]),
        output_subsampling_rate=[1] * len(SHAPES[name][2][:-1]),
    )
    data = problem(name, folder).load()
    times = slice(0, 6) if name == "burgers-files" else slice(None)
    assert torch.equal(torch.stack([sample["y"] for sample in theirs.train_db])[:, :, times], data.train[1])
    x = torch.stack([sample["x"] for sample in theirs.test_dbs[8]])
    assert torch.equal(x, data.test[0][:, :, 0] if name == "burgers-files" else data.test[0])


def test_missing_file_is_named_with_what_is_there(name, folder):
    prefix = SHAPES[name][0]
    with pytest.raises(MupError, match=rf"no file .*{prefix}_train_16.pt.*the folder has {prefix}_test_8.pt.*data_root"):
        problem(name, folder, grid=16).load()
    with pytest.raises(MupError, match=rf"no file .*nowhere/{prefix}_train_8.pt.*has no {prefix}"):
        problem(name, folder / "nowhere").load()
    (folder / f"{prefix}_test_8.pt").unlink()
    with pytest.raises(MupError, match=rf"no file .*{prefix}_test_8.pt"):
        problem(name, folder).load()


def test_too_few_samples_are_counted(name, folder):
    with pytest.raises(MupError, match="_train_8.pt has 9 samples of x, but 10 are asked for"):
        problem(name, folder, n_train=8).load()
    with pytest.raises(MupError, match="_test_8.pt has 4 samples of x, but 5 are asked for"):
        problem(name, folder, n_test=5).load()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda content: {"x": content["x"]}, "must hold a dict with tensors 'x' and 'y'"),
        (lambda content: content["x"], "must hold a dict"),
        (
            lambda content: {**content, "y": content["y"][..., :-1]},
            r"y in the file .* must have shape \(samples, .*, 8\), but",
        ),
        (lambda content: {**content, "x": content["x"][:, None]}, "x in the file .* must have shape"),
        (lambda content: {**content, "y": content["y"] * math.nan}, "y in the file .* not finite"),
    ],
)
def test_wrong_content_is_told(name, folder, damage, sentence):
    path = folder / f"{SHAPES[name][0]}_train_8.pt"
    torch.save(damage(fields(name, 9, 0)), path)
    with pytest.raises(MupError, match=sentence):
        problem(name, folder).load()


def test_file_that_is_no_tensor_file_is_told(name, folder):
    (folder / f"{SHAPES[name][0]}_train_8.pt").write_bytes(b"not a tensor")
    with pytest.raises(MupError, match="_train_8.pt cannot be read by torch.load"):
        problem(name, folder).load()


def test_arguments_that_cannot_work_are_refused(name, folder):
    with pytest.raises(MupError, match="seed has no effect"):
        problem(name, folder, seed=1)
    with pytest.raises(MupError, match="data_root must be the path"):
        problem(name, folder, data_root=3)
    if name == "burgers-files":
        with pytest.raises(MupError, match="have 7 times, but time_points asks for 8"):
            problem(name, folder, time_points=8).load()
        with pytest.raises(MupError, match="time_points must be even"):
            problem(name, folder, time_points=7)
