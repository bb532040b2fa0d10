"""Optimizers that need no tuning according to their authors, and others with the settings that their authors recommend.

Prodigy (arXiv 2306.06101), D-Adaptation (2301.07733) and schedule-free AdamW (2405.15682) as pytorch_optimizer has them, on
real views of complex kernels; stock SOAP (2409.11321), and torch's Muon with AdamW for what is no matrix.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
from torch import nn

from experiments.contenders import OnViews, matrices_and_rest
from neuralop_mup.lab.settings import Choice

_STANDARD = {"rule": "standard", "kernel_init": "default"}


def prodigy(model: nn.Module, lr: float, steps: int) -> torch.optim.Optimizer:
    """Return Prodigy with a factor of 1 and a cosine, as its authors recommend.

    Without the correction of biases, which it has as an option, it diverges in its first steps on Burgers.
    """
    from pytorch_optimizer import Prodigy

    return OnViews([(partial(Prodigy, lr=lr, bias_correction=True), list(model.parameters()))], lr)


def d_adaptation(model: nn.Module, lr: float, steps: int) -> torch.optim.Optimizer:
    """Return D-Adaptation's Adam, with a factor of 1, and with the correction of biases as for Prodigy."""
    from pytorch_optimizer import DAdaptAdam

    return OnViews([(partial(DAdaptAdam, lr=lr, bias_correction=True), list(model.parameters()))], lr)


def schedule_free(model: nn.Module, lr: float, steps: int) -> torch.optim.Optimizer:
    """Return schedule-free AdamW with a warm-up. Its rate stays constant, and the last step leaves the averaged weights."""
    from pytorch_optimizer import ScheduleFreeAdamW

    make = partial(ScheduleFreeAdamW, lr=lr, warmup_steps=max(1, steps // 20))
    optimizer, taken = OnViews([(make, list(model.parameters()))], lr), itertools.count(1)

    def keep_rate(*_: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = lr

    def average(*_: Any) -> None:
        if next(taken) == steps:
            optimizer.inner[0].eval()

    optimizer.register_step_pre_hook(keep_rate)
    optimizer.register_step_post_hook(average)
    return optimizer


def muon(model: nn.Module, lr: float, steps: int) -> torch.optim.Optimizer:
    """Return Muon for matrices, and AdamW at 0.015 of its rate for the rest, as the authors of Muon recommend."""
    matrices, rest = matrices_and_rest(model)
    adamw = partial(torch.optim.AdamW, lr=0.015 * lr, betas=(0.9, 0.95), weight_decay=0.01)
    both = OnViews([(partial(torch.optim.Muon, lr=lr, weight_decay=0.01), matrices), (adamw, rest)], lr)
    both.param_groups[1]["lr"] = 0.015 * lr
    return both


#: Name → settings of a run.
PEERS: dict[str, dict[str, Any]] = {
    "Prodigy": {"optimizer": "prodigy", "lr": 1.0, **_STANDARD},
    "D-Adaptation": {"optimizer": "d-adaptation", "lr": 1.0, **_STANDARD},
    "schedule-free AdamW": {"optimizer": "schedule-free", "lr": 2.5e-3, **_STANDARD},
    "stock SOAP": {"optimizer": "stock-soap", "lr": 3e-3, "weight_decay": 0.01, **_STANDARD},
    "Muon and AdamW": {"optimizer": "muon", "lr": 0.02, **_STANDARD},
    "Adam at 0.001": {"optimizer": "adam", "lr": 1e-3, **_STANDARD},
}
OPTIMIZERS = {
    "prodigy": Choice(prodigy, user_defined=True),
    "d-adaptation": Choice(d_adaptation, user_defined=True),
    "schedule-free": Choice(schedule_free, user_defined=True),
    "muon": Choice(muon, user_defined=True),
}
