"""Exceptions for problems that the user can fix."""

import difflib
from collections.abc import Iterable, Sequence


class MupError(ValueError):
    """An argument or a file cannot be used; the message explains why and what to do instead.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> try:
    ...     nm.parametrize(FNO((8,), 1, 1, 16), rule="log-mode")
    ... except nm.MupError as error:
    ...     print(str(error)[:50])
    Unknown rule 'log-mode': did you mean 'log-modes'?
    """


class Diverged(MupError):
    """Training has diverged: a value is not finite, usually because the learning rate is too large."""


def error_text(error: BaseException) -> str:
    """Return the class and the message of an error on one line, without a full stop at the end."""
    return f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"


# Similarity ratio above which a name is suggested. A typo in a short word (adma for adam) exceeds it, but words that only
# share some letters (width, rank) do not.
_CUTOFF = 0.75


def nearest(name: str, valid: Iterable[str], prefix: str = "") -> str:
    """Return a sentence that suggests the valid name closest to ``name``, or lists all valid names.

    Parameters
    ----------
    name : str
        The invalid name.
    valid : iterable of str
        All valid names.
    prefix : str
        Text to show before each valid name. The comparison ignores it.

    Returns
    -------
    str
        ``"did you mean 'burgers'?"`` or ``"expected one of burgers, darcy."``
    """
    valid = sorted(valid)
    lower = {word.lower(): word for word in reversed(valid)}  # ignore case, so that "soap" matches "MuSOAP"
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=_CUTOFF)
    if close:
        return f"did you mean {prefix + lower[close[0]]!r}?"
    return f"expected one of {', '.join(prefix + word for word in valid)}."


def listed(lines: Sequence[str]) -> str:
    """Join the first four lines with semicolons, followed by the number of remaining lines."""
    return "; ".join([*lines[:4], *([f"… {len(lines) - 4} more"] if len(lines) > 4 else [])])
