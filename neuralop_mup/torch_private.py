"""All private names of torch that this package uses, with the reason for each.

``tests/optim/test_torch_private.py`` reports which of them have changed in a new torch version.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# torch's own optimizers use this decorator to disable the compiler. The public torch.compiler.disable imports the compiler
# at decoration time, which takes seconds. This decorator imports it at the first call.
not_compiled = torch._disable_dynamo

# Operators on lists of tensors, as used in torch's own optimizers.
copy_each_, lerp_each_, mul_each_ = torch._foreach_copy_, torch._foreach_lerp_, torch._foreach_mul_
add_product_each_, sub_each_, norm_of_each = torch._foreach_addcmul_, torch._foreach_sub_, torch._foreach_norm

# Base classes of torch's batch and instance norms in one to three dimensions, including the lazy classes.
RUNNING_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def is_in_backward() -> bool:
    """Return whether this thread runs a backward pass, in which activation checkpointing recomputes forward passes."""
    return torch._C._current_graph_task_id() != -1


# For each wrapper class, the attribute that holds the model. Classes are identified by module and name, so that wrappers are
# not imported unless used. The wrapper classes of torch.compile and checkpoint_wrapper have no public name.
ONE_MODULE = {
    ("torch._dynamo.eval_frame", "OptimizedModule"): "_orig_mod",
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "CheckpointWrapper"): "_checkpoint_wrapped_module",
}


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return a module's parameter dict, whose entries can be replaced without calling the class's ``__setattr__``."""
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

    torch sets this mark when a hook is registered, but unpickling a model does not register its hooks again.
    """
    hook._from_public_api = True
    return hook


def fsdp_placement() -> tuple[Any, Any]:
    """Return FSDPMeshInfo and ShardPlacementResult, which a ``shard_placement_fn`` needs in order to use a different mesh.

    The argument ``shard_placement_fn`` of ``fully_shard`` is public, but these two classes are not.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult

    return FSDPMeshInfo, ShardPlacementResult
