"""Losses for physics-informed training, with the call signature of neuralop's losses.

Call them as ``loss(y_pred, **sample)``. They require fields in physical units, also during training, which
:class:`PhysicalDataProcessor` provides.
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
