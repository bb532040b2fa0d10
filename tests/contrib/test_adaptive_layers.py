"""The learned GELU, its optimizer and the adaptive skip, against the source's formulas."""

import copy
import math
import pickle
import warnings

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from support.errors import refused
from support.training import train_small


def adaptive_fno(width=8):
    torch.manual_seed(0)
    model = FNO((8,), 2, 3, width, n_layers=2)
    for part in (model.fno_blocks, model.projection):
        part.non_linearity = nm.AdaGELU()
    blocks = model.fno_blocks
    blocks.fno_skips = torch.nn.ModuleList(map(nm.AdaptiveSkip, blocks.convs, blocks.fno_skips))
    return model


def parametrized(width=8):
    return nm.parametrize(adaptive_fno(width), base=lambda: adaptive_fno(4))


OPTIMIZERS = {
    "adam": lambda model: nm.MuAdam(model, lr=1e-3),
    "sgd": lambda model: nm.MuSGD(model, lr=1e-3),
    "musoap": lambda model: nm.MuSOAP(model, lr=1e-2, adamw_lr=1e-3),
}


def test_gelu_follows_the_formula():
    """At x = 2, α = 0.5, β = 2, γ = 1: αx = 1, and ½ · 2 · (1 + tanh(2 (1 + 1))) = 1 + tanh 4."""
    gelu = nm.AdaGELU()
    for p, value in zip((gelu.alpha, gelu.beta, gelu.gamma), (0.5, 2.0, 1.0), strict=True):
        torch.nn.init.constant_(p, value)
    assert gelu(torch.tensor(2.0)).item() == pytest.approx(1 + math.tanh(4), rel=1e-6)


def test_gelu_starts_as_the_tanh_approximation():
    x = torch.linspace(-6, 6, 1001)
    torch.testing.assert_close(nm.AdaGELU()(x), torch.nn.functional.gelu(x, approximate="tanh"))
    assert (nm.AdaGELU()(x) - torch.nn.functional.gelu(x)).abs().max() < 5e-4


def test_skip_inside_a_block_follows_the_formula():
    """The block's first sum is (1 − σ) f(x) + σ skip(x), with w = ln 3 and σ = 3/4; also in a copy and after pickling."""
    plain = FNO((8,), 2, 3, 8, n_layers=1, use_channel_mlp=False)
    x = torch.randn(2, 8, 16)
    f, skip = plain.fno_blocks.convs[0](x), plain.fno_blocks.fno_skips[0](x)
    blocks = plain.fno_blocks
    blocks.fno_skips[0] = nm.AdaptiveSkip(blocks.convs[0], blocks.fno_skips[0])
    torch.nn.init.constant_(blocks.fno_skips[0].weight, math.log(3))
    for same in (blocks, copy.deepcopy(blocks), pickle.loads(pickle.dumps(blocks))):
        torch.testing.assert_close(same(x), 0.25 * f + 0.75 * skip)
        torch.nn.init.constant_(same.fno_skips[0].weight, 100.0)  # each copy reads its own weight
        torch.testing.assert_close(same(x), skip)
        torch.nn.init.constant_(same.fno_skips[0].weight, math.log(3))


def test_learned_parameters_keep_the_base_rate_at_every_width():
    for width in (8, 32):
        rows = {row.name: row for row in nm.summary(parametrized(width)).rows}
        learned = [name for name in rows if name.endswith(("alpha", "beta", "gamma", "fno_skips.0.weight"))]
        assert {(rows[name].lr_mult, rows[name].init_mult) for name in learned} == {(1, 1)} and len(learned) == 7


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_activations_have_their_own_optimizer_at_ten_times_the_rate(build):
    model = parametrized()
    optimizer = build(model)
    everything = {p for group in optimizer.param_groups for p in group["params"]}
    activations = nm.activation_optimizer(model, optimizer)
    own, rest = ({p for group in o.param_groups for p in group["params"]} for o in (activations, optimizer))
    assert own == {p for name, p in model.named_parameters() if name.endswith(("alpha", "beta", "gamma"))}
    assert rest == everything - own
    assert [group["lr"] for group in activations.param_groups] == [pytest.approx(1e-2)]
    before = copy.deepcopy(model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_small(model, optimizer, range(2))
        activations.step()
    assert all(not torch.equal(before[name], p) for name, p in model.named_parameters())


@pytest.mark.parametrize("used", [False, True])
def test_activation_optimizer_of_the_wrong_optimizer(used):
    model = parametrized()
    optimizer = nm.MuAdam(model)
    if used:
        train_small(model, optimizer, [0])
    else:
        nm.activation_optimizer(model, optimizer)
    with refused("step" if used else "AdaGELU FNO"):
        nm.activation_optimizer(model, optimizer)
