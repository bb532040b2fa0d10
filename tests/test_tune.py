"""``nm.tune``: a model and data of the user's own, in each form that data may have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from neuralop.models import FNO, TFNO
from torch.utils.data import DataLoader, TensorDataset

import neuralop_mup as nm

BASE, TARGET = {"hidden_channels": 4, "n_modes": (4,)}, {"hidden_channels": 8, "n_modes": (8,)}
QUICK = {"epochs": 2, "batch_size": 8, "seeds": (0,), "space": {"lr": [0.005, 0.02]}, "progress": False, "n_workers": 1}


def build(**size):
    return FNO(in_channels=1, out_channels=1, n_layers=2, **size)


def fields(n=32, seed=0):
    x = torch.randn(n, 1, 32, generator=torch.Generator().manual_seed(seed)).cumsum(-1)
    return x, 3.0 * x.roll(1, -1) + 1.0


def loaders():
    """Called in each worker."""
    return {k: DataLoader(TensorDataset(*fields(n, i)), 8) for i, (k, n) in enumerate((("train", 32), ("val", 8)))}


def mean_square(y_pred, y, **_):
    return (y_pred - y).square().mean(dim=(1, 2)).sum()


def test_a_model_and_tensors_give_a_trained_target_and_the_same_call_resumes(tmp_path):
    data = {"train": fields(), "val": fields(8, 1), "test": fields(8, 2)}
    tuned = nm.tune(build, data, base=BASE, target=TARGET, folder=tmp_path / "s", **QUICK)
    assert tuned.lr in (0.005, 0.02) and tuned.params == {"lr": tuned.lr} and tuned.report.exists()
    assert (tmp_path / "s" / "report.html").exists() and nm.is_parametrized(tuned.model)
    assert tuned.model.fno_blocks.convs[0].weight.shape[0] == 8 and not tuned.model.training
    rows = {r["rule"]: r for r in tuned.results.summary() if r["size"] == "target"}
    assert set(rows) == {"operator-norm", "standard"} and rows["operator-norm"]["transferred_loss"] == tuned.loss
    assert rows["operator-norm"]["transferred_test"] > 0
    # The weights are those whose loss is told: relative L2 of fields in their own units.
    from neuralop_mup.problems import ProblemData

    processor = ProblemData(data["train"], data["val"], data["test"]).processor()
    processor.eval()
    x, y = data["val"]
    with torch.no_grad():
        batch = processor.preprocess({"x": x, "y": y})
        prediction, _ = processor.postprocess(tuned.model(batch["x"]), batch)
    error = ((prediction - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean()
    assert error.item() == pytest.approx(tuned.loss, rel=1e-4)
    again = nm.tune(build, data, base=BASE, target=TARGET, folder=tmp_path / "s", **QUICK)
    assert again.results.records == tuned.results.records
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), tuned.model.parameters(), strict=True))


@pytest.mark.parametrize("form", ["file", "loaders", "datasets", "function"])
def test_forms_of_data(tmp_path, form):
    x, y = fields(40)
    np.savez(tmp_path / "heat.npz", x=x.numpy(), y=y.numpy())
    data = {
        "file": tmp_path / "heat.npz",
        "loaders": tuple(loaders().values()),
        "datasets": (TensorDataset(*fields()), TensorDataset(*fields(8, 1))),
        "function": loaders,
    }[form]
    if form == "datasets":
        data = tuple(TensorDatasetOfDicts(d) for d in data)
    tuned = nm.tune(build, data, base=BASE, target=TARGET, folder=tmp_path / "s", compare=(), **QUICK)
    assert {r["rule"] for r in tuned.results.records} == {"operator-norm"} and np.isfinite(tuned.loss)
    assert ("heat" in tuned.report.read_text().splitlines()[0]) == (form == "file")


class TensorDatasetOfDicts(torch.utils.data.Dataset):
    """As neuralop's: a sample is a dict."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return dict(zip("xy", self.pairs[index], strict=True))


def test_masters_losses_and_workers(tmp_path):
    quick = {**QUICK, "space": {"lr": [0.01], "lr_mult.spectral": [1.0, 4.0]}, "n_workers": 2}
    losses = {"mse": mean_square, "sharp": (0.1, mean_square)}
    tuned = nm.tune(build, loaders, base=BASE, target=TARGET, folder=tmp_path / "s", loss=losses, optimizer="adamw", **quick)
    assert set(tuned.params) == {"lr", "lr_mult.spectral"} and tuned.lr == 0.01
    done = tuned.results.records[0]["metrics"]
    assert {"loss", "sharp_loss"} <= set(done) and done["sharp_loss"] == pytest.approx(done["loss"])


def test_another_architecture(tmp_path):
    def tucker(**size):
        return TFNO(in_channels=1, out_channels=1, n_layers=2, factorization="tucker", rank=0.5, **size)

    tuned = nm.tune(tucker, loaders, base=BASE, target=TARGET, folder=tmp_path / "s", rule="none", **QUICK)
    assert type(tuned.model) is TFNO and np.isfinite(tuned.loss)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"base": TARGET, "target": BASE}, "tuning the base saves nothing"),
        ({"base": 3}, "must be a dict"),
        ({"base": {"width": 3}}, r"build\(\*\*{'width': 3}\) fails at the base"),
        ({"data": 3}, "data is a int; give the path"),
        ({"data": (loaders,)}, "data is a tuple; give"),
        ({"data": "nowhere.npz"}, "There is no file nowhere.npz"),
        ({"loss": "l3"}, "no loss 'l3'"),
        ({"loss": 3}, "loss=3 must be"),
        ({"optimizer": "adm"}, "'adam"),
        ({"epoch": 3}, "no argument 'epoch'"),
        ({"rule": "log-mods"}, "'log-modes'"),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_trained(tmp_path, change, told):
    arguments = {"data": loaders, "base": BASE, "target": TARGET, **QUICK, **change}
    with pytest.raises(nm.MupError, match=told):
        nm.tune(build, arguments.pop("data"), folder=tmp_path / "s", **arguments)
    assert not (tmp_path / "s").exists()
