"""Search spaces: grids, and the checks on them."""

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from neuralop_mup.errors import MupError
from neuralop_mup.lab.records import params_key


def log2_grid(low: float, high: float) -> list[float]:
    """Grid of factor 2 from ``low`` to ``high``, both ends included.

    Parameters
    ----------
    low, high : float
        Ends of the grid; ``high`` is ``low`` times a power of two.

    Returns
    -------
    list of float
        ``[low, 2 * low, 4 * low, ..., high]``.

    Raises
    ------
    MupError
        If an end is not positive and finite, if ``high < low``, or if no whole number of doublings joins them.

    Examples
    --------
    >>> import neuralop_mup as nm
    >>> nm.log2_grid(2**-3, 2)
    [0.125, 0.25, 0.5, 1.0, 2.0]
    """
    doublings = math.log2(high / low) if 0 < low <= high < math.inf else math.nan
    if not math.isclose(doublings, np.rint(doublings), abs_tol=1e-6):
        raise MupError(
            f"log2_grid({low!r}, {high!r}): the upper end must be the lower one times a power of two, and both positive and "
            "finite, such as 2**-12 and 2**-5."
        )
    n = round(doublings)
    return [float(low * 2**i) for i in range(n)] + [float(high)]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def edge_of(value: Any, grid: Any) -> str | None:
    """ "lowest" or "highest" if a number is the first or last of a grid of at least two numbers, else None."""
    if not isinstance(grid, (list, tuple)) or len(grid) < 2 or not all(map(is_number, grid)):
        return None
    return "lowest" if value == min(grid) else "highest" if value == max(grid) else None


def points(space: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every point of a grid, the last key moving fastest."""
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]


def checked(
    space: Mapping[str, Any], fixed: Mapping[str, Any] | None, seeds: Iterable[int], reserved: Sequence[str]
) -> dict[str, Any]:
    """What every study is asked, by the names of its fields: grids as lists of plain values, seeds as a tuple.

    Parameters
    ----------
    space : mapping of str to sequence
        What to tune.
    fixed : mapping, optional
        Config entries that are the same in every trial.
    seeds : iterable of int
    reserved : sequence of str
        Config keys that are set by the sweep itself.

    Raises
    ------
    MupError
        For an empty space, a key that is reserved or stands in both, values or seeds that cannot be tried.
    """
    fixed = dict(fixed or {})
    if not isinstance(space, Mapping) or not space:
        values = list(space) if isinstance(space, (list, tuple)) else [0.01, 0.02, 0.04]
        raise MupError(f"The space is {space!r}; give a dict of hyperparameters and the values to try: {{'lr': {values}}}.")
    for key in [*space, *fixed]:
        if not isinstance(key, str):
            raise MupError(f"The space has the key {key!r}; keys must be strings, such as 'lr'.")
        if key in reserved or (key in space and key in fixed):
            raise MupError(
                f"{key!r} may be only in space or only in fixed, and {', '.join(reserved)} in neither: the sweep sets them."
            )
    if not isinstance(seeds, Iterable):
        raise MupError(f"seeds={seeds!r} is one number; give the seeds themselves, such as seeds=({seeds},).")
    seeds = tuple(seeds)
    if not seeds or not all(isinstance(s, Integral) for s in seeds) or len(set(seeds)) != len(seeds):
        raise MupError(f"seeds={seeds!r} must be distinct integers, at least one, such as seeds=(0, 1, 2).")
    space = {key: _grid(key, values) for key, values in space.items()}
    # NumPy's integers cannot be written down.
    return {"space": space, "fixed": fixed, "seeds": tuple(map(int, seeds))}


def _grid(key: str, values: Any) -> list[Any]:
    """The values of one hyperparameter as a list; MupError where they cannot be tried."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise MupError(
            f"The space gives {key!r} as {values!r}, which is no sequence of values; write {key}=[{values!r}] to try one "
            "value, or move it to fixed."
        )
    values = [v.item() if hasattr(v, "item") and getattr(v, "ndim", 0) == 0 else v for v in values]
    for value in values:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise MupError(
                f"The space gives {key!r} the value {value!r}, which cannot be written down: use finite numbers, strings, "
                "booleans, None, or lists of them, and let the train function look objects up."
            ) from None
    # Tables show 1 and 1.0 as one value.
    distinct = {value if isinstance(value, (int, float)) else params_key({key: value}) for value in values}
    if not values or len(distinct) < len(values):
        raise MupError(f"The space gives {key!r} the values {values!r}; list at least one, and none of them twice.")
    return values
