"""At base shapes the model is bit for bit the standard one: weights, learning rates, training steps."""

import neuralop.training
import pytest
import torch
from cases import BY_NAME
from support import train

import neuralop_mup as nm
from neuralop_mup.core.rules import RULES


def _assert_same_weights(a, b):
    assert a.state_dict().keys() == b.state_dict().keys()
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q), name


def test_at_base_nothing_changes(case):
    plain = case.build()
    for rule in RULES:
        mup = nm.parametrize(case.build(), base=case.same, rule=rule)
        assert type(mup) is type(plain), rule
        _assert_same_weights(plain, mup)
        groups = nm.param_groups(mup, lr=3e-3, weight_decay=0.1)
        assert {(g["lr"], g["lr_mult"], g["weight_decay"]) for g in groups} == {(3e-3, 1, 0.1)}, rule
        # Kernels whose modes may grow have groups of their own, so that they can leave the others.
        assert len(groups) == 1 + len({g["name"] for g in groups if "mode_mult" in g}), rule


def test_ten_steps_at_base(case):
    plain, mup = case.build(), nm.parametrize(case.build(), base=case.same)
    train(case, plain, torch.optim.Adam(plain.parameters(), lr=3e-3))
    train(case, mup, nm.MuAdam(mup, lr=3e-3))
    _assert_same_weights(plain, mup)
    assert any(not torch.equal(p, q) for p, q in zip(plain.parameters(), case.build().parameters(), strict=True))


OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, nm.MuAdamW, {"weight_decay": 0.1}),
    "neuralop AdamW": (
        neuralop.training.AdamW,
        lambda m, **kw: nm.MuAdamW(m, impl=neuralop.training.AdamW, **kw),
        {"weight_decay": 0.1},
    ),
    "SGD": (torch.optim.SGD, nm.MuSGD, {"momentum": 0.9, "weight_decay": 0.1}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("key", ["1d", "2d", "separable"])
def test_ten_steps_other_optimizers(key, name):
    case, (stock, ours, kwargs) = BY_NAME[key], OPTIMIZERS[name]
    plain, mup = case.build(), nm.parametrize(case.build(), base=case.same)
    train(case, plain, stock(plain.parameters(), lr=3e-3, **kwargs))
    optimizer = ours(mup, lr=3e-3, **kwargs)
    assert isinstance(optimizer, stock)
    train(case, mup, optimizer)
    _assert_same_weights(plain, mup)


def test_standard_rule_away_from_base_is_the_stock_model(case):
    mup = nm.parametrize(case.build(), base=case.base, rule="standard")
    _assert_same_weights(case.build(), mup)
    (group,) = nm.param_groups(mup, lr=3e-3)
    assert group["lr"] == 3e-3


def test_building_the_base_does_not_touch_the_random_state(case):
    model = case.build()
    before = torch.get_rng_state()
    nm.parametrize(model, base=case.base)
    assert torch.equal(before, torch.get_rng_state())
