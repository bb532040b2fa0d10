"""Ways to draw a parameter in place, each a function of the tensor and of the root mean square that is meant."""

from __future__ import annotations

import torch
from torch import nn


def normal(tensor: torch.Tensor, std: float) -> None:
    tensor.normal_(0, std)


def scaled_normal(tensor: torch.Tensor, std: float) -> None:
    """The same distribution, with the rounding of a constructor that multiplies standard normal numbers."""
    tensor.normal_().mul_(std)


def truncated_normal(tensor: torch.Tensor, std: float) -> None:
    nn.init.trunc_normal_(tensor, std=std)


def positive(tensor: torch.Tensor, std: float) -> None:
    """From U[0, a), whose root mean square is a / √3."""
    tensor.uniform_().mul_(3**0.5 * std)


def ones(tensor: torch.Tensor, std: float) -> None:
    tensor.fill_(1)


def zeros(tensor: torch.Tensor, std: float) -> None:
    tensor.zero_()
