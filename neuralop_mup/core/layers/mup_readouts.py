"""Readouts of microsoft/mup, which divide their input by the width over its value at base.

Their effective weight is w/r. With init × r^(1/2) and the learning rate × 1 (Adam) it follows the rule for readouts: init ×
r^(-1/2), lr × 1/r (Yang & Hu et al., arXiv:2203.03466, Table 8).
"""

from mup import MuReadout

from neuralop_mup.core.layers.registry import Description, Param, layer_type


@layer_type(MuReadout)
def readout(layer: MuReadout) -> Description:
    """Weight (out, in), drawn as by a linear layer; the bias is that of a linear layer."""
    return {"weight": Param("hidden", ("out", "in"), "fan_in", divided=True)}
