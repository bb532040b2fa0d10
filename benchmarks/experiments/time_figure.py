"""Error over time: untuned MuSOAP, trained for parts of the steps, relative to tuned Adam."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean

from neuralop_mup.lab import plots as style

_LETTERS = 10.5


def draw(curves: Mapping[str, Mapping[float, tuple[float, float]]], path: Path) -> None:
    """Draw a thin line for each problem, and their geometric mean.

    Parameters
    ----------
    curves : mapping
        Problem → part of the steps → time and error, relative to those of tuned Adam.
    path : Path
    """
    figure, axes = style.new_figure(6.4, 3.8, layout="constrained")
    figure.set_dpi(150)
    colour, marker = style.LOOKS["soap"]
    for points in curves.values():
        axes.plot(*zip(*points.values(), strict=True), color=colour, linewidth=0.9, alpha=0.35)
    parts = sorted(set.intersection(*(set(points) for points in curves.values())))
    means = [[geometric_mean(points[part][i] for points in curves.values()) for part in parts] for i in (0, 1)]
    axes.plot(
        *means, color=colour, marker=marker, markersize=7, linewidth=2.5, label="MuSOAP, untuned: mean and each problem"
    )
    axes.axhline(1.0, color=style.LOOKS["adam"][0], linewidth=1.2)
    axes.plot(1.0, 1.0, "o", color=style.LOOKS["adam"][0], markersize=9, label="Adam or AdamW, tuned")
    axes.set(xscale="log", yscale="log")
    for limits, set_ticks, ticks in (
        (axes.get_xlim(), axes.set_xticks, (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5)),
        (axes.get_ylim(), axes.set_yticks, (0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5)),
    ):
        shown = [tick for tick in ticks if limits[0] <= tick <= limits[1]]
        set_ticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()
    axes.tick_params(labelsize=_LETTERS)
    axes.grid(color=style.FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xlabel("time of training, relative to tuned Adam", fontsize=_LETTERS)
    axes.set_ylabel("test error, relative to tuned Adam", fontsize=_LETTERS)
    axes.legend(fontsize=_LETTERS, frameon=False)
    style.bare(axes)
    style.save(figure, path)
