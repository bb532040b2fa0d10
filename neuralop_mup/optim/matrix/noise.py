"""Modes of which a gradient holds rounding errors alone: how much of an update they are worth.

Every mode is brought to one size, so that one whose gradient is noise would be moved as far as any other, in random
directions. Rounding shows in two ways. What a sum of float32 numbers leaves is about 1e-7 of the layer's largest gradient.
Where a product was made in half precision, as under autocast, numbers below 6e-8 become exactly zero, and what is left of
the others is coarse. Both are looked at in relation to the layer's other modes, so that neither the loss's scale nor
channels that are always zero change anything.
"""

from __future__ import annotations

import torch

__all__ = ["TINY", "trust"]

TINY = 1e-30  # keeps 0 / 0 at 0


def trust(ratio: torch.Tensor, filled: torch.Tensor, kept: torch.dtype) -> torch.Tensor:
    """The share of its full update that each mode gets: 1 but for rounding where its gradient is sound, 0 without one.

    r² / (r² + (ε max r)²) · n / max n, with r the norm of a mode's gradient, n how many of its numbers, complex ones whole,
    are not exactly zero, ε the precision of the gradient's type, and the maxima over the modes of a layer.

    Parameters
    ----------
    ratio, filled : torch.Tensor, shape (layers, modes)
        (r / max r)², which is overwritten, and n.
    kept : torch.dtype
        The gradient's type.
    """
    most = filled.amax(1, keepdim=True).clamp_min_(1)
    return ratio.div_(ratio + torch.finfo(kept).eps ** 2).mul_(filled / most)
