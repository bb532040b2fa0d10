"""Small models for tests."""

from __future__ import annotations

import copy
from typing import Any

import torch
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from support.cases import Case

KERNEL = "fno_blocks.convs.0.weight.tensor"


def small_fno(rule="log-modes", width=12, modes=(8,), **kwargs):
    torch.manual_seed(0)
    model = FNO(modes, 2, 3, width, **{"n_layers": 2, **kwargs})
    base = {"hidden_channels": 4} if rule != "operator-norm" else {"hidden_channels": 4, "n_modes": (4,) * len(modes)}
    return nm.parametrize(model, base=base, rule=rule)


def parametrized(case: Case, seed: int = 0, **kwargs: Any) -> nn.Module:
    """Return the case's model, parametrized with the case's base."""
    return nm.parametrize(case.build(seed), base=case.base, **kwargs)


def in_double(model):
    """Convert weights to double precision, including complex ones, which ``model.double()`` does not convert."""
    for p in model.parameters():
        p.data = p.data.to(torch.complex128 if p.is_complex() else torch.float64)
    return model


class Wrapper(nn.Module):
    """A class that is not registered, and that does not keep its constructor arguments."""

    def __init__(self, inner):
        super().__init__()
        self.inner = nn.ModuleDict({"net": inner})

    def forward(self, *args, **kwargs):
        return self.inner["net"](*args, **kwargs)


def draws_in_other_order(case: Case) -> bool:
    """Whether the constructor draws layers in another order than the model holds them in."""
    return case.name in ("uno", "uno_tucker", "rno", "rno_tucker") or "physicsnemo_fno" in case.name


def pending(case):
    """Return the case's model on the meta device, parametrized."""
    with torch.device("meta"):
        model = case.build()
    return nm.parametrize(model, base=case.base)


def drawn(case, seed=0):
    """Return the case's model, initialized after the meta device."""
    model = pending(case).to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):  # so that a tensor that is not drawn shows
        tensor.data.fill_(float("nan") if tensor.is_floating_point() or tensor.is_complex() else -7)
    torch.manual_seed(seed)
    return nm.initialize(model)


def built(model=None, **settings):
    """Return a model, its MuSOAP, and a copy of the model before any step."""
    model = model or small_fno()
    return model, nm.MuSOAP(model, **settings), copy.deepcopy(model)
