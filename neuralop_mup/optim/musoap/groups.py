"""The param groups of MuSOAP: kernels and hidden layers, and AdamW's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from neuralop_mup.core.multipliers import check_multipliers
from neuralop_mup.core.rules import ROLES
from neuralop_mup.errors import MupError
from neuralop_mup.optim.binding import Binding
from neuralop_mup.optim.groups import groups_of, number_equal_names
from neuralop_mup.optim.musoap.layouts import fourier_depth, matrix_layouts

__all__ = ["musoap_groups"]


def musoap_groups(
    binding: Binding,
    lr: float,
    aux_lr: float,
    base_depth: int | None,
    weight_decay: float,
    lr_mult: Mapping[str, float] | None,
) -> list[dict[str, Any]]:
    """Groups with ``layouts`` for matrix updates, of which all have the size lr √(base_depth / depth), then AdamW's."""
    roles = {row.name: row.role for row in binding.plan.rows}
    if "spectral" not in roles.values():
        raise MupError(
            f"{type(binding.model).__name__} has no Fourier kernel, and MuSOAP is for those: use neuralop_mup.MuAdam."
        )
    multipliers = check_multipliers(lr_mult, "lr_mult")
    # Updates have one size at every width and number of modes; depth is left.
    rule_mult = 1.0 if base_depth is None else math.sqrt(base_depth / fourier_depth(binding))
    layouts = matrix_layouts(binding)
    groups = []
    for role in ROLES:
        if of_role := [name for name in layouts if roles[name] == role]:
            mult = multipliers.get(role, 1.0) * rule_mult
            groups.append(
                {
                    "params": [binding.parameters[name] for name in of_role],
                    "param_names": of_role,
                    "name": role,
                    "layouts": [layouts[name] for name in of_role],
                    "lr": lr * mult,
                    "base_lr": lr,
                    "lr_mult": mult,
                    "rule_mult": rule_mult,
                    "weight_decay": weight_decay / rule_mult,  # independent: lr · weight_decay is that at base_depth
                }
            )
    names, auxiliary = {p: name for name, p in binding.parameters.items()}, []
    for group in groups_of(binding, aux_lr, weight_decay=weight_decay, lr_mult=lr_mult):
        params = [p for p in group["params"] if names[p] not in layouts]
        own = [names[p] for p in params]
        name = "aux " + "+".join(role for role in ROLES if role in {roles[x] for x in own})
        auxiliary.append({**group, "params": params, "param_names": own, "name": name, "base_lr": aux_lr})
    return groups + number_equal_names([group for group in auxiliary if group["params"]])
