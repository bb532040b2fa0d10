"""What docs/upstream offers to neuraloperator: the example runs, and its patches are small and well formed."""

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
EXAMPLE = FOLDER / "plot_tune_small_train_large.py"
PATCHES = re.findall(r"^```diff\n(.*?)^```", (FOLDER / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("patch", "script"), list(zip(PATCHES, ("train_darcy", "train_navier_stokes"), strict=True)))
def test_a_patch_is_under_ten_lines_and_its_hunks_add_up(patch, script):
    run = subprocess.run(["git", "apply", "--numstat", "-"], input=patch, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    added, removed, path = run.stdout.split()
    assert path == f"scripts/{script}.py" and int(added) + int(removed) < 10 and int(added) - int(removed) == 3


def made():
    """What make_patch.py prints."""
    run = subprocess.run([sys.executable, FOLDER / "make_patch.py"], capture_output=True, text=True, check=True)
    return run.stdout


def test_the_optimizer_goes_in_as_a_patch_and_its_tests_pass_there(tmp_path):
    """In a package whose files lie as neuraloperator's do, since the installed one is not to be changed."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=made(), text=True, check=True)
    training = tmp_path / "neuralop" / "training"
    assert (training / "musoap.py").read_text() == (FOLDER / "musoap.py").read_text()
    (tmp_path / "neuralop").rename(tmp_path / "beside")  # a name of its own, as the tests import neuralop, too
    for folder in ("beside", "beside/training", "beside/training/tests"):
        (tmp_path / folder / "__init__.py").touch()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "beside"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout


@pytest.mark.filterwarnings("ignore")  # neuralop's
def test_the_optimizers_example_runs(tmp_path, capsys, monkeypatch):
    """With data of the shapes that neuraloperator's checkout has, since an installed one has none; two epochs."""
    spec = importlib.util.spec_from_file_location("neuralop.training.musoap", FOLDER / "musoap.py")
    monkeypatch.setitem(sys.modules, spec.name, module := importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)

    def loaders(**_):
        data = {n: [{"x": torch.rand(1, n, n), "y": torch.rand(1, n, n)} for _ in range(8)] for n in (16, 32)}
        both = {n: torch.utils.data.DataLoader(own, 4) for n, own in data.items()}
        return both[16], both, DefaultDataProcessor()

    monkeypatch.setattr(datasets, "load_darcy_flow_small", loaders)
    source = (FOLDER / "plot_musoap_fno_darcy.py").read_text()
    assert source.count("n_epochs = 10\n") == 1
    script = tmp_path / "example.py"
    script.write_text(source.replace("n_epochs = 10\n", "n_epochs = 2\n"))
    matplotlib.use("agg")
    runpy.run_path(str(script), run_name="__main__")
    assert len(plt.gca().patches) == 8
    plt.close("all")
    told = [line for line in capsys.readouterr().out.splitlines() if "L2 error" in line]
    assert [line.partition(":")[0] for line in told] == [
        "AdamW, lr=0.005",
        "AdamW, lr=0.01",
        "AdamW, lr=0.02",
        "MuSOAP, not tuned",
    ]


@pytest.mark.skipif("NEURALOP_CHECKOUT" not in os.environ, reason="needs a checkout of neuraloperator's main branch")
def test_the_patches_apply():
    whole = (FOLDER / "the_well_statistics.patch").read_text()
    for patch in (*PATCHES, whole, made()):
        run = subprocess.run(
            ["git", "apply", "--check", "-"],
            cwd=os.environ["NEURALOP_CHECKOUT"],
            input=patch,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr


@pytest.mark.filterwarnings("ignore")  # neuralop's
def test_the_example_runs(tmp_path, capsys):
    """As it stands, but for sizes."""
    source = EXAMPLE.read_text()
    for whole, part in {
        "n_train, n_test, n_points = 200, 50, 64": "n_train, n_test, n_points = 20, 4, 32",
        "n_steps=400)": "n_steps=100)",
        "n_epochs=10)": "n_epochs=2)",
        "seeds = [0, 1]": "seeds = [0]",
        "[2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]": "[4e-3, 8e-3]",
    }.items():
        assert source.count(whole) == 1, whole
        source = source.replace(whole, part)
    script = tmp_path / "example.py"
    script.write_text(source + f"\nfig.savefig({str(tmp_path / 'figure.png')!r})\n")
    matplotlib.use("agg")
    runpy.run_path(str(script), run_name="__main__")
    plt.close("all")
    told = capsys.readouterr().out
    assert told.count("best learning rate") == 4 and told.count("MuSOAP, not tuned") == 2
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.parametrize("script", sorted((FOLDER / "faults").glob("*.py")), ids=lambda script: script.stem)
def test_a_fault_is_shown(script, capsys):
    """With the neuraloperator that is installed: a release in which it is mended says so, and the file may go."""
    runpy.run_path(str(script), run_name="__main__")
    assert "The fault is there" in capsys.readouterr().out
