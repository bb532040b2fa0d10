"""Activations and skips with learned parameters, and an FNO that has them.

After Gardès, Juigner and Mazette's AdaGELU, x Φ̂(α x, β, γ) with tanh's approximation Φ̂ of the normal distribution. Here Φ is
the distribution itself, as in neuralop's own GELU, so that both are the same at the start. Parameters are stored as
deviations from GELU, zeros at the start: weight decay pulls back to GELU and does not have to be switched off.

neuralop takes *one* object for the lifting, all Fourier blocks and the projection (the channel MLPs within blocks keep their
own GELU), so that all of them share its parameters. In :class:`AdaptiveFNO` lifting, blocks and projection have one each.

Nothing here is told to neuralop_mup. It measures that these parameters do not grow with width. So their learning rate is × 1
at every width, and their initialization is left alone.
"""

import math

import torch
from neuralop.models import FNO
from torch import nn


def normal_cdf(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


class AdaGELU(nn.Module):
    """(1 + a) x Φ((1 + b) x + c): GELU with learned amplitude, scale and shift, all of them zero at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.amplitude, self.scale, self.shift = (nn.Parameter(torch.zeros(1)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (1 + self.amplitude) * x * normal_cdf((1 + self.scale) * x + self.shift)


class LeakyGELU(nn.Module):
    """(1 + a) x Φ(x) + b x Φ(-x): slope 1 + a far to the right, b far to the left, both a and b zero at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.right, self.left = (nn.Parameter(torch.zeros(1)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (1 + self.right) * x * normal_cdf(x) + self.left * x * normal_cdf(-x)


class WeightedSkip(nn.Module):
    """(1 + w) times a skip, w zero at the start."""

    def __init__(self, skip: nn.Module) -> None:
        super().__init__()
        self.skip, self.weight = skip, nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (1 + self.weight) * self.skip(x)


class AdaptiveFNO(FNO):
    """An FNO whose ``non_linearity`` holds parameters: one activation for all blocks, one each for lifting and projection.

    ``FNO(non_linearity=AdaGELU())`` would share one activation between all of them. Blocks share theirs in any case, since
    FNOBlocks calls one object for every layer. ``non_linearity=None`` keeps neuralop's GELU. With ``learned_skips`` the skip
    of each Fourier layer has a learned weight.
    """

    def __init__(
        self,
        n_modes,
        in_channels,
        out_channels,
        hidden_channels,
        n_layers=4,
        non_linearity=AdaGELU,
        learned_skips=False,
    ) -> None:
        # Every argument by its name, so that neuralop can store it, and with it the base model be built.
        super().__init__(n_modes, in_channels, out_channels, hidden_channels, n_layers)  # with GELU, without parameters
        for part in (self.fno_blocks, self.lifting, self.projection) if non_linearity else ():
            part.non_linearity = non_linearity()
        if non_linearity:
            del self.non_linearity
        if learned_skips:
            self.fno_blocks.fno_skips = nn.ModuleList(map(WeightedSkip, self.fno_blocks.fno_skips))


__all__ = ["AdaGELU", "AdaptiveFNO", "LeakyGELU", "WeightedSkip"]
