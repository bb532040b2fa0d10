"""How parameters and states are read: complex numbers as pairs, sharded tensors whole or in part."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["as_real", "is_sharded", "local", "sharded_like", "wide", "wide_type"]


def wide_type(x: torch.Tensor) -> torch.dtype:
    """In which averages of a tensor are kept: in half precision squares overflow at 256 and vanish at 2e-4."""
    return torch.promote_types(x.dtype, torch.float32)


def wide(x: torch.Tensor) -> torch.Tensor:
    """The tensor in that type; itself where it is."""
    return x if x.dtype in (torch.float32, torch.complex64) else x.to(wide_type(x))


def as_real(x: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones, a view; real ones as they are."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def is_sharded(x: Any) -> bool:
    """Whether this is a DTensor, of which a process has a part."""
    return hasattr(x, "placements") and hasattr(x, "full_tensor")


def local(x: Any) -> torch.Tensor:
    """What this process has of it."""
    return x.to_local() if is_sharded(x) else x


def sharded_like(p: Any, x: torch.Tensor) -> Any:
    """Zeros of the shape and type of ``x``, sharded as ``p`` is."""
    from torch.distributed.tensor import zeros

    return zeros(*x.shape, dtype=x.dtype, device_mesh=p.device_mesh, placements=p.placements)
