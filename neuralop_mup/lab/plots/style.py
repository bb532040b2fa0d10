"""The one style of every figure: colours and markers that mean the same everywhere, axes, labels, and how a figure is saved.

A rule and an optimizer keep their colour and marker from figure to figure. Sizes are told apart by shade, marker and line,
so that a figure also reads in grey.
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


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure that pyplot does not know of, and its axes; sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **options)


def new_panels(rows: int, columns: int, longest: int, height: float, sharey: bool = False) -> tuple[Figure, Any]:
    """A grid of panels, each with room for ticks at its left and for names of ``longest`` characters at its right."""
    inner, names, ticks = 3.1, 0.35 + 0.08 * longest, 0.72
    width = columns * (ticks + inner + names) + 0.2
    figure, grid = new_figure(width, height, rows, columns, squeeze=False, sharey=sharey)
    figure.subplots_adjust(left=(ticks + 0.2) / width, right=1 - names / width, wspace=(ticks + names) / inner)
    figure.subplots_adjust(top=1 - 0.7 / height, bottom=0.55 / height, hspace=0.42)
    return figure, grid


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
    """The figure's title and what its marks mean, and :func:`save`."""
    if title:
        figure.suptitle(title, x=0.01, y=0.99, ha="left", va="top", fontsize=TITLE)
    key_line(figure, parts)
    return save(figure, path)


def finish_panel(axes: Axes, title: str, label: str, wanted: Sequence[tuple[float, float, str, Any]]) -> None:
    """A panel's title, the label of its horizontal axis, :func:`value_axis` and :func:`label_lines`."""
    axes.set_title(title, fontsize=TEXT + 1, loc="left")
    axes.set_xlabel(label, fontsize=TEXT)
    value_axis(axes)
    label_lines(axes, wanted)


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


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move ascending values at least ``gap`` apart, staying inside [low, high] where they fit."""
    placed: list[float] = []
    for value in values:
        value = min(max(value, low), high)
        placed.append(max(value, placed[-1] + gap) if placed else value)
    top = high
    for index in range(len(placed) - 1, -1, -1):
        placed[index] = min(placed[index], top)
        top = placed[index] - gap
    return placed


def label_lines(axes: Axes, wanted: Sequence[tuple[float, float, str, Any]]) -> None:
    """Name each curve at the right of the axes, moved apart where names would overlap.

    Parameters
    ----------
    wanted : sequence of (x, y, text, colour)
        The point that each name belongs to, in data coordinates.
    """
    to_axes = axes.transData + axes.transAxes.inverted()
    points = sorted(
        ((float(to_axes.transform((x, y))[1]), x, y, text, colour) for x, y, text, colour in wanted), key=lambda p: p[0]
    )
    height = axes.get_window_extent().height / axes.figure.dpi * 72
    lines = max((text.count("\n") + 1 for *_, text, _ in points), default=1)
    heights = spread([p[0] for p in points], lines * 1.25 * SMALL / height, 0.04, 0.94)
    for (_, x, y, text, colour), at in zip(points, heights, strict=True):
        axes.annotate(
            text,
            (x, y),
            (1.04, at),
            textcoords="axes fraction",
            va="center",
            fontsize=SMALL,
            color=colour,
            annotation_clip=False,
            # From the label's left edge, so that no line crosses a label.
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.6,
                "alpha": 0.5,
                "relpos": (0.0, 0.5),
                "shrinkA": 0,
            },
        )


def key_line(figure: Figure, parts: Sequence[str]) -> None:
    """What the marks mean, under the figure, in lines that are no wider than it."""
    room = round(figure.get_figwidth() * 72 / (0.52 * SMALL))  # characters of a usual width
    figure.text(0.01, -0.01, fill("  ·  ".join(parts), room), fontsize=SMALL, color=GREY, ha="left", va="top")
