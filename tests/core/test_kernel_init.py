"""``init_mult["kernel"]``: the initial size of Fourier kernels, which is small without a base."""

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.lab.training import FNOs
from support.cases import MODEL_CASES, PHYSICSNEMO_CASES
from support.comparing import assert_same
from support.errors import of_category
from support.models import KERNEL

SMALL = {"kernel": 0.1}


def fno(n_modes=(16, 16), width=32, **kwargs):
    torch.manual_seed(0)
    return FNO(n_modes, 1, 1, width, n_layers=2, **kwargs)


@pytest.mark.parametrize("rule", ("none", "log-modes", "standard"))
@pytest.mark.parametrize("factorization", (None, "Tucker", "CP", "TT"))
def test_a_small_kernel_is_a_tenth_of_the_default_kernel(factorization, rule):
    def parametrized(**kwargs):
        model = fno((6, 6), 16, factorization=factorization, rank=0.5)
        return nm.parametrize(model, base={"hidden_channels": 8}, rule=rule, **kwargs)

    default, small = parametrized(), parametrized(init_mult=SMALL)
    kernels = [model.fno_blocks.convs[0].weight.to_tensor().detach() for model in (small, default)]
    torch.testing.assert_close(kernels[0], kernels[1] * 0.1)
    changed = [n for (n, a), b in zip(default.named_parameters(), small.parameters(), strict=True) if not torch.equal(a, b)]
    assert len(changed) == 2, changed  # one tensor of each of the two layers
    groups = [[g["lr"] for g in nm.MuAdam(m, lr=0.01).param_groups] for m in (default, small)]
    assert groups[0] == groups[1]


def test_at_the_reference_size_only_kernels_change():
    plain, model = fno(), nm.parametrize(fno())
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q * (0.1 if nm.summary(model)[name].role == "spectral" else 1.0))
    assert {group["lr"] for group in nm.MuAdam(model, lr=3e-3).param_groups} == {3e-3}
    for settings in ({"init_mult": {"kernel": 1}}, {"rule": "standard"}):
        assert_same(nm.parametrize(fno(), **settings), plain)


@pytest.mark.parametrize("form", ["mapping", "model", "function", "file"])
def test_a_base_of_the_reference_size_is_as_any_other(form, tmp_path):
    """Base n_modes of 14, 16 and 18 gave kernels × 0.78, × 0.081 and × 0.83."""
    mults = []
    for n in (14, 16, 18):
        base = fno((n, n))
        nm.save_base_shapes(base, tmp_path / "base.yaml")
        forms = {"model": base, "function": lambda n=n: fno((n, n)), "file": tmp_path / "base.yaml"}
        base = forms.get(form, {"n_modes": (n, n), "hidden_channels": 32})
        mults.append(nm.summary(nm.parametrize(fno((32, 32)), base, "log-modes"))[KERNEL].init_mult)
    # κ = √(log K_base / log K): log 7 = 1.9459, log 8 = 2.0794, log 9 = 2.1972, log 16 = 2.7726.
    assert mults == pytest.approx([0.8378, 0.8660, 0.8902], abs=1e-4)
    without = nm.summary(nm.parametrize(fno((32, 32)), rule="log-modes"))
    assert without[KERNEL].init_mult == pytest.approx(0.8660, abs=1e-4) and without.init_mult == {}


def test_a_model_below_the_reference_size_raises_no_warning(recwarn):
    """The reference size is not a tuned proxy: its learning rate is meant for every size."""
    model = nm.parametrize(fno((8, 8), 16))
    assert nm.summary(model)["fno_blocks.fno_skips.0.conv.weight"].lr_mult == 2.0 and not of_category(recwarn)


@pytest.mark.parametrize("case", [*MODEL_CASES, *PHYSICSNEMO_CASES], ids=lambda case: case.name)
def test_every_model_has_a_reference_size(case):
    model = nm.parametrize(case.build())
    assert "reference size" in nm.summary(model).at_base
    nm.MuSOAP(model, steps=100)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({}, SMALL), ({"init_mult": {}}, {}), ({"optimizer": "adam"}, {}), ({"rule": "standard"}, {})],
)
def test_searches_with_matrix_optimizers_start_with_small_kernels(arguments, expected, tmp_path):
    x = torch.randn(100, 1, 8)
    sizes = {"base": {"hidden_channels": 4, "n_modes": (4,)}, "target": {"hidden_channels": 8, "n_modes": (4,)}}
    how = {"space": {"lr": [0.01]}, "epochs": 1, "n_workers": 1, "progress": False, "folder": tmp_path / "out"}
    tuned = nm.tune(FNOs(1, 1, 1), (x, x), **sizes, **how, **arguments)
    assert nm.summary(tuned.model).init_mult == expected
