"""Test error over the number of samples: untuned MuSOAP and tuned Adam, a panel for each problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from experiments.pages import named
from neuralop_mup.lab import plots as style

_LOOKS = {"MuSOAP, untuned": style.LOOKS["soap"], "Adam or AdamW, tuned": style.LOOKS["adam"]}


def draw(curves: Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]], path: Path) -> None:
    """Draw the mean over the seeds and their range.

    Parameters
    ----------
    curves : mapping
        Problem → optimizer, a key of ``_LOOKS`` → number of samples → test errors of the seeds.
    path : Path
    """
    columns = 3
    rows = -(-len(curves) // columns)
    figure, axes = style.new_figure(8.4, 2.5 * rows + 0.4, rows=rows, columns=columns, layout="constrained", squeeze=False)
    figure.set_dpi(150)
    for own, (problem, lines) in zip(axes.flat, curves.items(), strict=False):
        for label, points in lines.items():
            colour, marker = _LOOKS[label]
            means = [fmean(errors) for errors in points.values()]
            own.plot(list(points), means, color=colour, marker=marker, markersize=6, linewidth=2, label=label)
            ends = zip(*((min(errors), max(errors)) for errors in points.values()), strict=True)
            own.fill_between(list(points), *ends, color=colour, alpha=0.2, linewidth=0)
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
