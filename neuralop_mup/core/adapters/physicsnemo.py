"""PhysicsNeMo's FNO and AFNO, by the names of their classes: the package is never imported here.

Its names for sizes are ``latent_channels``, ``num_fno_modes`` and ``num_fno_layers`` (FNO), ``embed_dim`` (AFNO). What is
not claimed (weight normalization, adaptive activations, ModAFNO) is refused by name. Read from nvidia-physicsnemo 2.2,
``physicsnemo/nn/module/{spectral,fno,fully_connected,afno}_layers.py`` and ``physicsnemo/models/{fno,afno,mlp}``.
"""

from __future__ import annotations

from typing import Any

from neuralop_mup.core import draws
from neuralop_mup.core.adapters.models import LIFT, PROJECT
from neuralop_mup.core.registry import FIXED, HIDDEN, Claims, Param, Place, adapter_of

AFNO_STD = 0.02  # of every matrix of an AFNO, whatever its size


@adapter_of(*(f"physicsnemo.SpectralConv{d}d" for d in (1, 2, 3, 4)))
def spectral_conv(layer: Any, place: Place) -> Claims:
    """A real-stored kernel (in, out, K…, 2) for each quadrant of modes, drawn from U[0, 1/(in·out))."""
    modes = ("modes_single",) * len(layer.weights1.shape[2:-1])
    kernel = Param("spectral", (place.axis_in, place.axis_out, *modes, "pair"), "positive", draw=draws.positive)
    return {name: kernel for name, _ in layer.named_parameters(recurse=False)}


def _glorot(prefix: str, n_spatial: int, place: Place, frozen: bool = False) -> Claims:
    """Weight (out, in, 1…) from Glorot's U(±√(6/(in+out))), bias zero; the layer for 2D alone freezes it there."""
    return {
        f"{prefix}.weight": Param(place.matrix_role, (place.axis_out, place.axis_in, *("fixed",) * n_spatial), "mean_fan"),
        f"{prefix}.bias": Param("vector", (place.axis_out,), frozen=frozen),
    }


@adapter_of("physicsnemo.FCLayer")
def fully_connected_layer(layer: Any, place: Place) -> Claims:
    return _glorot("linear", 0, place)


@adapter_of("physicsnemo.Conv1dFCLayer", "physicsnemo.Conv2dFCLayer", "physicsnemo.Conv3dFCLayer")
def pointwise_layer(layer: Any, place: Place) -> Claims:
    n_spatial = layer.conv.weight.ndim - 2
    return _glorot("conv", n_spatial, place, frozen=n_spatial == 2)


@adapter_of("physicsnemo.ConvNdFCLayer")
def pointwise_layer_of_any_dimension(layer: Any, place: Place) -> Claims:
    return _glorot("conv.conv", 1, place)


@adapter_of("physicsnemo.ConvNdKernel1Layer")
def pointwise_convolution(layer: Any, place: Place) -> Claims:
    return {"conv": place}


@adapter_of(*(f"physicsnemo.FNO{d}DEncoder" for d in (1, 2, 3, 4)))
def encoder(model: Any, place: Place) -> Claims:
    """Lifting through half the width, then Fourier layers with their pointwise skips."""
    return {"lift_network.0": LIFT, "lift_network.2": HIDDEN, "spconv_layers": HIDDEN, "conv_layers": HIDDEN}


@adapter_of("physicsnemo.FNO", whole=True)
def fno(model: Any, place: Place) -> Claims:
    """``decoder_layer_size`` is a number of its own, so the decoder's first layer, out of the width, is the readout."""
    first, *rest = [*(f"decoder_net.layers.{i}" for i in range(len(model.decoder_net.layers))), "decoder_net.final_layer"]
    return {"spec_encoder": LIFT, first: PROJECT, **dict.fromkeys(rest, FIXED)}


def _constant_std(shape: tuple[int, ...]) -> float:
    return AFNO_STD


@adapter_of("physicsnemo.AFNO2DLayer")
def afno_layer(layer: Any, place: Place) -> Claims:
    """Two layers of matrices in Fourier space, which all modes share, so that no mode rule applies.

    The first axis has the real and the imaginary part, the second ``num_blocks`` independent blocks of channels.
    """
    matrix = Param("spectral", ("pair", "fixed", place.axis_in, place.axis_out), _constant_std, draw=draws.scaled_normal)
    bias = Param("vector", ("fixed", "fixed", place.axis_out), _constant_std, draw=draws.scaled_normal)
    return {"w1": matrix, "b1": bias, "w2": matrix, "b2": bias}


@adapter_of("physicsnemo.AFNO", whole=True)
def afno(model: Any, place: Place) -> Claims:
    """A vision transformer whose attention is the layer above; linear layers are drawn at its own constant std."""
    drawn: dict[str, Any] = {"init": _constant_std, "draw": draws.truncated_normal}
    claims: dict[str, Param | Place] = {
        "pos_embed": Param("vector", ("fixed", "fixed", "out"), **drawn),
        "patch_embed.proj": LIFT,
    }
    for i in range(len(model.blocks)):
        claims |= dict.fromkeys((f"blocks.{i}.norm1", f"blocks.{i}.filter", f"blocks.{i}.norm2"), HIDDEN)
        for layer in ("fc1", "fc2"):
            claims[f"blocks.{i}.mlp.{layer}.weight"] = Param("hidden", ("out", "in"), **drawn)
            claims[f"blocks.{i}.mlp.{layer}.bias"] = Param("vector", ("out",), draw=draws.zeros)
    return {**claims, "head.weight": Param("readout", ("out_fixed", "in"), **drawn)}
