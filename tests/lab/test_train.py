"""``nm.train``: a model and data in; the trained model, its errors and a figure out. The page is computed here once more."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from neuralop.layers.spectral_convolution import SpectralConv
from neuralop.losses import H1Loss, LpLoss
from neuralop.models import FNO
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import neuralop_mup as nm
from neuralop_mup import MupError
from neuralop_mup.errors import Diverged
from neuralop_mup.lab import duration, files, plots, training
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.problems import base
from neuralop_mup.lab.records import WEIGHTS
from neuralop_mup.optim.musoap.optimizer import usual_lr
from support.comparing import differing

TARGET = {"hidden_channels": 8, "n_modes": (8,), "n_layers": 2}
QUICK = {"target": TARGET, "epochs": 3, "batch_size": 8, "progress": False}


def build(in_channels=1, out_channels=1, **size):
    return FNO(in_channels=in_channels, out_channels=out_channels, **size)


def fields(n=40, channels=1, points=32):
    x = torch.randn(n, channels, points, generator=torch.Generator().manual_seed(0)).cumsum(-1)
    return x, 3.0 * x.roll(1, -1) + 1.0


def table(page, what):
    """Cells of the page's table below some words, without its header."""
    lines = page.split(f"{what}\n\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture
def drawn(monkeypatch):
    """What figures of samples are drawn of."""
    seen, draw = [], plots.plot_samples
    monkeypatch.setattr(plots, "plot_samples", lambda samples, path: seen.append(samples) or draw(samples, path))
    return seen


def test_what_is_trained(tmp_path):
    """One run, at the reference size's rate for its steps, as one would write it: 32 samples are 4 batches, 12 steps."""
    trained = nm.train(build, fields(), folder=tmp_path / "s", **QUICK)
    (record,) = trained.results.records
    assert record["metrics"]["steps"] == 12 and record["params"] == trained.params == {"lr": float(f"{usual_lr(12):.3g}")}
    assert (record["size"], record["rule"], record["loss"]) == ("target", "operator-norm", trained.loss)
    ours = nm.summary(nm.parametrize(build(**TARGET)))
    assert str(nm.summary(nm.unwrap(trained.model))).splitlines()[1:] == str(ours).splitlines()[1:]
    small = {**TARGET, "hidden_channels": 4}
    other = nm.train(build, fields(), base=small, lr=0.05, folder=tmp_path / "b", **{**QUICK, "epochs": 1})
    ours = nm.summary(nm.parametrize(build(**TARGET), base=lambda: build(**small), init_mult={"kernel": 0.1}))
    assert str(nm.summary(nm.unwrap(other.model))).splitlines()[1:] == str(ours).splitlines()[1:] and other.lr == 0.05
    width = nm.train(build, fields(), base={"hidden_channels": 4}, lr=0.05, folder=tmp_path / "w", **{**QUICK, "epochs": 1})
    assert width.loss == other.loss and [r["id"] for r in width.results.records] == [r["id"] for r in other.results.records]
    again = nm.load_tuned(tmp_path / "s", build)
    assert torch.equal(again.predict(fields()[0]), trained.predict(fields()[0]))
    assert "nothing is tuned" in trained.report.read_text()


def test_a_channel_that_is_nearly_zero_in_a_sample_is_measured_with_the_others():
    """As one that is zero there: its error is that of 1e-8 of what the channel is elsewhere, and not infinite."""
    y = torch.randn(4, 2, 16)
    y[1, 1] *= 1e-22
    prediction = y + 0.1 * torch.randn_like(y)
    near = base.relative(LpLoss(d=1), prediction, y)
    y[1, 1] = 0
    assert near.isfinite() and torch.allclose(near, base.relative(LpLoss(d=1), prediction, y), rtol=1e-3)
    whole = torch.randint(0, 5, (4, 2, 16))
    assert base.relative(LpLoss(d=1), whole + 0.5, whole) > 0


@pytest.mark.parametrize("loss", ["l2", "h1"])
@pytest.mark.parametrize(("of_x", "of_y"), [(1e-13, 1.0), (1.0, 1e-9), (1.0, 1e-13), (1e20, 1e20), (1e-25, 1e-25)])
def test_the_unit_of_the_fields_changes_nothing(tmp_path, loss, of_x, of_y):
    """At 1e-13 the error was once 15000 times too small, and x nothing but zeros; at 1e20 there was none.

    Times powers of two no number of a training is rounded otherwise, and the relative errors are those of :func:`fields`.
    """
    (x, y), how = fields(), {**QUICK, "epochs": 2, "loss": loss}
    usual = nm.train(build, (x, y), folder=tmp_path / "usual", **how)
    of_x, of_y = (2.0 ** round(math.log2(unit)) for unit in (of_x, of_y))
    other = nm.train(build, (of_x * x, of_y * y), folder=tmp_path / "other", **how)
    assert other.loss == pytest.approx(usual.loss, rel=1e-5)
    assert table(other.report.read_text(), "By sample:") == table(usual.report.read_text(), "By sample:")
    if loss == "l2":
        truth = (of_y * y[usual.split["val"]]).double()
        far = other.predict(of_x * x[usual.split["val"]]).double() - truth
        assert other.loss == pytest.approx(float((far.norm(dim=-1) / truth.norm(dim=-1)).mean()), rel=1e-5)


def test_named_losses_are_neuralops_in_any_unit():
    """A channel in small units once counted for nothing; one that is zero everywhere counts as before."""
    y = fields(channels=2)[1]
    y[:, 1, 0] = 0.0
    zero = torch.where(torch.arange(2)[:, None] == 1, 0.0, y)
    for name, theirs in (("l2", LpLoss(d=1)), ("h1", H1Loss(d=1))):
        ours, units = training.losses_of(name, 1)["data"][1], torch.tensor([1e-13, 1e22])[:, None]
        assert torch.equal(ours(1.1 * y, y, x=y), theirs(1.1 * y, y))
        assert torch.equal(ours(y, zero, x=y), theirs(y, zero))
        assert float(ours(1.1 * y * units, y * units)) == pytest.approx(float(theirs(1.1 * y, y)), rel=1e-5)


def test_the_same_call_resumes_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "EVERY", 0.0)
    whole = nm.train(build, fields(), folder=tmp_path / "whole", **QUICK)
    start = training._Trainer.on_epoch_start

    def stopping(self, epoch):
        start(self, epoch)
        if epoch == 2 and self.start_epoch == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(training._Trainer, "on_epoch_start", stopping)
    with pytest.raises(KeyboardInterrupt, match="the same command resumes"):
        nm.train(build, fields(), folder=tmp_path / "killed", **QUICK)
    assert not (tmp_path / "killed" / "report.md").exists()
    epochs = []
    monkeypatch.setattr(training._Trainer, "on_epoch_start", lambda self, epoch: epochs.append(epoch) or start(self, epoch))
    resumed = nm.train(build, fields(), folder=tmp_path / "killed", **QUICK)
    assert epochs == [2] and resumed.loss == whole.loss and differing(resumed.model, whole.model) == 0
    before = resumed.report.read_text()
    resumed.report.unlink()
    nm.train(build, fields(), folder=tmp_path / "killed", **QUICK)
    assert epochs == [2] and resumed.report.read_text() == before


class Named(TensorDataset):
    def __getitem__(self, index):
        return dict(zip("xy", super().__getitem__(index), strict=True))


def loaders():
    """Of the user's own: 32 shuffled training samples in batches of 8, whose order is the loader's business."""
    x, y = fields()
    order = torch.Generator().manual_seed(3)
    train = DataLoader(Named(x[:32], y[:32]), batch_size=8, shuffle=True, generator=order)
    return {"train": train, "val": DataLoader(Named(x[32:], y[32:]), batch_size=8)}


@pytest.mark.parametrize("data", [fields, loaders])
def test_a_time_is_as_many_epochs_as_fit_in_it(tmp_path, monkeypatch, data):
    """4 batches an epoch. By a clock by which a step takes 5 seconds, 95 of 100 seconds have 19 steps: 4 whole epochs."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(duration, "time", clock)
    step = training._Trainer.train_one_batch

    def slow(self, idx, sample, training_loss):
        clock.now += 5.0
        return step(self, idx, sample, training_loss)

    monkeypatch.setattr(training._Trainer, "train_one_batch", slow)
    timed = {**QUICK, "epochs": "100s", "folder": tmp_path / "s"}
    trained = nm.train(build, data(), **timed)
    (record,) = trained.results.records
    assert record["metrics"]["steps"] == 16 and trained.lr == float(f"{usual_lr(16):.3g}")
    assert "(4 epochs, which fit in 100s)" in trained.report.read_text()
    counted = nm.train(build, data(), **{**QUICK, "epochs": 4, "folder": tmp_path / "c"})
    assert differing(trained.model, counted.model) == 0  # what was timed left nothing behind
    before = clock.now
    assert nm.train(build, data(), **timed).loss == trained.loss and clock.now == before
    (kept,) = (tmp_path / "s").glob("epochs-*.txt")
    kept.write_text("many")
    with pytest.raises(MupError, match=r"epochs-.*\.txt is damaged: it holds 'many'"):
        nm.train(build, data(), **timed)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_page_says_what_one_computes(tmp_path, drawn, channels):
    x, y = fields(channels=channels)

    def made(**size):
        return build(channels, channels, **size)

    trained = nm.train(made, (x, y), folder=tmp_path / "s", **QUICK)
    page, numbers = trained.report.read_text(), trained.split["test"]
    truth = y[numbers].double()
    far = (trained.predict(x[numbers]).double() - truth).square()
    errors = (far.sum((1, 2)) / truth.square().sum((1, 2))).sqrt()
    ((count, middle, low, high, largest),) = table(page, "By sample:")
    assert int(count) == len(numbers) == 4
    expected = np.quantile(errors, (0.5, 0.1, 0.9, 1.0))
    assert [float(v) for v in (middle, low, high, largest)] == pytest.approx(expected.tolist(), rel=6e-3)
    order = errors.argsort(descending=True)
    worst = table(page, "The largest:")
    assert [int(number) for number, _ in worst] == [numbers[i] for i in order]
    assert [float(error) for _, error in worst] == pytest.approx(errors[order].tolist(), rel=6e-3)
    by_channel = torch.stack([(far.sum((0, 2)) / truth.square().sum((0, 2))).sqrt(), far.mean((0, 2)).sqrt()], 1)
    told = [[float(v) for v in row[1:]] for row in table(page, "By channel:")]
    assert np.array(told) == pytest.approx(by_channel.numpy(), rel=6e-3)
    assert "By time" not in page
    # The figure: samples of the test data, in the units of the data.
    assert (tmp_path / "s" / "samples.png").stat().st_size > 10_000 and "](samples.png)" in page
    (samples,) = drawn
    assert {int(re.match(r"sample (\d+)\nerror ", what)[1]) for what in samples} == {numbers[order[2]], numbers[order[0]]}
    for what, (given, right, found) in samples.items():
        number = int(re.match(r"sample (\d+)\n", what)[1])
        assert np.array_equal(given, x[number].double()) and np.array_equal(right, y[number].double())
        assert np.allclose(found, trained.predict(x[number : number + 1])[0], atol=1e-5)


def test_errors_by_time(tmp_path):
    """Each step from the truth, and from the first state on, of the test trajectories."""
    start = torch.randn(20, 32, generator=torch.Generator().manual_seed(0)).cumsum(-1)
    u = torch.stack([start.roll(step, -1) for step in range(5)], 1)
    np.savez(tmp_path / "u.npz", u=u.numpy())
    read = {"y": "u", "time_step": 1}
    trained = nm.train(build, tmp_path / "u.npz", folder=tmp_path / "s", read=read, **QUICK)
    states = u[trained.split["test"]][:, :, None]
    rolled, expected = states[:, 0], []
    for step in range(1, 5):
        rolled = trained.predict(rolled)
        alone = trained.predict(states[:, step - 1])
        norm = states[:, step].double().flatten(1).norm(dim=1)
        far = [(made - states[:, step]).double().flatten(1).norm(dim=1) for made in (alone, rolled)]
        expected.append([step, *((own / norm).mean().item() for own in far)])
    page = trained.report.read_text()
    told = [[float(cell) for cell in row] for row in table(page, "By time, in the mean over trajectories:")]
    assert np.array(told) == pytest.approx(np.array(expected), rel=6e-3)
    assert re.fullmatch(r"[1-4] of trajectory \d+", table(page, "The largest:")[0][0])


def test_without_test_data_the_errors_are_of_the_validation_data_and_loaders_have_a_page_too(tmp_path, drawn):
    x, y = fields(48)
    loaders = {name: DataLoader(TensorDataset(x[part], y[part]), 8) for name, part in PARTS.items()}
    trained = nm.train(build, loaders, folder=tmp_path / "s", **QUICK)
    page = trained.report.read_text()
    assert "errors of the target on the validation data" in page and table(page, "By sample:")[0][0] == "16"
    with torch.no_grad():
        out = trained.model(x[PARTS["val"]])
    errors = (out - y[PARTS["val"]]).flatten(1).norm(dim=1) / y[PARTS["val"]].flatten(1).norm(dim=1)
    assert table(page, "The largest:")[0][0] == str(int(errors.argmax())) and len(drawn) == 1


PARTS = {"train": slice(32), "val": slice(32, None)}


def test_tune_has_the_same_page(tmp_path, drawn):
    base = {"hidden_channels": 4, "n_modes": (4,), "n_layers": 2}
    tuned = nm.tune(build, fields(), base=base, space={"lr": [0.05]}, n_workers=1, folder=tmp_path / "s", **QUICK)
    assert len(drawn) == 1 and "By channel:" in tuned.report.read_text() and (tmp_path / "s" / "samples.png").exists()


@pytest.mark.parametrize("grid", [(32,), (16, 12), (8, 8, 6)])
def test_the_figure_in_each_dimension(tmp_path, grid):
    """Four channels in and two out; complex fields by their moduli."""
    values = np.random.default_rng(0)
    sample = [values.normal(size=(channels, *grid)) for channels in (4, 2, 2)]
    assert plots.plot_samples({"a": sample, "b": [v + 1j for v in sample]}, tmp_path / "a.png").stat().st_size > 10_000


class Failing(FNO):
    """One whose training is no number."""

    def forward(self, x, **kwargs):
        return super().forward(x, **kwargs) * torch.where(torch.tensor(self.training), torch.nan, 1.0)


def failing(**size):
    return Failing(in_channels=1, out_channels=1, **size)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"target": {"hidden_channels": 8}}, "fails at the target"),
        ({"target": {"hidden": 8, "n_modes": (8,)}}, "unexpected keyword argument 'hidden'"),
        ({"target": 8}, "target=8 must be a dict"),
        ({"target": {**TARGET, "n_modes": (64,)}}, "beyond the grid"),
        ({"lr": 0}, "lr"),
        ({"lr": [0.1, 0.2]}, "lr"),
        ({"epochs": None}, "epochs"),
        ({"epochs": "3 hours"}, "epochs is '3 hours'; give the number of epochs of the whole training, or the time"),
        ({"epochs": "0.001s"}, "0.001 seconds are too short a time for epochs: by 20 of its steps one takes about"),
        ({"seed": -1}, "seed"),
        ({"optimizer": lambda model, lr, steps: nm.MuAdam(model, lr=lr)}, r"No learning rates of <lambda> .* give it, lr="),
        ({"base": {"hidden": 4}}, "fails at the base"),
        ({"build": lambda **size: build(1, 2, **size)}, "must be like y"),
        ({"batch_size": 64}, "A batch of 64 is larger"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_made(tmp_path, change, told):
    asked = {"build": build, "data": fields(), **QUICK, **change}
    with pytest.raises(MupError, match=told):
        nm.train(folder=tmp_path / "s", **asked)
    assert not (tmp_path / "s").exists()


class Unsized(nn.Module):
    """It keeps no arguments, so that it cannot be built again at the reference size."""

    def __init__(self, width):
        super().__init__()
        self.into, self.kernel, self.out = nn.Conv1d(1, width, 1), SpectralConv(width, width, (8,)), nn.Conv1d(width, 1, 1)

    def forward(self, x, **_):
        return self.out(self.kernel(self.into(x)))


def test_a_model_without_a_reference_size_is_told_its_base(tmp_path):
    """As nm.train takes it, and it trains with it."""
    how = {**QUICK, "target": {"width": 8}, "folder": tmp_path / "s"}
    with pytest.raises(
        MupError, match=r"at the reference size.* nm\.train\(base=…\) takes it as arguments of Unsized: {'width': 8} with"
    ):
        nm.train(Unsized, fields(), **how)
    assert not (tmp_path / "s").exists()
    assert nm.train(Unsized, fields(), base={"width": 4}, **how).loss < math.inf


def test_a_folder_that_cannot_hold_it_is_told_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(training.Training, "__call__", lambda *_, **__: pytest.fail("it was trained"))
    (tmp_path / "file").touch()
    with pytest.raises(MupError, match="Cannot write to the folder .*file/s: Not a directory"):
        nm.train(build, fields(), folder=tmp_path / "file" / "s", **QUICK)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(MupError, match=r"Cannot write to the folder .*s: weights, states and report need 10 MB, which are"):
        nm.train(build, fields(), folder=tmp_path / "s", **QUICK)


def test_a_training_that_fails_has_a_page_too(tmp_path):
    with pytest.raises(Diverged, match="No run of the target completed with lr 0.274: .*loss is nan"):
        nm.train(failing, fields(), folder=tmp_path / "s", **QUICK)
    assert "## Runs that did not complete" in (tmp_path / "s" / "report.md").read_text()


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x, y = (np.asarray(field) for field in fields())
    np.savez("heat.npz", x=x, y=y)
    line = "train heat.npz --epochs 3 --batch_size 8 --target.hidden_channels 8 --target.n_modes 8 --target.n_layers 2"
    assert main(line.split()) == 0
    out, told = capsys.readouterr()
    assert f"lr       {usual_lr(12):.3g}, for 12 steps; nothing is tuned" in out and "heat-train" in told
    assert "target   width 8, modes 8; " in out and "12 steps (3 epochs), loss l2" in out and "base     the reference" in out
    folder = Path("runs/heat-train")
    assert {"report.md", "samples.png", "study.json"} <= {path.name for path in folder.iterdir()}
    assert len(list(folder.rglob(WEIGHTS))) == 1
    trained = nm.load_tuned(folder)
    assert f"has {trained.loss:.4g} as its validation loss" in out
    page = (folder / "report.md").read_text()
    before = trained.predict(torch.from_numpy(x[:3]))
    assert main(line.split()) == 0 and (folder / "report.md").read_text() == page
    assert torch.equal(nm.load_tuned(folder).predict(torch.from_numpy(x[:3])), before)
    assert main([*line.split(), "--lr", "0.05", "--optimizer", "adam", "--folder", "adam"]) == 0
    assert nm.load_tuned("adam").lr == 0.05
    assert main([*line.split(), "--base.hidden_channels", "16", "--folder", "base"]) == 0
    assert "base     width 16, modes 8" in capsys.readouterr().out


def test_steps_are_shown(tmp_path, capsys):
    nm.train(build, fields(), folder=tmp_path / "s", **{**QUICK, "progress": True})
    assert "/12 [" in capsys.readouterr().err
