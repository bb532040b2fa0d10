"""A function of two sizes as a rule: its learning rates, its name in summaries and files, and functions that are refused."""

import json
import pickle

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.core.rules import RULES, log_modes
from support.comparing import assert_same
from support.errors import refused
from support.models import KERNEL

BASE = {"n_modes": (4, 4), "hidden_channels": 8}
KAPPA = (12 / 40) ** 0.25  # 4·3 = 12 stored modes at base, 8·5 = 40 here


def by_blocks(size, base):
    """κ = (N_base / N)^(1/4), for a test.

    And a second paragraph.
    """
    return (base.blocks / size.blocks) ** 0.25


def build(seed=0, **kwargs):
    torch.manual_seed(seed)
    kwargs = {"n_modes": (8, 8), "max_n_modes": (8, 8), **kwargs}
    return FNO(in_channels=1, out_channels=1, hidden_channels=16, n_layers=1, **kwargs)


def ruled(rule=by_blocks, seed=0, base=BASE, **kwargs):
    return nm.parametrize(build(seed, **kwargs), base=base, rule=rule)


def test_multipliers_by_hand():
    plain, model = build(), ruled()
    row = nm.summary(model)[KERNEL]
    assert (row.init_mult, row.lr_mult, row.sgd_lr_mult) == pytest.approx((KAPPA, KAPPA / 2, 1))
    torch.testing.assert_close(model.get_parameter(KERNEL), plain.get_parameter(KERNEL) * KAPPA)
    assert_same(ruled(base={}), plain)
    width_only = nm.summary(ruled("none"))
    assert [r.name for r in nm.summary(model) if r.lr_mult != width_only[r.name].lr_mult] == [KERNEL]
    assert "(N_base / N)^(1/4)" in str(nm.summary(model))


def test_a_registered_function_is_a_rule_by_name(monkeypatch):
    monkeypatch.setitem(RULES, "by-blocks", by_blocks)
    assert nm.summary(ruled("by-blocks")) == nm.summary(ruled(by_blocks))
    known = nm.summary(ruled(log_modes))
    assert (known.rule, known.function, known.mode_rule) == ("log-modes", None, "log-modes")


def test_a_file_keeps_the_name_and_the_numbers(tmp_path, monkeypatch):
    rule = lambda size, base: (base.blocks / size.blocks) ** 0.25  # noqa: E731
    model, path = ruled(rule), tmp_path / "plan.json"
    nm.save_plan(model, path)
    stored = json.loads(path.read_text())
    assert stored["rule"] == "<lambda>" and stored["function"] is None
    again = pickle.loads(pickle.dumps(nm.load_plan(build(seed=1), path)))
    assert nm.summary(again) == nm.summary(model)
    again.load_state_dict(model.state_dict())
    nm.load_plan(model, path)
    assert nm.summary(model).function is rule  # a model keeps its function when its own plan is loaded
    # The file does not say what the function returns at other modes.
    optimizer = nm.MuAdam(again, lr=1e-3)
    again.n_modes = (4, 4)
    with refused("RULES['<lambda>']"):
        optimizer.step()
    monkeypatch.setitem(RULES, "<lambda>", rule)
    optimizer.step()
    assert [g["mode_mult"] for g in optimizer.param_groups if "mode_mult" in g] == pytest.approx([1 / KAPPA])


def test_plans_are_compared_by_their_numbers():
    """Two functions with the same name and other numbers are two rules."""
    rules = [lambda size, base, power=power: (base.blocks / size.blocks) ** power for power in (0.25, 0.5)]
    state = ruled(rules[0], seed=1).state_dict()
    ruled(rules[0]).load_state_dict(state)
    for other, names in ((rules[1], KERNEL), ("none", "'none' '<lambda>'")):
        with refused(names):
            ruled(other).load_state_dict(state)


def none(size, base):
    return 1.0


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        (none, "'none'"),  # the name of another rule
        (lambda size, base: -1.0, "'<lambda>' -1.0"),
        (lambda size, base: 1 / size.blocks, "'<lambda>' 0.0833333"),  # not 1 at base, where N = 12
        (lambda size: 1.0, "'<lambda>' TypeError"),
        (lambda size, base: size.nothing, "'<lambda>' AttributeError"),
        ("logmodes", "'logmodes' 'log-modes'"),
    ],
)
def test_functions_that_are_no_rule(rule, names):
    model = build()
    with refused(names):
        nm.parametrize(model, base=BASE, rule=rule)
    assert_same(model, build())
