"""What every figure shares: colours, axes and how a figure is made and saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's palette, which stays distinct under the common colour deficiencies.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<")


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure that pyplot does not know of, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **options)


def save(figure: Figure, path: str | Path) -> Path:
    """Write the figure; the suffix picks the format."""
    from matplotlib import rc_context

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # With fixed ids and no date the same records give the same SVG, so figures can be kept under version control.
    with rc_context({"svg.hashsalt": "neuralop-mup"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def ticks_at(axes: Axes, values: Sequence[float]) -> None:
    """Ticks at the values themselves, thinned to what fits and written plainly."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    stride = max(1, math.ceil(len(values) / 9))
    axes.xaxis.set_major_locator(FixedLocator(list(values)[::stride]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def value_axis(axes: Axes) -> None:
    """Plain numbers on the vertical log axis, few enough to read, and no box around the data."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axes.get_ylim()
    decades = math.log10(high / low)
    subs = (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9) if decades < 0.5 else (1, 2, 3, 5, 7) if decades < 1.3 else (1, 3)
    axes.yaxis.set_major_locator(LogLocator(subs=subs if decades < 3 else (1,), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    bare(axes)


def bare(axes: Axes) -> None:
    """No box around the data."""
    axes.spines[["top", "right"]].set_visible(False)
