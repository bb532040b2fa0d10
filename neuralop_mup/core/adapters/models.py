"""Blocks and models: where in a model each of its layers stands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuralop.layers.coda_layer import CODALayer
from neuralop.layers.fno_block import FNOBlocks
from neuralop.layers.gno_block import GNOBlock
from neuralop.models import CODANO, FNO, FNOGNO, GINO, UNO, UQNO

from neuralop_mup.core import draws
from neuralop_mup.core.registry import FIXED, HIDDEN, Claims, Copy, Param, Place, adapter_of

LIFT, PROJECT = Place(False, True), Place(True, False)


@adapter_of(FNOBlocks)
def fourier_blocks(layer: FNOBlocks, place: Place) -> Claims:
    """Maps from the block's inputs to its outputs, and what follows them at the outputs' width."""
    after = Place(place.grows_out, place.grows_out)
    return {
        **dict.fromkeys(("convs", "fno_skips", "channel_mlp_skips"), place),
        **dict.fromkeys(("channel_mlp", "norm"), after),
    }


@adapter_of(GNOBlock)
def graph_block(layer: GNOBlock, place: Place) -> Claims:
    """A kernel MLP from positions (and, if nonlinear, the features) to one weight for each output channel."""
    sees_features = layer.integral_transform.transform_type in ("nonlinear", "nonlinear_kernelonly")
    return {"integral_transform.channel_mlp": Place(place.grows_in and sees_features, place.grows_out)}


@adapter_of(CODALayer)
def codomain_attention(layer: CODALayer, place: Place) -> Claims:
    blocks = ("Value", "multi_head_proj", "mixer")
    norms = ("norm1", "attention_normalizer", "mixer_in_normalizer", "mixer_out_normalizer")
    beside = dict.fromkeys(("Key", "Query"), replace(place, beside=True))
    return {**dict.fromkeys((*blocks, *norms), place), **beside}


@adapter_of(FNO, whole=True)
def fno(model: FNO, place: Place) -> Claims:
    """FNO, TFNO and SFNO: lifting and projection have hidden channels in proportion to width."""
    return {"lifting": LIFT, "fno_blocks": HIDDEN, "projection": PROJECT}


@adapter_of(UNO, whole=True)
def uno(model: UNO, place: Place) -> Claims:
    """``lifting_channels`` and ``projection_channels`` are numbers of their own (256 by default), not in proportion."""
    return {
        **_fixed_hidden_channels(),
        "fno_blocks": HIDDEN,
        "horizontal_skips": HIDDEN,
    }


def _fixed_hidden_channels() -> dict[str, Place]:
    """Two-layer lifting and projection whose hidden channels stay: the layer out of the width is the readout."""
    return {"lifting.fcs.0": FIXED, "lifting.fcs.1": LIFT, "projection.fcs.0": PROJECT, "projection.fcs.1": FIXED}


@adapter_of(CODANO, whole=True)
def codano(model: CODANO, place: Place) -> Claims:
    """Width is the codimension of each variable; class token and positional encodings are Fourier coefficients."""
    modes = ("modes",) * model.n_dim
    drawn: dict[str, Any] = {"init": lambda shape: 1.0, "draw": draws.normal}
    claims: dict[str, Param | Place] = {
        **_fixed_hidden_channels(),
        "attention_layers": HIDDEN,
        "skip_map_module": HIDDEN,
        "cls_token": Param("vector", ("fixed", "out", *modes), **drawn),
    }
    for key in getattr(model, "positional_encoding", {}):
        claims[f"positional_encoding.{key}"] = Param("vector", ("fixed", "fixed", *modes), **drawn)
    return claims


@adapter_of(GINO, whole=True)
def gino(model: GINO, place: Place) -> Claims:
    return {"gno_in": FIXED, "lifting": LIFT, "fno_blocks": HIDDEN, "gno_out": HIDDEN, "projection": PROJECT}


@adapter_of(FNOGNO, whole=True)
def fnogno(model: FNOGNO, place: Place) -> Claims:
    return {"lifting": LIFT, "fno_blocks": HIDDEN, "gno": HIDDEN, "projection": PROJECT}


@adapter_of(UQNO, whole=True)
def uqno(model: UQNO, place: Place) -> Claims:
    """Two whole models, each from data to data; the second is a copy of the first unless one is given."""
    return {"base_model": replace(FIXED, beside=True), "residual_model": Copy(False, False, of="base_model")}
