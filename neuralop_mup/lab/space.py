"""Search spaces: grids, distributions, and the checks on both."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from neuralop_mup.errors import MupError

__all__ = ["check_fixed", "check_seeds", "check_space", "is_search", "log2_grid", "params_key", "points"]


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
    if not (0 < low < math.inf and 0 < high < math.inf):
        raise MupError(
            f"log2_grid({low!r}, {high!r}): both ends must be positive and finite; give for example 2**-12 and 2**-5."
        )
    if high < low:
        raise MupError(f"log2_grid({low!r}, {high!r}): the grid runs upwards; swap the two ends.")
    doublings = math.log2(high / low)
    n = round(doublings)
    if abs(doublings - n) > 1e-6:
        below = low * 2 ** math.floor(doublings)
        raise MupError(
            f"log2_grid({low!r}, {high!r}): {high!r} is not {low!r} times a power of two, so a factor-2 grid cannot "
            f"include both ends; take {below:.6g} or {2 * below:.6g} as the upper end."
        )
    return [float(low * 2**i) for i in range(n)] + [float(high)]


def is_distribution(value: Any) -> bool:
    """Whether ``value`` is an Optuna distribution, found without importing Optuna."""
    return any(c.__name__ == "BaseDistribution" and c.__module__.startswith("optuna.") for c in type(value).__mro__)


def is_search(space: Mapping[str, Any]) -> bool:
    """Whether the space has a distribution, and so is searched rather than walked as a grid."""
    return any(is_distribution(value) for value in space.values())


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def edge_of(value: Any, grid: Any) -> str | None:
    """ "lowest" or "highest" if a number is the first or last of a grid of at least two numbers, else None."""
    if not isinstance(grid, (list, tuple)) or len(grid) < 2 or not all(map(is_number, grid)):
        return None
    return "lowest" if value == min(grid) else "highest" if value == max(grid) else None


def params_key(params: Mapping[str, Any]) -> str:
    """Text that is equal for equal points: ``1`` and ``1.0``, a tuple and a list, any order of keys."""

    def canonical(value: Any) -> Any:
        if is_number(value):
            return float(value)
        if isinstance(value, Mapping):
            return {str(k): canonical(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [canonical(v) for v in value]
        return value

    return json.dumps(canonical(params), sort_keys=True)


def _grid_values(key: str, values: Any) -> list[Any]:
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise MupError(
            f"The space gives {key!r} as {values!r}, which is neither a sequence of values nor an Optuna "
            f"distribution; write {key}=[{values!r}] to try one value, or move it to fixed."
        )
    values = [v.item() if hasattr(v, "item") and getattr(v, "ndim", 0) == 0 else v for v in values]
    if not values:
        raise MupError(f"The space gives {key!r} no values to try; list at least one or leave the key out.")
    seen: set[str] = set()
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise MupError(f"The space gives {key!r} the value {value!r}; every value must be finite.")
        try:
            text = params_key({key: value})
        except TypeError:
            raise MupError(
                f"The space gives {key!r} the value {value!r}, which cannot be written down; "
                "use numbers, strings, booleans, None, or lists of them, and let the train function look objects up."
            ) from None
        if text in seen:
            raise MupError(f"The space lists {key}={value!r} twice; each value may stand once.")
        seen.add(text)
    return values


def check_space(space: Mapping[str, Any], reserved: Sequence[str], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The space with every grid as a list of plain values, checked.

    Parameters
    ----------
    space : mapping of str to sequence or optuna distribution
        What to tune.
    reserved : sequence of str
        Config keys that are set by the sweep itself.
    fixed : mapping
        Config entries that are the same in every trial.

    Returns
    -------
    dict
        Same keys and order; sequences as lists.

    Raises
    ------
    MupError
        For an empty space, a key that is reserved or also in ``fixed``, and values that cannot be tried.
    """
    if not isinstance(space, Mapping) or not space:
        raise MupError(f"The space is {space!r}; give a dict such as {{'lr': log2_grid(2**-12, 2**-5)}}.")
    for key in space:
        if not isinstance(key, str):
            raise MupError(f"The space has the key {key!r}; keys must be strings, such as 'lr'.")
        if key in reserved:
            raise MupError(f"The space has the key {key!r}, which the sweep sets itself; leave it out.")
        if key in fixed:
            raise MupError(f"{key!r} stands both in space and in fixed; keep it in one of them.")
    checked = {k: v if is_distribution(v) else _grid_values(k, v) for k, v in space.items()}
    if is_search(checked):
        for key, values in checked.items():
            if not is_distribution(values) and not all(v is None or isinstance(v, (bool, int, float, str)) for v in values):
                raise MupError(
                    f"The space searches by distributions and gives {key!r} the values {values!r}; in a search a "
                    "list may hold only numbers, strings, booleans and None."
                )
    return checked


def check_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """The seeds as a tuple; MupError unless they are distinct integers, at least one."""
    if isinstance(seeds, int):
        raise MupError(f"seeds={seeds!r} is one number; give the seeds themselves, such as seeds=({seeds},).")
    seeds = tuple(seeds)
    if not seeds or not all(isinstance(s, Integral) for s in seeds) or len(set(seeds)) != len(seeds):
        raise MupError(f"seeds={seeds!r} must be distinct integers, at least one, such as seeds=(0, 1, 2).")
    return tuple(map(int, seeds))


def check_fixed(fixed: Mapping[str, Any] | None, reserved: Sequence[str]) -> dict[str, Any]:
    """``fixed`` as a dict; MupError for a key that is set by the sweep itself."""
    fixed = dict(fixed or {})
    for key in reserved:
        if key in fixed:
            where = "put it into proxy and target" if key in ("model", "base") else "leave it out"
            raise MupError(f"fixed has the key {key!r}, which is set for each trial; {where}.")
    return fixed


def points(space: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every point of a grid, the last key moving fastest."""
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
