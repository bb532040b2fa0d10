"""What ``torch.func.vmap`` needs in the forward of neuralop's models, and what makes it fast. Each with its reason.

Nothing is changed in neuralop: a ``TorchFunctionMode`` exchanges a few functions while a stacked forward runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Shims"]


class Shims(TorchFunctionMode):
    """The forward's functions as a stacked forward needs them.

    Parameters
    ----------
    like : torch.Tensor
        A tensor of the forward that has the stacked axis.
    """

    def __init__(self, like: torch.Tensor) -> None:
        super().__init__()
        self._like = like

    def __torch_function__(
        self, function: Callable, types: Any, args: Sequence = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.zeros and "out" not in kwargs:
            return self._zeros(*args, **kwargs)
        if function is torch.conv1d and (done := _pointwise(*args, **kwargs)) is not None:
            return done
        # tensorly unfolds by moveaxis, another name of movedim, which alone has a rule for vmap (torch 2.13).
        return (torch.movedim if function is torch.moveaxis else function)(*args, **kwargs)

    def _zeros(self, *size: Any, **kwargs: Any) -> torch.Tensor:
        """neuralop's SpectralConv writes its product into ``torch.zeros``: vmap refuses to write one tensor for each model
        into one for all."""
        shape = kwargs.pop("size", None) or (size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
        # torch.zeros has torch's defaults, new_zeros those of the tensor.
        defaults = {"dtype": torch.get_default_dtype(), "device": torch.empty(0).device}
        given = {key: value for key, value in kwargs.items() if value is not None and key != "names"}
        return self._like.new_zeros(tuple(shape), **{**defaults, **given})


def _pointwise(
    x: torch.Tensor, weight: torch.Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups=1
) -> torch.Tensor | None:
    """A convolution of kernel size 1 as a matrix product: vmap makes it a grouped convolution, which is several times slower
    on a CPU. None for any other convolution."""
    plain = stride in (1, (1,), [1]) and padding in (0, (0,), [0], "valid") and groups == 1
    if not plain or x.ndim != 3 or weight.shape[-1] != 1:
        return None
    product = weight[..., 0] @ x
    return product if bias is None else product + bias[:, None]
