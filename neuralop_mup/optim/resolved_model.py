"""A parametrized model, read once: what groups, optimizers and checks of optimizers are made from.

Modes may change while a model trains. Under ``max_n_modes`` a kernel holds more modes than it uses; the active ones,
``n_modes`` of its own convolution, may change at any time. K of the rule is what is active: idle modes get no gradient and
leave no trace in the features. Init is κ at the modes active in ``parametrize``, for the whole tensor, and is never touched
again: weights belong to training. So only learning rates move; they are a function of the present modes, not of the way
there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from numbers import Integral
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from neuralop_mup.core.describe_model import ParameterInfo, describe_model
from neuralop_mup.core.make_plan import size_of
from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.plan import ParamPlan, Plan
from neuralop_mup.core.rebuild import as_tuple
from neuralop_mup.core.rules import multipliers
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.core.weights_status import WeightsStatus, status_of
from neuralop_mup.errors import MupError, nearest

# Of optimizers whose updates do not scale with the gradient, and of those whose do.
FAMILIES = ("adam", "sgd")

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class ResolvedModel:
    """A parametrized model and what its plan says of it now: whoever builds an optimizer reads the model once, into this.

    Attributes
    ----------
    model : torch.nn.Module
        The bare model, without its wrappers.
    plan : Plan
        Its plan, with learning rates at the modes that are active now.
    parameters : mapping of str to torch.nn.Parameter
        By name, in the order of the plan's rows.
    mode_kernels : mapping of str to str
        Parameters whose learning rate depends on modes, with the name of the convolution that each belongs to.
    growing : mapping of str to str
        Those of them whose modes may change in training.
    """

    model: nn.Module
    plan: Plan
    parameters: Mapping[str, nn.Parameter]
    mode_kernels: Mapping[str, str]
    growing: Mapping[str, str]


def resolve(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> ResolvedModel:
    """Read a parametrized model.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model, wrapped or not.
    optimizer : torch.optim.Optimizer, optional
        One that exists: what it holds besides was added to both after parametrize, and is no matter of the plan's.

    Raises
    ------
    MupError
        If the model is not parametrized, its parameters changed since, its weights are still to be drawn, or it has modes
        that cannot be used.
    """
    if not isinstance(model, nn.Module):
        raise MupError(
            f"An optimizer under μP needs the model, and got {type(model).__name__}. Pass the model itself, not its "
            "parameters: only the model has the plan. If a framework builds the optimizer, return "
            "neuralop_mup.optimizer(model, name='musoap') from its hook, such as configure_optimizers."
        )
    plan, bare = get_plan(model), unwrap(model)
    parameters = dict(bare.named_parameters())
    names = [row.name for row in plan.rows]
    held = {p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]}
    if changed := {name for name in parameters.keys() ^ set(names) if parameters.get(name) not in held}:
        raise MupError(
            f"The model's parameters changed after parametrize ({min(changed)!r} was added, removed or tied): parametrize "
            "the finished model, and keep one tensor a name. A part that comes later is handed over to the optimizer that "
            "exists, by optimizer.add_param_group."
        )
    for row in plan.rows:  # a kernel's has the modes that are active
        if row.role != "spectral" and tuple(parameters[row.name].shape) != row.shape:
            raise MupError(
                f"{row.name!r} has the shape {tuple(parameters[row.name].shape)} and had {row.shape} in parametrize: "
                "parametrize the finished model, with layers as they are to be trained."
            )
    # An optimizer that is built too early would hold tensors that are not the model's any more.
    if status_of(bare) is WeightsStatus.FRESH or any(p.is_meta for p in parameters.values()):
        raise MupError(
            "The weights are still to be drawn: call neuralop_mup.initialize(model), or load them, before building the "
            "optimizer; where the model is on the meta device call model.to_empty(device=…) before."
        )
    of_modes = [row for row in plan.rows if row.size is not None and row.size.modes and not row.fixed]
    kernels = {row.name: row.owner for row in of_modes if hasattr(bare.get_submodule(row.owner), "n_modes")}
    both = {torch.float64, torch.complex64}
    if half := [name for name, row in kernels.items() if {p.dtype for p in bare.get_submodule(row).parameters()} >= both]:
        raise MupError(
            f"The kernel {half[0]!r} is complex64 beside weights in float64, which neuralop cannot apply to its inputs, "
            "for model.double() leaves complex parameters as they are: convert them, p.data = p.data.to(torch.complex128)."
        )
    reads_modes = plan.rule not in ("none", "standard")
    growing = {name: kernels[name] for name in _growing(bare, kernels)} if reads_modes else {}
    return ResolvedModel(bare, present_plan(bare, plan), {name: parameters[name] for name in names}, kernels, growing)


def needs_model(build: Callable[P, T]) -> Callable[P, T]:
    """Refuse ``build(params=…)``, the call of some frameworks, with the error that explains what to write instead."""

    @wraps(build)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if "params" in kwargs and "model" not in kwargs:
            resolve(kwargs["params"])  # type: ignore[arg-type]
        return build(*args, **kwargs)

    return checked


def _growing(model: nn.Module, kernels: Mapping[str, str]) -> list[str]:
    """Kernels whose modes may change in training: built with ``max_n_modes``, or using part of it.

    It depends on how the model was built, not on how far it has grown, so that a resumed run has the same groups.
    """
    declared = tuple(
        f"{name}.convs.".removeprefix(".")
        for name, module in model.named_modules()
        if isinstance(getattr(module, "convs", None), nn.ModuleList) and getattr(module, "max_n_modes", None) is not None
    )
    return [name for name, owner in kernels.items() if name.startswith(declared) or _uses_part(model.get_submodule(owner))]


def _uses_part(conv: Any) -> bool:
    is_legacy = getattr(conv, "incremental_n_modes", None) is not None  # the legacy convolution's name for it
    return is_legacy or as_tuple(getattr(conv, "max_n_modes", None) or conv.n_modes) != as_tuple(conv.n_modes)


def present_plan(model: nn.Module, plan: Plan) -> Plan:
    """The plan of a bare model with its learning rates at the modes that each convolution has now.

    Equal to the stored plan, bit for bit, while modes are as they were in ``parametrize``. ``init_mult`` stays what was
    applied then.

    Raises
    ------
    MupError
        If the modes cannot be used: above ``max_n_modes``, or K = 0 on an axis, or K = 1 on all under ``log-modes``.
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
    """What neuralop's setter of ``n_modes`` takes without a look."""
    order, modes = getattr(conv, "order", None), getattr(conv, "n_modes", None)
    if not (isinstance(order, int) and isinstance(modes, Sequence)):
        return
    if len(modes) != order or not all(isinstance(n, Integral) and int(n) >= 1 for n in modes):
        raise MupError(
            f"n_modes of {name!r} was set to what stores {list(modes)} modes, but it needs one whole number of at "
            f"least 1 for each of its {order} axes: set n_modes to a tuple of {order}."
        )


def rule_mult(row: ParamPlan, family: str) -> float:
    """The rule's factor on a learning rate, for optimizers of one of the :data:`FAMILIES`."""
    if family not in FAMILIES:
        raise MupError(f"There is no optimizer family {family!r}: {nearest(str(family), FAMILIES)}")
    return row.lr_mult if family == "adam" else row.sgd_lr_mult
