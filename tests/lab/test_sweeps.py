"""Sweeps and transfers of a train function: what is trained, kept, tried again and reported."""

import hashlib
import itertools
import math
import os
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.lab import Results, log2_grid, transfer
from neuralop_mup.lab.compare import compare
from neuralop_mup.lab.records import _DOCUMENT
from support.engine_runs import LRS, bowl, ends, executions, quiet_sweep, train
from support.errors import refused

GRID = log2_grid(2**-7, 2**-2)
TRANSFER = {"proxy": {"width": 8}, "target": {"width": 64}, "space": {"lr": GRID}, "seeds": (0, 1), "n_workers": 1}


@pytest.mark.parametrize(
    ("space", "arguments", "names"),
    [
        ({"lr": 0.1}, {}, "lr=[0.1]"),
        ({"lr": []}, {}, "lr []"),
        ({"lr": [1, 1.0]}, {}, "lr [1,1.0]"),
        ({"lr": [math.nan]}, {}, "lr nan"),
        ({"seed": [1]}, {}, "seed"),
        ({"lr": [1]}, {"fixed": {"lr": 2}}, "lr space fixed"),
        ({"lr": [1]}, {"seeds": 3}, "seeds=3 seeds=(0,1,2)"),
        ({"lr": [1]}, {"n_workers": 0}, "n_workers"),
        ({"lr": [1]}, {"executor": "ray"}, "'ray' executor=RayExecutor()"),
        ({"lr": [1]}, {"executor": "no.such.module"}, "executor='no.such.module'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path, space, arguments, names):
    with refused(names):
        quiet_sweep(train, tmp_path / "study", space, **arguments)
    assert not (tmp_path / "study").exists()


# What is trained, and what is kept


def test_a_grid_trains_each_point_once(tmp_path, fixed):
    space = {"lr": [0.5, 0.25], "n_modes": [(4, 4), (8, 8)]}
    found = quiet_sweep(bowl, tmp_path, space, seeds=(3, 4), fixed=fixed)
    assert executions(fixed) == {(lr, seed): 2 for lr in (0.5, 0.25) for seed in (3, 4)}
    assert found.records == Results.load(tmp_path).records
    assert found.best == {"lr": 0.25, "n_modes": [4, 4]}
    # (log2 0.25 + 4)^2 / 10 = 0.4, floor 2, the noise of seeds 3 and 4 cancels.
    assert found.best_loss == pytest.approx(2.4)


def test_how_runs_end_and_which_are_tried_again(tmp_path, fixed, capsys):
    """Runs short of disk, memory or a module are tried twice per command. The next command repeats all failed runs."""
    outcomes = {"complete": "complete", "refused": "refused", "diverged": "diverged", "inf": "diverged"}
    attempts = {"bug": 1, "exits": 1, "no space": 2, "no memory": 2, "no module": 2, "cannot write": 2}
    space, arguments = {"how": [*outcomes, *attempts]}, {"fixed": {**fixed, "lr": 0}}
    found = quiet_sweep(ends, tmp_path / "s", space, progress=True, **arguments)
    records = {r["params"]["how"]: r for r in found.records}
    assert {how: r["outcome"] for how, r in records.items()} == {**outcomes, **dict.fromkeys(attempts, "failed")}
    assert (records["bug"]["error"], records["bug"]["traceback"][:9]) == ("ValueError: oops", "Traceback")
    assert (records["complete"]["metrics"], records["inf"]["loss"]) == ({"loss": 1.0, "train_loss": None}, None)
    shown = capsys.readouterr().err
    assert [kind for kind in ("DIVERGED", "REFUSED", "FAILED") if kind not in shown] == []
    assert executions(fixed) == {(how, 0): attempts.get(how, 1) for how in records}
    quiet_sweep(ends, tmp_path / "s", space, **arguments)
    assert executions(fixed) == {(how, 0): 2 * attempts.get(how, 0.5) for how in records}


@pytest.mark.parametrize("value", ["text", {"error": 1}])
def test_a_train_function_without_a_loss_fails(tmp_path, value):
    (record,) = quiet_sweep(lambda config: value, tmp_path, {"lr": [0.5]}).records
    assert (record["outcome"], record["error"][:9]) == ("failed", "TypeError")


def test_an_error_that_is_its_own_cause_fails(tmp_path):
    """The causes of an error were once followed forever."""

    def train(config):
        try:
            raise OSError("no file")
        except OSError as error:
            raise error from error

    (record,) = quiet_sweep(train, tmp_path, {"lr": [0.5]}).records
    assert (record["outcome"], record["error"]) == ("failed", "OSError: no file")


def test_a_disk_that_is_full_for_a_moment(tmp_path, fixed, monkeypatch):
    """The next command trains only what was not kept."""
    replace, written = os.replace, itertools.count(1)

    def full_at_the_third_record(source, path):
        if str(path).endswith(_DOCUMENT) and next(written) == 3:
            raise OSError(28, "No space left on device")
        return replace(source, path)

    monkeypatch.setattr(os, "replace", full_at_the_third_record)
    with refused(str(tmp_path)):
        quiet_sweep(train, tmp_path / "s", fixed=fixed)
    assert len(quiet_sweep(train, tmp_path / "s", fixed=fixed).records) == 6
    assert sorted(executions(fixed).values()) == [1, 1, 1, 1, 1, 2]


def test_a_function_without_a_fingerprint_is_trained_in_each_call(tmp_path):
    lock, calls = threading.Lock(), []

    def function(config):
        with lock:
            calls.append(config["lr"])
        return config["lr"]

    for _ in range(2):
        with pytest.warns(UserWarning, match="lock"):
            assert quiet_sweep(function, tmp_path, {"lr": [1.0, 2.0]}, seeds=np.arange(2)).best == {"lr": 1.0}
    assert calls == [1.0, 2.0, 1.0, 2.0] * 2


def test_files_that_the_function_reads_are_identified_in_fixed(tmp_path):
    """As the docstring of sweep says: the key of a run does not contain them."""
    path = tmp_path / "data.npy"

    def reads(config):
        return float(np.load(path).sum())

    losses = []
    for value in (1.0, 5.0):
        np.save(path, np.full(3, value))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        losses.append(quiet_sweep(reads, tmp_path / "s", {"lr": [1.0]}, fixed={"data": digest}).best_loss)
    assert losses == [3.0, 15.0]


@pytest.mark.parametrize(("value", "other"), [(7, 7.0), (1, True)])
def test_numbers_of_another_type_are_other_runs(tmp_path, value, other):
    """In the configuration, and in a global of the function: 7 // 2 is 3, and 7.0 // 2 is 3.0."""
    scope, losses = {}, []
    exec("def kind(config): return {int: 1.0, float: 2.0, bool: 3.0}[type(FILL)]", scope)
    for fill in (value, other):
        scope["FILL"] = fill
        losses.append(quiet_sweep(scope["kind"], tmp_path / "g", {"lr": [1.0]}).best_loss)
        found = quiet_sweep(lambda c: {int: 1.0, float: 2.0, bool: 3.0}[type(c["fill"])], tmp_path / "c", {"fill": [fill]})
        losses.append(found.best_loss)
    assert losses[0] == losses[1] != losses[2] == losses[3]


# Folders


def test_a_repeated_call_trains_nothing_and_studies_share_a_folder(tmp_path, fixed):
    space = {"lr": LRS[:2]}
    first = quiet_sweep(train, tmp_path, space, fixed=fixed)
    assert quiet_sweep(train, tmp_path, space, fixed=fixed).records == first.records
    quiet_sweep(train, tmp_path, {"lr": LRS[:3]}, fixed=fixed, seeds=(0, 1))
    assert executions(fixed) == {(lr, s): 1 for lr in LRS[:3] for s in (0, 1)}
    assert quiet_sweep(train, tmp_path, space, fixed=fixed).records == first.records


def test_an_interrupted_sweep_goes_on(tmp_path, fixed):
    def interrupts(config):
        if config["lr"] == 2.0 and not os.path.exists(config["flag"]):
            Path(config["flag"]).touch()
            raise KeyboardInterrupt
        return train(config)

    space, arguments = {"lr": [1.0, 2.0, 3.0]}, {"fixed": fixed}
    with pytest.raises(KeyboardInterrupt, match=str(tmp_path / "s")):
        quiet_sweep(interrupts, tmp_path / "s", space, **arguments)
    assert len(quiet_sweep(interrupts, tmp_path / "s", space, **arguments).records) == 3
    assert executions(fixed) == {(lr, 0): 1 for lr in (1.0, 2.0, 3.0)}


# Transfer


def test_a_transfer_that_was_worked_out_by_hand(tmp_path, fixed):
    """Losses are floor + (log2 lr - optimum)^2 / 10 -+ 0.01 by seed, so means over both seeds have no noise.

    Proxy: optimum -4, so the best lr is 2^-4, and that is transferred. At the target (floor 0.5): under operator-norm the
    optimum is -5, 0.5 + 1/10 = 0.6; standard, -6: 0.5 + 4/10 = 0.9; none, -3: 0.5 + 1/10 = 0.6.
    """
    losses = {"operator-norm": 0.6, "standard": 0.9, "none": 0.6}
    arguments = {**TRANSFER, "folder": tmp_path / "t", "fixed": fixed, "rules": tuple(losses), "progress": False}
    found = transfer(bowl, **arguments)
    assert found.best == {"lr": 2**-4}
    rows = [row for row in found.summary() if row["size"] == "target"]
    assert {row["rule"]: row["transferred_loss"] for row in rows} == pytest.approx(losses)
    assert [row["transferred"] for row in rows] == [{"lr": 2**-4}] * 3
    # 6 points, 2 seeds: at the proxy; the carried one at the target under each of three rules.
    assert Counter((r["size"], r["rule"]) for r in found.records) == {
        ("proxy", "operator-norm"): 12,
        **{("target", rule): 2 for rule in losses},
    }
    assert executions(fixed).total() == 18


def test_a_transfer_prints_whether_the_best_rate_is_at_an_edge(tmp_path, capsys):
    transfer(lambda config: -config["lr"], folder=tmp_path / "t", **TRANSFER)
    assert "highest value of the grid" in capsys.readouterr().out


def test_results_that_do_not_exist(tmp_path):
    with refused(str(tmp_path)):
        Results.load(tmp_path)
    with refused("proxy nan"):
        transfer(lambda config: math.nan, folder=tmp_path, progress=False, **TRANSFER)
    with refused("size"):
        Results.load(tmp_path)


@pytest.mark.parametrize("folder", [None, 3, ["runs"]])
@pytest.mark.parametrize(
    "call",
    [
        lambda folder: nm.sweep(lambda config: 1.0, {"lr": [0.1]}, folder=folder),
        lambda folder: nm.train(FNO, (torch.zeros(20, 1, 16), torch.ones(20, 1, 16)), target={}, folder=folder),
        lambda folder: compare(FNO, (torch.zeros(20, 1, 16), torch.ones(20, 1, 16)), target={}, folder=folder),
        lambda folder: nm.load_tuned(folder),
    ],
)
def test_a_folder_that_is_no_path(call, folder):
    """It was a TypeError of pathlib."""
    with pytest.raises(nm.MupError, match=r"folder=.* must be a path"):
        call(folder)
