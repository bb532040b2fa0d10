"""A plan as data: rows by name, differences, JSON, and plans that earlier releases wrote."""

import json
import re
from dataclasses import replace

import pytest
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.core.plan import ParamPlan, Plan
from neuralop_mup.core.rules import Size
from support.errors import refused

ROW = ParamPlan("read.weight", "readout", "Linear", ("out_fixed", "in"), (1, 64), (1, 16))
NEEDED = ("name", "role", "layer", "axes", "shape", "base_shape")
STORED = {"rule": "none", "version": 2, "init_mult": {}, "rows": [{key: getattr(ROW, key) for key in NEEDED}]}


def _loaded(**changes):
    return Plan.from_json(json.dumps({**STORED, **changes}))


def test_a_plan_with_the_fewest_entries():
    """Entries that earlier releases did not write get the values that were true then."""
    plan = _loaded()
    assert plan["read.weight"] == ROW
    assert (ROW.init_mult, ROW.lr_mult, ROW.sgd_lr_mult, ROW.default_std, ROW.size) == (1, 1, 1, None, None)
    assert (ROW.lacking, ROW.frozen, ROW.fixed, ROW.why, ROW.init) == (False, False, False, "", "")
    assert (plan.revision, plan.init_applied) == (0, True)
    assert Plan("none", (), {}).revision == 1
    size = {"fan_in": 64, "fan_out": 1, "default_std": 0.1, "modes": [4], "block": [64, 1], "blocks": 5, "one_sign": True}
    row = {**STORED["rows"][0], "size": size}
    assert _loaded(rows=[row])["read.weight"].size == Size(64, 1, 0.1, (4,), 5, (64, 1), True)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"version": 3}, "3 2"),
        ({"correct_tt": True}, "correct_tt 0.2"),
        ({"rows": [{**STORED["rows"][0], "place": "a setting of 0.2"}]}, "place 0.2"),
        ({"init_mult": {"readot": 2.0}}, "'readot' 'readout'"),
        ({"rows": [{}]}, "JSON"),
        ({"rows": 3}, "JSON"),
    ],
)
def test_plans_that_cannot_be_read(changes, names):
    with refused(names):
        _loaded(**changes)


def test_differences():
    plan = Plan("none", (ROW,), {})
    assert plan.differences(replace(plan, init_applied=False)) == []
    assert plan.differences(replace(plan, rows=(replace(ROW, lr_mult=1 + 1e-12),))) == []  # rounding of another machine
    assert plan == replace(plan, reason="other words", at_base="other words", function=len, lrs={"read.weight": "0.1"})
    changes = {"role": "hidden", "axes": ("out", "in"), "shape": (2, 64), "base_shape": (1, 8)}
    changes |= {"init_mult": 0.5, "lr_mult": 0.25, "sgd_lr_mult": 2.0}
    for key, value in changes.items():
        (line,) = plan.differences(replace(plan, rows=(replace(ROW, **{key: value}),)))
        assert line.startswith("read.weight: ")
    other = replace(plan, rule="log-modes", init_mult={"readout": 2.0}, rows=(replace(ROW, name="write.weight"),))
    lines = plan.differences(other)
    assert [line.split(":")[0] for line in lines] == ["rule", "init_mult", "read.weight", "write.weight"]
    assert ("first" in lines[2], "second" in lines[3]) == (True, True)


def test_a_plan_is_a_collection_of_rows():
    plan = nm.summary(nm.parametrize(FNO((8,), 1, 1, 16), base={"hidden_channels": 8}))
    assert list(plan) == list(plan.rows) and len(plan) == len(plan.rows)
    assert "lifting.fcs.0.weight" in plan and "lifting" not in plan
    for wrong in (slice(0, 300), 0, "lifting.fcs.0.wieght"):
        with refused("parameter 'lifting.fcs.0.weight'" if isinstance(wrong, str) else "parameter"):
            plan[wrong]
    assert Plan.from_json(plan.to_json()) == plan and Plan.from_json(plan.text) == plan
    for text in (str(plan), plan.to_markdown()):
        assert all(re.sub(r"\.\d\.", ".0–3.", row.name, count=1) in text for row in plan.rows[:-8])
        assert all(row.name in text for row in plan.rows[-8:])


def test_equal_rows_of_repeated_layers_share_a_line():
    """Their numbers are listed. A row with another number of another layer does not join."""
    names = {"0.a": "0,1.a", "1.a": "", "b.0.w.1": "b.0,2,3.w.1", "b.2.w.1": "", "b.3.w.1": "", "c.0": "c.0–2", "c.1": ""}
    names |= {"c.2": "", "c.3": "c.3", "d1.w": "d1.w"}
    rows = tuple(replace(ROW, name=name, init_mult=2.0 if name == "c.3" else 1.0) for name in names)
    plan = Plan("none", rows, {})
    for text in (str(plan), plan.to_markdown().replace("| ", "")):
        assert [line.split()[0] for line in text.splitlines()[-5:]] == list(filter(None, names.values()))


def test_the_head_reports_weights_that_are_not_scaled():
    for applied in (True, False):
        head = str(Plan("none", (ROW,), {}, applied)).splitlines()[0]
        assert ("init" in head) == (not applied)


def test_a_fixed_row_is_fixed_for_mup():
    growing, fixed = (replace(ROW, fixed=fixed).mup_shape() for fixed in (False, True))
    assert (growing.base_shape(), fixed.base_shape()) == ([None, 16], [None, None])
