"""Losses for physics-informed training, called as neuralop calls its own: ``loss(y_pred, **sample)``.

They need fields in physical units in training too, which :class:`PhysicalDataProcessor` gives.
"""

from neuralop_mup.losses.equations import DarcyEqnLoss
from neuralop_mup.losses.processor import PhysicalDataProcessor, sine_mollifier

__all__ = ["DarcyEqnLoss", "PhysicalDataProcessor", "sine_mollifier"]
