"""Samples of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from neuralop_mup.lab.plots.style import PALETTE, bare, new_figure, save


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
    figure, grid = new_figure(2.6 * count, 4.6, 2, count, squeeze=False, sharey="none" if images else "row")
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
                axes.plot([i / len(field) for i in range(len(field))], field, color=PALETTE[row], linewidth=1.4)
                axes.tick_params(labelsize=8)
                bare(axes)
        grid[row, 0].set_ylabel(name)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.tight_layout()
    return save(figure, path)
