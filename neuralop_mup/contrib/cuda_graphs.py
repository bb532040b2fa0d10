"""Run steps of MuSOAP as CUDA graphs.

Work on the host runs at every step: computing the learning rate, detecting the end of training, and reporting non-finite
gradients. Work on the device is captured once for each step of a cycle and then replayed.
"""

from __future__ import annotations

from typing import Any

import torch

from neuralop_mup.errors import MupError
from neuralop_mup.optim.learning_rate import FACTORS, effective_decay, effective_lr
from neuralop_mup.optim.musoap.gradient_check import policy_of
from neuralop_mup.optim.musoap.optimizer import MuSOAP

# Settings that a graph replays with the captured values. Learning rates are read from device tensors instead.
_FROZEN = ("momentum", "beta2", "mode_stride", "refresh", "weight_decay", "betas", "eps", "check")


def capture_steps(optimizer: MuSOAP) -> None:
    """Make ``optimizer.step()`` replay CUDA graphs, which saves kernel launches for small models.

    The first steps run normally. Then each of the next ``optimizer.cycle`` steps is captured and later replayed. Learning
    rates, schedules, ``steps`` and ``cooldown`` work as before. A graph reads gradients at fixed addresses, so call
    ``optimizer.zero_grad(set_to_none=False)``. Copies and pickles of the optimizer run without graphs.

    Parameters
    ----------
    optimizer : MuSOAP
        Optimizer of a model on a CUDA device.

    Raises
    ------
    MupError
        If the parameters are not all on one CUDA device, if several processes share the work, or if ``check`` is "now". In
        ``optimizer.step``, if gradients, weights, states or settings have changed since the capture.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> optimizer = nm.MuSOAP(nm.parametrize(FNO((8,), 1, 1, 16)), steps=1000)
    >>> if torch.cuda.is_available():  # and the model is on the GPU
    ...     nm.capture_steps(optimizer)
    """
    params = [p for group in optimizer.param_groups for p in group["params"]]
    devices = ", ".join(sorted({str(p.device) for p in params}))
    policy = policy_of(optimizer.param_groups)
    shared = {optimizer._process_group, optimizer._replicas} != {None} or any(hasattr(p, "placements") for p in params)
    if shared or policy == "now" or {p.device for p in params} - {params[0].device} or not params[0].is_cuda:
        raise MupError(
            "CUDA graphs need a single process with all parameters on one CUDA device, and steps without synchronization. "
            f"These parameters are on {devices}{', shared between processes' if shared else ''}, with check={policy!r}. "
            "Train without capture_steps."
        )
    for group in optimizer.param_groups:
        group["capturable"] = True
    optimizer.load_state_dict(optimizer.state_dict())  # moves AdamW's step counts to the device
    vars(optimizer)["_on_device"] = Captured(optimizer)


class Captured:
    """Replacement for ``MuSOAP._on_device`` that captures steps as CUDA graphs and replays them."""

    def __init__(self, optimizer: MuSOAP) -> None:
        self._optimizer = optimizer
        self._rates = [torch.zeros((), device=group["params"][0].device) for group in optimizer.param_groups]
        self._pool = torch.cuda.graph_pool_handle()
        self._known: dict[str, list] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def __call__(self, groups: list[dict[str, Any]]) -> None:
        """Run the next step, without a graph until all states are warmed up."""
        batches = [b for _, own in self._optimizer._batches.values() for b in own if b.params[0].grad is not None]
        if not self._known and min([groups[0]["taken"], *(b.step for b in batches)]) < max(
            group["refresh"] for group in groups
        ):
            return MuSOAP._on_device(self._optimizer, groups)
        params = [p for group in groups for p in group["params"]]
        found = {
            "gradients": [None if p.grad is None else p.grad.data_ptr() for p in params],
            "weights": [p.data_ptr() for p in params],
            "states": batches,
            "settings": [[group[name] for name in _FROZEN] for group in groups],
        }
        self._known = self._known or found
        if changed := [what for what in found if found[what] != self._known[what]]:
            raise MupError(
                f"The {' and '.join(changed)} of this optimizer changed after steps were captured, but a CUDA graph uses "
                "fixed addresses and settings. Call optimizer.zero_grad(set_to_none=False). After any other change, call "
                "neuralop_mup.capture_steps(optimizer) again."
            )
        for rate, group in zip(self._rates, groups, strict=True):
            rate.fill_(effective_lr(group))
        place = groups[0]["taken"] % self._optimizer.cycle
        if place in self._graphs:
            for batch in batches:
                batch.count_step()
        else:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                own = (
                    {**g, **dict.fromkeys(FACTORS, 1.0), "lr": rate, "weight_decay": effective_decay(g)}
                    for g, rate in zip(groups, self._rates, strict=True)
                )
                MuSOAP._on_device(self._optimizer, list(own))
            self._graphs[place] = graph
        self._graphs[place].replay()
