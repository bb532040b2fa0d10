"""All uses of torch's private names, with the reason for each.

``tests/optim/test_torch_private.py`` reports which of them a new torch version has changed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# torch's own optimizers disable the compiler with this decorator. The public torch.compiler.disable loads the compiler,
# which takes seconds, already at decoration; this one does at the first call.
not_compiled = torch._disable_dynamo

# Operators on many tensors, as in torch's own optimizers.
copy_each_, lerp_each_, mul_each_ = torch._foreach_copy_, torch._foreach_lerp_, torch._foreach_mul_
add_product_each_, sub_each_, norm_of_each = torch._foreach_addcmul_, torch._foreach_sub_, torch._foreach_norm

# Base classes of torch's batch and instance norms, from one to three dimensions, including lazy ones.
RUNNING_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def is_in_backward() -> bool:
    """Return whether this thread runs a backward pass: a forward pass in it is a recomputation of checkpointing."""
    return torch._C._current_graph_task_id() != -1


# Attribute that holds the model, by module and name of the wrapper class, so that unused wrappers need not be imported. The
# wrappers of torch.compile and checkpoint_wrapper have no public name.
ONE_MODULE = {
    ("torch._dynamo.eval_frame", "OptimizedModule"): "_orig_mod",
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "CheckpointWrapper"): "_checkpoint_wrapped_module",
}


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return a module's parameter dict, for replacing entries without the class's ``setattr``."""
    return module._parameters


def remove_hooks(model: nn.Module, ours: tuple[Callable, ...]) -> None:
    """Remove hooks on ``state_dict`` and ``load_state_dict`` from a model.

    A copied or unpickled model keeps its hooks, but the handles for removing them belong to the original.
    """
    for hooks in (model._state_dict_hooks, model._load_state_dict_pre_hooks, model._load_state_dict_post_hooks):
        for key, hook in list(hooks.items()):
            if getattr(hook, "hook", hook) in ours:  # torch wraps some of them
                del hooks[key]


def mark_public(hook: Any) -> Any:
    """Mark a ``state_dict`` hook as registered by torch's public method.

    torch sets this mark at registration. A hook that was unpickled with its model is not registered again.
    """
    hook._from_public_api = True
    return hook


def fsdp_placement() -> tuple[Any, Any]:
    """Return FSDPMeshInfo and ShardPlacementResult, which a ``shard_placement_fn`` needs to use another mesh.

    The argument of ``fully_shard`` is public, these two classes are not.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult

    return FSDPMeshInfo, ShardPlacementResult
