"""Rounds of killed commands and full disks (faults.py), of a minute or more each.

``FAULT_ROUNDS=50 pytest tests_ci/test_faults.py`` takes an hour.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import environment

ROUNDS = os.environ.get("FAULT_ROUNDS", "1")


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="limits the size of files, and forks")
def test_studies_lose_and_repeat_nothing():
    command = [sys.executable, str(Path(__file__).with_name("faults.py")), ROUNDS]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures.pop("killed commands") or int(ROUNDS) < 6
    assert set(figures.values()) == {0}, done.stderr
