"""The learned activations of examples/: GELU at the start, and parametrized without a registration."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm

PATH = Path(__file__).parents[2] / "examples" / "learned_activations.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("learned_activations", PATH)
    sys.modules["learned_activations"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(cls=FNO, activation=nn.functional.gelu):
    torch.manual_seed(0)
    return cls((8,), 2, 3, 12, n_layers=2, non_linearity=activation)


@pytest.mark.parametrize("activation", ["AdaGELU", "LeakyGELU"])
def test_learned_activations(example, activation):
    """GELU at the start; vectors of fixed shape, with learning rate and initialization × 1 at three times the width."""
    g, activation = torch.Generator().manual_seed(0), getattr(example, activation)
    x, data = torch.linspace(-8, 8, 1001, dtype=torch.float64), torch.randn(4, 2, 16, generator=g)
    torch.testing.assert_close(activation().double()(x), nn.functional.gelu(x), rtol=1e-14, atol=1e-16)
    one = len(list(activation().parameters()))
    # neuralop shares one object
    for cls, given, count in ((FNO, activation(), one), (example.AdaptiveFNO, activation, 3 * one)):
        torch.testing.assert_close(build(cls, given)(data), build()(data), rtol=1e-4, atol=1e-6)
        model = nm.parametrize(build(cls, given), base={"hidden_channels": 4})
        rows = [row for row in nm.summary(model) if "non_linearity" in row.name]
        numbers = {(row.role, row.lr_mult, row.sgd_lr_mult, row.init_mult) for row in rows}
        assert len(rows) == count and numbers == {("vector", 1.0, 1.0, 1.0)}
        assert all((model.get_parameter(row.name) == 0).all() for row in rows)
        optimizer = nm.MuAdamW(model, lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            (model(data) - 1).square().mean().backward()
            optimizer.step()
        assert all((model.get_parameter(row.name) != 0).all() for row in rows)
