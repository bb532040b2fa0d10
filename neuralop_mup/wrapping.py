"""What a training script wraps a model in, and how to see the model through it.

A plan belongs to the bare model. Everything that takes a model looks through the wrappers that hold it whole, here and
nowhere else, so that parameters have one name each and learning rates are the same before and after wrapping. FSDP2
(``fully_shard``) is no wrapper: the model stays, its parameters become sharded tensors.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from neuralop_mup.errors import MupError

__all__ = ["check_unsharded", "is_sharded", "look_through", "shard", "unwrap"]

Model = TypeVar("Model", bound=nn.Module)

# Wrapper types by where they are defined, so that those which are not used need not be imported.
_BY_NAME = {
    ("torch._dynamo.eval_frame", "OptimizedModule"): "_orig_mod",
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "CheckpointWrapper"): "_checkpoint_wrapped_module",
}
_FLATTENING = ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")


def _inner(module: nn.Module) -> nn.Module | None:
    """The model inside one wrapper; None where ``module`` wraps nothing."""
    if isinstance(module, (DistributedDataParallel, DataParallel, AveragedModel)):
        return module.module
    for cls in type(module).__mro__:
        where = (cls.__module__, cls.__qualname__)
        if where == _FLATTENING:
            raise MupError(
                "FullyShardedDataParallel flattens parameters, so that none keeps its own learning rate: use "
                "neuralop_mup.shard(model), which is torch's fully_shard (FSDP2)."
            )
        if where in _BY_NAME:
            return getattr(module, _BY_NAME[where])
    return None


def unwrap(model: Any) -> Any:
    """The bare model inside DistributedDataParallel, DataParallel, torch.compile, AveragedModel, or several of them.

    What is no wrapper is returned as it is.

    Raises
    ------
    MupError
        If the model is wrapped by FSDP1 (FullyShardedDataParallel), or if only a part of it is wrapped, so that the
        parameters there have other names than in the plan.
    """
    if not isinstance(model, nn.Module):
        return model
    model = look_through(model)
    for name, module in model.named_modules():
        if module is not model and _inner(module) is not None:
            raise MupError(
                f"{name!r} of this {type(model).__name__} is wrapped by {type(module).__name__}, which renames its "
                f"parameters: wrap the whole model, or compile the part in place (model.{name}.compile())."
            )
    return model


def look_through(model: nn.Module) -> nn.Module:
    """:func:`unwrap` without a look at the parts, which takes long for every step."""
    while (inner := _inner(model)) is not None:
        model = inner
    return model


def is_sharded(model: nn.Module) -> bool:
    """Whether parameters are DTensors, as after ``fully_shard``."""
    return any(_is_dtensor(p) for p in model.parameters())


def _is_dtensor(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "full_tensor")


def check_unsharded(model: nn.Module, what: str) -> None:
    """Refuse a model whose parameters are sharded."""
    if is_sharded(model):
        raise MupError(
            f"The parameters of this {type(model).__name__} are sharded already, and {what} reads whole ones: call {what} "
            "first (on the meta device it costs no memory), then neuralop_mup.shard(model)."
        )


def shard(model: Model, mesh: Any = None, **kwargs: Any) -> Model:
    """Apply torch's ``fully_shard`` (FSDP2) to each spectral convolution and to the model, kernels included.

    FSDP2 refuses to communicate real and complex parameters together ("expects uniform original parameter dtype"), so
    that ``fully_shard(FNO(…))`` fails in its first forward. Here the complex ones get a process group of their own.

    Parameters
    ----------
    model : torch.nn.Module
        A neural operator, parametrized or not, on the device of the mesh or on the meta device.
    mesh : torch.distributed.device_mesh.DeviceMesh, optional
        One-dimensional; all processes if not given.
    **kwargs
        Passed on to ``fully_shard``: ``reshard_after_forward``, ``offload_policy``, ….

    Returns
    -------
    torch.nn.Module
        The same model. Build the optimizer afterwards: parameters are now sharded tensors.

    Raises
    ------
    MupError
        If the model is wrapped or sharded already, the mesh has several dimensions, ``torch.distributed`` is not
        initialised, or this torch is too old to give parameters process groups of their own.
    """
    import torch.distributed as dist

    if not isinstance(model, nn.Module) or unwrap(model) is not model:
        raise MupError(f"shard takes the bare model, got {type(model).__name__}: shard first, then compile.")
    check_unsharded(model, "shard")
    if not (dist.is_available() and dist.is_initialized()):
        raise MupError("shard needs processes to share the model: call torch.distributed.init_process_group first.")
    try:
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
        from torch.distributed.tensor import Shard
    except ImportError as error:
        raise MupError(
            f"torch {torch.__version__} cannot shard real and complex parameters of one model (FSDP2 has no process groups "
            "by parameter): update torch, or use DistributedDataParallel."
        ) from error
    if mesh is None:
        kind = next((p.device.type for p in model.parameters() if not p.is_meta), None)
        if kind is None:
            kind = "cuda" if torch.cuda.is_available() else "cpu"
        mesh = init_device_mesh(kind, (dist.get_world_size(),))
    if mesh.ndim != 1:
        raise MupError(f"shard takes a mesh of one dimension, got {mesh.ndim}: pass a submesh such as mesh['dp'].")
    if "shard_placement_fn" in kwargs:
        raise MupError("shard decides on shard_placement_fn itself: call torch's fully_shard for a placement of your own.")
    complex_mesh = DeviceMesh.from_group(dist.new_group(mesh.mesh.flatten().tolist()), mesh.device_type)
    complex_info = FSDPMeshInfo(complex_mesh, shard_mesh_dim=0)

    def place(parameter: nn.Parameter) -> Any:
        return ShardPlacementResult(Shard(0), complex_info) if parameter.is_complex() else None

    # A convolution gathers and frees its kernel by itself; the rest of an operator is small beside them.
    owners = [m for m in model.modules() if m is not model and _calls_kernel(m)]
    shapes = {name: p.infshape for name, p in model.named_parameters() if hasattr(p, "infshape")}
    for module in [*owners, model]:
        fully_shard(module, mesh=mesh, shard_placement_fn=place, **kwargs)
    for name, parameter in model.named_parameters():  # other tensors than before
        if name in shapes:
            parameter.infshape = shapes[name]
    return model


def _calls_kernel(module: nn.Module) -> bool:
    from neuralop.layers.base_spectral_conv import BaseSpectralConv

    return isinstance(module, BaseSpectralConv)
