"""Of a data set: some samples, and the share of its energy that a number of modes leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neuralop_mup.lab.plots import style

_FLOOR = 1e-8  # of the energy: below it is single precision's rounding


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
    count = min(count, len(x))
    images = x[0, 0].ndim > 1
    shared = {"squeeze": False, "sharey": "none" if images else "row", "layout": "constrained"}
    figure, grid = style.new_figure(2.6 * count, 4.6, 2, count, **shared)
    for row, (name, values) in enumerate((("input", x), ("solution", y))):
        for column in range(count):
            axes, field = grid[row, column], np.asarray(values[column][0])
            while field.ndim > 2:
                field = field[..., -1]
            if images:
                image = axes.imshow(field.T, origin="lower", cmap="viridis")
                figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03).ax.tick_params(labelsize=7)
                axes.set(xticks=[], yticks=[])
            else:
                axes.plot([i / len(field) for i in range(len(field))], field, color=style.PALETTE[row], linewidth=1.4)
                axes.tick_params(labelsize=8)
                style.bare(axes)
        grid[row, 0].set_ylabel(name)
    return style.finish(figure, path, title)


def plot_mode_energy(
    inputs: Sequence[Sequence[float]],
    targets: Sequence[Sequence[float]],
    path: str | Path,
    *,
    enough: Sequence[int],
    share: float,
    title: str | None = None,
) -> Path:
    """Draw, a panel an axis, how much of the energy ``n_modes`` leave out.

    Parameters
    ----------
    inputs, targets : sequence of sequence of float
        For each axis the share that ``n_modes`` = 0, 1, … keep; even ones are drawn.
    path : str or Path
        Where to write; the suffix picks the format.
    enough : sequence of int
        ``n_modes`` of each axis that keep ``share`` of the targets' energy.
    share : float
    title : str, optional
    """
    size = {"squeeze": False, "sharey": True, "layout": "constrained"}
    figure, (row,) = style.new_figure(3.6 * len(targets) + 1.2, 3.4, 1, len(targets), **size)
    for axis, axes in enumerate(row):
        for i, (name, shares) in enumerate((("inputs", inputs[axis]), ("targets", targets[axis]))):
            left = [max(1 - kept, _FLOOR) for kept in shares[::2]]
            last = max(next((k for k, value in enumerate(left) if value <= _FLOOR), len(left)) - 1, 0)
            look = {"color": style.PALETTE[i], "marker": style.MARKERS[i], "markersize": 3, "label": name}
            axes.plot(range(0, 2 * last + 2, 2), left[: last + 1], **look)
        axes.axhline(1 - share, color=style.GREY, linewidth=1, linestyle=(0, (4, 2)), zorder=0)
        axes.axvline(enough[axis], color=style.GREY, linewidth=1, linestyle=(0, (1, 1.2)), zorder=0)
        axes.set(title=f"axis {axis}: n_modes = {enough[axis]} is enough", xlabel="n_modes")
        axes.set(yscale="log", ylim=(_FLOOR / 2, 1.5))
        style.value_axis(axes)
    row[0].set_ylabel("share of energy left out")
    style.name_lines(row[-1])
    parts = [f"dashed: {100 * (1 - share):.2g} % left out", "dotted: the n_modes from which the targets are below it"]
    return style.finish(figure, path, title, parts)
