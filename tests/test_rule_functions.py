"""A rule is a name or a function of two sizes: what it may be, what a summary says, what a file keeps."""

import copy
import json
import math
import pickle

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.core.rules import RULES, Size, log_modes, mode_factor

BASE = {"n_modes": (4, 4), "hidden_channels": 8}
KERNEL = "fno_blocks.convs.0.weight.tensor"


def by_blocks(size: Size, base: Size) -> float:
    """κ = (N_base / N)^(1/4), for the sake of a test.

    And a second paragraph.
    """
    return (base.blocks / size.blocks) ** 0.25


def build(seed=0, **kwargs):
    torch.manual_seed(seed)
    return FNO((8, 8), 1, 1, 16, n_layers=1, **{"max_n_modes": (8, 8), **kwargs})


def by_name(monkeypatch, name, function):
    monkeypatch.setitem(RULES, name, function)


def test_worked_by_hand():
    """Stored modes 4·3 = 12 → 8·5 = 40; r_in = 2."""
    plain, model = build(), nm.parametrize(build(), base=BASE, rule=by_blocks)
    kappa = (12 / 40) ** 0.25
    row = nm.summary(model)[KERNEL]
    assert (row.init_mult, row.lr_mult, row.sgd_lr_mult) == pytest.approx((kappa, kappa / 2, 1))
    ours, theirs = (dict(m.named_parameters())[KERNEL] for m in (model, plain))
    torch.testing.assert_close(ours, theirs * kappa)
    others = nm.summary(nm.parametrize(build(), base=BASE, rule="none")).rows
    assert [r.lr_mult for r in nm.summary(model).rows if r.name != KERNEL] == [r.lr_mult for r in others if r.name != KERNEL]


def test_at_base_and_when_modes_grow():
    plain, model = build(), nm.parametrize(build(), base={}, rule=by_blocks)
    assert all(map(torch.equal, plain.parameters(), model.parameters()))
    model = nm.parametrize(FNO((4, 4), 1, 1, 16, n_layers=1, max_n_modes=(8, 8)), base=BASE, rule=by_blocks)
    optimizer = nm.MuAdam(model, lr=1e-3)
    model.n_modes = (8, 8)
    optimizer.step()
    assert [g["mode_mult"] for g in optimizer.param_groups if "mode_mult" in g] == pytest.approx([(12 / 40) ** 0.25])
    nm.check_optimizer(model, optimizer)


def test_the_summary_has_its_name_and_its_reason():
    model = nm.parametrize(build(), base=BASE, rule=by_blocks)
    head, reason, *table = str(nm.summary(model)).splitlines()
    assert "rule 'by_blocks'" in head and reason == "by_blocks: κ = (N_base / N)^(1/4), for the sake of a test"
    assert "(by_blocks)" in next(line for line in table if line.startswith(KERNEL))
    for name in RULES:
        text = str(nm.summary(nm.parametrize(build(), base=BASE, rule=name)))
        assert f"\n{name}: " in text
    assert "operator-norm: κ = g_base / g, g = E max‖block‖ / √in" in str(nm.summary(nm.parametrize(build(), base=BASE)))


def test_a_registered_function_is_a_rule_by_name(monkeypatch):
    monkeypatch.setitem(RULES, "by-blocks", by_blocks)
    plans = [nm.summary(nm.parametrize(build(), base=BASE, rule=rule)) for rule in ("by-blocks", by_blocks)]
    assert plans[0] == plans[1] and plans[0].rule == "by-blocks"
    assert nm.summary(nm.parametrize(build(), base=BASE, rule=log_modes)).rule == "log-modes"


def test_a_file_keeps_the_name_and_the_numbers(tmp_path):
    rule = lambda size, base: (base.blocks / size.blocks) ** 0.25  # noqa: E731
    model = nm.parametrize(build(), base=BASE, rule=rule)
    nm.save_plan(model, tmp_path / "plan.json")
    stored = json.loads((tmp_path / "plan.json").read_text())
    assert stored["rule"] == "<lambda>" and stored["function"] is None
    again = nm.load_plan(build(seed=1), tmp_path / "plan.json")
    assert nm.summary(again) == nm.summary(model)
    lrs = [[(g["name"], g["lr"]) for g in nm.param_groups(m, 1e-3)] for m in (model, again)]
    assert lrs[0] == lrs[1]
    again.load_state_dict(model.state_dict())
    nm.load_plan(model, tmp_path / "plan.json")  # its own: the function stays
    assert nm.summary(model).function is rule
    # What the function would give at other modes is in no file.
    optimizer = nm.MuAdam(again, lr=1e-3)
    again.n_modes = (4, 4)
    with pytest.raises(nm.MupError, match=r"only the name was saved.*RULES\['<lambda>'\]"):
        optimizer.step()
    RULES["<lambda>"] = rule
    try:
        optimizer.step()
    finally:
        del RULES["<lambda>"]
    assert [g["mode_mult"] for g in optimizer.param_groups if "mode_mult" in g] == pytest.approx([(40 / 12) ** 0.25])


def test_what_a_file_says_is_checked_as_far_as_it_can_be(tmp_path):
    model = nm.parametrize(build(), base=BASE, rule=by_blocks)
    stored = json.loads(nm.summary(model).to_json())
    row = next(row for row in stored["rows"] if row["role"] == "hidden")
    row["lr_mult"] *= 2
    (tmp_path / "plan.json").write_text(json.dumps(stored))
    with pytest.raises(nm.MupError, match="lr ×"):
        nm.load_plan(build(), tmp_path / "plan.json")


def test_plans_are_compared_by_their_numbers():
    """Two functions of one name that give other numbers, and another rule, are other plans."""

    def make(power):
        def rule(size, base):
            return (base.blocks / size.blocks) ** power

        return rule

    model = nm.parametrize(build(), base=BASE, rule=make(0.25))
    model.load_state_dict(nm.parametrize(build(1), base=BASE, rule=make(0.25)).state_dict())
    for other, what in ((make(0.5), "lr ×"), ("none", "rule: 'rule' → 'none'")):
        with pytest.raises(nm.MupError, match=what):
            model.load_state_dict(nm.parametrize(build(1), base=BASE, rule=other).state_dict())


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies(how):
    model = how(nm.parametrize(build(), base=BASE, rule=by_blocks))
    assert nm.summary(model).function is by_blocks
    local = nm.parametrize(build(), base=BASE, rule=lambda size, base: 1.0)
    copied = nm.summary(how(local))
    assert copied == nm.summary(local) and (copied.function is None) == (how is not copy.deepcopy)


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
    ],
)
def test_what_is_no_rule(rule, match):
    model = build()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(nm.MupError, match=match):
        nm.parametrize(model, base=BASE, rule=rule)
    assert all(map(torch.equal, model.parameters(), before)) and not nm.is_parametrized(model)


def test_a_function_with_the_name_of_another_rule():
    def none(size, base):
        return 0.5

    with pytest.raises(nm.MupError, match="is named 'none', as another rule is"):
        nm.parametrize(build(), base=BASE, rule=none)


def test_equal_sizes_are_exactly_one():
    size = Size(8, 8, modes=(4,), blocks=5)
    assert mode_factor(lambda a, b: (a.blocks / b.blocks) ** 0.3 * (1 + 1e-12), size, size) == 1.0


def test_a_base_file_has_to_know_the_modes(tmp_path):
    import mup

    path = str(tmp_path / "width.bsh")
    make = lambda width: FNO((8, 8), 1, 1, width, n_layers=1)  # noqa: E731
    mup.make_base_shapes(make(8), make(16), savefile=path)
    with pytest.raises(nm.MupError, match="no base size"):
        nm.parametrize(make(32), base=path, rule=by_blocks)
