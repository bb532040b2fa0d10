"""Muon, mode by mode: a step written out by hand, as any optimizer of torch, and what can go wrong."""

import copy
import math
from unittest import mock

import pytest
import torch
from blocks import exact, with_values
from support import random_gradients, small_fno

import neuralop_mup as nm
from neuralop_mup.experiments.training import train_run
from neuralop_mup.optim.muon import optimizer as muon
from neuralop_mup.optim.muon.newton_schulz import BAND, orthogonalize

# --------------------------------------------------------------------------------------------------------- a step


@pytest.mark.parametrize("width, modes", [(4, (8,)), (24, (8,)), (12, (32,)), (12, (6, 8))])
def test_operator_norm_of_every_update(width, modes):
    """lr √(out/in) for each mode and each hidden map, at every width and number of modes."""
    model = small_fno(width=width, modes=modes)
    before = copy.deepcopy(model)
    optimizer = nm.MuMuon(model, lr=0.05, period=1, damping=0.0, base_depth=None)
    random_gradients(model)
    optimizer.step()
    seen = set()
    for (name, p), q in zip(model.named_parameters(), before.parameters(), strict=True):
        delta = (q - p).detach()
        role = nm.summary(model)[name].role
        if role == "spectral":
            norms = torch.linalg.matrix_norm(delta.flatten(2).permute(2, 0, 1), 2)
            want = math.sqrt(p.shape[1] / p.shape[0])
        elif role == "hidden":
            norms = torch.linalg.matrix_norm(delta.flatten(1), 2)[None]
            want = math.sqrt(p.shape[0] / p.shape[1])
        else:
            continue
        seen.add(want)
        assert (norms / (0.05 * want) - 1).abs().max() <= BAND + 1e-3, name
    assert len(seen) > 1  # channel MLPs and the lifting are not square


def reference(weights, gradients, lr, momentum, nesterov, weight_decay, scale, damping):
    """The steps written out, with an exact decomposition; weights (modes, in, out)."""
    m, w = torch.zeros_like(weights), weights.clone()
    for g in gradients:
        m = momentum * m + g
        x = g + momentum * m if nesterov else m
        bound = torch.linalg.svdvals(x).pow(8).sum(-1).pow(1 / 8)[:, None, None]
        update = exact(x) - damping * x / bound
        # Brought back to the root-mean-square singular value of the polar factor, which is 1.
        update = update * math.sqrt(min(x.shape[1:])) / update.flatten(1).norm(dim=1)[:, None, None]
        w = (1 - lr * weight_decay) * w - lr * scale * update
    return w


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("damping", [0.0, 0.7])
def test_steps_against_a_reference_written_out(nesterov, weight_decay, damping):
    """Four steps on 4 → 4 channels, well conditioned in double precision: within the band of exact steps."""
    model = small_fno(width=4).double()
    kernel = dict(model.named_parameters())["fno_blocks.convs.0.weight.tensor"]
    kernel.data = kernel.data.to(torch.complex128)
    settings = {"lr": 0.1, "momentum": 0.8, "nesterov": nesterov, "weight_decay": weight_decay, "damping": damping}
    optimizer = nm.MuMuon(model, period=1, base_depth=None, **settings)
    start = kernel.detach().clone()
    gradients = [with_values([1, 0.9, 0.8, 0.7], 4, 4, torch.complex128, seed)[0] for seed in (1, 5, 9, 13)]
    for g in gradients:
        kernel.grad = g[:, :, None].repeat(1, 1, kernel.shape[2])
        optimizer.step()
    stacked = [g.expand(kernel.shape[2], 4, 4) for g in gradients]
    want = reference(start.permute(2, 0, 1), stacked, 0.1, 0.8, nesterov, weight_decay, 1.0, damping)
    other = reference(start.permute(2, 0, 1), stacked, 0.1, 0.8, not nesterov, weight_decay, 1.0, damping)
    got = kernel.detach().permute(2, 0, 1)
    bound = 4 * 0.1 * BAND * (1.5 if damping else 1)  # bringing a damped block back to its size enlarges errors with it
    assert torch.linalg.matrix_norm(got - want, 2).max() <= bound
    assert torch.linalg.matrix_norm(other - want, 2).max() > bound  # the test can tell


def test_separable_kernels_move_every_entry_by_lr():
    """Blocks are diagonal: a polar factor is a phase for each entry."""
    model = small_fno(separable=True)
    before = copy.deepcopy(model)
    random_gradients(model)
    nm.MuMuon(model, lr=0.05, period=1, base_depth=None).step()
    key = "fno_blocks.convs.0.weight.tensor"
    p, q = dict(model.named_parameters())[key], dict(before.named_parameters())[key]
    assert torch.allclose((p - q).abs(), torch.tensor(0.05), rtol=1e-4)
    assert torch.allclose((q - p) / 0.05, p.grad / p.grad.abs(), atol=1e-4)


def matmul_precisions():
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision


def test_decay_does_not_depend_on_the_period():
    """With next to no updates, all modes have shrunk by (1 − period · lr · weight_decay) ^ (steps / period)."""
    shrunk = {}
    for period in (1, 4):
        model = small_fno()
        kernel = dict(model.named_parameters())["fno_blocks.convs.0.weight.tensor"]
        start = kernel.detach().clone()
        # Updates of 1e-12, decay of 1e-3 a step.
        optimizer = nm.MuMuon(model, lr=1e-12, aux_lr=1e-12, weight_decay=1e9, period=period, base_depth=None)
        for seed in range(8):
            random_gradients(model, seed)
            optimizer.step()
        shrunk[period] = (kernel / start).detach().abs()
    # (1 − 1e-3)^8 = 0.99203, and (1 − 4e-3)^2 = 0.99202
    assert torch.allclose(shrunk[1], torch.tensor(0.99203), atol=1e-4)
    assert torch.allclose(shrunk[4], torch.tensor(0.99202), atol=1e-4)


# ---------------------------------------------------------------------------------- as any optimizer of torch


def test_state_is_one_buffer_for_maps():
    model = small_fno()
    optimizer = nm.MuMuon(model)
    random_gradients(model)
    optimizer.step()
    for group in optimizer.param_groups:
        for p in group["params"]:
            big = [v for v in optimizer.state[p].values() if torch.is_tensor(v) and v.shape == p.shape]
            assert len(big) == (1 if group["layouts"] else 2)


def test_trains_better_than_it_starts_and_through_the_trainer():
    tiny = {
        "problem_args": {"grid": 32, "n_train": 20, "n_val": 10, "n_test": 10, "viscosity": 0.1},
        "model": {"n_modes": (8,), "hidden_channels": 8, "n_layers": 2},
        "base": {"hidden_channels": 4},
        "batch_size": 10,
        "optimizer": "muon",
        "lr": 0.02,
    }
    short, long = (train_run({**tiny, "epochs": epochs})["loss"] for epochs in (1, 40))
    assert long < 0.8 * short
    assert train_run({**tiny, "epochs": 1, "aux_lr": 1e-4})["loss"] != short


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"lr": -0.1}, "lr is -0.1"),
        ({"lr": math.nan}, "lr is nan"),
        ({"lr": 2}, "size of each update"),
        ({"lr": "0.1"}, "lr is '0.1'"),
        ({"aux_lr": math.inf}, "aux_lr is inf"),
        ({"aux_lr": 8}, "it is AdamW's"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\] is 1.0"),
        ({"betas": 0.9}, "betas is 0.9"),
        ({"period": 0}, "period is 0"),
        ({"period": 1.5}, "period is 1.5"),
        ({"damping": 1.5}, "damping is 1.5"),
        ({"damping": True}, "damping is True"),
        ({"base_depth": 0}, "base_depth is 0"),
        ({"eps": -1.0}, "eps is -1.0"),
        ({"weight_decay": math.nan}, "weight_decay is nan"),
        ({"lr_mult": {"kernel": 2}}, "no role 'kernel'"),
    ],
)
def test_numbers_that_cannot_work(arguments, sentence):
    with pytest.raises(nm.MupError, match=sentence):
        nm.MuMuon(small_fno(), **arguments)


# -------------------------------------------------------------------------------------------------------------- cost


def test_modes_take_turns():
    """5 stored modes of n_modes 8: all have moved after 4 steps, each once but for the first, whose turn comes again."""
    model = small_fno()
    optimizer = nm.MuMuon(model, period=4, nesterov=False, momentum=0.0, lr=0.1, damping=0.0, base_depth=None)
    kernel = dict(model.named_parameters())["fno_blocks.convs.0.weight.tensor"]
    random_gradients(model)
    moved = []
    for _ in range(5):
        before = kernel.detach().clone()
        optimizer.step()
        delta = (kernel - before).detach().permute(2, 0, 1)
        moved.append([round(v) * 4 for v in (torch.linalg.matrix_norm(delta, 2) / 0.4).tolist()])
    assert moved == [[4, 0, 0, 0, 4], [0, 4, 0, 0, 0], [0, 0, 4, 0, 0], [0, 0, 0, 4, 0], [4, 0, 0, 0, 4]]


def test_compiled_step():
    """What torch.compile makes of the step does the same, every parameter by its own update, and is made only once."""
    ours, theirs = small_fno(width=4), small_fno(width=4)
    eager, compiled = nm.MuMuon(ours, lr=0.05), nm.MuMuon(theirs, lr=0.05)
    graphs = []
    torch.compiler.reset()
    step = torch.compile(compiled.step, backend=lambda graph, inputs: graphs.append(graph) or graph.forward)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for seed in range(4):
            random_gradients(ours, seed)
            random_gradients(theirs, seed)
            eager.step()
            step()
    products = sum(node.target in (torch.bmm, torch.baddbmm) for graph in graphs for node in graph.graph.nodes)
    assert products >= 9  # the polynomials were compiled
    start = small_fno(width=4)
    for p, q, before in zip(ours.parameters(), theirs.parameters(), start.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6) and not torch.equal(p, before)


@pytest.mark.parametrize("setting", ["high", "medium"])
def test_products_are_made_in_full_precision(setting):
    """Whatever torch is set to, which it is again afterwards, also after a step that failed."""
    model = small_fno()
    random_gradients(model)
    optimizer = nm.MuMuon(model)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(setting)
        settings = matmul_precisions()
        inside = []
        with mock.patch.object(
            muon, "orthogonalize", lambda x, **kw: inside.append(matmul_precisions()) or orthogonalize(x, **kw)
        ):
            optimizer.step()
        assert inside and all(p == ("ieee", "ieee") for p in inside)
        assert matmul_precisions() == settings != ("ieee", "ieee")
        with mock.patch.object(muon, "orthogonalize", side_effect=RuntimeError("enough")), pytest.raises(RuntimeError):
            optimizer.step()
        assert matmul_precisions() == settings
        assert torch.get_float32_matmul_precision() == setting
    finally:
        torch.set_float32_matmul_precision(before)
