"""The plan of a model beside what an optimizer makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.optim.on_plan import step_lr


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
