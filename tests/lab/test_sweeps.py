"""Sweeps and transfer of a train function: what is trained, kept, told, tried again and shown."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import threading
import time
import types
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from neuralop_mup._version import __version__
from neuralop_mup.errors import MupError
from neuralop_mup.lab import Results, aligned_table, log2_grid, sweep, transfer, verdict, write_report
from neuralop_mup.lab.outcome import execute
from support.engine_runs import LRS, bowl, executions, kinds, slow, trips
from support.processes import environment
from support.training import train

GRID = log2_grid(2**-7, 2**-2)
TRANSFER = {"proxy": {"width": 8}, "target": {"width": 64}, "space": {"lr": GRID}, "seeds": (0, 1), "n_workers": 1}


def interrupts(config):
    if config["lr"] == 2.0 and not os.path.exists(config["flag"]):
        Path(config["flag"]).touch()
        raise KeyboardInterrupt
    return train(config)


def lines(folder):
    return [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]


def quiet(train, space, folder, **arguments):
    return sweep(train, space, folder=folder, **{"n_workers": 1, "progress": False, **arguments})


@pytest.mark.parametrize(
    ("space", "arguments", "says"),
    [
        ({}, {}, "empty|give a dict"),
        ({"lr": 0.1}, {}, "lr=\\[0.1\\]"),
        ({"lr": []}, {}, "at least one"),
        ({"lr": [1, 1.0]}, {}, "twice"),
        ({"lr": [math.nan]}, {}, "finite"),
        ({"opt": [object()]}, {}, "cannot be written down"),
        ({"seed": [1]}, {}, "sets itself"),
        ({"lr": [1]}, {"fixed": {"lr": 2}}, "both in space and in fixed"),
        ({"lr": [1]}, {"seeds": 3}, "seeds=\\(3,\\)"),
        ({"lr": [1]}, {"seeds": (0, 0)}, "distinct"),
        ({"lr": [1]}, {"n_workers": 0}, "n_workers"),
        ({"lr": [1]}, {"engine": "rai"}, "local, ray"),
        ({"lr": [1]}, {"executor": 3}, "executor"),
        ({"lr": [1]}, {"engine": "local", "executor": lambda: None}, "two ways"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path, space, arguments, says):
    with pytest.raises(MupError, match=says):
        quiet(train, space, tmp_path / "study", **arguments)
    assert not (tmp_path / "study").exists()


# What runs, and what is kept of it


def test_a_grid_runs_every_point_once_and_its_table_is_for_people(tmp_path, fixed, capsys):
    space = {"lr": [0.5, 0.25], "n_modes": [(4, 4), (8, 8)]}
    found = quiet(bowl, space, tmp_path / "s", seeds=(3, 4), fixed=fixed)
    assert capsys.readouterr().err == ""
    assert sorted(executions(fixed).elements()) == sorted([(lr, s) for lr in (0.5, 0.25) for s in (3, 4)] * 2)
    assert len(found.records) == 8 and found.records == lines(tmp_path / "s")
    assert found.best == {"lr": 0.25, "n_modes": [4, 4]}
    # (log2 0.25 + 4)^2 / 10 = 0.4, floor 2, the noise of seeds 3 and 4 cancels.
    assert found.best_loss == pytest.approx(2.4)
    assert {"size", "rule", "params", "seed", "outcome", "error", "loss", "metrics", "seconds"} < set(found.records[0])


def test_how_runs_end_whose_fault_it_is_and_what_is_tried_again(tmp_path, fixed, capsys):
    """Twice within a command where the surroundings are to blame; what failed is tried again by the next one."""
    finals = {"complete": "complete", "refused": "refused", "diverged": "diverged", "inf": "diverged"}
    around = ("dies", "no space", "no memory", "no module", "told of the disk")
    hows = [*finals, "bug", "exits", "killed once", *around]
    space = {"how": hows}
    arguments = {"n_workers": 2, "fixed": {**fixed, "lr": 0}}
    found = quiet(kinds, space, tmp_path / "s", progress=True, **arguments)
    shown = capsys.readouterr().err
    got = {r["params"]["how"]: r for r in found.records}
    assert {how: got[how]["outcome"] for how in hows} == {
        **dict.fromkeys(hows, "failed"),
        **finals,
        "killed once": "complete",
    }
    assert "terminated abruptly" in got["dies"]["error"]
    assert got["bug"]["error"] == "ValueError: oops" and "Traceback" in got["bug"]["traceback"]
    assert got["complete"]["metrics"] == {"loss": 1.0, "train_loss": None}
    assert got["inf"]["loss"] is None and got["inf"]["error"] == "the loss is inf"
    assert "DIVERGED" in shown and "REFUSED" in shown and "FAILED" in shown and "it runs once more" in shown
    times = {how: 2 if how in (*around, "killed once") else 1 for how in hows}
    assert sum(executions(fixed).values()) == sum(times.values())
    quiet(kinds, space, tmp_path / "s", **arguments)
    again = {how: n * (2 if got[how]["outcome"] == "failed" else 1) for how, n in times.items()}
    assert sum(executions(fixed).values()) == sum(again.values())


@pytest.mark.parametrize("value", ["text", {"error": 1}, None])
def test_a_train_function_that_returns_no_loss_is_told_so(tmp_path, value):
    (record,) = quiet(lambda config: value, {"lr": [0.5]}, tmp_path).records
    assert record["outcome"] == "failed" and record["error"].startswith("TypeError: train returned")


def test_a_train_function_cannot_change_its_configuration(tmp_path):
    def greedy(config):
        return config.pop("lr") + config["nested"].pop()

    found = quiet(greedy, {"lr": [1.0, 2.0]}, tmp_path, fixed={"nested": [3]})
    assert [r["loss"] for r in found.records] == [4.0, 5.0]


def test_two_runs_in_one_process_are_refused():
    begun, over = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(execute, __version__, lambda config: begun.set() or over.wait(), {})
        begun.wait()
        with pytest.raises(MupError, match="in one process at once, in threads"):
            execute(__version__, train, {})
        over.set()
    with pytest.raises(MupError, match="A worker has neuralop_mup .*and the command that sends it runs has 9.9"):
        execute("9.9", train, {})


def test_a_train_function_may_itself_sweep(tmp_path):
    def best_of(config):
        return quiet(lambda inner: inner["lr"] + config["offset"], {"lr": [1.0, 2.0]}, tmp_path / "inner").best_loss

    assert quiet(best_of, {"offset": [1.0]}, tmp_path / "outer").best_loss == 2.0


@pytest.mark.parametrize(("where", "error"), [(8, "KeyError"), (8, "OSError"), (64, "KeyError")])
def test_what_failed_goes_on_once_its_cause_is_mended(tmp_path, fixed, where, error):
    arguments = {**TRANSFER, "progress": False, "fixed": {**fixed, "where": where, "error": error}}
    if where == 8:
        with pytest.raises(MupError, match=r"first failure: .*Once its cause is mended, the same call on the same folder"):
            transfer(trips, folder=tmp_path / "s", **arguments)
    else:
        found = transfer(trips, folder=tmp_path / "s", **arguments)
        assert {r["outcome"] for r in found.records if r["size"] == "target"} == {"failed"}
    Path(fixed["flag"]).touch()
    found = transfer(trips, folder=tmp_path / "s", **arguments)
    # 6 values, 2 seeds, at the proxy, and one value under two rules at the target.
    assert len(found.records) == 16 and all(r["outcome"] == "complete" for r in found.records)
    assert found.best == {"lr": GRID[0]}


def test_a_disk_that_is_full_once_and_free_again(tmp_path, fixed, monkeypatch):
    """The command says so; the next one goes on, and what was kept is not trained again."""
    whole, n = os.replace, [0]

    def full(*paths):
        n[0] += str(paths[1]).endswith("document.json")
        if n[0] == 3:
            raise OSError(28, "No space left on device")
        return whole(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(MupError, match="Cannot write to the folder .*No space left on device. Free space there"):
            quiet(train, {"lr": LRS}, tmp_path / "s", fixed=fixed)
    assert len(quiet(train, {"lr": LRS}, tmp_path / "s", fixed=fixed).records) == 6
    assert sorted(executions(fixed).values()) == [1, 1, 1, 1, 1, 2]


# What another function gave does not come back


def around(at):
    return lambda config: (config["lr"] - at) ** 2


def around_first(at):
    held = [at]
    return lambda config: (config["lr"] - held[0]) ** 2


def around_default(at):
    def train(config, at=at):
        return (config["lr"] - at) ** 2

    return train


class Around:
    def __init__(self, settings):
        self.settings = settings

    def __call__(self, config):
        return (config["lr"] - self.settings["at"][-1]) ** 2


def of_array(config, values):
    return float((config["lr"] - values[1000]) ** 2)


def values(at):
    return np.where(np.arange(3000) == 1000, at, 0.0)


def around_of_a_module(at):
    module = types.ModuleType(f"module{int(10 * at)}")
    exec(f"def train(config): return (config['lr'] - {at}) ** 2", module.__dict__)
    return module.train


def around_fixed(config):
    return float((config["lr"] - config["values"][1000]) ** 2)


@pytest.mark.parametrize(
    "make",
    [
        around,
        around_first,
        around_default,
        around_of_a_module,
        lambda at: Around({"at": (0, at)}),
        lambda at: Around({"at": (0, at)}).__call__,
        lambda at: functools.partial(of_array, values=values(at)),
        pytest.param({"fixed": values}, id="fixed"),
        pytest.param({"fixed": lambda at: torch.tensor(values(at)) * (1 + 1e-6)}, id="fixed tensor"),
    ],
)
def test_each_train_function_has_runs_of_its_own(make, tmp_path):
    """Two lambdas, closures, defaults, classes, one name in two modules, arrays of which repr shows a part."""
    for at in (0.25, 1.0, 0.25):
        how = {"fixed": {"values": make["fixed"](at)}} if isinstance(make, dict) else {}
        train = around_fixed if how else make(at)
        assert quiet(train, {"lr": [0.25, 0.5, 1.0]}, tmp_path, **how).best == {"lr": at}
    assert len(list((tmp_path / "workspace").iterdir())) == 6  # the third call found what the first one kept


def test_what_cannot_be_told_from_others_is_trained_each_time(tmp_path):
    lock, calls = threading.Lock(), []

    def train(config):
        with lock:
            calls.append(config["lr"])
        return config["lr"]

    for _ in range(2):
        with pytest.warns(UserWarning, match="cannot pickle '_thread.lock'.* trained anew by each call"):
            assert quiet(train, {"lr": [1.0, 2.0]}, tmp_path, seeds=np.arange(2)).best == {"lr": 1.0}
    assert calls == [1.0, 2.0, 1.0, 2.0] * 2


def test_many_points_are_read_back_and_planned_in_no_time(tmp_path, monkeypatch):
    """Once quadratic: 28 s for these."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    space = {"lr": [1 + i / 1600 for i in range(1600)]}
    for most in (10, 2):
        begun = time.process_time()
        found = quiet(train, space, tmp_path)
        assert len(found.records) == 1600 and time.process_time() - begun < most


# Folders


def test_a_repeated_call_runs_nothing_and_any_number_of_studies_share_a_folder(tmp_path, fixed):
    first = quiet(train, {"lr": LRS[:2]}, tmp_path, fixed=fixed)
    assert quiet(train, {"lr": LRS[:2]}, tmp_path, fixed=fixed).records == first.records
    grown = quiet(train, {"lr": LRS[:3]}, tmp_path, fixed=fixed, seeds=(0, 1))
    assert executions(fixed) == {(lr, s): 1 for lr in LRS[:3] for s in (0, 1)} and len(grown.records) == 6
    other = quiet(train, {"lr": LRS[:2]}, tmp_path, fixed={**fixed, "epochs": 3})
    another = quiet(bowl, {"lr": LRS[:2]}, tmp_path, fixed=fixed)
    assert len(other.records) == len(another.records) == 2 and another.best_loss != other.best_loss
    assert executions(fixed)[LRS[0], 0] == 3 and lines(tmp_path) == another.records
    assert quiet(train, {"lr": LRS[:2]}, tmp_path, fixed=fixed).records == first.records


SCRIPT = """
import sys
from engine_runs import LRS, slow
from neuralop_mup.lab import sweep
if __name__ == "__main__":
    sweep(slow, {{"lr": LRS}}, folder={folder!r}, fixed={fixed!r}, n_workers=2)
"""


def lives(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_killed_command_loses_only_what_was_under_way(tmp_path, fixed):
    folder, script = tmp_path / "s", tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=str(folder), fixed=fixed))
    with subprocess.Popen([sys.executable, str(script)], env=environment(), stderr=subprocess.PIPE, text=True) as driver:
        while executions(fixed).total() < 4:  # two at once
            time.sleep(0.02)
        Path(fixed["flag"]).touch()
        with pytest.raises(MupError, match="Another run is using"):
            quiet(slow, {"lr": LRS}, folder, fixed=fixed)
        time.sleep(0.3)
        below = psutil.Process(driver.pid).children(recursive=True)
        driver.kill()
    end = time.monotonic() + 120  # what is under way would go on as long as the flag is there
    while any(map(lives, below)) and time.monotonic() < end:
        time.sleep(0.05)
    assert len(below) >= 3 and not any(map(lives, below))
    before = executions(fixed)
    Path(fixed["flag"]).unlink()
    found = quiet(slow, {"lr": LRS}, folder, fixed=fixed)
    twice = {key for key, n in executions(fixed).items() if n == 2}
    assert set(executions(fixed)) == {(lr, 0) for lr in LRS} and len(before) - len(twice) >= 2 and len(twice) <= 2
    assert [r["outcome"] for r in found.records] == ["complete"] * 6


def test_ctrl_c_says_where_to_go_on(tmp_path, capsys, fixed):
    arguments = {"fixed": fixed, "progress": True}
    with pytest.raises(KeyboardInterrupt, match="the same command resumes"):
        quiet(interrupts, {"lr": [1.0, 2.0, 3.0]}, tmp_path / "s", **arguments)
    assert f"Finished runs are in {tmp_path / 's'}" in capsys.readouterr().err
    assert len(quiet(interrupts, {"lr": [1.0, 2.0, 3.0]}, tmp_path / "s", **arguments).records) == 3
    assert executions(fixed) == {(lr, 0): 1 for lr in (1.0, 2.0, 3.0)}


# Transfer


def test_transfer_on_an_example_worked_by_hand(tmp_path, fixed, capsys):
    """Losses are floor + (log2 lr - optimum)^2 / 10 -+ 0.01 by seed, so means over both seeds have no noise.

    Proxy: optimum -4, so the best lr is 2^-4, and that is transferred. At the target (floor 0.5): under operator-norm the
    optimum is -5, 0.5 + 1/10 = 0.6; standard, -6: 0.5 + 4/10 = 0.9; none, -3: 0.5 + 1/10 = 0.6.
    """
    rules = {"operator-norm": 0.6, "standard": 0.9, "none": 0.6}
    arguments = {**TRANSFER, "fixed": fixed, "rules": tuple(rules)}
    found = transfer(bowl, folder=tmp_path / "t", **arguments)
    out = capsys.readouterr().out
    assert out.startswith("Tuned at the proxy, ") and "Carried to the target, " in out
    assert found.best == {"lr": 2**-4}
    rows = {row["rule"]: row for row in found.summary() if row["size"] == "target"}
    assert list(rows) == list(rules)
    for rule, loss in rules.items():
        assert rows[rule]["transferred"] == {"lr": 2**-4} and rows[rule]["transferred_loss"] == pytest.approx(loss)
    # 6 points, 2 seeds: at the proxy; the carried one at the target under each of three rules.
    assert Counter((r["size"], r["rule"]) for r in found.records) == {
        ("proxy", "operator-norm"): 12,
        **{("target", rule): 2 for rule in rules},
    }
    assert executions(fixed).total() == 18 and found.records == lines(tmp_path / "t")
    loaded = Results.load(tmp_path / "t")
    assert loaded.best == found.best and loaded.records == found.records
    assert transfer(bowl, folder=tmp_path / "t", **arguments).records == found.records
    assert executions(fixed).total() == 18


def test_a_transfer_of_ones_own_gives_the_report_that_the_guide_shows(tmp_path):
    result = transfer(bowl, folder=tmp_path, progress=False, **TRANSFER)
    for found in (result, Results.load(tmp_path)):
        page = write_report(found, settings={"optimizer": "MuAdam"}, command="python mine.py").read_text()
        assert verdict(found)[0] in page and aligned_table(found) in page and "python mine.py" in page
    assert (tmp_path / "lr.png").stat().st_size > 5_000


def test_results_that_are_not_there_are_told(tmp_path):
    with pytest.raises(MupError, match="holds no study"):
        Results.load(tmp_path)
    with pytest.raises(MupError, match="No point of the proxy"):
        transfer(lambda c: math.nan, folder=tmp_path, progress=False, **TRANSFER)
    with pytest.raises(MupError, match="has not reached its last size"):
        Results.load(tmp_path)
    found = quiet(lambda config: math.nan, {"lr": [0.5]}, tmp_path)
    with pytest.raises(MupError, match="the loss is nan"):
        _ = found.best
    assert found.best_loss == math.inf
