"""Sizes that neuralop accepts: odd numbers of modes, a single mode, and parameters without numbers."""

import math

import pytest
import torch
from neuralop.layers.spectral_convolution import SpectralConv
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.core.rules import RULES
from support.cases import FACTORIZATIONS
from support.comparing import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
KERNEL = "fno_blocks.convs.0.weight.tensor"
LAYOUTS = {
    "dense": {},
    "separable": {"separable": True},
    "complex_data": {"complex_data": True, "positional_embedding": None},
    **{f: {"factorization": f, "rank": 0.5} for f in FACTORIZATIONS},
}


def build(modes, width=16, **kwargs):
    torch.manual_seed(0)
    return FNO(modes, 2, 3, width, n_layers=1, **kwargs)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_k_is_the_highest_frequency_that_passes(n, axis):
    """Measured on the output of neuralop's convolution, on an even grid of 24 points per axis."""
    modes = (n, 8) if axis == 0 else (8, n)
    noise = torch.randn(1, 1, 24, 24, generator=torch.Generator().manual_seed(0))
    spectrum = torch.fft.rfft2(SpectralConv(1, 1, modes, bias=False)(noise))[0, 0].abs()
    passes = (spectrum > 1e-3 * spectrum.max()).any(1 - axis)
    frequencies = torch.fft.fftfreq(24, 1 / 24) if axis == 0 else torch.arange(13)
    row = nm.summary(nm.parametrize(build(modes), base={}))[KERNEL]
    assert frequencies[passes].abs().max() == row.size.modes[axis] == n // 2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_odd_modes_under_every_rule(layout, rule):
    """At base nothing changes. Elsewhere multipliers depend on K = n // 2, which is the same for n = 9 and 8."""
    kwargs = LAYOUTS[layout]
    assert_same(nm.parametrize(build((7, 5), **kwargs), base={}, rule=rule), build((7, 5), **kwargs))
    odd, even = (
        nm.summary(nm.parametrize(build(modes, **kwargs), base={"n_modes": base, "hidden_channels": 8}, rule=rule)).rows
        for modes, base in (((9, 7), (5, 5)), ((8, 6), (4, 4)))
    )
    assert all(0 < row.lr_mult < 2 and 0 < row.init_mult < 10 for row in odd)
    if rule == "log-modes":
        kappa = math.sqrt(2 * math.log(2) / (math.log(4) + math.log(3)))
        row = next(row for row in odd if row.role == "spectral" and row.size.modes)
        assert (row.size.modes, row.base_size.modes) == ((4, 3), (2, 2))
        assert row.lr_mult * row.size.fan_in / row.base_size.fan_in == pytest.approx(kappa)
    if rule != "operator-norm" and "factorization" not in kwargs:  # this rule, and ranks, depend on the stored modes
        numbers = [[(row.lr_mult, row.init_mult) for row in rows] for rows in (odd, even)]
        torch.testing.assert_close(*numbers)


def test_parameters_without_numbers_are_left_alone():
    """With one hidden channel, its channel MLP has half a channel, which rounds to none. The rest of the model is usual."""
    model = nm.parametrize(build((8, 6), width=1), base={"n_modes": (4, 4)})
    plan = nm.summary(model)
    empty = [name for name, p in model.named_parameters() if p.numel() == 0]
    assert empty == [f"fno_blocks.channel_mlp.0.fcs.{i}" for i in ("0.weight", "0.bias", "1.weight")]
    for name in (*empty, "fno_blocks.channel_mlp.0.fcs.1.bias"):  # the last layer has no inputs
        assert (plan[name].init_mult, plan[name].lr_mult, plan[name].sgd_lr_mult) == (1, 1, 1)
    without = nm.summary(nm.parametrize(build((8, 6), width=1, use_channel_mlp=False), base={"n_modes": (4, 4)}))
    assert plan[KERNEL].lr_mult == without[KERNEL].lr_mult < 1
    nm.check_optimizer(model, nm.MuAdam(model, lr=1e-2))
