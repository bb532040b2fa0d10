"""Modes that change in training: each kernel's learning rate is the rule's at the modes it has at that step."""

import copy
import math
import warnings
from functools import partial

import pytest
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO
from neuralop.training import IncrementalFNOTrainer, save_training_state
from torch.optim import lr_scheduler as S

import neuralop_mup as nm
from neuralop_mup.optim.binding import bind
from support.cases import BY_NAME
from support.schedulers import FOLLOWING
from support.training import random_gradients

LR, WD = 1e-2, 0.1
BASE = {"n_modes": (4, 4), "hidden_channels": 4}
KERNELS = [f"fno_blocks.convs.{i}.weight.tensor" for i in range(2)]
RULES = ("log-modes", "operator-norm")


class Spying:
    """An optimizer that notes the settings of each step, counts in itself and in its groups, and fails if told to."""

    steps, fail = 0, None

    def step(self, closure=None):
        self.seen = {id(p): (g["lr"], g["weight_decay"]) for g in self.param_groups for p in g["params"]}
        self.steps += 1  # as schedule-free optimizers do
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
        if self.fail is not None:
            self.fail()
        return super().step(closure)


class Spy(Spying, torch.optim.AdamW):
    """Of Adam's family."""


class SpySGD(Spying, torch.optim.SGD):
    """Of the other."""


def build(modes=(4, 4), rule="log-modes", **kwargs):
    torch.manual_seed(0)
    kwargs = {"max_n_modes": (8, 8), "n_layers": 2, **kwargs}
    return nm.parametrize(FNO(modes, 1, 1, 8, **kwargs), base=BASE, rule=rule)


def spied(lr=LR, **kwargs):
    model = build(**kwargs)
    return model, nm.MuAdam(model, lr, impl=Spy)


def lrs_of(optimizer):
    return [g["lr"] for g in optimizer.param_groups]


def step_lrs(model, optimizer):
    """Learning rate that the next step gives each parameter, by name; groups are as before afterwards."""
    outside = [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups]
    optimizer.step()
    assert [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == outside
    return {name: optimizer.seen[id(p)][0] for name, p in model.named_parameters()}


def plan_lrs(plan, lr=LR, mult="lr_mult"):
    return {row.name: lr * getattr(row, mult) for row in plan.rows}


def test_worked_by_hand():
    """Base K = (2, 2), Σ log K = 2 log 2; width 8 over 4, so every kernel has 1/r_in = 1/2.

    (4, 4): κ = 1. (8, 8), K = (4, 4): Σ = 4 log 2, κ = √(1/2). (8, 4): Σ = 3 log 2, κ = √(2/3). (6, 6): log 9.
    """
    model, optimizer = spied()
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
    # What a step writes into itself and into its groups stays, whatever it was made with.
    assert optimizer.steps == 5 and {g["k"] for g in optimizer.param_groups} == {5}


@pytest.mark.parametrize("rule", [*RULES, "none", "standard"])
@pytest.mark.parametrize("modes", [(4, 4), (6, 4), (7, 5), (8, 8)])
@pytest.mark.parametrize("grown_first", [False, True])
def test_as_a_model_built_with_those_modes(modes, rule, grown_first):
    model = build(rule=rule)
    if grown_first:
        model.n_modes = modes
    optimizer = nm.MuAdamW(model, LR, impl=Spy, weight_decay=WD)
    model.n_modes = modes
    assert step_lrs(model, optimizer) == pytest.approx(plan_lrs(nm.summary(build(modes, rule))), rel=1e-12)
    # lr · weight_decay is what it is at base, whatever the modes.
    assert all(lr * decay == pytest.approx(LR * WD) for lr, decay in optimizer.seen.values())
    nm.check_optimizer(model, optimizer)
    names = {g["name"] for g in optimizer.param_groups if "mode_mult" in g}
    assert grown_first or names == {f"spectral fno_blocks.convs.{i}" for i in range(2) if rule in RULES}


@pytest.mark.parametrize("name", ["tucker_max_n_modes", "max_n_modes", "legacy_incremental"])
@pytest.mark.parametrize("rule", RULES)
def test_every_layout(name, rule):
    case = BY_NAME[name]
    model, other = (nm.parametrize(case.build(), base=case.base, rule=rule) for _ in range(2))
    optimizer = nm.MuAdam(model, LR, impl=Spy)
    before = step_lrs(model, optimizer)
    assert before == pytest.approx(plan_lrs(nm.summary(model)), rel=1e-12)
    for conv in (conv for m in (model, other) for conv in m.modules()):
        if hasattr(conv, "incremental_n_modes"):
            conv.incremental_n_modes = (4, 2)
        elif hasattr(conv, "n_modes") and hasattr(conv, "weight"):
            conv.n_modes = (4, 4)
    after = step_lrs(model, optimizer)
    assert after == pytest.approx(plan_lrs(bind(other).plan), rel=1e-12)
    moved = {n for n in after if after[n] != before[n]}
    assert moved and all(after[n] > before[n] for n in moved)  # fewer modes: faster
    assert all(nm.summary(model)[n].role == "spectral" for n in moved)


@pytest.mark.parametrize(
    ("kind", "settings", "mult"),
    [(nm.MuAdam, {"impl": Spy}, "lr_mult"), (nm.MuSGD, {"impl": SpySGD, "momentum": 0.9}, "sgd_lr_mult")],
)
@pytest.mark.parametrize("key", FOLLOWING)
def test_under_every_scheduler(key, kind, settings, mult):
    """Steps are made with what the schedule gives to one plain group, times the rule, also at modes that grow."""
    model = build()
    optimizer = kind(model, LR, **settings)
    reference = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], LR, momentum=0.9)
    schedulers = [FOLLOWING[key](o) for o in (optimizer, reference)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(25):
            model.n_modes = {3: (6, 6), 7: (8, 8)}.get(step, model.n_modes)
            expected = plan_lrs(bind(model).plan, *lrs_of(reference), mult)
            assert step_lrs(model, optimizer) == pytest.approx(expected, rel=1e-9, abs=1e-15), step
            reference.step()
            for s in schedulers:
                s.step(*(1.0,) * isinstance(s, S.ReduceLROnPlateau))


@pytest.mark.filterwarnings("ignore:.*unexpected keyword arguments")
@pytest.mark.parametrize(
    ("algorithm", "eps"),
    [
        ("incremental_loss_gap", {"incremental_loss_eps": 1e9}),
        ("incremental_grad", {"incremental_grad_eps": 1e9, "incremental_grad_max_iter": 1}),
    ],
)
def test_neuralops_incremental_trainer(algorithm, eps):
    """It moves convs[0] alone, by one (K changes every second time), and model.n_modes goes stale."""
    model, optimizer = spied()
    trainer = IncrementalFNOTrainer(model=model, n_epochs=8, **{algorithm: True}, **eps)
    trainer.optimizer = optimizer
    trainer.scheduler = S.CosineAnnealingWarmRestarts(optimizer, 100)
    trainer.regularizer = None
    batch = {"x": torch.randn(2, 1, 16, 16), "y": torch.randn(2, 1, 16, 16)}
    conv, ks = model.fno_blocks.convs[0], set()
    for epoch in range(8):
        base_lr = optimizer.param_groups[0]["lr"]
        k = conv.n_modes[0] // 2
        trainer.train_one_epoch(epoch, [batch], LpLoss(d=2))
        lrs = {name: optimizer.seen[id(p)][0] / base_lr for name, p in model.named_parameters()}
        assert [lrs[name] for name in KERNELS] == pytest.approx([math.sqrt(math.log(2) / math.log(k)) / 2, 0.5])
        ks.add(k)
    assert {2, 3} <= ks and tuple(model.n_modes) == (4, 4)


def test_resume_after_growth():
    model, optimizer = spied()
    scheduler = S.LambdaLR(optimizer, lambda t: 0.9**t)
    model.n_modes = (8, 8)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    expected = step_lrs(model, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    for modes in ((4, 4), (8, 8)):  # constructed as at first, or at the grown size: the same groups
        again, resumed = spied(modes=modes)
        resumed.load_state_dict(state)
        again.n_modes = (8, 8)
        assert step_lrs(again, resumed) == pytest.approx(expected, rel=1e-12)
        nm.check_optimizer(again, resumed)


def test_a_state_with_another_master_is_refused():
    """The rule's part of a growing kernel's learning rate may differ from the file's; what was tuned may not."""
    state = nm.MuAdam(build((8, 8)), lr_mult={"spectral": 2.0}).state_dict()
    nm.MuAdam(build((4, 4)), lr_mult={"spectral": 2.0}).load_state_dict(state)
    other = nm.MuAdam(build((4, 4)))
    before = lrs_of(other)
    with pytest.raises(nm.MupError, match=r"lr_mult of group 'spectral .* is 0\.5, saved was 0\.70"):
        other.load_state_dict(state)
    assert lrs_of(other) == before


def test_init_is_for_the_modes_at_parametrize():
    """Of all of the kernel, the idle modes too."""
    torch.manual_seed(0)
    plain = FNO((8, 4), 1, 1, 8, n_layers=2, max_n_modes=(8, 8))
    model = build((8, 4))
    kernel, stock = (dict(m.named_parameters())[KERNELS[0]].detach() for m in (model, plain))
    torch.testing.assert_close(kernel, stock * math.sqrt(2 / 3))


@pytest.mark.parametrize("where", ["step", "closure"])
@pytest.mark.parametrize("scheduler", [lambda o: S.ExponentialLR(o, 0.5), lambda o: S.LambdaLR(o, lambda t: 0.5**t)])
def test_a_step_that_raises_leaves_the_groups_alone(scheduler, where):
    """What a scheduler, a checkpoint, a copy or the next step find in the groups is the groups' own, also meanwhile."""
    model, optimizer = spied()
    schedule, own, inside = scheduler(optimizer), lrs_of(optimizer), []

    def fail(*_):
        inside.append(lrs_of(optimizer))
        raise RuntimeError("out of memory")

    optimizer.fail = fail if where == "step" else None
    model.n_modes = (8, 8)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="out of memory"):
            optimizer.step(fail if where == "closure" else None)
        for found in (optimizer, copy.deepcopy(optimizer)):
            assert lrs_of(found) == [g["lr"] for g in found.state_dict()["param_groups"]] == inside[-1] == own
        schedule.step()
        own = [lr / 2 for lr in own]


class Accelerated(torch.optim.Optimizer):
    """As accelerate's AcceleratedOptimizer, which was never constructed as an optimizer and has no hooks."""

    param_groups = property(lambda self: self.optimizer.param_groups)

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        self.optimizer.step(closure)


@pytest.mark.parametrize("inner", [lambda m: Spy(nm.param_groups(m, LR), LR), lambda m: nm.MuAdam(m, LR, impl=Spy)])
def test_an_optimizer_around_another_one(inner):
    """It is the inner one that makes the steps, and that is followed."""
    model = build()
    optimizer = Accelerated(inner(model))
    nm.follow_plan(model, optimizer)
    model.n_modes = (8, 8)
    nm.check_optimizer(model, optimizer)
    assert step_lrs(model, optimizer.optimizer) == pytest.approx(plan_lrs(bind(model).plan), rel=1e-12)
    nm.Monitor(model, optimizer, to=lambda records: None).close()
    assert nm.LearnedRates(optimizer).optimizer is optimizer.optimizer


def test_a_learning_rate_that_is_a_tensor_keeps_its_place():
    """As a captured graph needs it: the numbers change, the memory does not."""
    model, optimizer = spied(lr=torch.tensor(LR))
    schedule = S.ExponentialLR(optimizer, 0.5)
    model.n_modes = (8, 8)
    places = set()
    for step in range(3):
        optimizer.step()
        lrs = {name: optimizer.seen[id(p)][0] for name, p in model.named_parameters()}
        places.add(tuple(lr.data_ptr() for lr in lrs.values()))
        expected = plan_lrs(bind(model).plan, LR * 0.5**step)
        assert {name: lr.item() for name, lr in lrs.items()} == pytest.approx(expected)
        schedule.step()
    assert len(places) == 1


@pytest.mark.filterwarnings("ignore:Dynamo does not know")
def test_a_compiled_step_follows():
    """And it is compiled once: a step's stand-in is the same object each time."""
    models = [build(), build()]
    steps = [nm.MuAdam(m, LR).step for m in models]
    steps[0] = torch.compile(steps[0], backend="eager")
    for m, step in zip(models, steps, strict=True):
        m.n_modes = (8, 8)
        for i in range(3):
            random_gradients(m, i)
            with torch.compiler.set_stance("default" if i < 2 else "fail_on_recompile"):
                step()
    one, other = ([p.detach() for p in m.parameters()] for m in models)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-4)  # a step without the mode rule would be 3e-3 away


def test_without_max_n_modes():
    """Kernels share a group: as long as they change together it follows, else it says what to do."""
    model, optimizer = spied(modes=(8, 8), max_n_modes=None)
    model.n_modes = (4, 4)
    assert step_lrs(model, optimizer)[KERNELS[0]] == pytest.approx(LR / 2)
    model.fno_blocks.convs[0].n_modes = (8, 8)
    with pytest.raises(nm.MupError, match="shares the optimizer's group 'spectral' with .* max_n_modes"):
        optimizer.step()


def test_an_optimizer_that_is_not_followed_is_found_stale():
    model = build()
    optimizer = torch.optim.Adam(nm.param_groups(model, LR), LR)
    nm.check_optimizer(model, optimizer)
    model.n_modes = (8, 8)
    with pytest.raises(nm.MupError, match="does not follow the plan"):
        nm.check_optimizer(model, optimizer)


@pytest.mark.parametrize(
    ("modes", "message"),
    [
        ((10, 8), "must not exceed max_n_modes"),
        ((3, 2), "Σ log K, which is zero"),
        ((0, 4), "at least 1"),
        ((-2, 4), "at least 1"),
        ((4,), "for each of its 2 axes"),
        (4, "for each of its 2 axes"),
        ((4.5, 4), "whole number"),
    ],
)
def test_bad_modes(modes, message):
    model, optimizer = spied()
    for conv in model.fno_blocks.convs:
        conv.n_modes = modes
    with pytest.raises(nm.MupError, match=message):
        optimizer.step()
    model.n_modes = (4, 4)
    assert step_lrs(model, optimizer) == pytest.approx(plan_lrs(nm.summary(model)))


@pytest.mark.parametrize("method", [nm.MuAdamW, partial(nm.MuSOAP, steps=10)], ids=["AdamW", "SOAP"])
def test_a_resumed_model_has_the_modes_that_it_had_grown_to(tmp_path, method):
    """A script builds the model as at the beginning, with few modes, and loads what was saved later."""

    def begin():
        model = nm.parametrize(FNO((16,), 1, 1, 16, n_layers=2, max_n_modes=(16,)), base={"n_modes": (8,)})
        model.n_modes = (4,)
        return model, method(model, lr=0.004)

    x = torch.randn(4, 1, 32)
    model, optimizer = begin()
    model.n_modes = (16,)
    for _ in range(3):
        _step(model, optimizer, x)
    save_training_state(tmp_path, "model", model, optimizer, epoch=0)
    again, resumed = begin()
    nm.load_checkpoint(tmp_path, again, resumed)
    assert tuple(again.n_modes) == (16,) and torch.equal(again(x), model(x))
    for own, its in ((model, optimizer), (again, resumed)):
        _step(own, its, x)
    assert all(map(torch.equal, model.parameters(), again.parameters()))

    few, _ = begin()
    with pytest.warns(UserWarning, match=r"saved with n_modes \(4,\), which the model has now instead of \(16,\)"):
        again.load_state_dict(few.state_dict())
    assert torch.equal(again(x), few(x))


@pytest.mark.parametrize("says", [lambda self: self.fno.n_modes, lambda self: 4], ids=["tuple", "number"])
def test_a_model_around_an_fno_that_says_its_modes_is_saved_and_loaded(says):
    class Around(torch.nn.Module):
        n_modes = property(says)

        def __init__(self):
            super().__init__()
            self.fno = FNO((16,), 1, 1, 16, n_layers=2, max_n_modes=(16,))

    model, again = (nm.parametrize(Around(), base={"n_modes": (8,)}) for _ in range(2))
    model.fno.n_modes = (4,)
    with pytest.warns(UserWarning, match="were saved with n_modes"):
        again.load_state_dict(model.state_dict())
    assert tuple(again.fno.n_modes) == (4,)


def _step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
