"""No file of a folder runs code when it is loaded: a malicious pickle in the place of each."""

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from neuralop.training import save_training_state

import neuralop_mup as nm
from neuralop_mup.lab.files import read_weights
from support.errors import refused
from support.studies import TARGET, build, fields, no_figures  # noqa: F401


class Malicious:
    """Loading it creates a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.system, (f"touch '{self.path}'",)


@pytest.fixture
def malicious(tmp_path):
    """An object that creates a file when it is loaded. At the end of the test, the file must not exist."""
    ran = tmp_path / "ran"
    yield Malicious(ran)
    assert not ran.exists()


def plain_pickle(content, path):
    path.write_bytes(pickle.dumps(content))


def quick_train(folder, **more):
    how = {"target": TARGET, "epochs": 2, "batch_size": 8, "progress": False, **more}
    return nm.train(build, fields(), folder=folder, **how)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "s"
    return folder, quick_train(folder)


@pytest.mark.parametrize("write", [torch.save, plain_pickle])
@pytest.mark.parametrize("name", ["checkpoint.pt", "signac_job_document.json", "signac_statepoint.json"])
def test_files_of_a_run(trained, malicious, tmp_path, name, write, caplog):
    """The run is trained again."""
    folder = Path(shutil.copytree(trained[0], tmp_path / "s"))
    (run,) = (folder / "workspace").iterdir()
    (run / "weights.pt").unlink()
    write({"key": malicious}, run / name)
    assert quick_train(folder).loss == trained[1].loss
    assert (name in caplog.text) == (name != "signac_statepoint.json")


@pytest.mark.parametrize("write", [torch.save, plain_pickle])
@pytest.mark.parametrize("key", ["weights", "processor", "more"])
def test_weights(trained, malicious, tmp_path, write, key):
    folder = Path(shutil.copytree(trained[0], tmp_path / "s"))
    (path,) = folder.glob("workspace/*/weights.pt")
    write({**read_weights(path), "made": "{}", key: malicious}, path)
    with refused("weights.pt"):
        nm.load_tuned(folder, build)


@pytest.mark.parametrize("name", ["study.json", "results.jsonl", "train-0.pt", "signac.rc", "epochs.txt"])
def test_files_of_a_folder(trained, malicious, tmp_path, name):
    folder = Path(shutil.copytree(trained[0], tmp_path / "s"))
    torch.save(malicious, folder / name)
    assert quick_train(folder, epochs=1).results.records
    nm.load_tuned(folder, build)


# neuralop's checkpoints


NAMES = ["manifest.pt", "model_state_dict.pt", "optimizer.pt", "scheduler.pt"]


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_of_neuralop(malicious, tmp_path, name):
    def parts():
        model = nm.parametrize(build(**TARGET), base={"hidden_channels": 4})
        optimizer = nm.MuAdam(model, lr=0.01)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)

    save_training_state(tmp_path, "model", *parts(), epoch=0)
    assert nm.load_checkpoint(tmp_path, *parts()) == 1
    content = torch.load(tmp_path / name)
    torch.save({**content, "more": malicious}, tmp_path / name)
    with refused(f"{name} system trusted=True"):
        nm.load_checkpoint(tmp_path, *parts())
    if name == "model_state_dict.pt":
        with refused(f"{name} system trusted=True"):
            nm.load_plan(build(**TARGET), tmp_path / name)


class Own(torch.nn.GELU):
    """An activation of the user's own, in the arguments of a constructor."""


@pytest.mark.parametrize("activation", [torch.nn.functional.gelu, torch.nn.SiLU(), Own()])
def test_constructor_arguments_in_a_state_dict(tmp_path, activation):
    """neuralop saves them for a model without a plan. Those of neuralop and torch are loaded."""
    plain = build(**TARGET, non_linearity=activation)
    torch.save({"plan": nm.parametrize(build(**TARGET)).state_dict(), "other": plain.state_dict()}, tmp_path / "a.pt")
    model = build(**TARGET)
    if isinstance(activation, Own):
        with refused("Own trusted=True"):
            nm.load_plan(model, tmp_path / "a.pt")
    assert nm.is_parametrized(nm.load_plan(model, tmp_path / "a.pt", trusted=isinstance(activation, Own)))
