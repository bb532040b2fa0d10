"""torch's fused Adam for models with complex parameters, which it refuses: it is handed pairs of real numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from neuralop_mup.errors import MupError

__all__ = ["fused_through_pairs"]


def fused_through_pairs(impl: Callable[..., torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """``torch.optim.Adam`` or ``AdamW`` whose ``fused=True`` takes complex parameters; anything else as it is.

    Each operator moves all parameters of one type; real and imaginary parts move apart, as they do in torch's Adam without
    ``fused``. States are those of torch's, complex where parameters are.
    """
    return {torch.optim.Adam: _FusedAdam, torch.optim.AdamW: _FusedAdamW}.get(impl, impl)  # type: ignore[call-overload]


class _ThroughPairs(torch.optim.Optimizer):
    """Sets ``fused`` once torch's constructor, which refuses it for complex parameters, is done."""

    def __init__(self, params: Any, fused: bool = True, **settings: Any) -> None:
        for name in ("foreach", "differentiable"):
            if settings.get(name):
                raise MupError(f"fused=True and {name}=True exclude each other: leave one of them out.")
        super().__init__(params, **settings)
        for group in (self.defaults, *self.param_groups):
            group["fused"] = True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step, as torch's."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if not self.state[p]:
                    self.state[p]["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
                    names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * group["amsgrad"]
                    self.state[p].update({name: torch.zeros_like(p) for name in names})
            states = [self.state[p] for p in params]
            is_decoupled = isinstance(self, torch.optim.AdamW) or group.get("decoupled_weight_decay")
            step = adamw if is_decoupled else adam
            step(
                _pairs(params),
                _pairs([p.grad for p in params if p.grad is not None]),
                _pairs([state["exp_avg"] for state in states]),
                _pairs([state["exp_avg_sq"] for state in states]),
                _pairs([state["max_exp_avg_sq"] for state in states if group["amsgrad"]]),
                [state["step"] for state in states],
                fused=True,
                amsgrad=group["amsgrad"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=group["maximize"],
                grad_scale=getattr(self, "grad_scale", None),
                found_inf=getattr(self, "found_inf", None),
            )
        return loss


class _FusedAdam(_ThroughPairs, torch.optim.Adam):
    """torch.optim.Adam."""


class _FusedAdamW(_ThroughPairs, torch.optim.AdamW):
    """torch.optim.AdamW."""


def _pairs(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in tensors]
