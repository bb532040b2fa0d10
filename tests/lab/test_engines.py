"""What an engine promises, on each of them: the same results, a death that is one run's alone, its own surroundings."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import types
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from neuralop_mup._version import __version__
from neuralop_mup.errors import MupError
from neuralop_mup.lab import engines, sweep
from neuralop_mup.lab.engines import ExecutorEngine, LocalEngine, RayExecutor, cuda_devices, make_engine
from neuralop_mup.lab.outcome import execute
from neuralop_mup.lab.problems import get_problem
from support.engine_runs import LRS, always_killed, executions, killed_once, killed_while_sending, slow, surroundings
from support.models import drawn
from support.processes import environment
from support.training import train


def quiet(train, folder, lrs=LRS, **arguments):
    return sweep(train, {"lr": lrs}, folder=folder, **{"progress": False, "seeds": (0, 1), **arguments})


def losses(found):
    return [(r["params"]["lr"], r["seed"], r["outcome"], r["loss"]) for r in found.records]


@pytest.fixture(scope="module")
def cluster():
    """Two Ray nodes on this machine, with a CPU each."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.other = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    variables = {"PYTHONPATH": environment()["PYTHONPATH"], "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    ray.init(address=cluster.address, log_to_driver=False, runtime_env={"env_vars": variables})
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def dask():
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client.get_executor(pure=False, retries=2)


@pytest.fixture
def loky():
    return pytest.importorskip("loky").get_reusable_executor(max_workers=1, env={"OMP_NUM_THREADS": "1"})


def forked():
    """A pool that breaks as a whole when one of its processes dies."""
    context = "forkserver" if sys.platform == "linux" else "spawn"
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(context))


@pytest.fixture(params=["inline", "processes", "loky", "dask", "ray"])
def engine(request):
    """Its name, and the arguments that ask for it."""
    if request.param in ("loky", "dask"):
        return request.param, {"executor": request.getfixturevalue(request.param), "n_workers": 2}
    if request.param == "ray":
        request.getfixturevalue("cluster")
        return request.param, {"engine": "ray"}
    return request.param, {"n_workers": 1 if request.param == "inline" else 2}


def test_every_engine_gives_the_same_bits_and_runs_each_run_once(engine, tmp_path, fixed):
    """Torch has as many threads in each: one."""
    expected = quiet(drawn, tmp_path / "one", [0.1, 0.3], n_workers=1)
    assert losses(quiet(drawn, tmp_path / "s", [0.1, 0.3], **engine[1])) == losses(expected)


@pytest.mark.parametrize("engine", ["processes", "dask", "ray"], indirect=True)
def test_a_killed_process_costs_its_run_one_more_attempt(engine, tmp_path, fixed):
    name, arguments = engine
    found = quiet(killed_once, tmp_path / "s", fixed=fixed, **arguments)
    assert {r["outcome"] for r in found.records} == {"complete"}
    # The killed run had left no mark; what ran on a dead worker of Dask's and had not been fetched runs again.
    counts = executions(fixed)
    assert len(counts) == 2 * len(LRS) and (name == "dask" or set(counts.values()) == {1})


# Processes of this machine


def test_each_run_sees_its_own_gpu_and_its_share_of_the_cores(tmp_path, monkeypatch):
    """As fresh processes, whatever the one that they are forked from began with."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(6), raising=False)
    found = quiet(surroundings, tmp_path, engine=LocalEngine(3, ["0", "5"]))
    assert {r["metrics"]["gpu"] for r in found.records} == {"0", "5"} and "CUDA_VISIBLE_DEVICES" not in os.environ
    assert {r["metrics"]["threads"] for r in found.records} == {2}


def test_the_devices_of_this_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert cuda_devices() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 7")
    assert cuda_devices() == ["3", "7"]
    assert make_engine(None, None, train, 9, None, cuda_devices()).capacity == 2
    monkeypatch.undo()
    assert torch.cuda.is_available() or cuda_devices() == []


def test_a_run_that_dies_twice_has_failed_and_the_sweep_goes_on(tmp_path, fixed):
    found = quiet(always_killed, tmp_path, n_workers=2, seeds=(0,), fixed=fixed)
    (lost,) = [r for r in found.records if r["outcome"] != "complete"]
    assert lost["params"] == {"lr": 0.25} and lost["outcome"] == "failed" and "terminated abruptly" in lost["error"]
    assert len(found.records) == len(LRS)


def test_a_process_that_is_killed_while_it_sends_what_its_run_gave(tmp_path, fixed):
    """Once waited for ever: the other half of it could still have come."""
    found = quiet(killed_while_sending, tmp_path, n_workers=2, seeds=(0,), fixed=fixed)
    assert Path(fixed["flag"]).exists() and {r["outcome"] for r in found.records} == {"complete"}
    assert set(executions(fixed).values()) == {1, 2} and len(found.records) == len(LRS)


def test_what_cannot_be_sent_to_processes_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(MupError, match="module level of a file, or pass n_workers=1"):
        quiet(lambda config: 1.0, tmp_path / "s", n_workers=2)
    with ProcessPoolExecutor(1) as pool, pytest.raises(MupError, match="cannot be sent to worker processes"):
        quiet(lambda config: 1.0, tmp_path / "s", executor=pool)
    assert not (tmp_path / "s").exists()


def main_of(file):
    """The module of a program that was read from there, or of a notebook's cells."""
    module = types.ModuleType("__main__")
    module.__dict__.update({"__file__": file} if file else {})
    exec("def train(config): return 1.0", module.__dict__)
    return module


@pytest.mark.parametrize(
    ("main", "why"),
    [
        (main_of(None), "it stands in a notebook"),
        (main_of("<stdin>"), "this program was read from <stdin>, which they cannot import"),
        (None, "Can't (get|pickle) "),
    ],
    ids=["notebook", "standard input", "lambda"],
)
def test_it_is_trained_in_this_process_where_nobody_asked_for_others(main, why, tmp_path, capsys, monkeypatch):
    """Else what stands in the way is told, without a traceback of each process."""
    monkeypatch.setattr(engines, "cores", lambda: 2)
    asked = main.train if main else lambda config: 1.0
    with monkeypatch.context() as patch:
        if main:
            patch.setitem(sys.modules, "__main__", main)
        assert len(quiet(asked, tmp_path / "s", progress=True).records) == 2 * len(LRS)
        told = rf"runs are trained one by one, since the train function cannot be sent to processes: .*{why}"
        assert re.search(told, capsys.readouterr().err)
        with pytest.raises(MupError, match=why):
            quiet(asked, tmp_path / "s", n_workers=2)
    assert isinstance(make_engine(None, None, train, 9), LocalEngine)


def test_python_calls_a_program_from_standard_input_so():
    """As the test above has it."""
    text = "print(globals().get('__file__'))"
    told = [
        subprocess.run([sys.executable, *how], input=text, capture_output=True, text=True) for how in (["-"], ["-c", text])
    ]
    assert [done.stdout for done in told] == ["<stdin>\n", "None\n"]


def test_as_many_runs_at_once_as_this_process_may_use_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert make_engine(None, None, train, 100).capacity == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert make_engine(None, None, train, 100).capacity == 64


class Here:
    """An engine of one's own, which notes how much it is sent."""

    capacity = 1

    def __init__(self):
        self.sent = []

    def submit(self, function, /, *args, **kwargs):
        self.sent.append(len(pickle.dumps((args, kwargs))))
        future = Future()
        future.set_result(function(*args, **kwargs))
        return future

    def close(self):
        pass


def of_arrays(config, values):
    return float(values.sum()) * config["lr"]


def test_arrays_do_not_travel_with_each_run(tmp_path):
    """They lie in the folder meanwhile."""
    engine = Here()
    train = functools.partial(of_arrays, values=torch.ones(1 << 19))
    found = quiet(train, tmp_path, [1, 2], seeds=(0,), engine=engine)
    assert [r["loss"] for r in found.records] == [2**19, 2**20]
    assert len(engine.sent) == 2 and max(engine.sent) < 1e6 and not list(tmp_path.glob("*.pt"))


@pytest.mark.parametrize("call", [{"train": Path("/elsewhere/train-0.pt")}, {"train": train, "place": "/elsewhere"}])
def test_a_machine_that_does_not_see_the_folder_is_told(call):
    with pytest.raises(MupError, match="A worker .* /elsewhere.*choose a folder that every machine sees"):
        execute(__version__, config={}, **call)


class Counts:
    """A train function with a state."""

    calls = 0

    def __call__(self, config):
        self.calls += 1
        return self.calls


def test_nothing_that_a_train_function_holds_carries_over_to_another_run(tmp_path):
    for how in ({"n_workers": 1}, {"engine": Here()}):
        found = quiet(Counts(), tmp_path / str(len(how)), **how)
        assert {r["loss"] for r in found.records} == {1.0}


def test_the_callers_random_numbers_stay(tmp_path):
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    quiet(lambda config: torch.rand(1).item() + np.random.rand() + random.random(), tmp_path, n_workers=1)
    assert states() == before


SCRIPT = """
import os, signal
from pathlib import Path
from neuralop_mup.errors import MupError
from neuralop_mup.lab import sweep

place = {place!r}

def train(config):
    with open(place + "/runs", "a") as file:
        file.write(f"{{config['lr']}}\\n")
    return config["lr"]

def swept(name):
    sweep(train, {{"lr": [1, 2]}}, folder=f"{{place}}/{{name}}", n_workers=2, progress=False)

if __name__ == "__main__":
    for name in ("3", "100"):  # so many processes are killed
        Path(place, "kills").write_text(name)
        try:
            swept(name)
            print("fine")
        except MupError as error:
            print(error)
    Path(place, "kills").write_text("0")
    Path(place, "open").touch()
else:  # a process imports this script before its run
    for i in range(int(Path(place, "kills").read_text())):
        try:
            os.close(os.open(f"{{place}}/killed{{i}}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__" or Path(place, "open").exists():
    swept("without a guard")
"""


def test_processes_that_end_before_their_run_begins(tmp_path):
    """A few that are killed are no death of the run; many, and a script without its main guard, are told."""
    program = tmp_path / "script.py"
    program.write_text(SCRIPT.format(place=str(tmp_path)))
    done = subprocess.run([sys.executable, str(program)], env=environment(), capture_output=True, text=True, timeout=600)
    few, many = done.stdout.splitlines()
    assert few == "fine" and sorted((tmp_path / "runs").read_text().split()) == ["1", "2"]
    cannot = "The worker processes cannot start: each ended before its first run"
    assert many.startswith(cannot) and done.returncode == 1
    assert cannot in done.stderr and "__main__" in done.stderr.splitlines()[-1]


def test_it_starts_where_there_is_no_forking(tmp_path, monkeypatch):
    """Neither SC_AVPHYS_PAGES nor getuid, which macOS and Windows lack, is asked for; processes are spawned."""
    monkeypatch.setattr(engines.sys, "platform", "darwin")
    for name in ("getuid", "sysconf", "sched_getaffinity"):
        monkeypatch.delattr(os, name)
    engine = LocalEngine(1)
    assert engine._context.get_start_method() == "spawn"
    get_problem("burgers", n_train=2, n_val=1, n_test=1, grid=16, viscosity=0.1).load(tmp_path / "cache")
    assert losses(quiet(train, tmp_path, [0.5], engine=engine, seeds=(0,))) == [(0.5, 0, "complete", 2.0)]


def test_nothing_of_this_process_changes(tmp_path):
    before = dict(os.environ), torch.get_num_threads(), signal.getsignal(signal.SIGINT)
    quiet(train, tmp_path, n_workers=2)
    assert (dict(os.environ), torch.get_num_threads(), signal.getsignal(signal.SIGINT)) == before


# Executors


def test_threads_are_refused_with_their_reason(tmp_path):
    engine = ExecutorEngine(ProcessPoolExecutor, n_workers=1)  # a class is a function that makes one
    assert isinstance(engine.executor, ProcessPoolExecutor)
    engine.close()
    with ThreadPoolExecutor(3) as pool, pytest.raises(MupError, match="in threads, where they would draw from each other's"):
        quiet(slow, tmp_path, executor=pool)


def test_the_users_executor_is_left_open_and_takes_as_many_runs_as_is_said(tmp_path):
    with ProcessPoolExecutor(1) as pool:
        assert ExecutorEngine(pool, 7).capacity == 7
        quiet(train, tmp_path, LRS[:2], executor=pool, n_workers=1)
        assert pool.submit(int, 3).result() == 3


def test_a_pool_that_breaks_as_a_whole_is_made_anew_and_only_the_guilty_is_blamed(tmp_path, fixed):
    made = []

    def make():
        made.append(forked())
        return made[-1]

    found = quiet(always_killed, tmp_path / "s", executor=make, n_workers=2, fixed=fixed)
    outcomes = {(r["params"]["lr"], r["seed"]): r["outcome"] for r in found.records}
    assert {key for key, kind in outcomes.items() if kind == "failed"} == {(0.25, 0)}
    assert Counter(outcomes.values()) == {"complete": 10, "failed": 1} and len(made) > 1


def test_an_executor_that_breaks_and_cannot_be_made_anew_is_told(tmp_path, fixed):
    with pytest.raises(
        MupError, match="The executor takes no more runs .*: give the same command a new executor, or a func"
    ):
        quiet(killed_once, tmp_path / "s", executor=forked(), n_workers=2, fixed=fixed)
    again = quiet(killed_once, tmp_path / "s", executor=forked, n_workers=2, fixed=fixed)
    assert {r["outcome"] for r in again.records} == {"complete"} and len(again.records) == 2 * len(LRS)


# Ray


def test_ray_goes_on_when_a_node_dies(tmp_path, cluster, fixed):
    class Nodes(RayExecutor):
        """Kills a node after four runs were sent."""

        sent = 0

        def submit(self, *job, **more):
            self.sent += 1
            if self.sent == 5:
                cluster.remove_node(cluster.other, allow_graceful=False)
            return super().submit(*job, **more)

    assert ExecutorEngine(Nodes).capacity == 2
    found = quiet(slow, tmp_path / "s", executor=Nodes, fixed=fixed)
    assert {r["outcome"] for r in found.records} == {"complete"} and len(found.records) == 2 * len(LRS)
    # The dead node's run, and what it had not handed over, run again.
    assert len(executions(fixed)) == 2 * len(LRS) and executions(fixed).total() <= 2 * len(LRS) + 2
