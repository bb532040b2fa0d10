"""The one style of every figure: colours and markers that mean the same everywhere, axes, and how a figure is saved.

A rule and an optimizer keep their colour and marker from figure to figure, so that a figure also reads in grey.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's palette, which stays distinct under the common colour deficiencies.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<")
GREY, FAINT = "#555555", "#e6e6e6"
SMALL, TEXT, TITLE = 9.5, 10.5, 12.5  # points: legible where a page shows a figure at half its size

#: Rules and optimizers → colour and marker.
_FIXED = {
    "standard": (PALETTE[1], "s"),
    "log-modes": (PALETTE[0], "o"),
    "operator-norm": (PALETTE[2], "D"),
    "none": (PALETTE[3], "^"),
    "adam": (PALETTE[0], "o"),
    "adamw": (PALETTE[5], "v"),
    "neuralop-adamw": (PALETTE[2], "D"),
    "sgd": (PALETTE[7], "<"),
    "muon": (PALETTE[3], "P"),  # of which evidence is kept
    "soap": (PALETTE[4], "X"),
}


def colour_of(name: str | None, index: int = 0) -> str:
    """Colour of a rule or an optimizer; of what is neither, by its index."""
    return _FIXED[name][0] if name in _FIXED else PALETTE[index % len(PALETTE)]


def marker_of(name: str | None, index: int = 0) -> str:
    """Marker of a rule or an optimizer; of what is neither, by its index."""
    return _FIXED[name][1] if name in _FIXED else MARKERS[index % len(MARKERS)]


def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, layout: str | None = None, **options: Any
) -> tuple[Figure, Any]:
    """A figure that pyplot does not know of, and its axes; sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120, layout=layout)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **options)


def save(figure: Figure, path: str | Path) -> Path:
    """Write the figure, grown where a label would be cut off; the suffix picks the format."""
    from matplotlib import rc_context

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # With fixed ids and no date the same records give the same SVG, so figures can be kept under version control.
    with rc_context({"svg.hashsalt": "neuralop-mup"}):
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, bbox_inches="tight", pad_inches=0.08)
    return path


def finish(figure: Figure, path: str | Path, title: str | None, parts: Sequence[str] = ()) -> Path:
    """The figure's title, what its marks mean in lines that are no wider than it, and :func:`save`."""
    if title:
        figure.suptitle(title, x=0.01, y=1.0, ha="left", va="bottom", fontsize=TITLE)
    room = round(figure.get_figwidth() * 72 / (0.52 * SMALL))  # characters of a usual width
    figure.text(0.01, -0.01, fill("  ·  ".join(parts), room), fontsize=SMALL, color=GREY, ha="left", va="top")
    return save(figure, path)


def name_lines(axes: Axes) -> None:
    """The names of what is drawn, at the right of the axes."""
    axes.legend(fontsize=SMALL, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), labelspacing=1.0)


def ticks_at(axes: Axes, values: Sequence[float], digits: int = 3) -> None:
    """Ticks at the values themselves, thinned to what fits and written plainly."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    width = axes.get_window_extent().width / axes.figure.dpi
    stride = max(1, math.ceil(len(values) * 0.42 / width))
    axes.xaxis.set_major_locator(FixedLocator(list(values)[::stride]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.{digits}g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=SMALL)


def value_axis(axes: Axes) -> None:
    """Plain numbers on the vertical axis, few enough to read, and no box around the data."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if axes.get_yscale() == "log":
        low, high = axes.get_ylim()
        decades = math.log10(high / low)
        subs = (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9) if decades < 0.5 else (1, 2, 3, 5, 7) if decades < 1.3 else (1, 3)
        axes.yaxis.set_major_locator(LogLocator(subs=subs if decades < 3 else (1,), numticks=12))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL)
    bare(axes)


def bare(axes: Axes) -> None:
    """No box around the data."""
    axes.spines[["top", "right"]].set_visible(False)
