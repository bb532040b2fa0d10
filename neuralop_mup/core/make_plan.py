"""Make a plan from a model and its base, with multipliers that follow from the rule."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from torch import nn

from neuralop_mup.core.base import read_base
from neuralop_mup.core.describe_model import ParameterInfo, describe_model
from neuralop_mup.core.layers.registry import UNKNOWN
from neuralop_mup.core.plan import REVISION, ParamPlan, Plan
from neuralop_mup.core.plan_warnings import warnings_for
from neuralop_mup.core.raw_kernels import RECOGNISED, recognise
from neuralop_mup.core.rules import (
    DEFAULT_RULE,
    OF_INIT,
    RULES,
    SMALL_KERNELS,
    ModeRule,
    Size,
    check_multipliers,
    check_rule,
    default_std,
    factor_std,
    multipliers,
    reason_of,
)
from neuralop_mup.core.width_dims import infer_width_dims
from neuralop_mup.errors import MupError


def make_plan(
    model: nn.Module,
    base: Any,
    rule: str | ModeRule = DEFAULT_RULE,
    init_mult: Mapping[str, float] | None = None,
    *,
    trainable: bool = True,
) -> tuple[Plan, list[str]]:
    """Return the plan and its warnings without changing ``model``. Arguments and errors are as in ``parametrize``."""
    name = check_rule(rule)
    init_mults = check_multipliers(init_mult, "init_mult", OF_INIT)
    found = recognise(model, describe_model(model))
    base_shapes = read_base(model, found, base)
    found = infer_width_dims(found, base_shapes, name, type(model).__name__, trainable)
    if base is None and name == DEFAULT_RULE:
        init_mults = {**SMALL_KERNELS, **init_mults}
    init_mults = {key: value for key, value in init_mults.items() if value != 1}
    others = "".join(f", and with {what}" for what in base_shapes.probes)
    how = f"base: {base_shapes.source}; dimensions that grow were found by comparing the shapes with it{others}"
    function = rule if callable(rule) and name not in RULES else None
    rows, reason = make_rows(found, rule, init_mults, REVISION), reason_of(rule)
    plan = Plan(name, rows, init_mults, revision=REVISION, reason=reason, function=function, at_base=how)
    return plan, [*base_shapes.warnings, *warnings_for(plan, has_base=base is not None)]


def make_rows(
    found: Mapping[str, ParameterInfo], rule: str | ModeRule, init_mults: Mapping[str, float], revision: int
) -> tuple[ParamPlan, ...]:
    """Return one row per parameter, computed as in plans of the given revision."""
    return tuple(_make_row(name, found, rule, init_mults, revision) for name in found)


def _make_row(name, found, rule, init_mults, revision) -> ParamPlan:
    info, param = found[name], found[name].param
    shapes = {part: found[part].shape for part in (name, *info.init_of)}
    at_base = {part: found[part].base_shape for part in shapes}
    what = {
        "name": name,
        "init": "own" if callable(param.init) or (info.registered and param.init == "constant") else param.init,
        **{key: getattr(param, key) for key in ("role", "axes", "frozen")},
        **{key: getattr(info, key) for key in ("layer", "owner", "shape", "base_shape", "lacking", "fixed")},
    }
    if not all(map(prod, shapes.values())):
        return ParamPlan(**what, why="empty, or its layer has no inputs: unchanged")
    if not all(map(prod, at_base.values())):
        raise MupError(
            f"Parameter {name!r} has shape {info.shape} in the model, but its layer is empty in the base, where its shape "
            f"is {info.base_shape}. Its growth is therefore undefined. Pass a base with channels, channel ratios and modes "
            "of at least 1."
        )
    size, base_size = (size_of(name, found, own, revision) for own in (shapes, at_base))
    what |= {
        "default_std": None if param.init in ("constant", UNKNOWN) else size.default_std,
        "size": size,
        "base_size": base_size,
    }
    if info.fixed:
        return ParamPlan(**what, why="does not grow: default initialization, base learning rate")
    # If the output channels of a dense kernel do not grow, it is a readout, and the initial output must be small.
    is_last = revision > 0 and param.role == "spectral" and {"in", "out_fixed"} <= {*param.axes} and param.rank_power is None
    m = multipliers("readout" if is_last else param.role, size, base_size, rule)
    r_in = size.fan_in / base_size.fan_in
    divisor = 1.0
    # because the effective weight is w/r, multiply init and Adam lr by r, and SGD lr by r²
    if param.divided and check_rule(rule) != "standard":
        channels = zip(param.axes, info.shape, info.base_shape, strict=True)
        divisor = prod(n / b for kind, n, b in channels if kind in ("in", "out"))
        m = replace(m, init=m.init * r_in, adam_lr=m.adam_lr * r_in, sgd_lr=m.sgd_lr * r_in**2)
    # Apply the multiplier for "kernel" where κ is applied, which is one factor of a factorized kernel.
    given = [init_mults[key] for key in (param.role, *(["kernel"] if size.modes else [])) if key in init_mults]
    why = _why(param.role, check_rule(rule), r_in, m.init, m.kappa)
    why += f"; {RECOGNISED}" if info.recognised else ""
    init_mult = prod(given)
    return ParamPlan(
        **what,
        init_mult=m.init * init_mult,
        lr_mult=m.adam_lr,
        sgd_lr_mult=m.sgd_lr,
        divisor=divisor,
        why=f"{why}; init_mult {init_mult:g}" if given else why,
    )


def _why(role: str, rule: str, r_in: float, init: float, kappa: float) -> str:
    if rule == "standard":
        return "standard parametrization: as constructed"
    return {
        "input": "input: fixed fan-in, nothing to scale",
        "hidden": f"hidden: lr 1/r_in, r_in = {r_in:.4g}",
        "readout": f"readout: init r_in^-1/2, lr 1/r_in, r_in = {r_in:.4g}",
        "vector": "vector: Θ(1) in width without scaling"
        if init == 1
        else f"vector: init undoes a default std of × {1 / init:.4g}",
        "spectral": f"spectral: lr κ/r_in, r_in = {r_in:.4g}, κ = {kappa:.4g} ({rule})",
    }[role]


def size_of(
    name: str, found: Mapping[str, ParameterInfo], shapes: Mapping[str, tuple[int, ...]], revision: int = REVISION
) -> Size:
    """Return the sizes of a parameter that the rules use.

    Parameters
    ----------
    name : str
        Qualified name of the parameter.
    found : mapping
        Result of :func:`~neuralop_mup.core.width_dims.assign_roles`.
    shapes : mapping
        Logical shapes in the model or in the base.
    revision : int
        Revision of the plan.
    """

    def axes(names: tuple[str, ...]) -> list[tuple[str, int]]:
        return [pair for n in names for pair in zip(found[n].param.axes, shapes[n], strict=True)]

    param, parts = found[name].param, found[name].init_of
    own, whole = axes((name,)), axes(parts)
    fan_in, fan_out = _size(own, "in", "in_fixed", "rank_in"), _size(own, "out", "out_fixed", "rank_out")
    kernel_in, kernel_out = _size(whole, "in", "in_fixed"), _size(whole, "out", "out_fixed")
    if callable(param.init):
        std = float(param.init(shapes[name]))
    elif param.init == "fan_in":  # torch's fan-in includes the stencil of a convolution
        std = default_std("fan_in", prod(n for kind, n in whole if kind not in ("out", "out_fixed")), kernel_out)
    else:
        std = default_std("constant" if param.init == UNKNOWN else param.init, kernel_in, kernel_out)
    if param.rank_power is not None:
        std = factor_std(std, _size(whole, "rank_in"), len(parts), param.rank_power)
    if "pair" in param.axes and not callable(param.init):
        std /= 2**0.5  # root mean square of the real and imaginary parts
    # The mode factor κ is applied once, either to a dense kernel or to the factor with the output channels.
    if param.role != "spectral" or (
        param.rank_power is not None and not any(kind in ("out", "out_fixed") for kind, _ in own)
    ):
        return Size(fan_in, fan_out, std)
    modes = [(kind, n) for kind, n in whole if kind.startswith("modes")]
    separable = not any(kind in ("in", "in_fixed") for kind, _ in whole)
    block = (1, 1) if separable else (kernel_in, kernel_out)
    sides = {kind for kind, _ in whole} & {"in", "in_fixed", "out", "out_fixed"}
    # use a square block, because otherwise κ would depend on the width
    if revision > 0 and sides in ({"in", "out_fixed"}, {"in_fixed", "out"}):
        block = (kernel_in, kernel_in) if "in" in sides else (kernel_out, kernel_out)
    return Size(
        fan_in,
        fan_out,
        std,
        modes=tuple(_PER_SIGN[kind](n) for kind, n in modes),
        blocks=prod(n for _, n in modes),
        block=block,
        one_sign=param.init == "positive" if param.one_sign is None else param.one_sign,
    )


# Number of modes per sign, K, of an axis with n entries.
_PER_SIGN = {"modes": lambda n: n // 2, "modes_half": lambda n: n - 1, "modes_single": lambda n: n}


def _size(axes: list[tuple[str, int]], *kinds: str) -> int:
    return prod(n for kind, n in axes if kind in kinds)
