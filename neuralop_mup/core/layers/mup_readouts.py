"""Readouts of microsoft/mup, which divide their input by the width over its value at base.

Their effective weight is w/r. With init × r^(1/2) and the learning rate × 1 (Adam) it follows the rule for readouts: init ×
r^(-1/2), lr × 1/r (Yang & Hu et al., arXiv:2203.03466, Table 8).
"""

from mup import MuReadout, MuSharedReadout

from neuralop_mup.core.layers.registry import Alias, Description, Param, layer_type


@layer_type(MuReadout)
def readout(layer: MuReadout) -> Description:
    """Weight (out, in), drawn as by a linear layer; the bias is that of a linear layer."""
    return {"weight": Param("hidden", ("out", "in"), "fan_in", divided=True)}


@layer_type(MuSharedReadout)
def shared_readout(layer: MuSharedReadout) -> Description:
    """The weight belongs to an embedding; torch draws the bias from U(±1/√fan_in)."""
    return {"weight": Alias(None), "bias": Param("vector", ("out",), lambda shape: (3 * layer.in_features) ** -0.5)}
