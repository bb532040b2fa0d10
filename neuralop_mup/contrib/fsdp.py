"""Shard a model with torch's FSDP2, including complex kernels."""

from typing import Any

import torch
import torch.distributed as dist
from neuralop.layers.base_spectral_conv import BaseSpectralConv
from torch import nn

from neuralop_mup.core.parametrize import Model, is_parametrized
from neuralop_mup.core.state_dict_hooks import attach_shapes
from neuralop_mup.core.unwrap import check_unsharded, unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.torch_private import fsdp_placement


def shard(model: Model, mesh: Any = None, **kwargs: Any) -> Model:
    """Apply torch's ``fully_shard`` (FSDP2) to each spectral convolution and to the model.

    FSDP2 cannot communicate real and complex parameters together ("expects uniform original parameter dtype"), so
    ``fully_shard(FNO(…))`` fails in its first forward pass. This function uses a separate process group for complex
    parameters.

    Parameters
    ----------
    model : torch.nn.Module
        A neural operator, parametrized or not, on the device of the mesh or on the meta device.
    mesh : torch.distributed.device_mesh.DeviceMesh, optional
        One-dimensional mesh. Default: all processes.
    **kwargs
        Further arguments of ``fully_shard``: ``reshard_after_forward``, ``offload_policy``, … (``shard_placement_fn`` is set
        by this function).

    Returns
    -------
    torch.nn.Module
        The same model. Build the optimizer afterwards, because its parameters are now sharded tensors.

    Raises
    ------
    MupError
        If the model is already wrapped or sharded, if the mesh has several dimensions, or if this version of torch does not
        support process groups per parameter.

    Examples
    --------
    In a script started by ``torchrun``:

    >>> import torch.distributed as dist  # doctest: +SKIP
    >>> dist.init_process_group()  # doctest: +SKIP
    >>> model = nm.shard(nm.parametrize(FNO((8, 8), 1, 1, 64), base={"hidden_channels": 32}))  # doctest: +SKIP
    >>> optimizer = nm.MuAdam(model, lr=8e-3)  # doctest: +SKIP
    """
    if not isinstance(model, nn.Module) or unwrap(model) is not model:
        raise MupError(
            f"shard needs an unwrapped model, got {type(model).__name__}. Shard the model first, then compile it."
        )
    check_unsharded(model, "shard")
    try:
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard

        mesh_info, placement = fsdp_placement()
    except ImportError as error:
        raise MupError(
            f"torch {torch.__version__} cannot shard a model with real and complex parameters, because its FSDP2 does not "
            "support process groups per parameter. Update torch, or use DistributedDataParallel."
        ) from error
    if mesh is None:
        on_meta = "cuda" if torch.cuda.is_available() else "cpu"
        device = next((p.device.type for p in model.parameters() if not p.is_meta), on_meta)
        mesh = init_device_mesh(device, (dist.get_world_size(),))
    if mesh.ndim != 1:
        raise MupError(f"shard needs a one-dimensional mesh, got {mesh.ndim} dimensions. Pass a submesh such as mesh['dp'].")
    group = dist.new_group(mesh.mesh.flatten().tolist())
    complex_info = mesh_info(DeviceMesh.from_group(group, mesh.device_type), shard_mesh_dim=0)

    def place(parameter: nn.Parameter) -> Any:
        return placement(Shard(0), complex_info) if parameter.is_complex() else None

    # Each convolution gathers and frees its own kernel. The other parameters are few and are gathered with the model.
    owners = [m for m in model.modules() if m is not model and isinstance(m, BaseSpectralConv)]
    for module in [*owners, model]:
        fully_shard(module, mesh=mesh, shard_placement_fn=place, **kwargs)
    if is_parametrized(model):
        attach_shapes(model)  # fully_shard replaced the parameters
    return model
