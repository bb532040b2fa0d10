"""AdamW for what has no matrix updates: torch's own, with averages in float32 or better."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch.optim.adamw import adamw

from neuralop_mup.optim.matrix.tensors import wide, wide_type

__all__ = ["adamw_step"]


def adamw_step(group: Mapping[str, Any], states: MutableMapping[torch.Tensor, dict[str, Any]]) -> None:
    """Move the parameters of a group that have a gradient."""
    params = [p for p in group["params"] if p.grad is not None]
    capturable = group["capturable"] and all(p.device.type != "cpu" for p in params)  # torch has none on a CPU
    for p in params:
        if not states[p]:
            # Whatever the default type: bfloat16 cannot count past 256.
            device = p.device if capturable else None
            step = torch.tensor(0.0, dtype=torch.float32, device=device)
            averages = {name: torch.zeros_like(p, dtype=wide_type(p)) for name in ("exp_avg", "exp_avg_sq")}
            states[p].update(step=step, **averages)
    own, moved = [states[p] for p in params], [wide(p) for p in params]
    adamw(
        moved,
        [wide(p.grad) for p in params if p.grad is not None],
        [state["exp_avg"] for state in own],
        [state["exp_avg_sq"] for state in own],
        [],
        [state["step"] for state in own],
        foreach=group["foreach"] if capturable or not torch.is_tensor(group["lr"]) else False,
        capturable=capturable,
        has_complex=any(p.is_complex() for p in params),
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
    for p, new in zip(params, moved, strict=True):
        if new is not p:
            p.copy_(new)
