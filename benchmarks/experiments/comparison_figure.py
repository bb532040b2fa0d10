"""The figure of a comparison: the error of each optimizer on each problem relative to that of tuned baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from neuralop_mup.lab import plots as style

#: Optimizer → colour, marker and label. Others are not drawn, so that the figure stays clear.
_LOOKS: dict[str, tuple[str, str, str]] = {
    "MuSOAP, untuned": (*style.LOOKS["soap"], "MuSOAP, untuned"),
    "stock SOAP": (style.GREY, "<", "stock SOAP, tuned"),
    "APEBench's FNO": (style.PALETTE[2], "D", "APEBench's own FNO"),
}
_BASELINE = style.LOOKS["adam"][0]
# Letters are 9 px high if the figure is shown at a width of 400 px.
_WIDTH, _LETTERS, _ROW = 6.4, 10.5, 0.27
_TICKS, _WIDE_TICKS = (0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.25), (0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8)


def draw(results: Mapping[str, Mapping[str, Any]], names: Mapping[str, str], path: Path, *, relative_to: str) -> None:
    """Draw a row for each problem with the baseline, and a marker for each optimizer.

    A marker is the median of the seeds, and the line through it is their range. All errors are divided by the median of the
    baseline, so markers on the left are better than the baseline.

    Parameters
    ----------
    results : mapping
        Optimizer → problem → result with the ``errors`` of its seeds.
    names : mapping
        Problem → label, in the order of the rows.
    path : Path
    relative_to : str
        The baseline, a key of ``results``.
    """
    baseline = results.get(relative_to, {})
    rows = [name for name in names if name in baseline]
    figure, axes = style.new_figure(_WIDTH, _ROW * len(rows) + 1.0, layout="constrained")
    figure.set_dpi(150)
    axes.axvline(1.0, color=_BASELINE, linewidth=1.2)
    drawn = [1.0]
    looks = {relative_to: (_BASELINE, "", relative_to.removeprefix("the ")), **_LOOKS}
    handles = []
    for optimizer, (colour, marker, label) in looks.items():
        if optimizer not in results:
            continue
        width = 2 if marker else 5
        shape = {"markersize": 8.5, "color": colour, "marker": marker}
        handles += axes.plot([], [], linewidth=width, label=label, **shape)
        for row, name in enumerate(rows):
            if name in results[optimizer]:
                unit = median(baseline[name].errors)
                ratios = [error / unit for error in results[optimizer][name].errors]
                drawn += _draw_range(axes, row, ratios, colour, width)
                axes.plot(median(ratios), row, markeredgecolor="white", markeredgewidth=0.5, zorder=3, **shape)
    axes.set_yticks(range(len(rows)), [names[name] for name in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xscale("log")
    low, high = min(drawn) / 1.1, max(drawn) * 1.1
    ticks = [tick for tick in (_WIDE_TICKS if high > 5 * low else _TICKS) if low <= tick <= high]
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(labelsize=_LETTERS)
    axes.grid(color=style.FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"error over that of {relative_to}", fontsize=_LETTERS)
    figure.legend(handles=handles[1:] + handles[:1], fontsize=_LETTERS, frameon=False, loc="outside upper right", ncols=2)
    style.bare(axes)
    style.save(figure, path)


def _draw_range(axes: Any, row: int, ratios: Sequence[float], colour: str, width: float) -> list[float]:
    """Draw and return the range of the seeds whose training did not fail."""
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    if not finite:
        return []
    ends = [min(finite), max(finite)]
    axes.plot(ends, [row, row], color=colour, linewidth=width, solid_capstyle="butt", zorder=2)
    return ends
