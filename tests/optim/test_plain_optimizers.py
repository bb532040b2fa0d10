"""An optimizer that does not follow the plan is warned of once, with the line to write; nothing else is."""

import copy
import gc
import pickle
import warnings
import weakref
from functools import partial

import mup
import neuralop.training
import pytest
import torch
from torch.nn.parallel import DataParallel
from torch.optim import lr_scheduler as S

import neuralop_mup as nm
from support.cases import BY_NAME
from support.models import in_double, parametrized
from support.training import step

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
        (lambda m: torch.optim.AdamW(m.parameters(), 2e-3), "neuralop_mup.MuAdamW(model, lr=0.002, weight_decay=0.01)"),
        (lambda m: torch.optim.Adam(m.parameters(), 2e-3), "neuralop_mup.MuAdam(model, lr=0.002)"),
        (
            lambda m: torch.optim.SGD(m.parameters(), 2e-3, momentum=0.9),
            "neuralop_mup.MuSGD(model, lr=0.002, momentum=0.9)",
        ),
        (
            lambda m: neuralop.training.AdamW(m.parameters(), lr=2e-3),
            "neuralop_mup.MuAdam(model, lr=0.002, impl=neuralop.training.AdamW)",
        ),
        # one group each, all alike
        (
            lambda m: torch.optim.Adam([{"params": [p]} for p in m.parameters()], 2e-3),
            "neuralop_mup.MuAdam(model, lr=0.002)",
        ),
        # groups of the other family, whose first is of its base learning rate
        (lambda m: torch.optim.SGD(nm.param_groups(m, 2e-3), 2e-3), "neuralop_mup.MuSGD(model, lr=0.002)"),
        (lambda m: torch.optim.Adam(nm.param_groups(m, 2e-3, "sgd"), 2e-3), "neuralop_mup.MuAdam(model, lr="),
    ],
)
def test_a_plain_optimizer_is_told_the_line_to_write(build, line):
    model = parametrized(CASE)
    optimizer = build(model)
    (warning,) = said(optimizer)
    assert line in str(warning.message)
    assert warning.filename == __file__  # where the step was called
    assert not said(optimizer)
    if line.endswith(")"):  # and the line works
        assert not said(eval(line, {"neuralop_mup": nm, "neuralop": neuralop, "model": model}))


def test_one_that_gets_the_plan_or_the_model_later():
    model = CASE.build()
    early, later = plain(model), torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], 1e-3)
    assert not said(early) + said(later)
    nm.parametrize(model, base=CASE.base, init=False)
    later.add_param_group({"params": list(model.parameters())})
    for optimizer in (early, later):
        assert len(said(optimizer)) == 1
        assert not said(optimizer)


def test_a_warm_up_from_zero_hides_nothing():
    optimizer = plain(parametrized(CASE))
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


def _frozen(model, left_out):
    model.requires_grad_(False)
    model.projection.requires_grad_()
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad or not left_out], 1e-3)


def _by_hand(model):
    rows = {row.name: row.lr_mult for row in nm.summary(model).rows}
    return torch.optim.Adam([{"params": [p], "lr": 1e-3 * rows[name]} for name, p in model.named_parameters()])


def _loaded(model):
    optimizer = torch.optim.Adam(nm.param_groups(model, 1e-3))
    optimizer.load_state_dict(nm.MuAdam(model, lr=1e-3).state_dict())
    return optimizer


def _two_rates(model):
    (first, *rest) = model.parameters()
    return torch.optim.Adam([{"params": [first], "lr": 1e-2}, {"params": rest}], 1e-3)


ONE_MORE = {"params": [torch.nn.Parameter(torch.ones(1))]}  # a weight of the loss
FOLLOWING = {
    "MuAdam": lambda m: nm.MuAdam(m, lr=1e-3),
    "MuAdam, masters": lambda m: nm.MuAdam(m, lr=1e-3, lr_mult={"spectral": 3.0, "readout": 0.1}),
    "MuAdamW": lambda m: nm.MuAdamW(m, lr=1e-3),
    "MuSGD": lambda m: nm.MuSGD(m, lr=1e-3),
    "MuSOAP": lambda m: nm.MuSOAP(m),
    "neuralop's AdamW": lambda m: nm.MuAdamW(m, impl=neuralop.training.AdamW),
    "copied": lambda m: copy.deepcopy(nm.MuAdam(m, lr=1e-3)),
    "pickled": lambda m: pickle.loads(pickle.dumps(nm.MuAdam(m, lr=1e-3))),
    "param_groups": lambda m: torch.optim.RMSprop(nm.param_groups(m, 1e-3)),
    "some of param_groups": lambda m: torch.optim.Adam(nm.param_groups(m, 1e-3)[1:]),
    "param_groups and one more": lambda m: torch.optim.Adam([*nm.param_groups(m, 1e-3), dict(ONE_MORE)], 1e-3),
    "loaded": _loaded,
    "mup.MuAdam": lambda m: mup.MuAdam(m.parameters(), lr=1e-3),
    "mup.MuAdamW": lambda m: mup.MuAdamW(m.parameters(), lr=1e-3, weight_decay=0.1),
    "mup.MuSGD": lambda m: mup.MuSGD(m.parameters(), lr=1e-3),
    "by hand": _by_hand,
    "part of a model": lambda m: torch.optim.Adam(list(m.parameters())[::2], 1e-3),
    "frozen features": partial(_frozen, left_out=False),
    "frozen features, left out": partial(_frozen, left_out=True),
    "LBFGS": lambda m: torch.optim.LBFGS(m.parameters()),
    "another model": lambda m: torch.optim.Adam(CASE.build().parameters()),
    "not parametrized any more": lambda m: torch.optim.Adam(nm.unparametrize(m).parameters()),
    "a copy without a plan": lambda m: plain(nm.unparametrize(copy.deepcopy(m))),
    "a copy of one without a plan": lambda m: plain(copy.deepcopy(nm.unparametrize(m))),
}


class Stepping(torch.optim.Optimizer):
    """Somebody's, whose learning rate has a name of its own."""

    def __init__(self, params):
        super().__init__(params, {"step_size": 0.1})

    def step(self):
        pass


def test_an_optimizer_without_a_learning_rate_of_that_name_is_left_alone(recwarn):
    Stepping(parametrized(CASE).parameters()).step()
    assert not recwarn.list


@pytest.mark.parametrize("name", FOLLOWING)
def test_nothing_is_said_of(name):
    model = parametrized(CASE)
    optimizer = FOLLOWING[name](model)
    schedule = S.ExponentialLR(optimizer, 0.5)
    step = partial(optimizer.step, lambda: torch.zeros(())) if name == "LBFGS" else None
    assert not said(optimizer, step)
    schedule.step()
    assert not said(optimizer, step)


@pytest.mark.parametrize("build", [plain, _two_rates])
def test_nothing_is_said_of_the_standard_parametrization_and_at_base(build):
    """Where every number is 1 there is nothing to carry over: two learning rates are the user's own."""
    for model in (parametrized(CASE, rule="standard"), nm.parametrize(CASE.build(), base={})):
        assert not said(build(model))


def test_nothing_is_kept_alive():
    model = parametrized(CASE)
    copied, optimizer = copy.deepcopy(model), plain(model)
    assert said(optimizer)
    gone = [weakref.ref(thing) for thing in (model, optimizer, copied)]
    del model, optimizer, copied
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


@pytest.mark.parametrize("impl", [torch.optim.AdamW, neuralop.training.AdamW])
@pytest.mark.parametrize(("saved", "loaded"), [(lambda m: m, in_double), (in_double, lambda m: m)])
def test_a_state_takes_the_precision_of_the_model(saved, loaded, impl):
    """torch casts averages of real parameters on loading, and leaves those of complex ones as they were."""
    model, other = saved(parametrized(CASE)), loaded(parametrized(CASE))
    optimizer, resumed = nm.MuAdamW(model, impl=impl), nm.MuAdamW(other, impl=impl)
    step(optimizer, model)
    resumed.load_state_dict(optimizer.state_dict())
    step(resumed, other)
    assert all(p.isfinite().all() for p in other.parameters())
    assert resumed.state[p := next(p for p in other.parameters() if p.is_complex())]["exp_avg"].dtype == p.dtype


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda m: nm.MuAdam(m, lr=1e-3, wieght_decay=0.1), "no argument 'wieght_decay': did you mean 'weight_decay'"),
        (lambda m: nm.MuAdamW(m, lr_mul={"input": 2.0}), "no argument 'lr_mul': did you mean 'lr_mult'"),
        (lambda m: nm.MuSGD(m, lr=1e-3, momentun=0.9), "no argument 'momentun': did you mean 'momentum'"),
        (lambda m: nm.MuAdam(m, impl=partial(torch.optim.Adam, amsgrad=True), epss=1e-6), "did you mean 'eps'"),
        (lambda m: nm.MuAdam(m, impl=lambda groups, **kw: torch.optim.Adam(groups, **kw), betas=2), "not these arguments"),
        (lambda m: nm.MuAdam(m, impl=torch.optim.LBFGS), "LBFGS does not take the plan's param groups.*per-parameter"),
        (lambda m: nm.MuAdam(m, impl="adamw"), "impl does not take .*'str' object is not callable"),
        (lambda m: nm.MuAdamW(m, impl=torch.optim.SGD),
         "^These learning rates are for updates that do not scale .* torch's SGD scale: use neuralop_mup.MuSGD"),
    ],
)  # fmt: skip
def test_mistakes_in_building_an_optimizer(build, match):
    with pytest.raises(nm.MupError, match=match):
        build(parametrized(CASE))
