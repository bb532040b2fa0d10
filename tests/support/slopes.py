"""Slopes of the coordinate check for a case of the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

import neuralop_mup as nm
from support.cases import Case, Model
from support.comparing import LR, RULE
from support.training import squared_error

SEEDS, STEP = 8, 3  # with three seeds a flat slope reads up to ±0.5
WIDTHS = (8, 16, 32)
MODES = (8, 16, 32)  # n_modes; halved, K = 4, 8, 16
MODES_WIDTH = 16


def sized(case: Case, over: str, rule: str = RULE, sizes: Sequence[int] = ()) -> Callable[[int], nn.Module]:
    """``build(size)`` for ``coord_check``: the case over width, or over modes; base is the smallest size."""
    sizes = sizes or sizes_of(case, over)

    def make(size: int) -> nn.Module:
        if over == "width":
            return case.sized(size, case.n_modes)
        axes = len(case.n_modes)
        # What is stored must hold the largest number of modes.
        more = {"max_n_modes": (sizes[-1] + 2,) * axes} if "max_n_modes" in case.kwargs else {}
        return case.sized(MODES_WIDTH, (size,) * axes, **more)

    def build(size: int) -> nn.Module:
        return nm.parametrize(make(size), base=lambda: make(sizes[0]), rule=rule)

    return build


def sizes_of(case: Case, over: str) -> tuple[int, ...]:
    """Sizes of the coordinate check; two numbers of modes in 3D, where grids are large."""
    if over == "width":
        return WIDTHS
    return MODES[:2] if len(case.n_modes) > 2 else MODES


def slope(case: Case, over: str) -> str:
    """The steepest slope of an update over blocks, or the reason why there is none."""
    sizes = sizes_of(case, over)
    build = sized(case, over)
    batches = batches_of(case, STEP, grid=sizes[-1] if over == "modes" else None)
    reason = _cannot_run(case, build, sizes, batches[0])
    if reason:
        return f"neuralop cannot run it: {reason}"
    if over == "modes" and all(row.shape == row.base_shape for row in nm.summary(build(sizes[-1])).rows):
        return "no modes vary: the active ones are fixed"
    check = nm.coord_check(build, sizes, batches, lr=LR, steps=(STEP,), seeds=SEEDS, loss=squared_error)
    row = steepest(check, "update", STEP)
    return f"{row['slope']:+.2f}"


def batches_of(case: Case, n: int, grid: int | None = None) -> list[dict[str, torch.Tensor]]:
    """Batches of the case in the form that ``coord_check`` takes."""
    result = []
    for seed in range(n):
        x, y = case.batch(seed, grid=grid)
        result.append({**(x if isinstance(x, dict) else {"x": x}), "y": y})
    return result


def steepest(check: nm.CoordCheck, kind: str, step: int) -> dict[str, Any]:
    """Row of the steepest slope over blocks; at init the output is left out, since it may fall."""
    # UQNO's base model is not trained: it has no update.
    rows = [r for r in check.slopes if (r["kind"], r["step"]) == (kind, step) and r["block"] != "base_model"]
    if kind == "init":
        rows = [r for r in rows if r["block"] != check.slopes[-1]["block"]] or rows
    return max(rows, key=lambda r: math.inf if math.isnan(r["slope"]) else abs(r["slope"]))


def _cannot_run(case: Case, build: Callable, sizes: Iterable[int], batch: Mapping) -> str | None:
    """How the stock model fails at one of the sizes, if it does; a failure of ours is not caught."""
    inputs = {key: value for key, value in batch.items() if key != "y"}
    for size in sizes:
        model = nm.unparametrize(build(size))
        try:
            with torch.no_grad():
                case.output(model, inputs if isinstance(case, Model) else inputs["x"])
        except (RuntimeError, ValueError, IndexError) as error:
            return f"{_short(error)} (size {size})"
    return None


def _short(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}, {error}".split()).replace("|", "\\|")
    return text if len(text) < 80 else text[:77] + "…"
