"""A run that is stopped between epochs and started again is the run that was never stopped."""

import sys

import pytest
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab import files, training
from support.training import train_run

CONFIG = {
    "problem": "burgers",
    "problem_args": {"n_train": 12, "n_val": 4, "n_test": 4, "grid": 32, "viscosity": 0.1},
    "model": {"n_modes": (8,), "hidden_channels": 8, "n_layers": 2},
    "base": {"n_modes": (4,), "hidden_channels": 4},
    "epochs": 5,
    "batch_size": 5,
    "lr": 0.01,
}


class Stopped(Exception):
    pass


@pytest.fixture
def every_epoch(monkeypatch, tmp_path):
    """The folder of a run, which keeps its state after every epoch."""
    monkeypatch.setattr(files, "EVERY", 0.0)
    return tmp_path


def stopped(monkeypatch, epoch, folder, config=None):
    """Train until an epoch begins."""
    with monkeypatch.context() as patch:
        stop_before(patch, epoch)
        with pytest.raises(Stopped):
            train_run(config or CONFIG, place=folder)


def timeless(record):
    """A record without what differs between two runs of the same configuration."""
    return {k: v for k, v in record.items() if k not in ("seconds", "notes")}


def stop_before(monkeypatch, epoch):
    start = training._Trainer.on_epoch_start

    def stopping(self, number):
        start(self, number)
        if number == epoch:
            raise Stopped

    monkeypatch.setattr(training._Trainer, "on_epoch_start", stopping)


@pytest.mark.parametrize("schedule", ["cosine", "halve:2", "constant"])
def test_a_stopped_run_ends_where_an_undisturbed_one_does(every_epoch, monkeypatch, schedule):
    config = {**CONFIG, "schedule": schedule}
    whole = train_run(config)
    stopped(monkeypatch, 3, every_epoch, config)
    assert [path.name for path in every_epoch.iterdir()] == ["checkpoint.pt"]
    epochs = []
    start = training._Trainer.on_epoch_start
    monkeypatch.setattr(
        training._Trainer, "on_epoch_start", lambda self, number: (epochs.append(number), start(self, number))
    )
    resumed = train_run(config, place=every_epoch)
    assert epochs == [3, 4] and timeless(resumed) == timeless(whole)
    # A run that was killed after its last epoch is measured again, not trained.
    assert timeless(train_run(config, place=every_epoch)) == timeless(whole) and epochs == [3, 4, 4]


def test_a_damaged_checkpoint_is_named_and_the_run_begins_anew(every_epoch, monkeypatch):
    whole = train_run(CONFIG)
    stopped(monkeypatch, 2, every_epoch)
    (path,) = every_epoch.iterdir()
    path.write_bytes(path.read_bytes()[:1000])
    record = train_run(CONFIG, place=every_epoch)
    assert timeless(record) == timeless(whole)
    (note,) = record["notes"]
    assert str(path) in note and "cannot be read" in note and "begins anew" in note


NOISE = 0.0


def noisy(y_pred, y, **_):
    """A loss that differs in training alone, by a global number."""
    return (y_pred - y + NOISE * torch.randn_like(y) * y_pred.requires_grad).square().flatten(1).mean(1).sum()


@pytest.mark.parametrize("change", [{"init_mult.readout": 3.0}, {}], ids=["settings", "code"])
def test_a_checkpoint_of_changed_code_is_not_gone_on_with(every_epoch, monkeypatch, change):
    """The same configuration whose first loss may be the same: edited code, other settings."""
    config = {**CONFIG, "loss": noisy}
    stopped(monkeypatch, 3, every_epoch, config)
    monkeypatch.setattr(sys.modules[__name__], "NOISE", 0.0 if change else 2.0)
    fresh, record = (train_run({**config, **change}, place=place) for place in (None, every_epoch))
    assert timeless(record) == timeless(fresh)
    assert "is of other code, data or settings: its run begins anew" in record["notes"][0]


def test_checkpoints_are_no_more_frequent_than_asked(every_epoch, monkeypatch):
    monkeypatch.setattr(files, "EVERY", 1e9)
    stopped(monkeypatch, 3, every_epoch)
    assert not list(every_epoch.iterdir())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("PytorchStreamWriter failed")])
def test_a_full_disk_is_no_failure_of_the_run(every_epoch, monkeypatch, error):
    """Else a sweep would take a full disk for a learning rate that does not train."""

    def full(state, path):
        path.write_bytes(b"cut off")
        raise error

    whole = train_run(CONFIG)
    monkeypatch.setattr("torch.save", full)
    record = train_run(CONFIG, place=every_epoch)
    assert timeless(record) == timeless(whole) and not list(every_epoch.iterdir())
    assert all("cannot be written" in note for note in record["notes"]) and record["notes"]


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(MupError, match="finds no CUDA device"):
        train_run({**CONFIG, "device": "cuda"})
