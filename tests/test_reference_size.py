"""Without a base: the size at which default learning rates are meant, and kernels that start small."""

import warnings

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from cases import BY_NAME, CASES

AT_REFERENCE = {"hidden_channels": 32, "n_modes": (16, 16)}


def fno(n_modes=(24, 24), width=48, seed=0):
    torch.manual_seed(seed)
    return FNO(n_modes, 1, 1, width, n_layers=2)


def test_no_base_is_the_reference_size_with_small_kernels():
    ours, theirs = nm.parametrize(fno()), nm.parametrize(fno(), base=AT_REFERENCE, kernel_init="small")
    assert nm.summary(ours) == nm.summary(theirs)
    assert all(torch.equal(p, q) for p, q in zip(ours.parameters(), theirs.parameters(), strict=True))
    text = str(nm.summary(ours))
    assert (
        "base: the reference size: hidden_channels = 32, n_modes = (16, 16); kernels start at a tenth of neuralop's" in text
    )
    assert "the reference size" not in str(nm.summary(theirs))


def test_at_the_reference_size_only_kernels_change():
    plain, model = fno((16, 16), 32), nm.parametrize(fno((16, 16), 32))
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        scale = 0.1 if nm.summary(model)[name].role == "spectral" else 1.0
        torch.testing.assert_close(p, q * scale)
    assert {group["lr"] for group in nm.MuAdam(model, lr=3e-3).param_groups} == {3e-3}


def test_neuralops_own_kernels_and_the_standard_parametrization():
    plain = fno((16, 16), 32)
    for settings in ({"kernel_init": "default"}, {"rule": "standard"}):
        model = nm.parametrize(fno((16, 16), 32), **settings)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True))


def test_a_model_that_is_smaller_is_taken_without_a_word():
    """The reference is no proxy that was tuned: a learning rate is meant at every size."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = nm.parametrize(fno((8, 8), 16))
    rows = {row.name: row.lr_mult for row in nm.summary(model).rows}
    assert rows["fno_blocks.fno_skips.0.conv.weight"] == 2.0


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_every_model_of_the_table_is_taken_or_told_what_to_write(name):
    case = BY_NAME[name]
    model = case.build()
    before = [p.detach().clone() for p in model.parameters()]
    try:
        nm.parametrize(model)
    except nm.MupError as error:
        assert "base" in str(error)
        assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    else:
        assert nm.summary(model).at_base.startswith("the reference size")


def test_what_it_took_is_kept_with_the_weights(tmp_path):
    model = nm.parametrize(fno())
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    nm.save_plan(model, tmp_path / "plan.json")
    again = nm.load_plan(fno(seed=1), tmp_path / "plan.json")
    again.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=False))
    assert nm.summary(again) == nm.summary(model) and nm.summary(again).at_base == nm.summary(model).at_base


def test_uno_is_told_the_line():
    with pytest.raises(nm.MupError, match=r"reference size.*base=lambda: UNO\(…\)"):
        nm.parametrize(BY_NAME["uno"].build())
