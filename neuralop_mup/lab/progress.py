"""What the user sees while runs are trained: a bar on a terminal, a line a run elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from neuralop_mup.lab.outcome import is_complete, mean_loss
from neuralop_mup.lab.results import by_point

__all__ = ["Progress"]

_SILENCE = 30.0  # seconds without a line, the first time; then twice as long each


def format_seconds(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.5 h``, ``6.0 days``: as exact as an estimate deserves."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} days"


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
        Relative cost of a run of each size, for the time left before a size was measured; may be empty.
    enabled : bool
        If False nothing is ever written.
    """

    def __init__(self, name: str, costs: Mapping[Any, float], enabled: bool) -> None:
        self.name, self.enabled, self.costs = name, enabled, dict(costs)
        self.ended: list[Mapping[str, Any]] = []
        self._bar: Any = None
        self._begun = self._told = time.monotonic()
        self._silence = _SILENCE

    def start(self, folder: Any, done: Iterable[Mapping[str, Any]], left: Mapping[Any, int], workers: int) -> None:
        """Say where the results go, what an earlier command did, and how many runs of each size are left."""
        self.workers, self._left, self.ended = workers, left, list(done)
        total = len(self.ended) + sum(left.values())
        resumed = f", {len(self.ended)} of them finished before" if self.ended else ""
        self.note(f"{self.name}: {total} runs{resumed}; results in {folder}")
        self._begun = self._told = time.monotonic()
        if self.enabled and sys.stderr.isatty():
            from tqdm import tqdm

            layout = "{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed}{postfix}"
            options = {"file": sys.stderr, "dynamic_ncols": True, "bar_format": layout}
            self._bar = tqdm(total=total, initial=len(self.ended), desc=self.name, **options)

    def time_left(self) -> float | None:
        """Seconds left; sizes not yet measured are taken at their relative cost. None where nothing is known."""
        means = {
            size: fmean(r["seconds"] for r in self.ended if r["size"] == size) for size in {r["size"] for r in self.ended}
        }
        rate = max((seconds / self.costs[size] for size, seconds in means.items() if self.costs.get(size)), default=0.0)
        each = {size: means.get(size, rate * self.costs.get(size, 0.0)) for size in self._left}
        known = all(size in means or each[size] for size in self._left)
        return sum(count * each[size] for size, count in self._left.items()) / self.workers if known else None

    def _best(self, record: Mapping[str, Any]) -> str:
        """The best point of the record's cell by its mean, among those with as many seeds as any."""
        cell = (record["size"], record["rule"])
        points = by_point(r for r in self.ended if is_complete(r) and (r["size"], r["rule"]) == cell).values()
        if not points:
            return ""
        most = max(map(len, points))
        have = [group for group in points if len(group) == most]
        best = min(have, key=mean_loss)
        at = format_params(best[0]["params"])
        said = f"best so far {mean_loss(best):.4g}{at and f' at {at}'}"
        if most == 1:
            return said
        # A point by itself may have been better with one seed: it is out of the race until it has as many.
        few = f", which {len(have)} of {len(points)} points {'has' if len(have) == 1 else 'have'} yet"
        return f"{said}, mean of {most} seeds{few if len(have) < len(points) else ''}"

    def finished(self, record: Mapping[str, Any], left: Mapping[Any, int]) -> None:
        """Show one more finished run, and how many are left."""
        self.ended.append(record)
        self._left = left
        if not self.enabled:
            return
        total, seconds = len(self.ended) + sum(left.values()), self.time_left()
        soon = seconds is not None and sum(left.values()) and f"about {format_seconds(seconds)} left"
        summary = ", ".join(filter(None, (self._best(record), soon)))
        what = " ".join(
            filter(None, (record["size"], record["rule"], format_params(record["params"]), f"seed={record['seed']}"))
        )
        done, kind = is_complete(record), record["outcome"].upper()
        result = f"loss {record['loss']:.4g}" if done else f"{kind}, {record['error']}"
        if self._bar is None:
            more = summary and f"; {summary}"
            self.note(f"[{len(self.ended)}/{total}] {what}: {result} ({record['seconds']:.1f} s){more}")
            return
        if not done:
            self.note(f"{what}: {result}")
        self._bar.total = total
        self._bar.set_postfix_str(summary, refresh=False)
        self._bar.update()

    def tick(self) -> None:
        """Show that runs are under way while none ends: the bar's clock, or a line after each time twice as long."""
        now = time.monotonic()
        if self._bar is not None:
            self._bar.refresh()
        elif now - self._told >= self._silence:
            self._silence *= 2
            self.note(f"[{len(self.ended)}] still training, {format_seconds(now - self._begun)} since the start")

    def note(self, text: str) -> None:
        """Write a line without tearing the bar."""
        if not self.enabled:
            return
        self._told = time.monotonic()
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
