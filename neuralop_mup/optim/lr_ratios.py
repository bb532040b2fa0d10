"""Whether an optimizer's learning rates follow a plan: as they were built, and whatever a scheduler made of them since."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from statistics import median_low
from typing import Any

import torch

__all__ = ["off_plan", "off_rule", "readable"]

# What changes a learning rate by less than this changes no training: best learning rates are flat over much more.
_TOLERANCE = 1e-2
# Chained products of schedulers round by far less.
_ROUNDING = 1e-6
# Learning rates that somebody worked out and wrote down.
_SAME = 1e-5


def off_rule(
    groups: Sequence[Mapping[str, Any]], parameters: Mapping[str, torch.Tensor], mults: Mapping[str, float]
) -> set[str]:
    """Names of the parameters whose groups were not built by the rule that ``mults`` are of.

    Groups of :func:`neuralop_mup.param_groups` keep the rule's part of their learning rates as ``rule_mult``. Of others the
    learning rates have to stand in the rule's ratios, among themselves and to our groups beside them; those of zero tell
    nothing. Groups with ``layouts`` are MuMuon's and MuSOAP's own, which follow the depth of a model alone.

    Parameters
    ----------
    groups : sequence of dict
        An optimizer's param groups.
    parameters : mapping
        Those of the model, by name.
    mults : mapping
        The rule's multiplier for each parameter to look at, by its name; the others are left out.
    """
    held = {p: group for group in groups if not group.get("layouts") for p in group["params"]}
    looked_at = {name: held[parameters[name]] for name in mults if parameters[name] in held}
    ours = {name: group["rule_mult"] for name, group in looked_at.items() if "rule_mult" in group}
    plain = {name: float(group["lr"]) / mults[name] for name, group in looked_at.items() if name not in ours}
    known = [float(g["lr"]) / g["lr_mult"] for g in groups if g.get("lr_mult") and not g.get("layouts")] if plain else []
    base = next((value for value in (*known, *plain.values()) if value), 0.0)
    return {name for name, mult in ours.items() if not math.isclose(mult, mults[name], rel_tol=_ROUNDING)} | {
        name for name, value in plain.items() if value and not math.isclose(value, base, rel_tol=_SAME)
    }


def off_plan(groups: Sequence[Mapping[str, Any]]) -> str | None:
    """What is wrong with the learning rates of ``groups``, in a sentence, or None.

    Every group of :func:`neuralop_mup.param_groups` holds ``lr_mult``, its learning rate over the base's. While
    schedulers scale, ``lr / lr_mult`` is one number for all groups: the base learning rate of this step. MuMuon and MuSOAP
    have two, that of kernels and hidden layers (groups with ``layouts``) and AdamW's, which stand to each other as the
    ``base_lr`` that they were given do, or as somebody set them before a scheduler began.

    Parameters
    ----------
    groups : sequence of dict
        An optimizer's param groups. Groups without ``lr_mult`` (added by somebody else), frozen ones (``lr = 0``) and
        those whose lr is a tensor on an accelerator (reading it would wait for the device) are left out.
    """
    ours = [g for g in groups if g.get("lr_mult") and readable(g["lr"]) and g["lr"] != 0]
    if not any(g.get("layouts") for g in groups):
        return _off_base(ours, [g["lr_mult"] for g in ours], "max_lr * g['lr_mult']")
    each = "g['lr']"
    for kind in (True, False):
        part = [g for g in ours if bool(g.get("layouts")) == kind]
        if problem := _off_base(part, [g["lr_mult"] for g in part], each):
            return problem
    return _off_each_other(ours, each)


def _off_each_other(groups: Sequence[Mapping[str, Any]], each: str) -> str | None:
    """What is wrong between groups of two base learning rates."""
    if not all(g.get("base_lr") for g in groups):  # zero, or in a state that was saved before it was kept
        return None
    given = [g["lr_mult"] * g["base_lr"] for g in groups]
    if (problem := _off_base(groups, given, each)) is None:
        return None
    lrs = [float(g["lr"]) for g in groups]
    if _is_one(lrs) or _is_one([lr / g["lr_mult"] for lr, g in zip(lrs, groups, strict=True)]):
        return problem  # absolute values, as if there were one base
    # Somebody may have set another ratio by hand. What a schedule started from, it has to keep.
    if not all(readable(g.get("initial_lr")) and g["initial_lr"] > 0 for g in groups):
        return None
    return _off_base(groups, [float(g["initial_lr"]) for g in groups], each)


def _is_one(values: Sequence[float]) -> bool:
    return max(values, default=0.0) - min(values, default=0.0) <= _ROUNDING * max(values, default=0.0)


def _off_base(groups: Sequence[Mapping[str, Any]], mults: Sequence[float], each: str) -> str | None:
    """What is wrong among groups whose learning rates ought to be these multiples of one number.

    ``each`` is what a scheduler may be given for group g. What is off by little next to what a group started with tells
    nothing: at the end of a cosine learning rates are zero but for rounding, or for a floor far below them.
    """
    if len(groups) < 2:
        return None
    lrs = [float(g["lr"]) for g in groups]
    usual = median_low(lr / mult for lr, mult in zip(lrs, mults, strict=True))
    expected = [usual * mult for mult in mults]
    starts = [float(g["initial_lr"]) if readable(g.get("initial_lr")) else 0.0 for g in groups]
    off = [abs(lr - e) / max(lr, e, start) for lr, e, start in zip(lrs, expected, starts, strict=True)]
    worst = max(range(len(groups)), key=off.__getitem__)
    if off[worst] <= _TOLERANCE:
        return None
    if len(set(lrs)) == 1:
        what = f"groups {_listed(groups)} have the same learning rate, {lrs[0]:.4g}"
    else:
        name = _name(groups[worst])
        what = f"group {name} has a learning rate of {lrs[worst]:.4g}, where {expected[worst]:.4g} follows from the others"
    return (
        f"Learning rates do not stand in the plan's ratios: {what}. A scheduler or callback set absolute values over the "
        "groups' own. Give it one value a group, e.g. "
        f"OneCycleLR(optimizer, max_lr=[{each} for g in optimizer.param_groups]), or one that scales; "
        "leave floors (eta_min, min_lr, swa_lr) at zero or give them likewise. If you set a group's lr on purpose, set its "
        "'lr_mult' with it. (Said once for each optimizer.)"
    )


def _name(group: Mapping[str, Any]) -> str:
    return repr(group.get("name", "(unnamed)"))


def _listed(groups: Sequence[Mapping[str, Any]]) -> str:
    names = list(map(_name, groups))
    return ", ".join(names[:-1]) + f" and {names[-1]}"


def readable(lr: object) -> bool:
    """Whether a learning rate is a number that can be had without waiting for an accelerator."""
    if isinstance(lr, torch.Tensor):
        return lr.device.type == "cpu"
    return isinstance(lr, Real) and math.isfinite(lr)
