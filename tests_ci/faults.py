"""Studies under faults: processes and commands that are killed, full disks, damaged files; then one command left alone.

    python tests/faults.py ENGINE [--rounds 50] [--seed 0]

Each round takes one folder, with a transfer that keeps weights and a sweep, through commands that end badly, and looks
after each at what was finished before: it must be as it was, and nothing of it may have been trained again. In the end the
folder must hold what a study without faults gives. ENGINE is local or ray. Linux only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import psutil

import neuralop_mup.lab.training  # noqa: F401  (loaded once, before commands are forked)
from neuralop_mup.errors import MupError
from neuralop_mup.lab import engines
from neuralop_mup.lab.engines import ExecutorEngine, InlineEngine, LocalEngine, RayExecutor
from neuralop_mup.lab.records import WEIGHTS, Records
from neuralop_mup.lab.run import run
from neuralop_mup.lab.search import checked
from neuralop_mup.lab.study import Study
from neuralop_mup.lab.tuning import transfer_study

engines._LOADED = ["neuralop_mup.lab.training"]  # a parabola is built on no device: without torch's compiler, 2 s a command
COUNTED = (
    "commands that broke",
    "finished runs lost",
    "finished runs trained again",
    "tables unlike the undisturbed",
    "weights missing",
)
SIZES = {"proxy": {"width": 8}, "target": {"width": 64}}


class Train:
    """A parabola that leaves an empty file for each run that it begins, which a full disk allows, and keeps weights."""

    keeps_files = True

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    @staticmethod
    def content(config: dict[str, Any]) -> dict[str, Any]:
        return {"train": "parabola", **config}

    def __call__(self, config: dict[str, Any], place: str, keep: bool) -> dict[str, Any]:
        (self.marks / f"{Path(place).name}.{time.monotonic_ns()}").touch()
        time.sleep(0.1)
        loss = (math.log2(config["lr"]) + 4) ** 2 + 0.01 * config["seed"] + config.get("model", {}).get("width", 0)
        if keep:
            path = Path(place) / WEIGHTS
            with zipfile.ZipFile(path.with_suffix(".part"), "w") as file:
                file.writestr("loss", str(loss))
            path.with_suffix(".part").replace(path)
        return {"loss": loss, "pid": os.getpid()}


def studies(train: Train) -> list[Study]:
    """A transfer and a sweep, which share a folder."""
    grid = {"lr": [2.0**-k for k in range(2, 7)]}
    asked = {"proxy": SIZES["proxy"], "target": SIZES["target"], "space": grid, "seeds": (0, 1)}
    single = checked({"lr": [0.003, 0.03, 0.3, 0.9]}, None, (0, 1), ())
    return [transfer_study(**asked, name="grid", keeps=True, train=train), Study(name="single", train=train, **single)]


def command(folder: Path, engine: str, limit: int | None) -> None:
    """What a user's command does; with ``limit`` no file may grow beyond so many bytes, as on a full disk."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for study in studies(Train(folder.parent / "marks")):
        made = ExecutorEngine(RayExecutor) if engine == "ray" else LocalEngine(2)
        run(study, folder=folder, engine=made, progress=False)


class Command(ForkProcess):
    """A command in a process group of its own."""

    def __init__(self, *how: Any) -> None:
        super().__init__(target=_command, args=how)
        self.start()

    def wait(self, seconds: float) -> bool:
        """Whether it ended in that time."""
        self.join(seconds)
        return self.exitcode is not None

    def trainers(self, engine: str) -> list[psutil.Process]:
        """The processes in which runs are trained."""
        if engine == "local":
            below = psutil.Process(self.pid).children() if self.is_alive() else []
            return [trainer for server in below for trainer in server.children()]
        others = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")  # with an agent its node ends
        found = [(one, " ".join(one.info["cmdline"] or ())) for one in psutil.process_iter(["cmdline"])]
        return [one for one, line in found if line.startswith("ray::") and not line.startswith(others)]


def _command(folder: Path, engine: str, limit: int | None = None) -> None:
    os.setpgid(0, 0)
    told = os.open(folder.parent / "told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):  # Ray tells of dead processes on stdout
        os.dup2(told, stream.fileno())
    try:
        command(folder, engine, limit)
    except (MupError, OSError) as error:
        known = isinstance(error, MupError) or limit is not None
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2 if known else 1)


class Round:
    """One folder and its faults; what must not happen is counted and told."""

    def __init__(self, name: str, folder: Path, engine: str, rng: random.Random, figures: Counter) -> None:
        self.name, self.folder, self.engine, self.rng, self.figures = name, folder, engine, rng, figures
        (folder.parent / "marks").mkdir(parents=True)
        self.safe: dict[str, dict[str, Any]] = {}

    def finished(self) -> dict[str, dict[str, Any]]:
        """Records that may not change any more, by the id of their run."""
        found = {}
        for path in self.folder.glob("workspace/*/signac_job_document.json"):
            try:
                record = json.loads(path.read_text())
            except ValueError:
                continue
            if record.get("outcome") == "complete":
                found[path.parent.name] = record
        return found

    def begun(self) -> Counter:
        return Counter(path.name.partition(".")[0] for path in (self.folder.parent / "marks").iterdir())

    def wrong(self, what: str, found: list[str]) -> None:
        self.figures[what] += len(found)
        for text in found:
            print(f"{self.name}: {what}: {text}", file=sys.stderr)

    def go(self, fault: str) -> None:
        """One command with a fault."""
        before = self.begun()
        if fault == "damage":
            self._damage()
        limit = self.rng.choice((64, 300, 600)) if fault == "disk" else None
        running = Command(self.folder, self.engine, limit)
        if fault == "processes":
            left = 4
            while not running.wait(self.rng.uniform(0.02, 0.3)):
                with suppress(psutil.NoSuchProcess):  # it has just ended
                    for trainer in running.trainers(self.engine)[: left and 1]:
                        trainer.kill()
                        self.figures["processes killed"] += 1
                        left -= 1
        elif fault == "command":
            running.wait(self.rng.uniform(0.2, 9.0))
        elif fault == "two":
            running.wait(self.rng.uniform(0.2, 3.0))
            second = Command(self.folder, self.engine)
            running.kill()
            running.join()
            self.figures["second commands that ended"] += second.wait(3600)
            second.kill()
        ended = running.wait(3600 if fault in ("disk", "none", "damage") else 0)
        self.figures[f"commands that ended ({fault})" if ended else f"commands killed ({fault})"] += 1
        running.kill()
        running.join()
        time.sleep(0.3)  # what the killed one had begun ends
        fine = {"none": (0,), "damage": (0,), "disk": (0, 2), "processes": (0,)}.get(fault, (0, 2, -signal.SIGKILL))
        if running.exitcode not in fine:
            self.wrong("commands that broke", [f"{fault}: {(self.folder.parent / 'told').read_text()[-2000:]}"])
        self._compare(before)

    def _compare(self, before: Counter) -> None:
        now, begun = self.finished(), self.begun()
        self.wrong("finished runs lost", [f"{k}: {r}" for k, r in self.safe.items() if now.get(k) != r])
        self.wrong("finished runs trained again", [key for key in self.safe if begun[key] > before[key]])
        self.safe = now

    def _damage(self) -> None:
        """Cut a file of the folder in the middle; what it held is no longer safe."""
        names = ("signac_job_document.json", "signac_statepoint.json")
        paths = [path for name in names for path in self.folder.glob(f"workspace/*/{name}")]
        for path in self.rng.sample(sorted(paths), min(2, len(paths))):
            text = path.read_bytes()
            path.write_bytes(text[: self.rng.randrange(len(text))])
            self.figures["files damaged"] += 1
            if path.name == names[0]:
                self.safe.pop(path.parent.name, None)
        for table in self.folder.glob("*.jsonl"):
            table.write_text('{"size": ')

    def finish(self, undisturbed: dict[str, float]) -> None:
        """One more command, left alone."""
        self.go("none")
        records, found = Records(self.folder), {}
        with records.held():
            for study in studies(Train(self.folder)):
                rows = study.rows(records)
                found |= {f"{study.name} {r['size']} {r['rule']} {r['params']} {r['seed']}": r["loss"] for r in rows}
                target = [run for runs in study.rest(study.centre(records)) for run in runs if run.keep]
                missing = [run.id for run in target if not (records.place(run) / WEIGHTS).exists()]
                self.wrong("weights missing", missing)
        self.figures["runs"] += len(found)
        self.figures["rounds"] += 1
        self.wrong("tables unlike the undisturbed", [] if found == undisturbed else [f"{found} and not {undisturbed}"])


@contextmanager
def cluster(engine: str) -> Iterator[None]:
    """A Ray node with two CPUs, started as a user would, where that is the engine."""
    if engine == "ray":
        ray = [sys.executable, "-m", "ray.scripts.scripts"]
        os.environ["RAY_ADDRESS"] = "auto"
        subprocess.run(
            [*ray, "start", "--head", "--num-cpus=2", "--include-dashboard=false"], check=True, capture_output=True
        )
    try:
        yield
    finally:
        if engine == "ray":
            subprocess.run([*ray, "stop", "--force"], check=True, capture_output=True)


def main(engine: str, rounds: int, seed: int) -> Counter:
    """Take so many folders through their faults."""
    rng, figures = random.Random(seed), Counter(dict.fromkeys(COUNTED, 0))
    undisturbed: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        for study in studies(Train(Path(tempfile.mkdtemp()))):
            for row in study.rows(run(study, folder=place, engine=InlineEngine(), progress=False)):
                undisturbed[f"{study.name} {row['size']} {row['rule']} {row['params']} {row['seed']}"] = row["loss"]
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as place:
            one = Round(f"round {number}", Path(place) / "study", engine, rng, figures)
            for fault in rng.sample(("processes", "command", "disk", "two", "command"), 3):
                one.go(fault)
            one.go("damage")
            one.finish(undisturbed)
        print(f"round {number + 1} of {rounds}: {dict(figures)}", file=sys.stderr, flush=True)
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=("local", "ray"))
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with cluster(asked.engine):
        print(json.dumps(main(**vars(asked)), indent=1))
