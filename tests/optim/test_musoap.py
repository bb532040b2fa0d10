"""MuSOAP like any optimizer of torch: its groups, the size of its updates, and arguments that it refuses."""

import copy
import math

import pytest
import torch
from torch import nn

import neuralop_mup as nm
from neuralop_mup.optim.musoap import stacks
from neuralop_mup.optim.musoap.stacks import as_real
from support.cases import BY_NAME
from support.comparing import differing
from support.errors import refused
from support.models import KERNEL, built, in_double, parametrized, small_fno
from support.training import random_gradients, step, train, train_small

# Every block moves at every step, by lr and without decay.
EACH = {"base_depth": None, "period": 1, "weight_decay": 0.0}


def sizes_of(delta, lr):
    """Return (Σσ⁴)^(1/4) of blocks (modes, in, out) over that of random entries.

    E Σσ⁴ is mn (m + n) for complex entries, and mn (m + n + 1) for real ones.
    """
    m, n = delta.shape[1:]
    values = torch.linalg.svdvals(delta) / (lr * math.sqrt(n / m))
    real = not delta.is_complex()
    return values.pow(4).sum(-1).pow(1 / 4) * (math.sqrt(m) + math.sqrt(n)) / (m * n * (m + n + real)) ** 0.25


def moved(model, before, name=KERNEL):
    """Return how far the blocks of a parameter moved, as (modes, in, out)."""
    delta = (model.get_parameter(name) - before.get_parameter(name)).detach()
    return delta.flatten(2).permute(2, 0, 1) if delta.is_complex() else delta.flatten(1).mT[None]


# ------------------------------------------------------------------------------------------------ what updates measure


@pytest.mark.parametrize(("width", "modes"), [(4, (8,)), (24, (8,)), (8, (6, 8))])
def test_size_of_every_update(width, modes):
    """It is lr √(out/in) for each mode and each hidden layer, at any scale of the gradient."""
    model, optimizer, before = built(small_fno(width=width, modes=modes), lr=0.05, **EACH)
    step(optimizer, model, scale=1e-6)
    shapes = set()
    for row in nm.summary(model).rows:
        if row.role in ("spectral", "hidden"):
            delta = moved(model, before, row.name)
            assert (sizes_of(delta, 0.05) - 1).abs().max() <= 1e-3, row.name
            shapes.add(delta.shape[1:])
    assert len(shapes) > 1  # channel MLPs and the lifting are not square


def test_modes_take_turns_and_move_as_far_as_if_they_had_not_waited():
    """Mode k moves at steps k, k + 3, …, by three times lr; a hidden layer has one block and moves at every step."""
    model = small_fno(width=4)
    optimizer = nm.MuSOAP(model, lr=0.05, **{**EACH, "period": 3})
    for seed in range(4):
        before = copy.deepcopy(model)
        step(optimizer, model, seed)
        want = torch.tensor([float(k % 3 == seed % 3) for k in range(5)])
        assert (sizes_of(moved(model, before), 3 * 0.05) - want).abs().max() <= 1e-3
        assert moved(model, before, "fno_blocks.channel_mlp.0.fcs.0.weight").abs().min() > 0


@pytest.mark.parametrize("width", [4, 36])
def test_an_update_of_rank_one_is_larger_in_operator_norm_than_random_entries_are(width):
    """In its own bases it has one entry u: operator norm |u|. Its size is |u| 2√n / (2n³)^(1/4)."""
    # In double precision: in single precision noise adds other entries.
    model, optimizer, before = built(in_double(small_fno(width=width)), lr=0.05, **EACH)
    kernel, generator = model.get_parameter(KERNEL), torch.Generator().manual_seed(1)
    row, column = (torch.randn(width, generator=generator, dtype=torch.cdouble).real for _ in range(2))
    numbers = torch.randn(kernel.shape[2], generator=generator, dtype=torch.cdouble)
    kernel.grad = torch.einsum("i,o,k->iok", row + 0j, column + 0j, numbers)
    optimizer.step()
    norms = torch.linalg.matrix_norm(moved(model, before), 2)
    assert torch.allclose(norms, torch.tensor(0.05 * width**0.25 / 2**0.75, dtype=torch.double), rtol=1e-4)


def test_separable_kernels_have_one_size_for_each_mode():
    """Blocks are diagonal, so that the norm of a mode is its largest modulus: lr."""
    model, optimizer, before = built(small_fno(separable=True), lr=0.05, **EACH)
    step(optimizer, model)
    delta = model.get_parameter(KERNEL) - before.get_parameter(KERNEL)
    assert torch.allclose(delta.abs().amax(0), torch.tensor(0.05), rtol=1e-4)


def test_inactive_modes_and_blocks_without_a_gradient_do_not_move():
    """Under max_n_modes some modes never have one; others keep a momentum; half a gradient moves a mode."""
    model, optimizer, start = built(small_fno(width=4, max_n_modes=(16,)), lr=0.05, weight_decay=0.5, mode_stride=1)
    train_small(model, optimizer, range(2))
    moves = (moved(model, start) != 0).flatten(1)
    assert moves.all(1).tolist() == moves.any(1).tolist() == [True] * 5 + [False] * 11
    start = copy.deepcopy(model)
    kernel = model.get_parameter(KERNEL)
    kernel.grad[..., 3:] = 0
    kernel.grad[0, :, 1] = 0
    optimizer.step()
    moves = (moved(model, start) != 0).flatten(1)
    assert moves.all(1).tolist() == moves.any(1).tolist() == [True] * 3 + [False] * 13


def test_the_rest_is_torch_adamw_bit_for_bit():
    ours, optimizer, theirs = built(lr=0.0, adamw_lr=3e-3, weight_decay=0.1, betas=(0.8, 0.9))
    adamw = nm.MuAdamW(theirs, lr=3e-3, weight_decay=0.1, betas=(0.8, 0.9))
    for seed in range(3):
        step(optimizer, ours, seed)
        step(adamw, theirs, seed)
    rest = [name for g in optimizer.param_groups if not g["layouts"] for name in g["param_names"]]
    assert 0 < len(rest) < len(list(ours.parameters()))
    assert all(torch.equal(ours.get_parameter(name), theirs.get_parameter(name)) for name in rest)


# -------------------------------------------------------------------------------------------------- models and groups

# Of each kind of kernel, and of hidden layers.
LAYOUTS = {
    "2d": "iobb oil",
    "separable": "cbb oil",
    "tucker_factorized": "bo io ioii oi oil",
    "tucker_separable": "bo oi oii oil",
    "cp_factorized": "bo io oi oil",
    "tt_factorized": "ioi lio obi obl oil",
    "complex_data_1d": "iob oil",
    "legacy_tucker_joint": "bop iioiip iop lop oip",
    "legacy_separable": "cbbp",
    "uno": "iobb oil",
    "like_physicsnemo_fno_1d": "iobp oil",
    "like_physicsnemo_afno": "oi plio",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_and_a_step_of_many_models(name):
    """Kernels and hidden layers have layouts, the rest is AdamW's; all that has a gradient moves."""
    case = BY_NAME[name]
    model, optimizer, before = built(parametrized(case), lr=0.02, base_depth=None, mode_stride=1)
    roles = {row.name: row.role for row in nm.summary(model).rows}
    assert sorted(name for group in optimizer.param_groups for name in group["param_names"]) == sorted(roles)
    assert {x for group in optimizer.param_groups for x in group["layouts"] or ()} == set(LAYOUTS[name].split())
    for group in optimizer.param_groups:
        # Of kernels AdamW has only the weights of a CP kernel's terms.
        own = {roles[n] for n in group["param_names"] if not n.endswith("weight.weights")}
        assert own == {group["name"]} if group["layouts"] else not own & {"spectral", "hidden"}
    train(case, model, optimizer, steps=1)
    for (n, p), q in zip(model.named_parameters(), before.parameters(), strict=True):
        assert torch.isfinite(as_real(p)).all(), n
        assert p.grad is None or p.grad.abs().max() == 0 or not torch.equal(p, q), n


@pytest.mark.parametrize(("depth", "want"), [(1, 0.04), (4, 0.02), (16, 0.01)])
def test_learning_rate_goes_as_one_over_the_root_of_the_depth(depth, want):
    """√(4 / 1) = 2, √(4 / 4) = 1, √(4 / 16) = ½, and the same decay; AdamW's groups have no depth."""
    model = small_fno(width=4, n_layers=depth)
    optimizer = nm.MuSOAP(model, lr=0.02, adamw_lr=1e-3, weight_decay=0.1)
    nm.check_optimizer(model, optimizer)
    hidden, kernels, *rest = optimizer.param_groups
    for group in (hidden, kernels):
        found = [group[key] for key in ("lr", "lr_mult", "rule_mult", "weight_decay")]
        assert found == pytest.approx([want, want / 0.02, want / 0.02, 0.02 * 0.1 / want])
    assert {(group["lr"], group["weight_decay"]) for group in rest} == {(1e-3, 0.1)}
    for base_depth, lr in ((None, 0.02), (1, 0.02 / math.sqrt(depth))):
        groups = nm.MuSOAP(model, lr=0.02, base_depth=base_depth).param_groups
        assert groups[0]["lr"] == groups[1]["lr"] == pytest.approx(lr)


@pytest.mark.parametrize("rule", ["log-modes", "standard"])
def test_kernels_and_hidden_layers_have_no_width_and_no_mode_factor(rule):
    model = small_fno(rule=rule)
    optimizer = nm.MuSOAP(model, 0.02, 1e-3, base_depth=None, lr_mult={"spectral": 2.0, "readout": 3.0})
    lr = {name: group["lr"] for group in optimizer.param_groups for name in group["param_names"]}
    for row in nm.summary(model).rows:
        want = {"spectral": 0.04, "hidden": 0.02, "readout": 3e-3 * row.lr_mult}.get(row.role, 1e-3 * row.lr_mult)
        assert lr[row.name] == pytest.approx(want, rel=1e-12), row.name


def test_axes_beyond_the_limit_keep_their_own_coordinates(monkeypatch):
    monkeypatch.setattr(stacks, "MAX_BASIS", 8)
    model, optimizer, _ = built()
    step(optimizer, model)
    assert not any(key.startswith("basis") for key in optimizer.state[model.get_parameter(KERNEL)])
    assert any(key.startswith("basis") for state in optimizer.state.values() for key in state)  # channel MLPs are narrower


# ------------------------------------------------------------------------------------------------------- as of torch


def test_a_compiled_step_is_the_same():
    """It raised in the middle of the first one."""
    ours, theirs = (small_fno(width=4, n_layers=1) for _ in range(2))
    eager, compiled = nm.MuSOAP(ours), nm.MuSOAP(theirs)
    torch.compiler.reset()
    take = torch.compile(compiled.step, backend="aot_eager")
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for seed in range(3):
            step(eager, ours, seed)
            random_gradients(theirs, seed)
            take()
    assert differing(ours, theirs) == 0


def test_a_parameter_that_is_added_is_adamws():
    """It may be a weight of the loss. A group without a learning rate has AdamW's."""
    optimizer = nm.MuSOAP(small_fno(), adamw_lr=0.1)
    extra = nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [extra], "param_names": ["extra"]})
    extra.grad = torch.ones(3)
    optimizer.step()
    assert torch.allclose(extra, torch.tensor(0.9), atol=1e-3)


WITHOUT_A_KERNEL = nm.parametrize(nn.Sequential(nn.Linear(8, 8)), base=nn.Sequential(nn.Linear(4, 4)))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"model": WITHOUT_A_KERNEL}, "Fourierkernel MuAdam"),
        ({"step": 3000}, "'step' 'steps'"),
        ({"steps": 3e3}, "steps 3000.0"),
        ({"check": "later"}, "check 'later'"),
        ({"lr": -0.1}, "lr -0.1"),
        ({"lr": 1.01}, "lr 1.01"),
        ({"lr": "0.1"}, "lr '0.1'"),
        ({"adamw_lr": 8}, "adamw_lr 8"),
        ({"momentum": 1.0}, "momentum 1.0"),
        ({"beta2": -0.1}, "beta2 -0.1"),
        ({"betas": (0.9, 1.0)}, "betas (0.9,1.0)"),
        ({"period": 1.5}, "mode_stride 1.5"),
        ({"refresh": 0}, "refresh 0"),
        ({"base_depth": 0}, "base_depth 0"),
        ({"eps": -1.0}, "eps -1.0"),
        ({"weight_decay": math.nan}, "weight_decay nan"),
        ({"lr_mult": {"kernel": 2}}, "'kernel'"),
    ],
)
def test_arguments_that_are_refused(arguments, names):
    with refused(names):
        nm.MuSOAP(**{"model": small_fno(width=4), **arguments})


def test_a_layer_that_was_replaced_is_refused():
    model = small_fno()
    model.projection.fcs[1] = nn.Conv1d(model.projection.fcs[1].in_channels, 5, 1)
    with refused("'projection.fcs.1.weight' (5, parametrize"):
        nm.MuSOAP(model)
