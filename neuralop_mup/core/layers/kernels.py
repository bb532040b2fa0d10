"""Describe spectral convolutions: dense and separable kernels, and the factors of Tucker, CP and tensor-train kernels."""

from typing import Any

import torch
from neuralop.layers.legacy_spectral_convolution import SpectralConv as LegacySpectralConv
from neuralop.layers.spectral_convolution import SpectralConv
from tltorch.factorized_tensors.complex_factorized_tensors import ComplexHandler
from tltorch.factorized_tensors.factorized_tensors import CPTensor, DenseTensor, TTTensor, TuckerTensor
from torch import nn

from neuralop_mup.core.layers.registry import Alias, Copy, Description, Param, layer_type, normal, scaled_normal
from neuralop_mup.errors import MupError


def kernel(weight: nn.Module, prefix: str, axes: tuple[str, ...], sizes: tuple[int, ...], init: str) -> Description:
    """Return descriptions of the tensors of a dense or factorized kernel.

    A factorized kernel is a network of small linear maps from its inputs (channels, and one mode on each axis) to its output
    channels. Each factor sums over some indices (``in``, ``rank_in``) and produces others (``rank_out``, ``out``). One
    factor produces a rank index, and the next factor sums over it.

    Parameters
    ----------
    weight : torch.nn.Module
        The dense or factorized tensor. For an unknown type, the description is empty.
    prefix : str
        Prefix of the tensor's name in the layer, ending in a dot.
    axes : tuple of str
        Kinds of the kernel's dimensions.
    sizes : tuple of int
        Logical sizes of the dimensions, with active modes on mode axes.
    init : {"mean_fan", "fan_out"}
        Formula for neuralop's target standard deviation.
    """
    real = ("pair",) if isinstance(weight, ComplexHandler) else ()  # complex numbers stored as pairs

    def factor(kinds: tuple[str, ...], shape: tuple[int, ...], parts: tuple[str, ...], power: float) -> Param:
        sizes = (*shape, *(2,) * len(real))
        return Param("spectral", (*kinds, *real), init, parts, sizes, power, draw=normal)

    if isinstance(weight, DenseTensor):
        sizes = (*sizes, *(2,) * len(real))
        return {f"{prefix}tensor": Param("spectral", (*axes, *real), init, shape=sizes, draw=normal)}
    if not isinstance(weight, (TuckerTensor, CPTensor, TTTensor)):
        return {}
    names = tuple(f"{prefix}factors.{key}" for key in weight.factors.keys)
    is_out = [kind.startswith("out") for kind in axes]
    params = {}
    if isinstance(weight, TTTensor):
        root, last, ranks = is_out.index(True), len(axes) - 1, tuple(map(int, weight.rank))
        for i, (name, kind, size) in enumerate(zip(names, axes, sizes, strict=True)):
            # Starting from both ends, which have outer rank 1, the factors of the tensor train map towards the factor with
            # the output channels.
            left = "fixed" if i == 0 else "rank_in" if i <= root else "rank_out"
            right = "fixed" if i == last else "rank_in" if i >= root else "rank_out"
            params[name] = factor((left, kind, right), (ranks[i], size, ranks[i + 1]), names, 1.0)
        return params
    if isinstance(weight, TuckerTensor):
        parts, ranks = (f"{prefix}core", *names), tuple(map(int, weight.rank))
        params[parts[0]] = factor(tuple("rank_out" if out else "rank_in" for out in is_out), ranks, parts, 0.5)
    else:
        parts, ranks = names, (int(weight.rank),) * len(axes)
        # Each rank-one term has a weight, which is initially 1, or the pair (1, 0) with root mean square 1/√2.
        params[f"{prefix}weights"] = Param(
            "spectral",
            ("rank_out", *real),
            lambda shape: 0.5**0.5 if real else 1.0,
            draw=lambda tensor, std: (torch.view_as_complex(tensor) if real else tensor).fill_(1),
        )
    # A factor (size, rank) maps channels or a mode to the rank index. The factor of the output maps the rank index to
    # channels.
    for name, kind, out, shape in zip(names, axes, is_out, zip(sizes, ranks, strict=True), strict=True):
        params[name] = factor((kind, "rank_in" if out else "rank_out"), shape, parts, 0.5)
    return params


def convolution_params(
    weights: dict[str, nn.Module],
    lead: tuple[int, ...],
    channels: tuple[int, ...],
    modes: tuple[tuple[str, ...], tuple[int, ...]],
    bias: tuple[str, ...],
) -> Description:
    """Describe dense (lead, in, out, modes) or separable (lead, channels, modes) kernels, and a bias with their std."""
    separable = len(channels) == 1
    init = "fan_out" if separable else "mean_fan"
    mode_kinds, mode_sizes = modes
    axes = (
        *("fixed",) * len(lead),
        *(("out",) if separable else ("in", "out")),
        *mode_kinds,
    )
    params: dict[str, Param | Alias | Copy] = {}
    for prefix, weight in weights.items():
        params.update(kernel(weight, prefix, axes, (*lead, *channels, *mode_sizes), init))
    prefix, one = next(iter(weights.items()))
    whole = tuple(name for name in params if name.startswith(prefix) and not name.endswith(".weights"))
    if whole:
        params["bias"] = Param("vector", bias, init, init_of=whole, draw=scaled_normal)
    return params


def channels_of(layer: Any) -> tuple[int, ...]:
    return (layer.out_channels,) if layer.separable else (layer.in_channels, layer.out_channels)


@layer_type(SpectralConv)
def spectral_conv(layer: SpectralConv) -> Description:
    """Describe a complex kernel (in, out, modes…) and a bias (out, 1, …). Real data halves the last mode axis."""
    if isinstance(layer.max_n_modes, int) or any(n > m for n, m in zip(layer.n_modes, layer.max_n_modes, strict=True)):
        raise MupError(
            f"n_modes must not exceed max_n_modes={layer.max_n_modes} on any axis, got n_modes={layer.n_modes}. neuralop "
            "would slice an empty kernel. Increase max_n_modes or reduce n_modes."
        )
    active = tuple(int(n) for n in layer.n_modes)
    kinds = (*("modes",) * (len(active) - 1), "modes" if layer.complex_data else "modes_half")
    bias = ("out", *("fixed",) * len(active))
    return convolution_params({"weight.": layer.weight}, (), channels_of(layer), (kinds, active), bias)


@layer_type(LegacySpectralConv)
def legacy_spectral_conv(layer: LegacySpectralConv) -> Description:
    """Describe one kernel (in, out, K…), stored as real numbers, per quadrant and layer, or one joint tensor."""
    modes = (("modes_single",) * layer.order, tuple(layer.half_n_modes))
    bias = ("fixed", "out", *("fixed",) * layer.order)
    if isinstance(layer.weight, nn.ModuleList):
        return convolution_params(
            {f"weight.{i}.": weight for i, weight in enumerate(layer.weight)}, (), channels_of(layer), modes, bias
        )
    n_kernels = layer.n_weights_per_layer * layer.n_layers
    return convolution_params({"weight.": layer.weight}, (n_kernels,), channels_of(layer), modes, bias)
