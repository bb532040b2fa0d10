"""``nm.train``: a model and data in; a trained model and a page of its errors out, which are recomputed here."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from neuralop.losses import H1Loss, LpLoss
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup import MupError
from neuralop_mup.errors import Diverged
from neuralop_mup.lab import checks, files, loss, training, tuning
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.plots import plot_samples
from neuralop_mup.lab.records import Records
from neuralop_mup.optim.musoap.optimizer import default_lr
from support.comparing import differing
from support.errors import refused
from support.studies import TARGET, build, fields, loaders, no_figures, relative_error, save_pair  # noqa: F401


def quick_train(folder, data=None, **more):
    """Three epochs of four batches of 8."""
    how = {"build": build, "target": TARGET, "epochs": 3, "batch_size": 8, "progress": False, **more}
    return nm.train(how.pop("build"), fields() if data is None else data, folder=folder, **how)


def table(page, what):
    """The cells of the page's table below some words, without its header."""
    lines = page.split(f"{what}\n\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def numbers(page, what, first=0):
    return np.array([[float(cell) for cell in row[first:]] for row in table(page, what)])


def plan_rows(model):
    return str(nm.summary(nm.unwrap(model))).splitlines()[1:]


def test_one_run_at_the_usual_learning_rate_for_its_steps(tmp_path):
    trained = quick_train(tmp_path / "s")
    (record,) = trained.results.records
    assert record["metrics"]["steps"] == 12 and record["params"] == trained.params == {"lr": float(f"{default_lr(12):.3g}")}
    assert (record["size"], record["rule"], record["loss"]) == ("target", "operator-norm", trained.loss)
    assert plan_rows(trained.model) == plan_rows(nm.parametrize(build(**TARGET)))
    again = nm.load_tuned(tmp_path / "s", build)
    assert torch.equal(again.predict(fields()[0]), trained.predict(fields()[0]))


def test_base_may_have_only_what_differs(tmp_path):
    small = {**TARGET, "hidden_channels": 4}
    trained = quick_train(tmp_path / "b", base=small, lr=0.05, epochs=1)
    ours = nm.parametrize(build(**TARGET), base=lambda: build(**small), init_mult={"kernel": 0.1})
    assert plan_rows(trained.model) == plan_rows(ours) and trained.lr == 0.05
    width = quick_train(tmp_path / "w", base={"hidden_channels": 4}, lr=0.05, epochs=1)
    assert [r["id"] for r in width.results.records] == [r["id"] for r in trained.results.records]


def test_a_channel_that_is_nearly_zero_in_a_sample_has_a_finite_error():
    """It is measured like one that is zero there, relative to 1e-8 of the channel's size elsewhere."""
    y = torch.randn(4, 2, 16)
    y[1, 1] *= 1e-22
    prediction = y + 0.1 * torch.randn_like(y)
    near = loss.relative(LpLoss(d=1), prediction, y)
    y[1, 1] = 0
    assert near.isfinite() and torch.allclose(near, loss.relative(LpLoss(d=1), prediction, y), rtol=1e-3)


@pytest.mark.parametrize("loss", ["l2", "h1"])
def test_the_unit_of_the_fields_changes_nothing(tmp_path, loss):
    """At 1e-13 the error was once 15000 times too small, and x only zeros; at 1e20 there was no number.

    The units are powers of two, so that rounding is the same.
    """
    (x, y), how = fields(), {"epochs": 1, "loss": loss}
    usual = quick_train(tmp_path / "usual", (x, y), **how)
    for exponents in ((-43, 0), (0, -30), (0, -43), (66, 66), (-83, -83)):
        of_x, of_y = (2.0**exponent for exponent in exponents)
        other = quick_train(tmp_path / f"{exponents}", (of_x * x, of_y * y), **how)
        assert other.loss == pytest.approx(usual.loss, rel=1e-5)
        assert table(other.report.read_text(), "By sample:") == table(usual.report.read_text(), "By sample:")
        assert torch.allclose(other.predict(of_x * x) / of_y, usual.predict(x), atol=1e-4)


def test_named_losses_are_neuralops_in_any_unit():
    """A channel in small units once counted for nothing, and one that is zero everywhere for more than all others."""
    y = fields(channels=2)[1]
    y[:, 1, 0] = 0.0
    zero = torch.where(torch.arange(2)[:, None] == 1, 0.0, y)
    for name, theirs in (("l2", LpLoss(d=1)), ("h1", H1Loss(d=1))):
        ours, units = loss.losses_of(name, 1)["data"][1], torch.tensor([1e-13, 1e22])[:, None]
        assert torch.equal(ours(1.1 * y, y, x=y), theirs(1.1 * y, y))
        ones = torch.where(torch.arange(2)[:, None] == 1, 1.0, zero)
        assert torch.allclose(ours(y, zero, x=y), theirs(y + (ones - zero), ones))
        assert float(ours(1.1 * y * units, y * units)) == pytest.approx(float(theirs(1.1 * y, y)), rel=1e-5)


def test_the_same_call_resumes_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHECKPOINT_INTERVAL", 0.0)
    whole = quick_train(tmp_path / "whole")
    epochs, start, killed = [], training._Trainer.on_epoch_start, [True]

    def starting(self, epoch):
        start(self, epoch)
        epochs.append(epoch)
        if epoch == 2 and killed:
            raise KeyboardInterrupt

    monkeypatch.setattr(training._Trainer, "on_epoch_start", starting)
    with pytest.raises(KeyboardInterrupt, match=str(tmp_path / "s")):
        quick_train(tmp_path / "s")
    assert not (tmp_path / "s" / "report.md").exists()
    killed.clear()
    resumed = quick_train(tmp_path / "s")
    assert epochs == [0, 1, 2, 2] and resumed.loss == whole.loss and differing(resumed.model, whole.model) == 0


@pytest.mark.parametrize(
    ("data", "optimizer", "is_exact"),
    [
        ("heat.npz", "adam", True),
        (Path("heat.npz"), "adam", True),
        ("heat.npz", nm.MuSOAP, False),
        (fields(), "adam", False),
        (fields(), nm.MuSOAP, False),
    ],
)
def test_the_page_has_a_call_that_can_be_pasted(tmp_path, monkeypatch, data, optimizer, is_exact):
    """An argument that cannot be written exactly, such as an array, is named."""
    monkeypatch.chdir(tmp_path)
    save_pair(fields(), "heat.npz")
    page = quick_train(Path("runs/s"), data, optimizer=optimizer).report.read_text()
    again = page.split("## Reproduce")[1]
    if is_exact:
        Path("runs/s/report.md").unlink()
        exec(again.split("```")[1].removeprefix("python"), {"nm": nm, "build": build})
        assert Path("runs/s/report.md").read_text() == page and len(list(Path("runs/s/workspace").iterdir())) == 1
    else:
        given = {"data": fields(), "optimizer": nm.MuSOAP}
        exec(again.split("```")[1].removeprefix("python"), {"nm": nm, "build": build, **given})
        assert len(list(Path("runs/s/workspace").iterdir())) == 1
        named = [name for name in given if f"{name}={name}" in again]
        assert f"Pass the same values as before for these arguments: {', '.join(['build', *named])}." in again


def test_another_experiment_in_the_folder_is_named(tmp_path):
    """Its report was once replaced without a word. Repeating a call restores its report."""
    x, y = fields()
    first, *others = {}, {"epochs": 2}, {"data": (x, 2 * y)}, {"loss": "h1"}
    page = quick_train(tmp_path / "s", epochs=1).report.read_text()
    for more in (first, *others, first):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trained = quick_train(tmp_path / "s", **{"epochs": 1, **more})
        replaced = [str(w.message) for w in caught if "folder=" in str(w.message)]
        assert len(replaced) == (trained.report.read_text() != page) and all(
            str(tmp_path / "s") in text for text in replaced
        )
        page = trained.report.read_text()


def test_no_other_command_trains_in_the_folder_until_the_target_is_read(tmp_path, monkeypatch):
    """Otherwise the call would return the other command's target."""
    quick_train(tmp_path / "s", target={**TARGET, "hidden_channels": 12})
    load, seen = tuning.load_target, []

    def loading(*arguments):
        with refused(str(tmp_path / "s")):
            quick_train(tmp_path / "s", target={**TARGET, "hidden_channels": 12})
        seen.append(1)
        return load(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "load_target", loading)
        assert quick_train(tmp_path / "s").model.hidden_channels == TARGET["hidden_channels"]
    assert seen == [1]
    with Records(tmp_path / "s").held():
        pass


def test_a_run_of_another_release_is_trained_again_and_shown(tmp_path, monkeypatch, caplog):
    quick_train(tmp_path / "s", epochs=1)
    for version in ("9.9.0", "9.9.1"):
        monkeypatch.setattr(torch, "__version__", version)
        caplog.clear()
        quick_train(tmp_path / "s", epochs=1)
        assert caplog.text.count("1 saved run of ") == (version == "9.9.0")
    assert len(list((tmp_path / "s" / "workspace").iterdir())) == 2


@pytest.mark.parametrize("own", [lambda **size: build(**size), build])
def test_the_lines_that_load_a_model_can_be_pasted(tmp_path, own):
    """Also for a lambda, which has no name."""
    page = quick_train(tmp_path / "s", build=own).report.read_text()
    lines = page.split("```python\n")[1].split("```")[0]
    exec(lines, names := {"build": own, "x": fields()[0]})
    assert names["prediction"].shape == (40, 1, 32)
    assert "<lambda>" not in page.split("## Reproduce")[1]
    with refused(f"nm.load_tuned('{tmp_path / 's'}',build)"):
        nm.load_tuned(tmp_path / "s")


# The page


def test_errors_on_the_page(tmp_path):
    x, y = fields(channels=3)
    trained = quick_train(tmp_path / "s", (x, y), build=lambda **size: build(3, 3, **size))
    page, test = trained.report.read_text(), trained.split["test"]
    assert page.startswith("# FNO on the given data\n")
    truth = y[test].double()
    far = (trained.predict(x[test]).double() - truth).square()
    loss = (far.sum(2) / truth.square().sum(2)).sqrt().sum(1).mean()
    on_both = f"{trained.loss:.3g} on the validation data and {loss:.3g} on the test data"
    assert f"the relative L2 error summed over 3 channels is {on_both}" in page
    assert "of all channels together" in page and "L2 error of a channel" in page and on_both in repr(trained)
    errors = (far.sum((1, 2)) / truth.square().sum((1, 2))).sqrt()
    quantiles = np.quantile(errors, (0.5, 0.1, 0.9, 1.0))
    assert numbers(page, "By sample:") == pytest.approx(np.array([[4, *quantiles]]), rel=6e-3)
    order = errors.argsort(descending=True)
    largest = np.stack([np.array(test)[order], errors[order]], 1)
    assert numbers(page, "Largest errors:") == pytest.approx(largest, rel=6e-3)
    mean, std = y[trained.split["train"]].double().mean((0, 2), keepdim=True), truth.std((0, 2), correction=0)
    rmse = [far.mean((0, 2)).sqrt(), (mean - truth).square().mean((0, 2)).sqrt()]
    size = truth.square().mean((0, 2)).sqrt()
    by_channel = torch.stack([*(error / size for error in rmse), *(error / std for error in rmse), rmse[0]], 1)
    assert numbers(page, "By channel:", first=1) == pytest.approx(by_channel.numpy(), rel=6e-3)


def test_errors_by_time(tmp_path):
    """Of one step from the true state, and of a rollout from the first state, over the test trajectories."""
    start = fields(20)[0][:, 0]
    u = torch.stack([start.roll(step, -1) for step in range(5)], 1)
    np.savez(tmp_path / "u.npz", u=u.numpy())
    trained = quick_train(tmp_path / "s", tmp_path / "u.npz", read={"y": "u", "time_step": 1, "dims": "sample time x"})
    states = u[trained.split["test"]][:, :, None].double()
    rolled, expected = states[:, 0], []
    for step in range(1, 5):
        rolled = trained.predict(rolled).double()
        single = trained.predict(states[:, step - 1]).double()
        made = single, rolled, states[:, 0]
        expected.append([step, *(relative_error(each, states[:, step]) for each in made)])
    page = trained.report.read_text()
    assert numbers(page, "By time step, averaged over the trajectories:") == pytest.approx(np.array(expected), rel=6e-3)


def test_without_test_data_the_page_has_errors_on_the_validation_data(tmp_path):
    trained = quick_train(tmp_path / "s", loaders())
    x, y = fields(8, 1)
    with torch.no_grad():
        errors = (trained.model(x) - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)
    page = trained.report.read_text()
    assert "validation data" in page and table(page, "By sample:")[0][0] == "8"
    assert table(page, "Largest errors:")[0][0] == str(int(errors.argmax()))


@pytest.mark.parametrize("grid", [(32,), (16, 12), (8, 8, 6)])
def test_the_figure_in_each_dimension(tmp_path, grid):
    """Four channels in and two out; complex fields too."""
    values = np.random.default_rng(0)
    sample = [values.normal(size=(channels, *grid)) for channels in (4, 2, 2)]
    assert plot_samples({"a": sample, "b": [v + 1j for v in sample]}, tmp_path / "a.png").stat().st_size > 10_000


# Errors


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"target": {"hidden_channels": 8}}, "target"),
        ({"target": {**TARGET, "n_modes": (64,)}}, "n_modes.*64|64.*n_modes"),
        ({"lr": 0}, "lr"),
        ({"epochs": "3h"}, "epochs.*'3h'"),
        ({"base": {"hidden": 4}}, "base: .*'hidden'"),
    ],
)
def test_what_cannot_work_is_refused_before_training(tmp_path, change, names):
    with pytest.raises(MupError, match=names):
        quick_train(tmp_path / "s", **change)
    assert not (tmp_path / "s").exists()


def test_a_folder_without_room_is_an_error_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(training.Training, "__call__", lambda *_, **__: pytest.fail("it was trained"))
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_100_000))
    with pytest.raises(MupError, match=r"[2-9]\.\d MB"):
        quick_train(tmp_path / "s", target={"hidden_channels": 64, "n_modes": (8,)})


def test_a_small_model_needs_little_room(tmp_path, monkeypatch):
    """10 MB once, whatever its size."""
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_500_000))
    quick_train(tmp_path / "s", epochs=1)
    assert sum(path.stat().st_size for path in (tmp_path / "s").rglob("*")) < 500_000


def not_a_number(y_pred, y, **_):
    """A loss that is NaN in training."""
    return (y_pred - y).square().mean((1, 2)).sum() * (math.nan if y_pred.requires_grad else 1)


def test_a_run_that_fails_has_a_page(tmp_path):
    with pytest.raises(Diverged, match="0.274.* nan"):
        quick_train(tmp_path / "s", loss=not_a_number)
    assert "loss is nan" in (tmp_path / "s" / "report.md").read_text()


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x, y = fields()
    save_pair((x, y), "heat.npz")
    line = "train heat.npz --epochs 3 --batch_size 8 --target.hidden_channels 8 --target.n_modes 8 --target.n_layers 2"
    assert main(line.split()) == 0
    out, progress = capsys.readouterr()
    assert f"{default_lr(12):.3g}, for 12 steps" in out and "/12 [" in progress
    folder = Path("runs/heat-train")
    assert f"```bash\nneuralop-mup {line}\n```" in (folder / "report.md").read_text()
    trained = nm.load_tuned(folder)
    own = trained.split["val"]
    assert relative_error(trained.predict(x[own]), y[own]) == pytest.approx(trained.loss, rel=1e-4)
    model = eval(repr(trained).splitlines()[-1], {"nm": nm, "FNO": FNO})
    assert plan_rows(model) == plan_rows(trained.model) and f"{trained.loss:.4g}" in out
    assert main(f"{line} --lr 0.05 --optimizer adam --base.hidden_channels 16 --folder adam".split()) == 0
    assert nm.load_tuned("adam").lr == 0.05 and "base     width 16, modes 8" in capsys.readouterr().out


def test_an_odd_grid_in_two_dimensions_is_named_by_every_step(tmp_path, capsys, monkeypatch):
    """neuraloperator 2.0.0 is wrong on it, whatever the grid of training was."""
    monkeypatch.setattr(checks, "versions", lambda: {"neuraloperator": "2.0.0"})

    def in_2d(**size):
        return FNO(in_channels=1, out_channels=1, n_layers=1, **size)

    x = torch.randn(20, 1, 8, 8)
    target = {"hidden_channels": 4, "n_modes": (4, 4)}
    trained = quick_train(tmp_path / "t", (x, x), build=in_2d, target=target, epochs=1)
    with pytest.warns(UserWarning, match="odd number of points"):
        trained.predict(torch.randn(2, 1, 9, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained.predict(torch.randn(2, 1, 16, 8))
    path = save_pair((x[..., 1:], x[..., 1:]), tmp_path / "odd.npz")
    assert main(["data", str(path)]) == 0
    assert "odd number of points" in capsys.readouterr().out
