"""Check before each step that gradients are finite."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from neuralop_mup.errors import MupError
from neuralop_mup.optim.musoap.stacks import local_reals, upcast
from neuralop_mup.optim.resolved_model import Groups
from neuralop_mup.torch_private import mul_each_, norm_of_each

CHECKS = ("now", "next", "skip", "off")
# States hold sums of squares of gradients. This factor below the root of the largest number keeps them finite.
_HEADROOM = 2.0**10
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class GradientCheck:
    """Check whether all gradients of a step and their squares are finite.

    ``now`` waits for the device and raises before the step. ``next`` and ``skip`` zero all gradients of a bad step and
    count it on the device. ``next`` raises at the first step after a higher count arrives on the host. A pending transfer is
    never replaced, so every bad step is reported, even if the device lags. ``off`` checks nothing.
    """

    def __init__(self) -> None:
        self.count: torch.Tensor | None = None  # bad steps, on the device
        self._reported = 0
        self._count_on_host: torch.Tensor | None = None  # the count, in transfer to the host
        self._ready: torch.cuda.Event | None = None

    def run(self, groups: Groups) -> None:
        """Check this step's gradients; with ``now`` raise MupError if one is bad on any process."""
        policy = policy_of(groups)
        held = [
            (name, p)
            for group in groups
            for name, p in zip(group["param_names"], group["params"], strict=True)
            if p.grad is not None
        ]
        if policy == "off" or not held:
            return
        for _, p in held if policy != "now" else ():  # the bits of conjugated, negated and expanded views cannot change
            if not hasattr(p, "placements") and (p.grad.is_conj() or p.grad.is_neg() or not p.grad.is_contiguous()):
                p.grad = p.grad.resolve_conj().resolve_neg().contiguous()
        grads = local_reals([p.grad for _, p in held])
        fault = _fault(norm_of_each(upcast(grads)))
        for p in [p for _, p in held if hasattr(p, "placements")][:1]:  # all processes raise, or none
            for axis in range(p.device_mesh.ndim):
                dist.all_reduce(fault, group=p.device_mesh.get_group(axis))
        if policy == "now":
            if fault != 0:
                _raise(dict(zip([name for name, _ in held], grads, strict=True)))
            return
        # 0 · NaN is not 0, so multiply the bits, as integers, by 1 or 0.
        bits = [grad.view(_BITS[grad.element_size()]) for grad in grads]
        mul_each_(bits, (fault == 0).to(bits[0].dtype))
        if self.count is None:
            self.count = torch.zeros((), dtype=torch.int64, device=fault.device)
        self.count.add_(fault != 0)

    def request_count(self, groups: Groups) -> None:
        """With ``next``, start a transfer of the count to the host unless one is pending."""
        if policy_of(groups) == "next" and self._count_on_host is None and self.count is not None:
            self._send(self.count)

    def _send(self, count: torch.Tensor) -> None:
        if count.device.type != "cuda":
            self._count_on_host = count
        else:
            self._count_on_host = torch.empty((), dtype=count.dtype, pin_memory=True).copy_(count, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record()

    def raise_for_earlier_steps(self) -> None:
        """With ``next``, raise if earlier steps were bad and have not been reported."""
        if self._count_on_host is None or (self._ready is not None and not self._ready.query()):
            return
        new, self._count_on_host, self._ready = int(self._count_on_host) - self._reported, None, None
        if new > 0:
            self._reported += new
            raise MupError(
                f"A gradient of {'an earlier step' if new == 1 else f'{new} earlier steps'} was not finite or too large to "
                "square, so its gradients were replaced by zero, and this step was not taken. Check the loss and the batch, "
                'lower the learning rate, or clip gradients. check="now" names the parameter, check="skip" continues.'
            )


def policy_of(groups: Groups) -> str:
    """Return the policy for bad gradients."""
    on_cpu = groups[0]["params"][0].device.type == "cpu"
    return groups[0]["check"] or ("now" if on_cpu else "next")


def _fault(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return 0 if all squares are finite, otherwise NaN, in one number for a single synchronization."""
    device, types = norms[0].device, {x.dtype for x in norms}
    of_types = [_squares(torch.stack([x.to(device) for x in norms if x.dtype == dtype])) for dtype in types]
    faults = [(squares * 0).sum().float() for squares in of_types]
    return sum(faults[1:], faults[0])


def _squares(norms: torch.Tensor) -> torch.Tensor:
    """Return squares of norms, with headroom for sums over processes and for computations with averages."""
    return (norms * _HEADROOM).square()


def _raise(grads: Mapping[str, torch.Tensor]) -> None:
    """Raise MupError with the name of a bad gradient. All processes that share parameters raise together."""
    not_finite = [name for name, grad in grads.items() if not grad.isfinite().all()]
    too_large = [name for name, grad in grads.items() if not _squares(norm_of_each(upcast([grad]))[0]).isfinite()]
    first, *others = not_finite or too_large or ["a parameter on another process"]
    what = "is not finite" if not_finite or not too_large else "is finite, but the sum of its squares overflows"
    more = f", like those of {len(others)} others" if others else ""
    raise MupError(
        f"The gradient of {first!r} {what}{more}. This step was not taken. Check the loss and the batch, lower the learning "
        "rate, clip gradients, or skip the batch."
    )
