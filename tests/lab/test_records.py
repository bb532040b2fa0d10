"""Records: a run is identified by its content, and its files are kept whole or not at all."""

import json
import platform
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.outcome import failed, releases
from neuralop_mup.lab.records import _CONTENT, _DOCUMENT, CHECKPOINT, WEIGHTS, Records, Run, content_hash, described
from support.engine_runs import executions, quiet_sweep, train
from support.errors import refused

CONTENT = {"train": "bowl", "lr": 0.5, "seed": 0, "model": {"n_modes": (8, 8)}}


def run_of(keep=False, **changes):
    return Run({**CONTENT, **changes}, {}, keep, size=None, rule=None, params={}, seed=0)


def complete(loss=1.0):
    return {**failed(""), "outcome": "complete", "error": None, "loss": loss}


@pytest.fixture
def records(tmp_path):
    with Records(tmp_path / "s").held() as held:
        yield held


def reread(records):
    """The folder as another command reads it."""
    return Records(records.folder)


# Content


def bowl(config):
    return 1.0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"n_modes": (4, 4)}, {"n_modes": [4, 4]}),
        ({"lr": 0.5}, {"lr": np.float64(0.5)}),
        ({"lr": 2.0}, {"lr": torch.tensor(2.0)}),
        ({"lr": 2}, {"lr": np.int64(2)}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"seeds": range(2)}, {"seeds": [0, 1]}),
    ],
)
def test_the_same_content_is_the_same_run(one, other):
    assert Run(one, {}).id == Run(other, {}).id


def test_the_content_as_json():
    assert described({"lr_mult.spectral": 2, "lr": 2.5}) == {"lr_mult/spectral": 2, "lr": 2.5}
    assert described({"train": bowl, "x": [np.arange(3)]}) == {"train": fingerprint(bowl), "x": [fingerprint(np.arange(3))]}
    assert [json.dumps(described(value)) for value in (7, 7.0, True)] == ["7", "7.0", "true"]
    assert len({json.dumps(described({key: 0})) for key in (1, 1.0, "1", True)}) == 4


def test_the_hash_of_plain_content_never_changes():
    """The records of benchmarks/results are found by it."""
    assert content_hash(run_of().content) == "dccb964a66b07fa0861457c501a3a530"
    changes = [{"lr": 0.25}, {"seed": 1}, {"seed": 0.0}, {"seed": False}, {"model": {"n_modes": (8, 6)}}, {"loss": "h1"}]
    assert len({run_of(**change).id for change in [{}, *changes]}) == 7


@pytest.mark.parametrize(
    ("packages", "versions"),
    [
        (["neuralop_mup.lab.outcome", "neuralop_mup.lab.run"], ("0.4.0.dev0", "0.4.1", "0.5.0")),
        (["torch"], ("2.7.0+cpu", "2.7.1", "2.8")),
    ],
)
def test_another_release_trains_a_run_again_and_says_so(packages, versions, tmp_path, monkeypatch, fixed, caplog):
    """Of this package or of torch, major or minor. Another study in the same folder is not mentioned."""
    shown = []
    quiet_sweep(train, tmp_path / "s", {"lr": [8.0]}, fixed=fixed)
    for version in versions:
        for package in packages:
            monkeypatch.setattr(f"{package}.__version__", version)
        quiet_sweep(train, tmp_path / "s", {"lr": [0.5, 1.0]}, fixed=fixed)
        shown.append([found.getMessage() for found in caplog.records])
        caplog.clear()
    assert executions(fixed) == {(8.0, 0): 1, (0.5, 0): 2, (1.0, 0): 2}
    assert shown[:2] == [[], []]
    (line,) = shown[2]
    assert line.startswith("2 saved runs of ")
    assert all(f" {version[:3]}" in line for version in (versions[0], versions[2]))


def test_runs_of_release_03_are_not_reused(records, caplog):
    """Their content has no releases."""
    old = run_of()
    place = records.folder / "workspace" / content_hash(old.content)
    place.mkdir(parents=True)
    (place / _CONTENT).write_text(json.dumps(old.content))
    (place / _DOCUMENT).write_text(json.dumps(complete()))
    fresh = reread(records)
    assert fresh.get(old) is None
    fresh.warn_of_other_releases([old])
    assert not caplog.records


def test_content_without_a_fingerprint_is_never_used_again():
    with open(__file__) as file, pytest.warns(UserWarning, match="TextIOWrapper"):
        assert Run({"file": file}, {}).id != Run({"file": file}, {}).id


@given(
    st.dictionaries(
        st.text("ab.", max_size=3), st.one_of(st.integers(), st.floats(allow_nan=False), st.lists(st.booleans()))
    )
)
def test_any_configuration_can_be_kept(config):
    assert json.loads(json.dumps(described(config))) == described(config)


# Keeping


def test_a_record_is_kept(records):
    assert records.get(run_of()) is None
    records.write(run_of(), complete(0.25))
    assert records.get(run_of())["loss"] == reread(records).get(run_of())["loss"] == 0.25
    content = (records.folder / "workspace" / run_of().id / _CONTENT).read_text()
    assert json.loads(content) == {**run_of().content, "releases": releases()}


def test_a_record_says_how_it_was_made(tmp_path):
    (record,) = quiet_sweep(bowl, tmp_path, {"lr": [1]}).records
    assert set(record["versions"]) == {"python", "torch", "neuraloperator", "mup", "neuralop-mup"}
    assert (record["host"], record["date"][:2]) == (platform.node(), "20")


def test_a_failed_run_is_trained_again_by_the_next_command_only(records):
    records.write(run_of(), failed("no space"), repeat=True)
    assert (records.get(run_of()), records.read(run_of())["error"]) == (None, "no space")
    records.write(run_of(), failed("no space"))
    assert (records.get(run_of())["outcome"], reread(records).get(run_of())) == ("failed", None)


def test_records_of_another_folder_are_used_where_this_one_has_none(records, tmp_path):
    records.write(run_of(), complete(0.25))
    both = Records(tmp_path / "t", known=records)
    assert (both.get(run_of())["loss"], both.get(run_of(lr=1))) == (0.25, None)


def test_a_run_whose_weights_are_missing_or_damaged_is_trained_again(records):
    """Not by the command that has just trained it: a run that keeps nothing would be trained for ever."""
    records.write(run_of(), complete())
    assert (records.get(run_of(keep=True))["loss"], reread(records).get(run_of(keep=True))) == (1.0, None)
    weights = records.place(run_of()) / WEIGHTS
    weights.write_bytes(b"half of a file")
    assert (reread(records).get(run_of())["loss"], reread(records).get(run_of(keep=True))) == (1.0, None)
    torch.save({}, weights)
    assert reread(records).get(run_of(keep=True))["loss"] == 1.0


def test_a_checkpoint_is_removed_when_its_run_is_complete(records):
    for record, stays in ((failed("killed"), True), (complete(), False)):
        checkpoint = records.place(run_of(), make=True) / CHECKPOINT
        checkpoint.write_bytes(b"x")
        records.write(run_of(), record)
        assert checkpoint.exists() == stays


CHANGES = [{"loss": None}, {"loss": "abc"}, {"loss": float("nan")}, {"outcome": "xyz"}, {"metrics": None}]


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"outcome": "compl',
        "[]",
        *(json.dumps({**complete(), **change}) for change in CHANGES),
        *(json.dumps({k: v for k, v in complete().items() if k != key}) for key in ("loss", "metrics", "error", "seconds")),
    ],
    ids=range(12),
)
def test_a_damaged_record_is_reported_and_its_run_trained_again(records, content, caplog):
    records.write(run_of(), complete())
    (records.place(run_of()) / _DOCUMENT).write_text(content)
    fresh = reread(records)
    assert fresh.get(run_of()) is None
    assert [run_of().id in found.getMessage() for found in caplog.records] == [True]


@pytest.mark.parametrize("content", [None, '{"train": "bo'])
def test_a_kill_while_a_record_is_written_costs_only_its_run(records, content):
    """The folder may exist without its content, or with half of it."""
    place = records.place(run_of())
    place.mkdir(parents=True)
    if content is not None:
        (place / _CONTENT).write_text(content)
    assert records.get(run_of()) is None
    records.write(run_of(), complete())
    assert (reread(records).get(run_of())["loss"], json.loads((place / _CONTENT).read_text())["lr"]) == (1.0, 0.5)


# The folder


def test_only_one_command_writes_to_a_folder(records):
    with refused(str(records.folder)), reread(records).held():
        pass


def test_a_lock_that_the_workers_of_a_killed_command_hold_for_a_moment(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    with open(tmp_path / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        threading.Timer(0.1, fcntl.flock, [file, fcntl.LOCK_UN]).start()
        with Records(tmp_path).held():
            pass


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with refused(str(tmp_path / "file")):
        Records(tmp_path / "file")
    with refused(str(tmp_path / "file" / "s")), Records(tmp_path / "file" / "s").held():
        pass
