"""Loss against a hyperparameter: the curve of the base, and what was trained with its best. The figure of every study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from neuralop_mup.errors import MupError
from neuralop_mup.lab.plots import style

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
    """

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    failed: list[float]

    @classmethod
    def of(cls, losses: Mapping[float, Sequence[float | None]]) -> Curve:
        """The curve of losses by value, a seed an entry and None where it failed."""
        whole = {float(x): list(own) for x, own in sorted(losses.items()) if None not in own}
        failed = [float(x) for x in sorted(losses) if float(x) not in whole]
        return cls(list(whole), *([of(own) for own in whole.values()] for of in (fmean, min, max)), failed)


def plot_curves(
    curves: Sequence[tuple[str, str | None, Curve]],
    path: str | Path,
    *,
    name: str = "lr",
    loss: str = "validation loss",
    title: str | None = None,
) -> Path:
    """Draw losses against a hyperparameter, with a star at the lowest one of a curve.

    Parameters
    ----------
    curves : sequence of (label, rule, Curve)
        The base, whose rule is None; then one of a single point for each rule under which the target was trained.
    path : str or Path
        Where to write; the suffix picks the format.
    name : str
        What the curves run over; ``"beta2"`` is drawn as 1 - β2, so that its log axis spreads the values near 1.
    loss : str
        What the losses are called.
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
    losses = [loss for _, _, curve in curves for loss in curve.mean]
    if not losses:
        raise MupError(f"There is no figure to draw: no point was trained with every seed over the hyperparameter {name}.")
    values = sorted({x for _, _, curve in curves for x in (*curve.x, *curve.failed)})
    low, high = min(min(curve.low, default=min(losses)) for _, _, curve in curves), max(losses)
    ceiling = min(high, _CEILING * low) * 1.15 if low > 0 else high + 0.08 * (high - low or 1.0)
    figure, axes = style.new_figure(7.0, 3.9, layout="constrained")
    if name == "beta2":
        axes.set_xscale("function", functions=(lambda x: -np.log10(np.maximum(1 - x, 1e-12)), lambda y: 1 - 10**-y))
    elif values[0] > 0:
        axes.set_xscale("log", base=2 if name == "lr" else 10)
    axes.set_yscale("log" if low > 0 else "linear")
    axes.set_ylim(low / 1.15 if low > 0 else low - 0.08 * (high - low or 1.0), ceiling)
    marks = ["★ lowest mean", "band, bar: range over seeds"]
    for i, (label, rule, curve) in enumerate(curves):
        colour, is_walk = style.GREY if rule is None else style.colour_of(rule, i), len(curve.x) > 1
        inside, top = ([min(y, ceiling) for y in own] for own in (curve.mean, curve.high))
        marker = {"marker": style.MARKERS[i % 8], "markersize": 4 if is_walk else 10, "linewidth": 1.6}
        marker |= {} if is_walk else {"fillstyle": "none", "markeredgewidth": 2.4}  # what is below it shows
        axes.plot(curve.x, inside, color=colour, zorder=10 + i, label=label, **marker)
        if is_walk:
            axes.fill_between(curve.x, curve.low, top, color=colour, alpha=0.2, linewidth=0)
            best = int(np.argmin(curve.mean))
            axes.plot(curve.x[best], inside[best], "*", markersize=15, color=colour, markeredgecolor="white", zorder=9)
        else:
            axes.vlines(curve.x, curve.low, top, color=colour, linewidth=2.4)
        if beyond := [x for x, y in zip(curve.x, curve.mean, strict=True) if y > ceiling]:
            axes.plot(beyond, [ceiling] * len(beyond), "^", markersize=8, color=colour, clip_on=False, zorder=9)
            marks.append("▲ beyond the axis")
        if curve.failed:  # at a height that is a share of the axis
            at, up = [0.97 - 0.04 * i] * len(curve.failed), axes.get_xaxis_transform()
            axes.plot(curve.failed, at, "x", transform=up, markersize=6, markeredgewidth=1.6, color=colour, zorder=6)
            marks.append("× a seed failed")
    style.ticks_at(axes, values, digits=4 if name == "beta2" else 3)
    style.value_axis(axes)
    axes.set_xlabel(_NAMES.get(name, name), fontsize=style.TEXT)
    axes.set_ylabel(loss, fontsize=style.TEXT)
    style.name_lines(axes)
    return style.finish(figure, path, title, list(dict.fromkeys(marks)))
