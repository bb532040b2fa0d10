"""The learned activations of examples/: GELU at the start, and parametrized without a registration."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm

PATH = Path(__file__).parents[1] / "examples" / "learned_activations.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("learned_activations", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["learned_activations"] = module
    spec.loader.exec_module(module)
    return module


def build(example, activation, cls):
    torch.manual_seed(0)
    given = getattr(example, activation)
    model, given = (FNO, given()) if cls == "FNO" else (example.AdaptiveFNO, given)
    return model((8,), 2, 3, 12, n_layers=2, non_linearity=given)


def plain(**kwargs):
    torch.manual_seed(0)
    return FNO((8,), 2, 3, 12, n_layers=2, **kwargs)


def batch():
    g = torch.Generator().manual_seed(0)
    return {"x": torch.randn(4, 2, 16, generator=g), "y": torch.randn(4, 3, 16, generator=g)}


@pytest.mark.parametrize("activation", ["AdaGELU", "LeakyGELU"])
def test_gelu_at_the_start(example, activation):
    x = torch.linspace(-8, 8, 1001, dtype=torch.float64)
    module = getattr(example, activation)().double()
    torch.testing.assert_close(module(x), torch.nn.functional.gelu(x), rtol=1e-14, atol=1e-16)
    x = batch()["x"]
    for cls in ("AdaptiveFNO", "FNO"):
        torch.testing.assert_close(build(example, activation, cls)(x), plain()(x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cls", ["AdaptiveFNO", "FNO"])
@pytest.mark.parametrize("activation", ["AdaGELU", "LeakyGELU"])
def test_their_role(example, activation, cls):
    """A vector of fixed shape: learning rate and initialization × 1 at three times the width; they train."""
    model = nm.parametrize(build(example, activation, cls), base={"hidden_channels": 4})
    rows = [row for row in nm.summary(model).rows if "non_linearity" in row.name]
    one = len(list(getattr(example, activation)().parameters()))
    assert len(rows) == (one if cls == "FNO" else 3 * one)  # neuralop shares one object
    assert {(row.role, row.lr_mult, row.sgd_lr_mult, row.init_mult) for row in rows} == {("vector", 1.0, 1.0, 1.0)}
    parameters = [model.get_parameter(row.name) for row in rows]
    assert all((p == 0).all() for p in parameters)
    optimizer = nm.MuAdamW(model, lr=1e-2)
    data = batch()
    for _ in range(3):
        optimizer.zero_grad()
        (model(data["x"]) - data["y"]).square().mean().backward()
        optimizer.step()
    assert all((p != 0).all() for p in parameters)
