"""Progress on stderr: a bar in a terminal, and occasional lines elsewhere."""

import sys
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from neuralop_mup.lab.outcome import is_complete
from neuralop_mup.lab.wording import params

_SILENCE = 30.0  # seconds between two lines if the bar cannot be redrawn


def bar(**options: Any) -> tqdm:
    """Return a progress bar on stderr. The ``options`` are passed to tqdm."""
    return tqdm(
        file=sys.stderr, dynamic_ncols=True, smoothing=0, mininterval=0.1 if sys.stderr.isatty() else _SILENCE, **options
    )


def bar_of_runs(name: str, total: float, enabled: bool) -> tqdm:
    """Return a progress bar with the remaining time, for runs with this total cost."""
    layout = "{l_bar}{bar}| {elapsed}, {remaining} left{postfix}"
    return bar(desc=name, total=total, disable=not enabled, bar_format=layout, miniters=0, delay=1e-9)


def note(display: tqdm, text: str) -> None:
    """Print a line above the bar, unless the bar is disabled."""
    if not display.disable:
        display.write(text, file=sys.stderr)


def show_finished(display: tqdm, record: Mapping[str, Any], cost: float = 1.0) -> None:
    """Advance the bar by the cost of a finished run, and show the loss or the error of the run."""
    labels = [record.get("size"), record.get("rule"), params(record["params"]), f"seed={record['seed']}"]
    name = " ".join(filter(None, labels))
    if is_complete(record):
        display.set_postfix_str(f"{name}: {record['loss']:.4g}", refresh=False)
    else:
        note(display, f"{name}: {record['outcome'].upper()}, {record['error']}")
    display.update(cost)
