"""A rule is a name or a function of two sizes: what it may be, what a summary says, what a file keeps."""

import copy
import json
import math
import pickle

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.core.rules import RULES, Size, log_modes
from support.comparing import assert_same

BASE = {"n_modes": (4, 4), "hidden_channels": 8}
KERNEL = "fno_blocks.convs.0.weight.tensor"


def by_blocks(size: Size, base: Size) -> float:
    """κ = (N_base / N)^(1/4), for the sake of a test.

    And a second paragraph.
    """
    return (base.blocks / size.blocks) ** 0.25


def build(seed=0, **kwargs):
    torch.manual_seed(seed)
    kwargs = {"n_modes": (8, 8), "max_n_modes": (8, 8), **kwargs}
    return FNO(in_channels=1, out_channels=1, hidden_channels=16, n_layers=1, **kwargs)


def ruled(rule=by_blocks, seed=0, base=BASE, **kwargs):
    return nm.parametrize(build(seed, **kwargs), base=base, rule=rule)


def test_worked_by_hand():
    """Stored modes 4·3 = 12 → 8·5 = 40; r_in = 2."""
    plain, model, kappa = build(), ruled(), (12 / 40) ** 0.25
    row = nm.summary(model)[KERNEL]
    assert (row.init_mult, row.lr_mult, row.sgd_lr_mult) == pytest.approx((kappa, kappa / 2, 1))
    torch.testing.assert_close(model.get_parameter(KERNEL), plain.get_parameter(KERNEL) * kappa)
    of_none = nm.summary(ruled("none"))
    assert [r.name for r in nm.summary(model) if r.lr_mult != of_none[r.name].lr_mult] == [KERNEL]


def test_at_base_and_when_modes_grow():
    assert_same(ruled(base={}), build())
    model = ruled(n_modes=(4, 4))
    optimizer = nm.MuAdam(model, lr=1e-3)
    model.n_modes = (8, 8)
    optimizer.step()
    assert [g["mode_mult"] for g in optimizer.param_groups if "mode_mult" in g] == pytest.approx([(12 / 40) ** 0.25])
    nm.check_optimizer(model, optimizer)


def test_the_summary_has_its_name_and_its_reason():
    model = ruled()
    head, measured, reason, *table = str(nm.summary(model)).splitlines()
    assert "rule 'by_blocks'" in head and "twice the width" in measured
    assert reason == "by_blocks: κ = (N_base / N)^(1/4), for the sake of a test"
    assert "(by_blocks)" in next(line for line in table if line.startswith(KERNEL))
    for name in RULES:
        assert f"\n{name}: " in str(nm.summary(ruled(name)))


def test_a_registered_function_is_a_rule_by_name(monkeypatch):
    monkeypatch.setitem(RULES, "by-blocks", by_blocks)
    plans = [nm.summary(ruled(rule)) for rule in ("by-blocks", by_blocks)]
    assert plans[0] == plans[1] and plans[0].rule == "by-blocks"
    assert nm.summary(ruled(log_modes)).rule == "log-modes"


def test_a_file_keeps_the_name_and_the_numbers(tmp_path, monkeypatch):
    rule = lambda size, base: (base.blocks / size.blocks) ** 0.25  # noqa: E731
    model = ruled(rule)
    nm.save_plan(model, tmp_path / "plan.json")
    stored = json.loads((tmp_path / "plan.json").read_text())
    assert stored["rule"] == "<lambda>" and stored["function"] is None
    again = nm.load_plan(build(seed=1), tmp_path / "plan.json")
    assert nm.summary(again) == nm.summary(model)
    again.load_state_dict(model.state_dict())
    nm.load_plan(model, tmp_path / "plan.json")  # its own: the function stays
    assert nm.summary(model).function is rule
    # What the function would give at other modes is in no file.
    optimizer = nm.MuAdam(again, lr=1e-3)
    again.n_modes = (4, 4)
    with pytest.raises(nm.MupError, match=r"only the name was saved.*RULES\['<lambda>'\]"):
        optimizer.step()
    monkeypatch.setitem(RULES, "<lambda>", rule)
    optimizer.step()
    assert [g["mode_mult"] for g in optimizer.param_groups if "mode_mult" in g] == pytest.approx([(40 / 12) ** 0.25])


def test_plans_are_compared_by_their_numbers():
    """Two functions of one name that give other numbers, and another rule, are other plans."""
    rules = [lambda size, base, power=power: (base.blocks / size.blocks) ** power for power in (0.25, 0.5)]
    state = ruled(rules[0], seed=1).state_dict()
    ruled(rules[0]).load_state_dict(state)
    for other, what in ((rules[1], "lr ×"), ("none", "rule: 'none' → '<lambda>'")):
        with pytest.raises(nm.MupError, match=what):
            ruled(other).load_state_dict(state)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies(how):
    assert nm.summary(how(ruled())).function is by_blocks
    local = ruled(lambda size, base: 1.0)
    copied = nm.summary(how(local))
    assert copied == nm.summary(local) and (copied.function is None) == (how is not copy.deepcopy)


def none(size, base):
    return 0.5


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (lambda size, base: -1.0, "gives κ = -1.0"),
        (lambda size, base: math.nan, "must return a positive number"),
        (lambda size, base: "1", "must return a positive number"),
        (lambda size, base: 1 / size.blocks, "at base a model must stay as it is: return g\\(base\\) / g\\(size\\)"),
        (lambda size: 1.0, "failed with TypeError"),
        (lambda size, base: size.nothing, "failed with AttributeError"),
        (3, "There is no rule 3"),
        ("logmodes", "did you mean 'log-modes'"),
        (none, "is named 'none', as another rule is"),
    ],
)
def test_what_is_no_rule(rule, match):
    model = build()
    with pytest.raises(nm.MupError, match=match):
        nm.parametrize(model, base=BASE, rule=rule)
    assert_same(model, build())
    assert not nm.is_parametrized(model)
