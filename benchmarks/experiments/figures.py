"""Figures of several experiments: errors by problem, over the time of training, and over the number of samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

from experiments.pages import named
from neuralop_mup.lab import plots as style

#: Optimizer → colour, marker and label. Others are not drawn, so that the figure stays clear.
_LOOKS = {
    "MuSOAP, untuned": (*style.LOOKS["soap"], "MuSOAP, untuned"),
    "stock SOAP": (style.GREY, "<", "stock SOAP, tuned"),
    "APEBench's FNO": (style.PALETTE[2], "D", "APEBench's own FNO"),
}
_ADAM = style.LOOKS["adam"][0]
# Letters are 9 px high if the figure is shown at a width of 400 px.
_WIDTH, _LETTERS, _ROW = 6.4, 10.5, 0.27
_TICKS, _WIDE_TICKS = (0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.25), (0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8)


def draw_comparison(results: Mapping[str, Mapping[str, Any]], path: Path, *, names: Sequence[str], relative_to: str) -> None:
    """Draw a row for each problem with the baseline, and a marker for each optimizer.

    A marker is the median of the seeds, and the line through it is their range. All errors are divided by the median of the
    baseline, so markers on the left are better than the baseline.

    Parameters
    ----------
    results : mapping
        Optimizer → problem → result with the ``errors`` of its seeds.
    path : Path
    names : sequence of str
        Problems in the order of the rows.
    relative_to : str
        The baseline, a key of ``results``.
    """
    units = {name: median(results[relative_to][name].errors) for name in names if name in results.get(relative_to, {})}
    figure, axes = style.new_figure(_WIDTH, _ROW * len(units) + 1.0, layout="constrained")
    figure.set_dpi(150)
    axes.axvline(1.0, color=_ADAM, linewidth=1.2)
    drawn, handles = [1.0], []
    for optimizer, (colour, marker, label) in {relative_to: (_ADAM, "", relative_to.removeprefix("the ")), **_LOOKS}.items():
        if optimizer not in results:
            continue
        width = 2 if marker else 5
        shape = {"markersize": 8.5, "color": colour, "marker": marker}
        handles += axes.plot([], [], linewidth=width, label=label, **shape)
        for row, (name, unit) in enumerate(units.items()):
            ratios = [error / unit for error in results[optimizer][name].errors] if name in results[optimizer] else []
            if trained := list(filter(math.isfinite, ratios)):
                drawn += trained
                ends = [min(trained), max(trained)]
                axes.plot(ends, [row, row], color=colour, linewidth=width, solid_capstyle="butt", zorder=2)
                axes.plot(median(ratios), row, markeredgecolor="white", markeredgewidth=0.5, zorder=3, **shape)
    axes.set_yticks(range(len(units)), [named(name).strip("`") for name in units])
    axes.set_ylim(len(units) - 0.4, -0.6)
    axes.set_xscale("log")
    low, high = min(drawn) / 1.1, max(drawn) * 1.1
    axes.set_xlim(low, high)
    _plain_ticks(axes.xaxis, _WIDE_TICKS if high > 5 * low else _TICKS)
    figure.legend(handles=handles[1:] + handles[:1], fontsize=_LETTERS, frameon=False, loc="outside upper right", ncols=2)
    _finish(figure, axes, path, xlabel=f"error over that of {relative_to}")


def draw_times(curves: Mapping[str, Mapping[float, tuple[float, float]]], path: Path) -> None:
    """Draw the error of untuned MuSOAP over the time: a thin line for each problem, and their geometric mean.

    Parameters
    ----------
    curves : mapping
        Problem → part of the steps → time and error, relative to those of tuned Adam.
    path : Path
    """
    figure, axes = style.new_figure(_WIDTH, 3.8, layout="constrained")
    figure.set_dpi(150)
    colour, marker = style.LOOKS["soap"]
    for points in curves.values():
        axes.plot(*zip(*points.values(), strict=True), color=colour, linewidth=0.9, alpha=0.35)
    parts = sorted(set.intersection(*(set(points) for points in curves.values())))
    means = [[geometric_mean(points[part][i] for points in curves.values()) for part in parts] for i in (0, 1)]
    label = "MuSOAP, untuned: mean and each problem"
    axes.plot(*means, color=colour, marker=marker, markersize=7, linewidth=2.5, label=label)
    axes.axhline(1.0, color=_ADAM, linewidth=1.2)
    axes.plot(1.0, 1.0, "o", color=_ADAM, markersize=9, label="Adam or AdamW, tuned")
    axes.set(xscale="log", yscale="log")
    _plain_ticks(axes.xaxis, (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5))
    _plain_ticks(axes.yaxis, (0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5))
    axes.legend(fontsize=_LETTERS, frameon=False)
    ylabel = "test error, relative to tuned Adam"
    _finish(figure, axes, path, xlabel="time of training, relative to tuned Adam", ylabel=ylabel)


def _plain_ticks(axis: Any, ticks: Sequence[float]) -> None:
    """Place those ticks that are within the limits."""
    low, high = axis.get_view_interval()
    shown = [tick for tick in ticks if low <= tick <= high]
    axis.set_ticks(shown, [f"{tick:g}" for tick in shown])


def _finish(figure: Any, axes: Any, path: Path, **labels: str) -> None:
    axes.minorticks_off()
    axes.tick_params(labelsize=_LETTERS)
    axes.grid(color=style.FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    for text in axes.set(**labels):
        text.set_fontsize(_LETTERS)
    style.bare(axes)
    style.save(figure, path)


def draw_samples(curves: Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]], path: Path) -> None:
    """Draw the test error of untuned MuSOAP and of tuned Adam over the number of samples, a panel for each problem.

    Parameters
    ----------
    curves : mapping
        Problem → MuSOAP and Adam → number of samples → test errors of the seeds.
    path : Path
    """
    rows = math.ceil(len(curves) / 3)
    figure, axes = style.new_figure(8.4, 2.5 * rows + 0.4, rows=rows, columns=3, layout="constrained", squeeze=False)
    figure.set_dpi(150)
    for own, (problem, lines) in zip(axes.flat, curves.items(), strict=False):
        for (label, points), look in zip(lines.items(), ("soap", "adam"), strict=True):
            colour, marker = style.LOOKS[look]
            draw_means(own, points, colour, 0, marker=marker, markersize=6, linewidth=2, label=label)
        own.set(xscale="log", yscale="log")
        own.set_title(named(problem).strip("`"), fontsize=style.TEXT)
        style.ticks_at(own, sorted({samples for points in lines.values() for samples in points}))
        style.value_axis(own)
    for own in axes.flat[len(curves) :]:
        own.set_axis_off()
    figure.supxlabel("training samples, or trajectories in the two problems in time", fontsize=style.TEXT)
    figure.supylabel("test error", fontsize=style.TEXT)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    style.save(figure, path)


def draw_means(axes: Any, points: Mapping[Any, Sequence[float]], colour: str, edge: float, **look: Any) -> dict[Any, float]:
    """Draw the means of the seeds and their range, and return the means."""
    means = {x: fmean(seeds) for x, seeds in points.items()}
    ends = [[end(seeds) for seeds in points.values()] for end in (min, max)]
    axes.fill_between(list(points), *ends, color=colour, alpha=0.2, linewidth=edge)
    axes.plot(list(means), list(means.values()), color=colour, **look)
    return means
