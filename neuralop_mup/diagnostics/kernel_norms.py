"""The operator norm of a kernel: of the largest of its blocks, one for each Fourier mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tltorch.factorized_tensors.core import FactorizedTensor
from tltorch.factorized_tensors.factorized_tensors import TTTensor
from torch import nn

from neuralop_mup.core.parametrize import kernels_and_axes
from neuralop_mup.core.unwrap import is_sharded
from neuralop_mup.errors import MupError

__all__ = ["kernel_norm", "kernels_of", "largest_norm"]

_EXACT = 1 << 20  # numbers times the smaller side: up to here all blocks are decomposed outright
_CANDIDATES = 4
_ITERATIONS = 3


def kernels_of(model: nn.Module) -> dict[str, tuple[Callable[[], torch.Tensor], tuple[str, ...]]]:
    """For each kernel, by its convolution's name, a function that reads it (complex, whole) and the kinds of its axes."""
    if is_sharded(model):
        raise MupError(
            f"The parameters of this {type(model).__name__} are sharded, so that no process has a whole kernel: measure "
            "updates in a run on one device, or under DistributedDataParallel."
        )
    result: dict[str, tuple[Callable[[], torch.Tensor], tuple[str, ...]]] = {}
    factors: dict[str, list[str]] = {}
    tensors: dict[str, Any] = {name: m for name, m in model.named_modules() if isinstance(m, FactorizedTensor)}
    for name, kinds in kernels_and_axes(model).items():
        holder = next((tensor for tensor in tensors if name.startswith(f"{tensor}.")), None)
        axes = tuple(kind for kind in kinds if kind != "pair")
        if holder is None:
            # A layer of somebody else's: a plain parameter with channels and modes is a kernel.
            if any(kind.startswith("modes") for kind in axes) and not any(kind.startswith("rank") for kind in axes):
                result[name] = (_read_plain(model.get_parameter(name), kinds), axes)
        elif name == f"{holder}.tensor":
            result[holder.removesuffix(".weight")] = (tensors[holder].to_tensor, axes)
        elif ".factors." in name:
            position = 1 if isinstance(tensors[holder], TTTensor) else 0
            factors.setdefault(holder, []).append(axes[position])
    for holder, own in factors.items():
        result[holder.removesuffix(".weight")] = (tensors[holder].to_tensor, tuple(own))
    return result


def _read_plain(parameter: nn.Parameter, kinds: Sequence[str]) -> Callable[[], torch.Tensor]:
    if "pair" not in kinds:
        return lambda: parameter
    return lambda: torch.view_as_complex(parameter.movedim(kinds.index("pair"), -1).contiguous())


def kernel_norm(kernel: torch.Tensor, axes: Sequence[str]) -> float:
    """Largest operator norm over a kernel's modes.

    Parameters
    ----------
    kernel : torch.Tensor
        Complex, one axis for each of ``axes``.
    axes : sequence of str
        Kinds of axis; channels are ``in…`` and ``out…``, all others number the blocks.
    """
    if torch.finfo(kernel.dtype).bits < 32:
        kernel = kernel.to(torch.complex64 if kernel.is_complex() else torch.float32)
    ins = [i for i, kind in enumerate(axes) if kind.startswith("in")]
    outs = [i for i, kind in enumerate(axes) if kind.startswith("out")]
    if not ins or not outs:
        return kernel.abs().max().item()
    rest = [i for i in range(len(axes)) if i not in (*ins, *outs)]
    return largest_norm(kernel.permute(*rest, *ins, *outs).flatten(0, len(rest) - 1))


def largest_norm(blocks: torch.Tensor) -> float:
    """Largest spectral norm of a stack of matrices ``(n, a, b)``; NaN if a number is not finite.

    Exact for small stacks. In others a few steps of power iteration estimate every norm, the better quarter goes on, and
    so forth; the last few blocks are decomposed. The result is the norm of one of the blocks, and within some 4 % of the
    largest where they are all alike (Gaussian noise); where some stand out, as in training, it is the largest.
    """
    if not torch.isfinite(torch.view_as_real(blocks) if blocks.is_complex() else blocks).all():
        return float("nan")
    if blocks.numel() * min(blocks.shape[-2:]) > _EXACT and len(blocks) > _CANDIDATES:
        generator = torch.Generator(blocks.device).manual_seed(0)  # the training's random state is left alone
        v = torch.randn(len(blocks), blocks.shape[-1], 1, dtype=blocks.dtype, device=blocks.device, generator=generator)
        while len(blocks) > _CANDIDATES:
            for _ in range(_ITERATIONS):
                v = v / v.norm(dim=1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
                u = blocks @ v
                v = blocks.mH @ u
            best = u.norm(dim=(1, 2)).topk(max(_CANDIDATES, len(blocks) // 4)).indices
            blocks, v = blocks[best], v[best]
    return torch.linalg.svdvals(blocks).max().item()
