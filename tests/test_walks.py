"""A model is read once: every other question is answered by the rows of its plan."""

import copy
import json

import pytest
import torch

import neuralop_mup as nm
from cases import BY_NAME
from neuralop_mup.core import classify
from support import parametrized

NAMES = ["2d", "tucker_factorized", "max_n_modes", "uno", "gino", "codano", "legacy_incremental", "uqno"]


@pytest.fixture
def walks(monkeypatch):
    """The models that were walked, in order."""
    walked, walk = [], classify._walk

    def counted(module, prefix, *more):
        if prefix == "":
            walked.append(module)
        return walk(module, prefix, *more)

    monkeypatch.setattr(classify, "_walk", counted)
    return walked


@pytest.mark.parametrize("name", NAMES)
def test_parametrize_walks_the_model_and_its_base_once_each(name, walks, tmp_path):
    case = BY_NAME[name]
    model, base = case.build(), case.build_base()
    nm.parametrize(model, base=base)
    assert list(map(id, walks)) == list(map(id, (model, base)))
    for form in (lambda: base, case.base):
        walks.clear()
        model = nm.parametrize(case.build(), base=form)
        assert len(walks) == 2 and walks[0] is model and walks[1] is not model
    nm.save_base_shapes(model, tmp_path / "base.bsh")
    walks.clear()
    model = nm.parametrize(case.build(), base=tmp_path / "base.bsh")
    assert walks == [model]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_walks_it_again(name, walks, tmp_path):
    case = BY_NAME[name]
    model = parametrized(case)
    walks.clear()
    optimizer = nm.MuAdamW(model, lr=1e-3)
    nm.MuSGD(model, lr=1e-3)
    nm.MuMuon(model, lr=0.02)
    nm.MuSOAP(model, lr=0.02)
    nm.check_optimizer(model, optimizer)
    x, y = case.batch()
    with nm.Monitor(model, optimizer, every=1, probe=x):
        if name == "max_n_modes":
            model.n_modes = (6, 6)
        for _ in range(2):
            (case.output(model, x) - y).square().mean().backward()
            nm.clip_spectral_grad_value_(model, 1.0)
            optimizer.step()
    nm.update_stats(model, optimizer, x)
    nm.check_optimizer(model, optimizer)
    str(nm.summary(copy.deepcopy(model)))
    nm.save_plan(model, tmp_path / "plan.json")
    nm.save_base_shapes(model, tmp_path / "base.bsh")
    model.load_state_dict(model.state_dict())
    nm.load_plan(model, tmp_path / "plan.json")
    nm.unparametrize(model)
    assert walks == []


def test_from_the_meta_device_and_from_a_file(walks, tmp_path):
    case = BY_NAME["2d"]
    with torch.device("meta"):
        model = case.build()
    nm.parametrize(model, base=case.base)
    nm.initialize(model.to_empty(device="cpu"))
    assert len(walks) == 2
    nm.save_plan(model, tmp_path / "plan.json")
    walks.clear()
    other = case.build()
    nm.load_plan(other, tmp_path / "plan.json")
    assert walks == [other]  # whether the plan is this model's has to be seen
    assert nm.summary(other) == nm.summary(model)


def _no_sizes(row):
    """Owners and sizes can be read off the model, and modes may grow."""
    for key in ("owner", "place", "tensor_shape", "init", "size", "base_size"):
        del row[key]


@pytest.mark.parametrize("name", ["max_n_modes", "tucker_factorized"])
def test_plans_without_sizes_are_read(name, tmp_path):
    case = BY_NAME[name]
    model = parametrized(case, rule="log-modes")
    stored = json.loads(nm.summary(model).to_json())
    del stored["reason"], stored["function"]
    for row in stored["rows"]:
        _no_sizes(row)
    (tmp_path / "plan.json").write_text(json.dumps(stored))
    again = nm.load_plan(case.build(), tmp_path / "plan.json")
    assert nm.summary(again) == nm.summary(model) and str(nm.summary(again)) == str(nm.summary(model))
    mults = []
    for m in (model, again):
        optimizer = nm.MuAdam(m, lr=1e-3)
        if name == "max_n_modes":
            m.n_modes = (6, 4)
            optimizer.step()
        mults.append([g.get("mode_mult") for g in optimizer.param_groups])
    assert mults[0] == mults[1]
    assert name != "max_n_modes" or any(mult not in (None, 1) for mult in mults[0])
