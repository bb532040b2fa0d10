"""A model and its base become a plan: both are read once, and the rule says what each parameter is multiplied by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from neuralop_mup.core.depth import Layers
from neuralop_mup.core.growth import measure
from neuralop_mup.core.layers import UNKNOWN, does_not_grow
from neuralop_mup.core.multipliers import OF_INIT, SMALL_KERNELS, check_multipliers
from neuralop_mup.core.plan import Plan, Row
from neuralop_mup.core.reading import ParameterInfo, size_of
from neuralop_mup.core.rules import DEFAULT_RULE, RULES, ModeRule, check_rule, multipliers, reason_of
from neuralop_mup.errors import MupError


def make_plan(
    model: nn.Module, base: Any, rule: str | ModeRule = DEFAULT_RULE, init_mult: Mapping[str, float] | None = None
) -> Plan:
    """Work out the plan without touching ``model``; arguments and errors are those of :func:`neuralop_mup.parametrize`."""
    name = check_rule(rule)
    init_mults = check_multipliers(init_mult, "init_mult", OF_INIT)
    measured = measure(model, base, name)
    if measured.is_reference and name != "standard":
        init_mults = {**SMALL_KERNELS, **init_mults}
    init_mults = {key: value for key, value in init_mults.items() if value != 1}
    shapes = {name: info.shape for name, info in measured.found.items()}
    rows = make_rows(measured.found, shapes, measured.at_base, rule, init_mults, measured.layers)
    function = rule if callable(rule) and name not in RULES else None
    return Plan(name, rows, init_mults, reason=reason_of(rule), function=function, at_base=measured.how)


def make_rows(
    found: Mapping[str, ParameterInfo],
    shapes: Mapping[str, tuple[int, ...]],
    at_base: Mapping[str, tuple[int, ...]],
    rule: str | ModeRule,
    init_mults: Mapping[str, float],
    layers: Mapping[str, Layers],
) -> tuple[Row, ...]:
    """One row a parameter from its logical shapes, here and at base, and the stack of layers that it is in."""
    return tuple(_make_row(name, found, shapes, at_base, rule, init_mults, layers[name]) for name in found)


def _make_row(name, found, shapes, at_base, rule, init_mults, layers) -> Row:
    info, param = found[name], found[name].param
    what = {
        "name": name,
        "role": param.role,
        "layer": info.layer,
        "axes": param.axes,
        "shape": shapes[name],
        "base_shape": at_base[name],
        "owner": info.owner,
        "tensor_shape": info.tensor_shape,
        "init": "own" if callable(param.init) else param.init,
        "lacking": layers.lacking,
        "frozen": param.frozen,
    }
    if not _holds_numbers(name, found, shapes):
        return Row(**what, why="holds no numbers, or its layer has no inputs: left alone")
    if not _holds_numbers(name, found, at_base):
        raise MupError(
            f"Parameter {name!r} is {shapes[name]} in the model and {at_base[name]} at base, where its layer holds "
            "no numbers, so how much it grew is unknown: give a base with channels, channel ratios and modes of at least 1."
        )
    size, base_size = size_of(name, found, shapes), size_of(name, found, at_base)
    m = multipliers(param.role, size, base_size, rule)
    # The kernel's own multiplier goes where κ goes: to one factor of a factorized kernel, so that the whole has it once.
    given = [init_mults[key] for key in (param.role, *(["kernel"] if size.modes else [])) if key in init_mults]
    if does_not_grow(param):
        given, why = [], "nothing of it grows: its own initialization, the base rate"
    else:
        why = _why(param.role, check_rule(rule), size.fan_in / base_size.fan_in, m.init, m.kappa)
    init_mult = math.prod(given)
    return Row(
        **what,
        init_mult=m.init * init_mult,
        lr_mult=m.adam_lr,
        sgd_lr_mult=m.sgd_lr,
        default_std=None if param.init in ("constant", UNKNOWN) else size.default_std,
        why=f"{why}; init_mult {init_mult:g}" if given else why,
        size=size,
        base_size=base_size,
    )


def _holds_numbers(name: str, found: Mapping[str, ParameterInfo], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the parameter has numbers, and so has what its default initialisation follows."""
    return all(math.prod(shapes[part]) for part in (name, *found[name].init_of))


def _why(role: str, rule: str, r_in: float, init: float, kappa: float) -> str:
    if rule == "standard":
        return "standard parametrization: as constructed"
    return {
        "input": "input: fixed fan-in, nothing to scale",
        "hidden": f"hidden: lr 1/r_in, r_in = {r_in:.4g}",
        "readout": f"readout: init r_in^-1/2, lr 1/r_in, r_in = {r_in:.4g}",
        "vector": "vector: Θ(1) in width as it is"
        if init == 1
        else f"vector: init undoes a default std of × {1 / init:.4g}",
        "spectral": f"spectral: lr κ/r_in, r_in = {r_in:.4g}, κ = {kappa:.4g} ({rule})",
    }[role]
