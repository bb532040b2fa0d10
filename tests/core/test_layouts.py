"""Factorized kernels: multipliers worked out by hand, and the std of the reconstructed kernel."""

import math

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from support.cases import BY_NAME, FACTORIZATIONS
from support.models import parametrized

KERNEL = "fno_blocks.convs.0.weight."
# Width 8 → 32 (r = 4), K 2 → 8: κ = √(ln 2 / ln 8) = √(1/3).
KAPPA = 3**-0.5

# For each factor: (Adam lr, SGD lr, init), all relative to base.
GOLDEN = {
    # Ranks (2, 4, 3) → (8, 8, 6); their product 24 → 384, × 16. Stock std of each of the 4 factors, core included:
    # (1/√H / √∏ranks)^(1/4), so × (1/2 · 1/4)^(1/4) = 2^(-3/4).
    #   core (r_i, r_o, r_m)  sums r_i r_m: 6 → 48, × 8      makes r_o: × 2  init 8^(-1/2) / 2^(-3/4) = 2^(-3/4)
    #   in   (H, r_i)         sums H: × 4                    makes r_i: × 4  init 4^(-1/2) / 2^(-3/4) = 2^(-1/4)
    #   out  (H, r_o)         sums r_o: 4 → 8, × 2; has κ    makes H: × 4    init κ 2^(-1/2) / 2^(-3/4) = κ 2^(1/4)
    #   mode (modes, r_m)     sums nothing                   makes r_m: × 2  init 1 / 2^(-3/4) = 2^(3/4)
    # Together: κ × 1, and the stock kernel goes as 1/√H by itself.
    "tucker": (
        {"rank": (2, 4, 3)},
        {"rank": (8, 8, 6)},
        {
            "core": (1 / 8, 2 / 8, 2**-0.75),
            "factors.factor_0": (1 / 4, 4 / 4, 2**-0.25),
            "factors.factor_1": (KAPPA / 2, 4 / 2, KAPPA * 2**0.25),
            "factors.factor_2": (1, 2, 2**0.75),
        },
    ),
    # Rank 6 → 24, × 4. Stock: (1/√H / √R)^(1/3), × (1/2 · 1/2)^(1/3) = 2^(-2/3); the weights are ones.
    #   weights (R,)       sums nothing               makes R: × 4  init 1
    #   in   (H, R)        sums H: × 4                makes R: × 4  init 2^(-1) / 2^(-2/3) = 2^(-1/3)
    #   out  (H, R)        sums R: × 4; has κ         makes H: × 4  init κ 2^(-1) / 2^(-2/3) = κ 2^(-1/3)
    #   mode (modes, R)    sums nothing               makes R: × 4  init 1 / 2^(-2/3) = 2^(2/3)
    "cp": (
        {"rank": 6},
        {"rank": 24},
        {
            "weights": (1, 4, 1),
            "factors.factor_0": (1 / 4, 4 / 4, 2 ** (-1 / 3)),
            "factors.factor_1": (KAPPA / 4, 4 / 4, KAPPA * 2 ** (-1 / 3)),
            "factors.factor_2": (1, 4, 2 ** (2 / 3)),
        },
    ),
    # Ranks (1, 2, 3, 1) → (1, 8, 6, 1); their product 6 → 48, × 8. Stock: (1/√H / ∏ranks)^(1/3), without the root,
    # × (1/2 · 1/8)^(1/3) = 2^(-4/3). The train runs in → out ← mode.
    #   in   (1, H, r_1)        sums H: × 4                      makes r_1: × 4  init 2^(-1) / 2^(-4/3) = 2^(1/3)
    #   out  (r_1, H, r_2)      sums r_1 r_2: 6 → 48, × 8; κ     makes H: × 4    init κ 8^(-1/2) / 2^(-4/3) = κ 2^(-1/6)
    #   mode (r_2, modes, 1)    sums nothing                     makes r_2: × 2  init 1 / 2^(-4/3) = 2^(4/3)
    # Together κ 2^(3/2), which gives back the √8 that the default init loses on its way.
    "tt": (
        {"rank": (1, 2, 3, 1)},
        {"rank": (1, 8, 6, 1)},
        {
            "factors.factor_0": (1 / 4, 4 / 4, 2 ** (1 / 3)),
            "factors.factor_1": (KAPPA / 8, 4 / 8, KAPPA * 2 ** (-1 / 6)),
            "factors.factor_2": (1, 2, 2 ** (4 / 3)),
        },
    ),
}


def plan_of(factorization, rule):
    """Plan of width 8 → 32 and n_modes 4 → 16, with ranks as above."""
    at_base, at_target, _ = GOLDEN.get(factorization, ({}, {}, {}))
    model = FNO((16,), 1, 1, 32, n_layers=1, factorization=factorization, **at_target)
    return nm.summary(nm.parametrize(model, {"n_modes": (4,), "hidden_channels": 8, **at_base}, rule))


@pytest.mark.parametrize("factorization", FACTORIZATIONS)
def test_golden_multipliers(factorization):
    plan, expected = plan_of(factorization, "log-modes"), GOLDEN[factorization][2]
    rows = {row.name.removeprefix(KERNEL): row for row in plan.rows if row.name.startswith(KERNEL)}
    assert rows.keys() == expected.keys()
    for name, row in rows.items():
        assert row.role == "spectral"
        assert (row.lr_mult, row.sgd_lr_mult, row.init_mult) == pytest.approx(expected[name], rel=1e-12), name
    bias = plan["fno_blocks.convs.0.bias"]  # drawn at the kernel's target std, 1/√H
    assert (bias.lr_mult, bias.init_mult) == pytest.approx((1, 2))


@pytest.mark.parametrize("factorization", FACTORIZATIONS)
def test_operator_norm_of_a_factorized_kernel_is_that_of_the_dense_kernel(factorization):
    """κ is that of the dense kernel: width 8 → 32, stored modes 3 → 9."""
    kappa = [
        plan_of(name, "operator-norm")[KERNEL + key].lr_mult / plan_of(name, "none")[KERNEL + key].lr_mult
        for name, key in ((factorization, "factors.factor_1"), (None, "tensor"))
    ]
    assert kappa[0] == pytest.approx(kappa[1])


def rms_of_kernels(build):
    """Root mean square of reconstructed kernels over seeds."""
    kernels = [build(seed).fno_blocks.convs[0].weight.to_tensor().detach() for seed in range(12)]
    return torch.stack(kernels).abs().square().mean().sqrt().item()


LAYOUTS = [f"{f}_{kind}" for f in FACTORIZATIONS for kind in ("factorized", "separable")]


@pytest.mark.parametrize("name", ["2d", "separable", *LAYOUTS, "tt_rank=4", "tucker_fixed_rank_modes"])
def test_reconstructed_kernel_has_the_dense_target_std(name):
    """Dense: κ/√r of base (width 8 → 24); separable: κ of base."""
    case = BY_NAME[name]
    kappa = math.sqrt(math.log(4) / math.log(12))  # K (2, 2) → (4, 3)
    expected = kappa if case.kwargs.get("separable") else kappa * 3**-0.5
    base = rms_of_kernels(case.build_base)
    target = rms_of_kernels(lambda seed: parametrized(case, seed, rule="log-modes"))
    assert target / base == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(("rule", "least", "most"), [("log-modes", -0.35, 0.35), ("standard", 0.7, 2)])
@pytest.mark.parametrize(("factorization", "rank"), [("tucker", 0.4), ("cp", 0.1), ("tt", 0.4), ("tt", (1, 8, 6, 1))])
def test_first_update_does_not_grow_with_width(factorization, rank, rule, least, most):
    """Blocks have only a kernel. Updates stay in μP, and grow as about width^1 under the standard parametrization."""
    x = torch.randn(8, 1, 32, generator=torch.Generator().manual_seed(0)).cumsum(-1) / 4
    kwargs = {"factorization": factorization, "rank": rank, "fno_skip": None, "use_channel_mlp": False}

    def build(width):
        return nm.parametrize(FNO((16,), 1, 1, width, n_layers=2, **kwargs), base={"hidden_channels": 16}, rule=rule)

    batch = {"x": x, "y": x.roll(3, -1).tanh()}
    check = nm.coord_check(build, [16, 64], [batch], lr=5e-3, steps=(1,), seeds=4)
    assert least < max((r["slope"] for r in check.slopes if r["kind"] == "update"), key=abs) < most


@pytest.mark.parametrize(
    ("name", "stored", "kappa"),
    [
        # 1D, n_modes 4 → 16: the last axis is not halved, and still K = 2 → 8.
        ("complex_data_1d", (16, 4), KAPPA),
        # n_modes (4, 4) → (8, 8): each quadrant stores K = 2 → 4 on each axis, κ = √(2 ln 2 / 2 ln 4) = √(1/2). The last
        # axis has the real and the imaginary part.
        ("legacy_dense", (2, 2), math.sqrt(0.5)),
        ("legacy_joint", (2, 2), math.sqrt(0.5)),
    ],
)
def test_kernels_that_store_other_modes(name, stored, kappa):
    plan = nm.summary(parametrized(BY_NAME[name], rule="log-modes"))
    row = next(r for r in plan.rows if r.role == "spectral")
    assert (row.shape[-1], row.base_shape[-1]) == stored
    assert row.lr_mult == pytest.approx(kappa / 3)
