"""Layers and models that neuralop has only where torch_harmonics is installed."""

from __future__ import annotations

from neuralop.layers.discrete_continuous_convolution import DiscreteContinuousConv
from neuralop.layers.local_no_block import LocalNOBlocks
from neuralop.layers.spherical_convolution import SphericalConv
from neuralop.models import LocalNO

from neuralop_mup.core.adapters.kernels import channels_of, convolution_claims
from neuralop_mup.core.registry import HIDDEN, Claims, Param, Place, adapter_of


@adapter_of(SphericalConv)
def spherical_conv(layer: SphericalConv, place: Place) -> Claims:
    """Real-stored kernel (in, out, degrees): one number for all orders of a degree, so only degrees count."""
    stored = tuple(layer.weight.shape)[len(channels_of(layer)) :]
    active = tuple(min(n, m) for n, m in zip(layer.n_modes, stored, strict=False))
    modes = (("modes_single",) * len(active), active)
    bias = (place.axis_out, *("fixed",) * layer.order)
    return convolution_claims(place, {"weight.": layer.weight}, (), channels_of(layer), modes, bias)


@adapter_of(DiscreteContinuousConv)
def discrete_continuous(layer: DiscreteContinuousConv, place: Place) -> Claims:
    """Weight (out, in / groups, basis functions), std √(groups / in); bias zeros."""
    if type(layer).__name__.endswith("Transpose2d"):
        return {}  # its weight is laid out the other way, and no neuralop model uses it
    # With one channel a group, nothing is summed over channels.
    per_channel = layer.groups > 1 and layer.groupsize == 1
    axes = (place.axis_out, "fixed" if per_channel else place.axis_in, "fixed")
    return {
        "weight": Param("vector" if per_channel else place.matrix_role, axes, lambda shape: shape[1] ** -0.5),
        "bias": Param("vector", (place.axis_out,)),
    }


@adapter_of(LocalNOBlocks)
def local_blocks(layer: LocalNOBlocks, place: Place) -> Claims:
    """FNOBlocks with differential and local convolutions beside the spectral ones."""
    maps = ("convs", "local_no_skips", "differential", "local_convs", "channel_mlp_skips")
    return {
        **dict.fromkeys(maps, place),
        **dict.fromkeys(("mlp", "norm"), Place(place.grows_out, place.grows_out)),
    }


@adapter_of(LocalNO, whole=True)
def local_no(model: LocalNO, place: Place) -> Claims:
    return {"lifting": Place(False, True), "local_no_blocks": HIDDEN, "projection": Place(True, False)}
