"""What this package uses of torch that torch does not promise: each name with the reason, and nowhere else.

``tests/optim/test_torch_private.py`` says which of them a new torch has changed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# torch's own optimizers keep the compiler out of a function by this decorator. The public torch.compiler.disable loads the
# compiler, which takes seconds, when a function is decorated; this one when it is first called.
not_compiled = torch._disable_dynamo

# One operator for many tensors. torch's own optimizers are made of these.
copy_each_, lerp_each_, mul_each_ = torch._foreach_copy_, torch._foreach_lerp_, torch._foreach_mul_
add_product_each_, sub_each_, norm_of_each = torch._foreach_addcmul_, torch._foreach_sub_, torch._foreach_norm

# What torch's norms over a batch and over an instance are made from, its own of one to three dimensions and lazy ones alike.
RUNNING_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def is_in_backward() -> bool:
    """Return whether this thread runs a backward pass: a forward pass in it is a recomputation of checkpointing."""
    return torch._C._current_graph_task_id() != -1


# Wrapper types by where they are defined, so that those which are not used need not be imported, with the attribute that
# holds the model. torch.compile's wrapper and that of checkpoint_wrapper have no public name.
ONE_MODULE = {
    ("torch._dynamo.eval_frame", "OptimizedModule"): "_orig_mod",
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "CheckpointWrapper"): "_checkpoint_wrapped_module",
}


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Parameters of a module itself, to be replaced without a look at what its class makes of ``setattr``."""
    return module._parameters


def remove_hooks(model: nn.Module, ours: tuple[Callable, ...]) -> None:
    """Take hooks on ``state_dict`` and ``load_state_dict`` off a model.

    A copied or unpickled model has its hooks, and the handles that would remove them belong to the model it was copied from.
    """
    for hooks in (model._state_dict_hooks, model._load_state_dict_pre_hooks, model._load_state_dict_post_hooks):
        for key, hook in list(hooks.items()):
            if getattr(hook, "hook", hook) in ours:  # torch wraps some of them
                del hooks[key]


def mark_public(hook: Any) -> Any:
    """Have a hook on ``state_dict`` called as one of torch's public registration is.

    torch writes its mark on the hook when it is registered. One that was unpickled with its model is not registered again.
    """
    hook._from_public_api = True
    return hook


def fsdp_placement() -> tuple[Any, Any]:
    """FSDPMeshInfo and ShardPlacementResult: what a ``shard_placement_fn`` gives ``fully_shard`` to send a parameter on
    another mesh. The argument is public, these two are not."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult

    return FSDPMeshInfo, ShardPlacementResult
