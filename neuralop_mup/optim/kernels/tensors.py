"""How parameters and states are read: complex numbers as pairs, sharded tensors whole or in part."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["as_real", "is_sharded", "local", "part", "whole", "wide", "wide_type"]


def wide_type(x: torch.Tensor) -> torch.dtype:
    """In which averages of a tensor are kept: in half precision squares overflow at 256 and vanish at 2e-4."""
    return torch.promote_types(x.dtype, torch.float32)


def wide(x: torch.Tensor) -> torch.Tensor:
    """The tensor in that type; itself where it is."""
    return x.to(wide_type(x))


def as_real(x: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones, a view; real ones as they are."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def is_sharded(x: Any) -> bool:
    """Whether this is a DTensor, of which a process has a part."""
    return hasattr(x, "placements") and hasattr(x, "full_tensor")


def local(x: Any) -> torch.Tensor:
    """What this process has of it."""
    return x.to_local() if is_sharded(x) else x


def whole(x: Any) -> Any:
    """All of it, gathered where it is sharded."""
    return x.full_tensor() if is_sharded(x) else x


def part(whole: torch.Tensor, like: Any) -> Any:
    """This process's part of a tensor that every process has: nothing is sent."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = like.device_mesh
    return DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False).redistribute(
        placements=like.placements
    )
