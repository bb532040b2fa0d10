"""The learned activations of examples/: they start as GELU, and parametrize needs no registration for them."""

import runpy
from pathlib import Path

import pytest
import torch
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from support.training import small_batch

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "learned_activations.py"))


def build(cls=FNO, activation=nn.functional.gelu):
    torch.manual_seed(0)
    return cls((8,), 2, 3, 12, n_layers=2, non_linearity=activation)


@pytest.mark.parametrize("name", ["AdaGELU", "LeakyGELU"])
def test_learned_activations(name):
    """Their vectors keep their shape, learning rate and initialization at three times the width."""
    activation = EXAMPLE[name]
    x = torch.linspace(-8, 8, 1001, dtype=torch.float64)
    torch.testing.assert_close(activation().double()(x), nn.functional.gelu(x), rtol=1e-14, atol=1e-16)
    # neuralop's FNO shares one object between its layers, and AdaptiveFNO has one for each of three.
    for cls, given, objects in ((FNO, activation(), 1), (EXAMPLE["AdaptiveFNO"], activation, 3)):
        model = build(cls, given)
        torch.testing.assert_close(model(small_batch()[0]), build()(small_batch()[0]), rtol=1e-4, atol=1e-6)
        nm.parametrize(model, base={"hidden_channels": 4})
        rows = [row for row in nm.summary(model) if "non_linearity" in row.name]
        numbers = {(row.role, row.lr_mult, row.sgd_lr_mult, row.init_mult) for row in rows}
        assert len(rows) == objects * len(list(activation().parameters()))
        assert numbers == {("vector", 1.0, 1.0, 1.0)}
