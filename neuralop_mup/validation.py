"""What numbers a user may give, and what is said of others."""

import math
from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import Any

from neuralop_mup.errors import MupError, nearest


def is_number(value: Any, tensor: bool = False) -> bool:
    """Whether ``value`` is a finite number and not negative; with ``tensor`` it may be a tensor of one element."""
    if hasattr(value, "numel"):  # a tensor; worker processes that only import this do not need torch for it
        return tensor and value.numel() == 1 and math.isfinite(value) and bool(value >= 0)
    return _is_real(value) and math.isfinite(value) and value >= 0


def is_multiplier(value: Any) -> bool:
    """Whether ``value`` is a number that something may be multiplied by and still be a number: from 1e-12 to 1e12."""
    return _is_real(value) and 1e-12 <= value <= 1e12


def check_number(what: str, value: Any, tensor: bool = False) -> None:
    """Raise MupError unless :func:`is_number`."""
    if not is_number(value, tensor):
        raise MupError(f"{what} is {value!r}; give a finite number that is not negative.")


def check_positive(what: str, value: Any, finite: bool = True) -> None:
    """Raise MupError unless ``value`` is above 0, and finite unless infinity has a meaning."""
    if not _is_real(value) or not value > 0 or (finite and not math.isfinite(value)):
        raise MupError(f"{what} is {value!r}; give a {'finite ' if finite else ''}number above 0.")


def check_count(what: str, value: Any, unit: str = "", least: int = 1) -> None:
    """Raise MupError unless ``value`` is a whole number of ``least`` or more."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise MupError(f"{what} is {value!r}; give a whole number{f' of {unit}' if unit else ''}, {least} or more.")


def check_decay(what: str, value: Any) -> None:
    """Raise MupError unless ``value``, one number or for ``betas`` two, is of 0 or more and below 1."""
    numbers = value if what == "betas" and isinstance(value, Sequence) else (value,)
    if len(numbers) != (2 if what == "betas" else 1) or not all(is_number(number) and number < 1 for number in numbers):
        example = "two numbers such as (0.9, 0.999), each" if what == "betas" else "a number"
        raise MupError(f"{what} is {value!r}; give {example} of 0 or more and below 1.")


def check_names(given: Iterable[str], *takers: Callable[..., Any]) -> None:
    """Raise MupError for the name of an argument that none of these takes."""
    for name in given:
        known = {p.name for f in takers for p in signature(f).parameters.values() if p.kind is not Parameter.VAR_KEYWORD}
        if name not in known:
            raise MupError(f"There is no argument {name!r}: {nearest(name, known)}")


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
