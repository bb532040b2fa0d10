"""Figures from records only: nothing here trains, reads a folder or touches matplotlib's global state.

The object interface (``Figure`` and ``FigureCanvasAgg``) is used instead of ``pyplot``, so drawing works without a
display, in a worker, and never changes what the user's own script has open.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralop_mup.errors import MupError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Curve", "loss_curve", "plot_coord_check", "plot_fields", "plot_transfer"]

#: Okabe and Ito's palette, which stays distinct under the common colour deficiencies.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
_PROXY = "#555555"
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<")
#: A diverged run may reach 1e6; beyond this multiple of the best loss a point is pinned to the top of the axes.
_CEILING = 30.0
_AXIS_NAMES = {"hidden_channels": "width (hidden_channels)", "n_modes": "modes per axis (n_modes)"}


class Curve:
    """Loss against learning rate at one (stage, size, rule), summarised over seeds.

    Attributes
    ----------
    lr, mean, low, high : list of float
        Learning rates with at least one finished run, and the mean, lowest and highest loss over seeds there.
    failed : list of float
        Learning rates at which some seed failed.
    """

    def __init__(self, lr: list[float], mean: list[float], low: list[float], high: list[float], failed: list[float]):
        self.lr, self.mean, self.low, self.high, self.failed = lr, mean, low, high, failed

    @property
    def optimum(self) -> tuple[float, float] | None:
        """The learning rate of lowest mean loss and that loss; None when every run failed."""
        if not self.lr:
            return None
        best = min(range(len(self.lr)), key=self.mean.__getitem__)
        return self.lr[best], self.mean[best]


def loss_curve(records: Iterable[Mapping[str, Any]], stage: str, rule: str | None = None) -> Curve:
    """Collect one curve from trial records.

    With more searched hyperparameters than ``lr``, each learning rate shows the best of the others (the lower
    envelope of their seed means). A point counts only where every seed finished, since a mean over the
    seeds that happened to survive flatters an unstable learning rate.

    Parameters
    ----------
    records : iterable of dict
        Records as :func:`neuralop_mup.transfer` returns them.
    stage : {"proxy", "target", "verify"}
        Which stage to read.
    rule : str, optional
        Only the records under this rule; all of them by default.

    Returns
    -------
    Curve
    """
    points: dict[tuple, list[Mapping[str, Any]]] = {}
    for record in records:
        if record["stage"] == stage and (rule is None or record["rule"] == rule) and "lr" in record["params"]:
            points.setdefault(tuple(sorted(record["params"].items())), []).append(record)
    by_lr: dict[float, list[float]] = {}
    failed = set()
    for key, group in points.items():
        lr = float(dict(key)["lr"])
        losses = [float(record["loss"]) for record in group if finished(record)]
        if len(losses) < len(group):
            failed.add(lr)
        elif lr not in by_lr or _mean(losses) < _mean(by_lr[lr]):
            by_lr[lr] = losses
    lrs = sorted(by_lr)
    return Curve(
        lrs,
        [_mean(by_lr[lr]) for lr in lrs],
        [min(by_lr[lr]) for lr in lrs],
        [max(by_lr[lr]) for lr in lrs],
        sorted(failed),
    )


def finished(record: Mapping[str, Any]) -> bool:
    """Whether a trial ended with a finite loss."""
    loss = record.get("loss")
    return record["state"] == "complete" and loss is not None and math.isfinite(loss)


def plot_transfer(
    records: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    rule: str | None = None,
    best: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    title: str | None = None,
) -> Path:
    """Draw loss against learning rate for the proxy and the target.

    One curve per (size, rule) with the range over seeds, a star at each optimum, a line at the transferred learning
    rate and, under it, the target's loss for each rule.

    Parameters
    ----------
    records : sequence of dict
        Records of one transfer, with or without the "verify" stage.
    path : str or Path
        Where to write; the suffix (``.png``, ``.svg``, ``.pdf``) picks the format.
    rule : str, optional
        The μP rule that carried the learning rate; read from the proxy's records by default.
    best : dict, optional
        The transferred hyperparameters; the proxy curve's optimum by default.
    labels : dict, optional
        Text for ``"proxy"`` and ``"target"``, e.g. ``{"target": "width 64, modes 32"}``.
    title : str, optional
        Title of the figure.

    Returns
    -------
    Path
        ``path``.

    Raises
    ------
    MupError
        If no record searched ``lr``.
    """
    figure, axes = _figure(8.2, 4.6)
    names = {"proxy": "proxy", "target": "target", **(labels or {})}
    rules = list(dict.fromkeys(record["rule"] for record in records if record["stage"] != "proxy"))
    proxy = loss_curve(records, "proxy")
    if not proxy.lr and not proxy.failed:
        raise MupError("There is no loss-against-lr figure to draw: no proxy record has an lr. Search over lr.")
    rule = rule or next((record["rule"] for record in records if record["stage"] == "proxy"), None)
    rules.sort(key=lambda name: (name != rule, name == "standard", name))
    style = {name: (PALETTE[i % len(PALETTE)], _MARKERS[1 + i % 7]) for i, name in enumerate(rules)}
    curves = [(names["proxy"], proxy, _PROXY, "o", (0, (4, 2)))]
    drawn = []
    for name in rules:
        verified = loss_curve(records, "verify", name)
        if verified.lr or verified.failed:
            curves.append((f"{names['target']}, {_rule_name(name)}", verified, *style[name], "-"))
            drawn.append(name)
    carried = {name: loss_curve(records, "target", name) for name in rules}

    every = [(y, y) for _, curve, *_ in curves for y in curve.mean] + [
        (c.mean[0], c.mean[0]) for c in carried.values() if c.lr
    ]
    floor = min((low for low, _ in every), default=1.0)
    ceiling = min(max((high for _, high in every), default=1.0), floor * _CEILING) * 1.25
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(floor / 1.18, ceiling)

    wanted: list[tuple[float, float, str, str]] = []
    named = set()
    for (label, curve, colour, marker, line), name in zip(curves, [None, *drawn], strict=True):
        _draw_curve(axes, curve, colour, marker, line, ceiling)
        if curve.lr:
            if name and carried[name].lr:
                label += f"\n{carried[name].mean[0]:.3g} at the transferred lr"
                named.add(name)
            wanted.append((curve.lr[-1], min(curve.mean[-1], ceiling / 1.03), label, colour))
    lr = float(best["lr"]) if best and "lr" in best else (proxy.optimum or (None,))[0]
    if lr is not None:
        axes.axvline(lr, color="#999999", linewidth=1, zorder=0)
        axes.annotate(
            f"transferred lr {lr:.3g}",
            (lr, 1.0),
            (0, 4),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=9,
            color="#444444",
        )
    _draw_carried(axes, carried, style, ceiling, named)
    _lr_axis(axes, sorted({x for _, curve, *_ in curves for x in (*curve.lr, *curve.failed)}))
    axes.set_ylabel("validation loss (relative L2)")
    if title:
        axes.set_title(title, loc="left", fontsize=11, pad=22)
    _loss_axis(axes)
    figure.subplots_adjust(left=0.1, right=0.72, top=0.86, bottom=0.2)
    _label_right(axes, wanted)
    _key(
        figure,
        failed=any(curve.failed for _, curve, *_ in curves) or any(c.failed for c in carried.values()),
        carried=any(c.lr for c in carried.values()),
        seeds=len({record["seed"] for record in records}),
    )
    return _save(figure, path)


def plot_coord_check(check: Any, path: str | Path, *, tolerance: float | None = None, title: str | None = None) -> Path:
    """Draw the coordinate check: feature sizes and updates against model size, one panel a step.

    Parameters
    ----------
    check : CoordCheck
        What :func:`neuralop_mup.coord_check` returned; only its ``records``, ``slopes`` and ``size_name`` are read.
    path : str or Path
        Where to write; the suffix picks the format.
    tolerance : float, optional
        Update slopes beyond it are written in bold.
    title : str, optional
        Title of the figure.

    Returns
    -------
    Path
        ``path``.

    Raises
    ------
    MupError
        If there are no records.
    """
    records, x = check.records, _AXIS_NAMES.get(check.size_name, check.size_name)
    panels = list(dict.fromkeys((record["kind"], record["step"]) for record in records))
    panels.sort(key=lambda panel: (panel[0] != "init", panel[1]))
    if not panels:
        raise MupError("There is no coordinate check to draw: the list of records is empty.")
    blocks = list(dict.fromkeys(record["block"] for record in records))
    columns = min(len(panels), 4)
    rows = math.ceil(len(panels) / columns)
    legend_height = 0.19 * len(blocks) + 0.2
    height = 2.9 + legend_height
    figure, grid = _figure(3.5 * columns, height * rows + 0.45, rows, columns, squeeze=False)
    sizes = sorted({float(record["size"]) for record in records})
    slope_of = {(s["kind"], s["step"], s["block"]): float(s["slope"]) for s in check.slopes}
    for axes, (kind, step) in zip(grid.flat, panels, strict=False):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        limit = tolerance if kind == "update" else None
        for index, block in enumerate(blocks):
            _draw_block(axes, records, kind, step, block, index, slope_of.get((kind, step, block)), limit)
        _lr_axis(axes, sizes)
        axes.set_xlabel(x)
        axes.set_title("features at init" if kind == "init" else f"update after {_steps(step)}", fontsize=10)
        _loss_axis(axes)
        if axes.get_legend_handles_labels()[0]:
            legend = axes.legend(
                loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False, fontsize=8, handlelength=2.2
            )
            for text in legend.get_texts():
                if text.get_text().endswith("!"):
                    text.set_fontweight("bold")
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("RMS over features")
    if title:
        figure.suptitle(title, x=0.01, y=0.985, ha="left", va="top", fontsize=11)
    total = height * rows + 0.45
    figure.subplots_adjust(
        left=0.85 / (3.5 * columns),
        right=1 - 0.12 / (3.5 * columns),
        top=1 - 0.7 / total,
        bottom=(legend_height + 0.45) / total,
        hspace=(legend_height + 0.9) / 2.0,
        wspace=0.28,
    )
    return _save(figure, path)


def plot_fields(x: Any, y: Any, path: str | Path, *, count: int = 4, title: str | None = None) -> Path:
    """Draw samples of a data set: curves in one dimension, images in two (and slices in three).

    Parameters
    ----------
    x, y : array-like, shape (n, channels, *grid)
        Inputs and solutions; the first channel is drawn.
    path : str or Path
        Where to write; the suffix picks the format.
    count : int
        Number of samples.
    title : str, optional
        Title of the figure.

    Returns
    -------
    Path
        ``path``.
    """
    import numpy as np

    count = min(count, len(x))
    images = x[0, 0].ndim > 1
    figure, grid = _figure(2.6 * count, 4.6, 2, count, squeeze=False, sharey="none" if images else "row")
    for row, (name, values) in enumerate((("input", x), ("solution", y))):
        for column in range(count):
            axes, field = grid[row, column], np.asarray(values[column][0])
            while field.ndim > 2:
                field = field[..., -1]
            if images:
                image = axes.imshow(field.T, origin="lower", cmap="viridis")
                figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03).ax.tick_params(labelsize=7)
                axes.set_xticks([])
                axes.set_yticks([])
            else:
                axes.plot([i / len(field) for i in range(len(field))], field, color=PALETTE[row], linewidth=1.4)
                axes.tick_params(labelsize=8)
                _bare(axes)
        grid[row, 0].set_ylabel(name)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.tight_layout()
    return _save(figure, path)


def _draw_curve(axes: Axes, curve: Curve, colour: str, marker: str, line: Any, ceiling: float) -> None:
    """One line with its band over seeds, its star, and crosses where a seed failed."""
    inside = [min(y, ceiling) for y in curve.mean]
    axes.fill_between(curve.lr, curve.low, [min(y, ceiling) for y in curve.high], color=colour, alpha=0.15, linewidth=0)
    axes.plot(curve.lr, inside, color=colour, marker=marker, markersize=4.5, linestyle=line, linewidth=1.6)
    if curve.optimum:
        axes.plot(
            *curve.optimum,
            marker="*",
            markersize=15,
            color=colour,
            markeredgecolor="white",
            linestyle="",
            zorder=5,
        )
    if curve.failed:
        axes.plot(
            curve.failed,
            [0.965] * len(curve.failed),
            marker="x",
            markersize=7,
            markeredgewidth=1.8,
            color=colour,
            linestyle="",
            transform=axes.get_xaxis_transform(),
            zorder=6,
        )


def _draw_carried(
    axes: Axes, carried: Mapping[str, Curve], style: Mapping[str, tuple], ceiling: float, named: set[str]
) -> None:
    """The target's loss at the transferred lr: an open marker per rule, and its name unless a curve bears it."""
    shown = sorted((c.mean[0], name) for name, c in carried.items() if c.lr)
    low, high = (math.log(v) for v in axes.get_ylim())
    gap = 0.055 * (high - low)
    place = _spread([math.log(min(y, ceiling)) for y, _ in shown], gap, low + gap / 2, high - gap / 2)
    for (y, name), height in zip(shown, place, strict=True):
        colour, marker = style[name]
        curve = carried[name]
        axes.vlines(curve.lr[0], curve.low[0], min(curve.high[0], ceiling), color=colour, linewidth=2.2, zorder=6)
        axes.plot(
            curve.lr[0],
            min(y, ceiling),
            marker=marker,
            markersize=9,
            markerfacecolor="white",
            markeredgecolor=colour,
            markeredgewidth=2,
            linestyle="",
            zorder=7,
        )
        if name in named:
            continue
        axes.annotate(
            f"{_rule_name(name)}: {y:.3g}",
            (curve.lr[0], math.exp(height)),
            (9, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=colour,
            zorder=8,
            bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1},
        )
    for name, curve in carried.items():
        if curve.failed:
            axes.plot(
                curve.failed[:1],
                [0.92],
                marker="X",
                markersize=9,
                color=style[name][0],
                linestyle="",
                transform=axes.get_xaxis_transform(),
                zorder=7,
            )


def _draw_block(
    axes: Axes,
    records: Sequence[Mapping[str, Any]],
    kind: str,
    step: int,
    block: str,
    index: int,
    slope: float | None,
    tolerance: float | None,
) -> None:
    """RMS of one block against size, its mean over seeds as a line and the seeds as faint dots."""
    by_size: dict[float, list[float]] = {}
    for record in records:
        if (record["kind"], record["step"], record["block"]) == (kind, step, block):
            value = float(record["value"])
            if math.isfinite(value) and value > 0:
                by_size.setdefault(float(record["size"]), []).append(value)
    if not by_size:
        return
    colour, marker = PALETTE[index % len(PALETTE)], _MARKERS[index % len(_MARKERS)]
    text = block
    if slope is not None:
        beyond = tolerance is not None and not abs(slope) <= tolerance
        text += f"  slope {slope:+.2f}{' !' if beyond else ''}"
    sizes = sorted(by_size)
    # Feature sizes spread evenly on a log axis, so the line is the geometric mean: what the slopes are fitted to.
    means = [math.exp(_mean([math.log(v) for v in by_size[size]])) for size in sizes]
    axes.plot(sizes, means, color=colour, marker=marker, markersize=4, linewidth=1.5, label=text)
    for size in sizes:
        if len(by_size[size]) > 1:
            axes.plot([size] * len(by_size[size]), by_size[size], ".", color=colour, alpha=0.3, markersize=3)


def _label_right(axes: Axes, wanted: list[tuple[float, float, str, str]]) -> None:
    """Name each curve at the right of the axes, moved apart where names would overlap."""
    if not wanted:
        return
    wanted = sorted(wanted, key=lambda item: item[1])
    low, high = (math.log(v) for v in axes.get_ylim())
    heights = [math.log(y) for _, y, *_ in wanted]
    place = _spread(heights, (0.12 if any("\n" in item[2] for item in wanted) else 0.075) * (high - low), low, high)
    right = math.log(axes.get_xlim()[1])
    left = math.log(axes.get_xlim()[0])
    for (x, y, text, colour), height in zip(wanted, place, strict=True):
        axes.annotate(
            text,
            (x, y),
            (1.03, (height - low) / (high - low)),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            color=colour,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.7,
                "alpha": 0.6 if (math.log(x) - left) / (right - left) > 0.5 else 0.35,
                "shrinkA": 0,
                "shrinkB": 4,
            },
        )


def _spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
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


def _key(figure: Figure, *, failed: bool, carried: bool, seeds: int) -> None:
    """What the marks mean, in one line under the axes."""
    parts = ["★ lowest mean"]
    if carried:
        parts.append("open marker: target at the transferred lr")
    if seeds > 1:
        parts.append(f"bands: range over {seeds} seeds")
    if failed:
        parts.append("× a run failed")
    figure.text(0.1, 0.025, "   ·   ".join(parts), fontsize=8, color="#555555", ha="left")


def _lr_axis(axes: Axes, values: Sequence[float]) -> None:
    """Ticks at the values themselves, thinned to what fits and written plainly."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    stride = max(1, math.ceil(len(values) / 9))
    axes.xaxis.set_major_locator(FixedLocator(list(values)[::stride]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("learning rate")


def _loss_axis(axes: Axes) -> None:
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
    _bare(axes)


def _bare(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _rule_name(rule: str) -> str:
    return "standard (SP)" if rule == "standard" else f"μP {rule}"


def _steps(step: int) -> str:
    return "1 step" if step == 1 else f"{step} steps"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **options)


def _save(figure: Figure, path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a date the same records give the same SVG, so figures can be kept under version control.
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path
