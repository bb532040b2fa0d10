"""Format numbers, hyperparameters, rules and sizes for sentences and tables."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

_SHORT = {"hidden_channels": "width", "n_modes": "modes"}


def in_words(name: str) -> str:
    """Return the name of a hyperparameter for use in a sentence."""
    return "learning rate" if name == "lr" else name


def number(value: Any, form: str = "%.3g") -> str:
    """Return a number or another value as text, with a dash for None and for numbers that are not finite."""
    if isinstance(value, float):
        return form % value if math.isfinite(value) else "–"
    return "–" if value is None else str(value)


def loss_of_row(row: Mapping[str, Any]) -> str:
    """Return the loss in a row of the summary as text, with its standard deviation over seeds."""
    loss, std = row["transferred_loss"], row["transferred_std"]
    return number(loss) + (f" ± {std:.1g}" if std > 0 else "")  # false if std is NaN


def params(values: Mapping[str, Any]) -> str:
    """Return hyperparameters as a phrase, such as ``"lr 0.016, lr_mult.spectral 2"``."""
    return ", ".join(f"{name} {number(value)}" for name, value in values.items())


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 run`` or ``2 runs``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def rule_name(rule: str | None) -> str:
    return "" if rule is None else "SP" if rule == "standard" else rule


def size_text(size: Mapping[str, Any]) -> str:
    """Return arguments of a model as a phrase, such as ``width 64, modes 32×32``."""
    known = [f"{_SHORT[name]} {cell(size[name], '×')}" for name in _SHORT if name in size]
    return ", ".join(known) or cell(size)


def cell(value: Any, joined: str = " ") -> str:
    """Return a setting as text for a table cell."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {cell(inner, joined)}" for name, inner in value.items()) or "–"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return joined.join(map(cell, value)) or "–"
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return number(value)


def line(text: Any) -> str:
    """Return the text as a single line of at most 600 characters, for a table cell."""
    return " ".join(str(text).split())[:600].replace("|", "\\|")


def aligned(rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table with aligned columns. The first row is the header."""
    written = [list(map(number, row)) for row in rows]
    widths = [max(3, *map(len, column)) for column in zip(*written, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in written]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
