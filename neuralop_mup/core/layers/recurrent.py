"""The recurrent neural operator, which neuralop has since the release after 2.0."""

import torch
from neuralop.layers.rno_block import RNOBlock, RNOCell

from neuralop_mup.core.layers.registry import BESIDE, RECURRENT, Description, Param, layer_type, normal

# Gates are computed beside each other, of the input and of the state: an update gate and a reset gate, then the candidate,
# which reads the reset state. So two Fourier layers of the six follow each other.
BESIDE[RNOCell] = ("input_gates.0", "input_gates.1", "input_gates.2", "hidden_gates.0")
RECURRENT.add(RNOCell)


def _number(stored: torch.Tensor) -> Param:
    """One normal number; a complex one is drawn as two, so that its modulus is √2."""
    modulus = 2**0.5 if stored.is_complex() else 1.0
    return Param("vector", (), lambda shape: modulus, draw=normal)


@layer_type(RNOCell)
def recurrent_cell(layer: RNOCell) -> Description:
    """A number added to all channels of each gate."""
    return {f"biases.{i}": _number(bias) for i, bias in enumerate(layer.biases)}


@layer_type(RNOBlock)
def recurrent_block(layer: RNOBlock) -> Description:
    """A number that the hidden state starts with in all channels."""
    return {"bias_h": _number(layer.bias_h)}
