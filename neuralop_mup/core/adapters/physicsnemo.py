"""PhysicsNeMo's FNO and AFNO, by the names of their classes: the package is never imported here.

Read from nvidia-physicsnemo 2.2, ``physicsnemo/nn/module/{spectral,fno,fully_connected,afno}_layers.py`` and
``physicsnemo/models/{fno,afno,mlp}``.
"""

from __future__ import annotations

from typing import Any

from neuralop_mup.core import draws
from neuralop_mup.core.layers import Description, Param, layer_type

AFNO_STD = 0.02  # of every matrix of an AFNO, whatever its size


@layer_type(*(f"physicsnemo.SpectralConv{d}d" for d in (1, 2, 3, 4)))
def spectral_conv(layer: Any) -> Description:
    """A real-stored kernel (in, out, K…, 2) for each quadrant of modes, drawn from U[0, 1/(in·out))."""
    modes = ("modes_single",) * len(layer.weights1.shape[2:-1])
    kernel = Param("spectral", ("in", "out", *modes, "pair"), "positive", draw=draws.positive)
    return {name: kernel for name, _ in layer.named_parameters(recurse=False)}


def _glorot(prefix: str, n_spatial: int, frozen: bool = False) -> Description:
    """Weight (out, in, 1…) from Glorot's U(±√(6/(in+out))), bias zero; the layer for 2D alone freezes it there."""
    return {
        f"{prefix}.weight": Param("hidden", ("out", "in", *("fixed",) * n_spatial), "mean_fan"),
        f"{prefix}.bias": Param("vector", ("out",), frozen=frozen),
    }


@layer_type("physicsnemo.FCLayer")
def fully_connected_layer(layer: Any) -> Description:
    return _glorot("linear", 0)


@layer_type("physicsnemo.Conv1dFCLayer", "physicsnemo.Conv2dFCLayer", "physicsnemo.Conv3dFCLayer")
def pointwise_layer(layer: Any) -> Description:
    n_spatial = layer.conv.weight.ndim - 2
    return _glorot("conv", n_spatial, frozen=n_spatial == 2)


@layer_type("physicsnemo.ConvNdFCLayer")
def pointwise_layer_of_any_dimension(layer: Any) -> Description:
    return _glorot("conv.conv", 1)


def _constant_std(shape: tuple[int, ...]) -> float:
    return AFNO_STD


@layer_type("physicsnemo.AFNO2DLayer")
def afno_layer(layer: Any) -> Description:
    """Two layers of matrices in Fourier space, which all modes share, so that no mode rule applies.

    The first axis has the real and the imaginary part, the second ``num_blocks`` independent blocks of channels.
    """
    matrix = Param("spectral", ("pair", "fixed", "in", "out"), _constant_std, draw=draws.scaled_normal)
    bias = Param("vector", ("fixed", "fixed", "out"), _constant_std, draw=draws.scaled_normal)
    return {"w1": matrix, "b1": bias, "w2": matrix, "b2": bias}


@layer_type("physicsnemo.AFNO")
def afno(model: Any) -> Description:
    """A vision transformer whose attention is the layer above; linear layers are drawn at its own constant std."""
    drawn: dict[str, Any] = {"init": _constant_std, "draw": draws.truncated_normal}
    params = {"pos_embed": Param("vector", ("fixed", "fixed", "out"), **drawn)}
    matrix, bias = Param("hidden", ("out", "in"), **drawn), Param("vector", ("out",), draw=draws.zeros)
    for layer in (f"blocks.{i}.mlp.fc{j}" for i in range(len(model.blocks)) for j in (1, 2)):
        params |= {f"{layer}.weight": matrix, f"{layer}.bias": bias}
    return {**params, "head.weight": matrix}
