"""Loss against learning rate at the proxy and at the target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralop_mup.errors import MupError
from neuralop_mup.plots.canvas import MARKERS, PALETTE, new_figure, save, ticks_at, value_axis
from neuralop_mup.plots.curves import Curve, loss_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PROXY = "#555555"
#: A diverged run may reach 1e6; beyond this multiple of the best loss a point is pinned to the top of the axes.
_CEILING = 30.0


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
    figure, axes = new_figure(8.2, 4.6)
    names = {"proxy": "proxy", "target": "target", **(labels or {})}
    rules = list(dict.fromkeys(record["rule"] for record in records if record["stage"] != "proxy"))
    proxy = loss_curve(records, "proxy")
    if not proxy.lr and not proxy.failed:
        raise MupError("There is no loss-against-lr figure to draw: no proxy record has an lr. Search over lr.")
    rule = rule or next((record["rule"] for record in records if record["stage"] == "proxy"), None)
    rules.sort(key=lambda name: (name != rule, name == "standard", name))
    style = {name: (PALETTE[i % len(PALETTE)], MARKERS[1 + i % 7]) for i, name in enumerate(rules)}
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
    ticks_at(axes, sorted({x for _, curve, *_ in curves for x in (*curve.lr, *curve.failed)}))
    axes.set_xlabel("learning rate")
    axes.set_ylabel("validation loss (relative L2)")
    if title:
        axes.set_title(title, loc="left", fontsize=11, pad=22)
    value_axis(axes)
    figure.subplots_adjust(left=0.1, right=0.72, top=0.86, bottom=0.2)
    _label_right(axes, wanted)
    _key(
        figure,
        failed=any(curve.failed for _, curve, *_ in curves) or any(c.failed for c in carried.values()),
        carried=any(c.lr for c in carried.values()),
        seeds=len({record["seed"] for record in records}),
    )
    return save(figure, path)


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
                "relpos": (0.0, 0.5),  # from the label's left edge, so that no line crosses a label
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


def _rule_name(rule: str) -> str:
    return "standard (SP)" if rule == "standard" else f"μP {rule}"
