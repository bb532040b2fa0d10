"""Access the model inside wrappers such as DistributedDataParallel.

A plan belongs to the unwrapped model. Every function that accepts a model unwraps it with this module, so parameter names
and learning rates are the same before and after wrapping. FSDP2 (``fully_shard``) is not a wrapper, because it keeps the
model and replaces its parameters with sharded tensors.
"""

from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from neuralop_mup.errors import MupError
from neuralop_mup.torch_private import ONE_MODULE


def _inner(module: nn.Module) -> nn.Module | None:
    """Return the model inside a wrapper, or None if ``module`` is not a wrapper."""
    if isinstance(module, (DistributedDataParallel, DataParallel, AveragedModel)):
        return module.module
    for cls in type(module).__mro__:
        where = (cls.__module__, cls.__qualname__)
        if where == ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"):
            raise MupError(
                "FullyShardedDataParallel flattens parameters, so they cannot have different learning rates. Use "
                "neuralop_mup.shard(model) instead, which applies torch's fully_shard (FSDP2)."
            )
        if where in ONE_MODULE:
            return getattr(module, ONE_MODULE[where])
    return None


def unwrap(model: Any) -> Any:
    """Return the model inside DistributedDataParallel, DataParallel, torch.compile, AveragedModel, or several of these.

    Parameters
    ----------
    model : Any
        A model, which may be wrapped. Objects that are not modules are returned unchanged.

    Returns
    -------
    Any
        The model without its wrappers.

    Raises
    ------
    MupError
        If the model is wrapped in FSDP1 (FullyShardedDataParallel), or if a submodule is wrapped, which renames its
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
                f"{name!r} of this {type(model).__name__} is wrapped in {type(module).__name__}, which renames its "
                f"parameters. Wrap the top-level model, or compile the submodule in place (model.{name}.compile())."
            )
    return model


def look_through(model: nn.Module) -> nn.Module:
    """Remove wrappers like :func:`unwrap`, but do not check submodules, which would be slow at every step."""
    while (inner := _inner(model)) is not None:
        model = inner
    return model


def is_sharded(model: nn.Module) -> bool:
    """Return whether any parameter is a DTensor, as after ``fully_shard``."""
    return any(hasattr(p, "device_mesh") and hasattr(p, "full_tensor") for p in model.parameters())


def check_unsharded(model: nn.Module, what: str) -> None:
    """Raise MupError if the model's parameters are sharded."""
    if is_sharded(model):
        raise MupError(
            f"The parameters of this {type(model).__name__} are already sharded, but {what} needs complete parameters. "
            f"Call {what} first (on the meta device, it needs no memory), then neuralop_mup.shard(model)."
        )
