"""Hooks on an optimizer that keep its learning rates on the plan: while modes grow, and while schedulers change them."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.build_models import active_modes
from neuralop_mup.errors import MupError
from neuralop_mup.optim.checks import (
    LR_HOOKS,
    broken_ratios,
    check_groups,
    check_optimizer_state,
    family_of,
    unwrap_optimizer,
)
from neuralop_mup.optim.learning_rate import unscheduled_lr
from neuralop_mup.optim.resolved_model import Groups, ResolvedModel, parameters_of, present_plan, resolve, rule_mult
from neuralop_mup.torch_private import not_compiled

# Keys that are not copied back from the groups of a step view: its ``lr`` includes the factors.
_STEP_ONLY = ("lr", "weight_decay", "mode_mult", "learned_mult")


def follow_plan(model: nn.Module, optimizer: torch.optim.Optimizer, family: str | None = None) -> None:
    """Keep an optimizer on its model's plan at every step. The optimizers of neuralop_mup call it themselves.

    A hook on ``optimizer.step`` does two things:

    1. It adapts each kernel's learning rate to the current modes (``model.n_modes = …``, ``IncrementalFNOTrainer``). It
       updates the group's ``mode_mult`` and applies it during the step. ``lr`` does not change, and weight decay stays
       independent.
    2. It warns once if learning rates lose the plan's ratios, e.g. because a scheduler sets absolute values.

    Call it if you build the optimizer from :func:`~neuralop_mup.param_groups`, and after copying or unpickling an optimizer,
    which removes hooks (``load_state_dict`` keeps them). If an optimizer trains several models, call it for each. If it
    wraps another one (accelerate's, Lightning's), the inner one gets the hooks.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    optimizer : torch.optim.Optimizer
        An optimizer of all or some of this model's :func:`~neuralop_mup.param_groups`.
    family : {"adam", "sgd"}, optional
        Family of the groups. The default is "sgd" for torch's SGD and ASGD, otherwise "adam". SGD has no mode rule.

    Raises
    ------
    MupError
        If the model is not parametrized, or the groups belong to another model. In ``optimizer.step``, if modes are
        invalid, or kernels of one group changed differently (build the model with ``max_n_modes`` for separate groups).

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 32, max_n_modes=(16,)), base={"hidden_channels": 16})
    >>> optimizer = torch.optim.NAdam(nm.param_groups(model, lr=8e-3))
    >>> nm.follow_plan(model, optimizer)
    """
    resolved, optimizer = resolve(model, optimizer), unwrap_optimizer(optimizer)
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise MupError(f"{type(optimizer).__name__} does not support step hooks. Pass a torch.optim.Optimizer.")
    family = family or family_of(optimizer) or "adam"
    if {*resolved.parameters.values()}.isdisjoint(parameters_of(optimizer.param_groups)):
        raise MupError(
            "The optimizer contains no parameter of this model. Build it from neuralop_mup.param_groups(model, lr=…)."
        )
    # Check the ratios at construction, without kernels, because their ratios change with the modes.
    built = [{**group, "lr": group.get("lr_mult", group["lr"]), "base_lr": 1.0} for group in optimizer.param_groups]
    check_groups(resolved, built, family, resolved.parameters.keys() - resolved.mode_kernels.keys())
    former = getattr(optimizer, LR_HOOKS, None)
    others = [other for other in former.models if other.model is not resolved.model] if former else []
    LrHooks([*others, resolved], type(optimizer), family).attach(optimizer)


class LrHooks:
    """The hooks of :func:`follow_plan`. They hold the models; what they decide depends on groups and modes only.

    torch calls ``step`` with the arguments that a pre-hook returns, and the first is the optimizer (tested in
    ``tests/optim/test_growing.py``). So the step runs on a *step view*: another object of the same class that shares the
    state, with separate groups that have the learning rates of this step. The optimizer's groups do not change. If a step
    raises, there is nothing to undo, and schedulers, copies and checkpoints always see the user's learning rates.

    Two alternatives fail. torch has no hook after a step that raises, to restore ``lr``. And schedulers of closed form
    overwrite an ``lr`` that is multiplied once.
    """

    def __init__(self, models: Sequence[ResolvedModel], of: type[torch.optim.Optimizer], family: str) -> None:
        self.models, self.family = models, family
        self._convs = [m.model.get_submodule(name) for m in models for name in dict.fromkeys(m.mode_kernels.values())]
        self._key: tuple | None = None
        # Reuse the same objects, because compiled steps and captured graphs refer to them.
        self._step_view = object.__new__(of)
        self._groups: dict[int, dict[str, Any]] = {}
        self._lrs: dict[int, torch.Tensor] = {}  # groups with a tensor as lr
        self._warned = False

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Attach the hooks after all others of the optimizer, and remove earlier hooks of this class."""
        for handle in getattr(getattr(optimizer, LR_HOOKS, None), "_handles", ()):
            handle.remove()
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
            optimizer.register_load_state_dict_pre_hook(check_optimizer_state, prepend=True),
            optimizer.register_load_state_dict_post_hook(_convert_averages),
        ]
        setattr(optimizer, LR_HOOKS, self)

    def mode_mults(self, groups: list[dict[str, Any]]) -> list[float | None]:
        """Return each group's rule multiplier at the current modes over ``rule_mult``; None for groups outside the plan."""
        key = (tuple(map(active_modes, self._convs)), *(group.get("rule_mult") for group in groups))
        if key != self._key:
            # Invert twice, for the same bits as in param_groups.
            now = {
                resolved.parameters[row.name]: 1 / (1 / rule_mult(row, self.family))
                for resolved in self.models
                for row in present_plan(resolved.model, resolved.plan).rows
            }
            self._mults, self._key = [_mode_mult(group, now) for group in groups], key
        return self._mults

    @not_compiled  # torch would compile it again for each number of modes, without a gain
    def _before(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if optimizer is self._step_view:
            return None  # torch calls hooks again if the step of a subclass calls its parent's
        groups = optimizer.param_groups
        for resolved in self.models:
            _check_holds(resolved, groups)
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
        step_groups = [self._step_group(i, group) for i, group in enumerate(groups)]
        vars(self._step_view).update(vars(optimizer), param_groups=step_groups)
        return (self._step_view, *args[1:]), kwargs

    @not_compiled
    def _after(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        """Copy attributes and entries of groups that the step wrote back from the view, and clear the view."""
        stepped = args[0]
        if stepped is optimizer:
            return
        for group, used in zip(optimizer.param_groups, stepped.param_groups, strict=True):
            group |= {key: value for key, value in used.items() if key not in _STEP_ONLY}
            used.clear()
        vars(optimizer).update((key, value) for key, value in vars(stepped).items() if key != "param_groups")
        vars(stepped).clear()

    def _step_group(self, i: int, group: dict[str, Any]) -> dict[str, Any]:
        """Return group ``i`` with its effective settings. Weight decay is independent of ``mode_mult``."""
        # MuSOAP's first step sets depth_mult, so it is not applied here.
        own, lr = self._groups.setdefault(i, {}), unscheduled_lr({**group, "depth_mult": 1.0})
        if isinstance(lr, torch.Tensor) and not lr.requires_grad:
            lr = self._lrs.setdefault(i, lr).copy_(lr)
        own.update(group, lr=lr, mode_mult=1.0, learned_mult=1.0)
        if "weight_decay" in group:
            own["weight_decay"] = group["weight_decay"] / group.get("mode_mult", 1)
        return own


def _convert_averages(optimizer: torch.optim.Optimizer) -> None:
    """Convert averages of complex parameters to the parameters' precision. torch converts only real ones."""
    for p, state in optimizer.state.items():
        for name, value in state.items() if p.is_complex() else ():
            if torch.is_tensor(value) and value.is_complex():
                state[name] = value.to(p.dtype)


def _check_holds(resolved: ResolvedModel, groups: Groups) -> None:
    """Raise MupError if the model no longer uses the optimizer's tensors."""
    name, first = next(iter(resolved.parameters.items()))
    module, _, own = name.rpartition(".")
    if getattr(resolved.model.get_submodule(module), own, first) is first:
        return
    if {*resolved.model.parameters()}.isdisjoint(parameters_of(groups)):
        raise MupError(
            "The model's tensors were replaced after this optimizer was built, e.g. by neuralop_mup.shard or "
            "load_state_dict(assign=True), so a step would change nothing. Build the optimizer afterwards."
        )


def _mode_mult(group: Mapping[str, Any], now: Mapping[nn.Parameter, float]) -> float | None:
    if "rule_mult" not in group or group.get("own_rule"):
        return None
    mults = [now[p] / group["rule_mult"] for p in group["params"] if p in now] or [1.0]
    if not math.isclose(min(mults), max(mults), rel_tol=1e-9):
        raise MupError(
            f"Modes changed, so parameters of the group {group.get('name')!r} need different learning rates. Build the "
            "model with max_n_modes=…, which gives each kernel a separate group."
        )
    return max(mults)
