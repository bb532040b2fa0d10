"""Collect what param groups, optimizers and checks need to know about a parametrized model.

Modes may change during training. With ``max_n_modes``, a kernel stores more modes than the active modes of its convolution
(``n_modes``). In the rules, K is the number of active modes, because other modes have no gradient and no effect. If modes
change, only the learning rates change, and they only depend on the current modes. The initialization uses the modes that
were active when ``parametrize`` was called.
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

# Families of optimizers: "adam" if updates do not scale with the gradient, "sgd" if they do.
FAMILIES = ("adam", "sgd")

Groups = Sequence[Mapping[str, Any]]  # an optimizer's param groups, for functions that do not modify them

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class ResolvedModel:
    """A parametrized model and its plan for the current modes.

    Attributes
    ----------
    model : torch.nn.Module
        The model without wrappers.
    plan : Plan
        The plan of the model, with learning rates for the active modes.
    parameters : mapping of str to torch.nn.Parameter
        Parameters by name, in the order of the plan's rows.
    mode_kernels : mapping of str to str
        Maps the names of parameters with mode axes to the names of their convolutions.
    growing : mapping of str to str
        The subset of ``mode_kernels`` with modes that may change during training and affect learning rates.
    """

    model: nn.Module
    plan: Plan
    parameters: Mapping[str, nn.Parameter]
    mode_kernels: Mapping[str, str]
    growing: Mapping[str, str]


def resolve(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> ResolvedModel:
    """Validate a parametrized model and return it with its plan.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model. It may be wrapped.
    optimizer : torch.optim.Optimizer, optional
        An existing optimizer. It may contain parameters that were added to the model after ``parametrize``.

    Raises
    ------
    MupError
        If the model is not parametrized, if its parameters changed afterwards, if its weights have not been initialized yet,
        or if its modes are invalid.
    """
    if not isinstance(model, nn.Module):
        raise MupError(
            f"model must be a torch.nn.Module that stores a plan, got {type(model).__name__}. Pass the model itself, not "
            "its parameters. If a framework builds the optimizer, return neuralop_mup.optimizer(model, name='musoap') "
            "from its hook, such as configure_optimizers."
        )
    plan, bare = get_plan(model), unwrap(model)
    parameters = dict(bare.named_parameters())
    names = [row.name for row in plan.rows]
    held = {*parameters_of(getattr(optimizer, "param_groups", ()))}
    if changed := {name for name in parameters.keys() ^ set(names) if parameters.get(name) not in held}:
        raise MupError(
            f"The model's parameters changed after parametrize: {min(changed)!r} was added, removed or tied. Call "
            "parametrize on the complete model. To train parameters that are added later, pass them to "
            "optimizer.add_param_group(…)."
        )
    for row in plan.rows:
        shape = tuple(parameters[row.name].shape)
        # kernels may have fewer active modes
        if len(shape) != len(row.shape) or (row.role != "spectral" and shape != row.shape):
            raise MupError(
                f"{row.name!r} has shape {shape}, but its shape was {row.shape} when parametrize was called. Call "
                "parametrize on the complete model."
            )
    # Initialization replaces tensors, so an optimizer that was built earlier would hold the old tensors.
    if status_of(bare) is WeightsStatus.FRESH or any(p.is_meta for p in parameters.values()):
        raise MupError(
            "The weights have not been initialized yet. Before you build the optimizer, call "
            "neuralop_mup.initialize(model) or load the weights. On the meta device, call model.to_empty(device=…) first."
        )
    of_modes = [row for row in plan.rows if row.size is not None and row.size.modes and not row.fixed]
    kernels = {row.name: row.owner for row in of_modes if hasattr(bare.get_submodule(row.owner), "n_modes")}
    both = {torch.float64, torch.complex64}
    if half := [name for name, row in kernels.items() if {p.dtype for p in bare.get_submodule(row).parameters()} >= both]:
        raise MupError(
            f"The kernel {half[0]!r} is complex64 but other weights are float64, because model.double() does not convert "
            "complex parameters. neuralop cannot apply such a kernel. Convert it with p.data = "
            "p.data.to(torch.complex128)."
        )
    growing = {} if plan.rule in ("none", "standard") else _growing(bare, kernels)
    return ResolvedModel(bare, present_plan(bare, plan), {name: parameters[name] for name in names}, kernels, growing)


def parameters_of(groups: Groups) -> list[Any]:
    """Return the parameters of all groups."""
    return [p for group in groups for p in group["params"]]


def needs_model(build: Callable[P, T]) -> Callable[P, T]:
    """Decorate ``build(model, …)`` so that a framework's call ``build(params=…)`` raises the error of :func:`resolve`."""

    @wraps(build)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if "params" in kwargs and "model" not in kwargs:
            resolve(kwargs["params"])  # type: ignore[arg-type]
        return build(*args, **kwargs)

    return checked


def _growing(model: nn.Module, kernels: Mapping[str, str]) -> dict[str, str]:
    """Return the kernels with modes that may change during training.

    These are kernels that were built with ``max_n_modes``, and kernels that only use some of their modes. The result does
    not change when modes grow, so a resumed run has the same groups.
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
    """Return whether a convolution only uses some of its modes. Legacy convolutions have ``incremental_n_modes``."""
    is_legacy = getattr(conv, "incremental_n_modes", None) is not None
    return is_legacy or as_tuple(getattr(conv, "max_n_modes", None) or conv.n_modes) != as_tuple(conv.n_modes)


def present_plan(model: nn.Module, plan: Plan) -> Plan:
    """Return the plan of an unwrapped model, with learning rates for the current modes.

    If the modes have not changed, this is the stored plan. ``init_mult`` never changes.

    Raises
    ------
    MupError
        If modes exceed ``max_n_modes``, if K is 0 on an axis, or if K is 1 on all axes under ``log-modes``.
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
    """Raise MupError if ``n_modes`` has a value that neuralop's setter accepts but its layers cannot use."""
    order, modes = getattr(conv, "order", None), getattr(conv, "n_modes", None)
    if not (isinstance(order, int) and isinstance(modes, Sequence)):
        return
    if len(modes) != order or not all(isinstance(n, Integral) and int(n) >= 1 for n in modes):
        raise MupError(
            f"n_modes of {name!r} must have one integer ≥ 1 for each of the {order} axes, got {list(modes)}. Set n_modes "
            f"to a tuple of {order} integers."
        )


def rule_mult(row: ParamPlan, family: str) -> float:
    """Return the rule's factor on a learning rate for one of the :data:`FAMILIES`."""
    if family not in FAMILIES:
        raise MupError(f"Unknown optimizer family {family!r}: {nearest(str(family), FAMILIES)}")
    return row.lr_mult if family == "adam" else row.sgd_lr_mult
