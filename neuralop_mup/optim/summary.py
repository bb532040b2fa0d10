"""The table of a model's parameters, with the learning rates of an optimizer."""

from dataclasses import replace

import torch
from torch import nn

from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.optim.learning_rate import effective_lr


def summary(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Plan:
    """Return the plan of a model: role, shapes and multipliers of each parameter, and why.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model.
    optimizer : torch.optim.Optimizer, optional
        Built for the model. The table then has a column with each parameter's effective learning rate. The column ``lr ×``
        is for Adam-like optimizers. MuSOAP updates kernels and hidden layers by the update size ``lr``, which only depends
        on depth; the column ``lr`` marks these rates with "size".

    Returns
    -------
    Plan
        Print it, or call ``.to_markdown()`` or ``.to_json()``.

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
        lr = f"{'size ' if group.get('own_rule') else ''}{float(effective_lr(group)):.4g}"
        lrs |= {names[p]: lr for p in group["params"] if p in names}
    if set(lrs.values()) == {"not in it"}:
        raise MupError(
            f"This {type(optimizer).__name__} holds no parameter of the model. Pass the optimizer that was built for it."
        )
    return replace(plan, lrs=lrs)
