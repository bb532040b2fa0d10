"""Studies under faults: commands that are killed, and full disks. Linux only.

    PYTHONPATH=tests python tests_ci/faults.py ROUNDS

Each round takes one folder, with a sweep and a transfer that keeps weights, through commands that end badly. After each of
them we compare the folder with what was finished before: it must be the same, and must not have been trained again. After a
last command without faults, the folder must hold what a study without faults gives.
"""

import json
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
import zipfile
from collections import Counter
from contextlib import suppress
from multiprocessing.context import ForkProcess
from pathlib import Path

import neuralop_mup.lab.training  # noqa: F401  (loaded once, before commands are forked)
from neuralop_mup.errors import MupError
from neuralop_mup.files import whole_file
from neuralop_mup.lab import Study, engines, transfer_study
from neuralop_mup.lab.engines import InlineEngine, LocalEngine
from neuralop_mup.lab.records import _DOCUMENT, WEIGHTS, Records
from neuralop_mup.lab.run import run

engines._LOADED = ["neuralop_mup.lab.training"]  # a parabola needs no compiler, whose import takes 2 s a command


def parabola(config, place, keep):
    """Leave an empty file where a run begins, which a full disk allows. Return a loss, and keep it as the weights."""
    (Path(place).parents[2] / "marks" / f"{Path(place).name}.{time.monotonic_ns()}").touch()
    time.sleep(0.1)
    loss = (math.log2(config["lr"]) + 4) ** 2 + 0.01 * config["seed"] + config.get("model", {}).get("width", 0)
    if keep:
        with whole_file(Path(place) / WEIGHTS) as part, zipfile.ZipFile(part, "w") as file:
            file.writestr("loss", str(loss))
    return {"loss": loss}


parabola.keeps_files = True
parabola.content = lambda config: {"train": "parabola", **config}
SHARED = {"train": parabola, "seeds": (0, 1)}
SIZES = {"proxy": {"width": 8}, "target": {"width": 64}}
TRANSFER = transfer_study(**SIZES, space={"lr": [2.0**-k for k in range(2, 7)]}, name="grid", keep_weights=True, **SHARED)
STUDIES = [TRANSFER, Study(name="single", space={"lr": [0.003, 0.03, 0.3, 0.9]}, **SHARED)]
#: Fault → exit codes that a command may have.
FAULTS = {"command": (0, 2, -signal.SIGKILL), "disk": (0, 2), "none": (0,)}


def command(folder, limit):
    """Do what a user's command does. With ``limit`` no file may grow beyond that many bytes, as on a full disk."""
    os.setpgid(0, 0)
    os.dup2(os.open(folder.parent / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND), sys.stderr.fileno())
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        for study in STUDIES:
            run(study, folder=folder, engine=LocalEngine(2), progress=False)
    except (MupError, OSError) as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2 if limit is not None or isinstance(error, MupError) else 1)


def run_command(folder, fault, rng):
    """Run a command with a fault. Return its exit code."""
    process = ForkProcess(target=command, args=(folder, rng.choice((64, 300, 600)) if fault == "disk" else None))
    process.start()
    process.join(rng.uniform(0.2, 9.0) if fault == "command" else None)
    process.kill()
    process.join()
    time.sleep(0.3)  # until what the killed command had begun has ended
    return process.exitcode


def finished(folder):
    """Complete records, by the id of their run."""
    found = {}
    for path in folder.glob(f"workspace/*/{_DOCUMENT}"):
        with suppress(ValueError):
            found[path.parent.name] = json.loads(path.read_text())
    return {key: record for key, record in found.items() if record.get("outcome") == "complete"}


def begun(folder):
    """How often each run began."""
    return Counter(path.name.partition(".")[0] for path in (folder.parent / "marks").iterdir())


def losses(records):
    rows = [(study.name, row) for study in STUDIES for row in study.rows(records)]
    return {f"{name} {row['size']} {row['rule']} {row['params']} {row['seed']}": row["loss"] for name, row in rows}


def take_through_faults(folder, rng, expected):
    """Count what must not happen, and the faults."""
    figures, safe = Counter(), {}
    for fault in [*rng.sample(("command", "disk", "command"), 3), "none"]:
        before = begun(folder)
        code = run_command(folder, fault, rng)
        after, now = begun(folder), finished(folder)
        figures["killed commands"] += code == -signal.SIGKILL
        figures["broken commands"] += code not in FAULTS[fault]
        figures["lost runs"] += sum(now.get(key) != record for key, record in safe.items())
        figures["repeated runs"] += sum(after[key] > before[key] for key in safe)
        safe = now
    records = Records(folder)
    kept = [
        records.place(run) / WEIGHTS
        for runs in TRANSFER.target_points(TRANSFER.transferred(records))
        for run in runs
        if run.keep
    ]
    figures["missing weights"] += sum(not path.exists() for path in kept)
    figures["different tables"] += losses(records) != expected
    print(dict(figures), (folder.parent / "output").read_text(), file=sys.stderr)
    return figures


def main(rounds):
    rng, figures = random.Random(7), Counter()
    for number in range(rounds + 1):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place, "study")
            (folder.parent / "marks").mkdir()
            if number == 0:
                kept = [run(study, folder=folder, engine=InlineEngine(), progress=False) for study in STUDIES]
                expected = losses(kept[-1])
            else:
                figures.update(take_through_faults(folder, rng, expected))
    return figures


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
