"""Describe layers that neuralop only provides if torch_harmonics is installed."""

from neuralop.layers.discrete_continuous_convolution import DiscreteContinuousConv
from neuralop.layers.spherical_convolution import SphericalConv

from neuralop_mup.core.layers.kernels import channels_of, convolution_params
from neuralop_mup.core.layers.registry import Description, Param, layer_type


@layer_type(SphericalConv)
def spherical_conv(layer: SphericalConv) -> Description:
    """Describe a kernel (in, out, degrees), stored as real numbers. All orders of a degree share one entry."""
    stored = tuple(layer.weight.shape)[len(channels_of(layer)) :]
    active = tuple(min(n, m) for n, m in zip(layer.n_modes, stored, strict=False))
    modes = (("modes_single",) * len(active), active)
    return convolution_params({"weight.": layer.weight}, (), channels_of(layer), modes, ("out", *("fixed",) * layer.order))


@layer_type(DiscreteContinuousConv)
def discrete_continuous(layer: DiscreteContinuousConv) -> Description:
    """Describe a weight (out, in / groups, basis functions) with std √(groups / in), and a zero bias."""
    if type(layer).__name__.endswith("Transpose2d"):
        return {}  # its weight has a different layout, and no neuralop model uses it
    # With one channel per group, the layer does not sum over channels.
    per_channel = layer.groups > 1 and layer.groupsize == 1
    role, axis_in = ("vector", "fixed") if per_channel else ("hidden", "in")
    return {
        "weight": Param(role, ("out", axis_in, "fixed"), lambda shape: shape[1] ** -0.5),
        "bias": Param("vector", ("out",)),
    }
