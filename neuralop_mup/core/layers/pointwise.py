"""Linear layers, convolutions, gates and norms."""

from neuralop.layers.complex import ComplexValued
from neuralop.layers.differential_conv import FiniteDifferenceConvolution
from neuralop.layers.skip_connections import SoftGating
from torch import nn

from neuralop_mup.core.layers.registry import Alias, Copy, Description, Param, layer_type
from neuralop_mup.torch_private import RUNNING_NORMS


@layer_type(nn.Linear)
def linear(layer: nn.Linear) -> Description:
    """Describe weight (out, in) and bias (out,); torch draws both from U(±1/√fan_in)."""
    return {
        "weight": Param("hidden", ("out", "in"), "fan_in"),
        "bias": Param("vector", ("out",), "fan_in", init_of="weight"),
    }


@layer_type(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> Description:
    """Describe weight (out, in / groups, *kernel) and bias (out,); torch draws both from U(±1/√fan_in)."""
    # A depthwise convolution does not sum over channels, so its initialisation does not depend on width.
    by_channel = layer.groups > 1 and layer.groups == layer.in_channels
    role, axis_in = ("vector", "fixed") if by_channel else ("hidden", "in")
    return {
        "weight": Param(role, ("out", axis_in, *("fixed",) * len(layer.kernel_size)), "fan_in"),
        "bias": Param("vector", ("out",), "fan_in", init_of="weight"),
    }


@layer_type(FiniteDifferenceConvolution)
def finite_difference(layer: FiniteDifferenceConvolution) -> Description:
    """Describe the convolution's weight (out, in / groups, *stencil), which has two names."""
    return {"weight": convolution(layer.conv)["weight"], "conv.weight": Alias("weight")}


@layer_type(ComplexValued)
def complex_valued(layer: ComplexValued) -> Description:
    """Describe two copies of a real layer, for real and imaginary part."""
    return {"fi": Copy("fr")}


@layer_type(SoftGating)
def soft_gating(layer: SoftGating) -> Description:
    """Describe a gate (1, channels, 1, …), initially ones."""
    axes = ("fixed", "out", *("fixed",) * (layer.weight.ndim - 2))
    return dict.fromkeys(("weight", "bias"), Param("vector", axes, draw=lambda tensor, std: tensor.fill_(1)))


@layer_type(nn.GroupNorm, nn.LayerNorm, *RUNNING_NORMS)
def norm(layer: nn.Module) -> Description:
    """Describe affine weight and bias (channels,), initially ones and zeros."""
    if isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) != 1:
        return {}
    return {"weight": Param("vector", ("out",)), "bias": Param("vector", ("out",))}
