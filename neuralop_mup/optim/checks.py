"""Check that an optimizer's learning rates follow its model's plan.

A plan fixes the ratios of learning rates: each parameter's learning rate is the base learning rate times a factor.
Schedulers may only change the base learning rate. :func:`off_plan` compares the ratios. torch's own optimizers are checked
before their steps.
"""

import math
import warnings
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from numbers import Real
from statistics import median_low
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from neuralop_mup.core.infshape import MupShape
from neuralop_mup.core.state_dict_hooks import CopiesShapes, on_first_plan
from neuralop_mup.errors import MupError
from neuralop_mup.optim.resolved_model import FAMILIES, Groups, ResolvedModel, parameters_of, resolve, rule_mult
from neuralop_mup.validation import check_number

# Attribute that stores an optimizer's hooks (neuralop_mup.optim.lr_hooks). torch omits it from copies and pickles.
LR_HOOKS = "_neuralop_mup_follower"
# Attribute that stores the numbers of plans and groups at the time of the last check, or True after a warning. torch also
# omits it from copies.
_CHECKED = "_neuralop_mup_checked"

#: First words of the warning about Fourier kernels without a gradient.
NO_GRADIENT = "Fourier kernels receive no gradient"

# Relative tolerance for learning rates. Smaller deviations do not affect training, because the optimum is much broader.
_TOLERANCE = 1e-2

_REMEDY = (
    "Schedulers and callbacks need one value per group, e.g. OneCycleLR(optimizer, max_lr=[g['lr'] for g in "
    "optimizer.param_groups]), and floors (eta_min, min_lr, swa_lr) of zero. If you change the lr of a single group, "
    "change its 'lr_mult' by the same factor."
)


def off_plan(groups: Groups, mults: Mapping[Any, tuple[str, float]]) -> str:
    """Describe the first parameter with a learning rate that does not follow the plan, or return an empty string.

    Learning rates of zero are ignored. Deviations that are small relative to ``initial_lr`` are also ignored, because at the
    end of a cosine schedule, only rounding errors or a low floor remain.

    Parameters
    ----------
    groups : sequence of dict
        An optimizer's param groups.
    mults : mapping
        Maps each parameter to check to its name and the rule's factor on its learning rate. In groups with ``own_rule``, the
        factor is ``rule_mult`` instead.
    """
    rates: list[tuple[str, float, float, Any]] = []
    for group in groups:
        rule, lr = group.get("rule_mult", 1.0), float(group["lr"])
        # Factors of the group except the rule's factor: the multiplier for its role, and one of MuSOAP's two base learning
        # rates.
        own = group.get("lr_mult", rule) / rule * group.get("base_lr", 1.0)
        for name, mult in (mults[p] for p in group["params"] if p in mults and lr and own):
            rates.append((name, lr, own * (rule if group.get("own_rule") else mult), group.get("initial_lr", 0.0)))
    base = median_low([lr / mult for _, lr, mult, _ in rates] or [0.0])
    for name, lr, mult, start in rates:
        gap = abs(lr - base * mult)
        if gap > _TOLERANCE * max(lr, base * mult) and not (_readable(start) and gap <= _TOLERANCE * start):
            return f"{name} has learning rate {lr:.4g}, but the other groups imply {base * mult:.4g}"
    return ""


def _readable(lr: Any) -> bool:
    """Return whether a learning rate can be read without waiting for an accelerator."""
    return lr.device.type == "cpu" if isinstance(lr, torch.Tensor) else isinstance(lr, Real)


def broken_ratios(groups: Groups) -> str:
    """Return a warning message if this package's groups no longer have the plan's ratios, or an empty string."""
    # ReduceLROnPlateau does not store initial_lr.
    ours = [
        {"initial_lr": group.get("base_lr", 0.0), **group}
        for group in groups
        if group.get("lr_mult") and group["params"] and _readable(group["lr"])
    ]
    problem = off_plan(ours, {group["params"][0]: (f"group {group.get('name')!r}", group["rule_mult"]) for group in ours})
    return problem and f"Learning rates do not have the plan's ratios: {problem}. {_REMEDY}"


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, family: str | None = None) -> None:
    """Raise MupError unless the optimizer's learning rates follow the model's plan.

    This detects optimizers that were built before :func:`~neuralop_mup.parametrize` or from ``model.parameters()``. It also
    detects a scheduler (``OneCycleLR(max_lr=0.01)``) or a callback that sets all learning rates to the same value.
    Multipliers by role are taken into account, because the expected ratios are those of the groups' ``lr_mult``.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    optimizer : torch.optim.Optimizer
        The optimizer of this model.
    family : {"adam", "sgd"}, optional
        Selects the plan's learning rates. The default is "sgd" for torch's SGD and ASGD, otherwise "adam".

    Raises
    ------
    MupError
        If ``family`` is unknown, if a parameter is not in the optimizer, if a learning rate is negative or not finite, or if
        the learning rates do not have the plan's ratios.

    Warns
    -----
    UserWarning
        If some Fourier kernels have no gradient although other parameters have one.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 16})
    >>> nm.check_optimizer(model, nm.MuAdam(model, lr=8e-3))
    >>> try:
    ...     nm.check_optimizer(model, torch.optim.Adam(model.parameters(), lr=8e-3))
    ... except nm.MupError as error:
    ...     print("does not follow the plan" in str(error))
    True
    """
    resolved, optimizer = resolve(model, optimizer), unwrap_optimizer(optimizer)
    groups = optimizer.param_groups
    for i, group in enumerate(groups):
        check_number(f"lr of the optimizer's group {group.get('name', i)!r}", group["lr"], tensor=True)
    held = {*parameters_of(groups)}
    if missing := [name for name, p in resolved.parameters.items() if p not in held]:
        raise MupError(
            f"The optimizer does not contain {missing[0]!r}. Build it after parametrize: neuralop_mup.MuAdam(model, lr=…)."
        )
    if hooks := getattr(optimizer, LR_HOOKS, None):  # the next step uses the currently active modes
        pairs = zip(groups, hooks.mode_mults(groups), strict=True)
        groups = [{**group, "lr": group["lr"] * (mult or 1.0)} for group, mult in pairs]
    check_groups(resolved, groups, family or family_of(optimizer) or "adam", resolved.parameters)
    warn_of_no_gradient(kernels_without_gradient(resolved))


def check_groups(resolved: ResolvedModel, groups: Groups, family: str, names: Iterable[str]) -> None:
    """Raise MupError unless the groups give the named parameters the plan's learning rates."""
    rows = [row for row in resolved.plan.rows if row.name in names]
    mults = {resolved.parameters[row.name]: (repr(row.name), rule_mult(row, family)) for row in rows}
    if problem := off_plan(groups, mults):
        raise MupError(
            f"The optimizer does not follow the plan: {problem}. Build it after parametrize with neuralop_mup.MuAdam(model, "
            f"lr=…) or from neuralop_mup.param_groups(model, lr=…, optimizer={family!r}). {_REMEDY}"
        )


def kernels_without_gradient(resolved: ResolvedModel, count_zeros: bool = True) -> list[str]:
    """Return the names of trainable Fourier kernels with no gradient, or with a zero gradient.

    The list is empty if no parameter has a gradient. Call this function after ``backward``. If ``count_zeros`` is true, it
    waits for the device.
    """
    kernels = {row.name for row in resolved.plan.rows if row.role == "spectral"}
    trained = {name: p for name, p in resolved.parameters.items() if p.requires_grad}
    idle = [name for name, p in trained.items() if p.grad is None or (count_zeros and not p.grad.any())]
    return [name for name in idle if name in kernels] if len(idle) < len(trained) else []


def warn_of_no_gradient(names: Iterable[str], stacklevel: int = 3) -> None:
    """Warn that the named kernels are not trained, if there are any."""
    if names := list(names):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"{NO_GRADIENT} and are not trained: {', '.join(names[:3])}{more}. Usually the forward pass never calls the "
            "layer, or it discards (layer(x) instead of x = layer(x)), detaches or zeroes the layer's output. Correct the "
            "forward pass, or call requires_grad_(False) on kernels that should not be trained.",
            stacklevel=stacklevel,
        )


def check_same_groups(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Raise MupError unless a saved state has the same groups as the optimizer.

    torch only compares the numbers of groups and parameters, and then loads all learning rates.

    Raises
    ------
    MupError
        If groups differ in number, names, parameters, shapes or multipliers.
    """
    if not isinstance(state, Mapping) or "param_groups" not in state:
        raise MupError("The state has no param_groups, so it is not the state of an optimizer. Save optimizer.state_dict().")
    if problem := _different_groups(optimizer.param_groups, state["param_groups"], state["state"]):
        raise MupError(
            f"This optimizer state has different groups: {problem}. Build the model and the optimizer as in the saved run, "
            "with the same sizes, base, rule and lr_mult, e.g. neuralop_mup.MuAdam(model, lr=…)."
        )


def check_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Raise MupError unless a saved state has the groups of the optimizer and the settings of its class."""
    check_same_groups(optimizer, state)
    # For states from earlier releases, torch itself adds missing settings if their default is True, False or None.
    read = [key for key, value in optimizer.defaults.items() if value is not None and not isinstance(value, bool)]
    if missing := [key for key in read for group in state["param_groups"] if key not in group]:
        raise MupError(
            f"This state was not saved by {type(optimizer).__name__}: its groups have no setting {missing[0]!r}. Load it "
            "into an optimizer of the class that saved it."
        )


def _different_groups(ours: Groups, theirs: Groups, states: Mapping[Any, Mapping[str, Any]]) -> str:
    """Describe the first difference between an optimizer's groups and those of a saved state, or return an empty string."""
    missing: Mapping[str, Any] = {"params": ()}
    for group, saved in zip_longest(ours, theirs, fillvalue=missing):
        own, other = ((g.get("name"), len(g["params"]), g.get("layouts")) for g in (group, saved))
        if own != other:
            return f"(name, number of parameters, layouts) is {own} in the optimizer but {other} in the state"
        for p, key in zip(group["params"], saved["params"], strict=True):
            average = states.get(key, {}).get("exp_avg", p)
            if average.shape != p.shape:
                return (
                    f"group {own[0]!r} has an average of shape {tuple(average.shape)} for a parameter of shape "
                    f"{tuple(p.shape)}"
                )
        # Only compare the user's multipliers, because modes may have changed since and release 0.3.0 counted depth
        # differently.
        is_variable = "mode_mult" in group or group.get("own_rule")
        mults = [g.get("lr_mult", 1.0) / (g.get("rule_mult", 1.0) if is_variable else 1.0) for g in (group, saved)]
        if not math.isclose(*mults, rel_tol=1e-6):
            return (
                f"lr_mult of group {own[0]!r} is {group.get('lr_mult')} in the optimizer but {saved.get('lr_mult')} in the "
                "state"
            )
    return ""


def family_of(optimizer: object) -> str | None:
    """Return the family of a torch optimizer, or None for other classes, which may belong to either family."""
    if type(optimizer) in (torch.optim.SGD, torch.optim.ASGD):
        return "sgd"
    return "adam" if type(optimizer).__module__.startswith("torch.optim.") else None


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside wrappers, such as those of accelerate, Lightning or SAM, that share its param groups."""
    groups = getattr(optimizer, "param_groups", ())
    for inner in getattr(optimizer, "__dict__", {}).values():
        if isinstance(inner, torch.optim.Optimizer) and any(a is b for a in inner.param_groups for b in groups):
            return unwrap_optimizer(inner)
    return optimizer


def _warn_if_off_plan(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
    """Warn if a plain optimizer such as ``AdamW(model.parameters())`` trains a parametrized model.

    After the first call of ``parametrize``, torch calls this hook before each step of every optimizer. The hook keeps no
    references to models or optimizers, because it reads the plan's learning rates from the ``infshape`` of the parameters.
    """
    # Check each optimizer once, and again after a plan or a group is added.
    now = (CopiesShapes.made, len(optimizer.param_groups))
    if torch.compiler.is_compiling() or getattr(optimizer, _CHECKED, None) in (now, True):
        return
    lrs = [group.get("lr") for group in optimizer.param_groups]  # None if the optimizer uses a different name
    # Learning rates may all be zero at the start of a warm-up. In this case, wait for the next step.
    if any(lr is None for lr in lrs) or all(_readable(lr) and lr == 0 for lr in lrs):
        return
    follows = _follows_its_plan(optimizer)
    setattr(optimizer, _CHECKED, now if follows else True)
    if not follows:
        warnings.warn(_how_to_build(optimizer), UserWarning, stacklevel=3)  # the caller of step


on_first_plan.append(lambda: register_optimizer_step_pre_hook(_warn_if_off_plan))


def _follows_its_plan(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the learning rates have the plan's ratios or the plan does not apply to this optimizer."""
    groups = optimizer.param_groups
    shapes = {p: p.infshape for g in groups for p in g["params"] if isinstance(getattr(p, "infshape", None), MupShape)}
    trained = [p for p, shape in shapes.items() if not shape.frozen and p.requires_grad]
    # If an optimizer only trains some of a model's parameters, the learning rates are the user's choice.
    is_whole = len(trained) >= max((shapes[p].of for p in trained), default=math.inf)
    is_readable = all(_readable(group["lr"]) for group in groups)
    is_scaled = any(shape.adam_lr != 1 or shape.sgd_lr != 1 for shape in shapes.values())
    # LBFGS determines its own step sizes
    if not (is_whole and is_readable and is_scaled) or isinstance(optimizer, torch.optim.LBFGS):
        return True
    off = {family: off_plan(groups, {p: ("", getattr(s, f"{family}_lr")) for p, s in shapes.items()}) for family in FAMILIES}
    known = family_of(optimizer)
    is_off = all(off.values()) if known is None else off[known]
    # follow_plan already checks groups made by param_groups, so warn about these only if they are for the other family.
    plain = {p for group in groups if "rule_mult" not in group for p in group["params"]}
    return not is_off or (all(off.values()) and plain.isdisjoint(shapes))


def _how_to_build(optimizer: torch.optim.Optimizer) -> str:
    """Return the warning message, including the call that builds the optimizer with μP learning rates."""
    cls, lr = type(optimizer), float(optimizer.param_groups[0]["lr"])
    ours = {torch.optim.Adam: "MuAdam", torch.optim.AdamW: "MuAdamW", torch.optim.SGD: "MuSGD"}
    impl = "" if cls in ours else f", impl={cls.__module__.removesuffix('.adamw')}.{cls.__qualname__}"
    return (
        f"The learning rates of {cls.__name__} do not follow the model's plan, so settings tuned on the base model do not "
        f"transfer. Build the optimizer with neuralop_mup.{ours.get(cls, 'MuAdam')}(model, lr={lr:g}{impl}) and your other "
        "settings, where lr is the learning rate of the base model. For the standard parametrization, call "
        "parametrize(model, rule='standard')."
    )
