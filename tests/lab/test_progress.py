"""The progress bar on a terminal."""

import io
import sys

from neuralop_mup.lab.progress import bar_of_runs, show_finished


def test_progress_of_a_study_on_a_terminal(monkeypatch):
    """Two of three runs have ended, and one of them failed."""
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    record = {"size": "proxy", "rule": "", "seed": 0, "params": {"lr": 0.4}, "outcome": "failed", "error": "MemoryError"}
    with bar_of_runs("sweep", 10, enabled=True) as display:
        show_finished(display, record)
        show_finished(display, {**record, "params": {"lr": 0.2}, "outcome": "complete", "loss": 0.25}, cost=3.0)
    shown = sys.stderr.getvalue()
    assert [text for text in ("lr 0.4", "MemoryError", "sweep:  40%|", " left", "lr 0.2", "0.25") if text not in shown] == []
