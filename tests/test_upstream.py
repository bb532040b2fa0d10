"""What docs/upstream offers to neuraloperator: the example runs, and its patches are small and well formed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "upstream"
EXAMPLE = FOLDER / "plot_tune_small_train_large.py"
PATCHES = re.findall(r"^```diff\n(.*?)^```", (FOLDER / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def test_there_are_two_patches():
    named = [re.findall(r"^\+\+\+ b/scripts/(\w+)\.py$", patch, re.MULTILINE) for patch in PATCHES]
    assert named == [["train_darcy"], ["train_navier_stokes"]]


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patch_is_under_ten_lines_and_its_hunks_add_up(patch):
    changed = re.findall(r"^[+-](?![+-]).*$", patch, re.MULTILINE)
    assert 0 < len(changed) < 10
    shift = 0
    for before, n_before, after, n_after, body in re.findall(
        r"^@@ -(\d+),(\d+) \+(\d+),(\d+) @@\n((?:[ +-].*\n)+)", patch, re.MULTILINE
    ):
        signs = [line[0] for line in body.splitlines()]
        assert (signs.count(" ") + signs.count("-"), signs.count(" ") + signs.count("+")) == (int(n_before), int(n_after))
        assert int(after) - int(before) == shift
        shift += int(n_after) - int(n_before)
    assert shift == 3


def test_a_patched_script_trains_as_before_at_its_base():
    """The lines of the patch, on a model and an optimizer as the script makes them."""
    import neuralop.models
    import torch
    from neuralop.training import AdamW

    import neuralop_mup as nm

    for patch in PATCHES:
        width = int(re.search(r'base=\{"hidden_channels": (\d+)\}', patch)[1])
        weights = []
        for patched in (False, True):
            torch.manual_seed(0)
            model = neuralop.models.FNO((4, 4), 1, 1, width, n_layers=1)
            if patched:
                model = nm.parametrize(model, base={"hidden_channels": width})
                optimizer = nm.MuAdamW(model, impl=AdamW, lr=5e-3, weight_decay=1e-4)
            else:
                optimizer = AdamW(model.parameters(), lr=5e-3, weight_decay=1e-4)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(1, 1, 8, 8)).square().mean().backward()
                optimizer.step()
            weights.append([p.detach() for p in model.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_the_example_runs(tmp_path):
    """As it stands, but for sizes."""
    source = EXAMPLE.read_text()
    for whole, part in {
        "n_train, n_test, n_points = 200, 50, 64": "n_train, n_test, n_points = 20, 4, 32",
        "n_steps=400)": "n_steps=100)",
        "n_epochs=6)": "n_epochs=1)",
        "[2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2]": "[4e-3, 8e-3]",
    }.items():
        assert source.count(whole) == 1, whole
        source = source.replace(whole, part)
    script = tmp_path / "example.py"
    script.write_text(source + f"\nfig.savefig({str(tmp_path / 'figure.png')!r})\n")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", script], cwd=tmp_path, env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("best learning rate") == 3
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_the_example_follows_the_conventions_of_their_gallery():
    source = EXAMPLE.read_text()
    assert source.startswith('"""\n') and re.match(r'"""\n(.+)\n(=+)\n', source)
    title, line = re.match(r'"""\n(.+)\n(=+)\n', source).groups()
    assert len(title) == len(line)
    cells = source.split("\n# %%\n")[1:]
    assert len(cells) > 5 and all(cell.startswith("# ") for cell in cells)
