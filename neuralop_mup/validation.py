"""Validate numeric arguments and argument names."""

import math
from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import Any

from neuralop_mup.errors import MupError, nearest


def is_number(value: Any, tensor: bool = False) -> bool:
    """Return whether ``value`` is finite and not negative; if ``tensor`` is true, also accept one-element tensors."""
    if hasattr(value, "numel"):  # detect a tensor without importing torch
        return tensor and value.numel() == 1 and math.isfinite(value) and bool(value >= 0)
    return _is_real(value) and math.isfinite(value) and value >= 0


def is_multiplier(value: Any) -> bool:
    """Return whether ``value`` is a number between 1e-12 and 1e12, a range in which products stay finite."""
    return _is_real(value) and 1e-12 <= value <= 1e12


def check_number(what: str, value: Any, tensor: bool = False) -> None:
    """Raise MupError unless :func:`is_number` is true for ``value``."""
    if not is_number(value, tensor):
        raise MupError(f"{what} must be a finite number ≥ 0, but got {value!r}.")


def check_positive(what: str, value: Any, finite: bool = True) -> None:
    """Raise MupError unless ``value`` is a positive number and, by default, finite."""
    if not _is_real(value) or not value > 0 or (finite and not math.isfinite(value)):
        raise MupError(f"{what} must be a {'finite ' if finite else ''}number > 0, but got {value!r}.")


def check_count(what: str, value: Any, unit: str = "", least: int = 1) -> None:
    """Raise MupError unless ``value`` is an integer greater than or equal to ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise MupError(f"{what} must be an integer{f' number of {unit}' if unit else ''} ≥ {least}, but got {value!r}.")


def check_decay(what: str, value: Any) -> None:
    """Raise MupError unless ``value``, or every number in it if it is a sequence, lies in [0, 1)."""
    if not all(is_number(number) and number < 1 for number in (value if isinstance(value, Sequence) else [value])):
        raise MupError(f"{what} must lie in [0, 1), but got {value!r}. Use a value such as 0.9.")


def check_names(given: Iterable[str], *takers: Callable[..., Any]) -> None:
    """Raise MupError if a name is not an argument of any of the functions ``takers``."""
    for name in given:
        known = {p.name for f in takers for p in signature(f).parameters.values() if p.kind is not Parameter.VAR_KEYWORD}
        if name not in known:
            raise MupError(f"Unknown argument {name!r}: {nearest(name, known)}")


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
