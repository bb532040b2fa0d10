"""The update check in training: what it measures, and that it changes nothing."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO
from neuralop.training import Trainer

import neuralop_mup as nm
from neuralop_mup.diagnostics.update_stats import largest_norm

LR = 1e-2


def build(**kwargs):
    torch.manual_seed(0)
    model = FNO((4, 4), 1, 1, 6, n_layers=2, **kwargs)
    return nm.parametrize(model, base={"n_modes": (4, 4), "hidden_channels": 3}, rule="log-modes")


def with_adam(**kwargs):
    model = build(**kwargs)
    return model, nm.MuAdam(model, LR)


def batch(seed=0):
    return torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def backward(model, optimizer, seed=0):
    optimizer.zero_grad()
    loss = model(batch(seed)).square().mean()
    loss.backward()
    return loss


def train(model, optimizer, steps):
    for i in range(steps):
        backward(model, optimizer, i)
        optimizer.step()


def values(records, kind):
    return {r["name"]: r["value"] for r in records if r["kind"] == kind}


# ------------------------------------------------------------------------------------------------ numbers


def test_worked_by_hand():
    """SGD with lr 1/2 on a gradient that is 3·(all ones, 4 × 4) at one mode, an identity times 5 at another.

    The first matrix has norm 3 · 4 = 12, the second 5; the step moves the kernel by half of it.
    """
    model = nm.parametrize(FNO((4, 4), 1, 1, 4, n_layers=1), base={}, rule="none")
    optimizer = nm.MuSGD(model, 0.5)
    kernel = model.fno_blocks.convs[0].weight.tensor
    kernel.grad = torch.zeros_like(kernel)
    kernel.grad[:, :, 1, 2] = 3j
    kernel.grad[:, :, 3, 0] = 5 * torch.eye(4)
    records = nm.update_stats(model, optimizer)
    assert values(records, "kernel_update") == {"fno_blocks.convs.0": pytest.approx(6.0, rel=1e-5)}
    assert values(records, "lr") == {"input+hidden+readout+vector+spectral": 0.5}
    assert not values(records, "feature_update")


@pytest.mark.parametrize("shape", [(3, 4, 4), (5, 1, 7), (200, 24, 24), (30, 40, 60)])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float32])
def test_largest_norm(shape, dtype):
    """Against numpy in float64; the two large stacks go by estimates, which must find the winner or one near it."""
    blocks = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
    norms = np.linalg.norm(blocks.to(torch.complex128).numpy(), ord=2, axis=(1, 2))
    assert norms.max() * 0.95 <= largest_norm(blocks) <= norms.max() * (1 + 1e-5)
    blocks[2] *= 4  # one that stands out is found exactly
    assert largest_norm(blocks) == pytest.approx(4 * norms[2], rel=1e-5)
    assert largest_norm(0 * blocks) == 0
    blocks[1, 0, 3] = float("inf")
    assert np.isnan(largest_norm(blocks))


@pytest.mark.parametrize(
    "kwargs", [{}, {"separable": True}, {"max_n_modes": (6, 6)}, {"factorization": "tucker", "rank": 0.4}]
)
def test_kernel_updates_of_layouts(kwargs):
    model, optimizer = with_adam(**kwargs)
    weight = model.fno_blocks.convs[0].weight

    def kernel():
        if "factorization" not in kwargs:
            return weight.tensor.detach().numpy().astype(complex)
        return np.einsum("abcd,ia,ob,xc,yd->ioxy", *(p.detach().numpy() for p in (weight.core, *weight.factors)))

    backward(model, optimizer)
    before = kernel()
    records = nm.update_stats(model, optimizer, batch())
    change = np.moveaxis(kernel() - before, (-2, -1), (0, 1))
    expected = np.abs(change).max() if "separable" in kwargs else np.linalg.norm(change, ord=2, axis=(-2, -1)).max()
    assert values(records, "kernel_update")["fno_blocks.convs.0"] == pytest.approx(expected, rel=1e-3)


def test_feature_updates_and_learning_rates_whichever_hooks_come_first():
    model, optimizer = with_adam(max_n_modes=(8, 8))
    model.fno_blocks.convs[1].n_modes = (8, 8)
    probe = batch(7)
    output = model(probe).detach().double()
    with nm.Monitor(model, optimizer, every=1, probe=probe) as monitor:
        nm.follow_plan(model, optimizer)
        train(model, optimizer, 1)
    change = model(probe).detach().double() - output
    features, updates, lrs = (values(monitor.latest, kind) for kind in ("feature", "feature_update", "lr"))
    assert features.keys() == updates.keys() == {"fno_blocks.0", "fno_blocks.1", "lifting", "projection"}
    assert features["projection"] == pytest.approx(output.square().mean().sqrt().item(), rel=1e-6)
    assert updates["projection"] == pytest.approx(change.square().mean().sqrt().item(), rel=1e-4)
    assert lrs["spectral fno_blocks.convs.0"] == pytest.approx(LR / 2)
    assert lrs["spectral fno_blocks.convs.1"] == pytest.approx(LR / 2 * 0.5**0.5)


# ------------------------------------------------------------------------------------------------ hooks


@pytest.mark.parametrize("probe", [None, batch(3)], ids=["current batch", "probe"])
def test_training_is_the_same_bit_for_bit(probe):
    runs = []
    for monitored in (True, False):
        model = build(norm="batch_norm")
        model.fno_blocks.norm[0].eval()  # frozen statistics stay frozen
        optimizer = nm.MuAdamW(model, LR)
        torch.manual_seed(5)
        hooks = len(optimizer._optimizer_step_pre_hooks), len(model._forward_pre_hooks)
        with nm.Monitor(model, optimizer, every=2, probe=probe) if monitored else nullcontext():
            train(model, optimizer, 5)
        assert (len(optimizer._optimizer_step_pre_hooks), len(model._forward_pre_hooks)) == hooks
        assert [m.training for m in model.fno_blocks.norm] == [False, True, True, True]
        runs.append([*model.parameters(), *model.buffers(), torch.get_rng_state()])
    assert all(map(torch.equal, *runs))


def test_steps_that_are_measured_and_what_on():
    model, optimizer = with_adam()
    got = []
    with nm.Monitor(model, optimizer, got.append, every=3):
        train(model, optimizer, 8)
    train(model, optimizer, 3)
    assert [{r["step"] for r in records} for records in got] == [{1}, {4}, {7}]
    # Features are those of the batch of that very step.
    again, optimizer = with_adam()
    train(again, optimizer, 3)
    backward(again, optimizer, 3)
    by_hand = nm.update_stats(again, optimizer, batch(3))
    assert [{k: v for k, v in r.items() if k != "step"} for r in got[1]] == by_hand


def test_neuralops_trainer():
    """It calls model(**sample), y included, and its validation must not be taken for a training batch."""
    model, optimizer = with_adam()
    data = torch.utils.data.DataLoader([{"x": batch(i)[0], "y": batch(i)[1]} for i in range(4)], batch_size=2)
    trainer, rows = Trainer(model=model, n_epochs=2), []
    with nm.Monitor(model, optimizer, rows.extend, every=2), pytest.warns(UserWarning, match="unexpected keyword"):
        trainer.train(
            data, {"test": data}, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), training_loss=LpLoss(d=2)
        )
    lrs = {r["step"]: r["value"] for r in rows if r["kind"] == "lr" and r["name"].startswith("input")}
    assert lrs == {1: LR, 3: LR / 2} and all(r["value"] > 0 for r in rows)


@pytest.mark.parametrize("optimizer", [nm.MuAdam, nm.MuSGD, nm.MuSOAP])
def test_a_step_with_a_closure(optimizer):
    """As Lightning makes it: the model is called within the step, the first time too."""
    found = []
    for step in (
        lambda opt, closure: (closure(), opt.step()),
        lambda opt, closure: opt.step(closure),
        lambda opt, closure: opt.step(closure=closure),
    ):
        model = build()
        opt, got = optimizer(model, LR), []
        with nm.Monitor(model, opt, got.append, every=2):
            for i in range(3):
                step(opt, partial(backward, model, opt, i))
        found.append(([p.tolist() for p in model.parameters()], got))
    assert found[0] == found[1] == found[2] and [r[0]["step"] for r in found[0][1]] == [1, 3]


def test_a_resumed_run_is_measured_at_the_steps_of_a_whole_one():
    model, optimizer = with_adam()
    train(model, optimizer, 4)
    again, other = with_adam()
    monitor = nm.Monitor(again, other, every=2)
    other.load_state_dict(optimizer.state_dict())
    train(again, other, 2)
    assert monitor.latest[0]["step"] == 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, optimizer: nm.Monitor(model, optimizer, every=0), "every is 0"),
        (lambda model, optimizer: nm.Monitor(model, optimizer, probe=(1, 2)), "measure features on is a tuple"),
        (lambda model, optimizer: nm.Monitor(model, optimizer, probe={"x": 1}), "measure features on is a dict"),
        (lambda model, optimizer: nm.Monitor(model, optimizer, "updates.csv"), "to is 'updates.csv'; give a function"),
        (lambda model, optimizer: nm.Monitor(optimizer, model), "FNO takes no step hooks"),
        (lambda model, optimizer: run(nm.Monitor(model, optimizer), optimizer), "saw no call of the model.*probe"),
        (lambda model, optimizer: run(nm.Monitor(model, optimizer), optimizer, int), "saw no call of the model.*probe"),
    ],
)
def test_bad_input(call, message):
    model, optimizer = with_adam()
    hooks = len(optimizer._optimizer_step_pre_hooks)
    with pytest.raises(nm.MupError, match=message):
        call(model, optimizer)
    assert (len(optimizer._optimizer_step_pre_hooks), len(model._forward_pre_hooks)) == (hooks, 0)


def run(monitor, optimizer, closure=None):
    """A step without a call of the model."""
    with monitor:
        optimizer.step(closure)


def test_a_model_that_is_not_parametrized():
    torch.manual_seed(0)
    model = FNO((4, 4), 1, 1, 6, n_layers=1)
    optimizer = torch.optim.Adam(model.parameters(), LR)
    backward(model, optimizer)
    records = nm.update_stats(model, optimizer, {"x": batch()})
    assert values(records, "lr") == {"0": LR} and values(records, "feature_update")["projection"] > 0
