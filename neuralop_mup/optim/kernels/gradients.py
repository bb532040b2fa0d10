"""Gradients that no step may be made of, refused before anything changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from neuralop_mup.errors import MupError
from neuralop_mup.optim.kernels.tensors import as_real, is_sharded, local

__all__ = ["check_gradients"]

# States keep sums of squares of gradients. A norm of this times less than the root of the largest number leaves them finite.
_HEADROOM = 2.0**10


def check_gradients(groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise MupError where a gradient of an optimizer's groups is not finite, or its squares overflow, on any process."""
    pairs = [
        (group, i, as_real(local(p.grad))) for group in groups for i, p in enumerate(group["params"]) if p.grad is not None
    ]
    if not pairs:
        return
    norms = [_norm(grad).to(pairs[0][2].device) for *_, grad in pairs]
    # One number for all, and so one synchronisation: 0 times what is finite is 0, times what overflows NaN.
    worst = [torch.stack([x for x in norms if x.dtype == dtype]).amax() for dtype in {x.dtype for x in norms}]
    fault = torch.stack([(_squared(x) * 0).float() for x in worst]).sum()
    _over_ranks(fault, groups)
    if fault == 0:
        return
    not_finite = [_name(group, i) for group, i, grad in pairs if not grad.isfinite().all()]
    too_large = [_name(group, i) for (group, i, _), x in zip(pairs, norms, strict=True) if not _squared(x).isfinite()]
    overflows = "is finite, but so large that sums of its squares overflow"
    for names, what, others, remedy in (
        (not_finite, "is not finite", "nor are", "look at the loss and the batch first, then lower the learning rate"),
        (too_large, overflows, "as those of", "look at the loss and the batch first"),
    ):
        count = torch.tensor(float(len(names)), device=fault.device)
        _over_ranks(count, groups)
        if count:
            where = repr(names[0]) if names else "a parameter, on another process,"
            more = f", {others} {len(names) - 1} others" if len(names) > 1 else ""
            raise MupError(
                f"The gradient of {where} {what}{more}, so this step was not taken and nothing was changed: {remedy}, "
                "clip gradients, or skip the batch."
            )


def _over_ranks(number: torch.Tensor, groups: Sequence[Mapping[str, Any]]) -> None:
    """Add a number over the processes that share parameters, so that all refuse a step or none."""
    p = next((p for group in groups for p in group["params"] if is_sharded(p)), None)
    if p is not None:
        for axis in range(p.device_mesh.ndim):
            dist.all_reduce(number, group=p.device_mesh.get_group(axis))


def _norm(grad: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(grad, dtype=torch.promote_types(grad.dtype, torch.float32))


def _squared(norm: torch.Tensor) -> torch.Tensor:
    """The sum of squares, with room for those of many processes and for what is computed from averages of them."""
    return (norm * _HEADROOM).square()


def _name(group: Mapping[str, Any], i: int) -> str:
    return group["param_names"][i] if "param_names" in group else f"number {i} of group {group.get('name')}"
