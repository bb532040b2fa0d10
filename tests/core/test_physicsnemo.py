"""PhysicsNeMo's FNO and AFNO, by small models of the same layout; and that these are laid out as PhysicsNeMo's are."""

import pytest
import torch
from torch import nn

import neuralop_mup as nm
from neuralop_mup.errors import MupError
from support import like_physicsnemo
from support.cases import BY_NAME, PHYSICSNEMO_ABSENT
from support.slopes import batches_of, sized, steepest

KINDS = ("fno_1d", "fno_2d", "fno_3d", "afno")
FNO, AFNO = BY_NAME["like_physicsnemo_fno_2d"], BY_NAME["like_physicsnemo_afno"]


def rows(case, rule="none"):
    return nm.summary(nm.parametrize(case.build(), base=case.base, rule=rule))


def test_the_plan_of_an_fno():
    """Width 8 → 24, r = 3, worked out by hand.

    Kernel: U[0, 1/(in·out)) falls by 9. Its entries have one sign, so that a sum over inputs grows with their number and
    the norm stays if entries fall by 3: init × 9/3 = 3, lr × 1/3.
    Lifting, 4 → 4 becomes 4 → 12 (half the width; 2 channels and 2 coordinates): Glorot's √(2/(4+4)) becomes √(2/(4+12)),
    and an input layer keeps its size: init × √(16/8) = 1.41421.
    Decoder, width → 32, which stays: Glorot's √(2/(8+32)) becomes √(2/(24+32)), a readout falls by 3:
    init × √(56/40)/3 = 0.394405, lr × 1/3. What follows it does not grow.
    Skips are hidden layers as torch draws them: init × 1, lr × 1/3; their bias falls as 1/√r and is brought back: × √3.
    """
    plan = rows(FNO)
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
    row = rows(FNO, "log-modes")["spec_encoder.spconv_layers.0.weights1"]
    assert (row.size.modes, row.base_size.modes, row.size.blocks) == ((6, 5), (3, 3), 30)
    assert row.lr_mult == pytest.approx(0.803751 / 3, rel=1e-5)
    assert row.init_mult == pytest.approx(0.803751 * 3, rel=1e-5)


def test_the_plan_of_an_afno():
    """Blocks of 2 → 6 channels, r = 3. Matrices are drawn at 0.02, so the whole rule is left: × 3^-1/2, head × 1/3."""
    plan = rows(AFNO, "operator-norm")
    for name in ("filter.w1", "filter.w2", "mlp.fc1.weight", "mlp.fc2.weight"):
        row = plan[f"blocks.1.{name}"]
        assert (row.init_mult, row.lr_mult) == (pytest.approx(3**-0.5), pytest.approx(1 / 3)), name
    assert plan["head.weight"].init_mult == plan["head.weight"].lr_mult == pytest.approx(1 / 3)
    for name in ("pos_embed", "blocks.0.filter.b1", "blocks.0.norm1.weight", "patch_embed.proj.bias"):
        assert (plan[name].role, plan[name].init_mult, plan[name].lr_mult) == ("vector", 1, 1), name


@pytest.mark.parametrize("case", [FNO, AFNO], ids=lambda case: case.name)
def test_updates_neither_grow_nor_vanish_with_width(case):
    batches, slopes = batches_of(case, 3), {}
    for rule in ("standard", "none"):
        build = sized(case, "width", rule, (16,))
        check = nm.coord_check(build, (16, 32, 64), batches, lr=2e-3, steps=(1,), seeds=4)
        slopes[rule] = steepest(check, "update", 1)["slope"]
    assert abs(slopes["none"]) < 0.3 and slopes["standard"] > 0.5, slopes


# A user's subclass, in the user's module.
Mine = type("Mine", (like_physicsnemo.FNO,), {})
Mine.__module__ = "my_project.models"


def test_subclasses_are_known_and_other_models_are_not():
    nm.parametrize(Mine(1, 1, latent_channels=16, padding=0), base={"latent_channels": 8})
    Stranger = type("FNO", (nn.Linear,), {"__module__": "elsewhere.physicsnemo"})
    assert nm.summary(nm.parametrize(Stranger(3, 2), base=lambda: Stranger(2, 2)))["weight"].layer == "FNO"  # a linear layer


def fno(width, change=lambda model: None):
    change(model := like_physicsnemo.FNO(1, 1, latent_channels=width))
    return model


@pytest.mark.parametrize(
    ("build", "base", "match"),
    [
        (lambda: fno(16), {"hidden_channels": 8}, "does not take"),
        (AFNO.build, lambda: like_physicsnemo.AFNO([16, 16], 2, 3, [4, 4], 8, 2, num_blocks=2), "filter.w1"),
        (
            # As weight factorization would add.
            lambda: fno(16, lambda m: m.decoder_net.layers[0].register_parameter("scale", nn.Parameter(torch.ones(1)))),
            lambda: fno(8),
            "different parameters",
        ),
        # By somebody else than PhysicsNeMo.
        (
            lambda: fno(16, lambda m: m.spec_encoder.spconv_layers[0].weights1.requires_grad_(False)),
            {"latent_channels": 8},
            "frozen",
        ),
    ],
)
def test_what_does_not_fit_is_refused(build, base, match):
    with pytest.raises(MupError, match=match):
        nm.parametrize(build(), base=base)


@pytest.mark.skipif(bool(PHYSICSNEMO_ABSENT), reason=str(next(iter(PHYSICSNEMO_ABSENT.values()), "")))
@pytest.mark.parametrize("name", KINDS)
def test_the_small_models_are_laid_out_as_physicsnemo_s(name):
    """The same numbers from the same seed, by the same names, and the same output of them."""
    ours, theirs = BY_NAME[f"like_physicsnemo_{name}"], BY_NAME[f"physicsnemo_{name}"]
    a, b = ours.build(), theirs.build()
    assert {n: p.requires_grad for n, p in a.named_parameters()} == {n: p.requires_grad for n, p in b.named_parameters()}
    torch.testing.assert_close(dict(a.named_parameters()), dict(b.named_parameters()), rtol=0, atol=0)
    x = ours.batch()[0]
    torch.testing.assert_close(a(**x), b(**x), rtol=1e-4, atol=1e-6)
