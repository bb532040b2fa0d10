"""Layers that neuralop has only where torch_harmonics is installed."""

from neuralop.layers.discrete_continuous_convolution import DiscreteContinuousConv
from neuralop.layers.spherical_convolution import SphericalConv

from neuralop_mup.core.layers.kernels import channels_of, convolution_params
from neuralop_mup.core.layers.registry import Description, Param, layer_type


@layer_type(SphericalConv)
def spherical_conv(layer: SphericalConv) -> Description:
    """Real-stored kernel (in, out, degrees): one number for all orders of a degree, so only degrees count."""
    stored = tuple(layer.weight.shape)[len(channels_of(layer)) :]
    active = tuple(min(n, m) for n, m in zip(layer.n_modes, stored, strict=False))
    modes = (("modes_single",) * len(active), active)
    return convolution_params({"weight.": layer.weight}, (), channels_of(layer), modes, ("out", *("fixed",) * layer.order))


@layer_type(DiscreteContinuousConv)
def discrete_continuous(layer: DiscreteContinuousConv) -> Description:
    """Weight (out, in / groups, basis functions), std √(groups / in); bias zeros."""
    if type(layer).__name__.endswith("Transpose2d"):
        return {}  # its weight is laid out the other way, and no neuralop model uses it
    # With one channel a group, nothing is summed over channels.
    per_channel = layer.groups > 1 and layer.groupsize == 1
    role, axis_in = ("vector", "fixed") if per_channel else ("hidden", "in")
    return {
        "weight": Param(role, ("out", axis_in, "fixed"), lambda shape: shape[1] ** -0.5),
        "bias": Param("vector", ("out",)),
    }
