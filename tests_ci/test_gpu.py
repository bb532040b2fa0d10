"""Tests that need a GPU in use."""

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_a_coordinate_check_restores_the_random_state_of_a_gpu():
    torch.manual_seed(3)
    torch.rand(1, device="cuda")
    before = torch.cuda.get_rng_state()
    batch = {"x": torch.randn(4, 1, 16), "y": torch.randn(4, 1, 16)}
    nm.coord_check(lambda width: nm.parametrize(FNO((8,), 1, 1, width)), [8, 16], [batch], lr=1e-3, steps=(1,), seeds=1)
    assert torch.equal(before, torch.cuda.get_rng_state())
