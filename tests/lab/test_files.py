"""Files are written whole or not at all."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.files import replace_file
from neuralop_mup.lab.files import put, remove_file, save_torch


def _write(path, error=None):
    with replace_file(path, "words") as part:
        part.write_text("half")
        if error is not None:
            raise error
        part.write_text("new")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("anything")])
def test_a_failure_leaves_the_older_file(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(MupError if isinstance(error, OSError) else type(error)):
        _write(path, error)
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and path.read_text() == "old"
    _write(path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and path.read_text() == "new"


def test_a_folder_that_is_missing_or_cannot_be_written_is_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("in the way")
    with pytest.raises(MupError, match=r"Cannot write words to .*none/file.: No such file or directory"):
        _write(tmp_path / "none" / "file")
    with pytest.raises(MupError, match="Cannot write to the folder .*file: Not a directory"):
        put(file, file / "results.jsonl", "text")


def test_several_at_once_each_write_a_whole_file(tmp_path):
    path = tmp_path / "file"
    texts = [str(i) * 10_000 for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: put(tmp_path, path, texts[i % 4]), range(200)))
    assert path.read_text() in texts and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_what_a_kill_left_of_writing_a_file_goes_with_it(tmp_path):
    for name in ("run.pt", ".run.pt.0.part", ".run.pt2.0.part"):
        (tmp_path / name).write_text("")
    remove_file(tmp_path / "run.pt")
    assert [p.name for p in tmp_path.iterdir()] == [".run.pt2.0.part"]


def test_a_full_disk_is_named_whoever_writes(tmp_path, monkeypatch):
    def full(*_):
        raise RuntimeError("PytorchStreamWriter failed writing file")

    monkeypatch.setattr(torch, "save", full)
    with (
        pytest.raises(MupError, match="Cannot write weights to .*StreamWriter"),
        replace_file(tmp_path / "w", "weights") as part,
    ):
        save_torch({}, part)
