"""Memory that is used again."""

from __future__ import annotations

from math import prod

import torch

__all__ = ["Scratch"]


class Scratch:
    """Memory for temporaries, by name, used again and again: to get it anew takes a CPU half as long as the products."""

    def __init__(self) -> None:
        self._held: dict[tuple, torch.Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """A tensor of any content, in place of the last one of this name."""
        key, numel = (name, like.dtype, like.device), prod(shape)
        if key not in self._held or self._held[key].numel() < numel:
            self._held[key] = torch.empty(numel, dtype=like.dtype, device=like.device)
        return self._held[key][:numel].view(shape)
