"""What neuralop_mup uses of torch without torch's promise: a new torch that changed one of them fails here by its name."""

import ast
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import neuralop_mup
from neuralop_mup import torch_private

PACKAGE = Path(neuralop_mup.__file__).parent


def test_wrappers_are_where_they_were_and_hold_the_model_by_their_attribute():
    model = nn.Linear(1, 1)
    wrappers = torch.compile(model, backend="eager"), checkpoint_wrapper(model)
    held = {(type(w).__module__, type(w).__name__): name for w in wrappers for name, m in w.named_children() if m is model}
    assert held == torch_private.ONE_MODULE


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
