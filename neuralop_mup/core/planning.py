"""A model and its base become a plan: both are read once, and the rule says what each parameter is multiplied by."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import nn

import neuralop_mup.core.adapters  # noqa: F401  registers what this package knows
from neuralop_mup.core.base_shapes import base_shapes
from neuralop_mup.core.classify import ParameterInfo, classify, size_of
from neuralop_mup.core.depth import Layers
from neuralop_mup.core.multipliers import check_training, init_multipliers, with_steps
from neuralop_mup.core.plan import Plan, Row
from neuralop_mup.core.rules import DEFAULT_RULE, RULES, ModeRule, check_rule, multipliers, reason_of
from neuralop_mup.errors import MupError

__all__ = ["make_plan", "make_rows"]


def make_plan(
    model: nn.Module,
    base: Mapping | nn.Module | Callable[[], nn.Module] | str | os.PathLike,
    rule: str | ModeRule = DEFAULT_RULE,
    init_mult: Mapping[str, float] | None = None,
    correct_tt: bool = False,
    kernel_init: str = "default",
    training: Mapping[str, tuple[int, int]] | None = None,
) -> Plan:
    """Work out the plan without touching ``model``.

    Parameters
    ----------
    model : torch.nn.Module
        The model to be trained.
    base : mapping, torch.nn.Module, callable or path
        Constructor overrides that make the base model out of the model's own stored constructor arguments (built on
        the meta device, so at no memory), a base model, a function that returns one, or a base-shape file.
    rule : str or callable
        One of ``neuralop_mup.rules.RULES``, or a function of two ``Size``.
    init_mult : mapping, optional
        Multipliers of init by role.
    correct_tt : bool
        Bring tensor-train kernels to their target std, at base too.
    kernel_init : {"default", "small"}
        How large Fourier kernels start.
    training : mapping, optional
        How the training differs from base's.

    Raises
    ------
    MupError
        See :func:`neuralop_mup.parametrize`.
    """
    name = check_rule(rule)
    init_mults = init_multipliers(init_mult, kernel_init)
    lengths = check_training(training)
    found = classify(model)
    shapes = {name: f.shape for name, f in found.items()}
    at_base, layers = base_shapes(model, found, base, name)
    rows = make_rows(found, shapes, at_base, rule, init_mults, correct_tt, layers, lengths)
    function = rule if callable(rule) and name not in RULES else None
    return Plan(name, rows, init_mults, correct_tt=correct_tt, reason=reason_of(rule), function=function, training=lengths)


def make_rows(
    found: Mapping[str, ParameterInfo],
    shapes: Mapping[str, tuple[int, ...]],
    at_base: Mapping[str, tuple[int, ...]],
    rule: str | ModeRule,
    init_mults: Mapping[str, float],
    correct_tt: bool,
    layers: Mapping[str, Layers],
    training: Mapping[str, tuple[int, int]],
) -> tuple[Row, ...]:
    """One row a parameter from its logical shapes, here and at base, the stack of layers that it is in, and the training."""
    return tuple(
        _make_row(name, found, shapes, at_base, rule, init_mults, correct_tt, layers[name], training) for name in found
    )


def _make_row(name, found, shapes, at_base, rule, init_mults, correct_tt, layers, training) -> Row:
    f = found[name]
    row = Row(
        name=name,
        role=f.param.role,
        layer=f.layer,
        axes=f.param.axes,
        shape=shapes[name],
        base_shape=at_base[name],
        init_mult=1.0,
        lr_mult=1.0,
        sgd_lr_mult=1.0,
        eps_mult=1.0,
        default_std=None,
        why="holds no numbers, or its layer has no inputs: left alone",
        owner=f.owner,
        place=f.place,
        tensor_shape=f.tensor_shape,
        init="own" if callable(f.param.init) else f.param.init,
        lacking=layers.lacking,
        frozen=f.param.frozen,
    )
    if not _holds_numbers(name, found, shapes):
        return row
    if not _holds_numbers(name, found, at_base):
        raise MupError(
            f"Parameter {name!r} is {shapes[name]} in the model and {at_base[name]} at base, where its layer holds "
            "no numbers, so how much it grew is unknown: give a base with channels, channel ratios and modes of at least 1."
        )
    size, base_size = with_steps(training, size_of(name, found, shapes), size_of(name, found, at_base))
    m = multipliers(f.param.role, size, base_size, rule)
    init = m.init / base_size.std_ratio if correct_tt else m.init
    # The kernel's own multiplier goes where κ goes: to one factor of a factorized kernel, so that the whole has it once.
    given = [init_mults[key] for key in (f.param.role, *(["kernel"] if size.modes else [])) if key in init_mults]
    init_mult = math.prod(given) if given else None
    return replace(
        row,
        init_mult=init * (1.0 if init_mult is None else init_mult),
        lr_mult=m.adam_lr,
        sgd_lr_mult=m.sgd_lr,
        eps_mult=m.eps,
        default_std=None if f.param.init == "constant" else size.default_std,
        why=_why(f.param.role, check_rule(rule), size.fan_in / base_size.fan_in, init, m.kappa, init_mult),
        size=size,
        base_size=base_size,
    )


def _holds_numbers(name: str, found: Mapping[str, ParameterInfo], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the parameter has numbers, and so has what its default initialisation follows."""
    return all(math.prod(shapes[part]) for part in (name, *found[name].init_of))


def _why(role: str, rule: str, r_in: float, init: float, kappa: float, init_mult: float | None) -> str:
    if rule == "standard":
        words = "standard parametrization: as constructed"
    else:
        words = {
            "input": "input: fixed fan-in, nothing to scale",
            "hidden": f"hidden: lr 1/r_in, r_in = {r_in:.4g}",
            "readout": f"readout: init r_in^-1/2, lr 1/r_in, r_in = {r_in:.4g}",
            "vector": "vector: Θ(1) in width as it is"
            if init == 1
            else f"vector: init undoes a default std of × {1 / init:.4g}",
            "spectral": f"spectral: lr κ/r_in, r_in = {r_in:.4g}, κ = {kappa:.4g} ({rule})",
        }[role]
    return words if init_mult is None else f"{words}; init_mult {init_mult:g}"
