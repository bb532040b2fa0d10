"""SFNO and LocalNO, which need torch_harmonics."""

import math

import pytest
import torch

import neuralop_mup as nm
from support.case_checks import check_case
from support.cases import BY_NAME, FACTORIZATIONS, SPHERE, SPHERE_CASES
from support.errors import refused

pytestmark = pytest.mark.skipif(not SPHERE, reason="torch_harmonics is not installed")


@pytest.mark.parametrize("case", SPHERE_CASES, ids=lambda case: case.name)
def test_every_check_of_a_case(case, tmp_path):
    check_case(case, tmp_path)


@pytest.mark.parametrize("factorization", ["dense", *FACTORIZATIONS])
def test_spherical_kernels_count_only_degrees(factorization):
    """n_modes (4, 4) → (8, 8): degrees L = 4 → 8, κ = √(ln 4 / ln 8) = √(2/3), whatever the orders are."""
    case = BY_NAME[f"sfno_{factorization}"]
    plans = [
        nm.summary(nm.parametrize(case.build(), {"hidden_channels": 8, "n_modes": (4, m)}, rule))
        for m, rule in ((4, "log-modes"), (8, "log-modes"), (4, "none"))
    ]
    key = "fno_blocks.convs.0.weight." + ("tensor" if factorization == "dense" else "factors.factor_1")
    assert plans[0] == plans[1]
    assert plans[0][key].lr_mult / plans[2][key].lr_mult == pytest.approx(math.sqrt(2 / 3))


def test_an_untied_alias_is_refused():
    """The finite-difference stencil of LocalNO is one tensor under two names."""
    model = BY_NAME["local_no"].build()
    conv = model.local_no_blocks.differential[0]
    conv.weight = torch.nn.Parameter(conv.weight.detach().clone())
    with refused("conv.weight"):
        nm.parametrize(model, base=BY_NAME["local_no"].base)
