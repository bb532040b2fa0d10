"""What the user sees while trials run: a bar on a terminal, a line per trial elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neuralop_mup.tuning.records import Record, format_params

__all__ = ["Progress"]


def format_seconds(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.5 h``: as exact as an estimate deserves."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class Progress:
    """Trials done, best so far and time left, on stderr.

    Parameters
    ----------
    name : str
        Shown in front.
    expected : dict
        Number of trials of each size, finished ones included.
    n_workers : int
        How many run at once.
    enabled : bool
        If False nothing is ever written.
    """

    def __init__(self, name: str, expected: dict[str | None, int], n_workers: int, enabled: bool) -> None:
        self.name, self.n_workers, self.enabled = name, n_workers, enabled
        self.total = sum(expected.values())
        self.done = 0
        self._left = dict(expected)
        self._seconds: dict[str | None, list[float]] = {}
        self._best: dict[tuple, Record] = {}
        self._bar: Any = None

    def start(self, folder: Path, finished: Iterable[Record]) -> None:
        """Say where the results go, and count what an earlier command finished."""
        for record in finished:
            self._count(record)
        resumed = f", {self.done} of them finished before" if self.done else ""
        self.note(f"{self.name}: {self.total} trials{resumed}; results in {folder}")
        if self.enabled and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=self.total,
                initial=self.done,
                desc=self.name,
                file=sys.stderr,
                dynamic_ncols=True,
                bar_format="{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed}{postfix}",
            )

    def _count(self, record: Record, trained: bool = True) -> None:
        self.done += 1
        size = record["size"]
        self._left[size] = self._left.get(size, 0) - 1
        if trained:
            self._seconds.setdefault(size, []).append(record["seconds"])
        if record["state"] == "complete":
            key = (record["stage"], record["rule"])
            best = self._best.get(key)
            if best is None or record["loss"] < best["loss"]:
                self._best[key] = record

    def time_left(self) -> tuple[float, bool] | None:
        """Seconds left, and whether every size that is still to run has been measured; None before any has."""
        if not self._seconds:
            return None
        seconds, exact = 0.0, True
        for size, n in self._left.items():
            measured = self._seconds.get(size)
            if measured:
                seconds += max(n, 0) * sum(measured) / len(measured)
            elif n > 0:
                exact = False
        return seconds / self.n_workers, exact

    def _summary(self, record: Record) -> str:
        parts = []
        best = self._best.get((record["stage"], record["rule"]))
        if best is not None:
            parts.append(f"best {best['loss']:.4g} at {format_params(best['params'])}")
        left = self.time_left()
        if left is not None and self.done < self.total:
            # A size that has not run yet may cost anything; the estimate is then only a lower end.
            parts.append(f"{'about' if left[1] else 'more than'} {format_seconds(left[0])} left")
        return ", ".join(parts)

    def finished(self, record: Record, trained: bool = True) -> None:
        """Show one more finished trial."""
        self._count(record, trained)
        if not self.enabled:
            return
        where = " ".join(x for x in (record["stage"], record["rule"]) if x)
        what = f"{where} {format_params(record['params'])} seed={record['seed']}"
        if self._bar is None:
            result = f"loss {record['loss']:.4g}" if record["state"] == "complete" else f"FAILED, {record['error']}"
            summary = self._summary(record)
            self.note(
                f"[{self.done}/{self.total}] {what}: {result} ({record['seconds']:.1f} s)"
                + (f"; {summary}" if summary else "")
            )
            return
        if record["state"] == "failed":
            self.note(f"{what}: FAILED, {record['error']}")
        self._bar.set_postfix_str(self._summary(record), refresh=False)
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
        if self._bar is not None:
            self._bar.close()
            self._bar = None
