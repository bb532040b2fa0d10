"""Losses for physics-informed training, called as neuralop calls its own: ``loss(y_pred, **sample)``.

They need fields in physical units in training too, which :class:`PhysicalDataProcessor` gives.
"""

from neuralop_mup.losses.burgers import PeriodicBurgersEqnLoss
from neuralop_mup.losses.darcy import DarcyEqnLoss
from neuralop_mup.losses.initial import InitialConditionLoss
from neuralop_mup.losses.navier_stokes import NavierStokesEqnLoss
from neuralop_mup.losses.processor import PhysicalDataProcessor, sine_mollifier

__all__ = [
    "DarcyEqnLoss",
    "InitialConditionLoss",
    "NavierStokesEqnLoss",
    "PeriodicBurgersEqnLoss",
    "PhysicalDataProcessor",
    "sine_mollifier",
]
