"""An FNO with learned activations and skips, and a second learned activation.

:class:`neuralop_mup.AdaGELU` and :class:`neuralop_mup.AdaptiveSkip` are as published (Gardès, Juigner and Mazette, 2023).
The parameters of :class:`LeakyGELU` are deviations from GELU, with initial value zero, so weight decay pulls back to GELU.

neuralop uses *one* object for the lifting, all Fourier blocks and the projection (the channel MLPs within blocks keep their
own GELU), so all of them share its parameters. In :class:`AdaptiveFNO` lifting, blocks and projection have one each.

neuralop_mup needs no description of these layers. It measures that their parameters do not grow with width. Their learning
rate is therefore the base rate at every width, and their initialization does not change.
"""

import math

import torch
from neuralop.models import FNO
from torch import nn

from neuralop_mup import AdaGELU, AdaptiveSkip


def normal_cdf(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


class LeakyGELU(nn.Module):
    """(1 + a) x Φ(x) + b x Φ(-x): slope 1 + a far to the right, b far to the left, both a and b zero at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.right, self.left = (nn.Parameter(torch.zeros(1)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (1 + self.right) * x * normal_cdf(x) + self.left * x * normal_cdf(-x)


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
            blocks = self.fno_blocks
            blocks.fno_skips = nn.ModuleList(map(AdaptiveSkip, blocks.convs, blocks.fno_skips))


__all__ = ["AdaGELU", "AdaptiveFNO", "AdaptiveSkip", "LeakyGELU"]
