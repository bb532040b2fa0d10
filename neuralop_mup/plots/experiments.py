"""Loss against a hyperparameter, one curve a size and one panel a rule: the paper's figures 1 to 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neuralop_mup.errors import MupError
from neuralop_mup.plots.canvas import MARKERS, new_figure, save, ticks_at, value_axis
from neuralop_mup.plots.curves import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Axis label of each hyperparameter, and whether it is drawn as its distance from 1.
_NAMES = {"lr": ("learning rate", False), "batch_size": ("batch size", False), "beta2": ("Adam β2", True)}
#: Beyond this multiple of the best loss a point is pinned to the top of the axes: a diverged run may reach 1e6.
_CEILING = 30.0


def plot_experiment(
    panels: Mapping[str, Sequence[tuple[str, Curve]]],
    path: str | Path,
    *,
    hyperparameter: str = "lr",
    seeds: int = 1,
    title: str | None = None,
) -> Path:
    """Draw loss against a hyperparameter, with a star at each curve's optimum.

    Parameters
    ----------
    panels : mapping of str to sequence of (label, Curve)
        For each rule the curves, from the base to the largest size. A grey line marks the base's optimum.
    path : str or Path
        Where to write; the suffix picks the format.
    hyperparameter : str
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
        raise MupError("There is no figure to draw: no run of the experiment finished with every seed.")
    name, from_one = _NAMES.get(hyperparameter, (hyperparameter, False))
    figure, row = new_figure(3.5 * len(panels) + 1.5, 3.9, 1, len(panels), squeeze=False, sharey=True)
    ceiling = min(max(losses), min(losses) * _CEILING) * 1.25
    values = sorted({x for curve in every for x in (*curve.lr, *curve.failed)})
    for axes, (rule, curves) in zip(row[0], panels.items(), strict=True):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(min(losses) / 1.15, ceiling)
        base = curves[0][1].optimum
        if base:
            axes.axvline(_place(base[0], from_one), color="#999999", linewidth=1, linestyle=(0, (4, 2)), zorder=0)
        for i, (label, curve) in enumerate(curves):
            _draw(axes, curve, label, i, len(curves), ceiling, from_one)
        _ticks(axes, values, from_one)
        axes.set_xlabel(name)
        axes.set_title("SP (standard)" if rule == "standard" else f"μP {rule}", fontsize=10)
        value_axis(axes)
    row[0, 0].set_ylabel("validation loss (relative L2)")
    width = 3.5 * len(panels) + 1.5
    figure.legend(
        *row[0, 0].get_legend_handles_labels(), loc="center right", frameon=False, fontsize=9, bbox_to_anchor=(0.995, 0.55)
    )
    key = ["★ lowest mean", "dashed: the base's best"]
    key += [f"bands: range over {seeds} seeds"] if seeds > 1 else []
    key += ["× a run failed"] if any(curve.failed for curve in every) else []
    figure.text(0.75 / width, 0.025, "   ·   ".join(key), fontsize=8, color="#555555", ha="left")
    if title:
        figure.suptitle(title, x=0.75 / width, ha="left", fontsize=11)
    longest = max(len(label) for curves in panels.values() for label, _ in curves)
    right = 1 - (0.55 + 0.085 * longest) / width
    figure.subplots_adjust(left=0.75 / width, right=right, top=0.82, bottom=0.2, wspace=0.12)
    return save(figure, path)


def _draw(axes: Axes, curve: Curve, label: str, i: int, n: int, ceiling: float, from_one: bool) -> None:
    """One size: darker the larger it is, with its band over seeds, its star and crosses where a seed failed."""
    from matplotlib import colormaps

    colour = colormaps["viridis_r"](0.12 + 0.85 * i / max(1, n - 1))
    xs = [_place(x, from_one) for x in curve.lr]
    walked = len(xs) > 1  # a single point was carried here, and is no optimum
    if walked:
        axes.fill_between(xs, curve.low, [min(y, ceiling) for y in curve.high], color=colour, alpha=0.18, linewidth=0)
    axes.plot(
        xs,
        [min(y, ceiling) for y in curve.mean],
        color=colour,
        marker=MARKERS[i % len(MARKERS)],
        markersize=4 if walked else 8,
        linewidth=1.5,
        label=label,
    )
    if walked:
        x, y = curve.optimum
        star = {"marker": "*", "markersize": 15, "color": colour, "markeredgecolor": "white", "zorder": 5 + i}
        axes.plot(_place(x, from_one), min(y, ceiling), linestyle="", **star)
    if curve.failed:
        axes.plot(
            [_place(x, from_one) for x in curve.failed],
            [0.97 - 0.035 * i] * len(curve.failed),
            marker="x",
            markersize=6,
            markeredgewidth=1.6,
            color=colour,
            linestyle="",
            transform=axes.get_xaxis_transform(),
            zorder=6,
        )


def _place(value: float, from_one: bool) -> float:
    return 1 - value if from_one else value


def _ticks(axes: Axes, values: Sequence[float], from_one: bool) -> None:
    """Ticks at the values walked; distances from 1 run to the left, so that the values still grow to the right."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if not from_one:
        ticks_at(axes, values)
        axes.tick_params(axis="x", labelsize=8 if len(values) < 7 else 6.5)
        return
    axes.xaxis.set_major_locator(FixedLocator([1 - v for v in values]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{1 - x:.4g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    if not axes.xaxis_inverted():
        axes.invert_xaxis()
