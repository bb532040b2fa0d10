"""Sweeps and transfer on synthetic losses, with kills, crashes and full resumes."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from processes import environment

from neuralop_mup.errors import Diverged, MupError
from neuralop_mup.tuning import Results, log2_grid, sweep, transfer, transfer_study
from neuralop_mup.tuning.outcome import is_final
from neuralop_mup.tuning.progress import Progress
from neuralop_mup.tuning.study import Study, refuse_other_settings, with_former_rules

GRID = log2_grid(2**-7, 2**-2)


# Train functions: at module level, as worker processes must be able to import them.


def bowl(config):
    """A parabola in log2 lr. The optimum: -4 at the proxy; at the target -5 under log-modes and -6 under standard."""
    mark(config, "run")
    optimum, floor = -4, 2.0
    if config.get("model", {}).get("width") == 64:
        optimum, floor = {"operator-norm": -5, "standard": -6, "none": -3}[config["rule"]], 0.5
    noise = 0.01 * (-1) ** config["seed"]
    return {"loss": floor + 0.1 * (math.log2(config["lr"]) - optimum) ** 2 + noise, "threads": threads()}


def mark(config, what):
    if "log" in config:
        with open(config["log"], "a") as file:
            file.write(json.dumps([what, config.get("rule"), config.get("model"), config["lr"], config["seed"]]) + "\n")


def threads():
    return os.environ.get("OMP_NUM_THREADS")


def slow(config):
    """Takes a while, and as long as the flag is there."""
    mark(config, "run")
    time.sleep(0.1)
    while os.path.exists(config["flag"]):
        time.sleep(0.02)
    return math.log2(config["lr"]) ** 2


def fragile(config):
    """Diverges at the highest lr; raises at the next one with seed 1; else lower is better the higher lr is."""
    if config["lr"] == 0.25:
        return {"loss": math.nan, "train_loss": math.inf}
    if config["lr"] == 0.125 and config["seed"] == 1:
        raise RuntimeError("out of\nluck")
    return 1 / config["lr"]


def deadly(config):
    """Ends its process: always at lr 0.5, once (as long as the flag is missing) at lr 0.25."""
    mark(config, "run")
    if config["lr"] == 0.5:
        os._exit(3)
    if config["lr"] == 0.25 and not os.path.exists(config["flag"]):
        Path(config["flag"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return config["lr"]


def always_nan(config):
    return math.nan


def valley(config):
    if config["lr"] > 0.5:
        return math.nan
    return (math.log10(config["lr"]) + 2) ** 2 + 0.001 * config["seed"] + {"a": 0.0, "b": 1.0}[config["kind"]]


def interrupts(config):
    mark(config, "run")
    if config["lr"] == 2.0 and not os.path.exists(config["flag"]):
        Path(config["flag"]).touch()
        raise KeyboardInterrupt
    return config["lr"]


def executions(log):
    if not Path(log).exists():
        return Counter()
    return Counter(tuple(json.loads(line)[3:]) for line in Path(log).read_text().splitlines())


def lines(folder):
    return [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]


def optuna_trials(folder, name):
    import optuna
    from optuna.storages.journal import JournalFileBackend

    storage = optuna.storages.JournalStorage(JournalFileBackend(str(Path(folder).resolve() / "journal.log")))
    return optuna.load_study(study_name=name, storage=storage).trials


def quiet(train, space, folder, **arguments):
    return sweep(train, space, folder=folder, **{"n_workers": 1, "progress": False, **arguments})


TRANSFER = {"proxy": {"width": 8}, "target": {"width": 64}, "space": {"lr": GRID}, "seeds": (0, 1), "n_workers": 1}


# Spaces


def test_log2_grid_has_both_ends_and_factor_two():
    assert log2_grid(0.125, 2) == [0.125, 0.25, 0.5, 1.0, 2.0]
    assert log2_grid(1e-3, 1e-3) == [1e-3]
    grid = log2_grid(1e-4, 1e-4 * 2**20)
    assert len(grid) == 21 and grid[-1] == 1e-4 * 2**20


@pytest.mark.parametrize(
    ("ends", "says"),
    [((1e-3, 1e-1), "0.064 or 0.128"), ((2, 1), "swap"), ((0, 1), "positive"), ((1, math.inf), "finite")],
)
def test_log2_grid_refuses(ends, says):
    with pytest.raises(MupError, match=says):
        log2_grid(*ends)


@pytest.mark.parametrize(
    ("space", "arguments", "says"),
    [
        ({}, {}, "empty|give a dict"),
        ({"lr": 0.1}, {}, "lr=\\[0.1\\]"),
        ({"lr": []}, {}, "no values"),
        ({"lr": [1, 1.0]}, {}, "twice"),
        ({"lr": [math.nan]}, {}, "finite"),
        ({"opt": [object()]}, {}, "journal"),
        ({"seed": [1]}, {}, "sets itself"),
        ({"lr": [1]}, {"fixed": {"lr": 2}}, "both in space and in fixed"),
        ({"lr": [1]}, {"seeds": 3}, "seeds=\\(3,\\)"),
        ({"lr": [1]}, {"seeds": (0, 0)}, "distinct"),
        ({"lr": [1]}, {"n_trials": 4}, "leave it out"),
        ({"lr": [1]}, {"n_workers": 0}, "n_workers"),
        ({"lr": [1]}, {"name": "a/b"}, "cannot name"),
        ({"lr": [1]}, {"rungs": (2,)}, "rungs"),
        ({"lr": [1]}, {"engine": "rai"}, "local, ray"),
        ({"lr": [1]}, {"executor": 3}, "executor"),
        ({"lr": [1]}, {"engine": "local", "executor": lambda: None}, "two ways"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path, space, arguments, says):
    with pytest.raises(MupError, match=says):
        quiet(slow, space, tmp_path / "study", **arguments)
    assert not (tmp_path / "study").exists()


# Grids


def test_grid_runs_every_point_once_seed_by_seed(tmp_path):
    log = tmp_path / "log"
    space = {"lr": [0.5, 0.25], "n_modes": [(4, 4), (8, 8)]}
    found = quiet(bowl, space, tmp_path / "s", seeds=(3, 4), fixed={"log": str(log)})
    order = [json.loads(line)[3:] for line in log.read_text().splitlines()]
    assert order == [[lr, s] for s in (3, 4) for lr in (0.5, 0.5, 0.25, 0.25)]
    assert len(found.records) == 8 and found.records == lines(tmp_path / "s")
    assert found.best == {"lr": 0.25, "n_modes": [4, 4]}
    # (log2 0.25 + 4)^2 / 10 = 0.4, floor 2, the noise of seeds 3 and 4 cancels.
    assert found.best_loss == pytest.approx(2.4)
    assert set(found.records[0]) == {*("size", "rule", "params", "seed", "outcome", "error", "loss", "metrics", "seconds")}


def test_workers_give_the_same_results_in_the_same_order_as_one_process(tmp_path):
    space = {"lr": GRID[:3]}
    one = quiet(bowl, space, tmp_path / "one", seeds=(0, 1))
    two = quiet(bowl, space, tmp_path / "two", seeds=(0, 1), n_workers=2)

    def strip(records):
        return [{k: v for k, v in r.items() if k not in ("seconds", "metrics")} for r in records]

    assert strip(one.records) == strip(two.records) == strip(lines(tmp_path / "two"))
    assert {r["metrics"]["threads"] for r in two.records} == {str(max(1, os.cpu_count() // 2))}
    assert os.environ.get("OMP_NUM_THREADS") == threads()


def test_failed_runs_are_kept_do_not_compete_and_stop_their_point(tmp_path, capsys):
    """By hand: 0.25 diverges with seed 0, so seed 1 is not run; 0.125 raises with seed 1; 0.0625 completes."""
    space = {"lr": [0.0625, 0.125, 0.25]}
    found = quiet(fragile, space, tmp_path, seeds=(0, 1), progress=True)
    shown = capsys.readouterr().err
    by = {(r["params"]["lr"], r["seed"]): r for r in found.records}
    assert set(by) == {(0.0625, 0), (0.0625, 1), (0.125, 0), (0.125, 1), (0.25, 0)}
    assert (by[0.25, 0]["outcome"], by[0.25, 0]["error"]) == ("diverged", "the loss is nan")
    assert by[0.25, 0]["loss"] is None and by[0.25, 0]["metrics"] == {"loss": None, "train_loss": None}
    assert (by[0.125, 1]["outcome"], by[0.125, 1]["error"]) == ("raised", "RuntimeError: out of luck")
    assert by[0.125, 0]["loss"] == 8.0
    # 1/0.125 = 8 beats 1/0.0625 = 16, but its seed 1 failed.
    assert found.best == {"lr": 0.0625}
    assert "DIVERGED" in shown and "RAISED" in shown and "out of luck" in shown and str(tmp_path) in shown
    assert "best so far 16 at lr=0.0625, mean of 2 seeds, which 1 of 2 points has yet" in shown
    assert "[5/5]" in shown and "best so far 16 at lr=0.0625, mean of 2 seeds" in shown
    trials = optuna_trials(tmp_path, "sweep")
    assert {t.params["lr"]: t.state.name for t in trials} == {0.0625: "COMPLETE", 0.125: "FAIL", 0.25: "PRUNED"}
    # The seeds are reports, their mean is the value, and Optuna's best trial is ours.
    complete = next(t for t in trials if t.state.name == "COMPLETE")
    assert complete.intermediate_values == {0: 16.0, 1: 16.0} and complete.value == found.best_loss == 16.0
    assert "out of" in next(t for t in trials if t.state.name == "FAIL").user_attrs["traceback:1"]


def kinds(config):
    """Every way to end."""
    if config["how"] == "lost":
        os._exit(1)
    errors = {"refused": MupError("no"), "diverged": Diverged("inf"), "raised": ValueError("oops"), "exits": SystemExit(3)}
    if config["how"] in errors:
        raise errors[config["how"]]
    return math.inf if config["how"] == "inf" else 1.0


@pytest.mark.usefixtures("light_workers")
def test_the_kind_of_an_outcome_is_a_value(tmp_path):
    hows = ["complete", "refused", "diverged", "inf", "raised", "exits", "lost"]
    found = quiet(kinds, {"how": hows}, tmp_path, n_workers=2)
    got = {r["params"]["how"]: r["outcome"] for r in found.records}
    assert got == {h: {"inf": "diverged", "exits": "raised"}.get(h, h) for h in hows}
    assert {r["params"]["how"] for r in found.records if not is_final(r)} == {"raised", "exits", "lost"}


REFUSED = {0.03125: MupError, 0.0625: KeyError, 0.125: MemoryError}


def careless(config):
    """Refuses lr 1/32 and trips at 1/16 and 1/8, both while the flag is missing; diverges above 1/2."""
    mark(config, "run")
    if not os.path.exists(config["flag"]) and config["seed"] == 0 and (error := REFUSED.get(config["lr"])):
        raise error("no luck.")
    return math.nan if config["lr"] == 1.0 else config["lr"]


def test_what_raised_runs_again_once_and_what_diverged_or_was_refused_does_not(tmp_path, capsys):
    """By hand: 5 values, 2 seeds. With seed 0, 1/32 is refused, 1/16 and 1/8 raise and 1.0 diverges: seed 1 waits for
    them."""
    fixed = {"log": str(tmp_path / "log"), "flag": str(tmp_path / "flag")}
    space, arguments = {"lr": [0.03125, 0.0625, 0.125, 0.25, 1.0]}, {"fixed": fixed, "seeds": (0, 1)}
    found = quiet(careless, space, tmp_path, **arguments)
    assert sum(r["outcome"] != "complete" for r in found.records) == 4 and found.best == {"lr": 0.25}
    # Not mended yet: two runs fail once more.
    assert [r["error"] for r in quiet(careless, space, tmp_path, **arguments).records] == [r["error"] for r in found.records]
    Path(fixed["flag"]).touch()
    mended = quiet(careless, space, tmp_path, **arguments, progress=True)
    assert "run again: 2\n" in capsys.readouterr().err
    assert [r["params"]["lr"] for r in mended.records if r["outcome"] != "complete"] == [0.03125, 1.0]
    assert mended.best == {"lr": 0.0625} and len(mended.records) == len(lines(tmp_path)) == 8
    assert quiet(careless, space, tmp_path, **arguments).records == mended.records
    runs = executions(fixed["log"])
    assert runs == {
        **{(0.03125, 0): 1, (1.0, 0): 1, (0.25, 0): 1, (0.25, 1): 1},
        **{(0.0625, 0): 3, (0.125, 0): 3, (0.0625, 1): 1, (0.125, 1): 1},
    }


def trips_first(config):
    mark(config, "run")
    if config["seed"] == 0 and not os.path.exists(config["flag"]):
        raise KeyError("loss")
    return config["lr"]


def test_a_search_goes_on_with_points_that_raised(tmp_path):
    """Killed wherever it may be after the bug is mended, the search ends where one that is not killed does."""
    fixed = {"log": str(tmp_path / "log"), "flag": str(tmp_path / "flag")}
    arguments = {"n_trials": 4, "seeds": (0, 1), "fixed": fixed}
    found = quiet(trips_first, search_space(), tmp_path, **arguments)
    assert [r["outcome"] for r in found.records] == ["raised"] * 4
    path = tmp_path / "journal.log"
    before = path.read_bytes()
    Path(fixed["flag"]).touch()
    mended = quiet(trips_first, search_space(), tmp_path, **arguments)
    losses = [(r["params"], r["seed"], r["loss"]) for r in mended.records]
    assert [r["params"] for r in found.records] == [loss[0] for loss in losses if loss[1] == 0]
    assert None not in [loss for *_, loss in losses] and len(losses) == 8
    assert sorted(executions(fixed["log"]).values()) == [1] * 4 + [2] * 4
    rows = path.read_bytes()[len(before) :].splitlines(keepends=True)
    for cut in range(len(rows)):
        path.write_bytes(before + b"".join(rows[:cut]))
        resumed = quiet(trips_first, search_space(), tmp_path, **arguments)
        assert [(r["params"], r["seed"], r["loss"]) for r in resumed.records] == losses
    assert all(t.state.is_finished() for t in optuna_trials(tmp_path, "sweep"))


def test_a_transfer_that_raised_says_how_to_go_on_and_does_so(tmp_path):
    arguments = {**TRANSFER, "verify": True, "progress": False}
    fixed = {"log": str(tmp_path / "log"), "flag": str(tmp_path / "flag")}
    with pytest.raises(MupError, match=r"first failure: KeyError: 'loss'\. Once its cause is mended, the same call"):
        transfer(trips_first, folder=tmp_path / "run", fixed=fixed, **arguments)
    Path(fixed["flag"]).touch()
    found = transfer(trips_first, folder=tmp_path / "run", fixed=fixed, **arguments)
    assert all(r["outcome"] == "complete" for r in found.records) and found.best == {"lr": GRID[0]}


def trips_at_the_target(config):
    mark(config, "run")
    if config["model"]["width"] == 64 and not os.path.exists(config["flag"]):
        raise KeyError("loss")
    return config["lr"]


def test_runs_that_raised_at_the_target_run_again(tmp_path):
    arguments = {**TRANSFER, "verify": True, "progress": False}
    fixed = {"log": str(tmp_path / "log"), "flag": str(tmp_path / "flag")}
    found = transfer(trips_at_the_target, folder=tmp_path / "run", fixed=fixed, **arguments)
    assert {r["outcome"] for r in found.records if r["size"] == "target"} == {"raised"}
    Path(fixed["flag"]).touch()
    again = transfer(trips_at_the_target, folder=tmp_path / "run", fixed=fixed, **arguments)
    # 6 values, 2 seeds, at the proxy and under two rules at the target.
    assert len(again.records) == 36 and all(r["outcome"] == "complete" for r in again.records)


def test_progress_false_is_silent(tmp_path, capfd):
    quiet(fragile, {"lr": [0.25, 0.5]}, tmp_path)
    assert capfd.readouterr() == ("", "")


def test_best_of_a_sweep_that_failed_says_why(tmp_path):
    found = quiet(always_nan, {"lr": [0.5]}, tmp_path)
    with pytest.raises(MupError, match="the loss is nan"):
        _ = found.best
    assert found.best_loss == math.inf


@pytest.mark.parametrize("value", ["text", {"error": 1}, None])
def test_a_train_function_that_returns_no_loss_is_told_so(tmp_path, value):
    (record,) = quiet(lambda config: value, {"lr": [0.5]}, tmp_path).records
    assert record["outcome"] == "raised" and record["error"].startswith("TypeError: train returned")


# Resume


def test_a_finished_sweep_runs_nothing_and_growth_runs_only_what_is_new(tmp_path):
    fixed = {"log": str(tmp_path / "log")}
    quiet(bowl, {"lr": [0.5, 0.25]}, tmp_path, fixed=fixed)
    quiet(bowl, {"lr": [0.5, 0.25]}, tmp_path, fixed=fixed)
    assert executions(fixed["log"]) == {(0.5, 0): 1, (0.25, 0): 1}
    grown = quiet(bowl, {"lr": [0.125, 0.5, 0.25]}, tmp_path, fixed=fixed, seeds=(0, 1))
    assert executions(fixed["log"]) == {(lr, s): 1 for lr in (0.5, 0.25, 0.125) for s in (0, 1)}
    assert len(grown.records) == len(lines(tmp_path)) == 6


@pytest.mark.parametrize(
    ("space", "arguments", "says"),
    [
        ({"lr": [0.5]}, {}, "grid.lr was .0.5, 0.25. and is now .0.5."),
        ({"lr": [0.5, 0.25], "wd": [0]}, {}, "grid.wd was None and is now .0."),
        ({"lr": [0.5, 0.25]}, {"fixed": {"epochs": 3}}, "settings: fixed.epochs was 2 and is now 3. Its"),
        ({"lr": [0.5, 0.25]}, {"seeds": (1,)}, "seeds was"),
        ({"lr": [0.5, 0.25]}, {"train": slow}, "train was .*bowl.* is now .*slow"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(tmp_path, space, arguments, says):
    quiet(bowl, {"lr": [0.5, 0.25]}, tmp_path, fixed={"epochs": 2})
    before = (tmp_path / "journal.log").read_bytes()
    arguments = {"fixed": {"epochs": 2}, "train": bowl, **arguments}
    with pytest.raises(MupError, match=f"(?s){says}.*choose another folder"):
        quiet(arguments.pop("train"), space, tmp_path, **arguments)
    assert (tmp_path / "journal.log").read_bytes() == before


def test_rules_come_and_go_but_mean_what_they_meant():
    """What is compared changes no run; settings that belong to a rule do, even where the rule was left out in between."""
    sizes = {"proxy": {"n": 1}, "target": {"n": 2}}
    space, under = {"lr": [0.5]}, {"a": {"clip": 1}, "b": {"clip": 2}}

    def settings(rules, searched=(), **changed):
        rows = {rule: {**under, **changed}[rule] for rule in rules}
        study = Study(name="s", sizes=sizes, space=space, seeds=(0,), rules=rules, searched=searched, under=rows)
        return json.loads(json.dumps(replace(study, base_rules=dict.fromkeys(rules, "a")).settings))

    both, one = settings(("a", "b"), ("a", "b")), settings(("a",), ("a",))
    refuse_other_settings(both, one, "here")
    kept = with_former_rules(both, one)
    refuse_other_settings(kept, settings(("a", "b"), ("a", "b")), "here")
    refuse_other_settings(with_former_rules(one, both), both, "here")
    for rules, changed in ((("a",), {"a": {"clip": 3}}), (("a", "b"), {"b": {"clip": 3}})):
        with pytest.raises(MupError, match="under was"):
            refuse_other_settings(kept, settings(rules, rules, **changed), "here")
    with pytest.raises(MupError, match="searched was"):
        refuse_other_settings(both, settings(("a", "b"), ("b",)), "here")
    # A rule whose formula changed since would be mixed with its former runs, even if it is asked for later only.
    for rules in (("operator-norm",), ("a",)):
        old = with_former_rules({**both, "rules": ["operator-norm", "a"], "rule_version": 1}, one)
        with pytest.raises(MupError, match="operator-norm has another formula"):
            refuse_other_settings({**old, "rule_version": 1}, {**one, "rules": list(rules)}, "here")


def test_a_folder_without_a_finished_run_takes_other_settings(tmp_path):
    """What only raised is no result; one finished run is."""
    with pytest.raises(MupError, match="No point of the proxy completed"):
        transfer(raises, folder=tmp_path, progress=False, **{**TRANSFER, "n_workers": 1})
    quiet(bowl, {"lr": [0.5]}, tmp_path, fixed={"epochs": 2})
    assert list(optuna_trials(tmp_path, "sweep"))
    with pytest.raises(MupError, match="fixed.epochs was 2 and is now 3"):
        quiet(bowl, {"lr": [0.5]}, tmp_path, fixed={"epochs": 3})


def raises(config):
    raise RuntimeError("out of luck")


def test_long_silence_is_broken(tmp_path, capsys, monkeypatch):
    """A line after half a minute without one, then after a minute, and so on; a line of a run starts the wait anew."""
    now = [0.0]
    monkeypatch.setattr("neuralop_mup.tuning.progress.time.monotonic", lambda: now[0])
    display = Progress("s", {None: 3}, {}, True)
    display.start(tmp_path, [], 1)
    told = []
    for seconds in (10, 20, 31, 60, 90, 92, 200, 212):
        now[0] = seconds
        capsys.readouterr()
        display.tick()
        told += [seconds] if "[0/3] still training" in capsys.readouterr().err else []
    assert told == [31, 92, 212]


def test_a_folder_holds_one_study(tmp_path):
    quiet(bowl, {"lr": [0.5]}, tmp_path, name="a")
    with pytest.raises(MupError, match="already holds another study .'a'., not 'b'"):
        quiet(bowl, {"lr": [0.25]}, tmp_path, name="b")
    with pytest.raises(MupError, match="already holds another study"):
        transfer(bowl, folder=tmp_path, progress=False, **TRANSFER)


SCRIPT = """
import importlib, sys
if __name__ == "__main__":
    from neuralop_mup.tuning import sweep
    train = getattr(importlib.import_module({module!r}), "slow")
    sweep(train, {{"lr": {lrs!r}}}, folder={folder!r}, fixed={fixed!r}, n_workers=2)
"""


@pytest.mark.usefixtures("light_workers")
def test_sigkill_loses_only_what_was_running(tmp_path):
    lrs = [2.0**-i for i in range(1, 8)]
    folder, log, script, flag = tmp_path / "s", str(tmp_path / "log"), tmp_path / "script.py", tmp_path / "flag"
    fixed = {"log": log, "flag": str(flag)}
    script.write_text(SCRIPT.format(module=slow.__module__, lrs=lrs, folder=str(folder), fixed=fixed))
    process = subprocess.Popen([sys.executable, str(script)], env=environment(), stderr=subprocess.PIPE, text=True)
    for line in process.stderr:  # one line per finished trial
        if line.startswith("[2/7]"):
            break
    flag.touch()
    # While it runs, the folder is its own.
    with pytest.raises(MupError, match="Another run is using"):
        quiet(slow, {"lr": lrs}, folder, fixed=fixed)
    process.kill()
    process.wait()
    process.stderr.close()
    flag.unlink()
    time.sleep(0.4)  # longer than a trial: a worker that outlived its parent would leave another mark
    states = {t.params["lr"]: t.state.name for t in optuna_trials(folder, "sweep")}
    finished = {lr for lr, state in states.items() if state == "COMPLETE"}
    running = {lr for lr, state in states.items() if state == "RUNNING"}
    started = {lr for lr, _ in executions(log)}
    assert len(finished) >= 2 and len(running) >= 1 and len(states) < len(lrs)
    assert started <= finished | running

    found = quiet(slow, {"lr": lrs}, folder, fixed=fixed)
    assert executions(log) == {(lr, 0): 1 + (lr in running and lr in started) for lr in lrs}
    assert sorted(r["params"]["lr"] for r in lines(folder)) == sorted(lrs)
    assert all(r["outcome"] == "complete" for r in found.records)
    states = Counter(t.state.name for t in optuna_trials(folder, "sweep"))
    assert states == {"COMPLETE": 7, "FAIL": len(running)}


def test_a_lock_that_a_killed_command_left_to_its_worker_for_a_moment(tmp_path):
    """A worker that a command is killed under has its open files, and so its lock, until it closes them: milliseconds."""
    fcntl = pytest.importorskip("fcntl")
    descriptor = os.open(tmp_path / "study.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    closing = threading.Timer(0.1, os.close, [descriptor])
    closing.start()
    assert quiet(bowl, {"lr": GRID}, tmp_path).best
    closing.join()


def test_a_second_command_on_a_folder_is_refused(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    with open(tmp_path / "study.lock", "w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        with pytest.raises(MupError, match="Another run is using"):
            quiet(bowl, {"lr": GRID}, tmp_path)
    assert quiet(bowl, {"lr": GRID}, tmp_path).best


@pytest.mark.parametrize("tail", [b'{"op_code":6,"wor', b"\0\0\0\n", b'{"op_code":'])
def test_a_journal_that_ends_in_half_a_line_resumes(tmp_path, tail):
    fixed = {"log": str(tmp_path / "log")}
    first = quiet(bowl, {"lr": GRID}, tmp_path, fixed=fixed)
    with open(tmp_path / "journal.log", "ab") as file:
        file.write(tail)
    assert quiet(bowl, {"lr": GRID}, tmp_path, fixed=fixed).records == first.records
    assert set(executions(fixed["log"]).values()) == {1}


def test_a_journal_cut_anywhere_in_its_last_trial_resumes(tmp_path):
    fixed = {"log": str(tmp_path / "log")}
    first = quiet(bowl, {"lr": [0.5, 0.25]}, tmp_path, fixed=fixed)
    path = tmp_path / "journal.log"
    whole = path.read_bytes()
    starts = whole.index(b'"point":{"lr":0.25}')
    record = whole.index(b'"seed:0"', starts)
    rows = [i + 1 for i, byte in enumerate(whole) if byte == 10 and i > whole.rindex(b"\n", 0, starts) - 1]
    for end in rows[:-1]:
        for cut in (end, end + 1, end + 9):
            path.write_bytes(whole[:cut])
            before = executions(fixed["log"])[0.25, 0]
            again = quiet(bowl, {"lr": [0.5, 0.25]}, tmp_path, fixed=fixed)
            kept = whole.index(b"\n", record) < cut
            assert executions(fixed["log"])[0.25, 0] - before == (not kept)
            assert [r["loss"] for r in again.records] == [r["loss"] for r in first.records]
            states = Counter(t.state.name for t in optuna_trials(tmp_path, "sweep"))
            assert states["COMPLETE"] == 2 and not states["RUNNING"] and not states["WAITING"]
    assert executions(fixed["log"])[0.5, 0] == 1


def test_a_journal_damaged_in_the_middle_is_refused(tmp_path):
    quiet(bowl, {"lr": [0.5]}, tmp_path)
    path = tmp_path / "journal.log"
    path.write_bytes(b"nonsense\n" + path.read_bytes())
    with pytest.raises(MupError, match="journal.log is damaged"):
        quiet(bowl, {"lr": [0.5]}, tmp_path)


def test_ctrl_c_says_where_to_go_on(tmp_path, capsys):
    fixed = {"log": str(tmp_path / "log"), "flag": str(tmp_path / "flag")}
    arguments = {"fixed": fixed, "progress": True}
    with pytest.raises(KeyboardInterrupt, match="the same command resumes"):
        quiet(interrupts, {"lr": [1.0, 2.0, 3.0]}, tmp_path, **arguments)
    assert f"Finished runs are in {tmp_path}" in capsys.readouterr().err
    assert len(quiet(interrupts, {"lr": [1.0, 2.0, 3.0]}, tmp_path, **arguments).records) == 3
    assert executions(fixed["log"]) == {(1.0, 0): 1, (2.0, 0): 2, (3.0, 0): 1}


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MupError, match="Cannot write to the study folder .*file"):
        quiet(bowl, {"lr": [0.5]}, tmp_path / "file" / "study")


def test_a_full_disk_is_named_and_the_sweep_resumes(tmp_path, monkeypatch):
    from optuna.storages.journal import JournalFileBackend

    append = JournalFileBackend.append_logs
    fixed = {"log": str(tmp_path / "log")}

    def full(self, logs):
        if len(executions(fixed["log"])) == 2:
            with open(tmp_path / "journal.log", "ab") as file:
                file.write(b'{"op_code":8,"wor')  # what fits
            raise OSError(28, "No space left on device")
        append(self, logs)

    monkeypatch.setattr(JournalFileBackend, "append_logs", full)
    with pytest.raises(MupError, match=f"{tmp_path}: No space left on device"):
        quiet(bowl, {"lr": [0.5, 0.25, 0.125]}, tmp_path, fixed=fixed)
    monkeypatch.undo()
    quiet(bowl, {"lr": [0.5, 0.25, 0.125]}, tmp_path, fixed=fixed)
    assert executions(fixed["log"]) == {(0.5, 0): 1, (0.25, 0): 2, (0.125, 0): 1}


# Workers


def test_an_unpicklable_train_function_is_told_what_to_do(tmp_path):
    with pytest.raises(MupError, match="module level, or pass n_workers=1"):
        quiet(lambda config: 1.0, {"lr": [0.5, 0.25]}, tmp_path / "s", n_workers=2)
    assert not (tmp_path / "s").exists()
    assert len(quiet(lambda config: 1.0, {"lr": [0.5, 0.25]}, tmp_path / "s").records) == 2


def test_a_script_without_main_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from neuralop_mup.tuning import sweep\n"
        "def train(config): return 1.0\n"
        f"sweep(train, {{'lr': [1, 2]}}, folder={str(tmp_path / 's')!r}, n_workers=2)\n"
    )
    done = subprocess.run([sys.executable, str(script)], env=environment(), capture_output=True, text=True, timeout=500)
    assert done.returncode == 1
    assert "cannot start" in done.stderr.splitlines()[-1] and "__main__" in done.stderr.splitlines()[-1]


def test_a_program_from_standard_input_is_told_so_without_a_traceback_of_each_worker(tmp_path):
    program = f"""
from neuralop_mup.tuning import sweep
from tests.test_tuning import bowl  # of a module, so that only the program itself is at fault
if __name__ == "__main__":
    sweep(bowl, {{"lr": [1, 2]}}, folder={str(tmp_path / "s")!r}, n_workers=2)
"""
    done = subprocess.run(
        [sys.executable, "-"], input=program, env=environment(), capture_output=True, text=True, timeout=500,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.count("Traceback") == 1
    assert "cannot start: this program was read from <stdin>" in done.stderr.splitlines()[-1]
    assert "pass n_workers=1" in done.stderr.splitlines()[-1]


@pytest.mark.usefixtures("light_workers")
def test_a_worker_that_dies_costs_one_retry_and_not_the_sweep(tmp_path):
    fixed = {"log": str(tmp_path / "log"), "flag": str(tmp_path / "flag")}
    found = quiet(deadly, {"lr": [1.0, 0.5, 0.25, 0.125]}, tmp_path, fixed=fixed, n_workers=2)
    by = {r["params"]["lr"]: r for r in found.records}
    assert by[0.5]["outcome"] == "lost" and "exit code 3, twice" in by[0.5]["error"]
    assert not is_final(by[0.5])  # it may have been memory: the next command tries again
    assert all(by[lr]["outcome"] == "complete" for lr in (1.0, 0.25, 0.125))
    assert executions(fixed["log"]) == {(1.0, 0): 1, (0.5, 0): 2, (0.25, 0): 2, (0.125, 0): 1}


# Search


def search_space():
    from optuna.distributions import FloatDistribution

    return {"lr": FloatDistribution(1e-5, 10, log=True), "kind": ["a", "b"]}


def test_search_finds_the_optimum_and_averages_over_seeds(tmp_path):
    found = quiet(valley, search_space(), tmp_path, n_trials=40, seeds=(0, 2))
    # 40 points of two seeds; those that diverge stop at the first.
    assert len(found.records) == 80 - sum(r["outcome"] == "diverged" for r in found.records) < 80
    assert found.best["kind"] == "a"
    # log10 lr is uniform on (-5, 1); within 0.3 of the optimum -2 lies a tenth of it.
    assert abs(math.log10(found.best["lr"]) + 2) < 0.3
    (row, *_) = found.points()
    assert row["loss"] == pytest.approx((math.log10(found.best["lr"]) + 2) ** 2 + 0.001)
    complete = [t for t in optuna_trials(tmp_path, "sweep") if t.state.name == "COMPLETE"]
    best = min(complete, key=lambda t: t.value)  # what study.best_trial gives
    assert best.value == pytest.approx(row["loss"]) and best.params == found.best
    assert [best.intermediate_values[i] for i in (0, 1)] == [r["loss"] for r in found.records if r["params"] == found.best]


def test_an_interrupted_search_ends_where_an_uninterrupted_one_does(tmp_path):
    arguments = {"n_trials": 8, "seeds": (0, 1)}
    whole = quiet(valley, search_space(), tmp_path, **arguments)
    path = tmp_path / "journal.log"
    rows = path.read_bytes().splitlines(keepends=True)
    # Cut after every line of two points: asked for without parameters, with one, with both, with one seed, told.
    asked = [i for i, row in enumerate(rows) if b'"op_code":4' in row]
    for cut in range(asked[4] + 1, asked[6] + 1):
        path.write_bytes(b"".join(rows[:cut]))
        resumed = quiet(valley, search_space(), tmp_path, **arguments)
        losses = [(r["params"], r["seed"], r["loss"]) for r in resumed.records]
        assert losses == [(r["params"], r["seed"], r["loss"]) for r in whole.records]
        trials = optuna_trials(tmp_path, "sweep")
        assert all(t.state.is_finished() for t in trials)
        assert sum(t.state.name != "FAIL" for t in trials) == 8
    with pytest.raises(MupError, match="seeds was"):
        quiet(valley, search_space(), tmp_path, n_trials=8, seeds=(0, 1, 2))


def test_search_needs_n_trials(tmp_path):
    with pytest.raises(MupError, match="n_trials=30"):
        quiet(valley, search_space(), tmp_path)


# Transfer


def test_transfer_on_an_example_worked_by_hand(tmp_path):
    """Losses are floor + (log2 lr - optimum)^2 / 10 -+ 0.01 by seed, so means over both seeds have no noise.

    Proxy: optimum -4, so the best lr is 2^-4, and that is transferred. At the target (floor 0.5):
    log-modes, optimum -5: transferred 0.5 + 1/10 = 0.6, best 0.5 at 2^-5, one step down, regret 0.6/0.5 - 1 = 0.2;
    standard,  optimum -6: transferred 0.5 + 4/10 = 0.9, best 0.5 at 2^-6, two steps down, regret 0.9/0.5 - 1 = 0.8;
    none,      optimum -3: transferred 0.5 + 1/10 = 0.6, best 0.5 at 2^-3, one step up, regret 0.2.
    """
    log = tmp_path / "log"
    rules = ("operator-norm", "standard", "none")
    arguments = {**TRANSFER, "fixed": {"log": str(log)}, "verify": True, "rules": rules, "progress": False}
    found = transfer(bowl, folder=tmp_path / "t", **arguments)
    assert found.best == {"lr": 2**-4}
    rows = {row["rule"]: row for row in found.summary() if row["size"] == "target"}
    expected = {"operator-norm": (0.6, 2**-5, -1, 0.2), "standard": (0.9, 2**-6, -2, 0.8), "none": (0.6, 2**-3, 1, 0.2)}
    assert list(rows) == list(expected)
    proxy = sum(r["seconds"] for r in found.records if r["size"] == "proxy")
    for rule, (loss, best, drift, regret) in expected.items():
        row = rows[rule]
        assert row["transferred"] == {"lr": 2**-4}
        assert row["transferred_loss"] == pytest.approx(loss)
        assert row["transferred_std"] == pytest.approx(0.01)
        assert row["best"] == {"lr": best}
        assert row["best_loss"] == pytest.approx(0.5)
        assert row["drift"] == drift
        assert row["regret"] == pytest.approx(regret)
        assert row["at_edge"] is False and row["failed"] == 0 and row["trials"] == 2
        assert row["tuning_seconds"] == pytest.approx(proxy)
        searched = sum(r["seconds"] for r in found.walk("target", rule))
        assert row["cost_seconds"] == pytest.approx((proxy + row["seconds"]) / searched)
    # 6 points, 2 seeds: at the proxy, and under each of three rules at the target, the carried point among them.
    assert Counter((r["size"], r["rule"]) for r in found.records) == {
        ("proxy", "operator-norm"): 12,
        **{("target", rule): 12 for rule in rules},
    }
    assert len(log.read_text().splitlines()) == 48
    assert found.records == lines(tmp_path / "t")
    loaded = Results.load(tmp_path / "t")
    assert loaded.summary() == found.summary() and loaded.best == found.best
    # What ran is what was planned.
    plan = transfer_study(**{k: v for k, v in arguments.items() if k not in ("n_workers", "progress")}).planned()
    assert Counter(p.key for p in plan) == Counter(dict.fromkeys((p.key for p in plan), 1)) and len(plan) * 2 == 48
    # Again: nothing runs.
    assert transfer(bowl, folder=tmp_path / "t", **arguments).records == found.records
    assert len(log.read_text().splitlines()) == 48


def test_transfer_without_verify_leaves_what_it_did_not_measure_open_and_grows_to_verify(tmp_path, capsys):
    log = tmp_path / "log"
    arguments = {**TRANSFER, "space": {"lr": [2**-5, 2**-4]}, "fixed": {"log": str(log)}}
    found = transfer(bowl, folder=tmp_path / "t", **arguments)
    assert "at the edge of its grid" in capsys.readouterr().err
    for row in found.summary():
        assert row["at_edge"] is (row["size"] == "proxy")
        if row["size"] == "target":
            assert row["drift"] is row["regret"] is row["best"] is row["best_loss"] is row["cost_seconds"] is None
    assert Counter(r["size"] for r in found.records) == {"proxy": 4, "target": 4}
    transfer(bowl, folder=tmp_path / "t", **arguments, verify=True)
    # 2 lr, 2 seeds: 4 at the proxy, and 8 at the target under two rules, of which 4 were there.
    assert len(log.read_text().splitlines()) == 12
    with pytest.raises(MupError, match="searched was"):
        transfer(bowl, folder=tmp_path / "t", **arguments)


def test_a_larger_grid_moves_the_best_point_and_drops_the_old_target(tmp_path):
    arguments = {**TRANSFER, "folder": tmp_path, "progress": False}
    first = transfer(bowl, **{**arguments, "space": {"lr": [2**-6, 2**-5]}})
    second = transfer(bowl, **{**arguments, "space": {"lr": [2**-6, 2**-5, 2**-4]}})
    assert (first.best, second.best) == ({"lr": 2**-5}, {"lr": 2**-4})
    assert {r["params"]["lr"] for r in second.records if r["size"] == "target"} == {2**-4}
    assert second.records == lines(tmp_path)


def test_configs_of_a_transfer():
    study = transfer_study(proxy={"width": 8}, target={"width": 64}, space={"lr": [0.5]}, fixed={"epochs": 2}, seeds=(7,))
    base = {"epochs": 2, "base": {"width": 8}, "lr": 0.5, "seed": 7}
    assert [study.config(p, 7) for p in study.planned()] == [
        {**base, "model": {"width": 8}, "rule": "operator-norm"},
        {**base, "model": {"width": 64}, "rule": "operator-norm"},
        {**base, "model": {"width": 64}, "rule": "standard"},
    ]


def test_planning_writes_nothing_and_knows_the_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = transfer_study(**{k: v for k, v in TRANSFER.items() if k != "n_workers"}, verify=True)
    assert Counter(p.cell for p in study.planned()) == {
        ("proxy", "operator-norm"): 6,
        ("target", "operator-norm"): 6,
        ("target", "standard"): 6,
    }
    assert list(tmp_path.iterdir()) == []


def test_a_transfer_whose_proxy_failed_says_so(tmp_path):
    with pytest.raises(MupError, match="No point of the proxy .*the loss is nan. Such a run is not repeated"):
        transfer(always_nan, folder=tmp_path, progress=False, **TRANSFER)
    assert len(lines(tmp_path)) == 6  # each point stops at its first seed


def fails_under_standard(config):
    if config["rule"] == "standard" and config["seed"] == 1 and config["lr"] == 0.5:
        return math.inf
    return config["lr"] if config["model"]["width"] == 64 else 1 / config["lr"]


def test_a_transferred_point_that_failed_has_infinite_regret(tmp_path):
    found = transfer(
        fails_under_standard, folder=tmp_path, progress=False, verify=True, **{**TRANSFER, "space": {"lr": [0.25, 0.5]}}
    )
    good, naive = (row for row in found.summary() if row["size"] == "target")
    # Carried: lr 0.5. At the target the loss is lr itself: best 0.25, one step down, regret 0.5/0.25 - 1 = 1.
    assert (good["regret"], good["drift"], good["failed"]) == (1.0, -1, 0)
    assert (naive["regret"], naive["failed"], naive["transferred_loss"]) == (math.inf, 1, 0.5)


@pytest.mark.parametrize("search", [False, True])
def test_a_transfer_of_ones_own_gives_the_report_that_the_guide_shows(tmp_path, search):
    from optuna.distributions import FloatDistribution

    from neuralop_mup.experiments import findings, report, wording

    space = {"space": {"lr": FloatDistribution(2**-8, 1, log=True)}, "n_trials": 3} if search else {}
    result = transfer(bowl, folder=tmp_path, progress=False, **{**TRANSFER, **space})
    for found in (result, Results.load(tmp_path)):
        page = report.write_report(found, settings={"optimizer": "MuAdam"}, command="python mine.py").read_text()
        assert (
            findings.verdict(found)[0] in page and wording.aligned(report.table(found)) in page and "python mine.py" in page
        )
    assert {"report.md", "report.html", "run.json", "lr.png", "lr.svg"} < {path.name for path in tmp_path.iterdir()}


def test_transfer_can_search_its_proxy(tmp_path):
    from optuna.distributions import FloatDistribution

    arguments = {**TRANSFER, "space": {"lr": FloatDistribution(2**-8, 1, log=True)}, "n_trials": 8, "progress": False}
    found = transfer(bowl, folder=tmp_path, **arguments)
    assert Counter(r["size"] for r in found.records) == {"proxy": 16, "target": 4}
    assert {json.dumps(r["params"]) for r in found.records if r["size"] == "target"} == {json.dumps(found.best)}
    assert transfer(bowl, folder=tmp_path, **arguments).records == found.records
    with pytest.raises(MupError, match="needs a grid"):
        transfer(bowl, folder=tmp_path, **arguments, verify=True)


def test_transfer_refuses_model_in_fixed(tmp_path):
    with pytest.raises(MupError, match="put it into proxy and target"):
        transfer(bowl, folder=tmp_path, fixed={"model": {}}, **TRANSFER)


def test_importing_tuning_does_not_import_optuna():
    code = "import sys, neuralop_mup.tuning; sys.exit('optuna' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment(light=False)).returncode == 0
