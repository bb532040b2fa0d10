"""What makes a proxy cheap: less width, a shorter training and a coarser grid, as far as the data and the target allow it.

Each saving is decided once, with its reason in a line. μP carries the learning rate over width, the rule for steps over the
length of the training; a coarser grid that holds the data's spectrum needs no rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuralop_mup.core.parts import WIDTHS
from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems.mode_energy import ENOUGH, ModeEnergy
from neuralop_mup.validation import check_count

__all__ = ["Shorter", "coarser", "narrower", "shorter"]

LEAST_WIDTH = 16
LEAST_STEPS = 125  # an eighth of the 1,000 at which this was measured (docs/evidence/tuning_cost.md)
SHARE = 8  # of the target's steps the proxy takes one in so many
STAGES = 8  # epochs of the proxy, at least: the learning rate of a schedule changes once in each
STRIDES = (4, 2)
LEAST_POINTS = 16


@dataclass(frozen=True)
class Shorter:
    """The proxy's training beside the target's.

    Attributes
    ----------
    steps : (int, int)
        Optimizer steps at the proxy and at the target.
    epochs, batches : int
        Of the proxy: epochs, and batches in each.
    why : str
    """

    steps: tuple[int, int]
    epochs: int
    batches: int
    why: str

    @property
    def at(self) -> dict[str, dict[str, Any]]:
        """Settings of the runs of each size."""
        if self.steps[0] == self.steps[1]:
            return {}
        return {"proxy": {"epochs": self.epochs, "batches": self.batches}, "target": {"training": {"steps": self.steps}}}


def narrower(target: Mapping[str, Any], energy: ModeEnergy | None) -> tuple[dict[str, Any], str]:
    """A base for a target that was given none: a quarter of its width, 16 at least, and the modes that the data needs.

    Parameters
    ----------
    target : mapping
        Arguments of the target.
    energy : ModeEnergy, optional
        Of the data; without it modes stay.

    Returns
    -------
    base : dict
        Arguments of the base.
    why : str

    Raises
    ------
    MupError
        If none of the arguments is a width that could be less.
    """
    widths = {key: value for key, value in target.items() if key in WIDTHS and isinstance(value, int) and value > 1}
    if not widths:
        raise MupError(
            f"No base was given, and none of the target's arguments ({', '.join(target) or 'none'}) is a width that could "
            f"be made smaller (known are {', '.join(WIDTHS)}): give the small size, such as base={{'your_width': 16}}."
        )
    base = dict(target) | {key: max(LEAST_WIDTH, w // 4) if w > LEAST_WIDTH else w // 2 for key, w in widths.items()}
    said = [
        f"{key} {base[key]} instead of {value}, over which μP carries the learning rate" for key, value in widths.items()
    ]
    modes = target.get("n_modes")
    if energy is not None and isinstance(modes, (tuple, list)) and len(modes) == len(energy.targets):
        base["n_modes"] = type(modes)(min(n, max(4, need)) for n, need in zip(modes, energy.enough(), strict=True))
        if base["n_modes"] != modes:
            said.append(f"n_modes {_times(base['n_modes'])} instead of {_times(modes)}, {100 * ENOUGH:g} % of the energy")
    return base, "; ".join(said)


def shorter(epochs: int, batches: int, *, asked: int | None = None, refused: str = "", share: int = SHARE) -> Shorter:
    """The proxy's training: an eighth of the target's steps, 125 at least, in eight epochs or more.

    Parameters
    ----------
    epochs, batches : int
        Of the target: epochs, and batches in each.
    asked : int, optional
        Steps that the user asked for, as nearly as epochs of whole batches allow.
    refused : str
        Why the proxy cannot be shorter, if it cannot.

    Raises
    ------
    MupError
        If more steps are asked for than the target has, or fewer where that cannot be.
    """
    steps = epochs * batches
    if asked is not None:
        check_count("proxy_steps", asked, "steps")
        if asked > steps:
            raise MupError(
                f"proxy_steps = {asked}, and the target's training has {steps} steps: a proxy that trains longer saves "
                "nothing. Give fewer, or more epochs."
            )
        if refused and asked < steps:
            raise MupError(f"proxy_steps = {asked} of the target's {steps} cannot be: {refused}.")
    want = asked or max(LEAST_STEPS, steps // share)
    own = min(epochs, max(STAGES, want // batches))
    each = min(batches, max(1, round(want / own)))
    if refused or own * each >= steps:
        return Shorter((steps, steps), epochs, batches, f"{steps}, as many as the target's{refused and f': {refused}'}")
    why = f"{own * each} instead of {steps}; the rule for steps carries the learning rate"
    return Shorter((own * each, steps), own, each, why)


def coarser(
    points: Sequence[int], modes: Sequence[int] | None, energy: ModeEnergy | None, *, asked: int | None = None,
    takes: Callable[[Sequence[int]], bool] = lambda stride: True, refused: str = "",
) -> tuple[tuple[int, ...], str]:  # fmt: skip
    """Every so manieth point of each axis that the proxy needs to see.

    An axis keeps every 4th or every 2nd point where these hold 99.9 % of the energy of inputs and targets, and are 16 at
    least and as many as the proxy has modes.

    Parameters
    ----------
    points : sequence of int
        Of the target's grid.
    modes : sequence of int, optional
        ``n_modes`` of the proxy.
    energy : ModeEnergy, optional
        Of the data.
    asked : int, optional
        The stride that the user asked for, on every axis.
    takes : callable
        Whether the proxy takes a stride on each axis.
    refused : str
        Why every point is needed, if it is.

    Returns
    -------
    stride : tuple of int
    why : str

    Raises
    ------
    MupError
        If a stride is asked for that the data or the model does not allow.
    """
    if asked is not None:
        check_count("proxy_stride", asked)
    if energy is None and not refused:
        refused = "the data is on no grid that could be made coarser"
    if refused:
        if asked not in (None, 1):
            raise MupError(f"proxy_stride = {asked} cannot be: {refused}.")
        return (1,) * len(points), f"every point: {refused}"
    if asked == 1:
        return (1,) * len(points), "every point, as asked"
    # Of layers that differ, or of kernels on other axes than the data, `takes` knows.
    modes = modes if modes and len(modes) == len(points) else (0,) * len(points)
    allowed = [
        [s for s in ((asked,) if asked else STRIDES) if _holds(n, s, need, asked is not None)]
        for n, need in zip(points, modes, strict=True)
    ]
    if asked:
        if not all(allowed) or not takes((asked,) * len(points)):
            raise MupError(
                f"proxy_stride = {asked} on {_times(points)} points cannot be: it must leave an even number of points on "
                f"each axis, as many as the proxy's n_modes, {_times(modes)}, at least, and the model must take them. Give "
                "another one, or fewer modes."
            )
        return (asked,) * len(points), f"{_times([n // asked for n in points])} of {_times(points)} points, as asked"
    stride = tuple(next((s for s in own if _keeps(energy, axis, points[axis] // s)), 1) for axis, own in enumerate(allowed))
    while math.prod(stride) > 1 and not takes(stride):
        stride = tuple(max(1, s // 2) for s in stride)
    coarse = [n // s for n, s in zip(points, stride, strict=True)]
    if math.prod(stride) > 1:
        return stride, f"{_times(coarse)} instead of {_times(points)} points, which hold {100 * ENOUGH:g} % of the energy"
    if not any(allowed):
        return stride, f"every point: fewer than {_times(points)} would be too few for the proxy's modes"
    return stride, f"every point: half as many lose more than {100 * (1 - ENOUGH):.1g} % of the energy, or the model refuses"


def _holds(points: int, stride: int, modes: int, was_asked: bool) -> bool:
    least = max(modes, 2 if was_asked else LEAST_POINTS)
    return points % (2 * stride) == 0 and points // stride >= least


def _keeps(energy: ModeEnergy, axis: int, points: int) -> bool:
    return all(shares[axis][min(points, len(shares[axis]) - 1)] >= ENOUGH for shares in (energy.inputs, energy.targets))


def _times(numbers: Sequence[int]) -> str:
    return "×".join(map(str, numbers))
