"""Optimizers and schedulers that do not follow the plan are warned of once, with the line to write; no others are."""

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
from neuralop.models import FNO
from torch.nn.parallel import DataParallel
from torch.optim import lr_scheduler as S
from torch.optim import swa_utils

import neuralop_mup as nm
from support.cases import BY_NAME
from support.errors import of_category, refused
from support.models import drawn, parametrized
from support.schedulers import FOLLOWING, STEPS, advance
from support.training import step

CASE = BY_NAME["1d"]


def plain(model):
    return torch.optim.AdamW(model.parameters(), 1e-3)


def caught(act, text):
    """Return the warnings with this text."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return [w for w in found if text in str(w.message)]


def warned(optimizer, step=None):
    """Return the warnings of three steps."""
    return caught(lambda: [(step or optimizer.step)() for _ in range(3)], "rule='standard'")


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda m: torch.optim.AdamW(m.parameters(), 2e-3), "neuralop_mup.MuAdamW(model, lr=0.002)"),
        (lambda m: torch.optim.Adam(m.parameters(), 2e-3), "neuralop_mup.MuAdam(model, lr=0.002)"),
        (
            lambda m: torch.optim.SGD(m.parameters(), 2e-3, momentum=0.9),
            "neuralop_mup.MuSGD(model, lr=0.002)",
        ),
        (
            lambda m: neuralop.training.AdamW(m.parameters(), lr=2e-3),
            "neuralop_mup.MuAdam(model, lr=0.002, impl=neuralop.training.AdamW)",
        ),
        # one group for each parameter, with equal rates
        (
            lambda m: torch.optim.Adam([{"params": [p]} for p in m.parameters()], 2e-3),
            "neuralop_mup.MuAdam(model, lr=0.002)",
        ),
        # groups of the other family, the first with the base learning rate
        (lambda m: torch.optim.SGD(nm.param_groups(m, 2e-3), 2e-3), "neuralop_mup.MuSGD(model, lr=0.002)"),
        (lambda m: torch.optim.Adam(nm.param_groups(m, 2e-3, "sgd"), 2e-3), "neuralop_mup.MuAdam(model, lr="),
    ],
)
def test_a_plain_optimizer_is_warned_of_with_the_line_to_write(build, line):
    model = parametrized(CASE)
    optimizer = build(model)
    (warning,) = warned(optimizer)
    assert line in str(warning.message)
    assert warning.filename == __file__  # where the step was called
    if line.endswith(")"):  # the line works
        assert not warned(eval(line, {"neuralop_mup": nm, "neuralop": neuralop, "model": model}))


def test_optimizers_that_get_the_plan_or_the_model_later():
    model = CASE.build()
    early, later = plain(model), torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], 1e-3)
    assert not warned(early) + warned(later)
    nm.parametrize(model, base=CASE.base, init=False)
    later.add_param_group({"params": list(model.parameters())})
    for optimizer in (early, later):
        assert len(warned(optimizer)) == 1
        assert not warned(optimizer)


def test_a_plain_optimizer_is_found_after_a_warm_up_from_zero():
    optimizer = plain(parametrized(CASE))
    scheduler = S.LambdaLR(optimizer, lambda step: step / 5)
    assert not warned(optimizer)
    scheduler.step()
    assert len(warned(optimizer)) == 1


COPIES = {
    "copied with its optimizer": lambda m: copy.deepcopy((m, nm.MuAdam(m)))[0],
    "unpickled": lambda m: pickle.loads(pickle.dumps(m)),
    "from the meta device": lambda m: drawn(CASE),
    "averaged": torch.optim.swa_utils.AveragedModel,
    "compiled": lambda m: torch.compile(m, backend="eager"),
    "wrapped before parametrize": lambda m: nm.parametrize(DataParallel(CASE.build()), base=CASE.base),
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_and_wrapped_models_keep_their_plan(how):
    """Their parameters may carry nothing of the plan; the model does."""
    models = [COPIES[how](parametrized(CASE)) for _ in range(2)]
    assert not warned(nm.MuAdam(models[0], lr=1e-3))
    assert len(warned(plain(models[1]))) == 1


def test_a_model_whose_own_constructor_freezes_a_parameter():
    model = parametrized(BY_NAME["like_physicsnemo_fno_2d"])
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameters in (model.parameters(), trained):
        assert len(warned(torch.optim.AdamW(parameters, 1e-3))) == 1
    assert not warned(nm.MuAdamW(model, lr=1e-3))
    _loaded(model).spec_encoder.requires_grad_(False)  # by the user, who fine-tunes
    assert not warned(torch.optim.AdamW(trained, 1e-3))


def _loaded(model):
    """Return the model as if its weights were loaded."""
    return nm.load_plan(model, nm.summary(model))


def test_optimizers_of_parts_of_fresh_weights_are_warned_of():
    """Adam on kernels beside AdamW on the rest, or one frozen part, silenced the warning."""
    model = parametrized(CASE)
    kernels = [p for p in model.parameters() if p.is_complex()]
    rest = [p for p in model.parameters() if not p.is_complex()]
    assert len([*warned(torch.optim.Adam(kernels, 1e-3)), *warned(torch.optim.AdamW(rest, 1e-3))]) == 1
    model.lifting.requires_grad_(False)
    assert len(warned(torch.optim.Adam(model.parameters(), 1e-3))) == 1


def _frozen(model):
    model.requires_grad_(False)
    model.projection.requires_grad_()
    return torch.optim.AdamW(model.parameters(), 1e-3)


def _by_hand(model):
    rows = {row.name: row.lr_mult for row in nm.summary(model).rows}
    return torch.optim.Adam([{"params": [p], "lr": 1e-3 * rows[name]} for name, p in model.named_parameters()])


ONE_MORE = {"params": [torch.nn.Parameter(torch.ones(1))]}  # a weight of the loss
ON_PLAN = {
    "MuAdam": lambda m: nm.MuAdam(m, lr=1e-3, lr_mult={"spectral": 3.0, "readout": 0.1}),
    "MuSGD": lambda m: nm.MuSGD(m, lr=1e-3),
    "MuSOAP": lambda m: nm.MuSOAP(m),
    "neuralop's AdamW": lambda m: nm.MuAdamW(m, impl=neuralop.training.AdamW),
    "some of param_groups": lambda m: torch.optim.RMSprop(nm.param_groups(m, 1e-3)[1:]),
    "param_groups and one more": lambda m: torch.optim.Adam([*nm.param_groups(m, 1e-3), dict(ONE_MORE)], 1e-3),
    "mup.MuAdamW": lambda m: mup.MuAdamW(m.parameters(), lr=1e-3, weight_decay=0.1),
    "mup.MuSGD": lambda m: mup.MuSGD(m.parameters(), lr=1e-3),
    "by hand": _by_hand,
    "part of a trained model": lambda m: torch.optim.Adam(list(_loaded(m).parameters())[::2], 1e-3),
    "frozen features": lambda m: _frozen(_loaded(m)),
    "LBFGS": lambda m: torch.optim.LBFGS(m.parameters()),
    "another model": lambda m: torch.optim.Adam(CASE.build().parameters()),
    "a copy without a plan": lambda m: plain(nm.unparametrize(copy.deepcopy(m))),
    "a copy of one without a plan": lambda m: plain(copy.deepcopy(nm.unparametrize(m))),
}


class Stepping(torch.optim.Optimizer):
    """An optimizer of a user, whose learning rate has another name."""

    def __init__(self, params):
        super().__init__(params, {"step_size": 0.1})

    def step(self):
        pass


def test_an_optimizer_without_lr_is_not_warned_of(recwarn):
    Stepping(parametrized(CASE).parameters()).step()
    assert not of_category(recwarn)


@pytest.mark.parametrize("name", ON_PLAN)
def test_optimizers_that_are_not_warned_of(name):
    optimizer = ON_PLAN[name](parametrized(CASE))
    schedule = S.ExponentialLR(optimizer, 0.5)
    step = partial(optimizer.step, lambda: torch.zeros(())) if name == "LBFGS" else None
    assert not warned(optimizer, step)
    schedule.step()
    assert not warned(optimizer, step)


def test_the_standard_parametrization_and_a_model_at_base_are_not_warned_of():
    for model in (parametrized(CASE, rule="standard"), nm.parametrize(CASE.build(), base={})):
        assert not warned(plain(model))


def test_models_and_optimizers_are_not_kept_alive():
    model = parametrized(CASE)
    copied, optimizer = copy.deepcopy(model), plain(model)
    assert warned(optimizer)
    gone = [weakref.ref(thing) for thing in (model, optimizer, copied)]
    del model, optimizer, copied
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (lambda m: nm.MuAdam(m, lr=1e-3, wieght_decay=0.1), "'wieght_decay' 'weight_decay'"),
        (lambda m: nm.MuAdamW(m, lr_mul={"input": 2.0}), "'lr_mul' 'lr_mult'"),
        (lambda m: nm.MuSGD(m, lr=1e-3, momentun=0.9), "'momentun' 'momentum'"),
        (lambda m: nm.MuAdam(m, impl=partial(torch.optim.Adam, amsgrad=True), epss=1e-6), "'epss' 'eps'"),
        (lambda m: nm.MuAdam(m, impl=lambda groups, **kw: torch.optim.Adam(groups, **kw), betas=2), "arguments"),
        (lambda m: nm.MuAdam(m, impl=torch.optim.LBFGS), "LBFGS groups"),
        (lambda m: nm.MuAdam(m, impl="adamw"), "impl str"),
    ],
)
def test_mistakes_in_building_an_optimizer(build, names):
    with refused(names):
        build(parametrized(CASE))


# ---------------------------------------------------------------------------------------------------- schedulers

LR = 1e-2
BASE = {"n_modes": (4,), "hidden_channels": 4}


def build(base=BASE):
    torch.manual_seed(0)
    return nm.parametrize(FNO((8,), 1, 1, 8, n_layers=1), base=base)


def two_rates(lr=0.02, adamw_lr=4e-3):
    """MuSOAP at base: AdamW has one group, which can only be compared with that of the kernels."""
    return nm.MuSOAP(build(base={}), lr, adamw_lr, base_depth=1)


# Schedulers with absolute values, which break the ratios.
BREAKING = {
    "OneCycleLR": lambda o: S.OneCycleLR(o, 1e-1, STEPS + 1),
    "CosineAnnealingLR, eta_min": lambda o: S.CosineAnnealingLR(o, 10, eta_min=1e-3),
    "ReduceLROnPlateau, min_lr": lambda o: S.ReduceLROnPlateau(o, factor=0.5, patience=0, min_lr=4e-3),
    "SWALR": lambda o: swa_utils.SWALR(o, 1e-3, anneal_epochs=5),
}


def warned_of_ratios(optimizer, make=None):
    """Return warnings of broken ratios in a run; there are no gradients, since schedulers do not look at them."""

    def run():
        scheduler = make(optimizer) if make else None
        for _ in range(STEPS):
            optimizer.step()
            if scheduler:
                advance(scheduler)

    return [str(w.message) for w in caught(run, "OneCycleLR(optimizer")]


@pytest.mark.parametrize("key", FOLLOWING)
def test_schedulers_that_scale_are_not_warned_of(key):
    assert not warned_of_ratios(two_rates(), FOLLOWING[key])


@pytest.mark.parametrize("ours", [lambda: nm.MuAdam(build(), LR), lambda: nm.MuSGD(build(), LR, momentum=0.9), two_rates])
@pytest.mark.parametrize("key", BREAKING)
def test_absolute_values_are_warned_of_once(key, ours):
    """OneCycleLR(max_lr=0.1) raised AdamW's 0.004 beside kernels' 0.02 to 0.1."""
    optimizer = ours()
    (message,) = warned_of_ratios(optimizer, BREAKING[key])
    assert "max_lr=[g['lr'] for g in" in message and "eta_min" in message
    assert any(repr(g["name"]) in message for g in optimizer.param_groups)


@pytest.mark.parametrize(
    ("optimizer", "make"),
    [
        (lambda: nm.MuAdam(build(base={}), LR), BREAKING["OneCycleLR"]),  # at base absolute values are right
        (lambda: two_rates(0.02, 0.02), BREAKING["OneCycleLR"]),
        (lambda: two_rates(adamw_lr=0.0), FOLLOWING["CosineAnnealingLR"]),
        # A floor of 1e-5 below learning rates of 1e-2 and 5e-3 moves none of them by more than 0.2 %.
        (lambda: nm.MuAdam(build(), LR), lambda o: S.CosineAnnealingLR(o, STEPS, eta_min=1e-5)),
    ],
)
def test_harmless_absolute_values_are_not_warned_of(optimizer, make):
    assert not warned_of_ratios(optimizer(), make)


def test_groups_that_a_user_changes():
    optimizer = nm.MuAdam(build(), LR)
    first, second, *_ = optimizer.param_groups
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.5})  # a weight of the loss
    first["lr"] = 0.0  # frozen
    second["lr"] *= 3
    second["lr_mult"] *= 3
    assert not warned_of_ratios(optimizer)
    second["lr"] *= 3  # without lr_mult
    (message,) = warned_of_ratios(optimizer)
    assert all(name in message for name in (repr(second["name"]), f"{second['lr']:.4g}", f"{second['lr'] / 3:.4g}"))


# ------------------------------------------------------------------------------------------------ saved and copied


@pytest.mark.parametrize("how", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["deepcopy", "pickle"])
def test_copies_step_and_are_followed_again_on_request(how):
    model = build()
    optimizer = nm.MuAdam(model, LR)
    model, copied = how((model, optimizer))
    copied.step()
    for _ in range(2):  # a second call adds nothing
        nm.follow_plan(model, copied)
    copied.param_groups[0]["lr"] = 1.0
    assert len(warned_of_ratios(copied)) == 1
    assert not warned_of_ratios(optimizer)


@pytest.mark.parametrize(
    ("saved", "ours", "names"),
    [
        (nm.MuAdam, nm.MuSGD, "SGD 'momentum'"),
        (nm.MuSGD, nm.MuAdam, "Adam 'betas'"),
        (nm.MuAdam, lambda m: nm.MuAdam(m, impl=torch.optim.RMSprop), "RMSprop 'momentum'"),
    ],
)
def test_a_state_of_another_kind_of_optimizer_is_refused(saved, ours, names):
    """At base groups are the same, and the next step would not find its settings."""
    model = build(base={})
    other = ours(model)
    with refused(names):
        other.load_state_dict(saved(model).state_dict())
    step(other, model)


def test_loading_a_state_keeps_the_hooks():
    model = build()
    optimizer, again = nm.MuAdam(model, LR), nm.MuAdam(model, LR)
    again.load_state_dict(optimizer.state_dict())
    again.param_groups[0]["lr"] = 1.0
    assert len(warned_of_ratios(again)) == 1


# ------------------------------------------------------------------------------------------------ families, parts


class OwnSGD(torch.optim.SGD):
    """May be of either family: it may take a sign of the gradient."""


@pytest.mark.parametrize(
    ("ours", "impl", "names"),
    [(nm.MuAdamW, torch.optim.SGD, "SGD neuralop_mup.MuSGD("), (nm.MuSGD, torch.optim.NAdam, "NAdam neuralop_mup.MuAdam(")],
)
def test_an_optimizer_of_the_other_family_is_refused(ours, impl, names):
    with refused(names):
        ours(build(), impl=impl)
    ours(build(), impl=OwnSGD, lr=0.1)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda model, optimizer: (model, optimizer, "adamw"), "'adamw'"),
        (lambda model, optimizer: (model, "adam"), "str"),
        (lambda model, optimizer: (model, optimizer, "sgd"), "param_groups(model, optimizer='sgd'"),
        (lambda model, _: (model, torch.optim.SGD(nm.param_groups(model, LR), LR)), "param_groups(model, optimizer='sgd'"),
        (lambda model, optimizer: (build(), optimizer), "param_groups(model,"),
        (lambda model, optimizer: (model, torch.optim.Adam(model.parameters())), "param_groups"),
        (lambda model, optimizer: (torch.nn.Linear(2, 2), optimizer), "parametrize"),
    ],
)
def test_optimizers_that_cannot_be_followed(call, names):
    model = build()
    with refused(names):
        nm.follow_plan(*call(model, nm.MuAdam(model, LR)))


def test_conjugated_gradients_are_clipped():
    """The gradient of a kernel's conjugate is a conjugate itself, which has no real view."""
    model = build()
    kernel = model.get_parameter("fno_blocks.convs.0.weight.tensor")
    (kernel.conj() * torch.full_like(kernel, 3 - 4j)).real.sum().backward()
    assert kernel.grad.is_conj()
    nm.clip_spectral_grad_value_(model, 3.5)
    torch.testing.assert_close(kernel.grad, torch.full_like(kernel, 3 - 3.5j))
