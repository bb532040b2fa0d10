"""Engines: where runs are executed. Tests with other packages' executors are in tests_ci/test_engines_of_others.py."""

import os
import pickle
import random
import signal
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from neuralop_mup._version import __version__
from neuralop_mup.lab import engines
from neuralop_mup.lab.engines import InlineEngine, LocalEngine, cuda_devices, make_engine
from neuralop_mup.lab.outcome import execute
from neuralop_mup.lab.problems import get_problem
from support.engine_runs import executions, killed, quiet_sweep, train
from support.errors import refused


def test_runs_in_processes_give_the_same_losses_and_survive_kills(tmp_path, fixed, monkeypatch):
    """A killed run is tried once more. The command used to wait forever for the second half of an answer."""

    def state():
        return dict(os.environ), torch.get_num_threads(), signal.getsignal(signal.SIGINT)

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(6), raising=False)
    before, hows = state(), ["never", "once", "once while sending", "always"]
    arguments = {"seeds": (0, 1), "fixed": fixed}
    found = quiet_sweep(killed, tmp_path / "s", {"how": hows}, executor=LocalEngine(3, ["0", "5"]), **arguments)
    assert state() == before
    attempts = {(how, seed): 1 if how == "never" else 2 for how in hows[:3] for seed in (0, 1)}
    assert executions(fixed) == {**attempts, ("always", 0): 2}
    failed = found.records[-1]
    assert (failed["params"], failed["outcome"]) == ({"how": "always"}, "failed")
    inline = {r["seed"]: r["loss"] for r in quiet_sweep(killed, tmp_path / "t", {"how": ["never"]}, **arguments).records}
    complete = found.records[:-1]
    assert [r["loss"] for r in complete] == [inline[r["seed"]] for r in complete]
    # On a busy machine, the first worker may train every run before the second one has started.
    assert {(r["metrics"]["gpu"], r["metrics"]["threads"]) for r in complete} <= {("0", 2), ("5", 2)}


def test_cuda_devices_of_this_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda_devices() == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert cuda_devices() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 7")
    assert cuda_devices() == ["3", "7"]
    assert make_engine(None, train, 9, None, cuda_devices()).capacity == 2


def test_cores_and_processes_on_other_systems(tmp_path, monkeypatch):
    """macOS and Windows have neither sched_getaffinity, getuid nor SC_AVPHYS_PAGES, and forking is not safe there."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert make_engine(None, train, 100).capacity == 2
    monkeypatch.setattr(engines.sys, "platform", "darwin")
    for name in ("getuid", "sysconf", "sched_getaffinity"):
        monkeypatch.delattr(os, name)
    engine = make_engine(None, train, 100)
    assert (engine.capacity, engine._context.get_start_method()) == (64, "spawn")
    get_problem("burgers", n_train=2, n_val=1, n_test=1, grid=16, viscosity=0.1).load(tmp_path / "cache")


# What cannot be sent to processes


def main_module(file):
    """The module of a program from a file, or of a notebook where ``file`` is empty."""
    module = types.ModuleType("__main__")
    module.__dict__.update({"__file__": file} if file else {})
    exec("def train(config): return 1.0", module.__dict__)
    return module


@pytest.mark.parametrize(("file", "reason"), [("", "notebook"), ("<stdin>", "<stdin>"), (None, "lambda")])
def test_runs_stay_in_this_process_when_the_function_cannot_be_sent(file, reason, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(engines, "cores", lambda: 2)
    function = lambda config: 1.0  # noqa: E731
    if file is not None:
        monkeypatch.setitem(sys.modules, "__main__", main_module(file))
        function = sys.modules["__main__"].train
    assert isinstance(make_engine(None, function, 9), InlineEngine) and reason in caplog.text
    with refused("n_workers=1"):
        quiet_sweep(function, tmp_path / "s", n_workers=2)
    assert not (tmp_path / "s").exists()


# One run


@pytest.mark.parametrize(
    ("version", "call", "names"),
    [
        ("9.9", {"train": train}, f"9.9 {__version__}"),
        (__version__, {"train": train, "place": "/elsewhere"}, "/elsewhere"),
    ],
)
def test_a_worker_needs_the_same_version_and_the_folder(version, call, names):
    with refused(names):
        execute(version, config={}, **call)


def test_two_runs_at_once_in_one_process_are_refused():
    begun, over = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(execute, __version__, lambda config: begun.set() or over.wait(), {})
        begun.wait()
        with refused("threads"):
            execute(__version__, train, {})
        over.set()


class Pickling:
    """A user's engine, which pickles what it executes."""

    capacity = 1

    def submit(self, function, /, *args, **kwargs):
        args, kwargs = pickle.loads(pickle.dumps((args, kwargs)))
        return InlineEngine().submit(function, *args, **kwargs)

    def close(self):
        pass


class Counts:
    """A train function with a state."""

    calls = 0

    def __call__(self, config):
        self.calls += 1
        return self.calls


@pytest.mark.parametrize("engine", [InlineEngine, Pickling])
def test_the_state_of_a_train_function_does_not_reach_the_next_run(engine, tmp_path):
    found = quiet_sweep(Counts(), tmp_path, executor=engine())
    assert {r["loss"] for r in found.records} == {1.0}


def test_the_random_state_of_the_caller_is_kept(tmp_path):
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    quiet_sweep(lambda config: torch.rand(1).item() + np.random.rand() + random.random(), tmp_path, {"lr": [1]})
    assert states() == before
