"""The suite's main table as a picture: error over steps, one panel a problem."""

from __future__ import annotations

import statistics
from pathlib import Path

from neuralop_mup.plots.style import (
    bare,
    colour_of,
    key_line,
    label_lines,
    marker_of,
    new_figure,
    save,
    ticks_at,
    value_axis,
)
from suite_runs import CHOSEN_ON, PROBLEMS, Records
from suite_stages import LENGTHS, SEEDS, final

NAMES = {
    "burgers": "Burgers",
    "darcy": "Darcy",
    "allen-cahn": "Allen–Cahn",
    "korteweg-de-vries": "Korteweg–de Vries",
    "gray-scott": "Gray–Scott",
    "darcy-pino": "Darcy, with its equation",
    "burgers-pino": "Burgers, with its equation",
    "navier-stokes": "Navier–Stokes",
}
STYLES = {"Adam (SP)": "standard", "MuAdam": "adam", "MuMuon": "muon", "MuSOAP": "soap"}


def draw(records: Records, path: Path) -> Path:
    """Write the figure from what is done."""
    reported = [problem for problem in PROBLEMS if problem not in CHOSEN_ON]
    figure, axes = new_figure(9.2, 4.9, 2, 4)
    for ax, problem in zip(axes.flat, [*reported, *CHOSEN_ON], strict=True):
        ends = []
        for name in STYLES:
            points = {steps: final(records, problem, name, steps) for steps in LENGTHS}
            errors = {steps: [r["test"] for r in records.results(point, SEEDS)] for steps, point in points.items() if point}
            errors = {steps: own for steps, own in errors.items() if own}
            if not errors:
                continue
            colour, marker = colour_of(STYLES[name]), marker_of(STYLES[name])
            means = [statistics.fmean(own) for own in errors.values()]
            ax.plot(list(errors), means, color=colour, marker=marker, markersize=4, linewidth=1.4)
            for steps, own in errors.items():
                ax.plot([steps, steps], [min(own), max(own)], color=colour, linewidth=3, alpha=0.3)
            ends.append((list(errors)[-1], means[-1], name, colour))
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(250, 3600)
        ticks_at(ax, LENGTHS)
        ax.xaxis.set_major_formatter(lambda steps, _: f"{steps:,.0f}")
        value_axis(ax)
        bare(ax)
        ax.set_title(NAMES[problem] + (" *" if problem in CHOSEN_ON else ""), fontsize=9, loc="left")
        if ax is axes.flat[3]:
            label_lines(ax, ends)
    for ax in axes[-1]:
        ax.set_xlabel("steps", fontsize=8)
    for ax in axes[:, 0]:
        ax.set_ylabel("test error (relative L2)", fontsize=8)
    figure.tight_layout()
    key_line(figure, ["each tuned, mean of three seeds and their range", "* problems that defaults were chosen on"])
    return save(figure, path)
