"""The update check in training: what it measures, that it changes nothing, and where records go."""

import copy
import csv
import sys
import types

import numpy as np
import pytest
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO
from neuralop.training import Trainer
from tltorch.factorized_tensors.core import FactorizedTensor

import neuralop_mup as nm
from neuralop_mup.diagnostics.update_stats import kernel_norm, kernels_of, largest_norm

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
    model(batch(seed)).square().mean().backward()


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
    before = torch.get_rng_state()
    assert norms.max() * 0.95 <= largest_norm(blocks) <= norms.max() * (1 + 1e-5)
    assert torch.equal(before, torch.get_rng_state())
    blocks[2] *= 4  # one that stands out is found exactly
    assert largest_norm(blocks) == pytest.approx(4 * norms[2], rel=1e-5)


def test_norms_of_nothing_and_of_what_is_not_finite():
    for shape in ((3, 4, 4), (200, 24, 24)):
        assert largest_norm(torch.zeros(shape, dtype=torch.cfloat)) == 0
        broken = torch.ones(shape, dtype=torch.cfloat)
        broken[1, 2, 3] = float("inf")
        assert np.isnan(largest_norm(broken))
    assert kernel_norm(torch.full((2, 2, 3), 2.0, dtype=torch.chalf), ("in", "out", "modes")) == pytest.approx(4.0)


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


def test_every_kernel_of_every_model(case):
    model = case.build()
    kernels = kernels_of(model)
    plain = sum("spconv_layers" in name for name, _ in model.named_parameters())  # PhysicsNeMo's are plain parameters
    assert len(kernels) == plain + sum(isinstance(m, FactorizedTensor) for m in model.modules())
    for name, (read, axes) in kernels.items():
        kernel = read().detach()
        assert len(axes) == kernel.ndim, name
        maps = [i for i, axis in enumerate(axes) if axis[:2] in ("in", "ou")]
        blocks = np.moveaxis(kernel.to(torch.complex128).numpy(), maps, range(-len(maps), 0))
        norms = np.linalg.norm(blocks, ord=2, axis=(-2, -1)) if len(maps) == 2 else np.abs(blocks)
        assert 0.95 * norms.max() <= kernel_norm(kernel, axes) <= norms.max() * (1 + 1e-5), name


def test_feature_updates_and_learning_rates():
    model, optimizer = with_adam(max_n_modes=(8, 8))
    model.fno_blocks.convs[1].n_modes = (8, 8)
    probe = batch(7)
    output = model(probe).detach().double()
    backward(model, optimizer)
    records = nm.update_stats(model, optimizer, probe)
    change = model(probe).detach().double() - output
    assert values(records, "feature")["projection"] == pytest.approx(output.square().mean().sqrt().item(), rel=1e-6)
    assert values(records, "feature_update")["projection"] == pytest.approx(change.square().mean().sqrt().item(), rel=1e-4)
    assert values(records, "feature").keys() == {"fno_blocks.0", "fno_blocks.1", "lifting", "projection"}
    lrs = values(records, "lr")
    assert lrs["spectral fno_blocks.convs.0"] == pytest.approx(LR / 2)
    assert lrs["spectral fno_blocks.convs.1"] == pytest.approx(LR / 2 * 0.5**0.5)


def test_learning_rates_whichever_hooks_come_first():
    model = build(max_n_modes=(8, 8))
    optimizer = torch.optim.Adam(nm.param_groups(model, LR), LR)
    with nm.Monitor(model, optimizer, every=1) as monitor:
        nm.follow_plan(model, optimizer)
        model.n_modes = (8, 8)
        train(model, optimizer, 1)
    assert values(monitor.latest, "lr")["spectral fno_blocks.convs.0"] == pytest.approx(LR / 2 * 0.5**0.5)


# ------------------------------------------------------------------------------------------------ hooks


@pytest.mark.parametrize("probe", [None, batch(3)], ids=["current batch", "probe"])
def test_training_is_the_same_bit_for_bit(probe):
    runs = []
    for monitored in (False, True):
        model = build(norm="batch_norm")
        model.fno_blocks.norm[0].eval()  # frozen statistics stay frozen
        optimizer = nm.MuAdamW(model, LR)
        hooks = (len(optimizer._optimizer_step_pre_hooks), len(model._forward_pre_hooks))
        torch.manual_seed(5)
        monitor = nm.Monitor(model, optimizer, every=2, probe=probe) if monitored else None
        train(model, optimizer, 5)
        assert [m.training for m in model.fno_blocks.norm] == [False, True, True, True]
        if monitored:
            assert monitor.latest[0]["step"] == 5
            for _ in range(2):
                monitor.close()
                assert (len(optimizer._optimizer_step_pre_hooks), len(model._forward_pre_hooks)) == hooks
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


def test_neuralops_trainer(tmp_path):
    """It calls model(**sample), y included, and its validation must not be taken for a training batch."""
    model, optimizer = with_adam()
    data = torch.utils.data.DataLoader([{"x": batch(i)[0], "y": batch(i)[1]} for i in range(4)], batch_size=2)
    trainer = Trainer(model=model, n_epochs=2)
    path = tmp_path / "updates.csv"
    with nm.Monitor(model, optimizer, path, every=2), pytest.warns(UserWarning, match="unexpected keyword"):
        trainer.train(
            data, {"test": data}, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), training_loss=LpLoss(d=2)
        )
    rows = list(csv.DictReader(path.open()))
    assert {int(r["step"]) for r in rows} == {1, 3}
    lrs = {int(r["step"]): float(r["value"]) for r in rows if r["kind"] == "lr" and r["name"].startswith("input")}
    assert lrs == {1: LR, 3: LR / 2}
    assert all(float(r["value"]) > 0 for r in rows)


# ------------------------------------------------------------------------------------------------ where it goes


def run_csv(path, steps, state=None, start=None, optimizer=nm.MuAdam):
    model = build()
    optimizer = optimizer(model, LR)
    if state:
        for name, parameter in model.named_parameters():
            parameter.data.copy_(state[0][name].data)
        optimizer.load_state_dict(copy.deepcopy(state[1]))
    with nm.Monitor(model, optimizer, path, every=2, start=start):
        for i in range(steps[0], steps[1]):
            backward(model, optimizer, i)
            optimizer.step()
    return copy.deepcopy((dict(model.named_parameters()), optimizer.state_dict()))


@pytest.mark.parametrize("optimizer", [nm.MuAdam, nm.MuSGD])
def test_csv_of_a_resumed_run_is_that_of_a_whole_one(tmp_path, optimizer):
    whole, path = tmp_path / "whole.csv", tmp_path / "parts.csv"
    run_csv(whole, (0, 8), optimizer=optimizer)
    state = run_csv(path, (0, 4), optimizer=optimizer)
    run_csv(path, (4, 6), state, start=4, optimizer=optimizer)  # a run that crashes after step 6, past its checkpoint
    path.write_text(path.read_text() + "7,kernel_upd")  # in the middle of a row
    run_csv(path, (4, 8), state, start=None if optimizer is nm.MuAdam else 4, optimizer=optimizer)
    assert path.read_text() == whole.read_text()
    assert {r["step"] for r in csv.DictReader(whole.open())} == {"1", "3", "5", "7"}


def test_csv_of_another_run_is_not_touched(tmp_path):
    ours, foreign = tmp_path / "a.csv", tmp_path / "b.csv"
    run_csv(ours, (0, 2))
    text = ours.read_text()
    foreign.write_text("epoch,loss\n1,0.5\n")
    (tmp_path / "d.csv").mkdir()
    for name, told in {
        "a.csv": "earlier run's records up to step 1, but this run starts at 0",
        "b.csv": "no file of a monitor",
        "no/c.csv": "folder that exists",
        "d.csv": "folder that exists",
    }.items():
        with pytest.raises(nm.MupError, match=told):
            run_csv(tmp_path / name, (0, 2))
    assert (ours.read_text(), foreign.read_text()) == (text, "epoch,loss\n1,0.5\n")


def test_wandb(monkeypatch):
    logged, metrics = [], []
    wandb = types.SimpleNamespace(run=None, log=lambda data, **kwargs: logged.append((data, kwargs)))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    model, optimizer = with_adam()
    with nm.Monitor(model, optimizer, "wandb", every=1):
        train(model, optimizer, 1)
        assert not logged  # no run is active
        wandb.run = types.SimpleNamespace(define_metric=lambda *args, **kwargs: metrics.append((args, kwargs)))
        train(model, optimizer, 2)
    assert [data["mup/step"] for data, _ in logged] == [2, 3]
    assert all(kwargs == {"commit": False} for _, kwargs in logged)  # neuralop's Trainer ends wandb's rows
    assert "mup/kernel_update/fno_blocks.convs.0" in logged[0][0]
    assert metrics == [(("mup/*",), {"step_metric": "mup/step"})] * 2


@pytest.mark.parametrize(("to", "module"), [("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard")])
def test_what_is_not_installed_is_told(monkeypatch, to, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(nm.MupError, match=f"not installed: pip install {to}"):
        nm.Monitor(*with_adam(), to)


def test_tensorboard():
    scalars = []
    writer = types.SimpleNamespace(add_scalar=lambda *args: scalars.append(args))
    model, optimizer = with_adam()
    with nm.Monitor(model, optimizer, writer, every=1):
        train(model, optimizer, 2)
    assert {step for _, _, step in scalars} == {1, 2}
    assert ("mup/lr/input+vector", LR, 1) in scalars


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, optimizer: nm.Monitor(model, optimizer, every=0), "every is 0"),
        (lambda model, optimizer: nm.Monitor(model, optimizer, every=2.5), "every is 2.5"),
        (lambda model, optimizer: nm.Monitor(model, optimizer, every=True), "every is True"),
        (lambda model, optimizer: nm.Monitor(model, optimizer, start=-1), "start is -1"),
        (lambda model, optimizer: nm.Monitor(model, optimizer, probe=[1, 2]), "measure features on is a list"),
        (lambda model, optimizer: nm.Monitor(model, optimizer, probe={"x": 1}), "measure features on is a dict"),
        (lambda model, optimizer: nm.Monitor(model, optimizer, "updates.txt"), "to is 'updates.txt'"),
        (lambda model, optimizer: nm.Monitor(model, optimizer, 3), "to is 3"),
        (lambda model, optimizer: nm.Monitor(optimizer, optimizer), "Expected a model"),
        (lambda model, optimizer: nm.Monitor(model, model), "takes no step hooks"),
        (lambda model, optimizer: nm.Monitor(torch.nn.Bilinear(2, 2, 2), optimizer), "No adapter claims"),
    ],
)
def test_bad_input(call, message):
    model, optimizer = with_adam()
    hooks = len(optimizer._optimizer_step_pre_hooks)
    with pytest.raises(nm.MupError, match=message):
        call(model, optimizer)
    assert (len(optimizer._optimizer_step_pre_hooks), len(model._forward_pre_hooks)) == (hooks, 0)


def test_a_step_without_a_call_of_the_model():
    model, optimizer = with_adam()
    with nm.Monitor(model, optimizer), pytest.raises(nm.MupError, match="saw no call of the model.*probe"):
        optimizer.step()


def test_a_model_that_is_not_parametrized():
    torch.manual_seed(0)
    model = FNO((4, 4), 1, 1, 6, n_layers=1)
    optimizer = torch.optim.Adam(model.parameters(), LR)
    backward(model, optimizer)
    records = nm.update_stats(model, optimizer, {"x": batch()})
    assert values(records, "lr") == {"0": LR} and values(records, "feature_update")["projection"] > 0
