"""Describe the recurrent neural operator, which was added to neuralop after release 2.0."""

import torch
from neuralop.layers.rno_block import RNOBlock, RNOCell

from neuralop_mup.core.layers.registry import BESIDE, RECURRENT, Description, Param, layer_type, normal

# The update gate and the reset gate are parallel. The layers for the input and the state in each gate are also parallel. The
# candidate depends on the reset state, so only two of the six Fourier layers are successive.
BESIDE[RNOCell] = ("input_gates.0", "input_gates.1", "input_gates.2", "hidden_gates.0")
RECURRENT.add(RNOCell)


def _number(stored: torch.Tensor) -> Param:
    """Describe a single normal number. A complex number consists of two normal numbers, so its root mean square is √2."""
    modulus = 2**0.5 if stored.is_complex() else 1.0
    return Param("vector", (), lambda shape: modulus, draw=normal)


@layer_type(RNOCell)
def recurrent_cell(layer: RNOCell) -> Description:
    """Describe the biases, which are single numbers that each gate adds to all channels."""
    return {f"biases.{i}": _number(bias) for i, bias in enumerate(layer.biases)}


@layer_type(RNOBlock)
def recurrent_block(layer: RNOBlock) -> Description:
    """Describe the initial value of the hidden state, which is the same in all channels."""
    return {"bias_h": _number(layer.bias_h)}
