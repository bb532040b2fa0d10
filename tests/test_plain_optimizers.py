"""An optimizer that does not follow the plan is warned of once, with the line to write; nothing else is."""

import copy
import gc
import pickle
import timeit
import warnings
import weakref
from functools import partial

import mup
import neuralop.training
import pytest
import torch
from neuralop.losses import LpLoss
from torch.nn.parallel import DataParallel
from torch.optim import lr_scheduler as S

import neuralop_mup as nm
from cases import BY_NAME
from neuralop_mup.optim import on_plan
from support import parametrized

CASE = BY_NAME["1d"]


def plain(model):
    return torch.optim.AdamW(model.parameters(), 1e-3)


def said(optimizer, step=None):
    """What is said in a few steps, or by whatever takes some."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            (step or optimizer.step)()
    return [w for w in caught if "do not follow its plan" in str(w.message)]


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda ps: torch.optim.AdamW(ps, 2e-3), "neuralop_mup.MuAdamW(model, lr=0.002, weight_decay=0.01)"),
        (lambda ps: torch.optim.Adam(ps, 2e-3), "neuralop_mup.MuAdam(model, lr=0.002)"),
        (lambda ps: torch.optim.SGD(ps, 2e-3, momentum=0.9), "neuralop_mup.MuSGD(model, lr=0.002, momentum=0.9)"),
        (
            lambda ps: neuralop.training.AdamW(ps, lr=2e-3),
            "neuralop_mup.MuAdam(model, lr=0.002, impl=neuralop.training.AdamW)",
        ),
        (lambda ps: torch.optim.RMSprop(ps, 2e-3), "impl=torch.optim.rmsprop.RMSprop)"),
        # one group each, all alike
        (lambda ps: torch.optim.Adam([{"params": [p]} for p in ps], 2e-3), "neuralop_mup.MuAdam(model, lr=0.002)"),
    ],
)
def test_a_plain_optimizer_is_told_the_line_to_write(build, line):
    model = parametrized(CASE)
    optimizer = build(model.parameters())
    (warning,) = said(optimizer)
    assert line in str(warning.message)
    assert warning.filename == __file__  # where the step was called
    assert not said(optimizer)
    if "rmsprop" not in line:  # and the line works
        assert not said(eval(line, {"neuralop_mup": nm, "neuralop": neuralop, "model": model}))


def test_it_is_said_where_training_happens():
    """Through neuralop's Trainer, after a scheduler took the step."""
    loader = torch.utils.data.DataLoader([{"x": torch.randn(2, 16), "y": torch.randn(3, 16)}] * 2)
    model = parametrized(CASE)
    optimizer = plain(model)
    trainer = neuralop.training.Trainer(model=model, n_epochs=2, device="cpu", verbose=False)
    schedule = S.StepLR(optimizer, 1)
    (warning,) = said(optimizer, lambda: trainer.train(loader, {}, optimizer, schedule, training_loss=LpLoss(d=1)))
    assert warning.filename == neuralop.training.trainer.__file__


def test_one_that_was_built_before_parametrize():
    model = CASE.build()
    optimizer = plain(model)
    assert not said(optimizer)
    nm.parametrize(model, base=CASE.base, init=False)
    assert len(said(optimizer)) == 1
    assert not said(optimizer)


def test_one_that_gets_the_model_later():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], 1e-3)
    assert not said(optimizer)
    model = parametrized(CASE)
    optimizer.add_param_group({"params": list(model.parameters())})
    assert len(said(optimizer)) == 1


def test_a_warm_up_from_zero_hides_nothing():
    model = parametrized(CASE)
    optimizer = plain(model)
    scheduler = S.LambdaLR(optimizer, lambda step: step / 5)
    assert not said(optimizer)
    scheduler.step()
    assert len(said(optimizer)) == 1


def _assigned(model):
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    return model


def _from_meta(model):
    with torch.device("meta"):
        again = CASE.build()
    nm.parametrize(again, base=CASE.base).to_empty(device="cpu")
    again.load_state_dict(model.state_dict())
    return again


MADE_ANEW = {
    "deepcopy": copy.deepcopy,
    "copy of a copy": lambda m: copy.deepcopy(copy.deepcopy(m)),
    "copied with its optimizer": lambda m: copy.deepcopy((m, nm.MuAdam(m)))[0],
    "unpickled copy": lambda m: copy.deepcopy(pickle.loads(pickle.dumps(m))),
    "assigned": _assigned,
    "from the meta device": _from_meta,
    "averaged": torch.optim.swa_utils.AveragedModel,
    "wrapped": DataParallel,
    "compiled": lambda m: torch.compile(m, backend="eager"),
    "in another precision": lambda m: m.to(torch.float64).to(torch.float32),
    "wrapped before parametrize": lambda m: nm.parametrize(DataParallel(CASE.build()), base=CASE.base),
}


@pytest.mark.parametrize("how", MADE_ANEW)
def test_a_model_that_is_wrapped_or_whose_parameters_were_made_anew(how):
    """The parameters may carry nothing of the plan; their model does."""
    models = [MADE_ANEW[how](parametrized(CASE)) for _ in range(2)]
    assert not said(nm.MuAdam(models[0], lr=1e-3))
    assert len(said(plain(models[1]))) == 1


def test_a_copy_of_a_model_without_a_plan_any_more():
    model = parametrized(CASE)
    copied = nm.unparametrize(copy.deepcopy(model))
    assert not said(plain(copied))
    assert not said(plain(copy.deepcopy(nm.unparametrize(model))))


@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_model_whose_own_constructor_freezes_a_parameter(all_of_it):
    model = parametrized(BY_NAME["like_physicsnemo_fno_2d"])
    assert not all(p.requires_grad for p in model.parameters())
    parameters = [p for p in model.parameters() if all_of_it or p.requires_grad]
    assert len(said(torch.optim.AdamW(parameters, 1e-3))) == 1
    assert not said(nm.MuAdamW(model, lr=1e-3))
    model.spec_encoder.requires_grad_(False)  # and by the user's own hand
    assert not said(torch.optim.AdamW(parameters, 1e-3))


def test_groups_of_ours_beside_plain_ones():
    model = parametrized(CASE)
    first, *others = nm.param_groups(model, 1e-3)
    rest = [p for group in others for p in group["params"]]
    assert len(said(torch.optim.Adam([first, {"params": rest}], 1e-3))) == 1
    rows = {id(model.get_parameter(row.name)): row for row in nm.summary(model).rows}
    assert not said(torch.optim.Adam([first, *({"params": [p], "lr": 1e-3 * rows[id(p)].lr_mult} for p in rest)]))


def _frozen(model):
    model.lifting.requires_grad_(False)
    return plain(model)


def _frozen_left_out(model):
    model.requires_grad_(False)
    model.projection.requires_grad_()
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)


def _by_hand(model):
    rows = {row.name: row.lr_mult for row in nm.summary(model).rows}
    return torch.optim.Adam([{"params": [p], "lr": 1e-3 * rows[name]} for name, p in model.named_parameters()])


def _with_a_weight_of_the_loss(model):
    groups = nm.param_groups(model, 1e-3)
    return torch.optim.Adam([*groups, {"params": [torch.nn.Parameter(torch.ones(1))]}], 1e-3)


def _loaded(model):
    optimizer = torch.optim.Adam(nm.param_groups(model, 1e-3))
    optimizer.load_state_dict(nm.MuAdam(model, lr=1e-3).state_dict())
    return optimizer


FOLLOWING = {
    "MuAdam": lambda m: nm.MuAdam(m, lr=1e-3),
    "MuAdam, masters": lambda m: nm.MuAdam(m, lr=1e-3, lr_mult={"spectral": 3.0, "readout": 0.1}),
    "MuAdamW": lambda m: nm.MuAdamW(m, lr=1e-3),
    "MuSGD": lambda m: nm.MuSGD(m, lr=1e-3),
    "neuralop's AdamW": lambda m: nm.MuAdamW(m, impl=neuralop.training.AdamW),
    "copied": lambda m: copy.deepcopy(nm.MuAdam(m, lr=1e-3)),
    "pickled": lambda m: pickle.loads(pickle.dumps(nm.MuAdam(m, lr=1e-3))),
    "param_groups": lambda m: torch.optim.RMSprop(nm.param_groups(m, 1e-3)),
    "some of param_groups": lambda m: torch.optim.Adam(nm.param_groups(m, 1e-3)[1:]),
    "param_groups and one more": _with_a_weight_of_the_loss,
    "loaded": _loaded,
    "mup.MuAdam": lambda m: mup.MuAdam(m.parameters(), lr=1e-3),
    "mup.MuAdamW": lambda m: mup.MuAdamW(m.parameters(), lr=1e-3, weight_decay=0.1),
    "mup.MuSGD": lambda m: mup.MuSGD(m.parameters(), lr=1e-3),
    "by hand": _by_hand,
    "part of a model": lambda m: torch.optim.Adam(list(m.parameters())[::2], 1e-3),
    "the readout alone": lambda m: torch.optim.Adam(m.projection.parameters(), 1e-3),
    "frozen features": _frozen,
    "frozen features, left out": _frozen_left_out,
    "LBFGS": lambda m: torch.optim.LBFGS(m.parameters()),
    "another model": lambda m: torch.optim.Adam(CASE.build().parameters()),
    "not parametrized any more": lambda m: torch.optim.Adam(nm.unparametrize(m).parameters()),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_nothing_is_said_of(name):
    model = parametrized(CASE)
    optimizer = FOLLOWING[name](model)
    schedule = S.ExponentialLR(optimizer, 0.5)
    step = partial(optimizer.step, lambda: torch.zeros(())) if name == "LBFGS" else None
    assert not said(optimizer, step)
    schedule.step()
    assert not said(optimizer, step)


def test_nothing_is_said_of_the_standard_parametrization_and_at_base():
    for model in (parametrized(CASE, rule="standard"), nm.parametrize(CASE.build(), base={})):
        assert not said(plain(model))


def test_nothing_is_kept_alive():
    model = parametrized(CASE)
    copied, optimizer = copy.deepcopy(model), plain(model)
    assert said(optimizer)
    gone = [weakref.ref(thing) for thing in (model, optimizer, copied)]
    del model, optimizer, copied
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


def test_a_compiled_step_is_left_alone():
    model = parametrized(CASE)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    assert not said(optimizer, torch.compile(optimizer.step, backend="eager"))


def test_each_optimizer_is_looked_at_once(monkeypatch):
    """Again after another parametrize and after another group, since either may change what is to be said."""
    looked, follows = [], on_plan._follows_its_plan
    monkeypatch.setattr(on_plan, "_follows_its_plan", lambda o: looked.append(o) or follows(o))
    model = parametrized(CASE)
    ours, other = nm.MuAdam(model, lr=1e-3), torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])
    for _ in range(3):
        ours.step()
        other.step()
    assert looked == [ours, other]
    parametrized(CASE)
    ours.step()
    other.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    other.step()
    other.step()
    assert looked == [ours, other, ours, other]


def test_a_look_costs_nothing():
    """What the hook adds to every later step of an optimizer: 0.5 µs, where the smallest step there is takes 15."""
    optimizer = nm.MuAdam(parametrized(CASE), lr=1e-3)
    optimizer.step()
    times = timeit.repeat(lambda: on_plan._look(optimizer, (), {}), number=1000, repeat=5)
    assert min(times) < 5e-6 * 1000
