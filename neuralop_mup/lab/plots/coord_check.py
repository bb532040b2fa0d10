"""Feature sizes and updates against model size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from neuralop_mup.errors import MupError
from neuralop_mup.lab.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AXIS_NAMES = {"hidden_channels": "width (hidden_channels)", "n_modes": "modes per axis (n_modes)"}

#: After a slope that does not pass, or of which the seeds do not tell.
_MARKS = {"passed": "", "did not pass": " !", "undecided": " ?"}


def plot_coord_check(
    records: Sequence[Mapping[str, Any]],
    slopes: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    size_name: str,
    title: str | None = None,
) -> Path:
    """Draw the coordinate check: feature sizes and updates against model size, one panel a step.

    Parameters
    ----------
    records, slopes : sequence of mapping
        ``records`` of a :class:`neuralop_mup.CoordCheck`, and its slopes as they are judged.
    path : str or Path
        Where to write; the suffix picks the format.
    size_name : str
        What the sizes are.
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
    panels: dict[tuple[str, int], dict[str, dict[float, list[float]]]] = {}
    for record in records:
        by_size = panels.setdefault((record["kind"], record["step"]), {}).setdefault(record["block"], {})
        if 0 < float(record["value"]) < math.inf:
            by_size.setdefault(float(record["size"]), []).append(float(record["value"]))
    if not panels:
        raise MupError("There is no coordinate check to draw: the list of records is empty.")
    blocks = list(dict.fromkeys(record["block"] for record in records))
    columns = min(len(panels), 2)
    rows = math.ceil(len(panels) / columns)
    longest = max(map(len, blocks)) + len("  slope +0.00 !")
    figure, grid = style.new_panels(rows, columns, longest, 3.3 * rows + 0.5)
    sizes = sorted({float(record["size"]) for record in records})
    judged = {(row["kind"], row["step"], row["block"]): row for row in slopes}
    marks: set[str] = set()
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, sorted(panels, key=lambda panel: (panel[0] != "init", panel[1])), strict=False):
        kind, step = panel
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        wanted = []
        for index, block in enumerate(blocks):
            row = judged[(*panel, block)]
            mark = _MARKS[row["outcome"]]
            marks.add(mark.strip())
            wanted += _draw_block(axes, panels[panel].get(block, {}), index, f"{block}  slope {row['slope']:+.2f}{mark}")
        style.ticks_at(axes, sizes)
        axes.set_ylabel("RMS over features", fontsize=style.TEXT)
        title_of = "features at init" if kind == "init" else f"update after {step} step{'s' * (step != 1)}"
        style.finish_panel(axes, title_of, _AXIS_NAMES.get(size_name, size_name), wanted)
    meaning = {"!": "!: does not pass", "?": "?: the seeds do not tell"}
    parts = ["lines: root mean square over seeds", "dots: seeds", *(meaning[mark] for mark in sorted(marks - {""}))]
    return style.finish(figure, path, title, parts)


def _draw_block(
    axes: Axes, by_size: Mapping[float, Sequence[float]], index: int, text: str
) -> list[tuple[float, float, str, str]]:
    """RMS of one block against size, over all seeds as a line and of each as faint dots; its end, named."""
    if not by_size:
        return []
    colour, sizes = style.PALETTE[index % 8], sorted(by_size)
    means = [math.sqrt(fmean(value * value for value in by_size[size])) for size in sizes]
    axes.plot(sizes, means, color=colour, marker=style.MARKERS[index % 8], markersize=4, linewidth=1.5)
    for size in sizes:
        if len(by_size[size]) > 1:
            axes.plot([size] * len(by_size[size]), by_size[size], ".", color=colour, alpha=0.3, markersize=3)
    return [(sizes[-1], means[-1], text, colour)]
