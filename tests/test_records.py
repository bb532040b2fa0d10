"""What a run is and how it is kept: by its content, whole or not at all, in folders that signac reads."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import signac
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuralop_mup.errors import MupError
from neuralop_mup.lab.outcome import failed
from neuralop_mup.lab.records import CHECKPOINT, WEIGHTS, Records, Run, described
from processes import environment

CONTENT = {"train": "bowl", "lr": 0.5, "seed": 0, "model": {"n_modes": (8, 8)}}


def run_of(keep=False, **changes):
    return Run({**CONTENT, **changes}, {}, keep, size=None, rule=None, params={}, seed=0)


def complete(loss=1.0):
    return {**failed(""), "outcome": "complete", "error": None, "loss": loss}


@pytest.fixture
def records(tmp_path):
    with Records(tmp_path / "s").held() as held:
        yield held


def again(records):
    """The folder as another command reads it."""
    fresh = Records(records.folder)
    fresh._project = records._project
    return fresh


# Content


def bowl(config):
    return 1.0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"lr": 1}, {"lr": 1.0}),
        ({"n_modes": (4, 4)}, {"n_modes": [4, 4]}),
        ({"lr": 0.5}, {"lr": np.float64(0.5)}),
        ({"lr": 2}, {"lr": torch.tensor(2.0)}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"f": bowl}, {"f": "bowl"}),
        ({"seeds": range(2)}, {"seeds": [0, 1]}),
    ],
)
def test_the_same_content_is_the_same_run(one, other):
    assert Run(one, {}).id == Run(other, {}).id


class Weighed:
    """A loss with a weight, which counts its calls."""

    def __init__(self, weight):
        self.weight, self.calls = weight, []

    def __call__(self, y_pred, y, **_):
        self.calls.append(len(y))
        return self.weight * (y_pred - y).abs().sum()


def weighed(weight):
    calls = []

    def loss(y_pred, y, **_):
        calls.append(len(y))
        return weight * (y_pred - y).abs().sum()

    return loss


@pytest.mark.parametrize("make", [Weighed, weighed, lambda w: Weighed(w).__call__, lambda w: functools.partial(bowl, w)])
def test_functions_are_told_apart_by_what_they_hold(make):
    """And stay what they are while they are used."""
    loss = make(0.5)
    before = described(loss)
    if make in (Weighed, weighed):
        loss(torch.ones(2), torch.zeros(2))
    assert described(loss) == before == described(make(0.5)) != described(make(0.25))


@pytest.mark.parametrize("change", [{"lr": 0.25}, {"seed": 1}, {"model": {"n_modes": (8, 6)}}, {"loss": "h1"}])
def test_another_content_is_another_run(change):
    assert run_of(**change).id != run_of().id


def test_what_has_no_numbers_is_described_the_same_in_every_process():
    class Thing:
        pass

    assert described({"lr_mult.spectral": 2}) == {"lr_mult/spectral": 2}  # signac takes no dots
    assert described(functools.partial(bowl, x=1)) == ["bowl", [], {"x": 1}]
    assert " at 0x" not in described(Thing())


@given(
    st.dictionaries(
        st.text("ab.", max_size=3), st.one_of(st.integers(), st.floats(allow_nan=False), st.lists(st.booleans()))
    )
)
def test_any_configuration_can_be_kept(config):
    assert json.loads(json.dumps(described(config))) == described(config)


# Keeping


def test_a_record_is_kept_and_read_by_signac(records):
    assert records.get(run_of()) is None
    records.write(run_of(), complete(0.25))
    assert records.get(run_of())["loss"] == again(records).get(run_of())["loss"] == 0.25
    (job,) = signac.get_project(str(records.folder))
    assert job.sp.lr == 0.5 and job.doc.loss == 0.25 and job.id == run_of().id


def test_a_failure_is_tried_again_by_the_next_command_and_not_by_this_one_for_ever(records):
    records.write(run_of(), failed("no space"))
    assert records.get(run_of()) is None and records.read(run_of())["error"] == "no space"
    records.give_up(run_of())
    assert records.get(run_of())["outcome"] == "failed" and again(records).get(run_of()) is None


def test_a_complete_run_whose_weights_are_wanted_and_gone_is_trained_again(records):
    """Not by the command that has just trained it: a run that keeps nothing would be trained for ever."""
    records.write(run_of(), complete())
    assert records.get(run_of(keep=True))["loss"] == 1.0 and again(records).get(run_of(keep=True)) is None
    (records.place(run_of()) / WEIGHTS).write_bytes(b"half of a file")
    assert again(records).get(run_of(keep=True)) is None
    torch.save({}, records.place(run_of()) / WEIGHTS)
    assert again(records).get(run_of(keep=True))["loss"] == 1.0


def test_a_checkpoint_goes_when_its_run_has_ended_by_itself(records):
    for outcome, stays in ((failed("killed"), True), (complete(), False)):
        (records.place(run_of(), make=True) / CHECKPOINT).write_bytes(b"x")
        records.write(run_of(), outcome)
        assert (records.place(run_of()) / CHECKPOINT).exists() == stays


@pytest.mark.parametrize("content", ["", '{"outcome": "compl', "[]", '{"loss": 1}'])
def test_a_damaged_record_is_told_and_trained_again(records, content):
    records.write(run_of(), complete())
    (records.place(run_of()) / "signac_job_document.json").write_text(content)
    fresh = again(records)
    assert fresh.get(run_of()) is None and "is damaged" in fresh.notes[0]


@pytest.mark.parametrize("content", [None, "", '{"train": "bo'])
def test_a_kill_while_a_run_is_written_down_is_mended(records, content):
    """The folder may be there without its state point, or with half of it."""
    place = records.place(run_of())
    place.mkdir(parents=True)
    if content is not None:
        (place / "signac_statepoint.json").write_text(content)
    assert records.get(run_of()) is None
    records.write(run_of(), complete())
    assert again(records).get(run_of())["loss"] == 1.0
    assert json.loads((place / "signac_statepoint.json").read_text())["lr"] == 0.5


def test_a_full_disk_leaves_the_former_record(records, monkeypatch):
    records.write(run_of(), complete(1.0))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(MupError, match="Cannot write to the study folder .*No space left on device"):
            records.write(run_of(), complete(2.0))
    assert again(records).get(run_of())["loss"] == 1.0


def test_proposals_are_kept_and_damage_is_told(records):
    search = {"space": {"lr": "log"}}
    assert records.proposals(search) == []
    records.propose(search, [{"lr": 0.1}])
    fresh = again(records)
    assert fresh.proposals(search) == [{"lr": 0.1}] and fresh.proposals({"space": {}}) == []
    (path,) = records.folder.glob("search-*.json")
    path.write_text("{")
    with pytest.raises(MupError, match="says which points the search has asked for: restore it from a copy, or remove"):
        again(records).proposals(search)


# The folder


@pytest.mark.parametrize("name", ["journal.log", "config.json"])
def test_a_folder_of_an_earlier_version_is_told_and_left_untouched(tmp_path, name):
    (tmp_path / name).write_text("old")
    with pytest.raises(MupError, match="earlier version of neuralop_mup .*choose another folder"):
        Records(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "old"


HOLDER = """
import sys, time
from neuralop_mup.lab.records import Records
with Records(sys.argv[1]).held():
    print(1, flush=True)
    time.sleep(60)
"""


def test_a_folder_has_one_command_and_a_killed_one_leaves_it_free(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], env=environment(), stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        with pytest.raises(MupError, match="Another run is using the study folder"), Records(tmp_path).held():
            pass
        holder.kill()
    with Records(tmp_path).held():
        pass


def test_a_lock_that_a_killed_command_left_to_its_children_for_a_moment_is_waited_for(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    with open(tmp_path / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        threading.Timer(0.1, fcntl.flock, [file, fcntl.LOCK_UN]).start()
        with Records(tmp_path).held():
            pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MupError, match="Cannot write to the study folder .*file"), Records(tmp_path / "file" / "s").held():
        pass
