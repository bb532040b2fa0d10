"""Modes that change in training: each kernel's learning rate is the rule's at the modes that it has at that step."""

import copy
import math
import warnings
from functools import partial

import pytest
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO
from neuralop.training import IncrementalFNOTrainer
from torch.optim import lr_scheduler as S

import neuralop_mup as nm
from neuralop_mup.optim.resolved_model import resolve
from support.cases import BY_NAME
from support.comparing import differing
from support.errors import refused
from support.schedulers import FOLLOWING, STEPS, advance
from support.training import random_gradients, train_small

LR, WD = 1e-2, 0.1
BASE = {"n_modes": (4, 4), "hidden_channels": 4}
KERNELS = [f"fno_blocks.convs.{i}.weight.tensor" for i in range(2)]
RULES = ("log-modes", "operator-norm")


class Recording:
    """An optimizer that records the settings of each step, counts in its groups, and may fail."""

    fail = None

    def step(self, closure=None):
        self.seen = {id(p): (g["lr"], g["weight_decay"]) for g in self.param_groups for p in g["params"]}
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1  # as schedule-free optimizers do
        if self.fail is not None:
            self.fail()
        return super().step(closure)


def recording(optimizer):
    return type("Recorded", (Recording, optimizer), {})


ADAMW, SGD = recording(torch.optim.AdamW), recording(torch.optim.SGD)


def build(modes=(4, 4), rule="log-modes", **kwargs):
    torch.manual_seed(0)
    kwargs = {"max_n_modes": (8, 8), "n_layers": 2, **kwargs}
    return nm.parametrize(FNO(modes, 1, 1, 8, **kwargs), base=BASE, rule=rule)


def recorded(lr=LR, **kwargs):
    model = build(**kwargs)
    return model, nm.MuAdam(model, lr, impl=ADAMW)


def lrs_of(optimizer):
    return [g["lr"] for g in optimizer.param_groups]


def step_lrs(model, optimizer):
    """Take a step and return the learning rate of each parameter; the optimizer's own groups stay as they are."""
    before = [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups]
    optimizer.step()
    assert [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == before
    return {name: optimizer.seen[id(p)][0] for name, p in model.named_parameters()}


def plan_lrs(plan, lr=LR, mult="lr_mult"):
    return pytest.approx({row.name: lr * getattr(row, mult) for row in plan.rows}, rel=1e-9, abs=1e-15)


def test_learning_rates_by_hand():
    """Base K = (2, 2), Σ log K = 2 log 2; width 8 over 4, so every kernel has 1/r_in = 1/2.

    (4, 4): κ = 1. (8, 8), K = (4, 4): Σ = 4 log 2, κ = √(1/2). (8, 4): Σ = 3 log 2, κ = √(2/3). (6, 6): log 9.
    """
    model, optimizer = recorded()
    for modes, kappa in (
        ((4, 4), 1.0),
        ((8, 8), math.sqrt(1 / 2)),
        ((8, 4), math.sqrt(2 / 3)),
        ((6, 6), math.sqrt(math.log(4) / math.log(9))),
        ((4, 4), 1.0),
    ):
        model.n_modes = modes
        lrs = step_lrs(model, optimizer)
        assert [lrs[name] for name in KERNELS] == pytest.approx([LR * kappa / 2] * 2, rel=1e-12)
        assert lrs["projection.fcs.1.weight"] == LR / 2
    assert {g["k"] for g in optimizer.param_groups} == {5}  # what a step writes into the groups stays there


@pytest.mark.parametrize("rule", [*RULES, "none", "standard"])
@pytest.mark.parametrize("modes", [(7, 5), (8, 8)])
def test_learning_rates_are_those_of_a_model_built_with_these_modes(modes, rule):
    model = build(rule=rule)
    optimizer = nm.MuAdamW(model, LR, impl=ADAMW, weight_decay=WD)
    model.n_modes = modes
    assert step_lrs(model, optimizer) == plan_lrs(nm.summary(build(modes, rule)))
    # lr · weight_decay is that at base.
    assert all(lr * decay == pytest.approx(LR * WD) for lr, decay in optimizer.seen.values())
    nm.check_optimizer(model, optimizer)


@pytest.mark.parametrize("name", ["tucker_max_n_modes", "max_n_modes", "legacy_incremental"])
def test_fewer_modes_raise_the_learning_rates_of_every_layout(name):
    case = BY_NAME[name]
    model = nm.parametrize(case.build(), base=case.base)
    optimizer = nm.MuAdam(model, LR, impl=ADAMW)
    before = step_lrs(model, optimizer)
    attribute, modes = ("incremental_n_modes", (4, 2)) if name == "legacy_incremental" else ("n_modes", (4, 4))
    for conv in model.modules():
        if hasattr(conv, attribute):
            setattr(conv, attribute, modes)
    after = step_lrs(model, optimizer)
    assert after == plan_lrs(resolve(model).plan)
    assert {nm.summary(model)[name].role for name in after if after[name] > before[name]} == {"spectral"}


@pytest.mark.parametrize("key", FOLLOWING)
def test_learning_rates_under_schedulers(key):
    """They are those of one plain group, times the rule, also at modes that grow."""
    model = build()
    optimizer = nm.MuSGD(model, LR, impl=SGD, momentum=0.9)
    reference = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], LR, momentum=0.9)
    schedulers = [FOLLOWING[key](o) for o in (optimizer, reference)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(STEPS):
            model.n_modes = {3: (6, 6), 7: (8, 8)}.get(step, model.n_modes)
            assert step_lrs(model, optimizer) == plan_lrs(resolve(model).plan, *lrs_of(reference), "sgd_lr_mult"), step
            reference.step()
            for scheduler in schedulers:
                advance(scheduler)


@pytest.mark.filterwarnings("ignore:.*unexpected keyword arguments")
@pytest.mark.parametrize(
    ("algorithm", "eps"),
    [
        ("incremental_loss_gap", {"incremental_loss_eps": 1e9}),
        ("incremental_grad", {"incremental_grad_eps": 1e9, "incremental_grad_max_iter": 1}),
    ],
)
def test_neuralops_incremental_trainer(algorithm, eps):
    """It moves only convs[0], by one (K changes every second time), and model.n_modes goes stale."""
    model, optimizer = recorded()
    trainer = IncrementalFNOTrainer(model=model, n_epochs=6, **{algorithm: True}, **eps)
    trainer.optimizer, trainer.regularizer = optimizer, None
    trainer.scheduler = S.CosineAnnealingWarmRestarts(optimizer, 100)
    batch = {"x": torch.randn(2, 1, 16, 16), "y": torch.randn(2, 1, 16, 16)}
    ks = []
    for epoch in range(6):
        base_lr = optimizer.param_groups[0]["lr"]
        ks.append(model.fno_blocks.convs[0].n_modes[0] // 2)
        trainer.train_one_epoch(epoch, [batch], LpLoss(d=2))
        mults = [optimizer.seen[id(model.get_parameter(name))][0] / base_lr for name in KERNELS]
        assert mults == pytest.approx([math.sqrt(math.log(2) / math.log(ks[-1])) / 2, 0.5])
    assert {2, 3} <= {*ks} and tuple(model.n_modes) == (4, 4)


def test_a_state_with_other_tuned_multipliers_is_refused():
    """Only the rule's part of a growing kernel's learning rate may differ from that of the state."""
    state = nm.MuAdam(build((8, 8)), lr_mult={"spectral": 2.0}).state_dict()
    nm.MuAdam(build((4, 4)), lr_mult={"spectral": 2.0}).load_state_dict(state)
    with refused("lr_mult 'spectral 0.5 0.70"):
        nm.MuAdam(build((4, 4))).load_state_dict(state)


@pytest.mark.parametrize("where", ["step", "closure"])
def test_a_step_that_raises_does_not_change_the_groups(where):
    """A checkpoint, a copy or the next step find the user's learning rates, also during the step."""
    model, optimizer = recorded()
    own, inside = lrs_of(optimizer), []

    def fail(*_):
        inside.extend(lrs_of(optimizer))
        raise RuntimeError("out of memory")

    optimizer.fail = fail if where == "step" else None
    model.n_modes = (8, 8)
    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step(fail if where == "closure" else None)
    assert lrs_of(optimizer) == lrs_of(copy.deepcopy(optimizer)) == inside == own


def test_a_learning_rate_in_a_tensor_keeps_its_memory():
    """A captured graph needs this: the numbers change, the memory does not."""
    model, optimizer = recorded(lr=torch.tensor(LR))
    places = []
    for modes in ((8, 8), (6, 6)):
        model.n_modes = modes
        lrs = step_lrs(model, optimizer)
        expected = plan_lrs(resolve(model).plan).expected
        assert {name: lr.item() for name, lr in lrs.items()} == pytest.approx(expected, rel=1e-6)  # float32
        places.append([lr.data_ptr() for lr in lrs.values()])
    assert places[0] == places[1]


def test_kernels_that_share_a_group_must_change_together():
    model, optimizer = recorded(modes=(8, 8), max_n_modes=None)
    model.n_modes = (4, 4)
    assert step_lrs(model, optimizer)[KERNELS[0]] == pytest.approx(LR / 2)
    model.fno_blocks.convs[0].n_modes = (8, 8)
    with refused("'spectral' max_n_modes"):
        optimizer.step()


@pytest.mark.parametrize(
    ("modes", "names"),
    [
        ((10, 8), "max_n_modes"),
        ((3, 2), "log"),  # Σ log K is zero
        ((0, 4), "n_modes [0,"),
        ((4,), "n_modes 2"),
        (4, "n_modes 2"),
        ((4.5, 4), "n_modes 4.5"),
    ],
)
def test_modes_that_are_refused(modes, names):
    model, optimizer = recorded()
    for conv in model.fno_blocks.convs:
        conv.n_modes = modes
    with refused(names):
        optimizer.step()
    model.n_modes = (4, 4)
    assert step_lrs(model, optimizer) == plan_lrs(nm.summary(model))


@pytest.mark.parametrize("method", [nm.MuAdamW, partial(nm.MuSOAP, steps=10)], ids=["AdamW", "SOAP"])
def test_a_resumed_model_has_its_grown_modes(method):
    """A script builds the model, here around an FNO, with few modes, and loads what was saved later."""

    class Around(torch.nn.Module):
        n_modes = 4

        def __init__(self):
            super().__init__()
            self.fno = FNO((8,), 2, 3, 4, n_layers=1, max_n_modes=(8,))

        def forward(self, x):
            return self.fno(x)

    (model, optimizer), (again, resumed) = ((m, method(m)) for m in (nm.parametrize(Around(), base={}) for _ in range(2)))
    again.fno.n_modes = (4,)
    train_small(model, optimizer, range(2))
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train_small(model, optimizer, range(2, 4))
    train_small(again, resumed, range(2, 4))
    assert tuple(again.fno.n_modes) == (8,) and differing(model, again) == 0
    model.fno.n_modes = (4,)
    with pytest.warns(UserWarning, match="n_modes"):
        again.load_state_dict(model.state_dict())
    assert tuple(again.fno.n_modes) == (4,)


def test_an_optimizer_may_hold_two_models():
    """The second call took the first one's hooks off. Two learning rates at base are no broken ratios, either."""
    models = [nm.parametrize(FNO((8,), 1, 1, 16, max_n_modes=(32,)), base={"hidden_channels": 8}) for _ in range(2)]
    optimizer = torch.optim.NAdam([g for m, lr in zip(models, (1e-3, 1e-2), strict=True) for g in nm.param_groups(m, lr)])
    for model in models:
        nm.follow_plan(model, optimizer)
        model.n_modes = (32,)
        random_gradients(model, 0)
    optimizer.step()
    expected = [row.lr_mult / nm.summary(m)[row.name].lr_mult for m in models for row in resolve(m).plan if row.size.modes]
    assert [g["mode_mult"] for g in optimizer.param_groups if "mode_mult" in g] == pytest.approx(expected)
    assert expected[0] < 1
