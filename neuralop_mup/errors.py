"""The one exception that this package raises for something the user can mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["MupError", "nearest"]


class MupError(ValueError):
    """What was given cannot work; the message says what, why, and what to do instead."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Sentence that offers the valid name closest to ``name``, or lists them all.

    Parameters
    ----------
    name : str
        What the user wrote.
    valid : iterable of str
        The names that would have worked.

    Returns
    -------
    str
        ``"did you mean 'burgers'?"`` or ``"expected one of burgers, darcy."``
    """
    valid = sorted(valid)
    close = difflib.get_close_matches(name, valid, n=1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(valid)}."
