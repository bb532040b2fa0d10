"""The progress bar on a terminal."""

import io
import sys
from collections import Counter

from neuralop_mup.lab.progress import Progress


def test_progress_of_a_study_on_a_terminal(monkeypatch):
    """A proxy costs 1 and a target 10: two proxies and a target cost 12, and two proxies are 17 % of them."""
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Progress("sweep", {"proxy": 1.0, "target": 10.0}, enabled=True)
    progress.left(Counter({"proxy": 2, "target": 1}))
    record = {"size": "proxy", "rule": "", "seed": 0, "params": {"lr": 0.4}, "outcome": "failed", "error": "MemoryError"}
    progress.finished(record)
    progress.finished({**record, "params": {"lr": 0.2}, "outcome": "complete", "loss": 0.25})
    progress.tick()
    progress.close()
    shown = sys.stderr.getvalue()
    assert [text for text in ("lr 0.4", "MemoryError", "sweep:  17%|", "lr 0.2", "0.25") if text not in shown] == []
