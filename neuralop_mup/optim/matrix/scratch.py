"""Memory that is used again."""

from __future__ import annotations

from math import prod

import torch

__all__ = ["Scratch", "chunk_size", "piece_size"]

# Parameters are stacked until they have so many numbers (a complex one counts once): on a CPU few operators do not matter,
# elsewhere they fill the device.
_CHUNK = {"cpu": 2**17}
_CHUNK_ELSEWHERE = 2**24
# Real numbers that are worked on at a time: on a CPU temporaries stay in its cache then.
_PIECE = {"cpu": 2**19}


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


def chunk_size(device: torch.device) -> int:
    """Until how many numbers parameters are stacked."""
    return _CHUNK.get(device.type, _CHUNK_ELSEWHERE)


def piece_size(device: torch.device) -> int:
    """How many real numbers to work on at a time."""
    return _PIECE.get(device.type, _CHUNK_ELSEWHERE // 2)
