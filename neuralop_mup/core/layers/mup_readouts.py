"""Describe the readouts of microsoft/mup, which divide their input by the ratio of width to base width.

With this ratio r, their effective weight is w/r. If the init of w is multiplied by r^(1/2) and its Adam learning rate is
unchanged, the effective weight follows the rule for readouts: init × r^(-1/2), lr × 1/r (Yang & Hu et al., arXiv:2203.03466,
Table 8).
"""

from mup import MuReadout, MuSharedReadout

from neuralop_mup.core.layers.registry import Alias, Description, Param, layer_type


@layer_type(MuReadout)
def readout(layer: MuReadout) -> Description:
    """Describe a weight (out, in) that is initialised as in a linear layer. The bias is described as in nn.Linear."""
    return {"weight": Param("hidden", ("out", "in"), "fan_in", divided=True)}


@layer_type(MuSharedReadout)
def shared_readout(layer: MuSharedReadout) -> Description:
    """Describe a weight that belongs to an embedding, and a bias that torch draws from U(±1/√fan_in)."""
    return {"weight": Alias(None), "bias": Param("vector", ("out",), lambda shape: (3 * layer.in_features) ** -0.5)}
