"""Checkpoints: the plan travels with the weights, a resumed run's next steps are the uninterrupted run's, bit for bit."""

import copy
import json
import re
import warnings
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import pytest
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO, UQNO
from neuralop.training import AdamW as NeuralopAdamW
from neuralop.training import Trainer
from neuralop.training.training_state import save_training_state

import neuralop_mup as nm
from neuralop_mup.core.plan import Plan
from support.cases import BY_NAME
from support.comparing import assert_same, rates
from support.models import parametrized, small_fno

CASE, ONE = BY_NAME["2d"], BY_NAME["1d"]
LR = 5e-3


def optimizer_of(model, impl=torch.optim.AdamW):
    optimizer = nm.MuAdamW(model, lr=LR, weight_decay=1e-2, impl=impl)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)


def train(case, model, optimizer, scheduler, steps, start=0):
    for step in range(start, start + steps):
        x, y = case.batch(seed=step)
        optimizer.zero_grad()
        (case.output(model, x) - y).abs().square().mean().backward()
        optimizer.step()
        scheduler.step()


@contextmanager
def refused(model, match, error=nm.MupError):
    """A call that fails, and leaves weights and plan as they were."""
    before = [p.detach().clone() for p in model.parameters()]
    plan = nm.is_parametrized(model) and nm.summary(model)
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert all(map(torch.equal, model.parameters(), before))
    assert (nm.is_parametrized(model) and nm.summary(model)) == plan


@pytest.fixture
def resumed(tmp_path):
    """A model with its optimizer, to go on from a checkpoint in ``tmp_path``."""
    saved, model = parametrized(ONE), parametrized(ONE, seed=1)
    parts = optimizer_of(saved)
    train(ONE, saved, *parts, 2)
    save_training_state(tmp_path, "model", saved, *parts, epoch=0)
    return model, *optimizer_of(model)


# ------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize(
    ("name", "impl"), [("1d", torch.optim.AdamW), ("batch_norm", torch.optim.AdamW), ("tucker_1d", NeuralopAdamW)]
)
def test_next_ten_steps_are_the_same(name, impl, tmp_path):
    case = BY_NAME[name]
    model = parametrized(case)
    parts = optimizer_of(model, impl)
    train(case, model, *parts, 3)
    save_training_state(tmp_path, "model", model, *parts, epoch=4)
    train(case, model, *parts, 10, start=3)

    again = parametrized(case, seed=1)
    resumed = optimizer_of(again, impl)
    assert nm.load_checkpoint(tmp_path, again, *resumed) == 5
    train(case, again, *resumed, 10, start=3)
    assert_same(again, model)
    nm.check_optimizer(again, resumed[0])


def test_a_model_without_a_plan_takes_the_one_of_its_checkpoint(tmp_path):
    """from_checkpoint runs the constructor again; the plan comes back by one call, on any model of its sizes."""
    model = parametrized(CASE)
    save_training_state(tmp_path, "model", model, epoch=1)
    loaded, other = FNO.from_checkpoint(tmp_path, "model"), CASE.build(seed=5)
    with pytest.raises(nm.MupError, match="pass init=False"):  # never twice
        nm.parametrize(loaded, base=CASE.base)
    assert nm.load_plan(loaded, tmp_path / "model_state_dict.pt") is loaded
    assert nm.load_checkpoint(tmp_path, other) == 2
    assert_same(loaded, model)
    assert nm.summary(loaded) == nm.summary(other) == nm.summary(model)
    # The rate of trained weights, 0.03 √(1000/4000), not that of fresh ones.
    trained = nm.load_plan(nm.parametrize(CASE.build(), base=CASE.base, init=False), tmp_path / "model_state_dict.pt")
    rates = [nm.MuSOAP(m, steps=1000, base_depth=None).param_groups[0]["lr"] for m in (loaded, other, trained)]
    assert rates == [0.015, 0.015, 0.015]
    assert nm.MuSOAP(model, steps=1000, base_depth=None).param_groups[0]["lr"] == 0.03


def test_part_of_the_weights_does_not_count_as_all(tmp_path):
    """What was loaded would be drawn anew with the rest."""
    state = parametrized(CASE).state_dict()
    del state["projection.fcs.1.bias"]
    with torch.device("meta"):
        model = nm.parametrize(CASE.build(), base=CASE.base)
    with pytest.raises(nm.MupError, match="not all that the model has, .* call neuralop_mup.initialize"):
        model.to_empty(device="cpu").load_state_dict(state, strict=False)
    nm.initialize(model).load_state_dict(state, strict=False)


@pytest.mark.parametrize("init", [False, True])
def test_a_head_may_be_left_out_of_what_is_loaded(init):
    """The usual way to another number of outputs: the head's entries are taken out, and the rest is loaded."""
    state = parametrized(CASE).state_dict()
    other = nm.parametrize(CASE.build(out_channels=5), base=CASE.base, init=init)
    for key in [key for key in state if key.startswith("projection.fcs.1")]:
        del state[key]
    missing, _ = other.load_state_dict(state, strict=False)
    assert missing == ["projection.fcs.1.weight", "projection.fcs.1.bias"]
    with pytest.raises(RuntimeError, match="Missing key.*projection.fcs.1.weight"):
        other.load_state_dict(state)
    with pytest.raises(nm.MupError, match="belong to another plan"):
        nm.parametrize(CASE.build(), base={"hidden_channels": 12}).load_state_dict(state, strict=False)


def test_neuralops_trainer_goes_on(tmp_path):
    """Two epochs, stop, resume for two more: the weights of four."""
    samples = [{"x": x, "y": y} for x, y in zip(*ONE.batch(size=4), strict=True)]
    loader = torch.utils.data.DataLoader(samples, batch_size=2)

    def run(model, parts, epochs, folder, start=0):
        trainer = Trainer(model=model, n_epochs=epochs, device="cpu", verbose=False)
        trainer.start_epoch = start
        how = {"training_loss": LpLoss(d=1), "save_every": 1, "save_dir": tmp_path / folder}
        trainer.train(loader, {"test": loader}, *parts, **how)

    whole, first, second = (parametrized(ONE, seed) for seed in (0, 0, 3))
    run(whole, optimizer_of(whole), 4, "a")
    run(first, optimizer_of(first), 2, "b")
    parts = optimizer_of(second)
    assert nm.load_checkpoint(tmp_path / "b", second, *parts) == 2
    run(second, parts, 4, "b", start=2)
    assert_same(second, whole)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:TypedStorage")
def test_distributed_checkpoint_with_the_plan_in_a_file(tmp_path):
    """Of a model whose modes have grown since it was built."""
    import torch.distributed.checkpoint as dcp

    case = BY_NAME["max_n_modes"]
    model, again = parametrized(case), case.build(seed=1)
    model.n_modes = (10, 10)
    weights, state = ({k: v for k, v in m.state_dict().items() if k != "_metadata"} for m in (model, again))
    dcp.save({"model": weights}, checkpoint_id=tmp_path / "dcp")
    nm.save_plan(model, tmp_path / "dcp" / "plan.json")
    dcp.load({"model": state}, checkpoint_id=tmp_path / "dcp")
    again.load_state_dict(state)
    nm.load_plan(again, tmp_path / "dcp" / "plan.json")
    assert_same(again, model)
    assert nm.summary(again) == nm.summary(model)


# --------------------------------------------------------------------------------------- what must not be loaded


@pytest.mark.parametrize(
    ("kwargs", "what"),
    [
        ({"base": {"n_modes": (4, 4), "hidden_channels": 12}}, "base shape"),
        ({"rule": "none"}, "rule: 'none' → 'operator-norm'"),
        ({"init_mult": {"readout": 0.5}}, "init_mult: {'readout': 0.5} → {}"),
    ],
)
def test_weights_of_another_plan_are_refused_with_a_diff(kwargs, what, tmp_path):
    saved = parametrized(CASE)
    save_training_state(tmp_path, "model", saved)
    nm.save_plan(saved, tmp_path / "plan.json")
    model = nm.parametrize(CASE.build(seed=1), **{"base": CASE.base, **kwargs})
    for load in (
        lambda: model.load_state_dict(saved.state_dict()),
        lambda: model.load_checkpoint(tmp_path, "model"),  # neuralop's own
        lambda: nm.load_plan(model, tmp_path / "plan.json"),
        lambda: nm.load_plan(model, tmp_path / "model_state_dict.pt"),
        lambda: nm.load_checkpoint(tmp_path, model),
        lambda: torch.nn.DataParallel(model).load_state_dict(torch.nn.DataParallel(saved).state_dict()),
    ):
        with refused(model, f"another plan than the model's.*{re.escape(what)}") as refusal:
            load()
        verb = "belong" if str(refusal.value).startswith("These weights ") else "belongs"
        assert f" {verb} to another plan than the model's (the model's → the saved one's: " in str(refusal.value)


@pytest.mark.parametrize(
    ("build", "edit", "match"),
    [
        (lambda: CASE.build(hidden_channels=16), dict, "in the plan, .* in the model"),
        (lambda: CASE.build(n_layers=3), dict, "not in the plan"),
        (ONE.build, dict, "in the plan"),
        (CASE.build, lambda plan: plan["rows"][1].update(lr_mult=0.5), r"convs.0.weight.tensor: lr × 0.5 → 0.249"),
        (CASE.build, lambda plan: plan.update(version=0), "version 0 of the rules, this package version 2"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(build, edit, match, tmp_path):
    plan = json.loads(nm.summary(parametrized(CASE, rule="log-modes")).to_json())
    edit(plan)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with refused(model := build(), match):
        nm.load_plan(model, tmp_path / "plan.json")


def test_checkpoint_without_a_plan(tmp_path):
    stock = CASE.build(seed=1)
    stock.save_checkpoint(tmp_path, "model")
    model, attached = parametrized(CASE), parametrized(CASE, init=False)  # the way that the message names
    for load in (
        lambda: model.load_state_dict(stock.state_dict()),
        lambda: nm.load_checkpoint(tmp_path, model),
        lambda: nm.load_plan(model, tmp_path / "model_state_dict.pt"),
    ):
        with refused(model, "no plan: .*was not parametrized|no plan: they were saved"):
            load()
    attached.load_state_dict(stock.state_dict())
    assert_same(attached, stock)


class TensorsAlone(FNO):
    """Takes out what neuralop writes beside tensors, as a class does that is to be loaded by others."""

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        del state["_metadata"]
        return state


@pytest.mark.parametrize("around", [lambda model: model, torch.nn.Sequential], ids=["alone", "inside"])
def test_a_class_that_takes_the_arguments_out_by_itself(around):
    model, again = (nm.parametrize(around(TensorsAlone((4,), 1, 1, 8))) for _ in range(2))
    state = model.state_dict()
    assert all(map(torch.is_tensor, state.values()))
    again.load_state_dict(state)
    assert_same(again, model)


@pytest.mark.parametrize("copied", [dict, lambda s: {k: v for k, v in s.items() if k != "_metadata"}])
def test_a_plain_dict_of_weights_is_warned_of_once(copied):
    """As after stripping "module." by hand: no plan in it, with neuralop's own entry or without."""
    state, model = copied(CASE.build(seed=1).state_dict()), parametrized(CASE)
    with pytest.warns(UserWarning, match="These weights say nothing of a plan.*as neuralop builds it.*init=False") as said:
        model.load_state_dict(state)
        model.load_state_dict(state)
    assert len(said) == 1


def test_weights_that_are_known_are_not_warned_of(tmp_path):
    saved = parametrized(CASE)
    torch.save(saved.state_dict(), tmp_path / "weights.pt")
    plain = {k: v for k, v in saved.state_dict().items() if isinstance(v, torch.Tensor)}
    stripped = torch.nn.DataParallel(saved).state_dict()
    torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(stripped, "module.")
    one = {"fno_blocks.channel_mlp_skips.0.weight": torch.ones(1, 24, 1, 1)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model, state in (
            (parametrized(CASE, seed=1), torch.load(tmp_path / "weights.pt", weights_only=False)),
            (parametrized(CASE, seed=1), copy.deepcopy(saved.state_dict())),
            (parametrized(CASE, seed=1), stripped),
            (parametrized(CASE, init=False), plain),
            (nm.load_plan(CASE.build(seed=1), tmp_path / "weights.pt"), plain),
            (nm.parametrize(CASE.build(), base=CASE.same), plain),  # at base both are the same
            (parametrized(CASE), one),
        ):
            model.load_state_dict(state, strict=state is not one)


@pytest.mark.parametrize("file", ["model_state_dict.pt", "optimizer.pt", "scheduler.pt", "manifest.pt", "plan.json"])
def test_truncated_files(file, resumed, tmp_path):
    model, *parts = resumed
    nm.save_plan(model, tmp_path / "plan.json")
    whole, states = (tmp_path / file).read_bytes(), copy.deepcopy([part.state_dict() for part in parts])
    (tmp_path / file).write_bytes(whole[: len(whole) // 2])
    with refused(model, "cut off"):
        nm.load_plan(model, tmp_path / file) if file == "plan.json" else nm.load_checkpoint(tmp_path, model, *parts)
    assert [part.state_dict() for part in parts] == states


def test_missing_files(tmp_path):
    model = parametrized(ONE)
    save_training_state(tmp_path / "saved", "model", model)
    for call, match in (
        (lambda: nm.load_checkpoint(tmp_path, model), "has no checkpoint: expected best_model_state_dict.pt or model_state"),
        (lambda: nm.load_checkpoint(tmp_path / "saved", model, *optimizer_of(model)), "has no optimizer.pt"),
        (lambda: nm.load_plan(model, tmp_path / "nothing.json"), "Cannot read"),
        (lambda: nm.load_plan(model, tmp_path), "Cannot read"),
        (lambda: nm.save_plan(model, tmp_path / "no" / "plan.json"), "Cannot write"),
        (lambda: nm.load_plan(model, 3), "This int has no plan"),
    ):
        with pytest.raises(nm.MupError, match=match):
            call()
    assert nm.load_checkpoint(tmp_path / "saved", model) == 0


def test_weights_and_optimizer_of_one_save(tmp_path):
    """An older best_model beside a newer model: the manifest says which one the optimizer's state belongs to."""
    model, again = parametrized(ONE), parametrized(ONE, seed=1)
    parts, resumed, saved = optimizer_of(model), optimizer_of(again), {}
    for epoch, name in enumerate(("best_model", "model")):
        train(ONE, model, *parts, 1, start=epoch)
        save_training_state(tmp_path, name, model, *parts, epoch=epoch)
        saved[name] = copy.deepcopy(model)
    assert nm.load_checkpoint(tmp_path, again, *resumed) == 2
    assert_same(again, saved["model"])
    with refused(again, "saved with 'model_state_dict.pt', and 'best_model_state_dict.pt' holds"):
        nm.load_checkpoint(tmp_path, again, *resumed, name="best_model")
    (tmp_path / "manifest.pt").unlink()
    with pytest.raises(nm.MupError, match="no manifest says which was saved last: pass name='model'"):
        nm.load_checkpoint(tmp_path, again)
    for name in saved:
        assert nm.load_checkpoint(tmp_path, again, name=name) == 0  # its epoch is not known
        assert_same(again, saved[name])


@pytest.mark.parametrize(
    "other",
    [
        lambda model: nm.MuAdam(nm.parametrize(CASE.build(), base={}), lr=LR),
        lambda model: nm.MuAdam(nm.parametrize(CASE.build(), base={**CASE.base, "hidden_channels": 12}), lr=LR),
        lambda model: nm.MuAdam(model, lr=LR, lr_mult={"spectral": 2.0}),
        lambda model: torch.optim.Adam(model.parameters(), lr=LR),
    ],
    ids=["groups", "multiplier", "master", "plain"],
)
def test_optimizer_state_of_other_groups(other, tmp_path):
    model = parametrized(CASE)
    optimizer = nm.MuAdam(model, lr=LR)
    before = copy.deepcopy(optimizer.state_dict())
    save_training_state(tmp_path, "model", model, other(model))
    for load in (
        lambda: optimizer.load_state_dict(other(model).state_dict()),
        lambda: nm.load_checkpoint(tmp_path, model, optimizer),
    ):
        with refused(model, "belongs to other groups"):
            load()
        assert optimizer.state_dict() == before
    with pytest.raises(nm.MupError, match="no param_groups"):
        optimizer.load_state_dict({})


@pytest.mark.parametrize("kind", [nm.MuSOAP, nm.MuAdamW])
def test_optimizer_state_of_another_size(kind):
    """Of as many groups with the same multipliers: torch takes it, and the first step fails in the middle."""

    def trained(n_modes):
        model = nm.parametrize(FNO((n_modes,), 1, 1, 16, n_layers=2), base={"n_modes": (n_modes,)})
        optimizer = kind(model, lr=0.01)
        model(torch.randn(2, 1, 32)).square().mean().backward()
        optimizer.step()
        return optimizer

    optimizer = trained(12)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(nm.MupError, match=r"an average of shape \(16, 16, 5\) in group .* for a parameter of \(16, 16, 7\)"):
        optimizer.load_state_dict(trained(8).state_dict())
    assert str(optimizer.state_dict()) == str(before)


class Failing(torch.optim.lr_scheduler.StepLR):
    """Fails when it has taken a state of two steps: not when it gets its own back."""

    def load_state_dict(self, state):
        super().load_state_dict(state)
        if state["last_epoch"] == 2:
            raise RuntimeError("within")


def test_nothing_is_loaded_where_learned_rates_refuse(resumed, tmp_path):
    """Their groups are the same, so that only the hook of LearnedRates sees that the state has none."""
    model, optimizer, _ = resumed
    nm.LearnedRates(optimizer, roles=["spectral"])
    with refused(model, "saved without learned rates"):
        nm.load_checkpoint(tmp_path, model, optimizer)
    assert not optimizer.state


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (torch.optim.lr_scheduler.ReduceLROnPlateau, nm.MupError, "not that of a ReduceLROnPlateau"),
        (partial(Failing, step_size=4), RuntimeError, "within"),
    ],
)
def test_nothing_is_loaded_where_the_scheduler_cannot_take_its_state(kind, error, message, resumed, tmp_path):
    model, optimizer, scheduler = resumed
    train(ONE, model, optimizer, scheduler, 1)
    scheduler = kind(optimizer)
    before, own = copy.deepcopy([optimizer.state_dict(), scheduler.state_dict()])
    with refused(model, message, error):
        nm.load_checkpoint(tmp_path, model, optimizer, scheduler)
    torch.testing.assert_close(optimizer.state_dict()["state"], before["state"], rtol=0, atol=0)
    assert (optimizer.state_dict()["param_groups"], scheduler.state_dict()) == (before["param_groups"], own)


@patch.object(Plan, "from_json", side_effect=AssertionError)  # its own text needs no reading
@patch.object(Plan, "to_json", autospec=True, side_effect=Plan.to_json)
def test_a_plan_is_written_once_and_not_read_back(written, read):
    """Trainers ask for a state_dict at every save: a plan in it once took twenty times a plain one's time."""
    model = small_fno(width=20)
    for _ in range(3):
        model.load_state_dict(model.state_dict())
    written.assert_called_once()


@pytest.mark.filterwarnings("ignore:Attempting to update metadata")
def test_a_plan_can_be_attached_to_a_uqno_read_from_neuralops_checkpoint(tmp_path):
    """Its checkpoint holds the base model whole, whose parameters keep infshape, and no plan: the advice has to help."""

    def build(width):
        return UQNO(FNO((8, 8), 1, 1, width, n_layers=1))

    model = nm.parametrize(build(16), base=lambda: build(8))
    model.save_checkpoint(tmp_path, "uqno")
    read = UQNO.from_checkpoint(tmp_path, "uqno")
    with pytest.raises(nm.MupError, match="unparametrize what is and pass init=False"):
        nm.parametrize(read, base=lambda: build(8), init=False)
    nm.parametrize(nm.unparametrize(read), base=lambda: build(8), init=False)
    assert_same(read, model)
    assert rates(nm.MuAdam(read, lr=1e-3), read) == rates(nm.MuAdam(model, lr=1e-3), model)


@pytest.mark.parametrize("wrap", [partial(torch.compile, backend="eager"), torch.nn.DataParallel])
def test_weights_of_a_wrapped_model_are_told_by_their_names(wrap, tmp_path):
    saved, model = parametrized(ONE), parametrized(ONE, seed=1)
    torch.save(wrap(saved).state_dict(), tmp_path / "wrapped.pt")
    state = torch.load(tmp_path / "wrapped.pt", weights_only=True)
    with refused(model, "begin with '(_orig_mod|module).': they were saved from a compiled or wrapped model"):
        model.load_state_dict(state)
    torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, next(iter(state)).partition(".")[0] + ".")
    model.load_state_dict(state)
    assert_same(model, saved)
