"""An optimizer held to its model's plan: learning rates that follow the modes, and a word when ratios break."""

from __future__ import annotations

import math
import warnings
import weakref
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.plan import Row
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.optim.lr_ratios import off_plan, off_rule
from neuralop_mup.optim.modes import active_modes, mode_kernels, present_plan
from neuralop_mup.optim.step_settings import become, finish, set_mult, step_lr, step_mult
from neuralop_mup.torch_private import not_compiled

__all__ = ["Follower", "check_family", "effective_lrs", "follow_plan", "follower_of", "rule_mult"]

FAMILIES = ("adam", "sgd")
# On the optimizer: torch leaves it out of copies and pickles, as it leaves out the hooks.
_ATTRIBUTE = "_neuralop_mup_follower"


def rule_mult(row: Row, family: str) -> float:
    """The rule's factor on a learning rate."""
    return row.lr_mult if family == "adam" else row.sgd_lr_mult


def check_family(family: object) -> None:
    """Refuse what is no column of a plan."""
    if family not in FAMILIES:
        raise MupError(f"There is no optimizer family {family!r}: {nearest(str(family), FAMILIES)}")


def follow_plan(model: nn.Module, optimizer: torch.optim.Optimizer, family: str = "adam") -> None:
    """Hold an optimizer to its model's plan at every step; neuralop_mup's own optimizers do it by themselves.

    Two things, by a hook on ``optimizer.step``. (1) A kernel's learning rate follows the modes that its convolution has
    at that step (``model.n_modes = …``, ``IncrementalFNOTrainer``). The factor is written to the group as ``mode_mult``
    and applied for the step alone: ``lr`` stays with the schedulers, closed-form ones included, and the step is made with
    ``lr · mode_mult``. Decay stays independent. (2) If learning rates no longer stand in the plan's ratios (a scheduler
    with absolute values), a warning names the group, once.

    Call it where you built the optimizer from :func:`~neuralop_mup.param_groups`, and after copying or unpickling an
    optimizer, from which torch drops every hook (``load_state_dict`` keeps them). A second call changes nothing.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    optimizer : torch.optim.Optimizer
        Built from :func:`~neuralop_mup.param_groups` of this model.
    family : {"adam", "sgd"}, default "adam"
        The family that the groups were made for; SGD has no mode rule.

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
    check_family(family)
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise MupError(f"{type(optimizer).__name__} takes no step hooks: pass a torch.optim.Optimizer, unwrapped.")
    get_plan(model)
    model = unwrap(model)
    known = follower_of(optimizer)
    if known is not None and known.model is model and known.family == family:
        return
    follower = Follower(model, optimizer, family)
    if known is not None:
        known.detach()
    follower.attach(optimizer)
    setattr(optimizer, _ATTRIBUTE, follower)


def follower_of(optimizer: torch.optim.Optimizer) -> Follower | None:
    """What :func:`follow_plan` attached."""
    return getattr(optimizer, _ATTRIBUTE, None)


def effective_lrs(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The learning rate that each param group's step is made with, by the group's name; also during a step."""
    return {group.get("name", str(i)): step_lr(group) for i, group in enumerate(optimizer.param_groups)}


class Follower:
    """The hooks of :func:`follow_plan`. Holds the model; what it decides is a function of groups and modes alone."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, family: str) -> None:
        self.model, self.family = model, family
        self._kernels = mode_kernels(model, get_plan(model))
        self._convs = [model.get_submodule(name) for name in dict.fromkeys(self._kernels.values())]
        self._key: tuple | None = None
        self._mults: list[float] = []
        # What a step is made with: the same objects each time, for which a compiled step, or a captured graph, was made.
        self._stand_in = object.__new__(type(optimizer))
        self._groups: dict[int, dict[str, Any]] = {}
        self._lrs: dict[int, torch.Tensor] = {}  # of groups whose lr is a tensor
        self._warned = False
        self._handles: list[Any] = []
        self._optimizer = weakref.ref(optimizer)
        self._check(optimizer)
        self.mode_mults(optimizer)
        self._first = next(p for group in optimizer.param_groups for p in group["params"])

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _check(self, optimizer: torch.optim.Optimizer) -> None:
        groups, parameters = optimizer.param_groups, dict(self.model.named_parameters())
        ours = {p for group in groups if "rule_mult" in group for p in group["params"]}
        rows = present_plan(self.model, get_plan(self.model)).rows
        off = {row.name for row in rows if parameters.get(row.name) not in ours}
        # Kernels' learning rates move with the modes: whether each can follow is for mode_mults to say.
        fixed = {row.name: row for row in rows if row.name not in self._kernels and row.name not in off}
        off |= off_rule(groups, parameters, {name: rule_mult(row, self.family) for name, row in fixed.items()})
        if off:
            raise MupError(
                f"The optimizer's groups are not those of this model's plan for {self.family!r} (parameter "
                f"{min(off)!r}): build it from neuralop_mup.param_groups(model, lr=…, optimizer={self.family!r})."
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
        now = {
            row.name: 1 / (1 / rule_mult(row, self.family)) for row in present_plan(self.model, get_plan(self.model)).rows
        }
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

    @not_compiled  # it would be compiled anew for each number of modes, and holds nothing that is faster compiled
    def _before(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if optimizer is not self._optimizer():
            return None  # a stand-in: torch calls hooks again where a subclass's step calls its parent's
        groups = optimizer.param_groups
        if hasattr(self._first, "sharded_away"):
            raise MupError(
                "The model was sharded after this optimizer was built, which moves nothing now: build it after shard."
            )
        if not self._warned and (problem := off_plan(groups)):
            self._warned = True
            warnings.warn(problem, UserWarning, stacklevel=1)
        for group, mult in zip(groups, self.mode_mults(optimizer), strict=True):
            if mult != 1 or "mode_mult" in group:
                set_mult(group, "mode_mult", mult)
        if all(step_mult(group) == 1 for group in groups):
            return None
        become(self._stand_in, optimizer, [self._for_the_step(i, group) for i, group in enumerate(groups)])
        return (self._stand_in, *args[1:]), kwargs

    @not_compiled
    def _after(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if optimizer is self._optimizer():
            finish(optimizer, args[0])

    def _for_the_step(self, i: int, group: dict[str, Any]) -> dict[str, Any]:
        """Group ``i`` with the settings of its next step. What grown modes take off the rate is given to the decay."""
        own, lr, mult = self._groups.setdefault(i, {}), group["lr"], step_mult(group)
        if isinstance(lr, torch.Tensor) and not lr.requires_grad:
            if i not in self._lrs:
                self._lrs[i] = torch.empty_like(lr)
            own.update(group, lr=torch.mul(lr, mult, out=self._lrs[i]), step_mults=())
        else:
            own.update(group, lr=lr * mult, step_mults=())
        if "weight_decay" in group:
            own["weight_decay"] = group["weight_decay"] / group.get("mode_mult", 1)
        return own
