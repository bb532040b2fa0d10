"""Errors and warnings that users see."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from neuralop_mup.errors import MupError


@contextmanager
def refused(names: str) -> Iterator[pytest.ExceptionInfo]:
    """Expect a one-line MupError that contains each of these words, ignoring spaces in the message.

    Words are names of arguments, keys and files, or numbers. The rest of the message may change.
    """
    with pytest.raises(MupError) as caught:
        yield caught
    message = str(caught.value)
    missing = [name for name in names.split() if name not in message.replace(" ", "")]
    assert not missing, f"{missing} missing in: {message}"
    assert "\n" not in message


def of_category(caught: Iterable[warnings.WarningMessage], category: type[Warning] = UserWarning) -> list:
    """Select warnings, because Python also warns of files and sockets when it collects objects of earlier tests."""
    return [warning for warning in caught if issubclass(warning.category, category)]


@contextmanager
def warned(match: str, category: type[Warning] = UserWarning) -> Iterator[list[warnings.WarningMessage]]:
    """Expect a warning and list the warnings of its category."""
    found: list[warnings.WarningMessage] = []
    with pytest.warns(category, match=match) as caught:
        yield found
        found += of_category(caught, category)
