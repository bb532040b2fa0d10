"""What is seen while something long runs: a bar on a terminal, lines elsewhere."""

import io
import re

from neuralop_mup.lab.progress import Progress, format_seconds


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal_of(monkeypatch):
    """In the test itself: between a fixture and its test pytest sets stderr anew."""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    return screen


def record(lr, loss=None, **changes):
    done = (
        {"outcome": "failed", "error": "MemoryError: no memory"} if loss is None else {"outcome": "complete", "error": None}
    )
    return {"size": "proxy", "rule": "", "params": {"lr": lr}, "seed": 0, "seconds": 60.0, "loss": loss, **done, **changes}


def test_a_sweep_on_a_terminal(monkeypatch, tmp_path):
    """Five runs of a minute, one process: after three two minutes are left; what fails stands above the bar."""
    terminal = terminal_of(monkeypatch)
    progress = Progress("sweep", {}, enabled=True)
    progress.start(tmp_path, [record(0.1, 0.5)], {"proxy": 4}, workers=1)
    progress.finished(record(0.2, 0.25), {"proxy": 3})
    progress.finished(record(0.4), {"proxy": 2})
    progress.tick()
    progress.close()
    seen = terminal.getvalue()
    assert f"5 runs, 1 of them finished before; results in {tmp_path}" in seen
    assert "proxy lr=0.4 seed=0: FAILED, MemoryError: no memory" in seen
    assert re.search(r"sweep 3/5 \|.*best so far 0.25 at lr=0.2, about 2 min left", seen)


def test_a_size_not_yet_measured_is_taken_at_its_cost():
    """A proxy took 60 s; a target of ten times its cost takes 600 s, and two processes share two of them."""
    progress = Progress("sweep", {"proxy": 1.0, "target": 10.0}, enabled=False)
    progress.start("folder", [record(0.1, 0.5)], {"target": 2}, workers=2)
    assert progress.time_left() == 600.0
    progress.start("folder", [], {"unknown": 1}, workers=2)
    assert progress.time_left() is None


def test_a_point_with_fewer_seeds_is_no_best(monkeypatch, tmp_path):
    lines = io.StringIO()
    monkeypatch.setattr("sys.stderr", lines)
    progress = Progress("sweep", {}, enabled=True)
    progress.start(tmp_path, [record(0.1, 0.5), record(0.1, 0.7, seed=1)], {"proxy": 1}, workers=1)
    progress.finished(record(0.2, 0.1), {"proxy": 0})
    assert "best so far 0.6 at lr=0.1, mean of 2 seeds, which 1 of 2 points has yet" in lines.getvalue()


def test_a_silent_sweep(monkeypatch, tmp_path):
    terminal = terminal_of(monkeypatch)
    progress = Progress("sweep", {}, enabled=False)
    progress.start(tmp_path, [], {"proxy": 1}, workers=1)
    progress.finished(record(0.1, 0.5), {})
    progress.close()
    assert terminal.getvalue() == ""


def test_long_times_in_words():
    assert [format_seconds(s) for s in (30, 3 * 3600, 72 * 3600)] == ["30 s", "3.0 h", "3.0 days"]
