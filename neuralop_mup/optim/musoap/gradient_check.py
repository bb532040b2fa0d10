"""What is looked at before a step: gradients that none may be made of."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from neuralop_mup.errors import MupError
from neuralop_mup.optim.musoap.stacks import local_reals, wide
from neuralop_mup.torch_private import mul_each_, norm_of_each

CHECKS = ("now", "next", "skip", "off")
# States keep sums of squares of gradients. A norm of this times less than the root of the largest number leaves them finite.
_HEADROOM = 2.0**10
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

Groups = Sequence[Mapping[str, Any]]


class GradientCheck:
    """Whether all gradients of a step are finite, and so are their squares.

    ``now`` waits for the device, and refuses the step. ``next`` and ``skip`` make all gradients of a bad step zero and count
    it, both on the device; ``next`` raises at the first step that finds a higher count arrived. A count that is under way is
    waited for, never replaced, so that no bad step is lost however far the device lags. ``off`` looks at nothing.
    """

    def __init__(self) -> None:
        self.count: torch.Tensor | None = None  # of bad steps, on the device
        self._told = 0
        self._answer: torch.Tensor | None = None  # the count, on its way to the host
        self._ready: torch.cuda.Event | None = None

    def run(self, groups: Groups) -> None:
        """Look at this step's gradients; raise MupError where one is bad, on any process, with ``now``."""
        policy = policy_of(groups)
        if policy == "off":
            return
        held = [
            (name, p)
            for group in groups
            for name, p in zip(group["param_names"], group["params"], strict=True)
            if p.grad is not None
        ]
        if not held:
            return
        if sparse := [name for name, p in held if p.grad.is_sparse]:
            raise MupError(
                f"The gradient of {sparse[0]!r} is sparse, and MuSOAP's averages are not: build its layer with sparse=False."
            )
        if policy != "now":
            _own_memory([p for _, p in held])
        grads = local_reals([p.grad for _, p in held])
        fault = _fault(norm_of_each(wide(grads)))
        for p in [p for _, p in held if hasattr(p, "placements")][:1]:  # all processes refuse a step, or none
            for axis in range(p.device_mesh.ndim):
                dist.all_reduce(fault, group=p.device_mesh.get_group(axis))
        if policy == "now":
            if fault != 0:
                _refuse(dict(zip([name for name, _ in held], grads, strict=True)))
            return
        # An integer product, for 0 · NaN is not 0: the bits of all gradients times 1, or times 0.
        bits = [grad.view(_BITS[grad.element_size()]) for grad in grads]
        mul_each_(bits, (fault == 0).to(bits[0].dtype))
        if self.count is None:
            self.count = torch.zeros((), dtype=torch.int64, device=fault.device)
        self.count.add_(fault != 0)

    def ask(self, groups: Groups) -> None:
        """With ``next``, have the count sent to the host, unless one is under way."""
        if policy_of(groups) == "next" and self._answer is None and self.count is not None:
            self._ask(self.count)

    def _ask(self, count: torch.Tensor) -> None:
        if count.device.type != "cuda":
            self._answer = count
        else:
            self._answer = torch.empty((), dtype=count.dtype, pin_memory=True).copy_(count, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record()

    def refuse_earlier(self) -> None:
        """Raise where earlier steps were bad, with ``next``, of which nothing was told yet."""
        if self._answer is None or (self._ready is not None and not self._ready.query()):
            return
        new, self._answer, self._ready = int(self._answer) - self._told, None, None
        if new > 0:
            self._told += new
            raise MupError(
                f"A gradient of {'an earlier step' if new == 1 else f'{new} earlier steps'} was not finite, or so large "
                "that sums of its squares overflow. All gradients counted as zero there, and this step was not taken: look "
                "at the loss and the batch first, then lower the learning rate, clip gradients, or skip the batch; "
                'check="now" names the parameter, check="skip" goes on.'
            )


def policy_of(groups: Groups) -> str:
    """What is done about bad gradients."""
    on_cpu = groups[0]["params"][0].device.type == "cpu"
    return groups[0]["check"] or ("now" if on_cpu else "next")


def _own_memory(params: Sequence[Any]) -> None:
    """Give gradients that are views of another kind (conjugated, negated, expanded) memory in which bits can be changed."""
    for p in params:
        if not hasattr(p, "placements") and (p.grad.is_conj() or p.grad.is_neg() or not p.grad.is_contiguous()):
            p.grad = p.grad.resolve_conj().resolve_neg().contiguous()


def _fault(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    """0 where the squares of all are finite, NaN else: one number, and so one synchronisation."""
    device, types = norms[0].device, {x.dtype for x in norms}
    of_types = [_squares(torch.stack([x.to(device) for x in norms if x.dtype == dtype])) for dtype in types]
    faults = [(squares * 0).sum().float() for squares in of_types]
    return sum(faults[1:], faults[0])


def _squares(norms: torch.Tensor) -> torch.Tensor:
    """Sums of squares, with room for those of many processes and for what is computed from averages of them."""
    return (norms * _HEADROOM).square()


def _refuse(grads: Mapping[str, torch.Tensor]) -> None:
    """Say which gradients are bad. Every process that shares parameters comes here, on whatever one they are."""
    not_finite = [name for name, grad in grads.items() if not grad.isfinite().all()]
    too_large = [name for name, grad in grads.items() if not _squares(norm_of_each(wide([grad]))[0]).isfinite()]
    first, *others = not_finite or too_large or ["a parameter on another process"]
    what = "is not finite" if not_finite or not too_large else "is finite, but so large that sums of its squares overflow"
    more = f", as of {len(others)} others" if others else ""
    raise MupError(
        f"The gradient of {first!r} {what}{more}, so this step was not taken and nothing was changed: look at the loss and "
        "the batch first, then lower the learning rate, clip gradients, or skip the batch."
    )
