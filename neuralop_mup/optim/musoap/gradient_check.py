"""Check that gradients are finite before each step."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from neuralop_mup.errors import MupError
from neuralop_mup.optim.musoap.stacks import local_reals, upcast
from neuralop_mup.optim.resolved_model import Groups
from neuralop_mup.torch_private import mul_each_, norm_of_each

CHECKS = ("now", "next", "skip", "off")
# States hold sums of squared gradients. Gradient norms must stay below the square root of the largest number by this factor,
# so that these sums stay finite.
_HEADROOM = 2.0**10
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class GradientCheck:
    """Check whether all gradients of a step and their squares are finite.

    ``now`` waits for the device and raises before the step. ``next`` and ``skip`` set all gradients of a bad step to zero
    and count the step on the device. ``next`` raises at the first step after an increased count has arrived on the host. A
    pending transfer is never replaced, so every bad step is reported even if the device lags behind. ``off`` disables the
    check.
    """

    def __init__(self) -> None:
        self.count: torch.Tensor | None = None  # number of bad steps, stored on the device
        self._reported = 0
        self._count_on_host: torch.Tensor | None = None  # copy of the count that is being transferred to the host
        self._ready: torch.cuda.Event | None = None

    def run(self, groups: Groups) -> None:
        """Check this step's gradients; with ``now``, raise MupError if a gradient on any process is bad."""
        policy = policy_of(groups)
        held = [
            (name, p)
            for group in groups
            for name, p in zip(group["param_names"], group["params"], strict=True)
            if p.grad is not None
        ]
        if policy == "off" or not held:
            return
        # the bits of conjugated, negated and expanded views cannot be changed in place
        for _, p in held if policy != "now" else ():
            if not hasattr(p, "placements") and (p.grad.is_conj() or p.grad.is_neg() or not p.grad.is_contiguous()):
                p.grad = p.grad.resolve_conj().resolve_neg().contiguous()
        grads = local_reals([p.grad for _, p in held])
        fault = _fault(norm_of_each(upcast(grads)))
        for p in [p for _, p in held if hasattr(p, "placements")][:1]:  # either all processes raise or none does
            for axis in range(p.device_mesh.ndim):
                dist.all_reduce(fault, group=p.device_mesh.get_group(axis))
        if policy == "now":
            if fault != 0:
                _raise(dict(zip([name for name, _ in held], grads, strict=True)))
            return
        # Because 0 · NaN is not 0, reinterpret the bits as integers and multiply these by 1 or 0.
        bits = [grad.view(_BITS[grad.element_size()]) for grad in grads]
        mul_each_(bits, (fault == 0).to(bits[0].dtype))
        if self.count is None:
            self.count = torch.zeros((), dtype=torch.int64, device=fault.device)
        self.count.add_(fault != 0)

    def request_count(self, groups: Groups) -> None:
        """With ``next``, start transferring the count to the host unless a transfer is pending."""
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
        """With ``next``, raise MupError if there were bad steps that have not been reported."""
        if self._count_on_host is None or (self._ready is not None and not self._ready.query()):
            return
        new, self._count_on_host, self._ready = int(self._count_on_host) - self._reported, None, None
        if new > 0:
            self._reported += new
            raise MupError(
                f"A gradient of {'an earlier step' if new == 1 else f'{new} earlier steps'} was not finite or too large to "
                "square, so all its gradients were set to zero, and this step was not taken. Check the loss and the "
                'batch, lower the learning rate, or clip gradients. To find the parameter, pass check="now". To continue '
                'without an error, pass check="skip".'
            )


def policy_of(groups: Groups) -> str:
    """Return the policy for handling bad gradients."""
    on_cpu = groups[0]["params"][0].device.type == "cpu"
    return groups[0]["check"] or ("now" if on_cpu else "next")


def _fault(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return 0 if all squares are finite and NaN otherwise, as a single number that needs one synchronization."""
    device, types = norms[0].device, {x.dtype for x in norms}
    of_types = [_squares(torch.stack([x.to(device) for x in norms if x.dtype == dtype])) for dtype in types]
    faults = [(squares * 0).sum().float() for squares in of_types]
    return sum(faults[1:], faults[0])


def _squares(norms: torch.Tensor) -> torch.Tensor:
    """Return squared norms, with headroom for sums over processes and for computations with averages."""
    return (norms * _HEADROOM).square()


def _raise(grads: Mapping[str, torch.Tensor]) -> None:
    """Raise MupError with the name of a bad gradient. All processes that share parameters raise together."""
    not_finite = [name for name, grad in grads.items() if not grad.isfinite().all()]
    too_large = [name for name, grad in grads.items() if not _squares(norm_of_each(upcast([grad]))[0]).isfinite()]
    first, *others = not_finite or too_large or ["a parameter on another process"]
    what = "is not finite" if not_finite or not too_large else "is finite, but the sum of its squares overflows"
    more = f", as are those of {len(others)} other parameters" if others else ""
    raise MupError(
        f"The gradient of {first!r} {what}{more}. This step was not taken. Check the loss and the batch, lower the learning "
        "rate, clip gradients, or skip the batch."
    )
