"""Errors that users see."""

from collections.abc import Iterator
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
