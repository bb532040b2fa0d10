"""Optimizer hooks that make learning rates follow the plan while modes grow and schedulers change the rates."""

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

# Keys that are not copied back from the groups of a step view, because its ``lr`` and ``weight_decay`` include the factors.
_STEP_ONLY = ("lr", "weight_decay", "mode_mult", "learned_mult")


def follow_plan(model: nn.Module, optimizer: torch.optim.Optimizer, family: str | None = None) -> None:
    """Make an optimizer follow its model's plan at every step.

    This package's optimizers call this function themselves. It attaches a hook to ``optimizer.step`` that does two things:

    1. It adapts each kernel's learning rate to the current modes (``model.n_modes = …``, ``IncrementalFNOTrainer``). It
       updates the group's ``mode_mult`` and applies it during the step. ``lr`` does not change, and weight decay stays
       independent.
    2. It warns once if the learning rates no longer have the plan's ratios, e.g. because a scheduler sets absolute values.

    Call it if you build the optimizer from :func:`~neuralop_mup.param_groups`. Also call it after copying or unpickling an
    optimizer, which removes hooks (``load_state_dict`` keeps them). If an optimizer trains several models, call it once for
    each model. If the optimizer is a wrapper, such as accelerate's or Lightning's, the hooks are attached to the wrapped
    optimizer.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    optimizer : torch.optim.Optimizer
        An optimizer that was built from all or some of this model's :func:`~neuralop_mup.param_groups`.
    family : {"adam", "sgd"}, optional
        Family of the groups. The default is "sgd" for torch's SGD and ASGD, otherwise "adam". For SGD there is no mode rule.

    Raises
    ------
    MupError
        If the model is not parametrized, or if the groups belong to another model. In ``optimizer.step``, if modes are
        invalid, or if the modes of several kernels in one group changed by different factors. (With ``max_n_modes``, each
        kernel has a separate group.)

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
            "The optimizer contains no parameters of this model. Build it from neuralop_mup.param_groups(model, lr=…)."
        )
    # Check the ratios at construction for all parameters except kernels, because the ratios of kernels change with the
    # modes.
    built = [{**group, "lr": group.get("lr_mult", group["lr"]), "base_lr": 1.0} for group in optimizer.param_groups]
    check_groups(resolved, built, family, resolved.parameters.keys() - resolved.mode_kernels.keys())
    former = getattr(optimizer, LR_HOOKS, None)
    others = [other for other in former.models if other.model is not resolved.model] if former else []
    LrHooks([*others, resolved], type(optimizer), family).attach(optimizer)


class LrHooks:
    """Hooks that :func:`follow_plan` attaches to an optimizer.

    torch calls ``step`` with the arguments that a pre-hook returns. The first of these is the optimizer itself (tested in
    ``tests/optim/test_growing.py``), so the pre-hook can replace it. The step then runs on a *step view*. This is another
    object of the same class that shares the state but has separate groups with the learning rates of this step. The
    optimizer's own groups do not change. Nothing needs to be restored if a step raises, and schedulers, copies and
    checkpoints always see the user's learning rates.

    Two alternatives do not work. Changing ``lr`` only during the step fails because torch calls no hook after a step that
    raises, so ``lr`` could not be restored. Multiplying ``lr`` once fails because closed-form schedulers overwrite it.
    """

    def __init__(self, models: Sequence[ResolvedModel], of: type[torch.optim.Optimizer], family: str) -> None:
        self.models, self.family = models, family
        self._convs = [m.model.get_submodule(name) for m in models for name in dict.fromkeys(m.mode_kernels.values())]
        self._key: tuple | None = None
        # Reuse the same objects at every step, because compiled steps and captured graphs refer to them.
        self._step_view = object.__new__(of)
        self._groups: dict[int, dict[str, Any]] = {}
        self._lrs: dict[int, torch.Tensor] = {}  # learning rates that are tensors, by group
        self._warned = False

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Attach the hooks after all other hooks of the optimizer, and remove earlier hooks of this class."""
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
        """Return, per group, the multiplier at the current modes divided by ``rule_mult``, or None if not in the plan."""
        key = (tuple(map(active_modes, self._convs)), *(group.get("rule_mult") for group in groups))
        if key != self._key:
            # Invert twice to obtain the same bits as in param_groups.
            now = {
                resolved.parameters[row.name]: 1 / (1 / rule_mult(row, self.family))
                for resolved in self.models
                for row in present_plan(resolved.model, resolved.plan).rows
            }
            self._mults, self._key = [_mode_mult(group, now) for group in groups], key
        return self._mults

    @not_compiled  # torch would recompile it for each number of modes without any benefit
    def _before(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if optimizer is self._step_view:
            return None  # torch calls hooks again if a subclass's step calls super().step()
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
        """Copy the attributes and group entries that the step wrote from the view to the optimizer, then clear the view."""
        stepped = args[0]
        if stepped is optimizer:
            return
        for group, used in zip(optimizer.param_groups, stepped.param_groups, strict=True):
            group |= {key: value for key, value in used.items() if key not in _STEP_ONLY}
            used.clear()
        vars(optimizer).update((key, value) for key, value in vars(stepped).items() if key != "param_groups")
        vars(stepped).clear()

    def _step_group(self, i: int, group: dict[str, Any]) -> dict[str, Any]:
        """Return group ``i`` of the step view, with effective learning rate and independent weight decay."""
        # MuSOAP's step sets and applies depth_mult, so it is not applied here.
        own, lr = self._groups.setdefault(i, {}), unscheduled_lr({**group, "depth_mult": 1.0})
        if isinstance(lr, torch.Tensor) and not lr.requires_grad:
            lr = self._lrs.setdefault(i, lr).copy_(lr)
        own.update(group, lr=lr, mode_mult=1.0, learned_mult=1.0)
        if "weight_decay" in group:
            own["weight_decay"] = group["weight_decay"] / group.get("mode_mult", 1)
        return own


def _convert_averages(optimizer: torch.optim.Optimizer) -> None:
    """Convert averages of complex parameters to the parameters' precision, because torch only converts real averages."""
    for p, state in optimizer.state.items():
        for name, value in state.items() if p.is_complex() else ():
            if torch.is_tensor(value) and value.is_complex():
                state[name] = value.to(p.dtype)


def _check_holds(resolved: ResolvedModel, groups: Groups) -> None:
    """Raise MupError if the model's parameters are no longer the optimizer's tensors."""
    name, first = next(iter(resolved.parameters.items()))
    module, _, own = name.rpartition(".")
    if getattr(resolved.model.get_submodule(module), own, first) is first:
        return
    if {*resolved.model.parameters()}.isdisjoint(parameters_of(groups)):
        raise MupError(
            "The model's tensors were replaced after this optimizer was built, e.g. by neuralop_mup.shard or "
            "load_state_dict(assign=True), so a step would not change the model. Build the optimizer after this "
            "replacement."
        )


def _mode_mult(group: Mapping[str, Any], now: Mapping[nn.Parameter, float]) -> float | None:
    if "rule_mult" not in group or group.get("own_rule"):
        return None
    mults = [now[p] / group["rule_mult"] for p in group["params"] if p in now] or [1.0]
    if not math.isclose(min(mults), max(mults), rel_tol=1e-9):
        raise MupError(
            f"The modes changed, so the parameters of group {group.get('name')!r} now need different learning rates. Build "
            "the model with max_n_modes=…, so that each kernel has a separate group."
        )
    return max(mults)
