"""Faults on each engine: nothing finished is lost or run again, and the final table is as if nothing had happened.

    python benchmarks/engine_faults.py --engine loky [--rounds 50] [--seed 0] [--write]

Each round runs one sweep (6 learning rates, 2 seeds) into two faults. A worker is killed in mid-run by SIGKILL, and the
driver is stopped in the middle of the sweep, at random points; the same call then goes on to the end. On Ray every fourth
kill is that of a whole node, for which another is added. Engines: loky, a Dask cluster, a Ray cluster of several nodes on
this machine, pairs of runs as one program ("batched"), and the local workers, which benchmarks/faults.py puts through
more (killed drivers, cut journals, full disks, jumping clocks).

A fresh worker loads what a run of this needs (see ``light_packages``) and not torch, which no run uses and whose import
takes longer than a whole round of runs.

Also ``--scaling``: a sweep of 64 points on a Ray cluster with one and with two workers, timed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LRS = [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625]
WORKERS = 2


class Stopped(BaseException):
    """The driver ends here."""


def train(config: dict) -> dict:
    """A few milliseconds; marks its start with its process."""
    mark(config, "start")
    time.sleep(0.05)
    mark(config, "end")
    return {"loss": abs(config["lr"] - 0.1) + 0.01 * config["seed"]}


def mark(config: dict, what: str) -> None:
    descriptor = os.open(config["marks"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, (json.dumps([what, config["lr"], config["seed"], os.getpid()]) + "\n").encode())
    os.close(descriptor)


def marked(path: Path) -> list[list]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Grouped:
    """The same runs, two at a time as one program for the batched engine."""

    def __call__(self, config: dict) -> dict:
        return train(config)

    def group(self, config: dict) -> str:
        return ""

    def many(self, asked: dict) -> dict:
        from neuralop_mup.tuning.outcome import execute

        return {"loss": 0.0, "ends": [execute(train, c) for c in asked["configs"]], "at_once": None, "notes": []}


class Faulty:
    """An engine that meets its faults at given submissions."""

    def __init__(self, engine: Any, kill_at: int, stop_at: int, kill: Callable[[], bool]) -> None:
        self._engine, self._kill_at, self._stop_at, self._kill = engine, kill_at, stop_at, kill
        self.loses_together, self._sent, self.killed = engine.loses_together, 0, False
        self.check = engine.check

    @property
    def capacity(self) -> int:
        return min(WORKERS, self._engine.capacity)

    def submit(self, *job: Any) -> Any:
        self._sent += 1
        if self._sent == self._stop_at:
            raise Stopped
        future = self._engine.submit(*job)
        if self._sent >= self._kill_at and not self.killed:
            time.sleep(0.03)
            self.killed = self._kill()
        return future

    def close(self) -> None:
        self._engine.close()


def kill_a_runner(path: Path) -> bool:
    """SIGKILL to a process that is in the middle of a run; False if there is none."""
    ends = Counter((lr, seed, pid) for what, lr, seed, pid in marked(path) if what == "end")
    for what, lr, seed, pid in reversed(marked(path)):
        if what == "start" and not ends[lr, seed, pid] and pid != os.getpid():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return True
    return False


def light_packages(folder: Path) -> str:
    """A folder for the front of workers' ``sys.path``: our packages without what their ``__init__`` imports.

    A worker's runs need :mod:`neuralop_mup.tuning.outcome` alone; by way of the package's own ``__init__`` that brings in
    torch and neuralop, 3 s of CPU time for each worker that replaces a killed one.
    """
    import neuralop_mup.tuning

    for package in (neuralop_mup, neuralop_mup.tuning):
        stub = folder.joinpath("light", *package.__name__.split("."), "__init__.py")
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text(f"__path__ = {list(package.__path__)!r}\n")
    return str(folder / "light")


@contextmanager
def engines(name: str, root: Path) -> Iterator[tuple[Callable[[], Any], Callable[[Path], bool]]]:
    """A function that makes an engine, and one that kills something of it."""
    from neuralop_mup.tuning.engines import ExecutorEngine, LocalEngine, RayEngine

    sys.path[:0] = [light_packages(root)]  # what spawned processes start with
    if name in ("local", "batched"):
        yield lambda: LocalEngine(WORKERS), kill_a_runner
    elif name == "loky":
        import loky

        yield lambda: ExecutorEngine(lambda: loky.ProcessPoolExecutor(WORKERS), WORKERS), kill_a_runner
    elif name == "dask":
        import dask
        from distributed import Client, LocalCluster

        # A LocalCluster gives a worker up that is away 15 s after a death, even if it was back in between and died again.
        patient = {"distributed.deploy.lost-worker-timeout": "1 day"}
        with (
            dask.config.set(patient),
            LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            yield lambda: ExecutorEngine(client.get_executor(pure=False), WORKERS), kill_a_runner
    else:
        import ray
        from ray.cluster_utils import Cluster

        # Ray takes 20 s by default to see that a node is gone; the fault is the same when it takes 3.
        seen = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_timeout_ms": 3000}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": seen}
        os.environ["PYTHONPATH"] = os.pathsep.join(p for p in [*sys.path, str(HERE)] if p)
        cluster = Cluster(initialize_head=True, head_node_args=head)
        nodes = [cluster.add_node(num_cpus=1) for _ in range(WORKERS)]
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)

        def remove(_: Path) -> bool:
            cluster.remove_node(nodes.pop(0), allow_graceful=False)
            while len(nodes) < WORKERS:
                with suppress(Exception):  # on a busy machine Ray gives a node up that takes longer than 30 s to start
                    nodes.append(cluster.add_node(num_cpus=1))
            return True

        kinds = deque([remove, *[kill_a_runner] * 3])

        def kill(path: Path) -> bool:
            killed = kinds[0](path)
            kinds.rotate(killed)
            return killed

        try:
            yield RayEngine, kill
        finally:
            ray.shutdown()
            cluster.shutdown()


def run(name: str, rounds: int, seed: int, root: Path) -> dict[str, int]:
    """Every round, with faults drawn from ``seed``; figures by what they count."""
    from tqdm import trange

    from neuralop_mup.tuning import sweep
    from neuralop_mup.tuning.engines import BatchedEngine

    figures: Counter = Counter()
    lrs = {"lr": LRS}
    run = Grouped() if name == "batched" else train
    common = {"seeds": (0, 1), "progress": False}
    first = {"folder": root / "expected", "n_workers": 1, "fixed": {"marks": str(root / "marks")}}
    expected = sweep(run, lrs, **first, engine="local", **common).records
    programs = len(expected) // 2 if name == "batched" else len(expected)
    with engines(name, root) as (make, kill):
        for i in trange(rounds, desc=name, file=sys.stderr, disable=not sys.stderr.isatty()):
            rng, folder, marks = random.Random(f"{seed} {i}"), root / str(i), root / f"marks{i}"
            stop = rng.randint(2, programs - 1)
            faulty = Faulty(make(), rng.randint(1, stop), stop, lambda marks=marks: kill(marks))
            known: list[dict] = []
            for engine in (faulty, Faulty(make(), rng.randint(1, 4), 10**9, lambda marks=marks: kill(marks))):
                done_before = {(r["params"]["lr"], r["seed"]) for r in known if r["outcome"] == "complete"}
                before = len(marked(marks))
                try:
                    where = BatchedEngine(engine, run, at_once=2) if name == "batched" else engine
                    found = sweep(run, lrs, folder=folder, engine=where, fixed={"marks": str(marks)}, **common).records
                except Stopped:
                    figures["drivers stopped"] += 1
                figures["workers or nodes killed"] += engine.killed
                engine.close()
                time.sleep(0.2)
                again = {(lr, s) for what, lr, s, _ in marked(marks)[before:] if what == "start"}
                figures["finished runs run again"] += len(again & done_before)
                text = (folder / "results.jsonl").read_text()
                now = {(r["params"]["lr"], r["seed"]): r["loss"] for r in map(json.loads, text.splitlines())}
                figures["finished runs lost"] += sum(now.get((r["params"]["lr"], r["seed"])) != r["loss"] for r in known)
                known = [json.loads(line) for line in text.splitlines()]
            keys = ("params", "seed", "outcome", "loss")
            figures["tables equal to the undisturbed"] += [[r[k] for k in keys] for r in found] == [
                [r[k] for k in keys] for r in expected
            ]
            starts = Counter((lr, s) for what, lr, s, _ in marked(marks) if what == "start")
            figures["interrupted, started again"] += sum(n - 1 for n in starts.values())
            figures["runs"] += len(expected)
            figures["rounds"] += 1
    order = ("rounds", "runs", "workers or nodes killed", "drivers stopped", "interrupted, started again")
    return {
        k: figures[k] for k in (*order, "finished runs lost", "finished runs run again", "tables equal to the undisturbed")
    }


def second(config: dict) -> float:
    """A run of one second that computes nothing, so that the machine's load does not matter."""
    time.sleep(1.0)
    return config["lr"]


def scaling(root: Path) -> str:
    """A sweep of 64 points on Ray with one and with two workers."""
    from neuralop_mup.tuning import sweep

    lines, times = [], {}
    with engines("ray", root) as (make, _):
        sweep(second, {"lr": [1.0, 2.0]}, folder=root / "warm", engine=make(), progress=False)
        for workers in (1, 2):
            engine = make()
            engine._most = workers
            start = time.perf_counter()
            sweep(
                second, {"lr": [float(i) for i in range(1, 65)]}, folder=root / str(workers), engine=engine, progress=False
            )
            times[workers] = time.perf_counter() - start
            lines.append(f"{workers} {'worker' if workers == 1 else 'workers'}: {times[workers]:.1f} s for 64 runs of 1 s")
    return "\n".join([*lines, f"ratio {times[1] / times[2]:.2f}", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("local", "batched", "loky", "dask", "ray"), default="local")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scaling", action="store_true", help="time a sweep on Ray with 1 and 2 workers instead")
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="engine-faults-") as folder:
        root = Path(folder)
        if args.scaling:
            name, text = "ray_scaling", "python benchmarks/engine_faults.py --scaling\n" + scaling(root)
        else:
            name = f"engine_faults_{args.engine}"
            figures = run(args.engine, args.rounds, args.seed, root)
            command = f"python benchmarks/engine_faults.py --engine {args.engine} --rounds {args.rounds} --seed {args.seed}"
            text = "\n".join([command, *(f"{count:6d}  {what}" for what, count in figures.items())]) + "\n"
    print(text)
    if args.write:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main()
