"""PhysicsNeMo's FNO and AFNO, on small models with their layout."""

import pytest
import torch
from torch import nn

import neuralop_mup as nm
from support import like_physicsnemo
from support.cases import BY_NAME
from support.errors import refused
from support.slopes import batches_of, sized, steepest

FNO, AFNO = BY_NAME["like_physicsnemo_fno_2d"], BY_NAME["like_physicsnemo_afno"]


def plan_of(case, rule):
    return nm.summary(nm.parametrize(case.build(), base=case.base, rule=rule))


def test_plan_of_an_fno():
    """Width 8 → 24, r = 3, worked out by hand.

    Kernel: U[0, 1/(in·out)) falls by 9. Its entries have one sign, so that a sum over inputs grows with their number and
    the norm stays if entries fall by 3: init × 9/3 = 3, lr × 1/3.
    Lifting, 4 → 4 becomes 4 → 12 (half the width; 2 channels and 2 coordinates): Glorot's √(2/(4+4)) becomes √(2/(4+12)),
    and an input layer keeps its size: init × √(16/8) = 1.41421.
    Decoder, width → 32, which stays: Glorot's √(2/(8+32)) becomes √(2/(24+32)), a readout falls by 3:
    init × √(56/40)/3 = 0.394405, lr × 1/3. What follows it does not grow.
    Skips are hidden layers as torch draws them: init × 1, lr × 1/3; their bias falls as 1/√r and is brought back: × √3.
    """
    plan = plan_of(FNO, "none")
    expected = {
        "spec_encoder.spconv_layers.0.weights2": ("spectral", 3.0, 1 / 3),
        "spec_encoder.lift_network.0.conv.weight": ("input", 2**0.5, 1.0),
        "spec_encoder.lift_network.0.conv.bias": ("vector", 1.0, 1.0),
        "spec_encoder.lift_network.2.conv.weight": ("hidden", 1.0, 1 / 3),
        "spec_encoder.conv_layers.1.weight": ("hidden", 1.0, 1 / 3),
        "spec_encoder.conv_layers.1.bias": ("vector", 3**0.5, 1.0),
        "decoder_net.layers.0.linear.weight": ("readout", 0.394405, 1 / 3),
        "decoder_net.final_layer.linear.weight": ("input", 1.0, 1.0),
    }
    for name, (role, init, lr) in expected.items():
        row = plan[name]
        assert (row.role, row.init_mult, row.lr_mult) == (role, pytest.approx(init, rel=1e-5), pytest.approx(lr)), name


def test_modes_are_counted_by_quadrant():
    """K = 3, 3 → 6, 5 stored entries of one sign: κ = √(2 log 3 / (log 6 + log 5)) = 0.803751."""
    row = plan_of(FNO, "log-modes")["spec_encoder.spconv_layers.0.weights1"]
    assert (row.size.modes, row.base_size.modes, row.size.blocks) == ((6, 5), (3, 3), 30)
    assert (row.init_mult, row.lr_mult) == pytest.approx((0.803751 * 3, 0.803751 / 3), rel=1e-5)


def test_plan_of_an_afno():
    """Blocks of 2 → 6 channels, r = 3. Matrices have std 0.02 at every size: init × 3^-1/2, for the head × 1/3."""
    plan = plan_of(AFNO, "operator-norm")
    expected = {
        **dict.fromkeys(("filter.w1", "filter.w2", "mlp.fc1.weight", "mlp.fc2.weight"), (3**-0.5, 1 / 3)),
        **dict.fromkeys(("filter.b1", "norm1.weight"), (1, 1)),
    }
    expected = {f"blocks.1.{name}": numbers for name, numbers in expected.items()}
    expected |= {"head.weight": (1 / 3, 1 / 3), "pos_embed": (1, 1), "patch_embed.proj.bias": (1, 1)}
    for name, numbers in expected.items():
        assert (plan[name].init_mult, plan[name].lr_mult) == pytest.approx(numbers), name
        assert (plan[name].role == "vector") == (numbers == (1, 1)), name


@pytest.mark.parametrize("case", [FNO, AFNO], ids=lambda case: case.name)
@pytest.mark.parametrize(("rule", "least", "most"), [("none", -0.3, 0.3), ("standard", 0.5, 2)])
def test_updates_neither_grow_nor_vanish_with_width(case, rule, least, most):
    build = sized(case, "width", rule, (16,))
    check = nm.coord_check(build, (16, 64), batches_of(case, 3), lr=2e-3, steps=(1,), seeds=3)
    assert least < steepest(check, 1)["slope"] < most


# A subclass in a user's module.
Mine = type("Mine", (like_physicsnemo.FNO,), {})
Mine.__module__ = "my_project.models"


def test_subclasses_are_recognized_and_other_models_are_not():
    nm.parametrize(Mine(1, 1, latent_channels=16, padding=0), base={"latent_channels": 8})
    Stranger = type("FNO", (nn.Linear,), {"__module__": "elsewhere.physicsnemo"})
    assert nm.summary(nm.parametrize(Stranger(3, 2), base=lambda: Stranger(2, 2)))["weight"].layer == "FNO"  # a linear layer


def test_models_that_do_not_fit_are_refused():
    frozen, extended = FNO.build(), FNO.build()
    frozen.spec_encoder.spconv_layers[0].weights1.requires_grad_(False)
    extended.decoder_net.layers[0].register_parameter("scale", nn.Parameter(torch.ones(1)))  # as weight factorization does
    fewer_blocks = like_physicsnemo.AFNO([16, 16], 2, 3, [4, 4], 8, 2, num_blocks=2)
    for model, base, names in (
        (FNO.build(), {"hidden_channels": 8}, "hidden_channels"),
        (AFNO.build(), fewer_blocks, "filter.w1"),
        (extended, FNO.build_base, "decoder_net.layers.0.scale"),
        (frozen, FNO.base, "weights1"),
    ):
        with refused(names):
            nm.parametrize(model, base=base)
