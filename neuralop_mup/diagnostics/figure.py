"""The figure of a coordinate check: feature sizes and updates against model size, a panel a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neuralop_mup.errors import MupError

_AXIS_NAMES = {"hidden_channels": "width (hidden_channels)", "n_modes": "modes per axis (n_modes)"}
#: After a slope that does not pass, or of which the seeds do not tell; and what that means.
_MARKS = {"passed": "", "did not pass": " !", "undecided": " ?"}
_MEANING = {"passed": "", "did not pass": "!: does not pass", "undecided": "?: the seeds do not tell"}
#: Okabe and Ito's palette, which stays distinct under the common colour deficiencies; markers for figures in grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
_MARKERS = "osD^vPX<"


def plot_coord_check(
    records: Sequence[Mapping[str, Any]], slopes: Sequence[Mapping[str, Any]], path: str | Path, size_name: str, title: str
) -> None:
    """Draw it into a file, whose suffix picks the format, without a display and without pyplot's state.

    Parameters
    ----------
    records, slopes : sequence of mapping
        ``records`` of a :class:`neuralop_mup.CoordCheck`, and its slopes as they are judged.
    path : str or Path
        Where to write.
    size_name : str
        What the sizes are.
    title : str
        Stands above the panels.

    Raises
    ------
    MupError
        If there are no records.
    """
    from matplotlib.figure import Figure

    if not slopes:
        raise MupError("There is no coordinate check to draw: the list of records is empty.")
    panels = sorted({(row["kind"], row["step"]) for row in slopes}, key=lambda panel: (panel[0] != "init", panel[1]))
    columns = min(len(panels), 2)
    rows = math.ceil(len(panels) / columns)
    sizes = sorted({record["size"] for record in records})
    figure = Figure(figsize=(6.2 * columns, 3.3 * rows + 0.6), dpi=120, layout="constrained")
    for number, (kind, step) in enumerate(panels, 1):
        axes = figure.add_subplot(rows, columns, number, xscale="log", yscale="log")
        what = "features at init" if kind == "init" else f"update after {step} step{'s' * (step != 1)}"
        axes.set(title=what, xlabel=_AXIS_NAMES.get(size_name, size_name), ylabel="RMS over features")
        here = [row for row in slopes if (row["kind"], row["step"]) == (kind, step)]
        for row, colour, marker in zip(here, _COLOURS * len(here), _MARKERS * len(here), strict=False):
            seen = sorted(
                (r["size"], r["value"])
                for r in records
                if all(r[key] == row[key] for key in ("kind", "step", "block")) and 0 < r["value"] < math.inf
            )
            means = {size: math.sqrt(np.mean([v * v for s, v in seen if s == size])) for size, _ in seen}
            label = f"{row['block']}  slope {row['slope']:+.2f}{_MARKS[row['outcome']]}"
            axes.plot([size for size, _ in seen], [v for _, v in seen], ".", color=colour, alpha=0.3, markersize=3)
            axes.plot(list(means), list(means.values()), color=colour, marker=marker, markersize=4, label=label)
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    key = ["lines: root mean square over seeds", "dots: seeds", *sorted({_MEANING[row["outcome"]] for row in slopes} - {""})]
    figure.suptitle("\n".join(filter(None, (title, "  ·  ".join(key)))), x=0.01, ha="left", fontsize=10)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
