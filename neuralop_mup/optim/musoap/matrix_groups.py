"""Build MuSOAP's param groups: kernels and hidden layers get matrix updates, and AdamW trains other parameters.

The plan gives the kind of each axis. Kernels, and the factors of factorized kernels, sum over ``in`` and ``rank_in`` axes
and produce ``out`` and ``rank_out`` axes. All other axes (modes, joint weights) index independent blocks. A separable kernel
does not mix channels, so each of its entries is a separate block.
"""

import math
from collections.abc import Mapping
from typing import Any

from neuralop_mup.core.plan import ParamPlan
from neuralop_mup.core.rules import ROLES, check_multipliers
from neuralop_mup.errors import MupError
from neuralop_mup.optim.groups import number_equal_names, param_groups
from neuralop_mup.optim.musoap.depth import estimate_depth
from neuralop_mup.optim.resolved_model import ResolvedModel

# Axis letters as defined in neuralop_mup.optim.musoap.stacks. All other kinds are modes.
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
    """Return groups with ``layouts`` for matrix updates of size lr √(base_depth / depth), followed by AdamW's groups."""
    roles = {row.name: row.role for row in resolved.plan.rows}
    kernels = [row.owner for row in resolved.plan.rows if row.tuned_as == "spectral"]
    if not kernels:
        raise MupError(
            f"{type(resolved.model).__name__} has no Fourier kernel that grows with the model, so MuSOAP does not apply. "
            "Use neuralop_mup.MuAdam(model, lr=…)."
        )
    multipliers = check_multipliers(lr_mult, "lr_mult")
    # Update sizes do not depend on width or modes, so the rule only depends on depth.
    rule_mult = 1.0 if base_depth is None else math.sqrt(base_depth / estimate_depth(resolved.model, kernels)[0])
    layouts = _matrix_layouts(resolved)
    groups = []
    for role in ROLES:
        if names := [name for name in layouts if roles[name] == role]:
            mult = multipliers.get(role, 1.0) * rule_mult
            groups.append(
                {
                    "params": [resolved.parameters[name] for name in names],
                    "param_names": names,
                    "name": role,
                    "layouts": [layouts[name] for name in names],
                    "own_rule": True,
                    "base_scale": base_scale,
                    "lr": lr * mult,
                    "base_lr": lr,
                    "lr_mult": mult,
                    "rule_mult": rule_mult,
                    "weight_decay": weight_decay / rule_mult,  # so that lr · weight_decay does not depend on depth
                }
            )
    name_of, auxiliary = {p: name for name, p in resolved.parameters.items()}, []
    for group in param_groups(resolved.model, aux_lr, weight_decay=weight_decay, lr_mult=lr_mult):
        if names := [name_of[p] for p in group["params"] if name_of[p] not in layouts]:
            params = [resolved.parameters[name] for name in names]
            title = "aux " + "+".join(role for role in ROLES if role in {roles[name] for name in names})
            auxiliary.append({**group, "params": params, "param_names": names, "name": title, "base_lr": aux_lr})
    return groups + number_equal_names(auxiliary)


def _layout_of(row: ParamPlan) -> str:
    """Return the layout of a parameter, with one letter per axis."""
    letters = "".join(_LETTER_OF.get(kind, "b") for kind in row.axes)
    mixes = "i" in letters or any(kind.startswith("rank") for kind in row.axes)
    return letters if mixes else letters.replace("o", "c")


def _matrix_layouts(resolved: ResolvedModel) -> dict[str, str]:
    """Return the layouts of all parameters that get matrix updates, by name.

    These are kernels and their factors, hidden linear layers, and 1×1 convolutions from width to width. AdamW trains layers
    that do not grow. It also trains convolutions with a stencil or groups, because their weight is not a single matrix.
    """
    layouts = {}
    for row in resolved.plan.rows:
        p, owner = resolved.parameters[row.name], resolved.model.get_submodule(row.name.rpartition(".")[0])
        is_map = (
            row.tuned_as == "hidden" and p.ndim >= 2 and math.prod(p.shape[2:]) == 1 and getattr(owner, "groups", 1) == 1
        )
        if row.tuned_as == "spectral" or is_map:
            layouts[row.name] = _layout_of(row)
    # Exclude the weights of a CP kernel's terms, which form a vector.
    return {name: layout for name, layout in layouts.items() if layout.strip("o")}
