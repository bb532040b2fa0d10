"""NaN over land: filled, told by a mask, and left out of losses and errors."""

import numpy as np
import pytest
import torch
from neuralop.data.transforms.data_processors import DefaultDataProcessor
from neuralop.data.transforms.normalizers import UnitGaussianNormalizer
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.data import OwnData
from neuralop_mup.lab.decisions import decide
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.problems.base import relative_l2
from support.errors import refused, warned
from support.files import array, write

LAND = np.zeros((8, 10), bool)
LAND[:3, :4] = True
U = np.where(LAND, np.nan, array(20, 6, 8, 10) + 5)
READ = {"dims": "sample time x y", "time_step": 1, "shuffle": False}


@pytest.fixture
def sea():
    return write("sea.npz", u=U.astype("f4"))


def test_without_an_option_the_message_says_what_to_do(sea):
    with refused("u sea.npz {'nan':'mask'}"):
        OwnData(files=sea, **READ).load()


@pytest.mark.parametrize("fill", [-999.0, -9999.0, 1e20])
def test_a_number_that_stands_for_missing_values_gives_a_warning(fill):
    """It was learned like other values, and it dominates relative errors."""
    file = write("sea.npz", u=np.where(LAND, fill, array(20, 6, 8, 10)).astype("f4"))
    with warned("missing values") as caught:
        OwnData(files=file, **READ).load()
    assert f"== {fill:g}, np.nan" in str(caught[0].message) and "{'nan': 'mask'}" in str(caught[0].message)


@pytest.mark.parametrize("in_memory", [2.0, 0.0])
def test_nan_is_filled_and_told_by_a_mask(sea, in_memory):
    own = OwnData(files=sea, nan="mask", in_memory=in_memory, **READ)
    data = own.load()
    assert (own.in_channels, own.out_channels) == (2, 1)
    batch = next(iter(data.loaders(8, 0)[1]["val"]))
    sea_points = torch.from_numpy(~LAND)
    assert torch.equal(batch["x"][:, 1], sea_points.float().expand(8, 8, 10))
    assert torch.equal(batch["mask"][:, 0], sea_points.float().expand(8, 8, 10))
    train = U[:16]
    assert torch.allclose(batch["x"][:, 0][:, ~sea_points], torch.tensor(np.nanmean(train[:, :-1]), dtype=torch.float32))
    assert np.array_equal(batch["x"][0, 0][sea_points], U[16, 0][~LAND].astype("f4"))
    processor = data.processor()
    assert float(processor.out_normalizer.mean) == pytest.approx(np.nanmean(train[:, 1:]), rel=1e-6)
    assert float(processor.out_normalizer.std) == pytest.approx(np.nanstd(train[:, 1:], ddof=1), rel=1e-5)
    processor.train()
    x = processor.preprocess(batch)["x"]
    assert torch.equal(x[:, 1], batch["x"][:, 1]) and x[:, 0][:, ~sea_points].abs().max() < 1e-4
    assert fingerprint(data) != fingerprint(OwnData(files=sea, nan="mask", n_train=15, **READ).load())
    data.check()


def test_losses_ignore_what_is_masked():
    y, mask = torch.randn(4, 1, 8, 10), torch.from_numpy(~LAND).float().expand(4, 1, 8, 10)
    prediction = y + 0.1 * torch.randn_like(y)
    loss = relative_l2(2)
    expected = sum(((p - t) * m).norm() / (t * m).norm() for p, t, m in zip(prediction, y, mask, strict=True))
    assert float(loss(prediction, y, mask=mask)) == pytest.approx(float(expected), rel=1e-5)
    assert float(loss(prediction + 100 * (1 - mask), y, mask=mask)) == pytest.approx(float(expected), rel=1e-5)


def build(channels=2, **size):
    return FNO(in_channels=channels, out_channels=1, n_layers=1, **size)


def test_training_with_a_mask(sea):
    """The errors in the report are those of the sea, here calculated by hand."""
    target = {"hidden_channels": 4, "n_modes": (4, 4)}
    read = {**READ, "nan": "mask"}
    trained = nm.train(build, sea, read=read, target=target, epochs=1, folder="r", progress=False)
    assert "mask" in trained.report.read_text()
    x = U[18:, :-1].reshape(-1, 1, 8, 10).astype("f4")
    prediction = nm.load_tuned("r", build).predict(x)[:, 0]
    assert np.array_equal(trained.predict(x[:, 0]), prediction) and np.isfinite(prediction).all()
    far = prediction[:, ~LAND] - U[18:, 1:].reshape(-1, 8, 10)[:, ~LAND]
    errors = np.linalg.norm(far, axis=1) / np.linalg.norm(U[18:, 1:].reshape(-1, 8, 10)[:, ~LAND], axis=1)
    assert trained.results.records[0]["metrics"]["test_loss"] == pytest.approx(errors.mean(), rel=1e-4)
    assert f"{np.median(errors):.3g}" in trained.report.read_text()


def test_the_proxy_keeps_the_modes_of_the_target():
    """The energy would be that of the coast: 4 modes along it, and all modes across it."""
    u = np.arange(1, 21)[:, None, None] * np.cos(2 * np.pi * np.arange(8) / 8)[:, None] + np.zeros((8, 10))
    u[:, :, :5] = np.nan
    how = {
        "read": {"dims": "sample x y", "nan": "mask"},
        "rules": ("none",),
        "optimizer": "soap",
        "seeds": (0,),
        "epochs": 1,
    }
    decided = decide(build, (u, u), "r", target={"hidden_channels": 32, "n_modes": (8, 8)}, batch_size=8, **how)
    assert decided.study.sizes["proxy"] == {"hidden_channels": 16, "n_modes": (8, 8)}


def test_a_wrong_number_of_channels_names_the_mask(sea):
    target = {"hidden_channels": 4, "n_modes": (4, 4)}
    how = {"read": {**READ, "nan": "mask"}, "target": target, "folder": "r", "progress": False}
    with refused("in_channels nan='mask'"):
        nm.train(lambda **size: build(**size, channels=1), sea, **how)


def test_predict_fills_nan_as_training_did_with_a_processor_of_the_user(sea):
    """The mean of this processor is zero, but training fills NaN with the mean of the data."""
    normalizer = UnitGaussianNormalizer(mean=torch.zeros(1, 2, 1, 1), std=torch.ones(1, 2, 1, 1))
    options = {"target": {"hidden_channels": 4, "n_modes": (4, 4)}, "epochs": 1, "folder": "r", "progress": False}
    processor = DefaultDataProcessor(normalizer, None)
    trained = nm.train(build, sea, read={**READ, "nan": "mask"}, processor=processor, **options)
    x = torch.from_numpy(U[18:, 0, None].astype("f4"))
    filled = torch.where(torch.isfinite(x), x, np.nanmean(U[:16, :-1]).astype("f4"))
    with torch.no_grad():
        expected = trained.model(torch.cat([filled, torch.isfinite(x).float()], 1))
    assert torch.allclose(trained.predict(x), expected, atol=1e-5)


def test_predict_fills_no_infinite_values_and_no_empty_samples(sea):
    """A rollout that overflows would otherwise continue from the mean and look healthy."""
    options = {"target": {"hidden_channels": 4, "n_modes": (4, 4)}, "epochs": 1, "folder": "r", "progress": False}
    trained = nm.train(build, sea, read={**READ, "nan": "mask"}, **options)
    x = U[18:, 0].astype("f4")
    for wrong in (np.where(LAND, np.inf, x), np.full_like(x, np.nan)):
        with refused("x infinite NaN"):
            trained.predict(wrong)


def test_a_score_of_rollouts_requires_fields_without_nan(sea):
    target = {"hidden_channels": 4, "n_modes": (4, 4)}
    with refused("score='rollout:3' nan='mask'"):
        nm.train(build, sea, read={**READ, "nan": "mask"}, target=target, epochs=1, folder="r", score="rollout:3")


def test_masks_in_the_shell(sea, capsys):
    words = ["--read.dims", "sample time x y", "--read.time_step", "1", "--read.nan", "mask"]
    assert main(["data", sea, *words]) == 0
    out = capsys.readouterr().out
    assert "2 → 1 channels" in out and "(80, 1, 8, 10) and the mask" in out
    assert "n_modes =" not in out and "the edge of the mask" in out
    with refused("rollout=1 nan='mask'"):
        OwnData(files=sea, nan="mask", rollout=2, **READ)
