"""Whether an optimizer is on its model's plan.

A plan gives ratios: each parameter has the learning rate at base times a number, and schedulers move the one at base.
:func:`off_plan` is the one question, of an optimizer, of a step, and of torch's own optimizers, which nobody built for a
plan: these are looked at before their steps.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from statistics import median_low
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from neuralop_mup.core.infshape import MupShape
from neuralop_mup.core.state_dict_hooks import CopiesShapes, on_first_plan
from neuralop_mup.errors import MupError
from neuralop_mup.optim.resolved_model import FAMILIES, ResolvedModel, resolve, rule_mult
from neuralop_mup.optim.unused import kernels_without_gradient, warn_of_no_gradient
from neuralop_mup.validation import check_number

# On an optimizer: what holds it to its plan (neuralop_mup.optim.learning_rate). torch leaves it out of copies and pickles.
LR_HOOKS = "_neuralop_mup_follower"
# On an optimizer: what there was when it was looked at, or True if it was warned of. torch leaves it out of copies.
_LOOKED_AT = "_neuralop_mup_looked_at"

# What changes a learning rate by less than this changes no training: best learning rates are flat over much more.
_TOLERANCE = 1e-2

_REMEDY = (
    "If a scheduler or callback set absolute values over the groups' own, give it one value a group, e.g. "
    "OneCycleLR(optimizer, max_lr=[g['lr'] for g in optimizer.param_groups]), or one that scales; leave floors (eta_min, "
    "min_lr, swa_lr) at zero or give them likewise. If you set a group's lr on purpose, set its 'lr_mult' with it."
)


def off_plan(groups: Sequence[Mapping[str, Any]], mults: Mapping[Any, float]) -> dict[Any, tuple[float, float]]:
    """Parameters that do not have the learning rate at base times their number: the one that they have, and that one.

    Learning rates of zero tell nothing. Nor does what is off by little next to what a schedule began with: at the end of a
    cosine learning rates are zero but for rounding, or for a floor far below them.

    Parameters
    ----------
    groups : sequence of dict
        An optimizer's param groups.
    mults : mapping
        The rule's factor on the learning rate of each parameter to look at; others are left out. Groups with
        ``own_rule`` have a multiplier of their own.
    """
    found: dict[Any, tuple[float, float, Any]] = {}
    for group in groups:
        rule, lr = group.get("rule_mult", 1.0), float(group["lr"])
        # Beside the rule a group has multipliers by role, and of MuSOAP's two learning rates at base one.
        own = group.get("lr_mult", rule) / rule * group.get("base_lr", 1.0)
        for p in group["params"] if lr and own else ():
            if p in mults:
                found[p] = (
                    lr,
                    own * (rule if group.get("own_rule") else mults[p]),
                    group.get("initial_lr", 0.0),
                )
    base = median_low([lr / mult for lr, mult, _ in found.values()] or [0.0])
    off = {}
    for p, (lr, mult, start) in found.items():
        gap = abs(lr - base * mult)
        if gap > _TOLERANCE * max(lr, base * mult) and not (_readable(start) and gap <= _TOLERANCE * start):
            off[p] = lr, base * mult
    return off


def _readable(lr: Any) -> bool:
    """Whether a learning rate is a number that can be had without waiting for an accelerator."""
    return lr.device.type == "cpu" if isinstance(lr, torch.Tensor) else isinstance(lr, Real)


def broken_ratios(groups: Sequence[Mapping[str, Any]]) -> str | None:
    """What became of the ratios in which groups were built, in a sentence; None if they stand. Others' are left out."""
    # A plateau's schedule notes nowhere what it began with.
    ours = [
        {"initial_lr": group.get("base_lr", 0.0), **group}
        for group in groups
        if group.get("lr_mult") and group["params"] and _readable(group["lr"])
    ]
    names = {group["params"][0]: f"group {group.get('name')!r}" for group in ours}
    return _said(off_plan(ours, {group["params"][0]: group["rule_mult"] for group in ours}), names)


def _said(off: Mapping[Any, tuple[float, float]], names: Mapping[Any, str]) -> str | None:
    """The first of these that is not on the plan, in a sentence."""
    for p, name in names.items():
        if p in off:
            return (
                f"Learning rates do not stand in the plan's ratios: {name} has {off[p][0]:.4g}, where {off[p][1]:.4g} "
                f"follows from the others. {_REMEDY}"
            )
    return None


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, family: str | None = None) -> None:
    """Refuse an optimizer whose learning rates do not follow the model's plan.

    Catches an optimizer that was built before :func:`~neuralop_mup.parametrize` or from ``model.parameters()``, and
    learning rates that a scheduler (``OneCycleLR(max_lr=0.01)``) or a callback made equal. Multipliers by role are allowed
    for: a group's learning rate must stand to the others' as its ``lr_mult`` does. ``MuSOAP(model, steps=…)`` is checked
    as with the ``lr`` that follows.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    optimizer : torch.optim.Optimizer
        The optimizer that is to train it.
    family : {"adam", "sgd"}, optional
        Which of the plan's learning-rate columns applies. By default torch's SGD is known by its class, and others are taken
        for Adam-like.

    Raises
    ------
    MupError
        If there is no such family, a parameter is missing from the optimizer, a learning rate is not a number of 0 or more,
        or learning rates are not in the plan's ratios.

    Warns
    -----
    UserWarning
        If there are gradients, and some Fourier kernels have none.

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
    held = {p for group in groups for p in group["params"]}
    for name, p in resolved.parameters.items():
        if p not in held:
            raise MupError(f"The optimizer does not hold {name!r}: build it from this model, after parametrize.")
    if follower := getattr(optimizer, LR_HOOKS, None):  # its step is made at the modes that are active now
        pairs = zip(groups, follower.mode_mults(groups), strict=True)
        groups = [{**group, "lr": group["lr"] * (mult or 1.0)} for group, mult in pairs]
    check_groups(resolved, groups, family or family_of(optimizer) or "adam", resolved.parameters)
    warn_of_no_gradient(kernels_without_gradient(resolved))


def check_groups(resolved: ResolvedModel, groups: Sequence[Mapping[str, Any]], family: str, names: Iterable[str]) -> None:
    """Refuse groups in which one of these parameters, if it is there at all, does not have the learning rate of the plan."""
    mults = {resolved.parameters[row.name]: rule_mult(row, family) for row in resolved.plan.rows if row.name in names}
    if problem := _said(off_plan(groups, mults), {p: repr(name) for name, p in resolved.parameters.items()}):
        raise MupError(
            f"The optimizer does not follow the plan. {problem} If it was built before parametrize, or from plain "
            "model.parameters(), build it with neuralop_mup.MuAdam(model, lr=…) or from "
            f"neuralop_mup.param_groups(model, lr=…, optimizer={family!r})."
        )


def check_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping) -> None:
    """Refuse the saved state of an optimizer whose groups are not those of ``optimizer``, or that is of another kind.

    torch compares the numbers of groups and parameters alone, and then takes every learning rate from the file.

    Raises
    ------
    MupError
        If groups differ in number, parameters and their shapes, name, or the multipliers of the rule or of the roles, or
        lack a number that the optimizer's step reads.
    """
    optimizer = unwrap_optimizer(optimizer)
    theirs = state.get("param_groups") if isinstance(state, Mapping) else None
    if not isinstance(theirs, list):
        raise MupError("This is not the state dict of an optimizer (it has no param_groups): save optimizer.state_dict().")
    if problem := _different_groups(optimizer.param_groups, theirs, state.get("state", {})):
        raise MupError(
            f"This optimizer state belongs to other groups ({problem}): build model and optimizer as they were, with the "
            "same sizes, base, rule and lr_mult, from neuralop_mup's optimizers or param_groups."
        )
    # torch itself fills in settings that are True, False or None by default, in states of its former releases.
    read = [key for key, value in optimizer.defaults.items() if value is not None and not isinstance(value, bool)]
    lacking = [key for key in read for group in theirs if key not in group]
    if lacking:
        raise MupError(
            f"This optimizer state is not of a {type(optimizer).__name__} (its groups have no {lacking[0]!r}): load it into "
            "the kind of optimizer that it was saved from."
        )


def _different_groups(
    ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], states: Mapping[Any, Mapping[str, Any]]
) -> str | None:
    """What the groups of an optimizer and of a state differ in."""
    if len(ours) != len(theirs):
        return f"{len(theirs)} groups were saved, the optimizer has {len(ours)}"
    for group, saved in zip(ours, theirs, strict=True):
        own, other = (f"{g.get('name')!r} with {len(g['params'])} parameters" for g in (group, saved))
        if own != other:
            return f"group {own} was saved as {other}"
        for p, key in zip(group["params"], saved["params"], strict=True):
            average = states.get(key, {}).get("exp_avg")
            if average is not None and average.shape != p.shape:
                return f"an average of shape {tuple(average.shape)} in group {own} for a parameter of {tuple(p.shape)}"
        growing = "mode_mult" in group or group.get("own_rule")  # release 0.3.0 counted depth in another way
        # Where modes may have grown since, the rule's part is right in its time. What was tuned is not of the time.
        mults = [g.get("lr_mult", 1.0) / (g.get("rule_mult", 1.0) if growing else 1.0) for g in (group, saved)]
        if not math.isclose(*mults, rel_tol=1e-6):
            return f"lr_mult of group {group.get('name')!r} is {group.get('lr_mult')}, saved was {saved.get('lr_mult')}"
    return None


def family_of(optimizer: object) -> str | None:
    """The family of one of torch's own optimizers; a class of somebody else's may be of either."""
    if type(optimizer) in (torch.optim.SGD, torch.optim.ASGD):
        return "sgd"
    return "adam" if type(optimizer).__module__.startswith("torch.optim.") else None


def unwrap_optimizer(optimizer: Any) -> Any:
    """The optimizer that makes the steps, inside one that has the same groups: accelerate's, Lightning's, SAM's."""
    groups = getattr(optimizer, "param_groups", ())
    for inner in getattr(optimizer, "__dict__", {}).values():
        if isinstance(inner, torch.optim.Optimizer) and any(a is b for a in inner.param_groups for b in groups):
            return unwrap_optimizer(inner)
    return optimizer


def _look(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
    """Warn of an optimizer that trains a parametrized model with learning rates that are not its plan's.

    ``AdamW(model.parameters())`` after ``parametrize`` is the likeliest mistake there is, and nothing else in a script shows
    it. So torch runs this before the step of every optimizer, from the first ``parametrize`` on. It holds neither models nor
    optimizers: what it has to know stands in the ``infshape`` of the parameters.
    """
    # Once for each optimizer, unless there is another plan, or another group, since then.
    now = (CopiesShapes.made, len(optimizer.param_groups))
    is_done = torch.compiler.is_compiling() or getattr(optimizer, _LOOKED_AT, None) in (now, True)
    is_done = is_done or not all("lr" in group for group in optimizer.param_groups)  # somebody's own calls it otherwise
    # Of a warm-up from zero the next step says more.
    if is_done or all(_readable(group["lr"]) and group["lr"] == 0 for group in optimizer.param_groups):
        return
    follows = _follows_its_plan(optimizer)
    setattr(optimizer, _LOOKED_AT, now if follows else True)
    if not follows:
        warnings.warn(_how_to_build(optimizer), UserWarning, stacklevel=3)  # where step was called


on_first_plan.append(lambda: register_optimizer_step_pre_hook(_look))


def _follows_its_plan(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer's learning rates stand in the ratios of the plan, or no plan can be meant."""
    groups = optimizer.param_groups
    shapes = {p: p.infshape for g in groups for p in g["params"] if isinstance(getattr(p, "infshape", None), MupShape)}
    trained = [p for p, shape in shapes.items() if not shape.frozen and p.requires_grad]
    # A user who fine-tunes a part of a model chooses its learning rates.
    is_meant = len(trained) >= max((shapes[p].of for p in trained), default=math.inf)
    is_readable = all(_readable(group["lr"]) for group in groups)
    is_scaled = any(shape.adam_lr != 1 or shape.sgd_lr != 1 for shape in shapes.values())
    if not (is_meant and is_readable and is_scaled) or isinstance(optimizer, torch.optim.LBFGS):  # which finds its scale
        return True
    off = {family: off_plan(groups, {p: getattr(s, f"{family}_lr") for p, s in shapes.items()}) for family in FAMILIES}
    known = family_of(optimizer)
    if any(not off[family] for family in ((known,) if known else FAMILIES)):
        return True
    # Groups of param_groups are told of if they are the other family's; their ratios are for follow_plan to watch.
    plain = {p for group in groups if "rule_mult" not in group for p in group["params"]}
    return not plain & shapes.keys() and all(off.values())


def _how_to_build(optimizer: torch.optim.Optimizer) -> str:
    cls, settings = type(optimizer), optimizer.param_groups[0]
    ours = {torch.optim.Adam: "MuAdam", torch.optim.AdamW: "MuAdamW", torch.optim.SGD: "MuSGD"}
    arguments = ["model", f"lr={float(settings['lr']):g}"]
    arguments += [f"{key}={settings[key]:g}" for key in ("momentum", "weight_decay") if settings.get(key)]
    if cls not in ours:
        arguments.append(f"impl={cls.__module__.removesuffix('.adamw')}.{cls.__qualname__}")
    return (
        f"{cls.__name__} trains a parametrized model with learning rates that do not follow its plan, so nothing that was "
        f"tuned at base carries over to it. Build it as neuralop_mup.{ours.get(cls, 'MuAdam')}({', '.join(arguments)}), or "
        f"from neuralop_mup.param_groups(model, lr=…, optimizer={family_of(optimizer) or 'adam'!r}), where lr is the "
        "learning rate at base. For the standard parametrization pass rule='standard' to parametrize. (Said once for each "
        "optimizer.)"
    )
