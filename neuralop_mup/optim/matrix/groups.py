"""The param groups of an optimizer with matrix updates: kernels and hidden layers, and AdamW's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from neuralop_mup.core.multipliers import check_multipliers
from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.rules import ROLES
from neuralop_mup.errors import MupError
from neuralop_mup.optim.groups import number_equal_names, param_groups
from neuralop_mup.optim.matrix.layouts import fourier_depth, matrix_layouts

__all__ = ["matrix_groups"]


def matrix_groups(
    optimizer: str,
    model: nn.Module,
    lr: float,
    aux_lr: float,
    base_depth: int | None,
    weight_decay: float,
    lr_mult: Mapping[str, float] | None,
) -> list[dict[str, Any]]:
    """Groups with ``layouts`` for matrix updates, of which all have the size lr √(base_depth / depth), then AdamW's."""
    plan = get_plan(model)
    rows = {row.name: row for row in plan.rows}
    multipliers = check_multipliers(lr_mult, "lr_mult")
    # Checks that plan and parameters agree, and gives AdamW's groups with everything still in them.
    auxiliary = param_groups(model, aux_lr, "adam", weight_decay=weight_decay, lr_mult=lr_mult)
    parameters = dict(model.named_parameters())
    names = {id(p): name for name, p in parameters.items()}
    if not any(row.role == "spectral" for row in rows.values()):
        raise MupError(
            f"{type(model).__name__} has no Fourier kernel, and {optimizer} is for those: use neuralop_mup.MuAdam."
        )
    # Their updates have one size at every width and number of modes; depth and length are left.
    depth_mult = 1.0 if base_depth is None else math.sqrt(base_depth / fourier_depth(model, rows))
    rule_mult = depth_mult
    layouts = matrix_layouts(model, rows)
    groups = []
    for role in ROLES:
        if of_role := [name for name in layouts if rows[name].role == role]:
            multiplier = multipliers.get(role, 1.0)
            groups.append(
                {
                    "params": [parameters[name] for name in of_role],
                    "param_names": of_role,
                    "name": role,
                    "layouts": [layouts[name] for name in of_role],
                    "lr": lr * multiplier * rule_mult,
                    "base_lr": lr,
                    "lr_mult": multiplier * rule_mult,
                    "rule_mult": rule_mult,
                    # Independent: lr · weight_decay is that at base_depth, and in a longer run the sum over its steps is.
                    "weight_decay": weight_decay / rule_mult,
                }
            )
    for group in auxiliary:
        group["base_lr"] = aux_lr
        group["params"] = [p for p in group["params"] if names[id(p)] not in layouts]
        group["param_names"] = [names[id(p)] for p in group["params"]]
        group["name"] = "aux " + "+".join(r for r in ROLES if r in {rows[name].role for name in group["param_names"]})
    return groups + number_equal_names([group for group in auxiliary if group["params"]])
