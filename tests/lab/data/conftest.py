import pytest


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    """Tests write and read files by relative paths."""
    monkeypatch.chdir(tmp_path)
