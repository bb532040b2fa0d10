"""Losses for physics-informed training, with the call signature of neuralop's losses.

Call them as ``loss(y_pred, **sample)``. They need fields in physical units, also during training.
:class:`PhysicalDataProcessor` provides such fields.
"""

from neuralop_mup.losses.equations import DarcyEqnLoss
from neuralop_mup.losses.processor import PhysicalDataProcessor, sine_mollifier
from neuralop_mup.losses.space_time import InitialConditionLoss, NavierStokesEqnLoss, PeriodicBurgersEqnLoss

__all__ = [
    "DarcyEqnLoss",
    "InitialConditionLoss",
    "NavierStokesEqnLoss",
    "PeriodicBurgersEqnLoss",
    "PhysicalDataProcessor",
    "sine_mollifier",
]
