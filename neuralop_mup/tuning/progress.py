"""What the user sees while runs are trained: a bar on a terminal, a line a run elsewhere."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from neuralop_mup.counting import format_seconds
from neuralop_mup.tuning.outcome import Kind, Record, best_point, by_point, is_complete

__all__ = ["Progress", "format_params"]


def format_params(params: Mapping[str, Any]) -> str:
    """``lr=0.004, batch_size=20``."""
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in params.items())


class Progress:
    """Runs done, the best point so far and the time left, on stderr.

    Parameters
    ----------
    name : str
        Shown in front.
    runs : mapping
        Number of runs of each size, finished ones included.
    costs : mapping
        Relative cost of a run of each size, for the time left before a size was measured; may be empty.
    enabled : bool
        If False nothing is ever written.
    """

    def __init__(self, name: str, runs: Mapping[Any, int], costs: Mapping[Any, float], enabled: bool) -> None:
        self.name, self.enabled, self.costs = name, enabled, dict(costs)
        self.total, self.done, self.n_workers = sum(runs.values()), 0, 1
        self._left = Counter(runs)
        self._seconds: dict[Any, list[float]] = {}
        self._records: list[Record] = []
        self._bar: Any = None

    def start(self, folder: Path, finished: Iterable[Record], n_workers: int) -> None:
        """Say where the results go, and count what an earlier command finished."""
        self.n_workers = n_workers
        for record in finished:
            if self._left[record["size"]] > 0:
                self._count(record)
        resumed = f", {self.done} of them finished before" if self.done else ""
        self.note(f"{self.name}: {self.total} runs{resumed}; results in {folder}")
        if self.enabled and sys.stderr.isatty():
            from tqdm import tqdm

            layout = "{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed}{postfix}"
            options = {"file": sys.stderr, "dynamic_ncols": True, "bar_format": layout}
            self._bar = tqdm(total=self.total, initial=self.done, desc=self.name, **options)

    def _count(self, record: Record) -> None:
        self.done += 1
        self._left[record["size"]] -= 1
        self._seconds.setdefault(record["size"], []).append(record["seconds"])
        self._records.append(record)

    def skip(self, size: Any, count: int) -> None:
        """Runs that will not be needed: further seeds of a point that failed."""
        count = min(count, self._left[size])
        self.total -= count
        self._left[size] -= count
        if self._bar is not None:
            self._bar.total = self.total

    def more(self, size: Any, count: int) -> None:
        """Runs that are wanted besides."""
        self.total += count
        self._left[size] += count
        if self._bar is not None:
            self._bar.total = self.total

    def time_left(self) -> float | None:
        """Seconds left; sizes not yet measured are taken at their relative cost. None where nothing is known."""
        means = {size: sum(s) / len(s) for size, s in self._seconds.items()}
        rates = [seconds / self.costs[size] for size, seconds in means.items() if self.costs.get(size)]
        total = 0.0
        for size, count in self._left.items():
            if count > 0:
                if size not in means and not (rates and self.costs.get(size)):
                    return None
                total += count * (means[size] if size in means else self.costs[size] * max(rates))
        return total / self.n_workers

    def _best(self, record: Record) -> str:
        """The best point of the record's cell by its mean, among those with as many seeds as any."""
        cell = [r for r in self._records if (r["size"], r["rule"]) == (record["size"], record["rule"]) and is_complete(r)]
        if not cell:
            return ""
        most = max(map(len, by_point(cell).values()))
        params, mean = best_point(cell, most)
        seeds = f", mean of {most} seeds" if most > 1 else ""
        return f"best so far {mean:.4g} at {format_params(params)}{seeds}"

    def finished(self, record: Record) -> None:
        """Show one more finished run."""
        self._count(record)
        if not self.enabled:
            return
        left = self.time_left() if self.done < self.total else None
        summary = ", ".join(filter(None, (self._best(record), left is not None and f"about {format_seconds(left)} left")))
        where = " ".join(x for x in (record["size"], record["rule"]) if x)
        what = f"{where} {format_params(record['params'])} seed={record['seed']}".strip()
        kind = record["outcome"]
        result = f"loss {record['loss']:.4g}" if is_complete(record) else f"{kind.upper()}, {record['error']}"
        if self._bar is None:
            self.note(
                f"[{self.done}/{self.total}] {what}: {result} ({record['seconds']:.1f} s)" + (summary and f"; {summary}")
            )
            return
        if kind not in (Kind.COMPLETE.value, Kind.PRUNED.value):
            self.note(f"{what}: {result}")
        self._bar.set_postfix_str(summary, refresh=False)
        self._bar.update()

    def note(self, text: str) -> None:
        """Write a line without tearing the bar."""
        if not self.enabled:
            return
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
