"""Check that an optimizer's learning rates follow its model's plan.

A plan fixes ratios: each parameter's learning rate is the one at base times a factor. Schedulers may only change the one at
base. :func:`off_plan` compares the ratios. Plain optimizers of torch are checked before their steps.
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

# Attribute of an optimizer with its hooks (neuralop_mup.optim.lr_hooks). torch omits it from copies and pickles.
LR_HOOKS = "_neuralop_mup_follower"
# Attribute of an optimizer: numbers of plans and groups when it was checked, or True after a warning. Not copied either.
_CHECKED = "_neuralop_mup_checked"

#: Start of the warning about Fourier kernels without a gradient.
NO_GRADIENT = "Fourier kernels receive no gradient"

# Smaller deviations of a learning rate do not affect training: the optimum is much broader.
_TOLERANCE = 1e-2

_REMEDY = (
    "Schedulers and callbacks need one value per group, e.g. "
    "OneCycleLR(optimizer, max_lr=[g['lr'] for g in optimizer.param_groups]), and floors (eta_min, min_lr, swa_lr) of "
    "zero; if you change one group's lr, change its 'lr_mult' by the same factor."
)


def off_plan(groups: Groups, mults: Mapping[Any, tuple[str, float]]) -> str:
    """Describe the first parameter with a learning rate off the plan; an empty string if there is none.

    Learning rates of zero are ignored, and so are deviations that are small relative to ``initial_lr``: at the end of a
    cosine, only rounding or a low floor remains.

    Parameters
    ----------
    groups : sequence of dict
        An optimizer's param groups.
    mults : mapping
        Name of each parameter to check, and the rule's factor on its learning rate. In groups with ``own_rule``,
        ``rule_mult`` replaces it.
    """
    rates: list[tuple[str, float, float, Any]] = []
    for group in groups:
        rule, lr = group.get("rule_mult", 1.0), float(group["lr"])
        # The group's factors other than the rule: multipliers by role, and one of MuSOAP's two learning rates at base.
        own = group.get("lr_mult", rule) / rule * group.get("base_lr", 1.0)
        for name, mult in (mults[p] for p in group["params"] if p in mults and lr and own):
            rates.append((name, lr, own * (rule if group.get("own_rule") else mult), group.get("initial_lr", 0.0)))
    base = median_low([lr / mult for _, lr, mult, _ in rates] or [0.0])
    for name, lr, mult, start in rates:
        gap = abs(lr - base * mult)
        if gap > _TOLERANCE * max(lr, base * mult) and not (_readable(start) and gap <= _TOLERANCE * start):
            return f"{name} has {lr:.4g}, but {base * mult:.4g} follows from the others"
    return ""


def _readable(lr: Any) -> bool:
    """Return whether a learning rate is a number that can be read without waiting for an accelerator."""
    return lr.device.type == "cpu" if isinstance(lr, torch.Tensor) else isinstance(lr, Real)


def broken_ratios(groups: Groups) -> str:
    """Return a warning if groups of this package lost the plan's ratios, otherwise an empty string."""
    # ReduceLROnPlateau does not store initial_lr.
    ours = [
        {"initial_lr": group.get("base_lr", 0.0), **group}
        for group in groups
        if group.get("lr_mult") and group["params"] and _readable(group["lr"])
    ]
    problem = off_plan(ours, {group["params"][0]: (f"group {group.get('name')!r}", group["rule_mult"]) for group in ours})
    return problem and f"Learning rates are not in the plan's ratios: {problem}. {_REMEDY}"


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, family: str | None = None) -> None:
    """Raise MupError unless the optimizer's learning rates follow the model's plan.

    This detects an optimizer built before :func:`~neuralop_mup.parametrize` or from ``model.parameters()``, and learning
    rates made equal by a scheduler (``OneCycleLR(max_lr=0.01)``) or a callback. Multipliers by role are taken into account:
    the ratios are those of the groups' ``lr_mult``.

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
        If ``family`` is unknown, a parameter is not in the optimizer, a learning rate is negative or not finite, or learning
        rates are not in the plan's ratios.

    Warns
    -----
    UserWarning
        If some Fourier kernels have no gradient while other parameters have one.

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
    if hooks := getattr(optimizer, LR_HOOKS, None):  # the next step uses the modes that are active now
        pairs = zip(groups, hooks.mode_mults(groups), strict=True)
        groups = [{**group, "lr": group["lr"] * (mult or 1.0)} for group, mult in pairs]
    check_groups(resolved, groups, family or family_of(optimizer) or "adam", resolved.parameters)
    warn_of_no_gradient(kernels_without_gradient(resolved))


def check_groups(resolved: ResolvedModel, groups: Groups, family: str, names: Iterable[str]) -> None:
    """Raise MupError unless the named parameters that the groups contain have the plan's learning rates."""
    rows = [row for row in resolved.plan.rows if row.name in names]
    mults = {resolved.parameters[row.name]: (repr(row.name), rule_mult(row, family)) for row in rows}
    if problem := off_plan(groups, mults):
        raise MupError(
            f"The optimizer does not follow the plan: {problem}. Build it after parametrize with neuralop_mup.MuAdam(model, "
            f"lr=…) or from neuralop_mup.param_groups(model, lr=…, optimizer={family!r}). {_REMEDY}"
        )


def kernels_without_gradient(resolved: ResolvedModel, count_zeros: bool = True) -> list[str]:
    """Return the names of trainable Fourier kernels with no gradient, or with a zero gradient.

    The list is empty if no parameter has a gradient. Call it after ``backward``. To look for zeros, it waits for the device.
    """
    kernels = {row.name for row in resolved.plan.rows if row.role == "spectral"}
    trained = {name: p for name, p in resolved.parameters.items() if p.requires_grad}
    idle = [name for name, p in trained.items() if p.grad is None or (count_zeros and not p.grad.any())]
    return [name for name in idle if name in kernels] if len(idle) < len(trained) else []


def warn_of_no_gradient(names: Iterable[str], stacklevel: int = 3) -> None:
    """Warn that these kernels stay untrained, if there are any."""
    if names := list(names):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"{NO_GRADIENT} and stay untrained: {', '.join(names[:3])}{more}. Usually the forward pass never calls the "
            "layer, or discards (layer(x) instead of x = layer(x)), detaches or zeroes its output. Correct it, or call "
            "requires_grad_(False) on kernels that you do not train.",
            stacklevel=stacklevel,
        )


def check_same_groups(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Raise MupError unless a saved state has the groups of the optimizer.

    torch compares only the numbers of groups and parameters, and then loads every learning rate.

    Raises
    ------
    MupError
        If groups differ in number, names, parameters, shapes or multipliers.
    """
    if not isinstance(state, Mapping) or "param_groups" not in state:
        raise MupError("The state has no param_groups, so it is not an optimizer's. Save optimizer.state_dict().")
    if problem := _different_groups(optimizer.param_groups, state["param_groups"], state["state"]):
        raise MupError(
            f"This optimizer state belongs to other groups: {problem}. Build model and optimizer as for the saved run, with "
            "the same sizes, base, rule and lr_mult, e.g. neuralop_mup.MuAdam(model, lr=…)."
        )


def check_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Raise MupError unless a saved state fits the optimizer: groups, and settings of its class."""
    check_same_groups(optimizer, state)
    # For states of its earlier releases, torch adds settings with default True, False or None.
    read = [key for key, value in optimizer.defaults.items() if value is not None and not isinstance(value, bool)]
    if missing := [key for key in read for group in state["param_groups"] if key not in group]:
        raise MupError(
            f"This state was not saved by {type(optimizer).__name__}: its groups have no {missing[0]!r}. Load it into an "
            "optimizer of the class that saved it."
        )


def _different_groups(ours: Groups, theirs: Groups, states: Mapping[Any, Mapping[str, Any]]) -> str:
    """Describe the first difference between the groups of an optimizer and of a saved state; an empty string if none."""
    missing: Mapping[str, Any] = {"params": ()}
    for group, saved in zip_longest(ours, theirs, fillvalue=missing):
        own, other = ((g.get("name"), len(g["params"]), g.get("layouts")) for g in (group, saved))
        if own != other:
            return f"(name, number of parameters, layouts) is {own} here, and {other} was saved"
        for p, key in zip(group["params"], saved["params"], strict=True):
            average = states.get(key, {}).get("exp_avg", p)
            if average.shape != p.shape:
                return f"an average of shape {tuple(average.shape)} in group {own[0]!r} for a parameter of {tuple(p.shape)}"
        # Modes may have changed since, and release 0.3.0 counted depth differently: compare only the user's multipliers.
        is_variable = "mode_mult" in group or group.get("own_rule")
        mults = [g.get("lr_mult", 1.0) / (g.get("rule_mult", 1.0) if is_variable else 1.0) for g in (group, saved)]
        if not math.isclose(*mults, rel_tol=1e-6):
            return f"lr_mult of group {own[0]!r} is {group.get('lr_mult')}, but {saved.get('lr_mult')} was saved"
    return ""


def family_of(optimizer: object) -> str | None:
    """Return the family of an optimizer of torch; None for other classes, which may belong to either."""
    if type(optimizer) in (torch.optim.SGD, torch.optim.ASGD):
        return "sgd"
    return "adam" if type(optimizer).__module__.startswith("torch.optim.") else None


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the innermost optimizer of a wrapper with the same groups, such as accelerate's, Lightning's or SAM's."""
    groups = getattr(optimizer, "param_groups", ())
    for inner in getattr(optimizer, "__dict__", {}).values():
        if isinstance(inner, torch.optim.Optimizer) and any(a is b for a in inner.param_groups for b in groups):
            return unwrap_optimizer(inner)
    return optimizer


def _warn_if_off_plan(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
    """Warn if a plain optimizer trains a parametrized model, as ``AdamW(model.parameters())`` after ``parametrize``.

    torch calls this hook before each step of every optimizer, from the first ``parametrize`` on. It keeps no reference to
    models or optimizers: the ``infshape`` of parameters has the plan's learning rates.
    """
    # Check each optimizer once, and again after another plan or another group.
    now = (CopiesShapes.made, len(optimizer.param_groups))
    if torch.compiler.is_compiling() or getattr(optimizer, _CHECKED, None) in (now, True):
        return
    lrs = [group.get("lr") for group in optimizer.param_groups]  # None: an optimizer that has another name for it
    # In a warm-up from zero, wait for the next step.
    if any(lr is None for lr in lrs) or all(_readable(lr) and lr == 0 for lr in lrs):
        return
    follows = _follows_its_plan(optimizer)
    setattr(optimizer, _CHECKED, now if follows else True)
    if not follows:
        warnings.warn(_how_to_build(optimizer), UserWarning, stacklevel=3)  # the line that calls step


on_first_plan.append(lambda: register_optimizer_step_pre_hook(_warn_if_off_plan))


def _follows_its_plan(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether learning rates have the plan's ratios, or the plan does not apply to this optimizer."""
    groups = optimizer.param_groups
    shapes = {p: p.infshape for g in groups for p in g["params"] if isinstance(getattr(p, "infshape", None), MupShape)}
    trained = [p for p, shape in shapes.items() if not shape.frozen and p.requires_grad]
    # For part of a trained model, learning rates are the user's choice.
    is_whole = len(trained) >= max((shapes[p].of for p in trained), default=math.inf)
    is_readable = all(_readable(group["lr"]) for group in groups)
    is_scaled = any(shape.adam_lr != 1 or shape.sgd_lr != 1 for shape in shapes.values())
    if not (is_whole and is_readable and is_scaled) or isinstance(optimizer, torch.optim.LBFGS):  # it sets step sizes
        return True
    off = {family: off_plan(groups, {p: ("", getattr(s, f"{family}_lr")) for p, s in shapes.items()}) for family in FAMILIES}
    known = family_of(optimizer)
    is_off = all(off.values()) if known is None else off[known]
    # follow_plan watches groups of param_groups, so warn only if they are those of the other family.
    plain = {p for group in groups if "rule_mult" not in group for p in group["params"]}
    return not is_off or (all(off.values()) and plain.isdisjoint(shapes))


def _how_to_build(optimizer: torch.optim.Optimizer) -> str:
    """Return the warning, with the line that builds the optimizer under μP."""
    cls, lr = type(optimizer), float(optimizer.param_groups[0]["lr"])
    ours = {torch.optim.Adam: "MuAdam", torch.optim.AdamW: "MuAdamW", torch.optim.SGD: "MuSGD"}
    impl = "" if cls in ours else f", impl={cls.__module__.removesuffix('.adamw')}.{cls.__qualname__}"
    return (
        f"{cls.__name__}'s learning rates do not follow its model's plan, so settings tuned at base do not transfer. Build "
        f"neuralop_mup.{ours.get(cls, 'MuAdam')}(model, lr={lr:g}{impl}) with your other settings, where lr is the learning "
        "rate at base. For the standard parametrization, call parametrize(model, rule='standard')."
    )
