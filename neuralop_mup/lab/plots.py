"""Figures of curves, comparisons and samples.

They use matplotlib's ``Figure`` instead of ``pyplot``, so they do not need a display and do not affect the user's figures.
Each rule and each optimizer has the same colour and marker in all figures.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from textwrap import fill
from typing import Any

import numpy as np

from neuralop_mup.diagnostics.coord_check import MARKERS, PALETTE
from neuralop_mup.lab.wording import in_words

GREY, FAINT = "#555555", "#e6e6e6"
#: Colours for the sizes, from light (smallest) to dark (largest), so that they are distinguishable in greyscale.
SIZES = ("#E0A030", "#D1603D", "#9C2C77", "#3B0F70")
SMALL, TEXT, TITLE = 9.5, 10.5, 12.5  # font sizes in points, legible at half the size

#: Maps rules and optimizers to a colour and a marker. None is the base.
LOOKS: dict[str | None, tuple[str, str]] = {
    None: (GREY, "o"),
    "standard": (PALETTE[7], "s"),
    "log-modes": (PALETTE[5], "v"),
    "operator-norm": (PALETTE[2], "D"),
    "none": (PALETTE[3], "^"),
    "adam": (PALETTE[0], "o"),
    "soap": (PALETTE[1], "X"),
}


def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, layout: str | None = None, **options: Any
) -> tuple[Any, Any]:
    """Return a matplotlib figure and its axes, without using pyplot. Sizes are in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120, layout=layout)
    return figure, figure.subplots(rows, columns, **options)


def save(figure: Any, path: str | Path) -> Path:
    """Write the figure with all of its labels. The suffix of the path determines the format."""
    from matplotlib import rc_context

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # With fixed ids and no date, the same records produce the same SVG file.
    with rc_context({"svg.hashsalt": "neuralop-mup"}):
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, bbox_inches="tight", pad_inches=0.08)
    return path


def finish(figure: Any, path: str | Path, title: str | None, parts: Sequence[str] = ()) -> Path:
    """Add the title and an explanation of the marks to the figure, and write it to a file."""
    if title:
        figure.suptitle(title, x=0.01, y=1.0, ha="left", va="bottom", fontsize=TITLE)
    room = round(figure.get_figwidth() * 72 / (0.52 * SMALL))  # number of characters of average width
    figure.text(0.01, -0.01, fill("  ·  ".join(parts), room), fontsize=SMALL, color=GREY, ha="left", va="top")
    return save(figure, path)


def ticks_at(axes: Any, values: Sequence[float]) -> None:
    """Place ticks at as many of the values as fit, labelled with plain numbers."""
    width = axes.get_window_extent().width / axes.figure.dpi
    stride = max(1, math.ceil(len(values) * 0.42 / width))
    shown = list(values)[::stride]
    axes.set_xticks(shown, [f"{value:.3g}" for value in shown], fontsize=SMALL)
    axes.set_xticks([], minor=True)


def value_axis(axes: Any) -> None:
    """Label the vertical axis with a few plain numbers, and remove the box around the data."""
    from matplotlib.ticker import LogLocator

    if axes.get_yscale() == "log":
        low, high = axes.get_ylim()
        decades = math.log10(high / low)
        subs = (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9) if decades < 0.5 else (1, 2, 3, 5, 7) if decades < 1.3 else (1, 3)
        axes.yaxis.set_major_locator(LogLocator(subs=subs if decades < 3 else (1,), numticks=12))
        axes.yaxis.set_major_formatter("{x:.3g}")
        axes.set_yticks([], minor=True)
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL)
    bare(axes)


def bare(axes: Any) -> None:
    """Remove the box around the data."""
    axes.spines[["top", "right"]].set_visible(False)


# Loss against a hyperparameter

#: The loss axis ends at this multiple of the best loss, since diverged runs may reach 1e6.
_CEILING = 100.0


def plot_curves(
    curves: Sequence[tuple[str, str | None, Mapping[float, Sequence[float | None]]]],
    path: str | Path,
    *,
    name: str = "lr",
    loss: str = "validation loss",
    title: str | None = None,
) -> Path:
    """Plot losses against a hyperparameter, with a star at the lowest mean of each curve.

    Values with a failed seed are omitted, because a mean over the other seeds would hide that they are unstable.

    Parameters
    ----------
    curves : sequence of (label, rule, losses)
        The first curve is that of the base, with rule None. It is followed by a curve with a single point for each rule of
        the target. Losses map each value to one loss per seed, or None for a failed seed. At least one value is complete.
    path : str or Path
        File to write. The suffix determines the format.
    name : str
        Name of the hyperparameter.
    loss : str
        Name of the loss.
    title : str, optional

    Returns
    -------
    Path
        ``path``.
    """
    values = sorted({x for _, _, losses in curves for x in losses})
    whole = [{x: losses[x] for x in values if None not in losses.get(x, [None])} for _, _, losses in curves]
    low = min(min(own) for complete in whole for own in complete.values())
    high = max(fmean(own) for complete in whole for own in complete.values())
    figure, axes = new_figure(7.0, 3.9, layout="constrained")
    if values[0] > 0:
        axes.set_xscale("log", base=2 if name == "lr" else 10)
    if low > 0:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.15, min(high, _CEILING * low) * 1.15)
    marks = ["★ lowest mean", "bar: range over seeds"]
    for i, ((label, rule, losses), complete) in enumerate(zip(curves, whole, strict=True)):
        x, (mean, least, most) = list(complete), ([of(own) for own in complete.values()] for of in (fmean, min, max))
        colour, marker = LOOKS.get(rule, (PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]))
        is_curve = len(x) > 1
        # Single points are drawn hollow, so that marks below them stay visible.
        size = {"markersize": 4} if is_curve else {"markersize": 10, "fillstyle": "none", "markeredgewidth": 2.4}
        axes.plot(x, mean, color=colour, marker=marker, linewidth=1.6, zorder=10 + i, label=label, **size)
        axes.vlines(x, least, most, color=colour, linewidth=2.4, alpha=0.5)
        if is_curve:
            best = int(np.argmin(mean))
            axes.plot(x[best], mean[best], "*", markersize=15, color=colour, markeredgecolor="white", zorder=9)
        if failed := [value for value in losses if value not in complete]:  # their height is a fraction of the axis
            at, up = [0.97 - 0.04 * i] * len(failed), axes.get_xaxis_transform()
            axes.plot(failed, at, "x", transform=up, markersize=6, markeredgewidth=1.6, color=colour, zorder=6)
            marks.append("× a seed failed")
    ticks_at(axes, values)
    value_axis(axes)
    axes.set_xlabel(in_words(name), fontsize=TEXT)
    axes.set_ylabel(loss, fontsize=TEXT)
    axes.legend(fontsize=SMALL, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), labelspacing=1.0)
    return finish(figure, path, title, list(dict.fromkeys(marks)))


def plot_ways(ways: Mapping[str, tuple[Sequence[float], float]], path: str | Path, *, title: str | None = None) -> Path:
    """Plot the errors of several methods: a dot per seed, a bar at the median, and the learning rate below the name.

    Parameters
    ----------
    ways : mapping of str to (errors, learning rate)
        One error per seed and the learning rate of each method. Errors that are not finite are counted but not drawn.
    path : str or Path
        File to write. The suffix determines the format.
    title : str, optional

    Returns
    -------
    Path
    """
    figure, axes = new_figure(7.0, 3.6, layout="constrained")
    for column, (name, (errors, _)) in enumerate(ways.items()):
        colour, _ = LOOKS["soap" if "SOAP" in name else "adam"]
        drawn = [error for error in errors if math.isfinite(error)]
        axes.plot([column] * len(drawn), drawn, "o", color=colour, alpha=0.7)
        middle = median(errors)
        if math.isfinite(middle):
            axes.hlines(middle, column - 0.3, column + 0.3, color=colour, linewidth=2.5)
            text = f"{middle:.3g}" + (f"\n{len(errors) - len(drawn)} failed" if len(drawn) < len(errors) else "")
            axes.annotate(text, (column + 0.33, middle), va="center", fontsize=SMALL, color=colour)
    axes.set_ylim(bottom=0)
    value_axis(axes)
    axes.set_xticks(range(len(ways)), [f"{name}\nlr {lr:.3g}" for name, (_, lr) in ways.items()], fontsize=SMALL)
    axes.set_xlim(-0.5, len(ways) - 0.3)
    axes.set_ylabel("error", fontsize=TEXT)
    return finish(figure, path, title, ["dot: one seed", "bar: median"])


# Samples

_CHANNELS = 3  # maximum number of channels drawn per sample


def plot_samples(samples: Mapping[str, Sequence[np.ndarray]], path: str | Path) -> Path:
    """Plot a row for each sample and channel: the input, the truth, the prediction, and the error of the prediction.

    Fields are drawn as lines in 1D and as images in 2D, where truth and prediction share a colour scale. In 3D, the images
    show a slice through the middle of the last axis. At most three channels are drawn, and complex fields are drawn as
    absolute values.

    Parameters
    ----------
    samples : mapping of str to (input, truth, prediction)
        Maps the label of a row to fields of shape ``(channels, *grid)``.
    path : str or Path
        File to write. The suffix determines the format.

    Returns
    -------
    Path
    """
    rows = [(what, fields, channel) for what, fields in samples.items() for channel in range(min(len(fields[1]), _CHANNELS))]
    figure, axes = new_figure(11, 2.1 * len(rows), len(rows), 4, "constrained", squeeze=False)
    for row, (what, fields, channel) in zip(axes, rows, strict=True):
        x, truth, prediction = (_drawn(field, channel) for field in fields)
        difference = prediction - truth
        both, largest = np.stack([truth, prediction]), np.nanmax(np.abs(difference))  # masked points are NaN
        shared = {"vmin": np.nanmin(both), "vmax": np.nanmax(both)}
        looks = {
            "input": (x, {}),
            "truth": (truth, shared),
            "prediction": (prediction, shared),
            "prediction − truth": (difference, {"vmin": -largest, "vmax": largest, "cmap": "RdBu_r"}),
        }
        for panel, (name, (values, look)) in zip(row, looks.items(), strict=True):
            count = len(fields[0] if name == "input" else fields[1])
            panel.set_title(name if count == 1 else f"{name}, channel {min(channel, count - 1)}", fontsize=SMALL)
            if values.ndim > 1:
                image = panel.imshow(values.T, origin="lower", aspect="auto", **look)
                figure.colorbar(image, ax=panel)
                panel.set(xticks=[], yticks=[])
                continue
            if name == "prediction":
                panel.plot(truth, color=GREY, linewidth=1)
            panel.plot(values, "--" if name == "prediction" else "-", color=PALETTE[0])
            bare(panel)
        row[0].set_ylabel(what, fontsize=SMALL)
    note = "grey line in the prediction: truth" if truth.ndim == 1 else "the first axis of the grid is horizontal"
    return finish(figure, path, None, [note])


def _drawn(field: np.ndarray, channel: int) -> np.ndarray:
    """Return the values of a channel that are drawn, or those of the last channel if there are fewer channels."""
    values = field[min(channel, len(field) - 1)]
    while values.ndim > 2:
        values = values[..., values.shape[-1] // 2]
    return np.abs(values) if np.iscomplexobj(values) else values
