"""Methods that balance the loss of an equation against that of the data during the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import torch
from neuralop.losses.meta_losses import Relobralo, SoftAdapt
from torch import nn

from neuralop_mup.lab.training import Training


class ConFIG(nn.Module):
    """Combine two losses so that the gradient of the result is that of ConFIG (arXiv 2408.11104).

    For two losses, ConFIG's direction bisects the angle between their gradients g₁ and g₂, so its gradient is
    (‖g₁‖ + ‖g₂‖) / 2 · (g₁ / ‖g₁‖ + g₂ / ‖g₂‖).
    """

    def __init__(self, params: Sequence[nn.Parameter], num_losses: int = 2) -> None:
        super().__init__()
        self.params = params

    def forward(self, losses: Mapping[str, torch.Tensor], step: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the combined loss and the weights, as neuralop's aggregators do."""
        grads = [torch.autograd.grad(loss, self.params, retain_graph=True) for loss in losses.values()]
        norms = [torch.stack([g.norm() for g in own]).norm() for own in grads]
        weights = [sum(norms) / 2 / norm for norm in norms]
        return sum(weight * loss for weight, loss in zip(weights, losses.values(), strict=True)), weights


#: Name → method, with its default arguments.
METHODS = {"SoftAdapt": SoftAdapt, "ReLoBRaLo": Relobralo, "ConFIG": ConFIG}


class BalancedTraining(Training):
    """A training where a method, a key of :data:`METHODS`, balances the loss of the equation against all others."""

    def __init__(self, method: str, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self.method = METHODS[method]

    def prepare(self, s: Any) -> Any:
        """Return the parts of a training, and replace its losses by the balanced one."""
        model, *others = super().prepare(s)
        losses, aggregate, steps = dict(self.losses), self.method(list(model.parameters()), 2), count()
        weight, residual = losses.pop("equation")

        def balanced(y_pred: torch.Tensor, **batch: Any) -> torch.Tensor:
            data = sum(own * loss(y_pred, **batch) for own, loss in losses.values())
            return aggregate({"data": data, "equation": weight * residual(y_pred, **batch)}, next(steps))[0]

        self.losses = {"data": (1.0, balanced)}
        return model, *others
