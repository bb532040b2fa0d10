"""``init_mult["kernel"]``: the size at which Fourier kernels start, small at the reference size."""

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.lab.training import FNOs
from support.cases import BY_NAME, CASES

BASE = {"hidden_channels": 8}
SMALL = {"kernel": 0.1}


def built(factorization=None, **kwargs):
    torch.manual_seed(0)
    model = FNO((6, 6), 1, 1, 16, n_layers=2, factorization=factorization, rank=0.5)
    return nm.parametrize(model, base=BASE, **kwargs)


def fno(n_modes=(16, 16), width=32, seed=0):
    torch.manual_seed(seed)
    return FNO(n_modes, 1, 1, width, n_layers=2)


def kernel(model):
    return model.fno_blocks.convs[0].weight.to_tensor().detach()


@pytest.mark.parametrize("rule", ("none", "log-modes", "standard"))
@pytest.mark.parametrize("factorization", (None, "Tucker", "CP", "TT"))
def test_a_small_kernel_is_a_tenth_of_the_default_one_as_a_whole(factorization, rule):
    default, small = built(factorization, rule=rule), built(factorization, rule=rule, init_mult=SMALL)
    torch.testing.assert_close(kernel(small), kernel(default) * 0.1)
    changed = [n for (n, a), b in zip(default.named_parameters(), small.parameters(), strict=True) if not torch.equal(a, b)]
    assert len(changed) == 2, changed  # one tensor of each of the two layers
    groups = [[g["lr"] for g in nm.MuAdam(m, lr=0.01).param_groups] for m in (default, small)]
    assert groups[0] == groups[1]


# ---------------------------------------------------------------------------------------------- the reference size


def test_at_the_reference_size_only_kernels_change():
    plain, model = fno(), nm.parametrize(fno())
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q * (0.1 if nm.summary(model)[name].role == "spectral" else 1.0))
    assert {group["lr"] for group in nm.MuAdam(model, lr=3e-3).param_groups} == {3e-3}
    for settings in ({"init_mult": {"kernel": 1}}, {"rule": "standard"}):
        model = nm.parametrize(fno(), **settings)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True))


def test_a_model_that_is_smaller_is_taken_without_a_word(recwarn):
    """The reference is no proxy that was tuned: a learning rate is meant at every size."""
    model = nm.parametrize(fno((8, 8), 16))
    assert nm.summary(model)["fno_blocks.fno_skips.0.conv.weight"].lr_mult == 2.0 and not recwarn


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_every_model_of_the_table_takes_the_two_lines(name):
    model = nm.parametrize(BY_NAME[name].build())
    plan = nm.summary(model)
    assert "the reference size" in plan.at_base and "of twice the width" in plan.at_base
    nm.MuSOAP(model, steps=100)


# ------------------------------------------------------------------------------------------------------ in searches


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"optimizer": "soap"}, SMALL),
        ({"optimizer": "soap", "init_mult": {}}, {}),
        ({}, SMALL),
        ({"optimizer": "adam"}, {}),
        ({"optimizer": "adam", "init_mult": SMALL}, SMALL),
        ({"rule": "standard"}, {}),
    ],
)
def test_searches_start_small_with_kernel_optimizers_and_sp_never_does(given, expected, tmp_path):
    x = torch.randn(120, 1, 16)
    sizes = {"base": {"hidden_channels": 4, "n_modes": (4,)}, "target": {"hidden_channels": 8, "n_modes": (4,)}}
    how = {"space": {"lr": [0.01]}, "epochs": 1, "n_workers": 1, "progress": False, "folder": tmp_path / "out"}
    tuned = nm.tune(FNOs(1, 1, 1), (x, x), **sizes, **how, **given)
    assert nm.summary(tuned.model).init_mult == expected
