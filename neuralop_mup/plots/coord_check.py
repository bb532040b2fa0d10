"""Feature sizes and updates against model size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from neuralop_mup.errors import MupError
from neuralop_mup.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AXIS_NAMES = {"hidden_channels": "width (hidden_channels)", "n_modes": "modes per axis (n_modes)"}

_BEYOND = " !"  # after the slope of an update beyond the tolerance


def plot_coord_check(check: Any, path: str | Path, *, tolerance: float | None = None, title: str | None = None) -> Path:
    """Draw the coordinate check: feature sizes and updates against model size, one panel a step.

    Parameters
    ----------
    check : CoordCheck
        What :func:`neuralop_mup.coord_check` returned; only its ``records``, ``slopes`` and ``size_name`` are read.
    path : str or Path
        Where to write; the suffix picks the format.
    tolerance : float, optional
        Update slopes beyond it are marked.
    title : str, optional
        Title of the figure.

    Returns
    -------
    Path
        ``path``.

    Raises
    ------
    MupError
        If there are no records.
    """
    records, x = check.records, _AXIS_NAMES.get(check.size_name, check.size_name)
    panels = list(dict.fromkeys((record["kind"], record["step"]) for record in records))
    panels.sort(key=lambda panel: (panel[0] != "init", panel[1]))
    if not panels:
        raise MupError("There is no coordinate check to draw: the list of records is empty.")
    blocks = list(dict.fromkeys(record["block"] for record in records))
    columns = min(len(panels), 2)
    rows = math.ceil(len(panels) / columns)
    longest = max(map(len, blocks)) + len("  slope +0.00 !")
    figure, grid = style.new_panels(rows, columns, longest, 3.3 * rows + 0.5)
    sizes = sorted({float(record["size"]) for record in records})
    slope_of = {(s["kind"], s["step"], s["block"]): float(s["slope"]) for s in check.slopes}
    marked = False
    for axes, (kind, step) in zip(grid.flat, panels, strict=False):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        limit = tolerance if kind == "update" else None
        ends = [
            _draw_block(axes, records, kind, step, block, index, slope_of.get((kind, step, block)), limit)
            for index, block in enumerate(blocks)
        ]
        style.ticks_at(axes, sizes)
        axes.set_xlabel(x, fontsize=style.TEXT)
        axes.set_ylabel("RMS over features", fontsize=style.TEXT)
        title_of = "features at init" if kind == "init" else f"update after {_steps(step)}"
        axes.set_title(title_of, fontsize=style.TEXT + 1, loc="left")
        style.value_axis(axes)
        style.label_lines(axes, [end for end in ends if end])
        marked = marked or any(end[2].endswith(_BEYOND) for end in ends if end)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    if title:
        figure.suptitle(title, x=0.01, y=0.99, ha="left", va="top", fontsize=style.TITLE)
    parts = ["lines: geometric mean over seeds", "dots: seeds"]
    style.key_line(figure, parts + ([f"!: steeper than {tolerance:g}"] if marked else []))
    return style.save(figure, path)


def _draw_block(
    axes: Axes,
    records: Sequence[Mapping[str, Any]],
    kind: str,
    step: int,
    block: str,
    index: int,
    slope: float | None,
    tolerance: float | None,
) -> tuple[float, float, str, str] | None:
    """RMS of one block against size, its mean over seeds as a line and the seeds as faint dots; its end and its name."""
    by_size: dict[float, list[float]] = {}
    for record in records:
        if (record["kind"], record["step"], record["block"]) == (kind, step, block):
            value = float(record["value"])
            if math.isfinite(value) and value > 0:
                by_size.setdefault(float(record["size"]), []).append(value)
    if not by_size:
        return None
    colour, marker = style.PALETTE[index % 8], style.MARKERS[index % 8]
    text = block
    if slope is not None:
        beyond = tolerance is not None and not abs(slope) <= tolerance
        text += f"  slope {slope:+.2f}{_BEYOND if beyond else ''}"
    sizes = sorted(by_size)
    # Feature sizes spread evenly on a log axis, so the line is the geometric mean; slopes are of the root mean square.
    means = [math.exp(fmean([math.log(v) for v in by_size[size]])) for size in sizes]
    axes.plot(sizes, means, color=colour, marker=marker, markersize=4, linewidth=1.5)
    for size in sizes:
        if len(by_size[size]) > 1:
            axes.plot([size] * len(by_size[size]), by_size[size], ".", color=colour, alpha=0.3, markersize=3)
    return sizes[-1], means[-1], text, colour


def _steps(step: int) -> str:
    return "1 step" if step == 1 else f"{step} steps"
