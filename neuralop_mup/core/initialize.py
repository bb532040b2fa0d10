"""Weights for a model that was parametrized on the meta device: default initialisation times the rule's multipliers."""

from __future__ import annotations

from dataclasses import replace

from neuralop_mup.core.default_init import draw
from neuralop_mup.core.parametrize import Model, get_plan, scale_weights, set_plan
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError


def initialize(model: Model) -> Model:
    """Draw the weights of a model that was parametrized on the meta device and then given memory, in place.

    Every parameter gets neuralop's own initialisation, on the device where it is and from that device's random numbers,
    times its multiplier; buffers (running statistics of norms) get their first values. It is what
    :func:`~neuralop_mup.parametrize` makes of a model that was constructed on that device, without a second copy of the
    weights.

    Parameters
    ----------
    model : torch.nn.Module
        Parametrized on the meta device, then ``model.to_empty(device=…)``. It may be sharded (:func:`shard`) in between:
        each layer is then drawn whole on each process, and rank 0's numbers are distributed.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    MupError
        If the model is not parametrized, is initialised already or is on the meta device still, or a layer's default
        initialisation is not known. Nothing is drawn then.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> with torch.device("meta"):
    ...     model = FNO(n_modes=(8, 8), in_channels=1, out_channels=1, hidden_channels=16)
    >>> model = nm.parametrize(model, base={"hidden_channels": 8})
    >>> model = nm.initialize(model.to_empty(device="cpu"))
    """
    bare = unwrap(model)
    plan = get_plan(bare)
    if not plan.init_pending:
        raise MupError(
            f"The weights of this {type(bare).__name__} are drawn already: initialize is for a model that was parametrized "
            "on the meta device."
        )
    for name, tensor in (*bare.named_parameters(), *bare.named_buffers()):
        if tensor.is_meta:
            raise MupError(f"{name!r} is on the meta device still: call model.to_empty(device=…) first, then initialize.")
    draw(bare, plan)
    scale_weights(bare, plan)
    set_plan(bare, replace(plan, init_applied=True, init_pending=False))
    return model
