"""What neuralop_mup uses of torch without torch's promise: a new torch that changed one of them fails here by its name."""

import ast
import importlib
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import neuralop_mup
from neuralop_mup import torch_private

PACKAGE = Path(neuralop_mup.__file__).parent


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
