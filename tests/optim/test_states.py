"""States of optimizers: resumed, in another precision, of older releases, refused; and batches that steps keep."""

import copy
from functools import partial

import neuralop.training
import pytest
import torch
from neuralop.models import FNO
from torch.distributed.checkpoint.state_dict import get_state_dict

import neuralop_mup as nm
from support.comparing import assert_same, differing
from support.errors import of_category, refused, warned
from support.models import KERNEL, built, in_double, small_fno
from support.training import backward, random_gradients, step


def assert_resumed_steps_are_equal(model, optimizer, resumed, other, state=None):
    """Load one into the other: the next step of both is the same, bit for bit."""
    other.load_state_dict(state or copy.deepcopy(optimizer.state_dict()))
    resumed.load_state_dict(model.state_dict())
    step(optimizer, model, seed=12)
    step(other, resumed, seed=12)
    assert differing(model, resumed) == 0


def test_bases_of_half_precision_stay_in_single_when_loaded():
    """torch casts states to their parameters' type: a resumed run went on with other bases."""
    models = [small_fno(width=4), small_fno(width=4)]
    for p in (p for model in models for p in model.parameters() if not p.is_complex()):
        p.data = p.data.bfloat16()
    optimizer, other = map(nm.MuSOAP, models)
    step(optimizer, models[0])
    assert_resumed_steps_are_equal(models[0], optimizer, models[1], other)


def test_trained_weights_at_the_rate_of_fresh_ones_are_warned_of(tmp_path, recwarn):
    """parametrize, load_state_dict, MuSOAP: the loop that everybody writes raised the error from 0.13 to 0.6."""
    model = small_fno()
    torch.save(model.state_dict(), tmp_path / "fresh.pt")
    optimizer = nm.MuSOAP(model, steps=10)
    for seed in range(3):
        random_gradients(model, seed)
        optimizer.step()
    torch.save(model.state_dict(), tmp_path / "trained.pt")

    def steps(file, state=None, count=1, **settings):
        other = small_fno()
        optimizer = nm.MuSOAP(other, **settings)
        other.load_state_dict(torch.load(tmp_path / file))
        optimizer.load_state_dict(state or optimizer.state_dict())
        for seed in range(count):
            random_gradients(other, seed)
            optimizer.step()

    steps("fresh.pt", steps=10)
    steps("trained.pt", optimizer.state_dict(), steps=10)
    steps("trained.pt", lr=0.02)
    steps("trained.pt", start_error=0.1)
    assert not of_category(recwarn)
    with warned(r"Trained weights.*init=False.*start_error") as caught:
        steps("trained.pt", steps=10, count=3)
    assert len(caught) == 1


def test_states_made_for_a_distributed_checkpoint_are_no_step():
    """torch's get_state_dict steps an optimizer without states, at rates and gradients of zero."""
    results = []
    for asked in (False, True):
        model = small_fno()
        optimizer = nm.MuSOAP(model, steps=10)
        if asked:
            get_state_dict(model, optimizer)
            assert optimizer.param_groups[0]["taken"] == 0 and len(optimizer.state) > 0
        for seed in range(3):
            random_gradients(model, seed)
            optimizer.step()
        results.append(model)
    assert_same(*results)


def test_a_state_in_memory_is_not_changed_by_what_loaded_it():
    """Two cooldowns may go on from one state: AdamW's steps were counted in it."""
    model, optimizer, again = built()
    step(optimizer, model)
    state = copy.deepcopy(optimizer.state_dict())
    assert_resumed_steps_are_equal(model, optimizer, again, nm.MuSOAP(again), state)
    assert {float(own["step"]) for own in state["state"].values()} == {1.0}


def test_states_of_earlier_releases():
    """0.3.0 had other names for some settings. One parameter has no gradient, and no state."""
    model, optimizer, again = built()
    random_gradients(model)
    model.get_parameter(KERNEL).grad = None
    with pytest.warns(UserWarning, match="no gradient"):
        optimizer.step()
    assert not optimizer.state[model.get_parameter(KERNEL)]  # an empty state was refused when loaded
    old, resumed = copy.deepcopy(optimizer.state_dict()), nm.MuSOAP(again)
    for group in old["param_groups"]:
        group |= {"length_mult": group.pop("schedule_factor"), "period": group.pop("mode_stride"), "step_mults": ()}
        group |= {"lr_follows": "progress", "most": float("inf"), "seconds": None, "budget": None}
        del group["base_scale"]
    assert_resumed_steps_are_equal(model, optimizer, again, resumed, old)


def test_former_names_of_arguments_work_for_one_release():
    with warned("adamw_lr", FutureWarning) as caught:
        optimizer = nm.MuSOAP(small_fno(), aux_lr=0.003, period=3)
    assert len(caught) == 1
    assert (optimizer.defaults["lr"], optimizer.defaults["mode_stride"]) == (0.003, 3)


@pytest.mark.parametrize(
    ("state", "names"),
    [
        (lambda: nm.MuSOAP(small_fno(separable=True)).state_dict(), "layouts"),
        (lambda: nm.MuAdam(small_fno()).state_dict(), "layouts"),
        (lambda: {"model": {}}, "param_groups"),
        (lambda: [], "param_groups"),
        # The same parameters under another base: torch would take AdamW's learning rates from the file.
        (
            lambda: nm.MuSOAP(nm.parametrize(FNO((8,), 2, 3, 12, n_layers=2), base={"hidden_channels": 6})).state_dict(),
            "lr_mult 'auxreadout'",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state, names):
    optimizer = nm.MuSOAP(small_fno())
    before = [g["lr"] for g in optimizer.param_groups]
    with refused(names):
        optimizer.load_state_dict(state())
    assert [g["lr"] for g in optimizer.param_groups] == before


# -------------------------------------------------------------------------------------------------- other precisions

OPTIMIZERS = {
    "MuSOAP": partial(nm.MuSOAP, steps=6),
    "MuAdam": partial(nm.MuAdam, lr=4e-3),
    "neuralop's AdamW": partial(nm.MuAdamW, impl=neuralop.training.AdamW),
}


def fno():
    """Return a model without neuralop's grid, which stays in the precision of its first use."""
    return small_fno(width=4, positional_embedding=None)


def in_single(model):
    for p in model.parameters():
        p.data = p.data.to(torch.complex64 if p.is_complex() else torch.float32)
    return model


def trained(model, optimizer, seeds, half=False):
    """Train in the model's own precision and return the losses."""
    losses = []
    for seed in seeds:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            losses.append(backward(model, optimizer, seed).item())
            optimizer.step()
    return losses


@pytest.mark.parametrize("how", ["loaded", "autocast"])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_in_another_precision_is_the_same(name, wide, how):
    """The state goes on in a model of another precision, or all is autocast.

    It ended in torch's "expected dtype float for `end` but got dtype double"; products of a step were made in bfloat16.
    """
    build, usual = OPTIMIZERS[name], fno()
    model = in_double(fno()) if wide else fno()
    optimizer, half = build(model), how == "autocast"
    want = trained(usual, build(usual), range(6))
    losses, other = trained(model, optimizer, range(3), half), model
    if how == "loaded":
        other = (in_single if wide else in_double)(copy.deepcopy(model))
        state, optimizer = copy.deepcopy(optimizer.state_dict()), build(other)
        optimizer.load_state_dict(state)
    losses += trained(other, optimizer, range(3, 6), half)
    assert losses == pytest.approx(want, rel=0.05 if half or name == "MuSOAP" else 1e-3)
    for p, averages in optimizer.state.items():
        found = {x.dtype for key, x in averages.items() if torch.is_tensor(x) and key != "step"}
        assert found <= {p.dtype, p.dtype.to_real()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_double_without_the_kernels_is_refused(name):
    """torch's ``double`` leaves complex kernels, and neuralop's forward ends in an error of the product's types."""
    with refused("complex64 float64 torch.complex128"):
        OPTIMIZERS[name](fno().double())


# ---------------------------------------------------------------------------------------------- batches that are kept


def move_states(optimizer):
    for x in (x for state in optimizer.state.values() for x in state.values() if torch.is_tensor(x)):
        x.data = x.data.clone()


CHANGES = {
    "period": lambda model, optimizer: [group.update(mode_stride=3) for group in optimizer.param_groups],
    "states moved": lambda model, optimizer: move_states(optimizer),
    "weights replaced": lambda model, optimizer: [setattr(p, "data", p.data * 0.5) for p in model.parameters()],
    "some without a gradient": lambda model, optimizer: [setattr(p, "grad", None) for p in [*model.parameters()][::2]],
    "state loaded": lambda model, optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
}


@pytest.mark.parametrize("change", CHANGES)
def test_batches_are_made_again_where_anything_changed(change):
    models = [small_fno(width=4) for _ in range(2)]
    optimizers = [nm.MuSOAP(model, lr=0.05) for model in models]
    for seed in range(5):
        for model, optimizer in zip(models, optimizers, strict=True):
            random_gradients(model, seed)
            if seed == 2:
                CHANGES[change](model, optimizer)
            optimizer.step()
        optimizers[1]._batches.clear()
    assert differing(*models) == 0


def test_plain_parameters_are_added_to_an_optimizer():
    """torch refused a group without names, which its own documentation has."""
    model, head = small_fno(), torch.nn.Linear(1, 1)
    optimizer = nm.MuSOAP(model, steps=10)
    optimizer.add_param_group({"params": list(head.parameters()), "lr": 1e-3})
    optimizer.add_param_group({"params": torch.nn.Parameter(torch.ones(3))})
    other = nm.MuSOAP(small_fno(), steps=10)
    for params in (list(torch.nn.Linear(1, 1).parameters()), torch.nn.Parameter(torch.ones(3))):
        other.add_param_group({"params": params})
    other.load_state_dict(optimizer.state_dict())
    assert [group["steps"] for group in other.param_groups[-2:]] == [10, 10]
    random_gradients(model, 0)
    for p in head.parameters():
        p.grad = torch.ones_like(p)
    before = head.weight.item()
    optimizer.step()
    assert head.weight.item() == pytest.approx(before - 1e-3, rel=1e-2)
