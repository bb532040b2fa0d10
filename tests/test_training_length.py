"""Runs that are longer than base's: every learning rate but SGD's goes by √(T_base / T), and nothing else changes."""

import pickle

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup import MupError
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.rules import Size, length_factor, multipliers
from neuralop_mup.optim.binding import bind

LONGER = {"steps": (300, 1200)}  # √(300/1200) = 1/2


def _fno(**kwargs):
    torch.manual_seed(0)
    return nm.parametrize(FNO((8,), 1, 1, 8, n_layers=2), base={"hidden_channels": 8}, **kwargs)


def test_the_factor_by_hand():
    """√(300/1200) = 1/2; beside r_in = 4: 1/4 · 1/2 = 1/8."""
    size, base = Size(64, 64, steps=1200), Size(16, 16, steps=300)
    assert length_factor(size, base) == 0.5
    m = multipliers("hidden", size, base, "none")
    assert (m.adam_lr, m.sgd_lr, m.init) == (1 / 8, 1, multipliers("hidden", Size(64, 64), Size(16, 16), "none").init)
    assert multipliers("hidden", size, base, "standard").adam_lr == 1


def test_every_parameter_and_the_weights_stay():
    plain, model = _fno(), _fno(training=LONGER)
    plan = nm.summary(model)
    assert {row.lr_mult for row in plan.rows} == {0.5} and {row.sgd_lr_mult for row in plan.rows} == {1}
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert "steps 300 at base, 1200 here: every lr × √(300/1200)" in str(plan)
    assert "steps" not in str(nm.summary(plain))
    (group,) = nm.MuAdamW(model, lr=0.01, weight_decay=0.1).param_groups
    # Half the rate in four times as many steps: 0.005 · 0.05 · 1200 = 0.01 · 0.1 · 300.
    assert (group["lr"], group["weight_decay"]) == (0.005, 0.05)
    assert {g["lr"] for g in nm.MuSGD(model, lr=0.01).param_groups} == {0.01}


@pytest.mark.parametrize("optimizer", [nm.MuMuon, nm.MuSOAP])
def test_kernel_optimizers(optimizer):
    """All groups, those of AdamW too: lr · 1/2, and lr · decay over all steps as it was."""
    plain, longer = (optimizer(_fno(training=t), lr=0.02, weight_decay=0.1) for t in (None, LONGER))
    for a, b in zip(plain.param_groups, longer.param_groups, strict=True):
        assert b["lr"] == a["lr"] / 2 and b["weight_decay"] == a["weight_decay"] / 2
    model = _fno(training=LONGER)
    nm.check_optimizer(model, optimizer(model, lr=0.02))


def test_it_is_kept_and_compared(tmp_path):
    model = _fno(training=LONGER)
    plan = nm.summary(model)
    assert Plan.from_json(plan.to_json()) == plan and pickle.loads(pickle.dumps(plan)) == plan
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    again = nm.load_plan(FNO((8,), 1, 1, 8, n_layers=2), tmp_path / "weights.pt")
    assert nm.summary(again) == plan
    with pytest.raises(MupError, match=r"training: \{\} → \{'steps': \(300, 1200\)\}"):
        _fno().load_state_dict(model.state_dict())


def test_standard_and_equal_lengths_scale_nothing():
    assert {row.lr_mult for row in nm.summary(_fno(training=LONGER, rule="standard")).rows} == {1}
    assert {row.lr_mult for row in nm.summary(_fno(training={"steps": (300, 300)})).rows} == {1}
    assert nm.MuSOAP(_fno(training=LONGER, rule="standard"), lr=0.02).param_groups[0]["lr"] == pytest.approx(0.02 * 2**0.5)


def test_modes_that_grow_keep_it():
    model = FNO((4,), 1, 1, 4, n_layers=1, max_n_modes=(16,))
    nm.parametrize(model, base={}, rule="log-modes", training=LONGER)
    model.fno_blocks.convs[0].n_modes = (8,)  # K = 2 → 4: √½
    assert bind(model).plan["fno_blocks.convs.0.weight.tensor"].lr_mult == pytest.approx(0.5**0.5 / 2)


@pytest.mark.parametrize(
    ("training", "match"),
    [
        ({"steps": (3000, 300)}, "trains longer than this run"),
        ({"steps": 300}, "two numbers"),
        ({"steps": (0, 300)}, "1 or more"),
        ({"steps": (0.5, 300)}, "whole number"),
        ({"epochs": (1, 2)}, "over steps alone"),
        (300, "give a dict"),
    ],
)
def test_bad_input(training, match):
    model = FNO((8,), 1, 1, 8, n_layers=2)
    with pytest.raises(MupError, match=match):
        nm.parametrize(model, base={}, training=training)
    assert not nm.is_parametrized(model)
