"""An FNO with learned activations, and a second learned activation."""

import math

import torch
from neuralop.models import FNO
from torch import nn

from neuralop_mup import AdaGELU, AdaptiveSkip


def normal_cdf(x: torch.Tensor) -> torch.Tensor:
    """Return the cumulative distribution function of the standard normal distribution."""
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


class LeakyGELU(nn.Module):
    """GELU with two learned slopes, (1 + right) x Φ(x) + left x Φ(−x).

    The slope for large x is 1 + right, and the slope for large −x is left. Both parameters are zero at the start, so the
    initial function is GELU, and weight decay pulls towards GELU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.right = nn.Parameter(torch.zeros(1))
        self.left = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (1 + self.right) * x * normal_cdf(x) + self.left * x * normal_cdf(-x)


class AdaptiveFNO(FNO):
    """An FNO with one learned activation each for the lifting, the Fourier blocks and the projection.

    ``FNO(non_linearity=AdaGELU())`` would share one activation between all three. The Fourier blocks always share one,
    because neuralop calls the same object in every block.

    Parameters
    ----------
    non_linearity : type, optional
        Class of the activation. None keeps the GELU of neuralop.
    learned_skips : bool, default False
        Whether the skip connection of each Fourier block has a learned weight.
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
        # neuralop stores named arguments, and parametrize needs them to build the base model.
        super().__init__(n_modes, in_channels, out_channels, hidden_channels, n_layers)
        if non_linearity:
            for part in (self.fno_blocks, self.lifting, self.projection):
                part.non_linearity = non_linearity()
            del self.non_linearity
        if learned_skips:
            blocks = self.fno_blocks
            blocks.fno_skips = nn.ModuleList(map(AdaptiveSkip, blocks.convs, blocks.fno_skips))


__all__ = ["AdaGELU", "AdaptiveFNO", "AdaptiveSkip", "LeakyGELU"]
