"""How numbers, hyperparameters, rules and sizes are written in sentences and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from neuralop_mup.lab.optimum import Interval, Optimum

_NAMES = {"lr": "learning rate", "batch_size": "batch size", "beta2": "Adam β2"}
_SHORT = {"hidden_channels": "width", "n_modes": "modes"}


def name_of(name: str) -> str:
    """A hyperparameter in words."""
    return _NAMES.get(name, name)


def number(value: Any, form: str = "%.3g") -> str:
    """A number, or the text of what is none; a dash for nothing."""
    if isinstance(value, float):
        return form % value if math.isfinite(value) else "–"
    return "–" if value is None else str(value)


def percent_interval(value: Interval) -> str:
    """A share with its interval, where it has one."""
    return (f"{100 * value.value:.1f} %" if math.isfinite(value.value) else "∞ (a run failed)") + _between(
        value, "{:.1f}", 100
    )


def factor(drift: Interval) -> str:
    """A drift as a factor, with its interval."""
    return f"×{drift.value:.2f}" + _between(drift, "{:.2f}")


def _between(value: Interval, form: str, scale: float = 1) -> str:
    if value.low is None or value.high is None:
        return ""
    return f" ({form.format(scale * value.low)} to {form.format(scale * value.high)})"


def optimum(found: Optimum | None) -> str:
    """The best value between grid points with its interval, or the bound that is known of it."""
    if found is None:
        return "–"
    if found.value is None:
        return f"< {number(found.high)}" if found.low == 0 else f"> {number(found.low)}"
    return number(found.value) + ("" if found.low is None else f" ({number(found.low)} to {number(found.high)})")


def loss_of_row(row: Mapping[str, Any], which: str) -> str:
    """A loss of a summary's row with its spread over seeds: ``which`` is "best" or "transferred"."""
    loss, std = row[f"{which}_loss"], row[f"{which}_std"]
    return "–" if loss is None or not math.isfinite(loss) else number(loss) + (f" ± {std:.1g}" if std else "")


def params(values: Mapping[str, Any]) -> str:
    """Hyperparameters in one phrase: ``"lr 0.016, lr_mult.spectral 2"``."""
    return ", ".join(f"{name if name == 'lr' else name_of(name)} {number(value)}" for name, value in values.items())


def rule_name(rule: str | None) -> str:
    return "" if rule is None else "SP" if rule == "standard" else rule


def listed(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def size_text(size: Mapping[str, Any]) -> str:
    """``width 64, modes 32×32`` of a model's arguments."""
    known = [f"{_SHORT[name]} {cell(size[name], '×')}" for name in _SHORT if name in size]
    return ", ".join(known) or cell(size)


def cell(value: Any, joined: str = " ") -> str:
    """A setting in a table's cell."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {cell(inner, joined)}" for name, inner in value.items()) or "–"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return joined.join(map(cell, value)) or "–"
    return number(value) if isinstance(value, float) else str(value)


def line(text: Any) -> str:
    """A text in one line that may stand in a table."""
    return " ".join(str(text).split())[:600].replace("|", "\\|")


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A markdown table whose columns also line up in a terminal, the header first."""
    widths = [max(3, *(len(row[i]) for row in rows)) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
