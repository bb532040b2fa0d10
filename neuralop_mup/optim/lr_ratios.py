"""Whether learning rates still stand in the plan's ratios, whatever a scheduler or a callback made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from statistics import median_low
from typing import Any

import torch

__all__ = ["off_plan", "readable"]

# Chained products of schedulers round by far less; a floor such as eta_min shows within a few steps.
_TOLERANCE = 1e-5
# At the end of a cosine every learning rate is zero but for rounding, and those leftovers stand in no ratio.
_NEGLIGIBLE = 1e-9


def off_plan(groups: Sequence[Mapping[str, Any]]) -> str | None:
    """What is wrong with the learning rates of ``groups``, in a sentence, or None.

    Every group of :func:`neuralop_mup.param_groups` holds ``lr_mult``, its learning rate over the base's. While
    schedulers scale, ``lr / lr_mult`` is one number for all groups: the base learning rate of this step. MuMuon and MuSOAP
    have two, that of kernels and hidden layers (groups with ``layouts``) and AdamW's.

    Parameters
    ----------
    groups : sequence of dict
        An optimizer's param groups. Groups without ``lr_mult`` (added by somebody else), frozen ones (``lr = 0``) and
        those whose lr is a tensor on an accelerator (reading it would wait for the device) are left out.
    """
    matrices = [bool(g.get("layouts")) for g in groups]
    if any(matrices):
        sets = [[g for g, own in zip(groups, matrices, strict=True) if own == kind] for kind in (True, False)]
        return next(filter(None, (_off_base(part, "g['lr']") for part in sets)), None)
    return _off_base(groups, "max_lr * g['lr_mult']")


def _off_base(groups: Sequence[Mapping[str, Any]], each: str) -> str | None:
    """What is wrong among groups of one base learning rate; ``each`` is what a scheduler may be given for group g."""
    ours = [g for g in groups if g.get("lr_mult") and readable(g["lr"]) and g["lr"] != 0]
    if len(ours) < 2:
        return None
    base = [float(g["lr"]) / g["lr_mult"] for g in ours]
    if max(base) - min(base) <= _TOLERANCE * max(base):
        return None
    scale = max(float(g["initial_lr"]) / g["lr_mult"] if readable(g.get("initial_lr")) else 0.0 for g in ours)
    if max(base) <= _NEGLIGIBLE * scale:
        return None
    lrs = {float(g["lr"]) for g in ours}
    if len(lrs) == 1:
        what = f"all {len(ours)} groups have the same learning rate, {lrs.pop():.4g}"
    else:
        usual = median_low(base)
        group, _ = max(zip(ours, base, strict=True), key=lambda pair: abs(pair[1] - usual))
        what = (
            f"group {group.get('name', '(unnamed)')!r} has a learning rate of {float(group['lr']):.4g}, where "
            f"{usual * group['lr_mult']:.4g} follows from the others"
        )
    return (
        f"Learning rates do not stand in the plan's ratios: {what}. A scheduler or callback set absolute values over the "
        "groups' own. Give it one value a group, e.g. "
        f"OneCycleLR(optimizer, max_lr=[{each} for g in optimizer.param_groups]), or one that scales; "
        "leave floors (eta_min, min_lr) at zero or give them likewise. If you set a group's lr on purpose, set its "
        "'lr_mult' with it. (Said once for each optimizer.)"
    )


def readable(lr: object) -> bool:
    """Whether a learning rate is a number that can be had without waiting for an accelerator."""
    if isinstance(lr, torch.Tensor):
        return lr.device.type == "cpu"
    return isinstance(lr, Real) and math.isfinite(lr)
