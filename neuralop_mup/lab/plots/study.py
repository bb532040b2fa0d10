"""Loss against a hyperparameter: one panel a rule, one curve a size. The figure of every study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralop_mup.errors import MupError
from neuralop_mup.lab.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Axis label of each hyperparameter.
_NAMES = {"lr": "learning rate", "batch_size": "batch size (samples)", "beta2": "Adam β2"}
#: Beyond this multiple of the best loss a point is pinned to the top of the axes: a diverged run may reach 1e6.
_CEILING = 100.0


@dataclass(frozen=True)
class Curve:
    """Loss against a hyperparameter, summarised over seeds.

    Attributes
    ----------
    x, mean, low, high : list of float
        Values with every seed complete, and the mean, lowest and highest loss over seeds there. A mean over the seeds that
        happened to survive would flatter an unstable value.
    failed : list of float
        Values at which some seed failed.
    fitted : object, optional
        The best value between points, with ``low``, ``high`` and ``error``.
    """

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    failed: list[float]
    fitted: Any = field(default=None, compare=False)

    @classmethod
    def of(cls, losses: Mapping[float, Sequence[float | None]], fitted: Any = None) -> Curve:
        """The curve of losses by value, a seed an entry and None where it failed."""
        whole = {float(x): list(own) for x, own in sorted(losses.items()) if None not in own}
        failed = [float(x) for x in sorted(losses) if float(x) not in whole]
        return cls(list(whole), *([of(own) for own in whole.values()] for of in (fmean, min, max)), failed, fitted)

    @property
    def optimum(self) -> tuple[float, float] | None:
        """The value of lowest mean loss and that loss; None when every run failed."""
        if not self.x:
            return None
        best = min(range(len(self.x)), key=self.mean.__getitem__)
        return self.x[best], self.mean[best]


Panels = Mapping[str | None, Sequence[tuple[str, Curve]]]


def plot_panels(
    panels: Panels,
    path: str | Path,
    *,
    name: str = "lr",
    loss: str = "validation loss",
    seeds: int = 1,
    title: str | None = None,
) -> Path:
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
    loss : str
        What the losses are called.
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
        raise MupError(f"There is no figure to draw: no point was trained with every seed over the hyperparameter {name}.")
    longest = max(
        len(line) for curves in panels.values() for text, _ in curves for line in (*text.split("\n"), "0.0000 at 0.000")
    )
    # One under another, so that a page may show them at half their size.
    figure, grid = style.new_panels(len(panels), 1, longest, 3.4 * len(panels) + 0.3)
    log = min(losses) > 0
    low, high = min(losses), max(losses)
    ceiling = min(high, low * _CEILING) * 1.3 if log else high + 0.08 * (high - low or 1.0)
    values = sorted({x for curve in every for x in (*curve.x, *curve.failed)})
    for axes, (rule, curves) in zip(grid[:, 0], panels.items(), strict=True):
        if name == "beta2":  # by its distance from 1, so that values near 1 are apart
            axes.set_xscale("function", functions=(lambda x: -np.log10(np.maximum(1 - x, 1e-12)), lambda y: 1 - 10**-y))
        elif all(v > 0 for v in values):
            axes.set_xscale("log", base=2 if name == "lr" else 10)
        if log:
            axes.set_yscale("log")
        axes.set_ylim(low / 1.15 if log else low - 0.08 * (high - low or 1.0), ceiling)
        base = curves[0][1].optimum if curves else None
        wanted = []
        for i, (text, curve) in enumerate(curves):
            colour = style.shade(style.colour_of(rule), 1.0 if len(curves) == 1 else 0.6 + 0.4 * i / (len(curves) - 1))
            _draw(axes, curve, colour, i, ceiling)
            if curve.x:
                wanted.append((curve.x[-1], min(curve.mean[-1], ceiling), _named(text, curve, base), colour))
        if base:
            axes.axvline(base[0], color="#999999", linewidth=1, linestyle=(0, (4, 2)), zorder=0)
        style.ticks_at(axes, values, digits=4 if name == "beta2" else 3)
        style.finish_panel(axes, style.rule_name(rule), _NAMES.get(name, name), wanted)
        axes.set_ylabel(loss, fontsize=style.TEXT)
    marks = {
        "★ lowest mean": True,
        "dashed: the base's best value": True,
        "bar: 95 % interval of the fitted optimum": any(map(_has_bar, every)),
        "large marker: trained at that value only": any(len(curve.x) == 1 for curve in every),
        f"bands: range over {seeds} seeds": seeds > 1,
        "× a seed failed": any(curve.failed for curve in every),
        "▲ beyond the axis": any(loss > ceiling for loss in losses),
    }
    return style.finish(figure, path, title, [text for text, is_drawn in marks.items() if is_drawn])


def _named(text: str, curve: Curve, base: tuple[float, float] | None) -> str:
    """A curve's name with its loss at the base's best value, where it has one."""
    at = curve.mean[curve.x.index(base[0])] if base and base[0] in curve.x else None
    return text if at is None else f"{text}\n{at:.3g} at {base[0]:.3g}"


def _draw(axes: Axes, curve: Curve, colour: Any, i: int, ceiling: float) -> None:
    """One size: its band over seeds, its star, crosses where a seed failed, arrows where it leaves the axes."""
    xs, walked = curve.x, len(curve.x) > 1  # a single point was carried here, and is no optimum
    inside = [min(y, ceiling) for y in curve.mean]
    if walked:
        axes.fill_between(xs, curve.low, [min(y, ceiling) for y in curve.high], color=colour, alpha=0.2, linewidth=0)
    elif xs:
        axes.vlines(xs[0], curve.low[0], min(curve.high[0], ceiling), color=colour, linewidth=2.4)
    axes.plot(
        xs,
        inside,
        marker=style.MARKERS[i % 8],
        markersize=4 if walked else 9,
        zorder=3 + i if walked else 20,
        linestyle=style.DASHES[i % len(style.DASHES)],
        linewidth=1.6,
        color=colour,
    )
    beyond = [x for x, y in zip(xs, curve.mean, strict=True) if y > ceiling]
    axes.plot(beyond, [ceiling] * len(beyond), marker="^", markersize=8, linestyle="", color=colour, clip_on=False, zorder=9)
    if walked:
        x, y = curve.optimum
        axes.plot(x, min(y, ceiling), "*", markersize=15, color=colour, markeredgecolor="white", zorder=10 + i)
        if _has_bar(curve):
            # At the height of the star, and never beyond what was searched.
            ends = [min(max(v, xs[0]), xs[-1]) for v in (curve.fitted.low, curve.fitted.high)]
            at = [min(y, ceiling)] * 2
            axes.plot(ends, at, "|-", color=colour, linewidth=1.2, markersize=7, markeredgewidth=1.2, zorder=9)
    if curve.failed:
        at = [0.97 - 0.04 * i] * len(curve.failed)
        up = axes.get_xaxis_transform()  # heights are shares of the axis
        axes.plot(curve.failed, at, "x", transform=up, markersize=6, markeredgewidth=1.6, color=colour, zorder=6)


def _has_bar(curve: Curve) -> bool:
    """Whether the fitted optimum has an interval to draw: several seeds, and not a bound."""
    return len(curve.x) > 1 and curve.fitted is not None and curve.fitted.error is not None
