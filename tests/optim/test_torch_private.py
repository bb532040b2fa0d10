"""Private names of torch that neuralop_mup uses: a new torch has not changed them."""

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from neuralop_mup import torch_private


def test_wrappers_hold_the_model_by_the_same_attribute():
    model = torch.nn.Linear(1, 1)
    wrappers = torch.compile(model, backend="eager"), checkpoint_wrapper(model)
    held = {(type(w).__module__, type(w).__name__): name for w in wrappers for name, m in w.named_children() if m is model}
    assert held == torch_private.ONE_MODULE


def test_a_backward_pass_is_recognized():
    seen, x = [], torch.ones(1, requires_grad=True)
    x.register_hook(lambda gradient: seen.append(torch_private.is_in_backward()))
    x.sum().backward()
    assert seen == [True] and not torch_private.is_in_backward()
