"""The package as it is installed: what importing it loads, and that its public surface is what it says."""

import subprocess
import sys

import neuralop_mup as nm


def test_import_is_light():
    """Plotting, tuning and problems load when they are used."""
    code = (
        "import sys, neuralop_mup\n"
        "heavy = {'optuna', 'matplotlib', 'neuralop_mup.tuning', 'neuralop_mup.problems', 'neuralop_mup.plots'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_every_public_name_is_there_and_documented():
    assert len(set(nm.__all__)) == len(nm.__all__)
    for name in nm.__all__:
        assert getattr(nm, name).__doc__, name
    assert callable(nm.coord_check) and callable(nm.transfer) and callable(nm.sweep)
