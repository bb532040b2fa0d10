"""Files are written whole or not at all."""

import pytest

from neuralop_mup.errors import MupError
from neuralop_mup.files import replace_file


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


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(MupError, match=r"Cannot write words to .*none/file.: No such file or directory"):
        _write(tmp_path / "none" / "file")
