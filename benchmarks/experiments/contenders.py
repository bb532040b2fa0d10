"""Optimizers of others, on neuralop's models: what they do not take as it is, they get as a view.

Stock SOAP (arXiv 2409.11321, as pytorch_optimizer has it) refuses complex kernels, and torch's Muon takes matrices alone.
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
    """Optimizers of real views of a model's parameters, which share their storage, as one.

    Learning rates are those of its own groups, one an optimizer, so that schedulers work.
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
    """Real and imaginary part as a last axis; a convolution of one point as the matrix that it is."""
    if values.is_complex():
        return torch.view_as_real(values)
    return values.squeeze(-1) if values.ndim == 3 and values.shape[-1] == 1 else values


def stock_soap(model: nn.Module, lr: float, weight_decay: float = 0.0, lr_mult: Any = None) -> torch.optim.Optimizer:
    """SOAP with its own defaults but for weight decay, on real views."""
    from pytorch_optimizer import SOAP

    return OnViews([(partial(SOAP, lr=lr, weight_decay=weight_decay), list(model.parameters()))], lr)


def matrices_and_rest(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the real matrices of a model, and its other parameters."""
    matrices = [p for p in model.parameters() if not p.is_complex() and _view(p).ndim == 2 and min(_view(p).shape) > 1]
    return matrices, [p for p in model.parameters() if all(p is not m for m in matrices)]


def stock_muon(model: nn.Module, lr: float, weight_decay: float = 0.0, lr_mult: Any = None) -> torch.optim.Optimizer:
    """torch's Muon for matrices, with the size of AdamW's updates, and AdamW for the rest, kernels among them."""
    matrices, rest = matrices_and_rest(model)
    muon = partial(torch.optim.Muon, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
    return OnViews([(muon, matrices), (partial(torch.optim.AdamW, lr=lr, weight_decay=weight_decay), rest)], lr)


def warmed_adamw(model: nn.Module, lr: float, steps: int, decay: float) -> torch.optim.Optimizer:
    """AdamW, whose learning rate rises linearly over the first twentieth of a training, besides its schedule."""
    optimizer, rise = MuAdamW(model, lr=lr, weight_decay=decay), max(1, steps // 20)
    taken = itertools.count(1)

    def lower(*_: Any) -> None:
        share = min(1.0, next(taken) / rise)
        for group in optimizer.param_groups:
            group["asked"], group["lr"] = group["lr"], share * group["lr"]

    def restore(*_: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = group.pop("asked")

    optimizer.register_step_pre_hook(lower)
    optimizer.register_step_post_hook(restore)
    return optimizer


#: Arguments that optimizers had, with their defaults: runs that are kept are known by them.
FORMER: dict[str, dict[str, Any]] = {
    "adam": {"scale_eps": False},
    "adam-eps": {"scale_eps": False},
    "soap": {"basis_beta": 0.95, "nesterov": True, "size": "schatten"},
}
#: Arguments whose names changed, and their names in kept runs.
KEPT_NAMES = {"adamw_lr": "aux_lr", "mode_stride": "period"}
#: Weight decays of AdamW: torch's, and a larger one; that of neuralop's scripts, 1e-4, takes next to nothing.
DECAYS = (1e-2, 1e-1)
_SOAP = settings.OPTIMIZERS["soap"]
#: What a run may name: the package's own, and these.
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
#: Choices of which runs are kept, and none are made any more.
GONE = frozenset({"sizes by squares", "no look ahead", "basis_beta 0.99"})


def kept_arguments(optimizer: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an optimizer as kept runs have them: without ``start_error``, whose default does nothing."""
    now = {KEPT_NAMES.get(name, name): value for name, value in arguments.items() if name != "start_error"}
    return {**FORMER.get(optimizer, {}), **now}
