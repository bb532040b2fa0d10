"""Checks of numeric arguments and argument names."""

import math
from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import Any

from neuralop_mup.errors import MupError, nearest


def is_number(value: Any, tensor: bool = False) -> bool:
    """Return whether ``value`` is finite and not negative; with ``tensor``, a tensor of one element is allowed."""
    if hasattr(value, "numel"):  # a tensor, recognized without importing torch
        return tensor and value.numel() == 1 and math.isfinite(value) and bool(value >= 0)
    return _is_real(value) and math.isfinite(value) and value >= 0


def is_multiplier(value: Any) -> bool:
    """Return whether ``value`` is a number from 1e-12 to 1e12, so that products with it stay finite."""
    return _is_real(value) and 1e-12 <= value <= 1e12


def check_number(what: str, value: Any, tensor: bool = False) -> None:
    """Raise MupError unless :func:`is_number`."""
    if not is_number(value, tensor):
        raise MupError(f"{what} is {value!r}; use a finite number ≥ 0.")


def check_positive(what: str, value: Any, finite: bool = True) -> None:
    """Raise MupError unless ``value`` is above 0 and, by default, finite."""
    if not _is_real(value) or not value > 0 or (finite and not math.isfinite(value)):
        raise MupError(f"{what} is {value!r}; use a {'finite ' if finite else ''}number above 0.")


def check_count(what: str, value: Any, unit: str = "", least: int = 1) -> None:
    """Raise MupError unless ``value`` is an integer of at least ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise MupError(f"{what} is {value!r}; use a whole number{f' of {unit}' if unit else ''}, at least {least}.")


def check_decay(what: str, value: Any) -> None:
    """Raise MupError unless ``value``, or each of several numbers, is at least 0 and below 1."""
    if not all(is_number(number) and number < 1 for number in (value if isinstance(value, Sequence) else [value])):
        raise MupError(f"{what} is {value!r}; use numbers of at least 0 and below 1, such as 0.9.")


def check_names(given: Iterable[str], *takers: Callable[..., Any]) -> None:
    """Raise MupError for a name that is no argument of these functions."""
    for name in given:
        known = {p.name for f in takers for p in signature(f).parameters.values() if p.kind is not Parameter.VAR_KEYWORD}
        if name not in known:
            raise MupError(f"Unknown argument {name!r}: {nearest(name, known)}")


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
