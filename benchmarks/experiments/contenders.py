"""Optimizers in comparisons: their settings in runs, and optimizers of other packages.

Prodigy (arXiv:2306.06101), D-Adaptation (arXiv:2301.07733), schedule-free AdamW (arXiv:2405.15682) and SOAP
(arXiv:2409.11321) are those of pytorch_optimizer. They and torch's Muon do not accept complex kernels, so they get real
views of the parameters of neuralop's models.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from neuralop_mup.lab import settings
from neuralop_mup.lab.settings import Choice
from neuralop_mup.optim.groups import MuAdam, MuAdamW

#: Weight decays of AdamW: torch's default and a larger one. That of neuralop's scripts, 1e-4, has almost no effect.
DECAYS = (1e-2, 1e-1)
#: The parametrization and the initial values of neuralop.
STANDARD = {"rule": "standard", "kernel_init": "default"}
MUSOAP = {"optimizer": "soap", "kernel_init": "small"}
#: Name → settings of a run, in the order of training. A search begins at ``lr``, by default at MuSOAP's default.
CONTENDERS = {
    "MuSOAP": MUSOAP,
    "MuSOAP, no weight decay": {**MUSOAP, "weight_decay": 0.0},
    "Adam": {"optimizer": "adam", "lr": 4e-3, **STANDARD},
    "stock SOAP": {"optimizer": "stock-soap", "lr": 4e-3, **STANDARD, "kernel_init": "small"},
    "MuAdamW": {"optimizer": "adamw", "lr": 8e-3, "kernel_init": "small"},
    "torch's Muon and AdamW": {"optimizer": "stock-muon", "lr": 4e-3, **STANDARD},
    "AdamW": {"optimizer": "adamw", "lr": 4e-3, "weight_decay": 0.01, **STANDARD},
    "Adam, eps 1e-6": {"optimizer": "adam-eps", "lr": 4e-3, **STANDARD},
    "Adam, beta2 0.95": {"optimizer": "adam", "lr": 4e-3, "beta2": 0.95, **STANDARD},
    **{
        f"AdamW, warm-up, decay {decay:g}": {"optimizer": f"adamw-warm-{decay:g}", "lr": 4e-3, **STANDARD}
        for decay in DECAYS
    },
}
#: Optimizers that need no tuning according to their authors, and others with the settings that their authors recommend.
PEERS = {
    "Prodigy": {"optimizer": "prodigy", "lr": 1.0, **STANDARD},
    "D-Adaptation": {"optimizer": "d-adaptation", "lr": 1.0, **STANDARD},
    "schedule-free AdamW": {"optimizer": "schedule-free", "lr": 2.5e-3, **STANDARD},
    "stock SOAP": {"optimizer": "stock-soap", "lr": 3e-3, "weight_decay": 0.01, **STANDARD},
    "Muon and AdamW": {"optimizer": "muon", "lr": 0.02, **STANDARD},
    "Adam at 0.001": {"optimizer": "adam", "lr": 1e-3, **STANDARD},
}


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


def on_all_views(make: Callable[..., torch.optim.Optimizer], model: nn.Module, lr: float, **arguments: Any) -> OnViews:
    """Return an optimizer of the real views of all parameters."""
    return OnViews([(partial(make, lr=lr, **arguments), list(model.parameters()))], lr)


def _of_package(name: str) -> Callable[..., torch.optim.Optimizer]:
    """Return a function that makes an optimizer of pytorch_optimizer, which is imported when it is called."""

    def make(*parameters: Any, **arguments: Any) -> torch.optim.Optimizer:
        import pytorch_optimizer

        return getattr(pytorch_optimizer, name)(*parameters, **arguments)

    return make


def stock_soap(model: nn.Module, lr: float, weight_decay: float = 0.0, lr_mult: Any = None) -> torch.optim.Optimizer:
    """Return SOAP on real views, with its own defaults except for weight decay."""
    return on_all_views(_of_package("SOAP"), model, lr, weight_decay=weight_decay)


def stock_muon(model: nn.Module, lr: float, weight_decay: float = 0.0, lr_mult: Any = None) -> torch.optim.Optimizer:
    """Return Muon for matrices, with updates of AdamW's size, and AdamW for kernels and all other parameters."""
    return _muon(model, lr, 1.0, {"adjust_lr_fn": "match_rms_adamw"}, {}, weight_decay)


def muon(model: nn.Module, lr: float, steps: int) -> torch.optim.Optimizer:
    """Return Muon for matrices, and AdamW at 0.015 of its rate for the rest, as the authors of Muon recommend."""
    return _muon(model, lr, 0.015, {}, {"betas": (0.9, 0.95)}, 0.01)


def _muon(
    model: nn.Module, lr: float, of_lr: float, for_muon: Mapping[str, Any], for_adamw: Mapping[str, Any], decay: float
) -> torch.optim.Optimizer:
    """Return Muon for the real matrices of a model, and AdamW at a part of its rate for the other parameters."""
    matrices = [p for p in model.parameters() if not p.is_complex() and _view(p).ndim == 2 and min(_view(p).shape) > 1]
    rest = [p for p in model.parameters() if all(p is not m for m in matrices)]
    adamw = partial(torch.optim.AdamW, lr=of_lr * lr, weight_decay=decay, **for_adamw)
    both = OnViews([(partial(torch.optim.Muon, lr=lr, weight_decay=decay, **for_muon), matrices), (adamw, rest)], lr)
    both.param_groups[-1]["lr"] = of_lr * lr
    return both


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


def adaptive(model: nn.Module, lr: float, steps: int, name: str) -> torch.optim.Optimizer:
    """Return Prodigy or D-Adaptation with a factor of 1 and a cosine, as the authors of Prodigy recommend.

    Without the correction of biases, which it has as an option, Prodigy diverges in its first steps on Burgers.
    """
    return on_all_views(_of_package(name), model, lr, bias_correction=True)


def schedule_free(model: nn.Module, lr: float, steps: int) -> torch.optim.Optimizer:
    """Return schedule-free AdamW with a warm-up. Its rate stays constant, and the last step leaves the averaged weights."""
    optimizer = on_all_views(_of_package("ScheduleFreeAdamW"), model, lr, warmup_steps=max(1, steps // 20))
    taken = itertools.count(1)

    def keep_rate(*_: Any) -> None:
        optimizer.param_groups[0]["lr"] = lr

    def average(*_: Any) -> None:
        if next(taken) == steps:
            optimizer.inner[0].eval()

    optimizer.register_step_pre_hook(keep_rate)
    optimizer.register_step_post_hook(average)
    return optimizer


#: Former arguments of optimizers, with their defaults. The keys of older runs contain them.
FORMER = {
    "adam": {"scale_eps": False},
    "adam-eps": {"scale_eps": False},
    "soap": {"basis_beta": 0.95, "nesterov": True, "size": "schatten"},
}
#: Name of an argument → its former name in the keys of runs.
FORMER_NAMES = {"adamw_lr": "aux_lr", "mode_stride": "period"}
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
    "prodigy": Choice(partial(adaptive, name="Prodigy"), user_defined=True),
    "d-adaptation": Choice(partial(adaptive, name="DAdaptAdam"), user_defined=True),
    "schedule-free": Choice(schedule_free, user_defined=True),
    "muon": Choice(muon, user_defined=True),
    "soap": replace(_SOAP, arguments=_SOAP.arguments | FORMER["soap"].keys()),
}


def arguments_in_key(optimizer: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an optimizer in the form of the keys of runs. ``start_error`` has no effect by default."""
    named = {FORMER_NAMES.get(name, name): value for name, value in arguments.items() if name != "start_error"}
    return {**FORMER.get(optimizer, {}), **named}
