"""Modes that change while a model trains: which kernels they concern, and the plan at the modes now active.

Under ``max_n_modes`` a kernel holds more modes than it uses; the active ones, ``n_modes`` of its own convolution, may
change at any time. K of the rule is what is active: idle modes get no gradient and leave no trace in the features. Init
is κ at the modes active in ``parametrize``, for the whole tensor, and is never touched again: weights belong to
training. So only learning rates move; they are a function of the present modes, not of the way there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

from torch import nn

from neuralop_mup.core.plan import Plan
from neuralop_mup.core.planning import size_of
from neuralop_mup.core.reading import ParameterInfo, read_layer
from neuralop_mup.core.rules import multipliers
from neuralop_mup.errors import MupError


def present_plan(model: nn.Module, plan: Plan) -> Plan:
    """The plan of a bare model with its learning rates at the modes that each convolution has now.

    Equal to the stored plan, bit for bit, while modes are as they were in ``parametrize``. ``init_mult`` stays what was
    applied then.

    Raises
    ------
    MupError
        If the modes cannot be used: above ``max_n_modes``, or K = 0 on an axis, or K = 1 on all under ``log-modes``.
    """
    found: dict[str, ParameterInfo] = {}
    for owner in dict.fromkeys(row.owner for row in plan.rows if row.role == "spectral"):
        _check_modes(owner, model.get_submodule(owner))
        found |= read_layer(model, owner)
    shapes = {name: f.shape for name, f in found.items()}
    if all(shapes.get(row.name, row.shape) == row.shape for row in plan.rows):
        return plan
    rows = []
    for row in plan.rows:
        if row.role == "spectral" and row.size is not None and row.base_size is not None:
            size = size_of(row.name, found, shapes)
            m = multipliers(row.role, size, row.base_size, plan.mode_rule)
            row = replace(row, shape=shapes[row.name], lr_mult=m.adam_lr, sgd_lr_mult=m.sgd_lr, size=size)
        rows.append(row)
    return replace(plan, rows=tuple(rows))


def _check_modes(name: str, conv: nn.Module) -> None:
    """What neuralop's setter of ``n_modes`` takes without a look."""
    order, modes = getattr(conv, "order", None), getattr(conv, "n_modes", None)
    if not (isinstance(order, int) and isinstance(modes, Sequence)):
        return
    if len(modes) != order or not all(isinstance(n, Integral) and int(n) >= 1 for n in modes):
        raise MupError(
            f"n_modes of {name!r} was set to what stores {list(modes)} modes, but it needs one whole number of at "
            f"least 1 for each of its {order} axes: set n_modes to a tuple of {order}."
        )


def mode_kernels(model: nn.Module, plan: Plan) -> dict[str, str]:
    """Parameters whose learning rate depends on modes, and the convolution (a module's name) that each belongs to."""
    rows = [row for row in plan.rows if row.size is not None and row.size.modes]
    return {row.name: row.owner for row in rows if hasattr(model.get_submodule(row.owner), "n_modes")}


def growing_kernels(model: nn.Module, plan: Plan) -> dict[str, str]:
    """The :func:`mode_kernels` whose modes may change in training: built with ``max_n_modes``, or using part of it.

    It depends on how the model was built, not on how far it has grown, so that a resumed run has the same groups. None,
    where the rule does not read modes.
    """
    if plan.rule in ("none", "standard"):
        return {}
    declared = [
        f"{name}.convs." if name else "convs."
        for name, module in model.named_modules()
        if isinstance(getattr(module, "convs", None), nn.ModuleList) and getattr(module, "max_n_modes", None) is not None
    ]
    kernels = mode_kernels(model, plan)
    partial = {owner for owner in kernels.values() if _uses_part(model.get_submodule(owner))}
    return {name: owner for name, owner in kernels.items() if owner in partial or name.startswith(tuple(declared))}


def _uses_part(conv: Any) -> bool:
    stored = getattr(conv, "max_n_modes", None)
    is_legacy = getattr(conv, "incremental_n_modes", None) is not None  # the legacy convolution's name for it
    return is_legacy or (stored is not None and list(stored) != list(conv.n_modes))
