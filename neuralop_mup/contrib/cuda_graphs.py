"""Steps of MuSOAP as CUDA graphs, of which the optimizer does not know.

What it does on the host (the learning rate of the step, the end of the training, what is told of bad gradients) is done at
every step. What it does on the device is captured once for each step of a cycle, and replayed in turn.
"""

from __future__ import annotations

from typing import Any

import torch

from neuralop_mup.errors import MupError
from neuralop_mup.optim.learning_rate import FACTORS, effective_decay, effective_lr
from neuralop_mup.optim.musoap.gradient_check import policy_of
from neuralop_mup.optim.musoap.optimizer import MuSOAP

# A graph repeats these as they were. Learning rates it reads from the device.
_FROZEN = ("momentum", "beta2", "period", "refresh", "weight_decay", "betas", "eps", "check")


def capture_steps(optimizer: MuSOAP) -> None:
    """Have ``optimizer.step()`` replay CUDA graphs: few launches a step, where kernels are small.

    The first steps are made as ever. Then ``optimizer.cycle`` steps are captured one by one, each when it is due, and
    replayed in turn. Learning rates, schedules, ``steps`` and ``cooldown`` go on as before. A graph reads gradients where
    they were captured: call ``optimizer.zero_grad(set_to_none=False)``. Copies and pickles make plain steps.

    Parameters
    ----------
    optimizer : MuSOAP
        Of a model on a CUDA device.

    Raises
    ------
    MupError
        If parameters are not on one CUDA device, several processes share the work, or ``check`` is "now"; in a step, if
        gradients, weights, states or settings are no longer those that were captured.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> optimizer = nm.MuSOAP(nm.parametrize(FNO((8,), 1, 1, 16)), steps=1000)
    >>> if torch.cuda.is_available():  # and the model is there
    ...     nm.capture_steps(optimizer)
    """
    params = [p for group in optimizer.param_groups for p in group["params"]]
    devices = ", ".join(sorted({str(p.device) for p in params}))
    policy = policy_of(optimizer.param_groups)
    shared = {optimizer._process_group, optimizer._replicas} != {None} or any(hasattr(p, "placements") for p in params)
    if shared or policy == "now" or {p.device for p in params} - {params[0].device} or not params[0].is_cuda:
        raise MupError(
            "Steps are captured in CUDA graphs where one process has all parameters on one CUDA device and never waits "
            f"for it, but these are on {devices}, {'shared, ' if shared else ''}with check={policy!r}: train without."
        )
    for group in optimizer.param_groups:
        group["capturable"] = True
    optimizer.load_state_dict(optimizer.state_dict())  # which has AdamW's steps counted on the device
    vars(optimizer)["_on_device"] = Captured(optimizer)


class Captured:
    """In place of ``MuSOAP._on_device``."""

    def __init__(self, optimizer: MuSOAP) -> None:
        self._optimizer = optimizer
        self._rates = [torch.zeros((), device=group["params"][0].device) for group in optimizer.param_groups]
        self._pool = torch.cuda.graph_pool_handle()
        self._known: dict[str, list] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def __call__(self, groups: list[dict[str, Any]]) -> None:
        """Make the next step. The first ones, of which no two are alike, are made as ever."""
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
                f"The {' and '.join(changed)} of this optimizer changed or moved since its steps were captured, and a CUDA "
                "graph works on what it was captured with: call optimizer.zero_grad(set_to_none=False), and after any other "
                "change neuralop_mup.capture_steps(optimizer) again."
            )
        for rate, group in zip(self._rates, groups, strict=True):
            rate.fill_(effective_lr(group))
        turn = groups[0]["taken"] % self._optimizer.cycle
        if turn in self._graphs:
            for batch in batches:
                batch.taken()
        else:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                own = (
                    {**g, **dict.fromkeys(FACTORS, 1.0), "lr": rate, "weight_decay": effective_decay(g)}
                    for g, rate in zip(groups, self._rates, strict=True)
                )
                MuSOAP._on_device(self._optimizer, list(own))
            self._graphs[turn] = graph
        self._graphs[turn].replay()
