"""Loss against a hyperparameter: one panel a rule, one curve a size. The figure of every study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralop_mup.errors import MupError
from neuralop_mup.plots import style
from neuralop_mup.plots.curves import Curve, loss_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from neuralop_mup.tuning import Results

#: Axis label of each hyperparameter, and whether it is drawn as its distance from 1.
_NAMES = {"lr": ("learning rate", False), "batch_size": ("batch size (samples)", False), "beta2": ("Adam β2", True)}
#: Beyond this multiple of the best loss a point is pinned to the top of the axes: a diverged run may reach 1e6.
_CEILING = 100.0

Panels = Mapping[str | None, Sequence[tuple[str, Curve]]]


def panels_of(results: Results, name: str = "lr", labels: Mapping[str, str] | None = None) -> Panels:
    """For each rule the curves of a study, from the base to the largest size; a size that was not walked is one point."""
    study = results.study
    walked = None if study.swept is None else name
    panels: dict[str | None, list[tuple[str, Curve]]] = {}
    for rule in study.rules:
        panels[rule] = [
            ((labels or {}).get(size, size or ""), loss_curve(records, name))
            for size in study.sizes
            if (records := results.walk(size, rule, walked) or results.carried(size, rule, walked))
        ]
    return panels


def plot_study(
    results: Results,
    path: str | Path,
    *,
    name: str = "lr",
    labels: Mapping[str, str] | None = None,
    title: str | None = None,
) -> Path:
    """Draw a study; see :func:`plot_panels`.

    Parameters
    ----------
    results : Results
    path : str or Path
        Where to write; the suffix (``.png``, ``.svg``, ``.pdf``) picks the format.
    name : str
        The hyperparameter on the horizontal axis.
    labels : mapping, optional
        Text for sizes, such as ``{"target": "target (width 64, modes 32)"}``.
    title : str, optional
    """
    panels = panels_of(results, name, labels)
    return plot_panels(panels, path, name=name, seeds=len(results.study.seeds), title=title)


def plot_panels(panels: Panels, path: str | Path, *, name: str = "lr", seeds: int = 1, title: str | None = None) -> Path:
    """Draw loss against a hyperparameter, with a star at each curve's optimum.

    Parameters
    ----------
    panels : mapping of str to sequence of (label, Curve)
        For each rule the curves, from the base to the largest size. A dashed line marks the base's optimum, at which a curve
        of one point was trained.
    path : str or Path
        Where to write; the suffix picks the format.
    name : str
        What the curves run over; ``"beta2"`` is drawn as 1 - β2, so that its log axis spreads the values near 1.
    seeds : int
        Seeds behind each point; with several, their range is shaded.
    title : str, optional

    Returns
    -------
    Path
        ``path``.

    Raises
    ------
    MupError
        If no curve has a point.
    """
    every = [curve for curves in panels.values() for _, curve in curves]
    losses = [loss for curve in every for loss in curve.mean]
    if not losses:
        raise MupError(
            "There is no figure to draw: no point was trained with every seed over the hyperparameter " + name + "."
        )
    label, from_one = _NAMES.get(name, (name, False))
    longest = max(
        len(line) for curves in panels.values() for text, _ in curves for line in (*text.split("\n"), "0.0000 at 0.000")
    )
    figure, row = style.new_panels(1, len(panels), longest, 3.6, sharey=True)
    log = min(losses) > 0
    low, high = min(losses), max(losses)
    ceiling = min(high, low * _CEILING) * 1.3 if log else high + 0.08 * (high - low or 1.0)
    values = sorted({x for curve in every for x in (*curve.x, *curve.failed)})
    for axes, (rule, curves) in zip(row[0], panels.items(), strict=True):
        if all(v > 0 for v in values) or from_one:
            axes.set_xscale("log", base=2 if name == "lr" else 10)
        if log:
            axes.set_yscale("log")
        axes.set_ylim(low / 1.15 if log else low - 0.08 * (high - low or 1.0), ceiling)
        base = curves[0][1].optimum if curves else None
        wanted = []
        for i, (text, curve) in enumerate(curves):
            colour = style.shade(style.colour_of(rule), 1.0 if len(curves) == 1 else 0.6 + 0.4 * i / (len(curves) - 1))
            _draw(axes, curve, colour, i, ceiling, from_one)
            if curve.x:
                wanted.append(
                    (_place(curve.x[-1], from_one), min(curve.mean[-1], ceiling), _named(text, curve, base), colour)
                )
        if base:
            axes.axvline(_place(base[0], from_one), color="#999999", linewidth=1, linestyle=(0, (4, 2)), zorder=0)
        _ticks(axes, values, from_one)
        axes.set_xlabel(label, fontsize=style.TEXT)
        axes.set_title(style.rule_name(rule), fontsize=style.TEXT + 1, loc="left")
        style.value_axis(axes)
        axes.tick_params(labelleft=True)
        style.label_lines(axes, wanted)
    row[0, 0].set_ylabel("validation loss", fontsize=style.TEXT)
    if title:
        figure.suptitle(title, x=0.01, y=0.99, ha="left", fontsize=style.TITLE)
    parts = ["★ lowest mean", "dashed: the base's best value"]
    parts += ["bar: 95 % interval of the fitted optimum"] if any(map(_has_bar, every)) else []
    parts += ["large marker: trained at that value only"] if any(len(curve.x) == 1 for curve in every) else []
    parts += [f"bands: range over {seeds} seeds"] if seeds > 1 else []
    parts += ["× a seed failed"] if any(curve.failed for curve in every) else []
    parts += ["▲ beyond the axis"] if any(loss > ceiling for loss in losses) else []
    style.key_line(figure, parts)
    return style.save(figure, path)


def _named(text: str, curve: Curve, base: tuple[float, float] | None) -> str:
    """A curve's name with its loss at the base's best value, where it has one."""
    at = curve.mean[curve.x.index(base[0])] if base and base[0] in curve.x else None
    return text if at is None else f"{text}\n{at:.3g} at {base[0]:.3g}"


def _draw(axes: Axes, curve: Curve, colour: Any, i: int, ceiling: float, from_one: bool) -> None:
    """One size: its band over seeds, its star, crosses where a seed failed, arrows where it leaves the axes."""
    xs = [_place(x, from_one) for x in curve.x]
    walked = len(xs) > 1  # a single point was carried here, and is no optimum
    inside = [min(y, ceiling) for y in curve.mean]
    if walked:
        axes.fill_between(xs, curve.low, [min(y, ceiling) for y in curve.high], color=colour, alpha=0.2, linewidth=0)
    elif xs:
        axes.vlines(xs[0], curve.low[0], min(curve.high[0], ceiling), color=colour, linewidth=2.4)
    style_of_line = {"linestyle": style.DASHES[i % len(style.DASHES)], "linewidth": 1.6, "color": colour}
    axes.plot(
        xs,
        inside,
        marker=style.MARKERS[i % 8],
        markersize=4 if walked else 9,
        zorder=3 + i if walked else 20,
        **style_of_line,
    )
    beyond = [x for x, y in zip(xs, curve.mean, strict=True) if y > ceiling]
    axes.plot(beyond, [ceiling] * len(beyond), marker="^", markersize=8, linestyle="", color=colour, clip_on=False, zorder=9)
    if walked:
        x, y = curve.optimum
        star = {"marker": "*", "markersize": 15, "color": colour, "markeredgecolor": "white", "zorder": 10 + i}
        axes.plot(_place(x, from_one), min(y, ceiling), linestyle="", **star)
        if _has_bar(curve):
            # At the height of the star, and never beyond what was searched.
            ends = [_place(min(max(v, curve.x[0]), curve.x[-1]), from_one) for v in (curve.fitted.low, curve.fitted.high)]
            bar = {"color": colour, "linewidth": 1.2, "zorder": 9, "marker": "|", "markersize": 7, "markeredgewidth": 1.2}
            axes.plot(ends, [min(y, ceiling)] * 2, **bar)
    if curve.failed:
        crosses = {"marker": "x", "markersize": 6, "markeredgewidth": 1.6, "color": colour, "linestyle": "", "zorder": 6}
        places = [_place(x, from_one) for x in curve.failed]
        axes.plot(places, [0.97 - 0.04 * i] * len(places), transform=axes.get_xaxis_transform(), **crosses)


def _has_bar(curve: Curve) -> bool:
    """Whether the fitted optimum has an interval to draw: several seeds, and not a bound."""
    return len(curve.x) > 1 and curve.fitted is not None and curve.fitted.error is not None


def _place(value: float, from_one: bool) -> float:
    return 1 - value if from_one else value


def _ticks(axes: Axes, values: Sequence[float], from_one: bool) -> None:
    """Ticks at the values walked; distances from 1 run to the left, so that the values still grow to the right."""
    from matplotlib.ticker import FuncFormatter

    style.ticks_at(axes, [_place(v, from_one) for v in values])
    if from_one:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{1 - x:.4g}"))
        if not axes.xaxis_inverted():
            axes.invert_xaxis()
