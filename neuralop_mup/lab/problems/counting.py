"""A count that is shown while it grows: for work of known length besides training."""

from __future__ import annotations

import sys
import time
from typing import Any


def format_seconds(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.5 h``, ``6.0 days``: as exact as an estimate deserves."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} days"


class Counting:
    """A count of known length on stderr: a bar on a terminal, elsewhere a line at once and then every so often."""

    def __init__(self, what: str, total: int, every: float = 10.0) -> None:
        self.what, self.total, self.done, self._every = what, total, 0, every
        self._start = self._last = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=what, file=sys.stderr, leave=False)
        else:
            print(f"{what}: {total} in all", file=sys.stderr, flush=True)

    def update(self, count: int = 1) -> None:
        """So many more are done."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)
            return
        now = time.monotonic()
        if now - self._last >= self._every and self.done < self.total:
            self._last = now
            left = (now - self._start) / self.done * (self.total - self.done)
            text = f"{self.what}: {self.done} of {self.total}, about {format_seconds(left)} left"
            print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> Counting:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()
