"""Matching of permuted networks, and the barrier between two networks."""

import copy

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.contrib.permutations import _permute, channel_sets
from support.comparing import differing
from support.errors import refused
from support.models import in_double

# Options of the FNO, and the number of sets of channels: 1 in lifting, 1 in projection, 1 before the first of two blocks,
# and in each block: 1 in the channel MLP, 1 before it, 1 after it. A skip per channel merges two of them.
MODELS = {
    "default": ((6,), {}, 1 + 1 + 1 + 2 * 2),
    "linear skips": ((6,), {"channel_mlp_skip": "linear"}, 3 + 2 * 3),
    "identity": ((6,), {"fno_skip": "identity", "channel_mlp_skip": "identity"}, 3 + 2 * 1),
    "no skips": ((6,), {"fno_skip": None, "channel_mlp_skip": None}, 3 + 2 * 3),
    "no channel MLP": ((6,), {"use_channel_mlp": False}, 3 + 2 * 1),
    "separable": ((6,), {"separable": True}, 3 + 2 * 1),
    "2d": ((4, 4), {"preactivation": True, "stabilizer": "tanh", "norm": "instance_norm"}, 3 + 2 * 2),
}
every_model = pytest.mark.parametrize(("modes", "kwargs", "number"), MODELS.values(), ids=MODELS)


def fno(modes=(6,), seed=0, **kwargs):
    torch.manual_seed(seed)
    return in_double(FNO(modes, 2, 3, 8, n_layers=2, **kwargs))


def shuffled(model, seed=1):
    """Return a copy with every set of channels permuted at random."""
    shuffled = copy.deepcopy(model)
    weights = {name: p.detach() for name, p in shuffled.named_parameters()}
    generator = torch.Generator().manual_seed(seed)
    for axes in channel_sets(shuffled):
        _permute(weights, axes, torch.randperm(weights[axes[0][0]].shape[axes[0][1]], generator=generator))
    return shuffled


def batch_for(modes):
    return torch.randn(2, 2, *(12,) * len(modes), generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.fixture(autouse=True)
def _complex_double(monkeypatch):
    monkeypatch.setattr(torch, "cfloat", torch.complex128)  # neuralop's convolution uses it whatever its weights are


@every_model
def test_a_permuted_copy_has_the_same_outputs_and_is_matched_exactly(modes, kwargs, number):
    model, x = fno(modes, **kwargs), batch_for(modes)
    assert len(channel_sets(model)) == number
    other = shuffled(model)
    assert differing(model, other) > number
    torch.testing.assert_close(other(x), model(x), rtol=1e-9, atol=1e-12)
    assert differing(nm.match_channels(other, model), model) == 0


@every_model
def test_the_barrier_of_a_permuted_copy_is_zero_after_matching(modes, kwargs, number):
    model, x = fno(modes, **kwargs), batch_for(modes)
    y, other = model(x).detach(), shuffled(model)

    def loss(net):
        return (net(x) - y).square().mean().item()

    before = copy.deepcopy(other)
    assert nm.loss_barrier(model, other, loss).height > 1e-8
    matched = nm.match_channels(other, model)
    assert nm.loss_barrier(model, matched, loss).height < 1e-20
    assert differing(other, before) == 0


def test_matching_raises_the_inner_product_and_keeps_the_outputs():
    """For two independent models, at least to the value of the best of 100 random permutations."""
    model, reference, x = fno(seed=0), fno(seed=5), batch_for((6,))
    matched = nm.match_channels(model, reference)
    torch.testing.assert_close(matched(x), model(x), rtol=1e-9, atol=1e-12)

    def product(net):
        pairs = zip(net.parameters(), reference.parameters(), strict=True)
        return sum(torch.vdot(p.detach().ravel(), q.detach().ravel()).real.item() for p, q in pairs)

    assert product(matched) > max(product(shuffled(model, seed)) for seed in range(100))


def test_barrier_of_a_double_well():
    """L(w) = (w² − 1)² between w = −1 and w = 1: both losses are 0 and B = L(0) = 1. From 0 to 2: L = 1, 0, 9, so B = 0."""

    def number(value):
        model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
        torch.nn.init.constant_(model.weight, value)
        return model

    def loss(model):
        return (model.weight.item() ** 2 - 1) ** 2

    barrier = nm.loss_barrier(number(-1.0), number(1.0), loss, points=5)
    assert barrier.positions == [0, 0.25, 0.5, 0.75, 1] and barrier.losses == [0, 0.5625, 1, 0.5625, 0]
    assert barrier.height == 1
    assert nm.loss_barrier(number(0.0), number(2.0), loss).height == 0
    assert nm.loss_barrier(number(-0.5), number(2.0), loss, points=11).height == pytest.approx(0)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: nm.match_channels(torch.nn.Linear(2, 2), fno()), "Linear FNO"),
        (lambda: nm.match_channels(fno(), fno((4,))), "'fno_blocks.convs.0.weight.tensor' (8,8,4) (8,8,3)"),
        (lambda: nm.match_channels(fno(norm="group_norm"), fno()), "'fno_blocks.norm.0.weight'"),
        (lambda: nm.match_channels(fno(factorization="cp", rank=0.5), fno()), "'fno_blocks.convs.0.weight.weights'"),
        (lambda: nm.loss_barrier(fno(), fno(), lambda model: 0.0, points=1), "points 1"),
    ],
)
def test_wrong_input(call, names):
    with refused(names):
        call()
