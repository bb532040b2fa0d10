"""Whether an optimizer is on a model's plan, and what holds it there while it trains.

A plan gives ratios: each parameter has the learning rate at base times a number, and schedulers move the one at base.
:func:`not_on_plan` is the one question, of an optimizer, of a step, of a saved state and of torch's own optimizers alike.

A group names the factors of its learning rate in ``step_mults``: keys of its own, such as ``mode_mult``. Whoever adds a
factor owns its value. ``lr`` stays the scheduler's, closed-form ones included, and the step is made with their product.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from statistics import median_low
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from neuralop_mup.core.infshape import MupShape
from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.parts import active_modes
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.plan_state import CopiesShapes, on_first_plan
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.optim.binding import FAMILIES, Binding, bind, check_family, mode_kernels, present_plan, rule_mult
from neuralop_mup.torch_private import not_compiled
from neuralop_mup.validation import check_number

# On an optimizer: what holds it to its plan. torch leaves it out of copies and pickles, as it leaves out hooks.
_FOLLOWER = "_neuralop_mup_follower"

# What changes a learning rate by less than this changes no training: best learning rates are flat over much more.
_TOLERANCE = 1e-2

_REMEDY = (
    "If a scheduler or callback set absolute values over the groups' own, give it one value a group, e.g. "
    "OneCycleLR(optimizer, max_lr=[g['lr'] for g in optimizer.param_groups]), or one that scales; leave floors (eta_min, "
    "min_lr, swa_lr) at zero or give them likewise. If you set a group's lr on purpose, set its 'lr_mult' with it."
)


def not_on_plan(
    groups: Sequence[Mapping[str, Any]], mults: Mapping[Any, float], base: float | None = None
) -> dict[Any, tuple[float, float]]:
    """Parameters that do not have the learning rate at base times their number: the one that they have, and that one.

    Learning rates of zero tell nothing. Nor does what is off by little next to what a schedule began with: at the end of a
    cosine learning rates are zero but for rounding, or for a floor far below them.

    Parameters
    ----------
    groups : sequence of dict
        An optimizer's param groups.
    mults : mapping
        The rule's factor on the learning rate of each parameter to look at; others are left out. Groups with ``layouts`` are
        MuSOAP's own, which follow the depth of a model alone and say so themselves.
    base : float, optional
        The learning rate at base, if it is known; otherwise what most of the parameters say it is.
    """
    found = {}
    for group in groups:
        rule = group.get("rule_mult", 1.0)
        # Beside the rule a group has multipliers by role, and of MuSOAP's two learning rates at base one.
        own = group.get("lr_mult", rule) / rule * group.get("base_lr", 1.0)
        lr = float(group["lr"])
        for p in group["params"] if lr and own else ():
            if p in mults:
                found[p] = (lr, own * (rule if group.get("layouts") else mults[p]), group.get("initial_lr", 0.0))
    if base is None:
        base = median_low([lr / mult for lr, mult, _ in found.values()] or [0.0])
    off = {}
    for p, (lr, mult, start) in found.items():
        expected = base * mult
        gap = abs(lr - expected)
        if gap > _TOLERANCE * max(lr, expected) and not (_readable(start) and gap <= _TOLERANCE * start):
            off[p] = lr, expected
    return off


def _readable(lr: Any) -> bool:
    """Whether a learning rate is a number that can be had without waiting for an accelerator."""
    return lr.device.type == "cpu" if isinstance(lr, torch.Tensor) else isinstance(lr, Real)


def broken_ratios(groups: Sequence[Mapping[str, Any]]) -> str | None:
    """What became of the ratios in which groups were built, in a sentence; None if they stand. Others' are left out."""
    ours = [group for group in groups if group.get("lr_mult") and group["params"] and _readable(group["lr"])]
    off = not_on_plan(ours, {group["params"][0]: group["rule_mult"] for group in ours})
    for group in ours:
        if found := off.get(group["params"][0]):
            return (
                f"Learning rates do not stand in the plan's ratios: group {group.get('name', '(unnamed)')!r} has one of "
                f"{found[0]:.4g}, where {found[1]:.4g} follows from the others. {_REMEDY} (Said once for each optimizer.)"
            )
    return None


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, family: str | None = None) -> None:
    """Refuse an optimizer whose learning rates do not follow the model's plan.

    Catches an optimizer that was built before :func:`~neuralop_mup.parametrize` or from ``model.parameters()``, and
    learning rates that a scheduler (``OneCycleLR(max_lr=0.01)``) or a callback made equal. Multipliers by role are allowed
    for: a group's learning rate must stand to the others' as its ``lr_mult`` does. ``MuSOAP(model, steps=…)`` is checked
    as with the ``lr`` that follows. That a schedule is not as long as ``steps`` no learning rate tells: ``MuSOAP`` warns of
    it while it trains.

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
    binding, optimizer = bind(model), unwrap_optimizer(optimizer)
    groups = optimizer.param_groups
    for i, group in enumerate(groups):
        check_number(f"lr of the optimizer's group {group.get('name', i)!r}", group["lr"], tensor=True)
    held = {p for group in groups for p in group["params"]}
    for name, p in binding.parameters.items():
        if p not in held:
            raise MupError(f"The optimizer does not hold {name!r}: build it from this model, after parametrize.")
    if follower := follower_of(optimizer):  # its step is made at the modes that are active now
        factors = zip(groups, follower.mode_mults(groups), strict=True)
        groups = [{**group, "lr": group["lr"] * factor} for group, factor in factors]
    check_groups(binding, groups, check_family(family or family_of(optimizer) or "adam"), binding.parameters)


def check_groups(binding: Binding, groups: Sequence[Mapping[str, Any]], family: str, names: Iterable[str]) -> None:
    """Refuse groups in which one of these parameters, if it is there at all, does not have the learning rate of the plan."""
    mults = {row.name: rule_mult(row, family) for row in binding.plan.rows}
    off = not_on_plan(groups, {binding.parameters[name]: mults[name] for name in names})
    for name, p in binding.parameters.items():
        if p in off:
            lr, expected = off[p]
            raise MupError(
                f"The optimizer does not follow the plan: learning rates do not stand in the plan's ratios ({name!r} has "
                f"{lr:.4g}, where {expected:.4g} follows from the others). If it was built before parametrize, or from "
                "plain model.parameters(), build it with neuralop_mup.MuAdam(model, lr=…) or from "
                f"neuralop_mup.param_groups(model, lr=…, optimizer={family!r}). {_REMEDY}"
            )


def check_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping) -> None:
    """Refuse the saved state of an optimizer whose groups are not those of ``optimizer``, or that is of another kind.

    torch compares the numbers of groups and parameters alone, and then takes every learning rate from the file.

    Raises
    ------
    MupError
        If groups differ in number, parameters, name, or the multipliers of the rule or of the roles, or lack a number that
        the optimizer's step reads.
    """
    optimizer = unwrap_optimizer(optimizer)
    theirs = state.get("param_groups") if isinstance(state, Mapping) else None
    if not isinstance(theirs, list):
        raise MupError("This is not the state dict of an optimizer (it has no param_groups): save optimizer.state_dict().")
    if problem := _different_groups(optimizer.param_groups, theirs):
        raise MupError(
            f"This optimizer state belongs to other groups ({problem}): build the optimizer as it was, with the same base, "
            "rule and lr_mult, from neuralop_mup's optimizers or param_groups."
        )
    # What is True, False or None by default torch fills in itself, in states of its former releases; MuSOAP checks its own.
    read = [key for key, value in optimizer.defaults.items() if value is not None and not isinstance(value, bool)]
    lacking = [key for key in read for group in theirs if key not in group]
    if lacking and not any(group.get("layouts") for group in theirs):
        raise MupError(
            f"This optimizer state is not of a {type(optimizer).__name__} (its groups have no {lacking[0]!r}): load it into "
            "the kind of optimizer that it was saved from."
        )


def _different_groups(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> str | None:
    """What the groups of an optimizer and of a state differ in."""
    if len(ours) != len(theirs):
        return f"{len(theirs)} groups were saved, the optimizer has {len(ours)}"
    for group, saved in zip(ours, theirs, strict=True):
        name = group.get("name")
        if (name, len(group["params"])) != (saved.get("name"), len(saved["params"])):
            return (
                f"group {name!r} with {len(group['params'])} parameters was saved as {saved.get('name')!r} with "
                f"{len(saved['params'])}"
            )
        # Where modes may have grown since, the rule's part is right in its time. What was tuned is not of the time.
        mults = [g.get("lr_mult", 1.0) / (g.get("rule_mult", 1.0) if "mode_mult" in group else 1.0) for g in (group, saved)]
        if not_on_plan([{"params": [name], "lr": mults[1]}], {name: mults[0]}, base=1.0):
            return f"lr_mult of group {name!r} is {group.get('lr_mult')}, saved was {saved.get('lr_mult')}"
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


# On an optimizer: what there was when it was looked at, or True if it was warned of. torch leaves it out of copies.
_LOOKED_AT = "_neuralop_mup_looked_at"


def _look(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
    """Warn of an optimizer that trains a parametrized model with learning rates that are not its plan's.

    ``AdamW(model.parameters())`` after ``parametrize`` is the likeliest mistake there is, and nothing else in a script shows
    it. So torch runs this before the step of every optimizer, from the first ``parametrize`` on. It holds neither models nor
    optimizers: what it has to know stands in the ``infshape`` of the parameters.
    """
    # Once for each optimizer, unless there is another plan, or another group, since then.
    now = (CopiesShapes.made, len(optimizer.param_groups))
    if torch.compiler.is_compiling() or getattr(optimizer, _LOOKED_AT, None) in (now, True):
        return
    if all(_readable(group["lr"]) and group["lr"] == 0 for group in optimizer.param_groups):
        return  # a warm-up from zero: the next step says more
    follows = _follows_its_plan(optimizer)
    setattr(optimizer, _LOOKED_AT, now if follows else True)
    if not follows:
        warnings.warn(_how_to_build(optimizer), UserWarning, stacklevel=3)  # where step was called


on_first_plan.append(lambda: register_optimizer_step_pre_hook(_look))


def _follows_its_plan(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer's learning rates stand in the ratios of the plan, or no plan can be meant."""
    groups = optimizer.param_groups
    shapes = {p: p.infshape for g in groups for p in g["params"] if isinstance(getattr(p, "infshape", None), MupShape)}
    trained = [p for p, shape in shapes.items() if not shape.frozen]
    # Part of a model, or a model with frozen parts, is finetuned: with which learning rates is for the user to say.
    is_whole = len(trained) >= max((shapes[p].of for p in trained), default=math.inf)
    is_told = all(p.requires_grad for p in trained) and all(_readable(group["lr"]) for group in groups)
    is_scaled = any(shape.adam_lr != 1 or shape.sgd_lr != 1 for shape in shapes.values())
    if not (is_whole and is_told and is_scaled) or isinstance(optimizer, torch.optim.LBFGS):  # which finds its scale
        return True
    off = {family: not_on_plan(groups, {p: getattr(s, f"{family}_lr") for p, s in shapes.items()}) for family in FAMILIES}
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


def follow_plan(model: nn.Module, optimizer: torch.optim.Optimizer, family: str | None = None) -> None:
    """Hold an optimizer to its model's plan at every step; neuralop_mup's own optimizers do it by themselves.

    Two things, by a hook on ``optimizer.step``. (1) A kernel's learning rate follows the modes that its convolution has
    at that step (``model.n_modes = …``, ``IncrementalFNOTrainer``). The factor is written to the group as ``mode_mult``
    and applied for the step alone: ``lr`` stays with the schedulers, closed-form ones included, and the step is made with
    ``lr · mode_mult``. Decay stays independent. (2) If learning rates no longer stand in the plan's ratios (a scheduler
    with absolute values), a warning names the group, once.

    Call it where you built the optimizer from :func:`~neuralop_mup.param_groups`, and after copying or unpickling an
    optimizer, from which torch drops every hook (``load_state_dict`` keeps them). Of an
    optimizer around another one (accelerate's, Lightning's) it is the inner one that is held.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    optimizer : torch.optim.Optimizer
        Built from :func:`~neuralop_mup.param_groups` of this model, or from some of them.
    family : {"adam", "sgd"}, optional
        The family that the groups were made for; SGD has no mode rule. By default torch's SGD is known by its class, and
        others are taken for Adam-like.

    Raises
    ------
    MupError
        If the model is not parametrized, or the optimizer's groups are not this model's. Later, in ``optimizer.step``,
        if modes were set that the rule or neuralop cannot use, or kernels of one group changed differently (build the
        model with ``max_n_modes``, which gives each a group of its own).

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32, max_n_modes=(16,)), base={"hidden_channels": 16})
    >>> optimizer = torch.optim.NAdam(nm.param_groups(model, lr=8e-3))
    >>> nm.follow_plan(model, optimizer)
    """
    follow(bind(model), optimizer, family)


def follow(binding: Binding, optimizer: torch.optim.Optimizer, family: str | None = None) -> None:
    """:func:`follow_plan` of a model that was read already."""
    optimizer = unwrap_optimizer(optimizer)
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise MupError(f"{type(optimizer).__name__} takes no step hooks: pass a torch.optim.Optimizer.")
    family = check_family(family or family_of(optimizer) or "adam")
    if not {*binding.parameters.values()} & {p for group in optimizer.param_groups for p in group["params"]}:
        raise MupError(
            "The optimizer holds no parameter of this model: build it from neuralop_mup.param_groups(model, lr=…)."
        )
    # As they were built, whatever schedulers have made of them since. Kernels' move with the modes besides.
    built = [{**group, "lr": group.get("lr_mult", group["lr"]), "base_lr": 1.0} for group in optimizer.param_groups]
    fixed = binding.parameters.keys() - mode_kernels(binding.model, binding.plan).keys()
    check_groups(binding, built, family, fixed)
    Follower(binding, optimizer, family).attach(optimizer)


def follower_of(optimizer: torch.optim.Optimizer) -> Follower | None:
    """What :func:`follow_plan` attached."""
    return getattr(optimizer, _FOLLOWER, None)


class Follower:
    """The hooks of :func:`follow_plan`. Holds the model; what it decides is a function of groups and modes alone.

    torch hands ``step`` the arguments that a pre-hook returns, the optimizer first among them
    (``tests/test_torch_private.py`` holds it to that). So the step is called on a *stand-in*: another object of the
    optimizer's class that shares its state and all else, and has groups of its own with the learning rates of this step. The
    optimizer's own groups are not touched. Hence a step that raises leaves nothing to be undone, and a scheduler, a copy or
    a checkpoint finds the user's learning rates at any time, the middle of a step included. (Borrowing ``lr`` for the step
    needs code that runs after a step that raised, and torch has no hook there. Multiplying ``lr`` once, when modes change,
    does not survive a scheduler of closed form, which writes its own.)
    """

    def __init__(self, binding: Binding, optimizer: torch.optim.Optimizer, family: str) -> None:
        self.model, self.family, self._binding = binding.model, family, binding
        owners = dict.fromkeys(mode_kernels(binding.model, binding.plan).values())
        self._convs = [self.model.get_submodule(name) for name in owners]
        self._key: tuple | None = None
        # What a step is made with: the same objects each time, for which a compiled step, or a captured graph, was made.
        self._stand_in = object.__new__(type(optimizer))
        self._groups: dict[int, dict[str, Any]] = {}
        self._lrs: dict[int, torch.Tensor] = {}  # of groups whose lr is a tensor
        self._warned = False
        self.mode_mults(optimizer.param_groups)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Hold this optimizer, behind the hooks that it has, and in place of what held it before."""
        for handle in getattr(follower_of(optimizer), "_handles", ()):
            handle.remove()
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]
        setattr(optimizer, _FOLLOWER, self)

    def mode_mults(self, groups: list[dict[str, Any]]) -> list[float]:
        """For each group, its learning rate at the present modes over that at the modes it was made for."""
        key = (tuple(map(active_modes, self._convs)), *(group.get("rule_mult") for group in groups))
        if key != self._key:
            rows = present_plan(self.model, self._binding.plan).rows
            # As groups have it, to the last bit.
            now = {self._binding.parameters[row.name]: 1 / (1 / rule_mult(row, self.family)) for row in rows}
            self._mults, self._key = [_mode_mult(group, now) for group in groups], key
        return self._mults

    @not_compiled  # it would be compiled anew for each number of modes, and holds nothing that is faster compiled
    def _before(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if optimizer is self._stand_in:
            return None  # torch calls hooks again where a subclass's step calls its parent's
        groups = optimizer.param_groups
        if hasattr(next(iter(self._binding.parameters.values())), "sharded_away"):
            raise MupError(
                "The model was sharded after this optimizer was built, which moves nothing now: build it after shard."
            )
        if not self._warned and (problem := broken_ratios(groups)):
            self._warned = True
            warnings.warn(problem, UserWarning, stacklevel=1)
        for group, mult in zip(groups, self.mode_mults(groups), strict=True):
            if mult != 1 or "mode_mult" in group:
                set_mult(group, "mode_mult", mult)
        if all(step_mult(group) == 1 for group in groups):
            return None
        of_the_step = [self._for_the_step(i, group) for i, group in enumerate(groups)]
        vars(self._stand_in).update(vars(optimizer), param_groups=of_the_step)
        return (self._stand_in, *args[1:]), kwargs

    @not_compiled
    def _after(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        """Take over what a step wrote into its stand-in, attributes and entries of groups, and empty it."""
        stepped = args[0]
        if stepped is optimizer:
            return
        for group, used in zip(optimizer.param_groups, stepped.param_groups, strict=True):
            # Three are the step's own; all else that it writes into its groups is theirs.
            group |= {key: value for key, value in used.items() if key not in ("lr", "weight_decay", "step_mults")}
            used.clear()
        vars(optimizer).update((key, value) for key, value in vars(stepped).items() if key != "param_groups")
        vars(stepped).clear()

    def _for_the_step(self, i: int, group: dict[str, Any]) -> dict[str, Any]:
        """Group ``i`` with the settings of its next step. What grown modes take off the rate is given to the decay."""
        own, lr = self._groups.setdefault(i, {}), group["lr"] * step_mult(group)
        if isinstance(lr, torch.Tensor) and not lr.requires_grad:
            lr = self._lrs.setdefault(i, lr).copy_(lr)
        own.update(group, lr=lr, step_mults=())
        if "weight_decay" in group:
            own["weight_decay"] = group["weight_decay"] / group.get("mode_mult", 1)
        return own


def _mode_mult(group: Mapping[str, Any], now: Mapping[nn.Parameter, float]) -> float:
    if "rule_mult" not in group or group.get("layouts"):  # MuSOAP's own have no mode rule
        return 1.0
    mults = [now[p] / group["rule_mult"] for p in group["params"] if p in now] or [1.0]
    if not math.isclose(min(mults), max(mults), rel_tol=1e-9):
        raise MupError(
            f"The modes of a convolution changed, and with them its kernel's learning rate, but the kernel shares the "
            f"optimizer's group {group.get('name')!r} with parameters whose learning rates did not: build the model with "
            "max_n_modes=…, which gives each kernel a group of its own."
        )
    return max(mults)


def set_mult(group: dict[str, Any], name: str, value: float) -> None:
    """Make ``group[name]`` one of the factors of the group's learning rate."""
    group[name] = value
    if name not in group.get("step_mults", ()):
        group["step_mults"] = (*group.get("step_mults", ()), name)


def step_mult(group: Mapping[str, Any]) -> float:
    """What the group's learning rate is multiplied by at a step."""
    return math.prod(group[name] for name in group.get("step_mults", ()))


def step_lr(group: Mapping[str, Any]) -> float:
    """The learning rate that the group's step is made with; also of a step's own groups."""
    return float(group["lr"]) * step_mult(group)


def effective_lrs(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The learning rate that each param group's step is made with, by the group's name; also during a step."""
    return {group.get("name", str(i)): step_lr(group) for i, group in enumerate(optimizer.param_groups)}


def summary(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Plan:
    """What was made of each parameter: print it, or take ``.to_markdown()`` or ``.to_json()``.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    optimizer : torch.optim.Optimizer, optional
        Built for the model: the table then has each parameter's present learning rate, too. The column ``lr ×`` is for
        Adam-like optimizers; MuSOAP moves kernels and hidden layers by updates of the size ``lr``, scaled with depth
        alone, which the column ``lr`` marks by "size". With ``MuSOAP(model, steps=…)`` this is the size that followed
        from the number of steps, times what a scheduler has made of it.

    Returns
    -------
    Plan
        ``str()`` of it is the table as text; with an optimizer it has the learning rates, too.

    Raises
    ------
    MupError
        If the model is not parametrized, or the optimizer holds none of its parameters.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32), base={"hidden_channels": 16})
    >>> plan = nm.summary(model, nm.MuAdam(model, lr=8e-3))
    >>> plan.rule, plan["lifting.fcs.1.weight"].lr_mult
    ('operator-norm', 0.5)
    >>> print(str(plan).splitlines()[0])
    μP plan, rule 'operator-norm', 40 parameters (lr × is for Adam-like)
    """
    plan = get_plan(model)
    if optimizer is None:
        return plan
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    parameters = dict(unwrap(model).named_parameters())
    if not any(id(p) in group_of for p in parameters.values()):
        raise MupError(
            f"This {type(optimizer).__name__} holds no parameter of the model: pass the optimizer that was built for it."
        )
    lrs = {row.name: _lr_in(group_of.get(id(parameters[row.name]))) for row in plan.rows}
    return replace(plan, lrs=lrs)


def _lr_in(group: Mapping | None) -> str:
    """A parameter's learning rate in words, from its param group."""
    if group is None:
        return "not in it"
    return f"{'size ' if group.get('layouts') else ''}{step_lr(group):.4g}"
