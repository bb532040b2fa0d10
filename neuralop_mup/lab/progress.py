"""What the user sees while runs are trained: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from tqdm import tqdm

from neuralop_mup.lab.outcome import is_complete

_SILENCE = 30.0  # seconds between two lines where the bar cannot be drawn anew


def format_params(params: Mapping[str, Any]) -> str:
    """``lr=0.004, batch_size=20``."""
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in params.items())


class Progress:
    """Runs done, the best point so far and the time left, on stderr.

    Parameters
    ----------
    name : str
        Shown in front.
    costs : mapping
        Relative cost of a run of each size, by which the time left is told; may be empty.
    enabled : bool
        If False nothing is ever written.
    """

    def __init__(self, name: str, costs: Mapping[Any, float], enabled: bool) -> None:
        self.name = name
        self._costs = costs
        self._enabled = enabled
        self._done = 0
        self._left: Counter = Counter()
        self._losses: dict[tuple, list[float]] = {}
        self._best: dict[tuple, tuple[int, float, str]] = {}  # of each size and rule: seeds, -mean, point
        layout = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"
        how = {"file": sys.stderr, "dynamic_ncols": True, "bar_format": layout, "miniters": 0, "delay": 1e-9}
        how["mininterval"] = 0.1 if sys.stderr.isatty() else _SILENCE
        self._bar = tqdm(desc=name, total=1, disable=not enabled, **how)

    def left(self, left: Counter) -> None:
        """How many runs of each size are left."""
        self._left = left
        self._bar.total = self._bar.n + sum(count * self._cost(size) for size, count in left.items()) or 1

    def _cost(self, size: Any) -> float:
        return self._costs.get(size, 1.0)

    def finished(self, record: Mapping[str, Any]) -> None:
        """Show one more finished run."""
        size = record.get("size")
        cell = size, record.get("rule")
        at = format_params(record["params"])
        self._done += 1
        self._left[size] -= 1
        if is_complete(record):
            losses = self._losses.setdefault((*cell, at), [])
            losses.append(record["loss"])
            # A point by itself may have been better with one seed: it is out of the race until it has as many.
            new = (len(losses), -fmean(losses), at)
            self._best[cell] = max(new, self._best.get(cell, new))
        else:
            what = " ".join(filter(None, (*cell, at, f"seed={record['seed']}")))
            self.note(f"{what}: {record['outcome'].upper()}, {record['error']}")
        self._bar.set_postfix_str(f"{self._done}/{self._done + self._left.total()} runs{self._told(cell)}", refresh=False)
        self._bar.update(self._cost(size))

    def _told(self, cell: tuple) -> str:
        if cell not in self._best:
            return ""
        seeds, loss, at = self._best[cell]
        return f", best so far {-loss:.4g}{at and f' at {at}'}{f', mean of {seeds} seeds' if seeds > 1 else ''}"

    def tick(self) -> None:
        """Show that runs are under way while none ends."""
        self._bar.update(0)

    def note(self, text: str) -> None:
        """Write a line without tearing the bar."""
        if self._enabled:
            self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._bar.close()
