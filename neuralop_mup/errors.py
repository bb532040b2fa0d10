"""The exceptions that this package raises for something the user can mend."""

import difflib
from collections.abc import Iterable


class MupError(ValueError):
    """What was given cannot work; the message says what, why, and what to do instead.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> try:
    ...     nm.parametrize(FNO((8,), 1, 1, 16), rule="log-mode")
    ... except nm.MupError as error:
    ...     print(str(error)[:60])
    There is no rule 'log-mode': did you mean 'log-modes'? A fun
    """


class Diverged(MupError):
    """Training left the finite numbers: these hyperparameters are too bold, nothing is wrong with the run itself."""


# A typo of a short word still has this ratio (adma, adam); words that merely share letters (width, rank) do not.
_CUTOFF = 0.75


def nearest(name: str, valid: Iterable[str], prefix: str = "") -> str:
    """Sentence that offers the valid name closest to ``name``, or lists them all.

    Parameters
    ----------
    name : str
        What the user wrote.
    valid : iterable of str
        The names that would have worked.
    prefix : str
        What all of them begin with when they are told; it does not make them alike.

    Returns
    -------
    str
        ``"did you mean 'burgers'?"`` or ``"expected one of burgers, darcy."``
    """
    valid = sorted(valid)
    lower = {word.lower(): word for word in reversed(valid)}  # MuSOAP is near to soap
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=_CUTOFF)
    if close:
        return f"did you mean {prefix + lower[close[0]]!r}?"
    return f"expected one of {', '.join(prefix + word for word in valid)}."
