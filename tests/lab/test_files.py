"""Files are written whole or not at all."""

from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.files import replace_file
from neuralop_mup.lab.files import put, remove_file, save_torch
from support.errors import refused


def write(path, error=None):
    with replace_file(path, "words") as part:
        part.write_text("half")
        if error is not None:
            raise error
        part.write_text("new")


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_older_file(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(MupError if isinstance(error, OSError) else type(error)):
        write(path, error)
    assert contents(tmp_path) == {"file": "old"}
    write(path)
    assert contents(tmp_path) == {"file": "new"}


def test_a_folder_that_is_missing_or_cannot_be_written_is_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("in the way")
    with refused("none/file"):
        write(tmp_path / "none" / "file")
    with refused(str(file)):
        put(file, file / "results.jsonl", "text")


def test_several_writers_at_once_each_write_a_whole_file(tmp_path):
    texts = [str(i) * 10_000 for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda text: put(tmp_path, tmp_path / "file", text), 50 * texts))
    assert contents(tmp_path) in [{"file": text} for text in texts]


def test_a_file_is_removed_with_what_a_kill_left_of_it(tmp_path):
    for name in ("run.pt", ".run.pt.0.part", ".run.pt2.0.part"):
        (tmp_path / name).write_text("")
    remove_file(tmp_path / "run.pt")
    assert contents(tmp_path) == {".run.pt2.0.part": ""}


def test_a_full_disk_under_torch(tmp_path, monkeypatch):
    """torch raises a RuntimeError there."""
    monkeypatch.setattr(torch, "save", mock.Mock(side_effect=RuntimeError("PytorchStreamWriter failed writing file")))
    with refused("PytorchStreamWriter"), replace_file(tmp_path / "w", "weights") as part:
        save_torch({}, part)
