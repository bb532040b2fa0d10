"""A contest at a glance: each optimizer's error on each problem over that of what people use, tuned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.lines import Line2D

from neuralop_mup.lab import plots as style

#: Optimizer → how it is drawn and called; others are left out, for a figure of few marks.
_DRAWN: dict[str, tuple[str, str, str]] = {
    "MuSOAP, untuned": (*style.LOOKS["soap"], "MuSOAP, untuned"),
    "stock SOAP": (style.GREY, "<", "stock SOAP, tuned"),
    "APEBench's FNO": (style.PALETTE[2], "D", "APEBench's own FNO"),
}
_ADAM = style.LOOKS["adam"][0]
# Letters are 9 px high where the figure is shown at a width of 400 px.
_WIDTH, _LETTERS, _ROW = 6.4, 10.5, 0.27
_TICKS = {"near": (0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.25), "far": (0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8)}


def draw(ends: Mapping[str, Mapping[str, Any]], names: Mapping[str, str], path: Path, *, over: str) -> None:
    """A row a problem of which the baseline is done, a mark an optimizer; left of the line is better than the baseline.

    A mark is the median of the seeds, a line through it their range. All are divided by the median of the baseline's errors.

    Parameters
    ----------
    ends : mapping
        Optimizer → problem → what it reaches, with the ``errors`` of its seeds.
    names : mapping
        Problem → what the figure calls it; in the order of the rows.
    over : str
        The baseline, a key of ``ends``.
    """
    rows = [name for name in names if name in ends.get(over, {})]
    units = [median(ends[over][name].errors) for name in rows]
    figure, axes = style.new_figure(_WIDTH, _ROW * len(rows) + 1.0, layout="constrained")
    figure.set_dpi(150)
    axes.axvline(1.0, color=_ADAM, linewidth=1.2)
    key = []
    drawn = [1.0]
    for row, (name, unit) in enumerate(zip(rows, units, strict=True)):
        drawn += _draw_range(axes, row, [error / unit for error in ends[over][name].errors], _ADAM, 5)
    for who, (colour, marker, label) in _DRAWN.items():
        for row, (name, unit) in enumerate(zip(rows, units, strict=True)):
            if name in ends.get(who, {}):
                ratios = [error / unit for error in ends[who][name].errors]
                drawn += _draw_range(axes, row, ratios, colour, 2)
                axes.plot(
                    median(ratios),
                    row,
                    marker,
                    color=colour,
                    markersize=8.5,
                    markeredgecolor="white",
                    markeredgewidth=0.5,
                    zorder=3,
                )
        if who in ends:
            key.append(Line2D([], [], color=colour, marker=marker, markersize=8.5, linewidth=2, label=label))
    key.append(Line2D([], [], color=_ADAM, linewidth=5, label=over.removeprefix("the ")))
    axes.set_yticks(range(len(rows)), [names[name] for name in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xscale("log")
    low, high = min(drawn) / 1.1, max(drawn) * 1.1
    ticks = [tick for tick in _TICKS["far" if high > 5 * low else "near"] if low <= tick <= high]
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(labelsize=_LETTERS)
    axes.grid(color=style.FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"error over that of {over}", fontsize=_LETTERS)
    figure.legend(handles=key, fontsize=_LETTERS, frameon=False, loc="outside upper right", ncols=2)
    style.bare(axes)
    style.save(figure, path)


def _draw_range(axes: Any, row: int, ratios: Sequence[float], colour: str, width: float) -> list[float]:
    """The range of some seeds, of which those that did not train are left out; its ends."""
    ends = [ratio for ratio in ratios if math.isfinite(ratio)]
    if not ends:
        return []
    axes.plot([min(ends), max(ends)], [row, row], color=colour, linewidth=width, solid_capstyle="butt", zorder=2)
    return [min(ends), max(ends)]
