"""Optimizers of other packages, adapted to the parameters of neuralop's models by real views.

The SOAP of pytorch_optimizer (arXiv:2409.11321) rejects complex kernels, and torch's Muon accepts only matrices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from neuralop_mup.lab import settings
from neuralop_mup.lab.settings import Choice
from neuralop_mup.optim.groups import MuAdam, MuAdamW


class OnViews(torch.optim.Optimizer):
    """Combine optimizers of real views of a model's parameters.

    The views share the storage of the parameters. There is one parameter group for each optimizer, and its learning rate is
    used, so schedulers work.
    """

    def __init__(self, parts: Iterable[tuple[Any, list[nn.Parameter]]], lr: float) -> None:
        parts = [(make, params) for make, params in parts if params]
        self._views = [[(p, _view(p.detach())) for p in params] for _, params in parts]
        self.inner = [make([view for _, view in own]) for (make, _), own in zip(parts, self._views, strict=True)]
        super().__init__([{"params": params} for _, params in parts], {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group, views, inner in zip(self.param_groups, self._views, self.inner, strict=True):
            for own in inner.param_groups:
                own["lr"] = group["lr"]
            for p, view in views:
                view.grad = None if p.grad is None else _view(p.grad)
            inner.step()


def _view(values: torch.Tensor) -> torch.Tensor:
    """Return a real view: real and imaginary parts become the last axis, and pointwise convolutions become matrices."""
    if values.is_complex():
        return torch.view_as_real(values)
    return values.squeeze(-1) if values.ndim == 3 and values.shape[-1] == 1 else values


def stock_soap(model: nn.Module, lr: float, weight_decay: float = 0.0, lr_mult: Any = None) -> torch.optim.Optimizer:
    """Return SOAP on real views, with its own defaults except for weight decay."""
    from pytorch_optimizer import SOAP

    return OnViews([(partial(SOAP, lr=lr, weight_decay=weight_decay), list(model.parameters()))], lr)


def matrices_and_rest(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the real matrices of a model and its other parameters."""
    matrices = [p for p in model.parameters() if not p.is_complex() and _view(p).ndim == 2 and min(_view(p).shape) > 1]
    return matrices, [p for p in model.parameters() if all(p is not m for m in matrices)]


def stock_muon(model: nn.Module, lr: float, weight_decay: float = 0.0, lr_mult: Any = None) -> torch.optim.Optimizer:
    """Return Muon for matrices, with updates of AdamW's size, and AdamW for kernels and all other parameters."""
    matrices, rest = matrices_and_rest(model)
    muon = partial(torch.optim.Muon, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
    return OnViews([(muon, matrices), (partial(torch.optim.AdamW, lr=lr, weight_decay=weight_decay), rest)], lr)


def warmed_adamw(model: nn.Module, lr: float, steps: int, decay: float) -> torch.optim.Optimizer:
    """Return AdamW with a linear warm-up over the first 5 % of the steps, in addition to its schedule."""
    optimizer, rise = MuAdamW(model, lr=lr, weight_decay=decay), max(1, steps // 20)
    taken = itertools.count(1)

    def lower(*_: Any) -> None:
        share = min(1.0, next(taken) / rise)
        for group in optimizer.param_groups:
            group["scheduled"], group["lr"] = group["lr"], share * group["lr"]

    def restore(*_: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = group.pop("scheduled")

    optimizer.register_step_pre_hook(lower)
    optimizer.register_step_post_hook(restore)
    return optimizer


#: Former arguments of optimizers, with their defaults. The keys of older runs contain them.
FORMER: dict[str, dict[str, Any]] = {
    "adam": {"scale_eps": False},
    "adam-eps": {"scale_eps": False},
    "soap": {"basis_beta": 0.95, "nesterov": True, "size": "schatten"},
}
#: Name of an argument → its former name in the keys of runs.
FORMER_NAMES = {"adamw_lr": "aux_lr", "mode_stride": "period"}
#: Weight decays of AdamW: torch's default and a larger one. That of neuralop's scripts, 1e-4, has almost no effect.
DECAYS = (1e-2, 1e-1)
_SOAP = settings.OPTIMIZERS["soap"]
#: Name in a run → optimizer.
OPTIMIZERS = {
    **settings.OPTIMIZERS,
    "stock-soap": Choice(stock_soap, betas=False, lr=3e-3),
    "stock-muon": Choice(stock_muon, betas=False, lr=4e-3),
    "adam-eps": Choice(partial(MuAdam, eps=1e-6)),
    **{
        f"adamw-warm-{decay:g}": Choice(partial(warmed_adamw, decay=decay), user_defined=True)
        for decay in (0.0, *DECAYS, 0.3)
    },
    "soap": replace(_SOAP, arguments=_SOAP.arguments | FORMER["soap"].keys()),
}


def arguments_in_key(optimizer: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an optimizer in the form of the keys of runs. ``start_error`` has no effect by default."""
    named = {FORMER_NAMES.get(name, name): value for name, value in arguments.items() if name != "start_error"}
    return {**FORMER.get(optimizer, {}), **named}
