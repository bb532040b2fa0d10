"""What a run is and how it is kept: by its content, whole or not at all, in folders that signac reads."""

from __future__ import annotations

import json
import platform
import threading

import numpy as np
import pytest
import signac
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuralop_mup.errors import MupError
from neuralop_mup.lab import sweep
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.outcome import failed
from neuralop_mup.lab.records import CHECKPOINT, WEIGHTS, Records, Run, described

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
    return Records(records.folder)


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
        ({"seeds": range(2)}, {"seeds": [0, 1]}),
    ],
)
def test_the_same_content_is_the_same_run(one, other):
    assert Run(one, {}).id == Run(other, {}).id


@pytest.mark.parametrize("change", [{"lr": 0.25}, {"seed": 1}, {"model": {"n_modes": (8, 6)}}, {"loss": "h1"}])
def test_another_content_is_another_run(change):
    assert run_of(**change).id != run_of().id


def test_what_is_not_plain_goes_in_by_its_fingerprint():
    assert described({"lr_mult.spectral": 2}) == {"lr_mult/spectral": 2}  # signac takes no dots
    assert described({"train": bowl, "x": [np.arange(3)]}) == {"train": fingerprint(bowl), "x": [fingerprint(np.arange(3))]}


def test_the_identity_of_plain_content_never_changes():
    """By it the records of benchmarks/results are found."""
    assert run_of().id == "dccb964a66b07fa0861457c501a3a530"


def test_what_has_no_fingerprint_is_never_used_again():
    with open(__file__) as file, pytest.warns(UserWarning, match="trained anew by each call, and not used again"):
        assert Run({"file": file}, {}).id != Run({"file": file}, {}).id


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


CHANGED = [{"loss": None}, {"loss": "abc"}, {"outcome": "xyz"}, {"metrics": None}]


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"outcome": "compl',
        "[]",
        *(json.dumps({**complete(), **change}) for change in CHANGED),
        *(json.dumps({k: v for k, v in complete().items() if k != key}) for key in ("loss", "metrics", "error", "seconds")),
    ],
    ids=range(11),
)
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


# The folder


@pytest.mark.parametrize("name", ["journal.log", "config.json", ".signac"])
def test_a_folder_of_an_earlier_version_is_told_and_left_untouched(tmp_path, name):
    """Among them those of 0.2.0, signac projects whose runs were told apart by names."""
    (tmp_path / name).write_text("old")
    with pytest.raises(MupError, match=r"earlier version of neuralop_mup, 0.2.0 or before .*choose another folder"):
        Records(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "old"


def test_a_run_says_what_it_was_made_with(tmp_path):
    sweep(bowl, {"lr": [1]}, folder=tmp_path, n_workers=1, progress=False)
    (job,) = signac.get_project(str(tmp_path))
    assert set(job.doc.versions) == {"python", "torch", "neuraloperator", "mup", "neuralop-mup"}
    assert job.doc.host == platform.node() and job.doc.date.startswith("20")


def test_a_lock_that_a_killed_command_left_to_its_children_for_a_moment_is_waited_for(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    with open(tmp_path / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        threading.Timer(0.1, fcntl.flock, [file, fcntl.LOCK_UN]).start()
        with Records(tmp_path).held():
            pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MupError, match="Cannot write to the folder .*file"), Records(tmp_path / "file" / "s").held():
        pass
