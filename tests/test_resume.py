"""A run that is stopped between epochs and started again is the run that was never stopped."""

from dataclasses import asdict

import pytest

from neuralop_mup.errors import MupError
from neuralop_mup.experiments import training
from neuralop_mup.experiments.run_state import RunState
from neuralop_mup.experiments.settings import Settings

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
    monkeypatch.setenv("NEURALOP_MUP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(training, "RunState", lambda folder, config: RunState(folder, config, every=0.0))
    return tmp_path / "checkpoints"


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
    whole = training.train_run(config)
    with monkeypatch.context() as patch:
        stop_before(patch, 3)
        with pytest.raises(Stopped):
            training.train_run(config, checkpoints=every_epoch)
    assert len(list(every_epoch.iterdir())) == 1
    epochs = []
    start = training._Trainer.on_epoch_start
    monkeypatch.setattr(
        training._Trainer, "on_epoch_start", lambda self, number: (epochs.append(number), start(self, number))
    )
    resumed = training.train_run(config, checkpoints=every_epoch)
    assert epochs == [3, 4]
    assert {**resumed, "seconds": 0} == {**whole, "seconds": 0}
    assert not list(every_epoch.iterdir())


def test_another_configuration_starts_from_the_beginning(every_epoch, monkeypatch):
    with monkeypatch.context() as patch:
        stop_before(patch, 3)
        with pytest.raises(Stopped):
            training.train_run(CONFIG, checkpoints=every_epoch)
    other = {**CONFIG, "lr": 0.02}
    fresh, beside = training.train_run(other), training.train_run(other, checkpoints=every_epoch)
    assert beside["loss"] == fresh["loss"]


def test_a_damaged_checkpoint_is_named(every_epoch, monkeypatch):
    with monkeypatch.context() as patch:
        stop_before(patch, 2)
        with pytest.raises(Stopped):
            training.train_run(CONFIG, checkpoints=every_epoch)
    (path,) = every_epoch.iterdir()
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(MupError, match=r"cannot be read .*; remove it"):
        training.train_run(CONFIG, checkpoints=every_epoch)


def test_checkpoints_are_no_more_frequent_than_asked(every_epoch, monkeypatch):
    monkeypatch.setattr(training, "RunState", lambda folder, config: RunState(folder, config, every=1e9))
    with monkeypatch.context() as patch:
        stop_before(patch, 3)
        with pytest.raises(Stopped):
            training.train_run(CONFIG, checkpoints=every_epoch)
    assert not every_epoch.exists()


def test_divergence_is_told_at_its_step(every_epoch):
    with pytest.raises(MupError, match=r"Training diverged: the loss is (nan|inf) at step \d+ of epoch \d+.*lower lr"):
        training.train_run({**CONFIG, "lr": 1e30})


def test_nothing_stays_of_a_run_that_ended(every_epoch, monkeypatch):
    """A checkpoint of a large kernel takes gigabytes: neither a divergence nor a kill while saving may leave one."""
    run, epoch = RunState(every_epoch, asdict(Settings.of(CONFIG))), training._Trainer.train_one_batch
    every_epoch.mkdir()
    run.path.with_name(f".{run.path.name}.0.part").write_bytes(b"cut off")
    training.train_run(CONFIG, checkpoints=every_epoch)
    assert not list(every_epoch.iterdir())

    def diverging(self, idx, sample, loss):
        assert list(every_epoch.iterdir())  # saved before the epoch
        return epoch(self, idx, sample, (lambda *_, **__: loss(*_, **__) * float("nan")) if self.epoch == 2 else loss)

    monkeypatch.setattr(training._Trainer, "train_one_batch", diverging)
    with pytest.raises(MupError, match="Training diverged"):
        training.train_run(CONFIG, checkpoints=every_epoch)
    assert not list(every_epoch.iterdir())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("PytorchStreamWriter failed")])
def test_a_full_disk_is_no_failure_of_the_run(every_epoch, monkeypatch, error):
    """Else a sweep would take a full disk for a learning rate that does not train."""

    def full(state, path):
        path.write_bytes(b"cut off")
        raise error

    whole = training.train_run(CONFIG)  # makes the data, too, which is saved likewise
    monkeypatch.setattr("torch.save", full)
    with pytest.warns(UserWarning, match=r"cannot be written.*(No space|StreamWriter)"):
        record = training.train_run(CONFIG, checkpoints=every_epoch)
    assert record["loss"] == whole["loss"] and not list(every_epoch.iterdir())


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(MupError, match="finds no CUDA device"):
        training.train_run({**CONFIG, "device": "cuda"})


def test_a_run_killed_after_its_rungs_last_epoch_gives_the_same_record(every_epoch):
    """Its checkpoint was written, its record was not: it is measured again, not trained."""
    first = training.train_run({**CONFIG, "until": 2}, checkpoints=every_epoch)
    again = training.train_run({**CONFIG, "until": 2}, checkpoints=every_epoch)
    first.pop("seconds"), again.pop("seconds")
    assert again == first
