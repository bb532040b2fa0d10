"""Describe parameters that neuralop's models own directly, parallel layers, and renamed constructor arguments."""

from typing import Any

from neuralop.layers.coda_layer import CODALayer
from neuralop.models import CODANO, UNO, UQNO

from neuralop_mup.core.arguments import KEPT
from neuralop_mup.core.layers.registry import BESIDE, Copy, Description, Param, layer_type, normal

# Keys and queries are computed in parallel with the values.
BESIDE[CODALayer] = ("Key", "Query")


@layer_type(UQNO)
def uqno(model: UQNO) -> Description:
    """Describe the second model as a copy of the first, which the constructor creates by default."""
    return {"residual_model": Copy("base_model")}


@layer_type(CODANO)
def codano(model: CODANO) -> Description:
    """Describe the class token and the positional encodings, which are standard normal Fourier coefficients."""
    modes = ("modes",) * model.n_dim
    drawn: dict[str, Any] = {"init": lambda shape: 1.0, "draw": normal}
    encodings = [f"positional_encoding.{key}" for key in getattr(model, "positional_encoding", {})]
    return {
        "cls_token": Param("vector", ("fixed", "out", *modes), **drawn),
        **dict.fromkeys(encodings, Param("vector", ("fixed", "fixed", *modes), **drawn)),
    }


def uno(model: Any) -> dict[str, Any]:
    """Return those arguments of UNO that are stored in one-element tuples, in the first block or in the horizontal skip."""
    block, skips = model.fno_blocks[0], list(model.horizontal_skips.values())
    skip_types = {"Flattened1dConv": "linear", "SoftGating": "soft-gating", "Identity": "identity"}
    norm_types = {"GroupNorm": "group_norm", "InstanceNorm": "instance_norm", "BatchNorm": "batch_norm", "AdaIN": "ada_in"}
    return {
        "fno_skip": model.fno_skip[0],
        "channel_mlp_skip": model.channel_mlp_skip[0],
        "horizontal_skip": skip_types.get(type(skips[0]).__name__) if skips else "linear",
        "norm": norm_types.get(type(block.norm[0]).__name__) if block.norm else None,
        "channel_mlp_expansion": getattr(block, "channel_mlp_expansion", 0.5),
    }


def codano_arguments(model: Any) -> dict[str, Any]:
    """Return those arguments of CODANO that are stored under other names or, like the encoding's last modes, halved."""
    layer, modes = model.attention_layers[0], model.positional_encoding_modes
    lifting, projection = model.lifting or None, model.projection
    return {
        "lifting_channels": None if lifting is None else lifting.hidden_channels,
        "projection_channels": None if projection is None else projection.hidden_channels,
        "per_layer_scaling_factors": model.per_layer_scale_factors,
        "attention_scaling_factors": model.attention_scalings,
        "attention_token_dim": layer.token_codimension,
        "positional_encoding_dim": model.positional_encoding_dim or 8,
        "positional_encoding_modes": None if modes is None else [*modes[:-1], 2 * modes[-1]],
    }


KEPT.update({UNO: uno, CODANO: codano_arguments})
