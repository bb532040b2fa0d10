"""The errors of a model beside those of trivial predictions, and at half the resolution, worked out by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from neuralop.models import FNO
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import neuralop_mup as nm
from neuralop_mup.lab.accuracy import accuracy
from neuralop_mup.lab.data.loaders import Loaders
from neuralop_mup.lab.problems import ProblemData
from neuralop_mup.lab.score import Predictor
from support.studies import TARGET, build, fields, no_figures  # noqa: F401


class Function(nn.Module):
    """A model that is a function of x."""

    def __init__(self, function):
        super().__init__()
        self.function, self.unused = function, nn.Parameter(torch.zeros(1))

    def forward(self, x, **_):
        return self.function(x)


def measure(function, data, tmp_path, processor=None):
    model = function if isinstance(function, nn.Module) else Function(function)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        return accuracy(Predictor(model, processor), data, {}, tmp_path / "figure.png")


def table(page, what):
    """The rows of a table by the header's names."""
    lines = page.split(f"{what}\n\n")[1].split("\n\n")[0].splitlines()
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(header, row, strict=True)) for row in rows]


def noise(n, seed, channels=1, grid=(32,)):
    return torch.randn(n, channels, *grid, generator=torch.Generator().manual_seed(seed))


def pairs(change=lambda x: x, channels=1, grid=(32,)):
    x, test = noise(40, 0, channels, grid), noise(20, 1, channels, grid)
    return ProblemData(train=(x, change(x)), val=(x[:4], change(x[:4])), test=(test, change(test)))


def test_noise_about_a_large_mean_shows_that_nothing_was_learned(tmp_path, capsys):
    """The relative error is 1e-4, and the error over the standard deviation is 1."""
    data = {"train": (noise(40, 0), 1e4 + noise(40, 1)), "val": (noise(8, 2), 1e4 + noise(8, 3))}
    with pytest.warns(UserWarning, match="not better than predicting the mean of the training data: nothing was learned"):
        trained = nm.train(build, data, target=TARGET, epochs=3, batch_size=8, folder=tmp_path / "s")
    page, out = trained.report.read_text(), capsys.readouterr().out
    assert page.count("nothing was learned") == 1
    (row,) = table(page, "By channel:")
    assert float(row["L2, model"]) < 2e-4 and float(row["RMSE / std, model"]) > 0.95
    assert table(out, "By channel:") == [row] and "validation data" in out


def test_a_model_that_learned_has_no_such_sentence(tmp_path):
    found = measure(lambda x: 1.5 * x, pairs(), tmp_path)
    assert found.findings == [] and float(table(found.page, "By channel:")[0]["RMSE / std, model"]) == 0.5


def test_channels_that_are_not_better_are_named(tmp_path):
    """Of four channels, the second is unlearned, the third is not a number, and the last never varies."""
    data = pairs(lambda x: torch.cat([x[:, :3], 7 + 0 * x[:, :1]], 1), channels=3)
    factors = torch.tensor([0.5, 0.001, torch.nan])[:, None]
    found = measure(lambda x: torch.cat([x * factors, 7.001 + 0 * x[:, :1]], 1), data, tmp_path)
    assert found.findings == ["In channels 1, 2 the model is not better than predicting the mean of the training data."]
    assert [row["RMSE / std, model"] for row in table(found.page, "By channel:")] == ["0.5", "0.999", "–", "–"]


@pytest.mark.parametrize("history", [1, 2])
def test_persistence_by_hand(tmp_path, history):
    """States grow by a tenth each step, so the last one is off by 1/11. x has a further channel, a constant."""
    start = noise(6, 0, 2)
    states = torch.stack([start * 1.1**step for step in range(4 + history)], 1)
    frames = [[s[i : i + history].flatten(0, 1) for i in range(4)] for s in states]
    x = torch.stack([torch.cat([frame, torch.ones(1, 32)]) for each in frames for frame in each])
    y = states[:, history:].flatten(0, 1)
    data = ProblemData(train=(x, y), val=(x[:8], y[:8]), test=(x[8:], y[8:]), trajectory=4, history=history)
    for factor, sentences in ((1.0, 1), (1.05, 0)):
        found = measure(lambda x, f=factor: f * x[:, 2 * history - 2 : 2 * history], data, tmp_path)
        assert len(found.findings) == sentences and all("last state" in text for text in found.findings)
        for row in table(found.page, "By channel:"):
            assert float(row["L2, last state"]) == pytest.approx(1 / 11, rel=1e-2)
            assert float(row["L2, model"]) == pytest.approx(1 - factor / 1.1, rel=1e-2)
    assert "last state" not in measure(lambda x: x[:, :2], pairs(channels=2), tmp_path).page


def test_the_mean_is_that_of_the_training_data_by_channel(tmp_path):
    """Also of loaders, read batch by batch. Test targets have mean 0 and 0, those of training 2 and −3."""
    x, y, shift = noise(40, 0, 2), noise(30, 1, 2), torch.tensor([2.0, -3.0])[:, None]
    y = y - y.mean((0, 2), keepdim=True)
    y = y / y.std((0, 2), correction=0, keepdim=True)
    sets = {"train": TensorDataset(x[:30], y + shift), "val": TensorDataset(x[:30], y)}
    loaders = Loaders({name: DataLoader(part, 7) for name, part in sets.items()})
    arrays = ProblemData(**{name: part.tensors for name, part in sets.items()})
    for data in (loaders, arrays):
        rows = table(measure(lambda x: 0 * x, data, tmp_path).page, "By channel:")
        assert [float(row["RMSE / std, mean"]) for row in rows] == pytest.approx([5**0.5, 10**0.5], rel=5e-3)


def test_unknown_points_do_not_count(tmp_path):
    """The model errs by 1 at known points and by 1e6 elsewhere."""
    x = noise(20, 0)
    y = torch.where(torch.arange(32) % 4 == 0, torch.nan, x)
    data = ProblemData(train=(x, y), val=(x, y), masked=True)
    far = torch.where(torch.arange(32) % 4 == 0, 1e6, 1.0)
    (row,) = table(measure(lambda x: x[:, :1] + far, data, tmp_path).page, "By channel:")
    assert row["RMSE"] == "1"


def test_samples_of_zeros_have_no_relative_error(tmp_path):
    data = pairs()
    data.test[1][:5] = 0
    page = measure(lambda x: 1.5 * x, data, tmp_path).page
    assert "5 of 20 samples" in page and "inf" not in page
    (row,) = table(page, "By sample:")
    assert (row["samples"], row["largest"]) == ("15", "0.5")
    data.test[1][:] = 0
    assert measure(lambda x: x, data, tmp_path).page == ""


# Half the resolution


def by_name(page):
    return {row["error"]: row for row in table(page, "channels:")}


def test_errors_on_the_training_data_by_hand(tmp_path):
    x = noise(40, 0)
    data = ProblemData(train=(x, 2 * x), val=(x[:4], x[:4]))
    page = measure(lambda x: 1.5 * x, data, tmp_path).page
    (l2, *_) = table(page, "are means over the channels:")
    assert (l2["model"], l2["model, training data"]) == ("0.5", "0.25")


@pytest.mark.parametrize("grid", [(32,), (8, 12)])
def test_half_the_resolution_by_hand(tmp_path, grid):
    """The model errs by how many points it gets: 1/n of each field."""
    data = pairs(grid=grid)
    names = by_name(measure(lambda x: (1 + 1 / x.shape[-1]) * x, data, tmp_path).page)
    for name in ("l2", "h1", "nrmse"):
        whole, half = float(names[name]["model"]), float(names[name]["model, half resolution"])
        assert (whole, half) == pytest.approx((1 / grid[-1], 2 / grid[-1]), rel=5e-3)


def test_half_the_resolution_takes_every_second_point(tmp_path):
    """Where the prediction is exact, and not between."""
    off = torch.tensor([0.0, 1.0]).repeat(16)
    names = by_name(measure(lambda x: x + (off if x.shape[-1] == 32 else 0), pairs(), tmp_path).page)
    assert float(names["l2"]["model"]) > 0.1 and float(names["l2"]["model, half resolution"]) == 0


def test_the_normalization_is_that_of_training_at_half_the_resolution(tmp_path):
    data = pairs(lambda x: 50 + 9 * x)
    page = measure(lambda x: x, data, tmp_path, data.processor()).page
    assert all(float(row["model, half resolution"]) < 1e-2 for row in by_name(page).values())


def only_32(x):
    if x.shape[-1] != 32:
        raise RuntimeError("32 points")
    return x


@pytest.mark.parametrize(
    ("function", "grid"),
    [(lambda x: x, (31,)), (lambda x: x, (8, 10)), (only_32, (32,)), (FNO((24,), 1, 1, 4), (32,))],
)
def test_no_half_where_the_grid_the_model_or_its_modes_do_not_allow_it(tmp_path, function, grid):
    page = measure(function, pairs(grid=grid), tmp_path).page
    assert "l2" in by_name(page) and "half resolution" not in page


# Other data


def test_complex_fields_have_no_h1(tmp_path):
    data = pairs(lambda x: torch.complex(x, x))
    assert list(by_name(measure(lambda x: torch.complex(x, 1.5 * x), data, tmp_path).page)) == ["l2", "vrmse", "nrmse"]


def test_nothing_is_said_of_predictions_that_are_not_like_the_targets(tmp_path):
    found = measure(lambda x: x[..., :5], pairs(), tmp_path)
    assert (found.page, found.comparison, list(found.findings)) == ("", "", [])


def test_means_of_names_are_those_of_the_metrics(tmp_path):
    x, y = fields(20)
    data = ProblemData(train=(x, y), val=(x, y))
    names = by_name(measure(lambda x: 3 * x, data, tmp_path).page)
    off, truth = (3 * x - y).double().numpy(), y.double().numpy()
    l2 = np.linalg.norm(off, axis=2) / np.linalg.norm(truth, axis=2)
    vrmse = np.sqrt((off**2).mean(2) / (truth.std(2, ddof=1) ** 2 + 1e-7))
    assert float(names["l2"]["model"]) == pytest.approx(l2.mean(), rel=5e-3) == float(names["nrmse"]["model"])
    assert float(names["vrmse"]["model"]) == pytest.approx(vrmse.mean(), rel=5e-3)
