"""Fourier modes as models and their convolutions keep them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from neuralop_mup.errors import MupError


def fourier_blocks(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Modules that hand ``n_modes`` on to the convolutions in their ``convs``: FNOBlocks and its kin."""
    for name, module in model.named_modules():
        if hasattr(module, "n_modes") and isinstance(getattr(module, "convs", None), nn.ModuleList):
            yield name or type(model).__name__, module


def check_modes(model: nn.Module) -> None:
    """Refuse a model with an axis of no modes."""
    for name, module in fourier_blocks(model):
        if any(n < 1 for n in module.n_modes):
            raise MupError(
                f"n_modes = {tuple(module.n_modes)} of {name!r} must be at least 1 on every axis (neuralop builds a kernel "
                f"without numbers otherwise): give {tuple(max(1, n) for n in module.n_modes)}."
            )


def active_modes(conv: Any) -> tuple[int, ...]:
    """What a convolution says of its active modes, cheap enough to ask at every step."""
    return (*conv.n_modes, *getattr(conv, "half_n_modes", ()))


def check_grid(model: nn.Module, grid: tuple[int, ...]) -> None:
    """Refuse more Fourier modes than a grid resolves (neuralop silently truncates them).

    Parameters
    ----------
    model : torch.nn.Module
        A model with Fourier blocks.
    grid : tuple of int
        Points on each axis of the data, after what is no axis of the grid (RNO's sequences have channels in third place).

    Raises
    ------
    MupError
        If some ``n_modes`` exceeds the number of points on its axis.
    """
    for _, module in fourier_blocks(model):
        axes = tuple(grid)[-len(module.n_modes) :]
        if any(n > g for n, g in zip(module.n_modes, axes, strict=False)):
            raise MupError(
                f"n_modes = {tuple(module.n_modes)} is beyond the grid of {axes} points, which resolves at most "
                "that many modes: lower n_modes or use a finer grid."
            )
