"""Gradients that no step may be made of, refused before anything changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from neuralop_mup.errors import MupError
from neuralop_mup.optim.matrix.tensors import as_real, is_sharded, local
from neuralop_mup.torch_private import mul_each_, norm_of_each

__all__ = ["GradientCheck"]

# States keep sums of squares of gradients. A norm of this times less than the root of the largest number leaves them finite.
_HEADROOM = 2.0**10
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class GradientCheck:
    """Whether all gradients of an optimizer are finite, and so are their squares.

    At once, which has to wait for the device, or one step later: gradients of a step that has a bad one are made zero on
    the device, and the next step that finds the answer there refuses to go on.
    """

    def __init__(self) -> None:
        self._answer: torch.Tensor | None = None
        self._ready: torch.cuda.Event | None = None

    def run(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Raise MupError where a gradient of this step, or of the one before, is bad, on any process."""
        now = groups[0]["check"] == "now" or (groups[0]["check"] is None and groups[0]["params"][0].device.type == "cpu")
        if not now:
            self._refuse_the_last()
            _own_memory(groups)
        found = [
            (group, i, as_real(local(p.grad)))
            for group in groups
            for i, p in enumerate(group["params"])
            if p.grad is not None
        ]
        if not found:
            return
        grads = [grad for *_, grad in found]
        norms = _norms(grads)
        fault = _fault(norms)
        _over_ranks(fault, groups)
        if now:
            if fault != 0:
                _refuse(found, norms, fault, groups)
            return
        # An integer product, for 0 · NaN is not 0: the bits of all gradients times 1, or times 0.
        for bits in {_BITS[grad.element_size()] for grad in grads}:
            alike = [grad.view(bits) for grad in grads if _BITS[grad.element_size()] == bits]
            mul_each_(alike, (fault == 0).to(bits))
        self._ask(fault)

    def _ask(self, fault: torch.Tensor) -> None:
        if fault.device.type != "cuda":
            self._answer = fault
        elif not torch.cuda.is_current_stream_capturing():
            self._answer = torch.empty((), dtype=fault.dtype, pin_memory=True).copy_(fault, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record()

    def _refuse_the_last(self) -> None:
        answer = self._answer
        if answer is None or (self._ready is not None and not self._ready.query()):
            return
        self._answer = self._ready = None
        if answer != 0:
            raise MupError(
                "A gradient of the step before this one was not finite, or so large that sums of its squares overflow. All "
                "gradients counted as zero in that step, and this one was not taken: look at the loss and the batch first, "
                'then lower the learning rate, clip gradients, or skip the batch; check="now" names the parameter.'
            )


def _own_memory(groups: Sequence[Mapping[str, Any]]) -> None:
    """Give gradients that are views of another kind (conjugated, negated, expanded) memory in which bits can be changed."""
    for p in (p for group in groups for p in group["params"] if p.grad is not None and not is_sharded(p)):
        if p.grad.is_conj() or p.grad.is_neg() or not p.grad.is_contiguous():
            p.grad = p.grad.resolve_conj().resolve_neg().contiguous()


def _norms(grads: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Norms in float32 or better."""
    if all(grad.dtype in (torch.float32, torch.float64) for grad in grads):
        return norm_of_each(grads)
    return [_norm(grad) for grad in grads]


def _fault(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    """0 where the squares of all are finite, NaN else: one number, and so one synchronisation."""
    device = norms[0].device
    of_type = [torch.stack([x.to(device) for x in norms if x.dtype == dtype]) for dtype in {x.dtype for x in norms}]
    return torch.stack([(_squared(x) * 0).sum().float() for x in of_type]).sum()


def _refuse(
    found: Sequence[tuple[Mapping[str, Any], int, torch.Tensor]],
    norms: Sequence[torch.Tensor],
    fault: torch.Tensor,
    groups: Sequence[Mapping[str, Any]],
) -> None:
    """Say which gradients are bad, on whatever process they are."""
    not_finite = [_name(group, i) for group, i, grad in found if not grad.isfinite().all()]
    too_large = [_name(group, i) for (group, i, _), x in zip(found, norms, strict=True) if not _squared(x).isfinite()]
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
