"""Checkpoints: the plan is saved with the weights, and a resumed run is bit for bit the uninterrupted one."""

import copy
import json
import warnings
from contextlib import contextmanager

import pytest
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO, UQNO
from neuralop.training import AdamW as NeuralopAdamW
from neuralop.training import Trainer
from neuralop.training.training_state import save_training_state

import neuralop_mup as nm
from support.cases import BY_NAME
from support.comparing import assert_same, rates
from support.errors import refused, warned
from support.models import KERNEL, parametrized

CASE, ONE = BY_NAME["2d"], BY_NAME["1d"]
LR = 5e-3


def optimizer_of(model, impl=torch.optim.AdamW):
    optimizer = nm.MuAdamW(model, lr=LR, weight_decay=1e-2, impl=impl)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def train(case, model, optimizer, scheduler, steps):
    """Train on the batches of these seeds."""
    for step in steps:
        x, y = case.batch(seed=step)
        optimizer.zero_grad()
        (case.output(model, x) - y).abs().square().mean().backward()
        optimizer.step()
        scheduler.step()


@contextmanager
def unchanged(model):
    """Check that weights and plan stay as they are."""
    before = [p.detach().clone() for p in model.parameters()]
    plan = nm.is_parametrized(model) and nm.summary(model)
    yield
    assert all(map(torch.equal, model.parameters(), before))
    assert (nm.is_parametrized(model) and nm.summary(model)) == plan


@pytest.fixture
def resumed(tmp_path):
    """Save a checkpoint to ``tmp_path``, and return a model, an optimizer and a scheduler that can load it."""
    saved, model = parametrized(ONE), parametrized(ONE, seed=1)
    parts = optimizer_of(saved)
    train(ONE, saved, *parts, range(2))
    save_training_state(tmp_path, "model", saved, *parts, epoch=0)
    return model, *optimizer_of(model)


# ------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize(("name", "impl"), [("batch_norm", torch.optim.AdamW), ("tucker_1d", NeuralopAdamW)])
def test_next_steps_are_the_same(name, impl, tmp_path):
    case = BY_NAME[name]
    model, again = parametrized(case), parametrized(case, seed=1)
    parts, resumed = optimizer_of(model, impl), optimizer_of(again, impl)
    train(case, model, *parts, range(3))
    save_training_state(tmp_path, "model", model, *parts, epoch=4)
    train(case, model, *parts, range(3, 6))
    assert nm.load_checkpoint(tmp_path, again, *resumed) == 5
    train(case, again, *resumed, range(3, 6))
    assert_same(again, model)
    nm.check_optimizer(again, resumed[0])


def test_a_model_without_a_plan_takes_that_of_the_checkpoint(tmp_path):
    """from_checkpoint runs the constructor again. One call brings the plan back, on any model of the same sizes."""
    model, path = parametrized(CASE), tmp_path / "model_state_dict.pt"
    save_training_state(tmp_path, "model", model, epoch=1)
    loaded, other = FNO.from_checkpoint(tmp_path, "model"), CASE.build(seed=5)
    with refused("init=False"):
        nm.parametrize(loaded, base=CASE.base)
    assert nm.load_plan(loaded, path) is loaded
    assert nm.load_checkpoint(tmp_path, other) == 2
    assert_same(loaded, model)
    assert nm.summary(loaded) == nm.summary(other) == nm.summary(model)
    # Trained weights get half of the learning rate of fresh ones, 0.03 at 1000 steps.
    trained = nm.load_plan(nm.parametrize(CASE.build(), base=CASE.base, init=False), path)
    lrs = [nm.MuSOAP(m, steps=1000, base_depth=None).param_groups[0]["lr"] for m in (loaded, other, trained, model)]
    assert lrs == [0.015, 0.015, 0.015, 0.03]


def test_a_plan_in_a_file_of_a_model_whose_modes_have_grown(tmp_path):
    case = BY_NAME["max_n_modes"]
    model = parametrized(case)
    model.n_modes = (10, 10)
    nm.save_plan(model, tmp_path / "plan.json")
    assert nm.summary(nm.load_plan(case.build(seed=1), tmp_path / "plan.json")) == nm.summary(model)


def test_some_of_the_weights_are_refused_before_initialization():
    """Otherwise the initialization would overwrite the loaded weights."""
    state = parametrized(CASE).state_dict()
    del state["projection.fcs.1.bias"]
    with torch.device("meta"):
        model = nm.parametrize(CASE.build(), base=CASE.base)
    with refused("neuralop_mup.initialize"):
        model.to_empty(device="cpu").load_state_dict(state, strict=False)
    nm.initialize(model).load_state_dict(state, strict=False)


def test_weights_without_the_head():
    """The usual way to another number of outputs: remove the entries of the head, and load the rest."""
    other, state = nm.parametrize(CASE.build(out_channels=5), base=CASE.base), parametrized(CASE).state_dict()
    head = ["projection.fcs.1.weight", "projection.fcs.1.bias"]
    for key in head:
        del state[key]
    assert other.load_state_dict(state, strict=False).missing_keys == head
    with pytest.raises(RuntimeError, match=head[0]):
        other.load_state_dict(state)
    with refused("plan"):
        nm.parametrize(CASE.build(), base={"hidden_channels": 12}).load_state_dict(state, strict=False)


@pytest.mark.filterwarnings("ignore:.*received unexpected keyword arguments")
def test_neuralops_trainer_resumes(tmp_path):
    """One epoch, stop, resume for another: the weights of two."""
    samples = [{"x": x, "y": y} for x, y in zip(*ONE.batch(size=4), strict=True)]
    loader = torch.utils.data.DataLoader(samples, batch_size=2)

    def run(model, parts, epochs, start=0):
        trainer = Trainer(model=model, n_epochs=epochs, device="cpu", verbose=False)
        trainer.start_epoch = start
        trainer.train(loader, {}, *parts, training_loss=LpLoss(d=1), save_every=1, save_dir=tmp_path)

    whole, first, second = (parametrized(ONE, seed) for seed in (0, 0, 3))
    run(whole, optimizer_of(whole), 2)
    run(first, optimizer_of(first), 1)
    parts = optimizer_of(second)
    assert nm.load_checkpoint(tmp_path, second, *parts) == 1
    run(second, parts, 2, start=1)
    assert_same(second, whole)


def test_weights_and_optimizer_of_one_save(tmp_path):
    """The manifest says that the optimizer's state belongs to the newer model, not to the older best_model."""
    model, again = parametrized(ONE), parametrized(ONE, seed=1)
    parts, resumed, saved = optimizer_of(model), optimizer_of(again), {}
    for epoch, name in enumerate(("best_model", "model")):
        train(ONE, model, *parts, [epoch])
        save_training_state(tmp_path, name, model, *parts, epoch=epoch)
        saved[name] = copy.deepcopy(model)
    assert nm.load_checkpoint(tmp_path, again, *resumed) == 2
    assert_same(again, saved["model"])
    with unchanged(again), refused("'model_state_dict.pt' 'best_model_state_dict.pt'"):
        nm.load_checkpoint(tmp_path, again, *resumed, name="best_model")
    (tmp_path / "manifest.pt").unlink()
    with refused("name='model' name='best_model'"):
        nm.load_checkpoint(tmp_path, again)
    for name, expected in saved.items():
        assert nm.load_checkpoint(tmp_path, again, name=name) == 0  # its epoch is not known
        assert_same(again, expected)


# --------------------------------------------------------------------------------------- what must not be loaded


@pytest.mark.parametrize(
    ("kwargs", "names"),
    [
        ({"base": {"n_modes": (4, 4), "hidden_channels": 12}}, "12"),
        ({"rule": "none"}, "rule 'none' 'operator-norm'"),
        ({"init_mult": {"readout": 0.5}}, "init_mult {'readout':0.5} {}"),
    ],
)
def test_weights_of_another_plan_are_refused(kwargs, names, tmp_path):
    saved = parametrized(CASE)
    save_training_state(tmp_path, "model", saved)
    model = nm.parametrize(CASE.build(seed=1), **{"base": CASE.base, **kwargs})
    for load in (
        lambda: model.load_state_dict(saved.state_dict()),
        lambda: nm.load_plan(model, tmp_path / "model_state_dict.pt"),
        lambda: nm.load_checkpoint(tmp_path, model),
    ):
        with unchanged(model), refused(names):
            load()


@pytest.mark.parametrize(
    ("build", "edit", "names"),
    [
        (lambda: CASE.build(hidden_channels=16), dict, "24 16"),
        (ONE.build, dict, KERNEL),
        (CASE.build, lambda plan: plan["rows"][1].update(lr_mult=0.5), f"{KERNEL} 0.5 0.249"),
        (CASE.build, lambda plan: plan.update(version=0), "0 2"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(build, edit, names, tmp_path):
    plan = json.loads(nm.summary(parametrized(CASE, rule="log-modes")).to_json())
    edit(plan)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    model = build()
    with unchanged(model), refused(names):
        nm.load_plan(model, tmp_path / "plan.json")


def test_a_checkpoint_without_a_plan(tmp_path):
    stock, model, attached = CASE.build(seed=1), parametrized(CASE), parametrized(CASE, init=False)
    stock.save_checkpoint(tmp_path, "model")
    for load in (
        lambda: model.load_state_dict(stock.state_dict()),
        lambda: nm.load_checkpoint(tmp_path, model),
        lambda: nm.load_plan(model, tmp_path / "model_state_dict.pt"),
    ):
        with unchanged(model), refused("init=False"):
            load()
    attached.load_state_dict(stock.state_dict())
    assert_same(attached, stock)


@pytest.mark.parametrize("copied", [dict, lambda s: {k: v for k, v in s.items() if k != "_metadata"}])
def test_weights_in_a_plain_dict_trigger_one_warning(copied):
    """A plain dict has no plan, with neuralop's own entry or without."""
    state, model = copied(CASE.build(seed=1).state_dict()), parametrized(CASE)
    with warned("init=False") as caught:
        model.load_state_dict(state)
        model.load_state_dict(state)
    assert len(caught) == 1


def test_known_weights_trigger_no_warning(tmp_path):
    saved = parametrized(CASE)
    torch.save(saved.state_dict(), tmp_path / "weights.pt")
    plain = {k: v for k, v in saved.state_dict().items() if isinstance(v, torch.Tensor)}
    stripped = torch.nn.DataParallel(saved).state_dict()
    torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(stripped, "module.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model, state in (
            (parametrized(CASE, seed=1), torch.load(tmp_path / "weights.pt", weights_only=False)),
            (parametrized(CASE, seed=1), copy.deepcopy(saved.state_dict())),
            (parametrized(CASE, seed=1), stripped),
            (parametrized(CASE, init=False), plain),
            (nm.load_plan(CASE.build(seed=1), tmp_path / "weights.pt"), plain),
            (nm.parametrize(CASE.build(), base=CASE.same), plain),  # at base every plan gives the same weights
        ):
            model.load_state_dict(state)


@pytest.mark.parametrize("file", ["model_state_dict.pt", "optimizer.pt", "scheduler.pt", "manifest.pt", "plan.json"])
def test_truncated_files(file, resumed, tmp_path):
    model, *parts = resumed
    nm.save_plan(model, tmp_path / "plan.json")
    whole, states = (tmp_path / file).read_bytes(), copy.deepcopy([part.state_dict() for part in parts])
    (tmp_path / file).write_bytes(whole[: len(whole) // 2])
    with unchanged(model), refused(file):
        nm.load_plan(model, tmp_path / file) if file == "plan.json" else nm.load_checkpoint(tmp_path, model, *parts)
    assert [part.state_dict() for part in parts] == states


def test_missing_files(tmp_path):
    model = parametrized(ONE)
    save_training_state(tmp_path / "saved", "model", model)
    for call, names in (
        (lambda: nm.load_checkpoint(tmp_path, model), "best_model_state_dict.pt model_state_dict.pt"),
        (lambda: nm.load_checkpoint(tmp_path / "saved", model, *optimizer_of(model)), "optimizer.pt"),
        (lambda: nm.load_plan(model, tmp_path / "nothing.json"), "nothing.json"),
        (lambda: nm.save_plan(model, tmp_path / "no" / "plan.json"), "plan.json"),
        (lambda: nm.load_plan(model, 3), "int"),
    ):
        with refused(names):
            call()
    assert nm.load_checkpoint(tmp_path / "saved", model) == 0


def test_an_optimizer_state_of_other_groups(tmp_path):
    model = parametrized(CASE)
    optimizer, other = nm.MuAdam(model, lr=LR), nm.MuAdam(model, lr=LR, lr_mult={"spectral": 2.0})
    before = copy.deepcopy(optimizer.state_dict())
    save_training_state(tmp_path, "model", model, other)
    for load in (
        lambda: optimizer.load_state_dict(other.state_dict()),
        lambda: optimizer.load_state_dict({}),
        lambda: nm.load_checkpoint(tmp_path, model, optimizer),
    ):
        with unchanged(model), refused("groups"):
            load()
        assert optimizer.state_dict() == before


@pytest.mark.parametrize("kind", [nm.MuSOAP, nm.MuAdamW])
def test_optimizer_states_of_another_size(kind):
    """With the same number of groups and the same multipliers torch accepts them, and the first step fails halfway."""

    def trained(n_modes):
        model = nm.parametrize(FNO((n_modes,), 1, 1, 4, n_layers=1), base={})
        optimizer = kind(model, lr=0.01)
        model(torch.randn(2, 1, 32)).square().mean().backward()
        optimizer.step()
        return optimizer

    optimizer = trained(12)
    before = str(optimizer.state_dict())
    with refused("(4,4,5) (4,4,7)"):
        optimizer.load_state_dict(trained(8).state_dict())
    assert str(optimizer.state_dict()) == before


def test_nothing_is_loaded_where_the_scheduler_is_another(resumed, tmp_path):
    model, optimizer, scheduler = resumed
    train(ONE, model, optimizer, scheduler, [0])
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    before, own = copy.deepcopy([optimizer.state_dict(), scheduler.state_dict()])
    with unchanged(model), refused("ReduceLROnPlateau"):
        nm.load_checkpoint(tmp_path, model, optimizer, scheduler)
    torch.testing.assert_close(optimizer.state_dict()["state"], before["state"], rtol=0, atol=0)
    assert (optimizer.state_dict()["param_groups"], scheduler.state_dict()) == (before["param_groups"], own)


@pytest.mark.filterwarnings("ignore:Attempting to update metadata")
def test_a_uqno_from_neuralops_checkpoint(tmp_path):
    """The checkpoint holds the whole base model. Its parameters have infshapes, but there is no plan."""

    def build(width):
        return UQNO(FNO((8, 8), 1, 1, width, n_layers=1))

    model = nm.parametrize(build(8), base=lambda: build(4))
    model.save_checkpoint(tmp_path, "uqno")
    read = UQNO.from_checkpoint(tmp_path, "uqno")
    with refused("unparametrize init=False"):
        nm.parametrize(read, base=lambda: build(4), init=False)
    nm.parametrize(nm.unparametrize(read), base=lambda: build(4), init=False)
    assert_same(read, model)
    assert rates(nm.MuAdam(read, lr=1e-3), read) == rates(nm.MuAdam(model, lr=1e-3), model)


@pytest.mark.parametrize("prefix", ["_orig_mod", "module"])
def test_weights_of_a_compiled_or_wrapped_model(prefix):
    saved, model = parametrized(ONE), parametrized(ONE, seed=1)
    state = torch.nn.ModuleDict({prefix: saved}).state_dict()
    with unchanged(model), refused(f"'{prefix}.'"):
        model.load_state_dict(state)
    torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, f"{prefix}.")
    model.load_state_dict(state)
    assert_same(model, saved)
