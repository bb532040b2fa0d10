"""The param groups of MuSOAP: kernels and hidden layers, which are matrices mode by mode, and AdamW's.

The plan gives the kind of each axis. Kernels and the factors of factorized kernels sum over ``in`` and ``rank_in`` axes
and produce ``out`` and ``rank_out`` axes; every other axis (modes, joint weights) numbers independent blocks. Without an
axis to sum over and outside a factorization, channels do not mix (a separable kernel): each entry is a block by itself.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from neuralop_mup.core.plan import ParamPlan
from neuralop_mup.core.rules import ROLES, check_multipliers
from neuralop_mup.errors import MupError
from neuralop_mup.optim.groups import groups_of, number_equal_names
from neuralop_mup.optim.musoap.depth import estimate_depth
from neuralop_mup.optim.resolved_model import ResolvedModel

_LETTER_OF = {
    "pair": "p",
    "fixed": "l",
    "in": "i",
    "in_fixed": "i",
    "rank_in": "i",
    "out": "o",
    "out_fixed": "o",
    "rank_out": "o",
}


def musoap_groups(
    resolved: ResolvedModel,
    lr: float,
    aux_lr: float,
    base_depth: int | None,
    weight_decay: float,
    lr_mult: Mapping[str, float] | None,
    base_scale: float | str | None,
) -> list[dict[str, Any]]:
    """Groups with ``layouts`` for matrix updates, of which all have the size lr √(base_depth / depth), then AdamW's."""
    roles = {row.name: row.role for row in resolved.plan.rows}
    kernels = [row.owner for row in resolved.plan.rows if row.tuned_as == "spectral"]
    if not kernels:
        raise MupError(
            f"{type(resolved.model).__name__} has no Fourier kernel, and MuSOAP is for those that grow: use "
            "neuralop_mup.MuAdam."
        )
    multipliers = check_multipliers(lr_mult, "lr_mult")
    # Updates have one size at every width and number of modes; depth is left.
    rule_mult = 1.0 if base_depth is None else math.sqrt(base_depth / estimate_depth(resolved.model, kernels)[0])
    layouts = matrix_layouts(resolved)
    groups = []
    for role in ROLES:
        if of_role := [name for name in layouts if roles[name] == role]:
            mult = multipliers.get(role, 1.0) * rule_mult
            groups.append(
                {
                    "params": [resolved.parameters[name] for name in of_role],
                    "param_names": of_role,
                    "name": role,
                    "layouts": [layouts[name] for name in of_role],
                    "own_rule": True,
                    "base_scale": base_scale,
                    "lr": lr * mult,
                    "base_lr": lr,
                    "lr_mult": mult,
                    "rule_mult": rule_mult,
                    "weight_decay": weight_decay / rule_mult,  # independent: lr · weight_decay is that at base_depth
                }
            )
    names, auxiliary = {p: name for name, p in resolved.parameters.items()}, []
    for group in groups_of(resolved, aux_lr, weight_decay=weight_decay, lr_mult=lr_mult):
        params = [p for p in group["params"] if names[p] not in layouts]
        own = [names[p] for p in params]
        name = "aux " + "+".join(role for role in ROLES if role in {roles[x] for x in own})
        auxiliary.append({**group, "params": params, "param_names": own, "name": name, "base_lr": aux_lr})
    return groups + number_equal_names([group for group in auxiliary if group["params"]])


def layout_of(row: ParamPlan, parameter: torch.Tensor) -> str:
    """Letters of a Fourier kernel, or of one of its factors.

    Raises
    ------
    MupError
        If the tensor is not of the plan's shape.
    """
    axes = row.axes
    if len(axes) != parameter.ndim:
        raise MupError(
            f"{row.name!r} has shape {tuple(parameter.shape)}, but the plan knows it with axes {axes}: it changed after "
            "parametrize; parametrize the finished model."
        )
    letters = "".join(_LETTER_OF.get(kind, "b") for kind in axes)
    mixes = "i" in letters or any(kind.startswith("rank") for kind in axes)
    return letters if mixes else letters.replace("o", "c")


def matrix_layouts(resolved: ResolvedModel) -> dict[str, str]:
    """Layouts by name of all parameters whose updates are matrices.

    Kernels with their factors, and hidden linear layers: also as 1×1 convolutions from width to width. Convolutions
    with a stencil or with groups are no single matrix and are left to AdamW, and so is what does not grow.
    """
    layouts = {}
    for row in resolved.plan.rows:
        p, owner = resolved.parameters[row.name], resolved.model.get_submodule(row.name.rpartition(".")[0])
        is_map = (
            row.tuned_as == "hidden" and p.ndim >= 2 and math.prod(p.shape[2:]) == 1 and getattr(owner, "groups", 1) == 1
        )
        if row.tuned_as == "spectral" or is_map:
            layouts[row.name] = layout_of(row, p)
    # The weights of a CP kernel's terms are a vector, no matrix.
    return {name: layout for name, layout in layouts.items() if layout.strip("o")}
