"""A model is read once: every other question is answered by the rows of its plan."""

import copy

import pytest
import torch
from cases import BY_NAME
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.core import classify

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
def test_parametrize_walks_the_model_and_its_base_once_each(name, walks):
    case = BY_NAME[name]
    model, base = case.build(), case.build_base()
    nm.parametrize(model, base=base)
    assert list(map(id, walks)) == list(map(id, (model, base)))
    for form in (lambda: base, case.base):
        walks.clear()
        model = nm.parametrize(case.build(), base=form)
        assert len(walks) == 2 and walks[0] is model and walks[1] is not model


def test_a_base_file_and_the_base_itself_need_no_second_walk(walks, tmp_path):
    case = BY_NAME["2d"]
    nm.save_base_shapes(nm.parametrize(case.build(), base=case.base), tmp_path / "base.bsh")
    walks.clear()
    model = nm.parametrize(case.build(), base=tmp_path / "base.bsh")
    assert walks == [model]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_walks_it_again(name, walks, tmp_path):
    case = BY_NAME[name]
    model = nm.parametrize(case.build(), base=case.base)
    walks.clear()
    optimizer = nm.MuAdamW(model, lr=1e-3)
    nm.MuSGD(model, lr=1e-3)
    nm.MuMuon(model, lr=0.02)
    nm.MuSOAP(model, lr=0.02)
    nm.check_optimizer(model, optimizer)
    x, y = case.batch()
    with nm.Monitor(model, optimizer, every=1, probe=x):
        for conv in model.modules():
            if getattr(conv, "max_n_modes", None) is not None and hasattr(conv, "weight") and name == "max_n_modes":
                conv.n_modes = (6, 6)
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


def test_a_plan_is_read_by_the_names_that_its_fields_had(tmp_path):
    """A file of an older release has other names for default_std, init and std_ratio."""
    import json

    model = nm.parametrize(BY_NAME["tucker_factorized"].build(), base=BY_NAME["tucker_factorized"].base)
    stored = json.loads(nm.summary(model).to_json())
    for row in stored["rows"]:
        row["stock_std"], row["stock"] = row.pop("default_std"), row.pop("init")
        for size in (row["size"], row["base_size"]):
            size["stock_std"], size["miss"] = size.pop("default_std"), size.pop("std_ratio")
    (tmp_path / "plan.json").write_text(json.dumps(stored))
    again = nm.load_plan(BY_NAME["tucker_factorized"].build(), tmp_path / "plan.json")
    assert nm.summary(again) == nm.summary(model) == nm.Plan.from_json(json.dumps(stored))


def test_a_plan_of_an_older_release_gets_what_its_rows_lack(tmp_path):
    """Files used to have no owners and no sizes: they are read off the model, and modes may grow."""
    import json

    base = {"n_modes": (4, 4), "hidden_channels": 8}
    make = lambda: FNO((4, 4), 1, 1, 16, n_layers=1, max_n_modes=(8, 8))  # noqa: E731
    model = nm.parametrize(make(), base=base, rule="log-modes")
    stored = json.loads(nm.summary(model).to_json())
    for key in ("owner", "place", "tensor_shape", "init", "size", "base_size"):
        for row in stored["rows"]:
            del row[key]
    del stored["reason"], stored["function"]
    (tmp_path / "plan.json").write_text(json.dumps(stored))
    again = nm.load_plan(make(), tmp_path / "plan.json")
    assert nm.summary(again) == nm.summary(model) and str(nm.summary(again)) == str(nm.summary(model))
    optimizers = [nm.MuAdam(m, lr=1e-3) for m in (model, again)]
    for m, optimizer in zip((model, again), optimizers, strict=True):
        m.n_modes = (8, 8)
        optimizer.step()
    assert [g["mode_mult"] for g in optimizers[0].param_groups if "mode_mult" in g] == pytest.approx([0.5**0.5])
    assert [g.get("mode_mult") for g in optimizers[0].param_groups] == [
        g.get("mode_mult") for g in optimizers[1].param_groups
    ]
