"""Rounds of killed processes and commands, full disks and damaged files (tests/faults.py), a few in every run of the tests.

``FAULT_ROUNDS`` says how many; 50 of each engine are the measure, with ``pytest -m nightly tests/test_faults.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import environment

FAULTS = Path(__file__).with_name("faults.py")
ROUNDS = int(os.environ.get("FAULT_ROUNDS", "50"))

linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes to kill in /proc")


def nothing_is_lost(engine: str, rounds: int) -> None:
    command = [sys.executable, str(FAULTS), engine, "--rounds", str(rounds), "--seed", "7"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=7200 * rounds)
    assert done.returncode == 0, done.stderr
    print(done.stderr)  # says where each of the figures below that is not 0 comes from
    figures = json.loads(done.stdout)
    met = ("processes killed", "files damaged", "commands killed (command)")
    assert rounds < 6 or all(figures.get(what) for what in met), figures
    from faults import COUNTED

    assert {what: figures[what] for what in COUNTED} == dict.fromkeys(COUNTED, 0)
    assert figures["rounds"] == rounds


@linux
@pytest.mark.long
def test_a_study_through_all_faults_loses_and_repeats_nothing():
    nothing_is_lost("local", 1)


@linux
@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_many_rounds(engine):
    nothing_is_lost(engine, ROUNDS)
