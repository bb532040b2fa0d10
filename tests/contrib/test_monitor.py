"""The update check in training: what it measures, and that it does not change the training."""

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
from support.errors import refused
from support.models import small_fno
from support.training import backward, small_batch
from support.training import train_small as train

LR = 1e-2


def with_adam(**kwargs):
    model = small_fno(width=8, modes=(4,), **kwargs)
    return model, nm.MuAdam(model, LR)


def values(records, kind):
    return {r["name"]: r["value"] for r in records if r["kind"] == kind}


# --- numbers


def test_numbers_worked_out_by_hand():
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


@pytest.mark.parametrize("shape", [(5, 1, 7), (200, 24, 24), (30, 40, 60)])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32])
def test_largest_norm(shape, dtype):
    """Against numpy in float64. The two large stacks use estimates, which must find the largest block or one near it."""
    blocks = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
    norms = np.linalg.norm(blocks.to(torch.complex128).numpy(), ord=2, axis=(1, 2))
    assert norms.max() * 0.95 <= largest_norm(blocks) <= norms.max() * (1 + 1e-5)
    blocks[2] *= 4  # one that stands out is found exactly
    assert largest_norm(blocks) == pytest.approx(4 * norms[2], rel=1e-5)
    assert largest_norm(0 * blocks) == 0
    blocks[1, 0, 3] = float("inf")
    assert np.isnan(largest_norm(blocks))


def test_feature_updates_and_learning_rates_with_hooks_in_either_order():
    model, optimizer = with_adam(max_n_modes=(8,))
    model.fno_blocks.convs[1].n_modes = (8,)
    probe = small_batch(7)[0]
    output = model(probe).detach().double()
    with nm.Monitor(model, optimizer, every=1, probe=probe) as monitor:
        nm.follow_plan(model, optimizer)
        train(model, optimizer, range(1))
    change = model(probe).detach().double() - output
    features, updates, lrs = (values(monitor.latest, kind) for kind in ("feature", "feature_update", "lr"))
    assert features["projection"] == pytest.approx(output.square().mean().sqrt().item(), rel=1e-6)
    assert updates["projection"] == pytest.approx(change.square().mean().sqrt().item(), rel=1e-4)
    assert lrs["spectral fno_blocks.convs.1"] == pytest.approx(LR / 2 * 0.5**0.5)


# --- hooks


@pytest.mark.parametrize("probe", [None, small_batch(3)[0]], ids=["current batch", "probe"])
def test_monitored_training_is_bit_equal(probe):
    runs = []
    for monitored in (True, False):
        model = small_fno(width=8, norm="batch_norm")
        model.fno_blocks.norm[0].eval()  # frozen statistics stay frozen
        optimizer = nm.MuAdamW(model, LR)
        torch.manual_seed(5)
        with nm.Monitor(model, optimizer, every=2, probe=probe) if monitored else nullcontext():
            train(model, optimizer, range(5))
        assert [m.training for m in model.fno_blocks.norm] == [False, True, True, True]
        runs.append([*model.parameters(), *model.buffers(), torch.get_rng_state()])
    assert all(map(torch.equal, *runs))


def test_neuralops_trainer():
    """It calls model(**sample), y included. Its validation must not count as a training batch."""
    model, optimizer = with_adam()
    data = torch.utils.data.DataLoader([{"x": x, "y": y} for x, y in zip(*small_batch(), strict=True)], batch_size=2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    trainer, rows = Trainer(model=model, n_epochs=2), []
    with nm.Monitor(model, optimizer, rows.extend, every=2), pytest.warns(UserWarning, match="unexpected keyword"):
        trainer.train(data, {"test": data}, optimizer, scheduler, training_loss=LpLoss(d=1))
    lrs = {r["step"]: r["value"] for r in rows if r["kind"] == "lr" and r["name"].startswith("input")}
    assert lrs == {1: LR, 3: LR / 2} and all(r["value"] > 0 for r in rows)


@pytest.mark.parametrize("make", [nm.MuAdam, nm.MuSOAP])
@pytest.mark.parametrize("call", [lambda step, closure: step(closure), lambda step, closure: step(closure=closure)])
def test_a_step_with_a_closure(make, call):
    """As in Lightning, the model is first called within the step."""
    runs = []
    for step in (call, lambda step, closure: (closure(), step())):
        model = small_fno(width=8)
        optimizer, measured = make(model, LR), []
        with nm.Monitor(model, optimizer, measured.append, every=2):
            for i in range(3):
                step(optimizer.step, partial(backward, model, optimizer, i))
        runs.append(([p.tolist() for p in model.parameters()], measured))
    assert runs[0] == runs[1]
    assert [records[0]["step"] for records in runs[0][1]] == [1, 3]


def step_without_a_call(model, optimizer, closure=None):
    with nm.Monitor(model, optimizer):
        optimizer.step(closure)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda model, optimizer: nm.Monitor(model, optimizer, every=0), "every 0"),
        (lambda model, optimizer: nm.Monitor(model, optimizer, probe=(1, 2)), "tuple"),
        (lambda model, optimizer: nm.Monitor(model, optimizer, probe={"x": 1}), "dict"),
        (lambda model, optimizer: nm.Monitor(model, optimizer, "updates.csv"), "to 'updates.csv'"),
        (lambda model, optimizer: nm.Monitor(optimizer, model), "FNO"),
        (step_without_a_call, "probe=…"),
        (partial(step_without_a_call, closure=int), "probe=…"),
    ],
)
def test_wrong_input_leaves_no_hooks(call, names):
    model, optimizer = with_adam()
    hooks = len(optimizer._optimizer_step_pre_hooks)
    with refused(names):
        call(model, optimizer)
    assert (len(optimizer._optimizer_step_pre_hooks), len(model._forward_pre_hooks)) == (hooks, 0)
