"""Access the model inside the wrappers of a training script.

A plan belongs to the bare model. Every function that accepts a model unwraps it here, so parameter names and learning rates
are the same before and after wrapping. FSDP2 (``fully_shard``) is no wrapper: the model stays and its parameters become
sharded tensors.
"""

from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from neuralop_mup.errors import MupError
from neuralop_mup.torch_private import ONE_MODULE


def _inner(module: nn.Module) -> nn.Module | None:
    """Return the model inside one wrapper, or None if ``module`` is no wrapper."""
    if isinstance(module, (DistributedDataParallel, DataParallel, AveragedModel)):
        return module.module
    for cls in type(module).__mro__:
        where = (cls.__module__, cls.__qualname__)
        if where == ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"):
            raise MupError(
                "FullyShardedDataParallel flattens parameters, so they cannot have different learning rates. Use "
                "neuralop_mup.shard(model), which applies torch's fully_shard (FSDP2)."
            )
        if where in ONE_MODULE:
            return getattr(module, ONE_MODULE[where])
    return None


def unwrap(model: Any) -> Any:
    """Return the bare model inside DistributedDataParallel, DataParallel, torch.compile, AveragedModel, or several of them.

    Parameters
    ----------
    model : Any
        A model, wrapped or not. Objects that are no module are returned unchanged.

    Returns
    -------
    Any
        The model without its wrappers.

    Raises
    ------
    MupError
        If the model is wrapped by FSDP1 (FullyShardedDataParallel), or a part of it is wrapped, which renames its
        parameters.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = FNO((8,), 1, 1, 16)
    >>> nm.unwrap(torch.nn.DataParallel(model)) is model
    True
    """
    if not isinstance(model, nn.Module):
        return model
    model = look_through(model)
    for name, module in model.named_modules():
        if module is not model and _inner(module) is not None:
            raise MupError(
                f"{name!r} of this {type(model).__name__} is wrapped by {type(module).__name__}, which renames its "
                f"parameters. Wrap the whole model, or compile the part in place (model.{name}.compile())."
            )
    return model


def look_through(model: nn.Module) -> nn.Module:
    """Remove wrappers as :func:`unwrap` without checking submodules, for speed in every step."""
    while (inner := _inner(model)) is not None:
        model = inner
    return model


def is_sharded(model: nn.Module) -> bool:
    """Return whether parameters are DTensors, as after ``fully_shard``."""
    return any(hasattr(p, "device_mesh") and hasattr(p, "full_tensor") for p in model.parameters())


def check_unsharded(model: nn.Module, what: str) -> None:
    """Raise MupError if the model's parameters are sharded."""
    if is_sharded(model):
        raise MupError(
            f"The parameters of this {type(model).__name__} are already sharded, but {what} needs whole ones. Call {what} "
            "first (on the meta device it needs no memory), then neuralop_mup.shard(model)."
        )
