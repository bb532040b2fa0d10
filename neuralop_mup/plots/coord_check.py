"""Feature sizes and updates against model size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from neuralop_mup.errors import MupError
from neuralop_mup.plots.style import MARKERS, PALETTE, new_figure, save, ticks_at, value_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AXIS_NAMES = {"hidden_channels": "width (hidden_channels)", "n_modes": "modes per axis (n_modes)"}


def plot_coord_check(check: Any, path: str | Path, *, tolerance: float | None = None, title: str | None = None) -> Path:
    """Draw the coordinate check: feature sizes and updates against model size, one panel a step.

    Parameters
    ----------
    check : CoordCheck
        What :func:`neuralop_mup.coord_check` returned; only its ``records``, ``slopes`` and ``size_name`` are read.
    path : str or Path
        Where to write; the suffix picks the format.
    tolerance : float, optional
        Update slopes beyond it are written in bold.
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
    columns = min(len(panels), 4)
    rows = math.ceil(len(panels) / columns)
    legend_height = 0.19 * len(blocks) + 0.2
    height = 2.9 + legend_height
    figure, grid = new_figure(3.5 * columns, height * rows + 0.45, rows, columns, squeeze=False)
    sizes = sorted({float(record["size"]) for record in records})
    slope_of = {(s["kind"], s["step"], s["block"]): float(s["slope"]) for s in check.slopes}
    for axes, (kind, step) in zip(grid.flat, panels, strict=False):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        limit = tolerance if kind == "update" else None
        for index, block in enumerate(blocks):
            _draw_block(axes, records, kind, step, block, index, slope_of.get((kind, step, block)), limit)
        ticks_at(axes, sizes)
        axes.set_xlabel(x)
        axes.set_title("features at init" if kind == "init" else f"update after {_steps(step)}", fontsize=10)
        value_axis(axes)
        if axes.get_legend_handles_labels()[0]:
            legend = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False, fontsize=8, handlelength=2.2)
            for text in legend.get_texts():
                if text.get_text().endswith("!"):
                    text.set_fontweight("bold")
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("RMS over features")
    if title:
        figure.suptitle(title, x=0.01, y=0.985, ha="left", va="top", fontsize=11)
    total = height * rows + 0.45
    figure.subplots_adjust(
        left=0.85 / (3.5 * columns),
        right=1 - 0.12 / (3.5 * columns),
        top=1 - 0.7 / total,
        bottom=(legend_height + 0.45) / total,
        hspace=(legend_height + 0.9) / 2.0,
        wspace=0.28,
    )
    return save(figure, path)


def _draw_block(
    axes: Axes,
    records: Sequence[Mapping[str, Any]],
    kind: str,
    step: int,
    block: str,
    index: int,
    slope: float | None,
    tolerance: float | None,
) -> None:
    """RMS of one block against size, its mean over seeds as a line and the seeds as faint dots."""
    by_size: dict[float, list[float]] = {}
    for record in records:
        if (record["kind"], record["step"], record["block"]) == (kind, step, block):
            value = float(record["value"])
            if math.isfinite(value) and value > 0:
                by_size.setdefault(float(record["size"]), []).append(value)
    if not by_size:
        return
    colour, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
    text = block
    if slope is not None:
        beyond = tolerance is not None and not abs(slope) <= tolerance
        text += f"  slope {slope:+.2f}{' !' if beyond else ''}"
    sizes = sorted(by_size)
    # Feature sizes spread evenly on a log axis, so the line is the geometric mean: what the slopes are fitted to.
    means = [math.exp(fmean([math.log(v) for v in by_size[size]])) for size in sizes]
    axes.plot(sizes, means, color=colour, marker=marker, markersize=4, linewidth=1.5, label=text)
    for size in sizes:
        if len(by_size[size]) > 1:
            axes.plot([size] * len(by_size[size]), by_size[size], ".", color=colour, alpha=0.3, markersize=3)


def _steps(step: int) -> str:
    return "1 step" if step == 1 else f"{step} steps"
