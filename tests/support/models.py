"""Small models, as most tests need them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from support.cases import BY_NAME, Case

KERNEL = "fno_blocks.convs.0.weight.tensor"
OTHER_ORDER = tuple(name for name in ("uno", "uno_tucker", "rno", "rno_tucker") if name in BY_NAME)
OTHER_ORDER += tuple(name for name in BY_NAME if "physicsnemo_fno" in name)


def small_fno(rule="log-modes", width=12, modes=(8,), **kwargs):
    torch.manual_seed(0)
    model = FNO(modes, 2, 3, width, **{"n_layers": 2, **kwargs})
    base = {"hidden_channels": 4} if rule != "operator-norm" else {"hidden_channels": 4, "n_modes": (4,) * len(modes)}
    return nm.parametrize(model, base=base, rule=rule)


def parametrized(case: Case, seed: int = 0, **kwargs: Any) -> nn.Module:
    """The case's model with its own base."""
    return nm.parametrize(case.build(seed), base=case.base, **kwargs)


def in_double(model):
    """Weights in double precision, complex ones too, which ``model.double()`` leaves."""
    for p in model.parameters():
        p.data = p.data.to(torch.complex128 if p.is_complex() else torch.float64)
    return model


class Wrapper(nn.Module):
    """Nobody described this class, and it keeps nothing of how it was built."""

    def __init__(self, inner):
        super().__init__()
        self.inner = nn.ModuleDict({"net": inner})

    def forward(self, *args, **kwargs):
        return self.inner["net"](*args, **kwargs)


def pending(case):
    with torch.device("meta"):
        model = case.build()
    return nm.parametrize(model, base=case.base)


def drawn(case, seed=0):
    model = pending(case).to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):  # whatever is not drawn shows
        tensor.data.fill_(float("nan") if tensor.is_floating_point() or tensor.is_complex() else -7)
    torch.manual_seed(seed)
    return nm.initialize(model)


def built(model=None, **settings):
    """A model, MuSOAP of it, and the model before any step."""
    model = model or small_fno()
    return model, nm.MuSOAP(model, **settings), copy.deepcopy(model)
