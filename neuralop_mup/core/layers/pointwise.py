"""Describe linear layers, convolutions, gates and norms."""

from neuralop.layers.complex import ComplexValued
from neuralop.layers.differential_conv import FiniteDifferenceConvolution
from neuralop.layers.skip_connections import SoftGating
from torch import nn

from neuralop_mup.core.layers.registry import Alias, Copy, Description, Param, layer_type
from neuralop_mup.torch_private import RUNNING_NORMS


@layer_type(nn.Linear)
def linear(layer: nn.Linear) -> Description:
    """Describe a weight (out, in) and a bias (out,), which torch draws from U(±1/√fan_in)."""
    return {
        "weight": Param("hidden", ("out", "in"), "fan_in"),
        "bias": Param("vector", ("out",), "fan_in", init_of="weight"),
    }


@layer_type(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> Description:
    """Describe a weight (out, in / groups, *kernel) and a bias (out,), which torch draws from U(±1/√fan_in)."""
    # A depthwise convolution does not sum over channels, so its initialisation does not depend on width.
    by_channel = layer.groups > 1 and layer.groups == layer.in_channels
    role, axis_in = ("vector", "fixed") if by_channel else ("hidden", "in")
    return {
        "weight": Param(role, ("out", axis_in, *("fixed",) * len(layer.kernel_size)), "fan_in"),
        "bias": Param("vector", ("out",), "fan_in", init_of="weight"),
    }


@layer_type(FiniteDifferenceConvolution)
def finite_difference(layer: FiniteDifferenceConvolution) -> Description:
    """Describe the weight (out, in / groups, *stencil) of the convolution, which has two names."""
    return {"weight": convolution(layer.conv)["weight"], "conv.weight": Alias("weight")}


@layer_type(ComplexValued)
def complex_valued(layer: ComplexValued) -> Description:
    """Describe two copies of a real layer, one for the real part and one for the imaginary part."""
    return {"fi": Copy("fr")}


@layer_type(SoftGating)
def soft_gating(layer: SoftGating) -> Description:
    """Describe a gate (1, channels, 1, …) that is initialised with ones."""
    axes = ("fixed", "out", *("fixed",) * (layer.weight.ndim - 2))
    return dict.fromkeys(("weight", "bias"), Param("vector", axes, draw=lambda tensor, std: tensor.fill_(1)))


@layer_type(nn.GroupNorm, nn.LayerNorm, *RUNNING_NORMS)
def norm(layer: nn.Module) -> Description:
    """Describe an affine weight and bias (channels,) that are initialised with ones and zeros."""
    if isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) != 1:
        return {}
    return {"weight": Param("vector", ("out",)), "bias": Param("vector", ("out",))}
