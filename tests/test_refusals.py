"""Wrong input to everything but ``parametrize``: one sentence that says what was given and what to give."""

import json
from dataclasses import replace

import pytest
import torch
from cases import BY_NAME
from torch import nn

import neuralop_mup as nm
from neuralop_mup.core.plan import Plan
from neuralop_mup.experiments.presets import problem_with
from neuralop_mup.problems.own import OwnData
from neuralop_mup.tuning import Results, sweep, transfer_study

CASE = BY_NAME["2d"]


def bowl(config):
    return config["lr"]


def study(**changes):
    return transfer_study(**{"proxy": {"w": 1}, "target": {"w": 2}, "space": {"lr": [0.1, 0.2]}, **changes})


def model():
    return nm.parametrize(CASE.build(), base=CASE.base)


def broken_plan():
    stored = json.loads(nm.summary(model()).to_json())
    stored["rows"][0]["colour"] = "blue"
    return Plan.from_json(json.dumps(stored))


def pending_plan():
    """A model's plan that was written before its weights were drawn, read into another model."""
    with torch.device("meta"):
        drawn_later = CASE.build()
    plan = replace(nm.summary(model()), init_pending=True)
    return nm.integrations.plan_files.fit_plan(drawn_later, plan, "this plan")


def changed_axes():
    changed = model()
    optimizer_free = changed.fno_blocks.convs[0].weight
    optimizer_free.tensor = nn.Parameter(torch.zeros(3, 3, dtype=torch.cfloat))
    return nm.MuMuon(changed, lr=0.02)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: study(space={3: [1]}), "keys must be strings"),
        (lambda: study(proxy=8), "proxy=8 must be a dict of sizes"),
        (lambda: study(rule=("none",)), "must be a name"),
        (lambda: Results.load("/no/such/folder"), "holds no study"),
        (lambda: sweep("train.py", {"lr": [1]}, folder="/tmp/none"), "give a function"),
        (lambda: sweep(bowl, {"lr": [1]}, folder="/tmp/none", rungs=(8, 4)), "in ascending order"),
        (lambda: OwnData(files=()), "No data file is named"),
        (lambda: OwnData(files=("a.npz",), time_step=0), "whole number of 1 or more"),
        (lambda: problem_with("darcy", "huge", {}), "no preset 'huge'"),
        (broken_plan, "not that of a plan"),
        (pending_plan, "before its weights were drawn"),
        (changed_axes, "changed after parametrize"),
        (lambda: nm.parametrize(nn.Sequential(nn.LazyLinear(3)), base={}), "has no shape yet"),
    ],
)
def test_one_sentence(call, match):
    with pytest.raises(nm.MupError, match=match) as caught:
        call()
    assert len(str(caught.value)) > 40
