"""What neuralop_mup uses of torch without torch's promise: a new torch that changed one of them fails here by its name."""

import ast
import copy
import importlib
import inspect
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import neuralop_mup
from neuralop_mup import torch_private

PACKAGE = Path(neuralop_mup.__file__).parent


def test_the_decorator_of_torchs_own_optimizers():
    assert torch_private.not_compiled(lambda x: -x)(1) == -1
    assert "@torch._disable_dynamo" in inspect.getsource(inspect.getmodule(torch.optim.Optimizer))


def test_operators_on_many_tensors():
    x, y = [torch.ones(2), torch.full((1, 3), 2.0)], [torch.zeros(2), torch.zeros(1, 3)]
    torch_private.copy_each_(y, x)
    torch_private.mul_each_(y, torch.tensor(3.0))
    torch_private.sub_each_(y, x)
    torch_private.lerp_each_(y, x, 0.5)
    assert [t.unique().tolist() for t in y] == [[1.5], [3.0]]
    assert [n.item() for n in torch_private.norm_of_each(x)] == pytest.approx([2**0.5, 12**0.5])


@pytest.mark.parametrize("where", torch_private.ONE_MODULE)
def test_a_wrapper_is_where_it_was(where):
    module, name = where
    assert isinstance(getattr(importlib.import_module(module), name), type)


def test_wrappers_hold_the_model_by_their_attribute():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = nn.Linear(1, 1)
    wrapped = {"_orig_mod": torch.compile(model, backend="eager"), "_checkpoint_wrapped_module": checkpoint_wrapper(model)}
    assert sorted(wrapped) == sorted(torch_private.ONE_MODULE.values())
    assert all(getattr(wrapper, attribute) is model for attribute, wrapper in wrapped.items())


def test_parameters_are_kept_in_a_dict():
    layer = nn.Linear(1, 1)
    assert torch_private.own_parameters(layer)["weight"] is layer.weight


def _write(module, state, prefix, metadata):
    state["written"] = torch.ones(1)


def _load(module, *_):
    raise RuntimeError("hooked")


@pytest.mark.parametrize("how", [lambda m: m, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_hooks_of_a_model_and_of_its_copies_are_called_and_removed(how):
    model = nn.Linear(1, 1)
    model.register_state_dict_post_hook(torch_private.mark_public(_write))
    model.register_load_state_dict_pre_hook(_load)
    model.register_load_state_dict_post_hook(_load)
    model = how(model)
    assert "written" in model.state_dict()
    with pytest.raises(RuntimeError, match="hooked"):
        model.load_state_dict(nn.Linear(1, 1).state_dict())
    torch_private.remove_hooks(model, (_write, _load))
    assert "written" not in model.state_dict()
    model.load_state_dict(nn.Linear(1, 1).state_dict())


def test_placements_of_fsdp():
    mesh_info, placement = torch_private.fsdp_placement()
    assert "shard_mesh_dim" in inspect.signature(mesh_info).parameters
    assert len(inspect.signature(placement).parameters) == 2
    from torch.distributed.fsdp import fully_shard

    assert "shard_placement_fn" in inspect.signature(fully_shard).parameters


def test_a_hook_may_hand_the_step_another_optimizer():
    """``optim.follow`` builds on it: arguments that a pre-hook returns, the optimizer first, are the step's."""
    optimizer, other = (torch.optim.SGD([nn.Parameter(torch.ones(1))], 1.0) for _ in range(2))
    seen = []
    optimizer.register_step_pre_hook(lambda o, args, kwargs: ((other, *args[1:]), kwargs))
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append((o, args[0])))
    for o in (optimizer, other):
        o.param_groups[0]["params"][0].grad = torch.ones(1)
    optimizer.step()
    assert seen == [(optimizer, other)]
    assert [o.param_groups[0]["params"][0].item() for o in (optimizer, other)] == [1, 0]


PRIVATE = re.compile(
    r"\btorch(\.\w+)*\._[a-zA-Z]\w*|\._(BatchNorm|InstanceNorm|modules|parameters|buffers|disable_dynamo)$|\._(load_)?state_dict\w*_hooks$"
)


@pytest.mark.parametrize("part", ["optim", "diagnostics", "instruments", "integrations", "core"])
def test_nothing_else_is_used(part):
    found = []
    for path in sorted((PACKAGE / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
                name = " ".join(f"{node.module}.{alias.name}" for alias in node.names)
            if PRIVATE.search(name):
                found.append(f"{path.relative_to(PACKAGE)}: {name}")
    assert found == []
