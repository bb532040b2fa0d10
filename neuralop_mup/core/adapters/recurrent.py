"""The recurrent neural operator, which neuralop has since the release after 2.0."""

from __future__ import annotations

import torch
from neuralop.layers.rno_block import RNOBlock, RNOCell
from neuralop.models import RNO

from neuralop_mup.core import draws
from neuralop_mup.core.registry import HIDDEN, Claims, Param, Place, adapter_of


def _number(stored: torch.Tensor) -> Param:
    """One normal number; a complex one is drawn as two, so that its modulus is √2."""
    modulus = 2**0.5 if stored.is_complex() else 1.0
    return Param("vector", (), lambda shape: modulus, draw=draws.normal)


@adapter_of(RNOCell)
def recurrent_cell(layer: RNOCell, place: Place) -> Claims:
    """Fourier blocks of the input and of the hidden state for each gate, and a number added to all channels of the gate."""
    biases = {f"biases.{i}": _number(bias) for i, bias in enumerate(layer.biases)}
    return {"input_gates": place, "hidden_gates": place, **biases}


@adapter_of(RNOBlock)
def recurrent_block(layer: RNOBlock, place: Place) -> Claims:
    """A cell, and a number that the hidden state starts with in all channels."""
    return {"cell": place, "bias_h": _number(layer.bias_h)}


@adapter_of(RNO, whole=True)
def rno(model: RNO, place: Place) -> Claims:
    """Lifting and projection have hidden channels in proportion to width."""
    return {"lifting": Place(False, True), "layers": HIDDEN, "projection": Place(True, False)}
