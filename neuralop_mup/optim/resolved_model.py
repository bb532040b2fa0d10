"""Read a parametrized model once, for param groups, optimizers and checks.

Modes may change in training. With ``max_n_modes`` a kernel has more modes than its convolution's ``n_modes``, the active
ones. K in the rules counts active modes, because others have no gradient and no effect. Only learning rates follow changes
of modes, and they depend only on the current modes. The initialization uses the modes active in ``parametrize``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from numbers import Integral
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from neuralop_mup.core.build_models import as_tuple
from neuralop_mup.core.describe_model import ParameterInfo, describe_model
from neuralop_mup.core.make_plan import size_of
from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.plan import ParamPlan, Plan
from neuralop_mup.core.rules import multipliers
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.core.weights_status import WeightsStatus, status_of
from neuralop_mup.errors import MupError, nearest

# Optimizers with updates that do not scale with the gradient, and with updates that do.
FAMILIES = ("adam", "sgd")

Groups = Sequence[Mapping[str, Any]]  # an optimizer's param groups, only read

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class ResolvedModel:
    """A parametrized model and its plan at the current modes.

    Attributes
    ----------
    model : torch.nn.Module
        The model without wrappers.
    plan : Plan
        Its plan, with learning rates at the active modes.
    parameters : mapping of str to torch.nn.Parameter
        Parameters by name, in the order of the plan's rows.
    mode_kernels : mapping of str to str
        Names of parameters with mode axes, and of their convolutions.
    growing : mapping of str to str
        The subset of ``mode_kernels`` with modes that may change in training and affect learning rates.
    """

    model: nn.Module
    plan: Plan
    parameters: Mapping[str, nn.Parameter]
    mode_kernels: Mapping[str, str]
    growing: Mapping[str, str]


def resolve(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> ResolvedModel:
    """Return a parametrized model with its plan, after checks.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model, wrapped or not.
    optimizer : torch.optim.Optimizer, optional
        An existing optimizer. It may contain parameters that were added to the model after ``parametrize``.

    Raises
    ------
    MupError
        If the model is not parametrized, its parameters changed afterwards, its weights are not initialized yet, or its
        modes are invalid.
    """
    if not isinstance(model, nn.Module):
        raise MupError(
            f"An optimizer under μP needs the model, which has the plan, but got {type(model).__name__}. Pass the model "
            "itself, not its parameters. If a framework builds the optimizer, return "
            "neuralop_mup.optimizer(model, name='musoap') from its hook, such as configure_optimizers."
        )
    plan, bare = get_plan(model), unwrap(model)
    parameters = dict(bare.named_parameters())
    names = [row.name for row in plan.rows]
    held = {*parameters_of(getattr(optimizer, "param_groups", ()))}
    if changed := {name for name in parameters.keys() ^ set(names) if parameters.get(name) not in held}:
        raise MupError(
            f"The model's parameters changed after parametrize: {min(changed)!r} was added, removed or tied. Call "
            "parametrize on the finished model. Pass parameters that you add later to optimizer.add_param_group(…)."
        )
    for row in plan.rows:
        shape = tuple(parameters[row.name].shape)
        if len(shape) != len(row.shape) or (row.role != "spectral" and shape != row.shape):  # kernels: active shape
            raise MupError(
                f"{row.name!r} has shape {shape}, but had {row.shape} in parametrize. Call "
                "parametrize on the finished model."
            )
    # Initialization replaces tensors, so an optimizer that exists before would hold old ones.
    if status_of(bare) is WeightsStatus.FRESH or any(p.is_meta for p in parameters.values()):
        raise MupError(
            "The weights are not initialized yet. Call neuralop_mup.initialize(model), or load them, before you build the "
            "optimizer. On the meta device, call model.to_empty(device=…) first."
        )
    of_modes = [row for row in plan.rows if row.size is not None and row.size.modes and not row.fixed]
    kernels = {row.name: row.owner for row in of_modes if hasattr(bare.get_submodule(row.owner), "n_modes")}
    both = {torch.float64, torch.complex64}
    if half := [name for name, row in kernels.items() if {p.dtype for p in bare.get_submodule(row).parameters()} >= both]:
        raise MupError(
            f"The kernel {half[0]!r} is complex64, but other weights are float64: model.double() does not convert complex "
            "parameters. neuralop cannot apply it. Convert it: p.data = p.data.to(torch.complex128)."
        )
    growing = {} if plan.rule in ("none", "standard") else _growing(bare, kernels)
    return ResolvedModel(bare, present_plan(bare, plan), {name: parameters[name] for name in names}, kernels, growing)


def parameters_of(groups: Groups) -> list[Any]:
    """Return the parameters of all groups."""
    return [p for group in groups for p in group["params"]]


def needs_model(build: Callable[P, T]) -> Callable[P, T]:
    """Decorate ``build(model, …)`` so that ``build(params=…)``, a call of frameworks, raises :func:`resolve`'s error."""

    @wraps(build)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if "params" in kwargs and "model" not in kwargs:
            resolve(kwargs["params"])  # type: ignore[arg-type]
        return build(*args, **kwargs)

    return checked


def _growing(model: nn.Module, kernels: Mapping[str, str]) -> dict[str, str]:
    """Return the kernels with modes that may change in training.

    These are kernels built with ``max_n_modes``, and kernels that use part of their modes. A model that has grown gives the
    same result, so a resumed run has the same groups.
    """
    declared = tuple(
        f"{name}.convs.".removeprefix(".")
        for name, module in model.named_modules()
        if isinstance(getattr(module, "convs", None), nn.ModuleList) and getattr(module, "max_n_modes", None) is not None
    )
    return {
        name: owner for name, owner in kernels.items() if name.startswith(declared) or _uses_part(model.get_submodule(owner))
    }


def _uses_part(conv: Any) -> bool:
    """Return whether a convolution uses part of its modes; the legacy one has ``incremental_n_modes``."""
    is_legacy = getattr(conv, "incremental_n_modes", None) is not None
    return is_legacy or as_tuple(getattr(conv, "max_n_modes", None) or conv.n_modes) != as_tuple(conv.n_modes)


def present_plan(model: nn.Module, plan: Plan) -> Plan:
    """Return the plan of a bare model, with learning rates at the current modes.

    It is the stored plan while modes are unchanged. ``init_mult`` never changes.

    Raises
    ------
    MupError
        If modes exceed ``max_n_modes``, K is 0 on an axis, or K is 1 on all axes under ``log-modes``.
    """
    found: dict[str, ParameterInfo] = {}
    for owner in dict.fromkeys(row.owner for row in plan.rows if row.tuned_as == "spectral"):
        _check_modes(owner, model.get_submodule(owner))
        found |= describe_model(model.get_submodule(owner), f"{owner}." if owner else "")
    shapes = {name: f.shape for name, f in found.items()}
    if all(shapes.get(row.name, row.shape) == row.shape for row in plan.rows):
        return plan
    rows = []
    for row in plan.rows:
        if row.tuned_as == "spectral" and row.size is not None and row.base_size is not None:
            size = size_of(row.name, found, shapes, plan.revision)
            m = multipliers(row.role, size, row.base_size, plan.mode_rule)
            row = replace(row, shape=shapes[row.name], lr_mult=m.adam_lr, sgd_lr_mult=m.sgd_lr, size=size)
        rows.append(row)
    return replace(plan, rows=tuple(rows))


def _check_modes(name: str, conv: nn.Module) -> None:
    """Raise MupError for values of ``n_modes`` that neuralop's setter accepts but cannot use."""
    order, modes = getattr(conv, "order", None), getattr(conv, "n_modes", None)
    if not (isinstance(order, int) and isinstance(modes, Sequence)):
        return
    if len(modes) != order or not all(isinstance(n, Integral) and int(n) >= 1 for n in modes):
        raise MupError(
            f"n_modes of {name!r} stores {list(modes)} modes, but each of the {order} axes needs a whole number of at least "
            f"1. Set n_modes to a tuple of {order} numbers."
        )


def rule_mult(row: ParamPlan, family: str) -> float:
    """Return the rule's factor on a learning rate, for one of the :data:`FAMILIES`."""
    if family not in FAMILIES:
        raise MupError(f"Unknown optimizer family {family!r}: {nearest(str(family), FAMILIES)}")
    return row.lr_mult if family == "adam" else row.sgd_lr_mult
