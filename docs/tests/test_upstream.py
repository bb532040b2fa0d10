"""docs/upstream: the optimizer passes its tests, the examples run, the patches are well formed."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch
from neuralop.data import datasets
from neuralop.data.transforms.data_processors import DefaultDataProcessor

FOLDER = Path(__file__).parents[2] / "docs" / "upstream"
PATCHES = re.findall(r"^```diff\n(.*?)^```", (FOLDER / "README.md").read_text(), re.MULTILINE | re.DOTALL)
OPTIMIZER = runpy.run_path(str(FOLDER / "make_patch.py"))["patch"]()


def load(name, file):
    """Import a file of the folder under the name that the patch gives it."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / file)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


load("neuralop.training.musoap", "musoap.py")
TESTS = vars(load("neuralop.training.tests.test_musoap", "test_musoap.py"))
globals().update({name: value for name, value in TESTS.items() if name.startswith("test_")})  # pytest runs them here


def run_script(name, folder, changes):
    """Run an example with smaller sizes."""
    source = (FOLDER / name).read_text()
    for whole, part in changes.items():
        assert source.count(whole) == 1, whole
        source = source.replace(whole, part)
    script = folder / "example.py"
    script.write_text(source)
    matplotlib.use("agg")
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.parametrize("patch", [*PATCHES, OPTIMIZER, (FOLDER / "the_well_statistics.patch").read_text()])
def test_patches_are_well_formed(patch):
    """If NEURALOP_CHECKOUT names a checkout of neuraloperator, they also apply to it."""
    checkout = os.environ.get("NEURALOP_CHECKOUT")
    command = ["git", "-C", checkout, "apply", "--check", "-"] if checkout else ["git", "apply", "--numstat", "-"]
    run = subprocess.run(command, input=patch, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_the_patch_adds_the_optimizer(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=OPTIMIZER, text=True, check=True)
    assert (tmp_path / "neuralop/training/musoap.py").read_text() == (FOLDER / "musoap.py").read_text()
    assert (tmp_path / "neuralop/training/tests/test_musoap.py").is_file()


@pytest.mark.filterwarnings("ignore")  # neuralop's
def test_the_example_of_the_optimizer_runs(tmp_path, capsys, monkeypatch):
    """The data has the shapes of neuraloperator's Darcy data, which an installed release does not contain."""

    def loaders(**_):
        data = {n: [{"x": torch.rand(1, n, n), "y": torch.rand(1, n, n)} for _ in range(8)] for n in (16, 32)}
        both = {n: torch.utils.data.DataLoader(samples, 4) for n, samples in data.items()}
        return both[16], both, DefaultDataProcessor()

    monkeypatch.setattr(datasets, "load_darcy_flow_small", loaders)
    run_script("plot_musoap_fno_darcy.py", tmp_path, {"n_epochs = 10\n": "n_epochs = 2\n"})
    assert len(plt.gca().patches) == 8
    plt.close("all")
    optimizers = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if "L2 error" in line]
    assert optimizers == ["AdamW, lr=0.005", "AdamW, lr=0.01", "AdamW, lr=0.02", "MuSOAP, not tuned"]


@pytest.mark.filterwarnings("ignore")  # neuralop's
def test_the_example_of_transfer_runs(tmp_path, capsys):
    smaller = {
        "n_train, n_test, n_points = 200, 50, 64": "n_train, n_test, n_points = 20, 4, 32",
        "n_steps=400)": "n_steps=100)",
        "n_epochs=10)": "n_epochs=2)",
        "seeds = [0, 1]": "seeds = [0]",
        "[2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]": "[4e-3, 8e-3]",
    }
    run_script("plot_tune_small_train_large.py", tmp_path, smaller)
    plt.close("all")
    output = capsys.readouterr().out
    assert output.count("best learning rate") == 4 and output.count("MuSOAP, not tuned") == 2


@pytest.mark.parametrize("script", sorted((FOLDER / "faults").glob("*.py")), ids=lambda script: script.stem)
def test_a_fault_of_neuraloperator_is_present(script, capsys):
    """If this fails with a new release of neuraloperator, the fault is fixed and its file can be deleted."""
    runpy.run_path(str(script), run_name="__main__")
    assert "The fault is there" in capsys.readouterr().out
