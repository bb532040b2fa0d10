"""The direction of MuMuon, as a pure function of stacked momenta."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from neuralop_mup.optim.matrix.newton_schulz import orthogonalize
from neuralop_mup.optim.matrix.noise import TINY, trust
from neuralop_mup.optim.matrix.scratch import Scratch

__all__ = ["MuonSettings", "muon_direction"]


@dataclass(frozen=True)
class MuonSettings:
    """What a direction needs beside the momentum.

    Attributes
    ----------
    damping : float
        As for :class:`~neuralop_mup.MuMuon`.
    layers : int
        To how many layers the blocks belong, each with as many.
    kept : torch.dtype
        The gradient's own type.
    chunk : int
        How many numbers are orthogonalized at a time.
    """

    damping: float
    layers: int
    kept: torch.dtype
    chunk: int


def muon_direction(
    x: torch.Tensor, gradient: torch.Tensor, settings: MuonSettings, size: torch.Tensor, scratch: Scratch
) -> torch.Tensor:
    """size · polar factor of the momentum, block by block, in its place; zero where there is no gradient.

    Parameters
    ----------
    x, gradient : torch.Tensor, shape (blocks, parts, m, n)
        What is moved along, overwritten, and the gradient of this step; m ≤ n.
    settings : MuonSettings
    size : torch.Tensor, shape (blocks,)
        lr √(out/in).
    scratch : Scratch
        Where temporaries live.

    Returns
    -------
    torch.Tensor
        How much of its update each block got, 0 without a gradient (blocks,).
    """
    pieces = x.tensor_split(max(1, min(round(x.numel() / settings.chunk / x.shape[1]), len(x))))
    norms = [orthogonalize(piece, damping=settings.damping, scratch=scratch) for piece in pieces]
    if len(x) > settings.layers:
        filled = (gradient != 0).any(1).sum((1, 2), dtype=x.dtype)
        of_layers = torch.cat(norms).view(settings.layers, -1)
        ratio = (of_layers / of_layers.amax(1, keepdim=True).clamp_min_(TINY)).square_()
        share = trust(ratio, filled.view(settings.layers, -1), settings.kept).view(-1)
    else:
        share = (gradient != 0).flatten(1).any(1)
    x.mul_((share * size).view(-1, 1, 1, 1))
    return share
