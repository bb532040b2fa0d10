"""What has a learning rate of its own to learn, and the param groups split so that each is of one such unit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.rules import ROLES
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.optim.follow import set_mult
from neuralop_mup.optim.groups import number_equal_names

__all__ = ["check_schedulers", "split", "units_of"]

# Lists of a group with one entry for each of its parameters; they are split with them.
_PARALLEL = ("params", "param_names", "layouts")


def units_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, by: str, roles: Collection[str] | None
) -> dict[torch.Tensor, str]:
    """The unit of each parameter that has one."""
    rows = {row.name: row for row in get_plan(model).rows}
    here = {row.role for row in rows.values()}
    for role in roles or ():
        if role not in here:
            known = nearest(role, ROLES) if role not in ROLES else f"this model has {', '.join(sorted(here))}."
            raise MupError(f"There is no role {role!r} to learn a rate for: {known}")
    group_of = {p: str(g.get("name", i)) for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
    held = {name: p for name, p in model.named_parameters() if p in group_of}
    for name in held:
        if name not in rows:
            raise MupError(
                f"Parameter {name!r} was added to the model after parametrize, so that it has no role and no rule: "
                "parametrize the finished model, or leave the parameter to an optimizer of its own."
            )
    return {
        p: {"role": rows[name].role, "layer": rows[name].owner, "group": group_of[p]}[by]
        for name, p in held.items()
        if roles is None or rows[name].role in roles
    }


def split(groups: Sequence[dict[str, Any]], units: dict[torch.Tensor, str]) -> list[dict[str, Any]]:
    """The groups, in order, each split into those of one unit."""
    parts: list[dict[str, Any]] = []
    for group in groups:
        own = list(dict.fromkeys(units.get(p) for p in group["params"]))
        for unit in own:
            kept = [i for i, p in enumerate(group["params"]) if units.get(p) == unit]
            part = {
                key: [value[i] for i in kept] if key in _PARALLEL and value is not None else value
                for key, value in group.items()
                if key != "learned"
            }
            if len(own) > 1:
                part["name"] = _part_name(str(group.get("name", "")), unit or "the rest")
            if unit is not None:
                set_mult(part, "learned_mult", group.get("learned_mult", 1.0))
                part["learned"] = {"steps": 0, "at_bound": 0, **group.get("learned", {}), "of": unit}
            parts.append(part)
    number_equal_names([part for part in parts if "name" in part])
    return parts


def _part_name(group: str, unit: str) -> str:
    """A role takes the place of the roles in its group's name ("aux input+vector": "aux input"); others stand behind it."""
    return " ".join(unit if "+" in word else word for word in group.split()) if unit in ROLES else f"{group} / {unit}"


def check_schedulers(optimizer: torch.optim.Optimizer, wanted: int) -> None:
    """A scheduler keeps one number for each group that it found."""
    if wanted != len(optimizer.param_groups) and any("initial_lr" in group for group in optimizer.param_groups):
        raise MupError(
            f"This optimizer has a scheduler already, and to learn the rates its {len(optimizer.param_groups)} groups must "
            f"become {wanted}: build LearnedRates before the scheduler."
        )
