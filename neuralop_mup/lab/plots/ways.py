"""Errors of one model that was trained in several ways."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from neuralop_mup.lab.plots import style


def plot_ways(ways: Mapping[str, tuple[Sequence[float], float]], path: str | Path, *, title: str | None = None) -> Path:
    """A line a way: a dot for each seed's error, a bar at the median, and the learning rate beside the name.

    Parameters
    ----------
    ways : mapping of str to (errors, learning rate)
        Errors of the seeds; those that are not finite are told, and not drawn.
    path : str or Path
        The suffix picks the format.
    title : str, optional

    Returns
    -------
    Path
    """
    figure, axes = style.new_figure(6.6, 0.62 * len(ways) + 1.1)
    for row, (name, (errors, _)) in enumerate(ways.items()):
        colour = style.colour_of("soap") if "SOAP" in name else style.colour_of("adam")
        drawn = [error for error in errors if math.isfinite(error)]
        axes.plot(drawn, [row] * len(drawn), "o", color=colour, alpha=0.7)
        middle = median(errors)
        if math.isfinite(middle):
            axes.plot([middle] * 2, [row - 0.3, row + 0.3], color=colour, linewidth=2.5)
            text = f"{middle:.3g}" + (f"; {len(errors) - len(drawn)} failed" if len(drawn) < len(errors) else "")
            axes.annotate(text, (middle, row - 0.34), ha="center", va="bottom", fontsize=style.SMALL, color=colour)
    axes.set_yticks(range(len(ways)), [f"{name}\nlr {lr:.3g}" for name, (_, lr) in ways.items()], fontsize=style.SMALL)
    axes.set_ylim(len(ways) - 0.4, -0.8)
    axes.set_xscale("log")
    found = [error for errors, _ in ways.values() for error in errors if math.isfinite(error)]
    ends = (min(found) / 1.4, max(found) * 1.4) if found else (0.1, 1.0)
    axes.set_xlim(*ends)
    ticks = [m * 10**e for e in range(-9, 4) for m in (1, 2, 5) if ends[0] <= m * 10**e <= ends[1]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=style.SMALL)
    axes.minorticks_off()
    axes.grid(axis="x", color=style.FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xlabel("error", fontsize=style.TEXT)
    style.bare(axes)
    return style.finish(figure, path, title, ["dot: one seed", "bar: median"])
