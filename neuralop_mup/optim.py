"""A plan as optimizer param groups, and the three usual optimizers built on them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from neuralop_mup.checkpoint import check_optimizer_state
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.following import OPTIMIZERS, follow_plan, follower_of, rule_mult
from neuralop_mup.growing import growing_kernels, present_plan
from neuralop_mup.parametrize import get_plan, kernels_and_axes
from neuralop_mup.plan import Plan, check_masters
from neuralop_mup.rules import ROLES
from neuralop_mup.schedules import off_plan
from neuralop_mup.travel import ATTRIBUTE
from neuralop_mup.wrapping import look_through, unwrap

__all__ = ["MuAdam", "MuAdamW", "MuSGD", "check_optimizer", "clip_spectral_grad_value_", "param_groups"]


def param_groups(
    model: nn.Module,
    lr: float,
    optimizer: str = "adam",
    *,
    weight_decay: float | None = None,
    lr_mult: Mapping[str, float] | None = None,
    eps: float | None = None,
) -> list[dict[str, Any]]:
    """Param groups that give each parameter its μP learning rate, for any optimizer of that family.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    lr : float
        The learning rate at base: what was tuned on the proxy.
    optimizer : {"adam", "sgd"}
        Family. ``adam``: updates do not scale with the gradient (Adam, AdamW, RMSprop, Adagrad, Lion, …). ``sgd``: they
        do (SGD, momentum); the width rule alone, since the paper's mode rule is for Adam.
    weight_decay : float, optional
        At base. Each group's is divided by the rule's factor, so that lr · weight_decay is what it is at base
        (independent decay: under a decoupled optimizer such as AdamW every weight shrinks at the rate it does at base).
        If not given, groups carry none and the optimizer's own applies to each as it stands.
    lr_mult : mapping, optional
        Master multipliers of the learning rate by role, e.g. ``{"spectral": 2.0}``, on top of the rule.
    eps : float, optional
        Adam's eps at base. If given, each group carries it scaled as its gradients scale with width; if not, the
        optimizer's own eps applies everywhere.

    Returns
    -------
    list of dict
        One group for each distinct setting, in a fixed order, with keys ``params``, ``name`` (its roles), ``lr``,
        ``lr_mult`` (lr over the base lr), ``rule_mult`` (the rule's part of it) and, where given, ``weight_decay`` and
        ``eps``. At base there is one group. A kernel whose modes may change (the model has ``max_n_modes``) has one of
        its own, with ``mode_mult`` (see :func:`follow_plan`). (mup's optimizers scale by themselves: give them
        ``model.parameters()``.)

    Raises
    ------
    MupError
        If the model is not parametrized, or a number or role is not usable.
    """
    plan = get_plan(model)
    if optimizer not in OPTIMIZERS:
        raise MupError(f"There is no optimizer family {optimizer!r}: {nearest(str(optimizer), OPTIMIZERS)}")
    for what, value in (("lr", lr), ("weight_decay", weight_decay), ("eps", eps)):
        if not (_usable(value) or (value is None and what != "lr")):
            raise MupError(f"{what} is {value!r}; give a finite number that is not negative.")
    masters = check_masters(lr_mult, "lr_mult")
    model = unwrap(model)
    parameters = dict(model.named_parameters())
    _check_complete(plan, parameters)
    _check_drawn(plan, parameters)

    growing = growing_kernels(model) if optimizer == "adam" else {}
    groups: dict[tuple, dict[str, Any]] = {}
    for row in present_plan(model).rows:
        # Divided by the inverse rather than multiplied, as mup does, so that the two agree to the last bit.
        divisor = 1 / rule_mult(row, optimizer)
        master = masters.get(row.role, 1.0)
        settings = {
            "lr": lr / divisor * master,
            "lr_mult": 1 / divisor * master,
            "rule_mult": 1 / divisor,
        }
        if weight_decay is not None:
            settings["weight_decay"] = weight_decay * divisor
        if eps is not None:
            settings["eps"] = eps * row.eps_mult
        key = (growing.get(row.name), *(float(value) for value in settings.values()))
        if row.name in growing:
            settings["mode_mult"] = 1.0
        group = groups.setdefault(key, {"params": [], "name": [], **settings})
        group["params"].append(parameters[row.name])
        if row.role not in group["name"]:
            group["name"].append(row.role)
    return _named(list(groups.values()), [key[0] for key in groups])


def _usable(value: Any) -> bool:
    number = isinstance(value, (Real, torch.Tensor)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


def _named(groups: list[dict[str, Any]], convolutions: list[str | None]) -> list[dict[str, Any]]:
    """Name each group by its roles and its convolution, if it is of one; where that is the same, number them."""
    roles = ["+".join(sorted(group["name"], key=ROLES.index)) for group in groups]
    names = [f"{role} {conv}" if conv else role for role, conv in zip(roles, convolutions, strict=True)]
    for i, (group, name) in enumerate(zip(groups, names, strict=True)):
        group["name"] = name if names.count(name) == 1 else f"{name} {names[: i + 1].count(name)}"
    return groups


def _check_complete(plan: Plan, parameters: Mapping[str, torch.Tensor]) -> None:
    if (missing := [row.name for row in plan.rows if row.name not in parameters]) or (
        missing := [name for name in parameters if name not in {row.name for row in plan.rows}]
    ):
        raise MupError(
            f"The model's parameters changed after parametrize ({missing[0]!r} was added, removed or tied): parametrize "
            "the finished model, and keep one tensor a name."
        )


def _check_drawn(plan: Plan, parameters: Mapping[str, torch.Tensor]) -> None:
    """An optimizer built too early would hold tensors that are not the model's any more."""
    if any(p.is_meta for p in parameters.values()):
        raise MupError(
            "The model is on the meta device: call model.to_empty(device=…) and neuralop_mup.initialize(model), or load its "
            "weights, before building the optimizer."
        )
    if plan.init_pending:
        raise MupError(
            "The weights are still to be drawn: call neuralop_mup.initialize(model), or load them, before building the "
            "optimizer."
        )


def MuAdam(
    model: nn.Module,
    lr: float = 1e-3,
    *,
    impl: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    weight_decay: float = 0.0,
    lr_mult: Mapping[str, float] | None = None,
    scale_eps: bool = False,
    **kwargs: Any,
) -> torch.optim.Optimizer:
    """Adam, or any Adam-like ``impl``, with μP learning rates.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    lr : float
        Learning rate at base. torch's Adam moves the real and the imaginary part of a kernel by lr each, neuralop's
        AdamW its modulus: a learning rate tuned with one does not carry over to the other.
    impl : callable
        ``impl(groups, lr=…, **kwargs)`` builds the optimizer, e.g. ``neuralop.training.AdamW``.
    weight_decay : float
        At base (see :func:`param_groups`). It is independent of width only where ``impl`` decouples it: torch's Adam
        adds it to the gradient and then normalises both, so that its effect grows with width. A warning says so; use
        :func:`MuAdamW`.
    lr_mult : mapping, optional
        Master multipliers of the learning rate by role.
    scale_eps : bool
        Scale Adam's eps with width as gradients scale; needs ``eps`` in ``kwargs``.
    **kwargs
        Passed on: ``betas``, ``eps``, …

    Returns
    -------
    torch.optim.Optimizer
        What ``impl`` returns.

    Raises
    ------
    MupError
        If the model is not parametrized or a number is not usable.
    """
    if scale_eps and "eps" not in kwargs:
        raise MupError("scale_eps=True scales a given eps: pass eps=… as well, e.g. eps=1e-8.")
    groups = param_groups(
        model,
        lr,
        "adam",
        weight_decay=weight_decay,
        lr_mult=lr_mult,
        eps=kwargs["eps"] if scale_eps else None,
    )
    built = impl(groups, lr=lr, **kwargs)
    if weight_decay and _normalises_decay(built):
        warnings.warn(
            f"torch.optim.{type(built).__name__} adds weight decay to the gradient and normalises both, so its effect "
            "changes with width: use MuAdamW for decay that transfers.",
            stacklevel=2,
        )
    return _followed(model, built, "adam")


# torch's optimizers that add weight decay to the gradient before they divide it by its size.
_COUPLED = (
    torch.optim.Adam,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
)


def _normalises_decay(optimizer: object) -> bool:
    """Whether an optimizer's decay depends on the gradient's size: what was built is asked, not what built it."""
    if not isinstance(optimizer, _COUPLED) or isinstance(optimizer, torch.optim.AdamW):  # newer AdamWs are Adams, too
        return False
    return not any(group.get("decoupled_weight_decay") for group in optimizer.param_groups)


def _followed(model: nn.Module, optimizer: torch.optim.Optimizer, family: str) -> torch.optim.Optimizer:
    if hasattr(optimizer, "register_step_pre_hook"):  # what ``impl`` returns may be a wrapper of its own kind
        follow_plan(model, optimizer, family)
    if hasattr(optimizer, "register_load_state_dict_pre_hook"):
        optimizer.register_load_state_dict_pre_hook(check_optimizer_state)
    return optimizer


def MuAdamW(
    model: nn.Module,
    lr: float = 1e-3,
    *,
    impl: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    weight_decay: float = 1e-2,
    **kwargs: Any,
) -> torch.optim.Optimizer:
    """AdamW with μP learning rates and independent weight decay; arguments as for :func:`MuAdam`."""
    return MuAdam(model, lr, impl=impl, weight_decay=weight_decay, **kwargs)


def MuSGD(
    model: nn.Module,
    lr: float = 1e-3,
    *,
    impl: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    weight_decay: float = 0.0,
    lr_mult: Mapping[str, float] | None = None,
    **kwargs: Any,
) -> torch.optim.Optimizer:
    """SGD, or any SGD-like ``impl``, with μP learning rates.

    They follow the width rule alone, since the mode rules are for Adam: parametrize with ``rule="none"`` for SGD, or
    the kernels' initialisation alone follows the modes. Parameters and errors are those of :func:`MuAdam`.
    """
    groups = param_groups(model, lr, "sgd", weight_decay=weight_decay, lr_mult=lr_mult)
    return _followed(model, impl(groups, lr=lr, **kwargs), "sgd")


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, family: str = "adam") -> None:
    """Refuse an optimizer whose learning rates do not follow the model's plan.

    Catches an optimizer that was built before :func:`~neuralop_mup.parametrize` or from ``model.parameters()``, and
    learning rates that a scheduler (``OneCycleLR(max_lr=0.01)``) or a callback made equal. Master multipliers are allowed
    for: a group's learning rate must stand to the others' as its ``lr_mult`` does.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    optimizer : torch.optim.Optimizer
        The optimizer that is to train it.
    family : {"adam", "sgd"}
        Which of the plan's learning-rate columns applies.

    Raises
    ------
    MupError
        If a parameter is missing from the optimizer, or learning rates are not in the plan's ratios.
    """
    plan, model = present_plan(model), unwrap(model)
    lr_of = {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
    parameters = dict(model.named_parameters())
    follower = follower_of(optimizer)
    factors = follower.mode_mults(optimizer) if follower is not None else [1.0] * len(optimizer.param_groups)
    rule_mult_of = {
        id(p): group["rule_mult"] * factor if "rule_mult" in group else None
        for group, factor in zip(optimizer.param_groups, factors, strict=True)
        for p in group["params"]
    }
    # The plan's rule does not apply to MuMuon's maps: their updates are of one size at every width and number of modes.
    depth_mult = {
        id(p): group["rule_mult"] for group in optimizer.param_groups if group.get("layouts") for p in group["params"]
    }
    base_lr: dict[str, float] = {}
    for row in plan.rows:
        if id(parameters[row.name]) not in lr_of:
            raise MupError(f"The optimizer does not hold {row.name!r}: build it from this model, after parametrize.")
        # Groups of ours carry the rule's part by itself; elsewhere all learning rates must stand in the plan's ratios.
        given, lr = rule_mult_of[id(parameters[row.name])], lr_of[id(parameters[row.name])]
        expected = depth_mult.get(id(parameters[row.name]), rule_mult(row, family))
        follows = (
            math.isclose(base_lr.setdefault("lr", lr / expected), lr / expected, rel_tol=1e-6)
            if given is None
            else math.isclose(given, expected, rel_tol=1e-6)
        )
        if not follows:
            raise MupError(
                f"The optimizer gives {row.name!r} a learning rate of {lr:.4g}, which does not follow the plan "
                f"(lr × {expected:.4g}): it was built before parametrize or from plain model.parameters(). Build it with "
                "neuralop_mup.MuAdam(model, lr=…) or from param_groups."
            )
    if problem := off_plan(optimizer.param_groups):
        raise MupError(problem)


def clip_spectral_grad_value_(model: nn.Module, clip_value: float) -> None:
    """Clip the gradients of Fourier kernels elementwise, real and imaginary part each, in place.

    This is what makes the paper's Assumption 3.4 (sub-Gaussian updates) hold (arXiv:2506.19396, section 3.3; 0.01 for
    Navier–Stokes). ``torch.nn.utils.clip_grad_value_`` refuses complex gradients. Other parameters are left alone.

    Parameters
    ----------
    model : torch.nn.Module
        Any model that can be classified, parametrized or not.
    clip_value : float
        Largest magnitude of Re and of Im of a gradient entry.

    Raises
    ------
    MupError
        If ``clip_value`` is not a positive number, or the model has no Fourier kernel.
    """
    if not (isinstance(clip_value, Real) and clip_value > 0):
        raise MupError(f"clip_value is {clip_value!r}; give a positive number such as 0.01.")
    model = look_through(model)
    for parameter in _kernels(model):
        grad = parameter.grad
        if grad is not None:
            real = torch.view_as_real(grad) if grad.is_complex() else grad
            real.clamp_(-clip_value, clip_value)


# Of models without a plan, which are classified once: it takes longer than a step of a small model.
_KERNELS: WeakKeyDictionary[nn.Module, tuple[str, ...]] = WeakKeyDictionary()


def _kernels(model: nn.Module) -> list[torch.Tensor]:
    """Parameters of Fourier kernels, in time that does not count at every step."""
    plan = vars(model).get(ATTRIBUTE)
    names = plan.kernels if plan is not None else _KERNELS.get(model)
    if names is None:
        names = _KERNELS[model] = tuple(kernels_and_axes(model))
    if not names:
        raise MupError(f"{type(model).__name__} has no Fourier kernel, so there is nothing to clip.")
    try:
        # Not get_parameter: an incremental kernel's attribute is the part of its tensor that is active.
        parts = (name.rpartition(".") for name in names)
        found = [model.get_submodule(owner)._parameters[leaf] for owner, _, leaf in parts]
        return [parameter for parameter in found if parameter is not None]
    except (AttributeError, KeyError):  # its layers were changed since
        if plan is not None or _KERNELS.pop(model, None) is None:
            raise MupError(
                f"The parameters of this {type(model).__name__} changed after parametrize ({names[0]!r} or another kernel "
                "was removed): parametrize the finished model."
            ) from None
        return _kernels(model)
