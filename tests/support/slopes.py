"""Slopes of the coordinate check for a case of the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import neuralop_mup as nm
from support.cases import Case
from support.comparing import LR, RULE
from support.training import squared_error

SEEDS, STEP = 8, 3  # with three seeds a flat slope reads up to ±0.5
WIDTHS = (8, 16, 32)
MODES = (8, 16, 32)  # n_modes; halved, K = 4, 8, 16
MODES_WIDTH = 16


def sized(case: Case, over: str, rule: str = RULE, sizes: Sequence[int] = ()) -> Callable[[int], nn.Module]:
    """Return ``build(size)`` for ``coord_check``, where size is a width or a number of modes. The smallest is base."""
    sizes = sizes or sizes_of(case, over)

    def make(size: int) -> nn.Module:
        if over == "width":
            return case.sized(size, case.n_modes)
        axes = len(case.n_modes)
        # The stored kernel must have room for the largest number of modes.
        more = {"max_n_modes": (sizes[-1] + 2,) * axes} if "max_n_modes" in case.kwargs else {}
        return case.sized(MODES_WIDTH, (size,) * axes, **more)

    def build(size: int) -> nn.Module:
        return nm.parametrize(make(size), base=lambda: make(sizes[0]), rule=rule)

    return build


def sizes_of(case: Case, over: str) -> tuple[int, ...]:
    """Return the sizes of the coordinate check: in 3D only two numbers of modes, since grids are large."""
    if over == "width":
        return WIDTHS
    return MODES[:2] if len(case.n_modes) > 2 else MODES


def slope(case: Case, over: str) -> str:
    """Return the steepest slope of an update over blocks, or why there is none."""
    sizes = sizes_of(case, over)
    build = sized(case, over)
    batches = batches_of(case, STEP, grid=sizes[-1] if over == "modes" else None)
    if over == "modes" and all(row.shape == row.base_shape for row in nm.summary(build(sizes[-1])).rows):
        return "no modes vary: the active ones are fixed"
    check = nm.coord_check(build, sizes, batches, lr=LR, steps=(STEP,), seeds=SEEDS, loss=squared_error)
    return f"{steepest(check, STEP)['slope']:+.2f}"


def batches_of(case: Case, n: int, grid: int | None = None) -> list[dict[str, torch.Tensor]]:
    """Return batches of the case in the form that ``coord_check`` takes."""
    pairs = [case.batch(seed, grid=grid) for seed in range(n)]
    return [{**(x if isinstance(x, dict) else {"x": x}), "y": y} for x, y in pairs]


def steepest(check: nm.CoordCheck, step: int) -> dict[str, Any]:
    """Return the row with the steepest slope of an update over blocks."""
    # UQNO's base model is not trained: it has no update.
    rows = [r for r in check.slopes if (r["kind"], r["step"]) == ("update", step) and r["block"] != "base_model"]
    return max(rows, key=lambda r: math.inf if math.isnan(r["slope"]) else abs(r["slope"]))
