"""Describe PhysicsNeMo's FNO and AFNO, which are registered by class name because this package never imports PhysicsNeMo.

Sources: nvidia-physicsnemo 2.2, ``physicsnemo/nn/module/{spectral,fno,fully_connected,afno}_layers.py`` and
``physicsnemo/models/{fno,afno,mlp}``.
"""

from typing import Any

import torch

from neuralop_mup.core.layers.registry import Description, Param, layer_type, scaled_normal

AFNO_STD = 0.02  # standard deviation of every matrix of an AFNO, independent of its size


@layer_type(*(f"physicsnemo.SpectralConv{d}d" for d in (1, 2, 3, 4)))
def spectral_conv(layer: Any) -> Description:
    """Describe a kernel (in, out, K…, 2) of pairs for each quadrant of modes, drawn from U[0, 1/(in·out))."""
    axes = ("in", "out", *("modes_single",) * (layer.weights1.ndim - 3), "pair")
    # The root mean square of U[0, a) is a / √3.
    kernel = Param("spectral", axes, "positive", draw=lambda p, std: p.uniform_().mul_(3**0.5 * std))
    return {name: kernel for name, _ in layer.named_parameters(recurse=False)}


@layer_type(*(f"physicsnemo.{name}FCLayer" for name in ("", "Conv1d", "Conv2d", "Conv3d", "ConvNd")))
def pointwise_layer(layer: Any) -> Description:
    """Describe a weight (out, in, 1…) from U(±√(6/(in+out))) (Glorot), and a zero bias that only the 2D layer freezes."""
    name = "linear" if hasattr(layer, "linear") else "conv.conv" if hasattr(layer.conv, "conv") else "conv"
    n_spatial = layer.get_parameter(f"{name}.weight").ndim - 2
    return {
        f"{name}.weight": Param("hidden", ("out", "in", *("fixed",) * n_spatial), "mean_fan"),
        f"{name}.bias": Param("vector", ("out",), frozen=n_spatial == 2 and name == "conv"),
    }


@layer_type("physicsnemo.AFNO2DLayer")
def afno_layer(layer: Any) -> Description:
    """Describe two layers of matrices in Fourier space. All modes share the matrices, so no mode rule applies.

    The first axis holds the real and imaginary parts. The second axis holds ``num_blocks`` independent blocks of channels.
    """
    matrix = Param("spectral", ("pair", "fixed", "in", "out"), lambda shape: AFNO_STD, draw=scaled_normal)
    bias = Param("vector", ("fixed", "fixed", "out"), lambda shape: AFNO_STD, draw=scaled_normal)
    return {"w1": matrix, "b1": bias, "w2": matrix, "b2": bias}


@layer_type("physicsnemo.AFNO")
def afno(model: Any) -> Description:
    """Describe a vision transformer with AFNO layers as attention. Its linear layers have a constant std."""
    drawn: dict[str, Any] = {"init": lambda shape: AFNO_STD, "draw": lambda p, std: torch.nn.init.trunc_normal_(p, std=std)}
    params = {"pos_embed": Param("vector", ("fixed", "fixed", "out"), **drawn)}
    matrix, bias = Param("hidden", ("out", "in"), **drawn), Param("vector", ("out",), draw=lambda p, std: p.zero_())
    for layer in (f"blocks.{i}.mlp.fc{j}" for i in range(len(model.blocks)) for j in (1, 2)):
        params |= {f"{layer}.weight": matrix, f"{layer}.bias": bias}
    return {**params, "head.weight": matrix}
