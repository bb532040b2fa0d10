"""Tabulate a model's parameters and the learning rates of an optimizer."""

from dataclasses import replace

import torch
from torch import nn

from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.optim.learning_rate import effective_lr


def summary(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Plan:
    """Return a model's plan, which lists each parameter's role, shapes and multipliers and explains them.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    optimizer : torch.optim.Optimizer, optional
        Optimizer of the model. If given, the table has an additional column ``lr`` with the effective learning rate of each
        parameter. The column ``lr ×`` applies to Adam-like optimizers. For kernels and hidden layers, MuSOAP's ``lr`` is an
        update size that only depends on depth, and the column ``lr`` marks it with "size".

    Returns
    -------
    Plan
        The plan. Print it, or call ``.to_markdown()`` or ``.to_json()``.

    Raises
    ------
    MupError
        If the model is not parametrized, or if the optimizer contains none of its parameters.

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
        lr = f"{'size ' if group.get('own_rule') else ''}{float(effective_lr(group)):.4g}"
        lrs |= {names[p]: lr for p in group["params"] if p in names}
    if set(lrs.values()) == {"not in it"}:
        raise MupError(
            f"This {type(optimizer).__name__} contains no parameters of the model. Pass the optimizer that was built for "
            "the model."
        )
    return replace(plan, lrs=lrs)
