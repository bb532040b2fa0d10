"""What is seen while something long runs: a bar on a terminal, lines elsewhere."""

import io
import re
import time
from collections import Counter

from neuralop_mup.lab.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def record(lr, loss=None, **changes):
    done = (
        {"outcome": "failed", "error": "MemoryError: no memory"} if loss is None else {"outcome": "complete", "error": None}
    )
    return {"size": "proxy", "rule": "", "params": {"lr": lr}, "seed": 0, "seconds": 60.0, "loss": loss, **done, **changes}


def test_a_sweep_on_a_terminal(monkeypatch):
    """A proxy costs 1 and a target 10: after one of two proxies a twelfth is done; what fails stands above the bar."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    progress = Progress("sweep", {"proxy": 1.0, "target": 10.0}, enabled=True)
    progress.left(Counter({"proxy": 2, "target": 1}))
    progress.finished(record(0.4))
    time.sleep(0.15)
    progress.finished(record(0.2, 0.25))
    progress.tick()
    progress.close()
    seen = terminal.getvalue()
    assert "proxy lr 0.4 seed=0: FAILED, MemoryError: no memory" in seen
    assert re.search(r"sweep:  17%\|.*proxy lr 0.2 seed=0: 0.25", seen)
