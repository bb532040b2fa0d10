"""A contest at a glance: each optimizer's error on each problem over that of tuned Adam."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from neuralop_mup.lab import plots as style

#: Optimizer → how it is drawn, and where its errors are written beside it; others are left out, for a figure of few marks.
_DRAWN: dict[str, tuple[str, str]] = {
    "MuSOAP, untuned": ("soap", "MuSOAP, untuned"),
    "stock SOAP": ("sgd", "stock SOAP, tuned"),
    "MuMuon": ("muon", "MuMuon, tuned"),
    "torch's Muon and AdamW": ("adamw", "torch's Muon, tuned"),
    "APEBench's FNO": ("neuralop-adamw", "APEBench's own FNO"),
}


def draw(ends: Mapping[str, Mapping[str, Any]], names: Mapping[str, str], path: Path) -> None:
    """A row a problem of which Adam is done, a mark an optimizer; left of the line is better than tuned Adam.

    Parameters
    ----------
    ends : mapping
        Optimizer → problem → what it reaches, with the ``errors`` of its seeds.
    names : mapping
        Problem → what the figure calls it; in the order of the rows.
    """
    rows = [name for name in names if name in ends.get("Adam", {})]
    figure, axes = style.new_figure(6.4, 0.42 * len(rows) + 1.5)
    axes.axvline(1.0, color=style.LOOKS["adam"][0], linewidth=2)
    axes.annotate(
        "tuned Adam",
        (1.0, -0.75),
        ha="center",
        va="bottom",
        color=style.LOOKS["adam"][0],
        fontsize=style.TEXT,
        annotation_clip=False,
    )
    drawn = [1.0]
    for who, (kind, label) in _DRAWN.items():
        own = {
            rows.index(n): median(e.errors) / median(ends["Adam"][n].errors)
            for n, e in ends.get(who, {}).items()
            if n in rows
        }
        if own:
            colour, marker = style.LOOKS[kind]
            drawn += own.values()
            axes.plot(
                drawn[-len(own) :],
                list(own),
                marker,
                color=colour,
                markersize=8,
                linestyle="none",
                label=label,
            )
    axes.set_yticks(range(len(rows)), [names[n] for n in rows], fontsize=style.TEXT)
    axes.set_ylim(len(rows) - 0.4, -0.7)
    axes.set_xscale("log")
    low, high = min(drawn) / 1.15, max(drawn) * 1.15
    ticks = [tick for tick in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 2, 4, 8) if low <= tick <= high]
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=style.TEXT)
    axes.minorticks_off()
    axes.grid(color=style.FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xlabel("error over that of tuned Adam", fontsize=style.TEXT)
    figure.legend(fontsize=style.TEXT, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2)
    style.bare(axes)
    style.save(figure, path)
