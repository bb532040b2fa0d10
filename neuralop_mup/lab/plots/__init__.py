"""Figures of what they are given: nothing here trains, reads a folder or changes matplotlib's global state.

The object interface (``Figure`` and ``FigureCanvasAgg``) is used instead of ``pyplot``, so drawing works without a
display, in a worker, and never changes what the user's own script has open.
"""

from neuralop_mup.lab.plots.curves import Curve, plot_curves
from neuralop_mup.lab.plots.data import plot_fields, plot_mode_energy
from neuralop_mup.lab.plots.ways import plot_ways

__all__ = ["Curve", "plot_curves", "plot_fields", "plot_mode_energy", "plot_ways"]
