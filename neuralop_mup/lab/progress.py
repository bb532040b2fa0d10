"""What the user sees while runs are trained: a bar on a terminal, a line now and then elsewhere."""

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.wording import counted, params

_SILENCE = 30.0  # seconds between two lines if the bar cannot be redrawn


def bar(**how: Any) -> tqdm:
    """A bar on stderr, which is drawn anew all the time on a terminal, and now and then elsewhere."""
    return tqdm(
        file=sys.stderr, dynamic_ncols=True, smoothing=0, mininterval=0.1 if sys.stderr.isatty() else _SILENCE, **how
    )


class Progress:
    """Runs done, the last one, and the time left, on stderr.

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
        self._runs = 0
        layout = "{l_bar}{bar}| {elapsed}, {remaining} left{postfix}"
        self._bar = bar(desc=name, total=1, disable=not enabled, bar_format=layout, miniters=0, delay=1e-9)

    def left(self, left: Counter) -> None:
        """How many runs of each size are left."""
        self._bar.total = self._bar.n + sum(count * self._costs.get(size, 1.0) for size, count in left.items()) or 1

    def finished(self, record: Mapping[str, Any]) -> None:
        """Show one more finished run."""
        labels = [record.get("size"), record.get("rule"), params(record["params"]), f"seed={record['seed']}"]
        what = " ".join(filter(None, labels))
        self._runs += 1
        if not is_complete(record):
            self.note(f"{what}: {record['outcome'].upper()}, {record['error']}")
        else:
            self._bar.set_postfix_str(f"{counted(self._runs, 'run')}, {what}: {record['loss']:.4g}", refresh=False)
        self._bar.update(self._costs.get(record.get("size"), 1.0))

    def tick(self) -> None:
        """Show that runs are under way while none ends."""
        self._bar.update(0)

    def note(self, text: str) -> None:
        """Write a line without tearing the bar."""
        if not self._bar.disable:
            self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._bar.close()
