"""The process engine in scripts, which take seconds to start. Needs psutil."""

import subprocess
import sys
import time
from pathlib import Path

import psutil

from support.engine_runs import LRS, executions, quiet_sweep, slow
from support.processes import environment

STARTS = """
import os, signal
from pathlib import Path
from neuralop_mup.errors import MupError
from support.engine_runs import quiet_sweep, train

place = {place!r}

def swept(name):
    quiet_sweep(train, f"{{place}}/{{name}}", {{"lr": [1, 2]}}, fixed={{"log": f"{{place}}/log"}}, n_workers=2)

if __name__ == "__main__":
    for kills in ("3", "100"):
        Path(place, "kills").write_text(kills)
        try:
            swept(kills)
            print("complete")
        except MupError as error:
            print("refused", error)
    Path(place, "kills").write_text("0")
    Path(place, "unguarded").touch()
else:  # a process imports this script before its run
    for i in range(int(Path(place, "kills").read_text())):
        try:
            os.close(os.open(f"{{place}}/killed{{i}}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__" or Path(place, "unguarded").exists():
    swept("without a guard")
"""


def test_processes_that_end_before_their_run_begins(tmp_path):
    """Three killed processes cost nothing. A hundred, and a script without a main guard, are refused."""
    script = tmp_path / "script.py"
    script.write_text(STARTS.format(place=str(tmp_path)))
    done = subprocess.run([sys.executable, str(script)], env=environment(), capture_output=True, text=True, timeout=600)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["complete", "refused"]
    assert executions({"log": str(tmp_path / "log")}) == {(1, 0): 1, (2, 0): 1}
    assert (done.returncode, "__main__" in done.stderr.splitlines()[-1]) == (1, True)


SLOW = """
from support.engine_runs import quiet_sweep, slow
if __name__ == "__main__":
    quiet_sweep(slow, {folder!r}, fixed={fixed!r}, n_workers=2)
"""


def is_alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_the_processes_of_a_killed_command_end(tmp_path, fixed):
    """They would run as long as the flag exists. The next command trains only what was under way."""
    folder, script = tmp_path / "s", tmp_path / "script.py"
    script.write_text(SLOW.format(folder=str(folder), fixed=fixed))
    with subprocess.Popen([sys.executable, str(script)], env=environment()) as command:
        while executions(fixed).total() < 4:
            time.sleep(0.02)
        Path(fixed["flag"]).touch()
        time.sleep(0.3)
        processes = psutil.Process(command.pid).children(recursive=True)
        command.kill()
    end = time.monotonic() + 120
    while any(map(is_alive, processes)) and time.monotonic() < end:
        time.sleep(0.05)
    assert (len(processes) >= 3, any(map(is_alive, processes))) == (True, False)
    Path(fixed["flag"]).unlink()
    found = quiet_sweep(slow, folder, fixed=fixed)
    assert [r["outcome"] for r in found.records] == ["complete"] * 6
    assert set(executions(fixed)) == {(lr, 0) for lr in LRS}
    assert executions(fixed).total() <= 8  # two were under way
