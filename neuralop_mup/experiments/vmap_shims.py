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
        if function is torch.fft.rfftn and (done := _rfftn(*args, **kwargs)) is not None:
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


def _rfftn(x: torch.Tensor, s: Any = None, dim: Any = None, norm: Any = None, **named: Any) -> torch.Tensor | None:
    """A real transform whose gradient is a real transform, too: torch's is a complex one of twice the work, a fifth of a
    small model's step."""
    if named or s is not None or dim is None or norm != "forward" or x.is_complex() or max(dim) >= 0:
        return None
    return _ForwardRFFT.apply(x, tuple(dim))


class _ForwardRFFT(torch.autograd.Function):
    """``rfftn(x, norm="forward")``: X_k = 1/N Σ_n x_n exp(−2πi k·n/N), for k ≤ n/2 along the last axis.

    The gradient of a real loss is then Re Σ_k G_k exp(2πi k·n/N) / N over these k. ``irfftn`` sums over all k and takes
    those beyond n/2 as conjugates: it gives that sum when each k that has a conjugate there is halved.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, dim: tuple[int, ...]) -> torch.Tensor:
        return torch.fft.rfftn(x, dim=dim, norm="forward")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        x, ctx.dim = inputs
        ctx.sizes = [x.shape[d] for d in ctx.dim]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        last, n = ctx.dim[-1], ctx.sizes[-1]
        scale = torch.full((n // 2 + 1,), 0.5, dtype=gradient.real.dtype, device=gradient.device)
        scale[0] = 1.0
        if n % 2 == 0:
            scale[-1] = 1.0
        for size in ctx.sizes:
            scale = scale / size
        halved = gradient * scale.reshape(-1, *(1,) * (-last - 1))
        return torch.fft.irfftn(halved, s=ctx.sizes, dim=ctx.dim, norm="forward"), None
