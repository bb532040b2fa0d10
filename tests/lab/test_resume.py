"""A run that is stopped between epochs and resumed gives what an uninterrupted run gives."""

import sys

import pytest
import torch

from neuralop_mup.lab import files, training
from neuralop_mup.lab.settings import OPTIMIZERS
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


@pytest.fixture
def every_epoch(monkeypatch, tmp_path):
    """The folder of a run, which keeps its state after every epoch."""
    monkeypatch.setattr(files, "CHECKPOINT_INTERVAL", 0.0)
    return tmp_path


def train_until(monkeypatch, epoch, folder, config=CONFIG):
    """Stop a run when an epoch begins; its state is kept in the folder."""
    start = training._Trainer.on_epoch_start

    def stopping(self, number):
        start(self, number)
        if number == epoch:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training._Trainer, "on_epoch_start", stopping)
        with pytest.raises(KeyboardInterrupt):
            train_run(config, place=folder)


def timeless(record):
    """A record without what differs between two runs of the same configuration."""
    return {k: v for k, v in record.items() if k != "seconds"}


@pytest.mark.parametrize(("optimizer", "schedule"), [*((name, "cosine") for name in OPTIMIZERS), ("adam", "halve:2")])
def test_a_resumed_run_gives_what_an_uninterrupted_run_gives(every_epoch, monkeypatch, optimizer, schedule):
    """Also without loading any code from the checkpoint."""
    config = {**CONFIG, "optimizer": optimizer, "schedule": schedule}
    whole = train_run(config)
    train_until(monkeypatch, 3, every_epoch, config)
    assert [path.name for path in every_epoch.iterdir()] == ["checkpoint.pt"]
    epochs, start = [], training._Trainer.on_epoch_start
    monkeypatch.setattr(training._Trainer, "on_epoch_start", lambda self, n: epochs.append(n) or start(self, n))
    assert timeless(train_run(config, place=every_epoch)) == timeless(whole) and epochs == [3, 4]
    # Killed after its last epoch, it is measured again and not trained.
    assert timeless(train_run(config, place=every_epoch)) == timeless(whole) and epochs == [3, 4, 4]


def test_a_damaged_checkpoint_is_named_and_not_used(every_epoch, monkeypatch, caplog):
    train_until(monkeypatch, 2, every_epoch)
    (path,) = every_epoch.iterdir()
    path.write_bytes(path.read_bytes()[:1000])
    record = train_run(CONFIG, place=every_epoch)
    assert timeless(record) == timeless(train_run(CONFIG)) and caplog.text.count(f"{path} cannot be read") == 1


NOISE = 0.0


def noisy(y_pred, y, **_):
    """A loss that a global number changes, only in training."""
    return (y_pred - y + NOISE * torch.randn_like(y) * y_pred.requires_grad).square().flatten(1).mean(1).sum()


@pytest.mark.parametrize("change", [{"init_mult.readout": 3.0}, {}], ids=["settings", "code"])
def test_a_checkpoint_of_other_code_or_settings_is_not_used(every_epoch, monkeypatch, change, caplog):
    config = {**CONFIG, "loss": noisy}
    train_until(monkeypatch, 3, every_epoch, config)
    monkeypatch.setattr(sys.modules[__name__], "NOISE", 0.0 if change else 2.0)
    fresh = train_run({**config, **change})
    assert not caplog.records
    assert timeless(train_run({**config, **change}, place=every_epoch)) == timeless(fresh)
    assert caplog.text.count("was written with different code") == len(caplog.records) == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("PytorchStreamWriter failed")])
def test_a_full_disk_does_not_fail_the_run(every_epoch, monkeypatch, error, caplog):
    """Otherwise a sweep would take a full disk for a learning rate that does not train."""

    def full(state, path):
        path.write_bytes(b"cut off")
        raise error

    monkeypatch.setattr("torch.save", full)
    record = train_run(CONFIG, place=every_epoch)
    assert timeless(record) == timeless(train_run(CONFIG)) and not list(every_epoch.iterdir())
    assert "cannot be written" in caplog.text
