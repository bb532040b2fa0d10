"""Hooks on an optimizer that keep its learning rates on the plan: while modes grow, and while schedulers change them."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.rebuild import active_modes
from neuralop_mup.errors import MupError
from neuralop_mup.optim.checks import LR_HOOKS, broken_ratios, check_groups, family_of, unwrap_optimizer
from neuralop_mup.optim.learning_rate import unscheduled_lr
from neuralop_mup.optim.resolved_model import ResolvedModel, present_plan, resolve, rule_mult
from neuralop_mup.torch_private import not_compiled

# Keys of a step's own groups that the optimizer's groups do not take over: the factors are in ``lr`` there.
_OF_THE_STEP = ("lr", "weight_decay", "mode_mult", "learned_mult")


def follow_plan(model: nn.Module, optimizer: torch.optim.Optimizer, family: str | None = None) -> None:
    """Keep an optimizer on its model's plan at every step. The optimizers of neuralop_mup call it themselves.

    A hook on ``optimizer.step`` does two things. (1) A kernel's learning rate follows the modes that its convolution has at
    that step (``model.n_modes = …``, ``IncrementalFNOTrainer``): the group's ``mode_mult`` is updated and applied for the
    step only. ``lr`` stays with the schedulers, and weight decay stays independent. (2) If learning rates no longer have the
    plan's ratios (a scheduler that sets absolute values), a warning names the group, once.

    Call it if you built the optimizer from :func:`~neuralop_mup.param_groups`, and after copying or unpickling an optimizer,
    which loses every hook (``load_state_dict`` keeps them). An optimizer may hold several models: call it for each. If an
    optimizer wraps another one (accelerate's, Lightning's), the inner one gets the hooks.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    optimizer : torch.optim.Optimizer
        Built from :func:`~neuralop_mup.param_groups` of this model, or from some of these groups.
    family : {"adam", "sgd"}, optional
        The family that the groups were made for; SGD has no mode rule. By default torch's SGD is recognised by its class,
        and other optimizers count as Adam-like.

    Raises
    ------
    MupError
        If the model is not parametrized, or the optimizer's groups are not this model's. Later, in ``optimizer.step``, if
        the rule or neuralop cannot use the modes that were set, or kernels of one group changed differently (build the model
        with ``max_n_modes``, which gives each kernel its own group).

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
    """Do what :func:`follow_plan` does, for a resolved model."""
    optimizer = unwrap_optimizer(optimizer)
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise MupError(f"{type(optimizer).__name__} takes no step hooks: pass a torch.optim.Optimizer.")
    family = family or family_of(optimizer) or "adam"
    if not {*resolved.parameters.values()} & {p for group in optimizer.param_groups for p in group["params"]}:
        raise MupError(
            "The optimizer holds no parameter of this model: build it from neuralop_mup.param_groups(model, lr=…)."
        )
    # The ratios at construction, whatever schedulers did since. Those of kernels also change with the modes.
    built = [{**group, "lr": group.get("lr_mult", group["lr"]), "base_lr": 1.0} for group in optimizer.param_groups]
    check_groups(resolved, built, family, resolved.parameters.keys() - resolved.mode_kernels.keys())
    former = getattr(optimizer, LR_HOOKS, None)
    others = [other for other in former.models if other.model is not resolved.model] if former else []
    LrHooks([*others, resolved], optimizer, family).attach(optimizer)


class LrHooks:
    """The hooks of :func:`follow_plan`. They hold the models; what they decide depends on groups and modes only.

    torch calls ``step`` with the arguments that a pre-hook returns, the optimizer first among them
    (``tests/optim/test_growing.py`` checks that). So the step runs on a *step view*: another object of the optimizer's class
    that shares its state and everything else, and has groups of its own with the learning rates of this step. The
    optimizer's own groups are not touched, so a step that raises leaves nothing to undo, and a scheduler, a copy or a
    checkpoint finds the user's learning rates at any time. (Changing ``lr`` for the step needs code that runs after a step
    that raised, and torch has no hook there. Multiplying ``lr`` once, when modes change, does not survive a scheduler of
    closed form, which writes its own.)
    """

    def __init__(self, models: Sequence[ResolvedModel], optimizer: torch.optim.Optimizer, family: str) -> None:
        self.models, self.family = models, family
        self._convs = [m.model.get_submodule(name) for m in models for name in dict.fromkeys(m.mode_kernels.values())]
        self._key: tuple | None = None
        # The same objects at each step, because a compiled step or a captured graph was made for them.
        self._step_view = object.__new__(type(optimizer))
        self._groups: dict[int, dict[str, Any]] = {}
        self._lrs: dict[int, torch.Tensor] = {}  # of groups whose lr is a tensor
        self._warned = False
        self._types = [p.dtype for group in optimizer.param_groups for p in group["params"]]
        self.mode_mults(optimizer.param_groups)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Attach the hooks behind the optimizer's other ones, and in place of former hooks of this kind."""
        for handle in getattr(getattr(optimizer, LR_HOOKS, None), "_handles", ()):
            handle.remove()
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]
        setattr(optimizer, LR_HOOKS, self)

    def mode_mults(self, groups: list[dict[str, Any]]) -> list[float | None]:
        """Return each group's rule multiplier at the present modes over ``rule_mult``; None where modes do not enter."""
        key = (tuple(map(active_modes, self._convs)), *(group.get("rule_mult") for group in groups))
        if key != self._key:
            # As groups have it, to the last bit.
            now = {
                resolved.parameters[row.name]: 1 / (1 / rule_mult(row, self.family))
                for resolved in self.models
                for row in present_plan(resolved.model, resolved.plan).rows
            }
            self._mults, self._key = [_mode_mult(group, now) for group in groups], key
        return self._mults

    @not_compiled  # it would be compiled anew for each number of modes, and contains nothing that is faster compiled
    def _before(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if optimizer is self._step_view:
            return None  # torch calls hooks again where a subclass's step calls its parent's
        groups = optimizer.param_groups
        for resolved in self.models:
            _check_holds(resolved, groups)
        types = [p.dtype for group in groups for p in group["params"]]
        former, self._types = self._types, types
        if types != former and len(types) == len(former):  # the model changed precision, and torch leaves the state as it is
            optimizer.load_state_dict(optimizer.state_dict())
        for resolved in () if self._warned else self.models:
            own = {*resolved.parameters.values()}
            if problem := broken_ratios([group for group in groups if not own.isdisjoint(group["params"])]):
                self._warned = True
                warnings.warn(problem, UserWarning, stacklevel=1)
        for group, mult in zip(groups, self.mode_mults(groups), strict=True):
            if mult is not None and (mult != 1 or "mode_mult" in group):
                group["mode_mult"] = mult
        if all(group.get("mode_mult", 1) == group.get("learned_mult", 1) == 1 for group in groups):
            return None
        of_the_step = [self._for_the_step(i, group) for i, group in enumerate(groups)]
        vars(self._step_view).update(vars(optimizer), param_groups=of_the_step)
        return (self._step_view, *args[1:]), kwargs

    @not_compiled
    def _after(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        """Copy what a step wrote into its view, attributes and entries of groups, and empty the view."""
        stepped = args[0]
        if stepped is optimizer:
            return
        for group, used in zip(optimizer.param_groups, stepped.param_groups, strict=True):
            group |= {key: value for key, value in used.items() if key not in _OF_THE_STEP}
            used.clear()
        vars(optimizer).update((key, value) for key, value in vars(stepped).items() if key != "param_groups")
        vars(stepped).clear()

    def _for_the_step(self, i: int, group: dict[str, Any]) -> dict[str, Any]:
        """Return group ``i`` with the settings of its next step. Decay is independent: the factor is divided out."""
        # depth_mult stays a factor in the view: the first step sets it.
        own, lr = self._groups.setdefault(i, {}), unscheduled_lr({**group, "depth_mult": 1.0})
        if isinstance(lr, torch.Tensor) and not lr.requires_grad:
            lr = self._lrs.setdefault(i, lr).copy_(lr)
        own.update(group, lr=lr, mode_mult=1.0, learned_mult=1.0)
        if "weight_decay" in group:
            own["weight_decay"] = group["weight_decay"] / group.get("mode_mult", 1)
        return own


def _check_holds(resolved: ResolvedModel, groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise MupError if a step would move tensors that are not the model's."""
    name, first = next(iter(resolved.parameters.items()))
    if hasattr(first, "sharded_away"):
        raise MupError(
            "The model was sharded after this optimizer was built, so a step would change nothing. Build the optimizer "
            "after shard."
        )
    module, _, own = name.rpartition(".")
    if getattr(resolved.model.get_submodule(module), own, first) is first:
        return
    if {*resolved.model.parameters()}.isdisjoint(p for group in groups for p in group["params"]):
        raise MupError(
            "The model has other tensors than those that this optimizer holds (load_state_dict(assign=True) replaces them), "
            "so a step would change nothing. Load without assign, or build the optimizer afterwards."
        )


def _mode_mult(group: Mapping[str, Any], now: Mapping[nn.Parameter, float]) -> float | None:
    if "rule_mult" not in group or group.get("own_rule"):
        return None
    mults = [now[p] / group["rule_mult"] for p in group["params"] if p in now] or [1.0]
    if not math.isclose(min(mults), max(mults), rel_tol=1e-9):
        raise MupError(
            "The modes of a convolution changed, and with them its kernel's learning rate. But the kernel shares the "
            f"optimizer's group {group.get('name')!r} with parameters whose learning rates did not change. Build the model "
            "with max_n_modes=…, which gives each kernel its own group."
        )
    return max(mults)
