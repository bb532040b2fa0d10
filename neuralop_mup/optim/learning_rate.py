"""What holds an optimizer to its plan while it trains, and the learning rates that its steps are made with.

A group names the factors of its learning rate in ``step_mults``: keys of its own, such as ``mode_mult``. Whoever adds a
factor owns its value. ``lr`` stays the scheduler's, closed-form ones included, and the step is made with their product.
``length_mult`` is one that MuSOAP applies in its step itself, so that copies, which torch deprives of hooks, have it too.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.rebuild import active_modes
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.optim.checks import LR_HOOKS, broken_ratios, check_groups, family_of, unwrap_optimizer
from neuralop_mup.optim.resolved_model import ResolvedModel, present_plan, resolve, rule_mult
from neuralop_mup.torch_private import not_compiled


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
    return float(group["lr"]) * step_mult(group) * float(group.get("length_mult", 1.0))


def mults_of(group: Mapping[str, Any]) -> dict[str, float]:
    """The factors in that learning rate, by name."""
    names = (*group.get("step_mults", ()), "length_mult")
    return {name: float(group[name]) for name in names if name in group}


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
    names = {p: name for name, p in unwrap(model).named_parameters()}
    lrs = dict.fromkeys(names.values(), "not in it")
    for group in optimizer.param_groups:
        lr = f"{'size ' if group.get('layouts') else ''}{step_lr(group):.4g}"
        lrs |= {names[p]: lr for p in group["params"] if p in names}
    if set(lrs.values()) == {"not in it"}:
        raise MupError(
            f"This {type(optimizer).__name__} holds no parameter of the model: pass the optimizer that was built for it."
        )
    return replace(plan, lrs=lrs)


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
    attach_lr_hooks(resolve(model, optimizer), optimizer, family)


def attach_lr_hooks(resolved: ResolvedModel, optimizer: torch.optim.Optimizer, family: str | None = None) -> None:
    """:func:`follow_plan` of a model that was read already."""
    optimizer = unwrap_optimizer(optimizer)
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise MupError(f"{type(optimizer).__name__} takes no step hooks: pass a torch.optim.Optimizer.")
    family = family or family_of(optimizer) or "adam"
    if not {*resolved.parameters.values()} & {p for group in optimizer.param_groups for p in group["params"]}:
        raise MupError(
            "The optimizer holds no parameter of this model: build it from neuralop_mup.param_groups(model, lr=…)."
        )
    # As they were built, whatever schedulers have made of them since. Kernels' move with the modes besides.
    built = [{**group, "lr": group.get("lr_mult", group["lr"]), "base_lr": 1.0} for group in optimizer.param_groups]
    check_groups(resolved, built, family, resolved.parameters.keys() - resolved.mode_kernels.keys())
    LrHooks(resolved, optimizer, family).attach(optimizer)


class LrHooks:
    """The hooks of :func:`follow_plan`. Holds the model; what it decides is a function of groups and modes alone.

    torch hands ``step`` the arguments that a pre-hook returns, the optimizer first among them
    (``tests/optim/test_growing.py`` holds it to that). So the step is called on a *stand-in*: another object of the
    optimizer's class that shares its state and all else, and has groups of its own with the learning rates of this step. The
    optimizer's own groups are not touched. Hence a step that raises leaves nothing to be undone, and a scheduler, a copy or
    a checkpoint finds the user's learning rates at any time, the middle of a step included. (Borrowing ``lr`` for the step
    needs code that runs after a step that raised, and torch has no hook there. Multiplying ``lr`` once, when modes change,
    does not survive a scheduler of closed form, which writes its own.)
    """

    def __init__(self, resolved: ResolvedModel, optimizer: torch.optim.Optimizer, family: str) -> None:
        self.model, self.family, self._resolved = resolved.model, family, resolved
        self._convs = [self.model.get_submodule(name) for name in dict.fromkeys(resolved.mode_kernels.values())]
        self._key: tuple | None = None
        # What a step is made with: the same objects each time, for which a compiled step, or a captured graph, was made.
        self._stand_in = object.__new__(type(optimizer))
        self._groups: dict[int, dict[str, Any]] = {}
        self._lrs: dict[int, torch.Tensor] = {}  # of groups whose lr is a tensor
        self._warned = False
        self._types = [p.dtype for group in optimizer.param_groups for p in group["params"]]
        self.mode_mults(optimizer.param_groups)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Hold this optimizer, behind the hooks that it has, and in place of what held it before."""
        for handle in getattr(getattr(optimizer, LR_HOOKS, None), "_handles", ()):
            handle.remove()
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]
        setattr(optimizer, LR_HOOKS, self)

    def mode_mults(self, groups: list[dict[str, Any]]) -> list[float]:
        """For each group, its learning rate at the present modes over that at the modes it was made for."""
        key = (tuple(map(active_modes, self._convs)), *(group.get("rule_mult") for group in groups))
        if key != self._key:
            rows = present_plan(self.model, self._resolved.plan).rows
            # As groups have it, to the last bit.
            now = {self._resolved.parameters[row.name]: 1 / (1 / rule_mult(row, self.family)) for row in rows}
            self._mults, self._key = [_mode_mult(group, now) for group in groups], key
        return self._mults

    @not_compiled  # it would be compiled anew for each number of modes, and holds nothing that is faster compiled
    def _before(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if optimizer is self._stand_in:
            return None  # torch calls hooks again where a subclass's step calls its parent's
        groups = optimizer.param_groups
        if hasattr(next(iter(self._resolved.parameters.values())), "sharded_away"):
            raise MupError(
                "The model was sharded after this optimizer was built, which moves nothing now: build it after shard."
            )
        name, first = next(iter(self._resolved.parameters.items()))
        module, _, own = name.rpartition(".")
        present = getattr(self.model.get_submodule(module), own, first)
        if present is not first and {*self.model.parameters()}.isdisjoint(p for group in groups for p in group["params"]):
            raise MupError(
                "The model has other tensors than those that this optimizer holds (load_state_dict(assign=True) puts others "
                "in their place), so that a step moves nothing: load without assign, or build the optimizer afterwards."
            )
        types = [p.dtype for group in groups for p in group["params"]]
        former, self._types = self._types, types
        if types != former and len(types) == len(former):  # moved to another precision, and torch leaves the state as it is
            optimizer.load_state_dict(optimizer.state_dict())
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
