"""Private names of torch that neuralop_mup uses: a new torch has not changed them."""

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from neuralop_mup import torch_private


def test_wrappers_hold_the_model_by_the_same_attribute():
    model = torch.nn.Linear(1, 1)
    wrappers = torch.compile(model, backend="eager"), checkpoint_wrapper(model)
    held = {(type(w).__module__, type(w).__name__): name for w in wrappers for name, m in w.named_children() if m is model}
    assert held == torch_private.ONE_MODULE
