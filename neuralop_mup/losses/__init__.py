"""Losses for physics-informed training, called like neuralop's: ``loss(y_pred, **sample)``.

They need fields in physical units, also in training. :class:`PhysicalDataProcessor` provides them.
"""

from neuralop_mup.losses.equations import DarcyEqnLoss
from neuralop_mup.losses.processor import PhysicalDataProcessor, sine_mollifier

__all__ = ["DarcyEqnLoss", "PhysicalDataProcessor", "sine_mollifier"]
