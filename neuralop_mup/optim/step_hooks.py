"""An optimizer held to its model's plan: learning rates that follow the modes, and a word when ratios break."""

from __future__ import annotations

import functools
import math
import warnings
import weakref
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.plan import Row
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.optim.incremental_modes import active_modes, mode_kernels, present_plan
from neuralop_mup.optim.lr_ratios import off_plan

__all__ = ["FAMILIES", "Follower", "effective_lrs", "follow_plan", "follower_of", "rule_mult"]

FAMILIES = ("adam", "sgd")

_FOLLOWERS: WeakKeyDictionary[torch.optim.Optimizer, Follower] = WeakKeyDictionary()


def rule_mult(row: Row, family: str) -> float:
    """The rule's factor on a learning rate."""
    return row.lr_mult if family == "adam" else row.sgd_lr_mult


def follow_plan(model: nn.Module, optimizer: torch.optim.Optimizer, family: str = "adam") -> None:
    """Hold an optimizer to its model's plan at every step; neuralop_mup's own optimizers do it by themselves.

    Two things, by a hook on ``optimizer.step``. (1) A kernel's learning rate follows the modes that its convolution has
    at that step (``model.n_modes = …``, ``IncrementalFNOTrainer``). The factor is applied for the step alone, and
    written to the group as ``mode_mult``: ``lr`` stays with the schedulers, closed-form ones included, and the step is
    made with ``lr · mode_mult``. Decay stays independent. (2) If learning rates no longer stand in the plan's ratios
    (a scheduler with absolute values), a warning names the group, once.

    Call it where you built the optimizer from :func:`~neuralop_mup.param_groups`, and after copying or unpickling an
    optimizer, from which torch drops every hook (``load_state_dict`` keeps them). A second call changes nothing.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    optimizer : torch.optim.Optimizer
        Built from :func:`~neuralop_mup.param_groups` of this model.
    family : {"adam", "sgd"}
        The family that the groups were made for; SGD has no mode rule.

    Raises
    ------
    MupError
        If the model is not parametrized, or the optimizer's groups are not this model's. Later, in ``optimizer.step``,
        if modes were set that the rule or neuralop cannot use, or kernels of one group changed differently (build the
        model with ``max_n_modes``, which gives each a group of its own).
    """
    if family not in FAMILIES:
        raise MupError(f"There is no optimizer family {family!r}: expected one of {', '.join(FAMILIES)}.")
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise MupError(f"{type(optimizer).__name__} takes no step hooks: pass a torch.optim.Optimizer, unwrapped.")
    get_plan(model)
    model = unwrap(model)
    known = _FOLLOWERS.get(optimizer)
    if known is not None and known.model is model and known.family == family:
        return
    follower = Follower(model, optimizer, family)
    if known is not None:
        known.detach()
    follower.attach(optimizer)
    _FOLLOWERS[optimizer] = follower


def follower_of(optimizer: torch.optim.Optimizer) -> Follower | None:
    """What :func:`follow_plan` attached."""
    return _FOLLOWERS.get(optimizer)


def effective_lrs(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The learning rate that each param group's step is made with, by the group's name; also during a step."""
    follower = follower_of(optimizer)
    lrs = {}
    for i, group in enumerate(optimizer.param_groups):
        during = follower is not None and follower.has_borrowed(group)
        mult = 1 if during else group.get("mode_mult", 1) * group.get("learned_mult", 1)
        lrs[group.get("name", str(i))] = float(group["lr"]) * mult
    return lrs


class Follower:
    """The hooks of :func:`follow_plan`. Holds the model; what it decides is a function of groups and modes alone."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, family: str) -> None:
        self.model, self.family = model, family
        self._kernels = mode_kernels(model)
        self._convs = [model.get_submodule(name) for name in dict.fromkeys(self._kernels.values())]
        self._key: tuple | None = None
        self._mults: list[float] = []
        self._borrowed: list[tuple[dict, dict]] = []
        self._warned = False
        self._handles: list[Any] = []
        self._check(optimizer)
        self.mode_mults(optimizer)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]
        _guard_class(type(optimizer))
        if "step" in vars(optimizer):  # a scheduler that was there first keeps the step that it found
            vars(optimizer)["step"] = _guard_instance(optimizer.step, weakref.ref(optimizer))

    def detach(self) -> None:
        self.give_back()
        for handle in self._handles:
            handle.remove()

    def _check(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = dict(self.model.named_parameters())
        given = {id(p): group.get("rule_mult") for group in optimizer.param_groups for p in group["params"]}
        sizeless = {id(p) for group in optimizer.param_groups if group.get("layouts") for p in group["params"]}
        for row in present_plan(self.model).rows:
            key = id(parameters.get(row.name))
            mult, free = given.get(key), row.name in self._kernels or key in sizeless
            if mult is None or (not free and not math.isclose(mult, rule_mult(row, self.family))):
                raise MupError(
                    f"The optimizer's groups are not those of this model's plan for {self.family!r} (parameter "
                    f"{row.name!r}): build it from neuralop_mup.param_groups(model, lr=…, optimizer={self.family!r})."
                )

    def mode_mults(self, optimizer: torch.optim.Optimizer) -> list[float]:
        """For each group, its learning rate at the present modes over that at the modes it was made for."""
        groups = optimizer.param_groups
        key = (tuple(map(active_modes, self._convs)), *(group.get("rule_mult") for group in groups))
        if key != self._key:
            self._mults, self._key = self._work_out(groups), key
        return self._mults

    def _work_out(self, groups: list[dict]) -> list[float]:
        # 1 / (1 / x) is how param_groups writes it, so that an unchanged kernel gives exactly 1.
        now = {row.name: 1 / (1 / rule_mult(row, self.family)) for row in present_plan(self.model).rows}
        name_of = {id(p): name for name, p in self.model.named_parameters()}
        mults = []
        for group in groups:
            ruled = "rule_mult" in group and not group.get("layouts")  # MuMuon's and MuSOAP's own have no mode rule
            names = [name_of[id(p)] for p in group["params"] if id(p) in name_of] if ruled else []
            ratios = {name: now[name] / group["rule_mult"] if name in self._kernels else 1.0 for name in names}
            low, high = min(ratios.values(), default=1.0), max(ratios.values(), default=1.0)
            if not math.isclose(low, high, rel_tol=1e-9):
                moved = max(ratios, key=lambda name: abs(math.log(ratios[name])))
                other = min(ratios, key=lambda name: abs(math.log(ratios[name])))
                raise MupError(
                    f"The modes of {moved!r} changed, and with them its learning rate, but it shares the optimizer's group "
                    f"{group.get('name')!r} with {other!r}, whose did not: build the model with max_n_modes=…, which gives "
                    "each kernel a group of its own."
                )
            mults.append(high)
        return mults

    def _before(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        self.give_back()  # torch calls hooks twice where a subclass's step calls its parent's
        if not self._warned and (problem := off_plan(optimizer.param_groups)):
            self._warned = True
            warnings.warn(problem, UserWarning, stacklevel=1)
        for group, mult in zip(optimizer.param_groups, self.mode_mults(optimizer), strict=True):
            if mult != 1 or "mode_mult" in group:
                group["mode_mult"] = mult
            learned = group.get("learned_mult", 1)  # LearnedRates'
            if mult == learned == 1:
                continue
            self._borrowed.append((group, {key: group[key] for key in ("lr", "weight_decay") if key in group}))
            group["lr"] = group["lr"] * mult * learned
            if "weight_decay" in group:
                group["weight_decay"] = group["weight_decay"] / mult

    def _after(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        self.give_back()

    def has_borrowed(self, group: dict) -> bool:
        """Whether the learning rate in ``group`` is, for now, that of the step."""
        return any(borrowed is group for borrowed, _ in self._borrowed)

    def give_back(self) -> None:
        """Put back the settings that the groups had before the step."""
        while self._borrowed:
            group, values = self._borrowed.pop()
            group.update(values)


def _guard_class(cls: Any) -> None:
    """Give back the groups' own settings after a step of ``cls`` that raised, too.

    torch runs no hook after one (out of memory, a closure, another hook), and what schedulers and checkpoints then find in
    the groups would be the step's settings. The class is changed, as torch itself does to run its hooks: a step of the
    instance's own would either keep the optimizer and its weights alive or not work in ``Adam(…).step()``.
    """
    step = cls.step
    if hasattr(step, "_neuralop_mup_guarded"):
        return

    @functools.wraps(step)
    def guarded(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        try:
            return step(self, *args, **kwargs)
        except BaseException:
            if (follower := _FOLLOWERS.get(self)) is not None:
                follower.give_back()
            raise

    vars(guarded)["_neuralop_mup_guarded"] = True
    cls.step = guarded


def _guard_instance(step: Callable, reference: weakref.ref) -> Callable:
    """The same for a step that a scheduler put on the instance."""

    @functools.wraps(step)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return step(*args, **kwargs)
        except BaseException:
            optimizer = reference()
            if optimizer is not None and (follower := _FOLLOWERS.get(optimizer)) is not None:
                follower.give_back()
            raise

    return guarded
