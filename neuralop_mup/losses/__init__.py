"""Losses for physics-informed training, with the call signature of neuralop's losses.

Call them as ``loss(y_pred, **sample)``. They need fields in physical units, also during training.
:class:`PhysicalDataProcessor` provides such fields.
"""

from neuralop_mup.losses.equations import DarcyEqnLoss
from neuralop_mup.losses.processor import PhysicalDataProcessor, sine_mollifier

__all__ = ["DarcyEqnLoss", "PhysicalDataProcessor", "sine_mollifier"]
