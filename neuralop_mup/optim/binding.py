"""A parametrized model, read once: what groups, optimizers and checks of optimizers are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from neuralop_mup.core.parametrize import get_plan
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.optim.modes import growing_kernels, present_plan


@dataclass(frozen=True)
class Binding:
    """A parametrized model and what its plan says of it now: whoever builds an optimizer reads the model once, into this.

    Attributes
    ----------
    model : torch.nn.Module
        The bare model, without its wrappers.
    plan : Plan
        Its plan, with learning rates at the modes that are active now.
    parameters : mapping of str to torch.nn.Parameter
        By name, in the order of the plan's rows.
    growing : mapping of str to str
        Kernels whose modes may change in training, with the name of the convolution that each belongs to.
    """

    model: nn.Module
    plan: Plan
    parameters: Mapping[str, nn.Parameter]
    growing: Mapping[str, str]


def bind(model: nn.Module) -> Binding:
    """Read a parametrized model.

    Parameters
    ----------
    model : torch.nn.Module
        A parametrized model, wrapped or not.

    Raises
    ------
    MupError
        If the model is not parametrized, its parameters changed since, its weights are still to be drawn, or it has modes
        that cannot be used.
    """
    plan, bare = get_plan(model), unwrap(model)
    parameters = dict(bare.named_parameters())
    rows = {row.name for row in plan.rows}
    if changed := rows.symmetric_difference(parameters):
        raise MupError(
            f"The model's parameters changed after parametrize ({min(changed)!r} was added, removed or tied): parametrize "
            "the finished model, and keep one tensor a name."
        )
    # An optimizer that is built too early would hold tensors that are not the model's any more.
    if any(p.is_meta for p in parameters.values()):
        raise MupError(
            "The model is on the meta device: call model.to_empty(device=…) and neuralop_mup.initialize(model), or load its "
            "weights, before building the optimizer."
        )
    if plan.init_pending:
        raise MupError(
            "The weights are still to be drawn: call neuralop_mup.initialize(model), or load them, before building the "
            "optimizer."
        )
    ordered = {row.name: parameters[row.name] for row in plan.rows}
    return Binding(bare, present_plan(bare, plan), ordered, growing_kernels(bare, plan))
