"""MuSOAP as any optimizer of torch: its groups, what its updates measure, and what it does not take."""

import copy
import math

import pytest
import torch
from torch import nn

import neuralop_mup as nm
from neuralop_mup.optim.musoap import blocks
from neuralop_mup.optim.musoap.blocks import as_real
from support.cases import BY_NAME, CASES
from support.comparing import differing
from support.models import KERNEL, built, in_double, small_fno
from support.training import random_gradients, step, train

# Every block moves at every step, by the size of lr and no decay.
EACH = {"base_depth": None, "period": 1, "weight_decay": 0.0}


def sizes_of(delta, lr):
    """(Σσ⁴)^(1/4) as of random entries, of blocks (modes, in, out): E Σσ⁴ = mn (m + n), and mn (m + n + 1) of real ones."""
    m, n = delta.shape[1:]
    values = torch.linalg.svdvals(delta) / (lr * math.sqrt(n / m))
    real = not delta.is_complex()
    return values.pow(4).sum(-1).pow(1 / 4) * (math.sqrt(m) + math.sqrt(n)) / (m * n * (m + n + real)) ** 0.25


# ------------------------------------------------------------------------------------------------ what updates measure


@pytest.mark.parametrize(("width", "modes"), [(4, (8,)), (24, (8,)), (12, (32,)), (12, (6, 8))])
def test_size_of_every_update(width, modes):
    """lr √(out/in) for each mode and each hidden map, at any scale of the gradient."""
    model, optimizer, before = built(small_fno(width=width, modes=modes), lr=0.05, **EACH)
    step(optimizer, model, scale=1e-6)
    seen = set()
    for row in nm.summary(model).rows:
        if row.role in ("spectral", "hidden"):
            delta = (model.get_parameter(row.name) - before.get_parameter(row.name)).detach()
            delta = delta.flatten(2).permute(2, 0, 1) if row.role == "spectral" else delta.flatten(1).mT[None]
            assert (sizes_of(delta, 0.05) - 1).abs().max() <= 1e-3, row.name
            seen.add(delta.shape[1:])
    assert len(seen) > 1  # channel MLPs and the lifting are not square


def test_modes_take_turns_and_move_as_far_as_if_they_had_not_waited():
    """Mode k moves at steps k, k + 3, …, by three times the size of lr; a map with one block at every step."""
    model = small_fno(width=4)
    optimizer = nm.MuSOAP(model, lr=0.05, **{**EACH, "period": 3})
    for seed in range(4):
        before = copy.deepcopy(model)
        step(optimizer, model, seed)
        moved = (model.get_parameter(KERNEL) - before.get_parameter(KERNEL)).detach().permute(2, 0, 1)
        want = torch.tensor([float(k % 3 == seed % 3) for k in range(len(moved))])
        assert (sizes_of(moved, 3 * 0.05) - want).abs().max() <= 1e-3
        hidden = "fno_blocks.channel_mlp.0.fcs.0.weight"
        assert not torch.equal(model.get_parameter(hidden), before.get_parameter(hidden))


@pytest.mark.parametrize("width", [4, 16, 36])
def test_an_update_of_rank_one_is_larger_in_operator_norm_than_random_entries_are(width):
    """In its own bases it has one entry u: operator norm |u|. Its size is |u| 2√n / (2n³)^(1/4)."""
    # In double precision: in single noise takes part in the other entries.
    model, optimizer, before = built(in_double(small_fno(width=width)), lr=0.05, **EACH)
    kernel, generator = model.get_parameter(KERNEL), torch.Generator().manual_seed(1)
    row, column = (torch.randn(width, generator=generator, dtype=torch.cdouble).real for _ in range(2))
    numbers = torch.randn(kernel.shape[2], generator=generator, dtype=torch.cdouble)
    kernel.grad = torch.einsum("i,o,k->iok", row + 0j, column + 0j, numbers)
    optimizer.step()
    norms = torch.linalg.matrix_norm((kernel - before.get_parameter(KERNEL)).detach().permute(2, 0, 1), 2)
    assert torch.allclose(norms, torch.tensor(0.05 * width**0.25 / 2**0.75, dtype=torch.double), rtol=1e-4)


def test_separable_kernels_have_one_size_a_mode():
    """Blocks are diagonal, so that the norm of a mode is its largest modulus: lr, for each mode."""
    model, optimizer, before = built(small_fno(separable=True), lr=0.05, **EACH)
    step(optimizer, model)
    moved = model.get_parameter(KERNEL) - before.get_parameter(KERNEL)
    assert torch.allclose(moved.abs().amax(0), torch.tensor(0.05), rtol=1e-4)


def test_inactive_modes_and_blocks_without_a_gradient_are_left_alone():
    """Under max_n_modes some never have one; others keep a momentum and get no update; half a gradient is one."""
    model = small_fno(max_n_modes=(16,))
    kernel, optimizer = model.get_parameter(KERNEL), nm.MuSOAP(model, lr=0.05, weight_decay=0.5, base_depth=None, period=1)
    start = kernel.detach().clone()
    train(BY_NAME["1d"], model, optimizer, steps=3)
    active = kernel.grad.flatten(0, 1).abs().amax(0) > 0
    assert 0 < active.sum() < len(active) and torch.equal(kernel[..., ~active], start[..., ~active])
    assert (kernel != start)[..., active].all()
    step(optimizer, model)
    start = kernel.detach().clone()
    kernel.grad[..., 3:] = 0
    kernel.grad[0, :, 1] = 0
    optimizer.step()
    assert torch.equal(kernel[..., 3:], start[..., 3:]) and (kernel != start)[..., :3].all()


def test_the_rest_is_torch_adamw_bit_for_bit():
    ours, optimizer, theirs = built(lr=0.0, aux_lr=3e-3, weight_decay=0.1, betas=(0.8, 0.9))
    adamw = nm.MuAdamW(theirs, lr=3e-3, weight_decay=0.1, betas=(0.8, 0.9))
    for seed in range(3):
        step(optimizer, ours, seed)
        step(adamw, theirs, seed)
    rest = [name for g in optimizer.param_groups if not g["layouts"] for name in g["param_names"]]
    assert 0 < len(rest) < len(list(ours.parameters()))
    assert all(torch.equal(ours.get_parameter(name), theirs.get_parameter(name)) for name in rest)


# -------------------------------------------------------------------------------------------------- models and groups


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_every_model_of_the_table(name):
    """Kernels and hidden maps of one size, the rest by AdamW, every parameter in one group; steps finite; all moves."""
    case = BY_NAME[name]
    model, optimizer, before = built(nm.parametrize(case.build(), base=case.base), lr=0.02, base_depth=None, period=1)
    rows = {row.name: row for row in nm.summary(model).rows}
    assert sorted(name for group in optimizer.param_groups for name in group["param_names"]) == sorted(rows)
    for group in optimizer.param_groups:
        if group["layouts"]:
            assert {rows[n].role for n in group["param_names"]} <= {"spectral", "hidden"} and group["lr"] == 0.02
            continue
        # Of kernels only the weights of a CP kernel's terms; of hidden maps only those with a stencil.
        assert all(".weights" in n for n in group["param_names"] if rows[n].role == "spectral")
        assert all(math.prod(rows[n].shape[2:]) > 1 for n in group["param_names"] if rows[n].role == "hidden")
    train(case, model, optimizer, steps=1)
    for (n, p), q in zip(model.named_parameters(), before.parameters(), strict=True):
        assert torch.isfinite(as_real(p)).all(), n
        assert p.grad is None or p.grad.abs().max() == 0 or not torch.equal(p, q), n


@pytest.mark.parametrize(("depth", "want"), [(1, 0.04), (4, 0.02), (16, 0.01)])
def test_learning_rate_goes_as_one_over_the_root_of_the_depth(depth, want):
    """√(4 / 1) = 2, √(4 / 4) = 1, √(4 / 16) = ½, and the same decay; AdamW's groups have no depth."""
    model = small_fno(n_layers=depth)
    optimizer = nm.MuSOAP(model, lr=0.02, aux_lr=1e-3, weight_decay=0.1)
    nm.check_optimizer(model, optimizer)
    for group in optimizer.param_groups:
        if group["layouts"]:
            assert group["lr"] == pytest.approx(want) and group["lr_mult"] == pytest.approx(want / 0.02)
            assert group["lr"] * group["weight_decay"] == pytest.approx(0.02 * 0.1)
        elif "readout" not in group["name"]:
            assert group["lr"] == 1e-3
    for base_depth, lr in ((None, 0.02), (1, 0.02 / math.sqrt(depth))):
        groups = nm.MuSOAP(model, lr=0.02, base_depth=base_depth).param_groups
        assert [group["lr"] for group in groups if group["layouts"]] == pytest.approx([lr, lr])


@pytest.mark.parametrize("rule", ["log-modes", "operator-norm", "none", "standard"])
def test_no_width_and_no_mode_factor_on_maps(rule):
    model = small_fno(rule=rule)
    optimizer = nm.MuSOAP(model, 0.02, 1e-3, base_depth=None, lr_mult={"spectral": 2.0, "readout": 3.0})
    lr = {name: group["lr"] for group in optimizer.param_groups for name in group["param_names"]}
    for row in nm.summary(model).rows:
        want = {"spectral": 0.04, "hidden": 0.02, "readout": 3e-3 * row.lr_mult}.get(row.role, 1e-3 * row.lr_mult)
        assert lr[row.name] == pytest.approx(want, rel=1e-12), row.name


class Kernels(nn.Module):
    """A kernel of 4 inputs, 4 outputs and 3 modes, again with its axes in another order, and twice in pairs of reals."""

    def __init__(self, width=4):
        super().__init__()
        self.whole = nn.Parameter(torch.randn(width, width, 3, dtype=torch.cfloat) / 2)
        self.turned, self.last, self.leading = (nn.Parameter(x) for x in self.others(self.whole.detach()))

    @staticmethod
    def others(x):
        pairs = torch.view_as_real(x)
        return x.permute(2, 1, 0).clone(), pairs.clone(), pairs.permute(3, 0, 1, 2).clone()


AXES = ("in", "out", "modes_single")
KINDS = {"whole": AXES, "turned": AXES[::-1], "last": (*AXES, "pair"), "leading": ("pair", *AXES)}
nm.register_layer(Kernels, {name: nm.Param("spectral", axes, init=lambda s: 0.5) for name, axes in KINDS.items()})


def test_a_kernel_moves_alike_however_it_lies():
    """AFNO's lead: real and imaginary parts were taken for two kernels; axes in another order raised."""
    model = nm.parametrize(Kernels(), base=Kernels(8), rule="none", init=False)
    start, optimizer = model.whole.detach().clone(), nm.MuSOAP(model)
    for seed in range(3):
        random_gradients(model, seed)
        model.turned.grad, model.last.grad, model.leading.grad = Kernels.others(model.whole.grad)
        optimizer.step()
    assert (model.whole != start).all()
    for p, want in zip((model.turned, model.last, model.leading), Kernels.others(model.whole.detach()), strict=True):
        torch.testing.assert_close(p.detach(), want)


def test_axes_beyond_the_limit_keep_their_own_coordinates(monkeypatch):
    monkeypatch.setattr(blocks, "MAX_BASIS", 8)
    model, optimizer, _ = built()
    step(optimizer, model)
    assert not any(key.startswith("basis") for key in optimizer.state[model.get_parameter(KERNEL)])
    assert any(key.startswith("basis") for state in optimizer.state.values() for key in state)  # channel MLPs are narrower


# ------------------------------------------------------------------------------------------------------- as of torch


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_wrapped_models(wrap):
    """Parameters of DataParallel and of a compiled model are found; the plan's names are those of the bare model."""
    model, bare = small_fno(), small_fno()
    step(nm.MuSOAP(wrap(model)), model)
    step(nm.MuSOAP(bare), bare)
    assert differing(model, bare) == 0


def test_compiled_step():
    """torch.compile takes the step, and leaves the update as it is; it raised in the middle of the first one."""
    ours, theirs = small_fno(width=4), small_fno(width=4)
    eager, compiled = nm.MuSOAP(ours), nm.MuSOAP(theirs)
    torch.compiler.reset()
    take = torch.compile(compiled.step, backend="aot_eager")
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for seed in range(3):
            step(eager, ours, seed)
            random_gradients(theirs, seed)
            take()
    assert differing(ours, theirs) == 0 and differing(ours, small_fno(width=4)) > 0


def test_parameters_without_gradient():
    model, optimizer, before = built()
    optimizer.step()
    assert differing(model, before) == 0 and not optimizer.state


def test_a_parameter_that_is_added_is_adamws():
    """Of the loss, say; a group without a learning rate has AdamW's."""
    optimizer = nm.MuSOAP(small_fno(), aux_lr=0.1)
    extra = nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [extra], "param_names": ["extra"]})
    extra.grad = torch.ones(3)
    optimizer.step()
    assert torch.allclose(extra, torch.tensor(0.9), atol=1e-3)


WITHOUT_A_KERNEL = nm.parametrize(nn.Sequential(nn.Linear(8, 8)), base=nn.Sequential(nn.Linear(4, 4)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": WITHOUT_A_KERNEL}, "has no Fourier kernel, and MuSOAP is for those"),
        ({"step": 3000}, "no argument 'step': did you mean 'steps'"),
        ({"nesterov": False}, "no argument 'nesterov': expected one of"),
        *(({"steps": n}, f"steps is {n!r}; give a whole number of optimizer steps, 1 or more") for n in (0, 3e3, True)),
        ({"check": "later"}, "check is 'later': expected one of"),
        ({"lr": -0.1}, "lr is -0.1"),
        ({"lr": math.nan}, "lr is nan"),
        ({"lr": 2}, "lr is 2; .*size of each update"),
        ({"lr": "0.1"}, "lr is '0.1'"),
        ({"aux_lr": math.inf}, "aux_lr is inf"),
        ({"aux_lr": 8}, "it is AdamW's"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"beta2": -0.1}, "beta2 is -0.1"),
        ({"betas": (0.9, 1.0)}, r"betas is \(0.9, 1.0\)"),
        ({"betas": 0.9}, "betas is 0.9"),
        ({"period": 0}, "period is 0"),
        ({"period": 1.5}, "period is 1.5"),
        ({"refresh": 0}, "refresh is 0"),
        ({"base_depth": 0}, "base_depth is 0"),
        ({"eps": -1.0}, "eps is -1.0"),
        ({"weight_decay": math.nan}, "weight_decay is nan"),
        ({"lr_mult": {"kernel": 2}}, "no role 'kernel'"),
        ({"process_group": "world"}, "process_group is 'world'; give what torch.distributed.new_group returns"),
    ],
)
def test_arguments_that_cannot_work(arguments, message):
    with pytest.raises(nm.MupError, match=message):
        nm.MuSOAP(**{"model": small_fno(), **arguments})


def test_a_layer_that_was_replaced_is_found_out():
    model = small_fno()
    model.projection.fcs[1] = nn.Conv1d(model.projection.fcs[1].in_channels, 5, 1)
    with pytest.raises(nm.MupError, match=r"'projection.fcs.1.weight' has the shape \(5, .* parametrize the finished model"):
        nm.MuSOAP(model)


def test_a_sparse_gradient_is_told():
    model = small_fno()
    optimizer = nm.MuSOAP(model)
    random_gradients(model)
    bias = model.get_parameter("projection.fcs.1.bias")
    bias.grad = bias.grad.to_sparse()
    with pytest.raises(nm.MupError, match="'projection.fcs.1.bias' is sparse, .* sparse=False"):
        optimizer.step()
