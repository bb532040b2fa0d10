"""Describe torch layers that neuralop's models do not use, but that larger models around them may contain."""

from math import prod

import torch
from torch import nn

from neuralop_mup.core.layers.registry import Description, Param, layer_type


@layer_type(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def transposed_convolution(layer: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d) -> Description:
    """Describe a weight (in, out / groups, *kernel) and a bias (out,) from U(±1/√(out / groups · |kernel|))."""
    points, groups = prod(layer.kernel_size), layer.groups
    by_channel = groups > 1 and groups == layer.in_channels
    role, axes = ("vector", ("out", "fixed")) if by_channel else ("hidden", ("in", "out"))
    return {
        "weight": Param(role, (*axes, *("fixed",) * len(layer.kernel_size)), lambda shape: (3 * prod(shape[1:])) ** -0.5),
        "bias": Param("vector", ("out",), lambda shape: (3 * shape[0] / groups * points) ** -0.5),
    }


@layer_type(nn.RNNBase, nn.RNNCellBase)
def recurrent(layer: nn.RNNBase | nn.RNNCellBase) -> Description:
    """Describe weights (gates · hidden, in) and (gates · hidden, hidden), and biases, all from U(±1/√hidden)."""
    own = dict(layer.named_parameters(recurse=False))
    gates = next(p.shape[0] for name, p in own.items() if name.startswith("weight_hh")) // layer.hidden_size

    def std(shape: tuple[int, ...]) -> float:
        return (3 * shape[0] / gates) ** -0.5

    projection = Param("hidden", ("out", "in"), lambda shape: (3 * shape[1]) ** -0.5)  # (proj_size, hidden)
    matrix, vector = Param("hidden", ("out", "in"), std), Param("vector", ("out",), std)
    return {
        name: vector if name.startswith("bias") else projection if name.startswith("weight_hr") else matrix for name in own
    }


@layer_type(nn.MultiheadAttention)
def attention(layer: nn.MultiheadAttention) -> Description:
    """Describe weights (3 · embed_dim, embed_dim) or (embed_dim, in) from U(±√(6 / (rows + columns))), and zero biases.

    The factor 1/√(embed_dim / num_heads) of the logits is not changed.
    """
    weights = [name for name, _ in layer.named_parameters(recurse=False) if name.endswith("_proj_weight")]
    matrix = Param("hidden", ("out", "in"), lambda shape: (2 / (shape[0] + shape[1])) ** 0.5, draw=_uniform)
    bias = Param("vector", ("out",), draw=lambda tensor, std: tensor.zero_())
    return {**dict.fromkeys(weights, matrix), **dict.fromkeys(("in_proj_bias", "out_proj.bias"), bias)}


def _uniform(tensor: torch.Tensor, std: float) -> None:
    tensor.uniform_(-(3**0.5) * std, 3**0.5 * std)
