"""One model shared between processes by torch's FSDP2, complex kernels included."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from neuralop.layers.base_spectral_conv import BaseSpectralConv
from torch import nn

from neuralop_mup.core.unwrap import check_unsharded, unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.torch_private import fsdp_placement

Model = TypeVar("Model", bound=nn.Module)


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
        Passed on to ``fully_shard``: ``reshard_after_forward``, ``offload_policy``, … (``shard_placement_fn`` is given).

    Returns
    -------
    torch.nn.Module
        The same model. Build the optimizer afterwards: parameters are now sharded tensors.

    Raises
    ------
    MupError
        If the model is wrapped or sharded already, the mesh has several dimensions, ``torch.distributed`` is not
        initialised, or this torch is too old to give parameters process groups of their own.

    Examples
    --------
    In a program that ``torchrun`` starts:

    >>> import torch.distributed as dist  # doctest: +SKIP
    >>> dist.init_process_group()  # doctest: +SKIP
    >>> model = nm.shard(nm.parametrize(FNO((8, 8), 1, 1, 64), base={"hidden_channels": 32}))  # doctest: +SKIP
    >>> optimizer = nm.MuAdam(model, lr=8e-3)  # doctest: +SKIP
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
        from torch.distributed.tensor import Shard

        mesh_info, placement = fsdp_placement()
    except ImportError as error:
        raise MupError(
            f"torch {torch.__version__} cannot shard real and complex parameters of one model (FSDP2 has no process groups "
            "by parameter): update torch, or use DistributedDataParallel."
        ) from error
    if mesh is None:
        default = "cuda" if torch.cuda.is_available() else "cpu"
        kind = next((p.device.type for p in model.parameters() if not p.is_meta), default)
        mesh = init_device_mesh(kind, (dist.get_world_size(),))
    if mesh.ndim != 1:
        raise MupError(f"shard takes a mesh of one dimension, got {mesh.ndim}: pass a submesh such as mesh['dp'].")
    complex_mesh = DeviceMesh.from_group(dist.new_group(mesh.mesh.flatten().tolist()), mesh.device_type)
    complex_info = mesh_info(complex_mesh, shard_mesh_dim=0)

    def place(parameter: nn.Parameter) -> Any:
        return placement(Shard(0), complex_info) if parameter.is_complex() else None

    # A convolution gathers and frees its kernel by itself; the rest of an operator is small beside them.
    owners = [m for m in model.modules() if m is not model and isinstance(m, BaseSpectralConv)]
    shapes = {name: p.infshape for name, p in model.named_parameters() if hasattr(p, "infshape")}
    for parameter in model.parameters():
        parameter.sharded_away = True  # other tensors take their place, and an optimizer that holds these trains nothing
    for module in [*owners, model]:
        fully_shard(module, mesh=mesh, shard_placement_fn=place, **kwargs)
    for name, shape in shapes.items():  # the parameters are other tensors than before
        model.get_parameter(name).infshape = shape
    return model
