"""What is seen while something long runs: a bar on a terminal, lines elsewhere."""

import io
import re

from neuralop_mup.counting import Counting, format_seconds
from neuralop_mup.tuning.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal_of(monkeypatch):
    """In the test itself: between a fixture and its test pytest sets stderr anew."""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    return screen


def record(lr, loss=None, seed=0, **changes):
    done = {"outcome": "complete", "loss": loss, "error": None} if loss is not None else {"outcome": "raised", "loss": None}
    return {"size": "proxy", "rule": "none", "params": {"lr": lr}, "seed": seed, "seconds": 60.0, **done, **changes}


def test_a_sweep_on_a_terminal(monkeypatch, tmp_path):
    """Four runs of a minute with one worker: after two, two minutes are left; what fails stands above the bar."""
    terminal = terminal_of(monkeypatch)
    progress = Progress("sweep", {"proxy": 4}, {}, enabled=True)
    progress.start(tmp_path, [record(0.1, 0.5)], n_workers=1)
    progress.finished(record(0.2, 0.25))
    progress.finished(record(0.4, error="Diverged: the loss is nan"))
    progress.tick()
    progress.more("proxy", 2)
    progress.skip("proxy", 1)
    progress.finished(record(0.3, 0.4))
    progress.close()
    seen = terminal.getvalue()
    assert f"4 runs, 1 of them finished before; results in {tmp_path}" in seen
    assert "best so far 0.25 at lr=0.2, about 2 min left" in seen
    assert "proxy none lr=0.4 seed=0: RAISED, Diverged: the loss is nan" in seen
    assert re.search(r"sweep 4/5 \|.*best so far 0.25 at lr=0.2, about 60 s left", seen)


def test_a_silent_sweep(monkeypatch, tmp_path):
    terminal = terminal_of(monkeypatch)
    progress = Progress("sweep", {"proxy": 1}, {}, enabled=False)
    progress.start(tmp_path, [], n_workers=1)
    progress.finished(record(0.1, 0.5))
    progress.close()
    assert terminal.getvalue() == ""


def test_counting_on_a_terminal_and_elsewhere(monkeypatch):
    terminal = terminal_of(monkeypatch)
    with Counting("generating data", 10) as count:
        count.update(4)
    assert "generating data" in terminal.getvalue() and "10" in terminal.getvalue()
    lines = io.StringIO()
    monkeypatch.setattr("sys.stderr", lines)
    clock = iter([0.0, 5.0, 20.0, 40.0])  # begun, then after 2, 5 and 10 of 10; a line every 10 s but for the last
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with Counting("generating data", 10) as count:
        for done in (2, 3, 5):
            count.update(done)
    assert lines.getvalue() == "generating data: 10 in all\ngenerating data: 5 of 10, about 20 s left\n"


def test_long_times_in_words():
    assert [format_seconds(s) for s in (30, 3 * 3600, 72 * 3600)] == ["30 s", "3.0 h", "3.0 days"]
