"""The recurrent neural operator, which neuralop has since the release after 2.0."""

from __future__ import annotations

from neuralop.layers.rno_block import RNOBlock, RNOCell
from neuralop.models import RNO

from neuralop_mup.core.registry import HIDDEN, Claims, Param, Place, adapter_of


@adapter_of(RNOCell)
def recurrent_cell(layer: RNOCell, place: Place) -> Claims:
    """Fourier blocks of the input and of the hidden state for each gate, and a number added to all channels of the gate."""
    biases = {f"biases.{i}": Param("vector", ()) for i in range(len(layer.biases))}
    return {"input_gates": place, "hidden_gates": place, **biases}


@adapter_of(RNOBlock)
def recurrent_block(layer: RNOBlock, place: Place) -> Claims:
    """A cell, and a number that the hidden state starts with in all channels."""
    return {"cell": place, "bias_h": Param("vector", ())}


@adapter_of(RNO, whole=True)
def rno(model: RNO, place: Place) -> Claims:
    """Lifting and projection have hidden channels in proportion to width."""
    return {"lifting": Place(False, True), "layers": HIDDEN, "projection": Place(True, False)}
