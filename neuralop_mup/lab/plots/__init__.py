"""Figures of what they are given: nothing here trains, reads a folder or changes matplotlib's global state.

The object interface (``Figure`` and ``FigureCanvasAgg``) is used instead of ``pyplot``, so drawing works without a
display, in a worker, and never changes what the user's own script has open.
"""

from neuralop_mup.lab.plots.coord_check import plot_coord_check
from neuralop_mup.lab.plots.fields import plot_fields
from neuralop_mup.lab.plots.mode_energy import plot_mode_energy
from neuralop_mup.lab.plots.study import Curve, plot_panels
from neuralop_mup.lab.plots.ways import plot_ways

__all__ = [
    "Curve",
    "plot_coord_check",
    "plot_fields",
    "plot_mode_energy",
    "plot_panels",
    "plot_ways",
]
