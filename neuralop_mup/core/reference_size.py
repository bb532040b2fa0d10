"""The size at which default learning rates are meant, for models that were tuned nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from neuralop_mup.core.base_shapes import constructor_arguments
from neuralop_mup.errors import MupError

__all__ = ["MODES", "WIDTH", "WIDTHS", "in_words", "reference_base"]

WIDTH = 32
MODES = 16
# What models call their width and their modes: neuralop's (GINO's begin with fno_), then PhysicsNeMo's.
WIDTHS = ("hidden_channels", "fno_hidden_channels", "latent_channels", "embed_dim")
_MODES = ("n_modes", "fno_n_modes", "max_n_modes", "fno_max_n_modes", "num_fno_modes")


def reference_base(model: nn.Module) -> dict[str, Any]:
    """Constructor overrides that bring a model to the reference size: 32 channels, and n_modes 16 on each axis.

    Raises
    ------
    MupError
        If the model keeps no constructor arguments, or none that say how wide it is.
    """
    stored = constructor_arguments(model)
    name = type(model).__name__
    if stored is None:
        raise MupError(
            f"{name} keeps no constructor arguments, so it cannot be built at the reference size ({WIDTH} channels, "
            f"n_modes {MODES} on each axis): write it down, base=lambda: {name}(…), with these and all else as the model's."
        )
    overrides: dict[str, Any] = {key: WIDTH for key in WIDTHS if stored.get(key) is not None}
    if not overrides:
        raise MupError(
            f"None of the constructor arguments of {name} says how wide it is (known are {', '.join(WIDTHS)}), so it has "
            f"no reference size: name a base, such as base={{'your_width': {WIDTH}}}."
        )
    for key in _MODES:
        if (own := stored.get(key)) is not None:
            overrides[key] = type(own)([MODES] * len(own)) if isinstance(own, (list, tuple)) else MODES
    return overrides


def in_words(overrides: Mapping[str, Any], kernel_init: str) -> str:
    """What was taken, for the plan's text."""
    sizes = ", ".join(f"{key} = {value}" for key, value in overrides.items())
    kernels = "kernels start at a tenth of neuralop's" if kernel_init == "small" else "kernels start as neuralop draws them"
    return f"the reference size: {sizes}; {kernels}"
