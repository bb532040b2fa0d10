"""Linear layers, convolutions, gates and norms."""

from __future__ import annotations

from neuralop.layers.channel_mlp import ChannelMLP, LinearChannelMLP
from neuralop.layers.complex import ComplexValued
from neuralop.layers.differential_conv import FiniteDifferenceConvolution
from neuralop.layers.normalization_layers import AdaIN, BatchNorm
from neuralop.layers.skip_connections import Flattened1dConv, SoftGating
from torch import nn

from neuralop_mup.core import draws
from neuralop_mup.core.registry import FIXED, Alias, Claims, Copy, Param, Place, adapter_of
from neuralop_mup.torch_private import RUNNING_NORMS


@adapter_of(nn.Linear)
def linear(layer: nn.Linear, place: Place) -> Claims:
    """Weight (out, in), bias (out,); torch draws both from U(±1/√fan_in)."""
    return {
        "weight": Param(place.matrix_role, (place.axis_out, place.axis_in), "fan_in"),
        "bias": Param("vector", (place.axis_out,), "fan_in", init_of="weight"),
    }


@adapter_of(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, place: Place) -> Claims:
    """Weight (out, in / groups, *kernel), bias (out,); torch draws both from U(±1/√fan_in)."""
    # With one map a channel, nothing is summed over channels, and the default init does not know the width.
    by_channel = layer.groups > 1 and layer.groups == layer.in_channels
    role, axis_in = ("vector", "fixed") if by_channel else (place.matrix_role, place.axis_in)
    return {
        "weight": Param(role, (place.axis_out, axis_in, *("fixed",) * len(layer.kernel_size)), "fan_in"),
        "bias": Param("vector", (place.axis_out,), "fan_in", init_of="weight"),
    }


@adapter_of(FiniteDifferenceConvolution)
def finite_difference(layer: FiniteDifferenceConvolution, place: Place) -> Claims:
    """The convolution's weight (out, in / groups, *stencil), held under two names."""
    return {"weight": convolution(layer.conv, place)["weight"], "conv.weight": Alias("weight")}


def _chain(n_layers: int, place: Place, grows_inside: bool) -> Claims:
    """``fcs``: the first reads the layer's inputs, the last writes its outputs."""
    grows = [place.grows_in, *[grows_inside] * (n_layers - 1), place.grows_out]
    return {f"fcs.{i}": Place(grows[i], grows[i + 1]) for i in range(n_layers)}


@adapter_of(ChannelMLP)
def channel_mlp(layer: ChannelMLP, place: Place) -> Claims:
    """Everything between the first and the last layer grows with width."""
    return _chain(len(layer.fcs), place, grows_inside=True)


@adapter_of(LinearChannelMLP)
def linear_channel_mlp(layer: LinearChannelMLP, place: Place) -> Claims:
    """Its hidden widths are given one by one (kernels of graph layers), so they stay as they are."""
    return _chain(len(layer.fcs), place, grows_inside=False)


@adapter_of(ComplexValued)
def complex_valued(layer: ComplexValued, place: Place) -> Claims:
    """Two copies of a real layer, which see the real and the imaginary part."""
    return {"fr": place, "fi": Copy(place.grows_in, place.grows_out, place.beside, of="fr")}


@adapter_of(Flattened1dConv)
def linear_skip(layer: Flattened1dConv, place: Place) -> Claims:
    return {"conv": place}


@adapter_of(SoftGating)
def soft_gating(layer: SoftGating, place: Place) -> Claims:
    """Gate (1, channels, 1, …), initially ones."""
    axes = ("fixed", place.axis_out, *("fixed",) * (layer.weight.ndim - 2))
    return dict.fromkeys(("weight", "bias"), Param("vector", axes, draw=draws.ones))


@adapter_of(nn.GroupNorm, nn.LayerNorm, *RUNNING_NORMS)
def norm(layer: nn.Module, place: Place) -> Claims:
    """Affine weight and bias (channels,), initially ones and zeros."""
    if isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) != 1:
        return {}
    return {"weight": Param("vector", (place.axis_out,)), "bias": Param("vector", (place.axis_out,))}


@adapter_of(BatchNorm)
def batch_norm(layer: BatchNorm, place: Place) -> Claims:
    return {"norm": place}


@adapter_of(AdaIN)
def adaptive_instance_norm(layer: AdaIN, place: Place) -> Claims:
    """The default MLP from an embedding to scale and shift: embedding → 512 → 2 channels, of fixed hidden width."""
    kinds = [type(child) for child in layer.mlp] if isinstance(layer.mlp, nn.Sequential) else []
    if kinds != [nn.Linear, nn.GELU, nn.Linear]:
        return {}
    return {"mlp.0": FIXED, "mlp.2": Place(False, place.grows_out)}
