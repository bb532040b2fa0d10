"""Muon, mode by mode: a step written out by hand, as any optimizer of torch, and what can go wrong."""

import copy
import io
import math
from unittest import mock

import pytest
import torch
from blocks import exact, with_values
from cases import BY_NAME, CASES
from neuralop.models import FNO
from support import differing, train
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import neuralop_mup as nm
from neuralop_mup import roles
from neuralop_mup.experiments.training import train_run
from neuralop_mup.muon import optimizer as muon
from neuralop_mup.muon.cost import step_cost
from neuralop_mup.muon.groups import fourier_depth
from neuralop_mup.muon.newton_schulz import BAND, orthogonalize
from neuralop_mup.muon.optimizer import AUX_LR

# --------------------------------------------------------------------------------------------------------- a step


def small(rule="log-modes", width=12, modes=(8,), **kwargs):
    torch.manual_seed(0)
    model = FNO(modes, 2, 3, width, **{"n_layers": 2, **kwargs})
    base = {"hidden_channels": 4} if rule != "operator-norm" else {"hidden_channels": 4, "n_modes": (4,) * len(modes)}
    return nm.parametrize(model, base=base, rule=rule)


def random_gradients(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)


@pytest.mark.parametrize("width, modes", [(4, (8,)), (24, (8,)), (12, (32,)), (12, (6, 8))])
def test_operator_norm_of_every_update(width, modes):
    """lr √(out/in) for each mode and each hidden map, at every width and number of modes."""
    model = small(width=width, modes=modes)
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
        w = (1 - lr * weight_decay) * w - lr * scale * (exact(x) - damping * x / bound)
    return w


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("damping", [0.0, 0.7])
def test_steps_against_a_reference_written_out(nesterov, weight_decay, damping):
    """Four steps on 4 → 4 channels, well conditioned in double precision: within the band of exact steps."""
    model = small(width=4).double()
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
    bound = 4 * 0.1 * BAND
    assert torch.linalg.matrix_norm(got - want, 2).max() <= bound
    assert torch.linalg.matrix_norm(other - want, 2).max() > bound  # the test can tell


def test_the_rest_is_torch_adamw_bit_for_bit():
    ours, theirs = small(), small()
    optimizer = nm.MuMuon(ours, lr=0.0, aux_lr=3e-3, weight_decay=0.1, betas=(0.8, 0.9))
    adamw = nm.MuAdamW(theirs, lr=3e-3, weight_decay=0.1, betas=(0.8, 0.9))
    x, y = BY_NAME["1d"].batch()
    muon = {id(p) for g in optimizer.param_groups if g["layouts"] for p in g["params"]}
    names = {name for name, p in ours.named_parameters() if id(p) in muon}
    assert names and len(names) < len(list(ours.parameters()))
    for _ in range(3):
        (ours(x) - y).square().mean().backward()
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            q.grad = p.grad.clone()
        optimizer.step()
        adamw.step()
        ours.zero_grad()
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert name in names or torch.equal(p, q), name


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_every_model_of_the_table(name):
    """Kernels by Muon, input, readout and vectors by AdamW, every parameter in one group; steps finite; all moves."""
    case = BY_NAME[name]
    model = nm.parametrize(case.build(), base=case.base)
    optimizer = nm.MuMuon(model, lr=0.02, period=1, base_depth=None)
    rows = {row.name: row for row in nm.summary(model).rows}
    grouped = [name for group in optimizer.param_groups for name in group["param_names"]]
    assert sorted(grouped) == sorted(rows)
    for group in optimizer.param_groups:
        roles = {rows[n].role for n in group["param_names"]}
        if group["layouts"]:
            assert roles <= {"spectral", "hidden"} and group["lr"] == 0.02
        else:
            # Of kernels only the weights of a CP kernel's terms; of hidden maps only those with a stencil.
            assert all(
                n.endswith("weight.weights") or ".weights" in n for n in group["param_names"] if rows[n].role == "spectral"
            )
            assert all(math.prod(rows[n].shape[2:]) > 1 for n in group["param_names"] if rows[n].role == "hidden")
    before = copy.deepcopy(model)
    train(case, model, optimizer, steps=1)
    for (n, p), q in zip(model.named_parameters(), before.parameters(), strict=True):
        assert torch.isfinite(torch.view_as_real(p) if p.is_complex() else p).all(), n
        if p.grad is not None and p.grad.abs().max() > 0:
            assert not torch.equal(p, q), n


def test_separable_kernels_move_every_entry_by_lr():
    """Blocks are diagonal: a polar factor is a phase for each entry."""
    model = small(separable=True)
    before = copy.deepcopy(model)
    random_gradients(model)
    nm.MuMuon(model, lr=0.05, period=1, base_depth=None).step()
    key = "fno_blocks.convs.0.weight.tensor"
    p, q = dict(model.named_parameters())[key], dict(before.named_parameters())[key]
    assert torch.allclose((p - q).abs(), torch.tensor(0.05), rtol=1e-4)
    assert torch.allclose((q - p) / 0.05, p.grad / p.grad.abs(), atol=1e-4)


def test_inactive_modes_are_left_alone():
    """Under max_n_modes they never have a gradient: no update, no decay; the active ones as without the others."""
    model = small(max_n_modes=(16,))
    kernel = dict(model.named_parameters())["fno_blocks.convs.0.weight.tensor"]
    start = kernel.detach().clone()
    optimizer = nm.MuMuon(model, lr=0.05, weight_decay=0.5, period=2, base_depth=None)
    x, y = BY_NAME["1d"].batch()
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    active = kernel.grad.flatten(0, 1).abs().amax(0) > 0
    assert 0 < active.sum() < len(active)
    assert torch.equal(kernel[..., ~active], start[..., ~active])
    assert (kernel != start)[..., active].all()


def test_a_block_without_a_gradient_does_not_move():
    """Modes that are used no more keep a momentum and get no update; half a gradient of zeros is a gradient."""
    model = small(modes=(8,), max_n_modes=(16,))
    kernel = dict(model.named_parameters())["fno_blocks.convs.0.weight.tensor"]
    optimizer = nm.MuMuon(model, lr=0.05, weight_decay=0.5, period=1)
    for _ in range(2):
        random_gradients(model)
        optimizer.step()
    start = kernel.detach().clone()
    kernel.grad[..., 3:] = 0
    kernel.grad[0, :, 1] = 0
    optimizer.step()
    assert optimizer.state[kernel]["momentum_buffer"].abs().amin() > 0
    assert torch.equal(kernel[..., 3:], start[..., 3:])
    assert (kernel != start)[..., :3].all()


def test_learning_rate_goes_as_one_over_the_root_of_the_depth():
    """√(4 / 1) = 2, √(4 / 4) = 1, √(4 / 16) = ½, and the same decay; AdamW's groups have no depth."""
    for depth, want in ((1, 0.04), (4, 0.02), (16, 0.01)):
        model = small(n_layers=depth)
        optimizer = nm.MuMuon(model, lr=0.02, aux_lr=1e-3, weight_decay=0.1)
        nm.check_optimizer(model, optimizer)
        for group in optimizer.param_groups:
            if group["layouts"]:
                assert group["lr"] == pytest.approx(want) and group["lr_mult"] == pytest.approx(want / 0.02)
                assert group["lr"] * group["weight_decay"] == pytest.approx(0.02 * 0.1)
            elif "readout" not in group["name"]:
                assert group["lr"] == 1e-3
        assert [g["lr"] for g in nm.MuMuon(model, lr=0.02, base_depth=None).param_groups if g["layouts"]] == [0.02, 0.02]
        assert nm.MuMuon(model, lr=0.02, base_depth=1).param_groups[0]["lr"] == pytest.approx(0.02 / math.sqrt(depth))


@pytest.mark.parametrize(("name", "depth"), [("uno", 3), ("legacy_joint", 2), ("tucker_factorized", 2), ("uqno", 2)])
def test_depth_is_the_number_of_fourier_layers(name, depth):
    assert fourier_depth(BY_NAME[name].build()) == depth


def test_compiled_step():
    """What torch.compile makes of the step does the same, every parameter by its own update, and is made only once."""
    ours, theirs = small(width=4), small(width=4)
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
    start = small(width=4)
    for p, q, before in zip(ours.parameters(), theirs.parameters(), start.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6) and not torch.equal(p, before)


def test_an_unknown_kernel_layer_counts_as_one():
    """Modules without n_modes hold a kernel each."""

    class Kernel(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(4, 4, 6, dtype=torch.cfloat))

    with mock.patch.dict(roles._ADAPTERS):
        nm.register_layer(Kernel, {"kernel": roles.Param("spectral", ("in", "out", "modes"), "mean_fan")})
        assert fourier_depth(nn.Sequential(Kernel(), Kernel(), Kernel())) == 3


def matmul_precisions():
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision


@pytest.mark.parametrize("setting", ["high", "medium"])
def test_products_are_made_in_full_precision(setting):
    """Whatever torch is set to, which it is again afterwards, also after a step that failed."""
    model = small()
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


def test_decay_does_not_depend_on_the_period():
    """With next to no updates, all modes have shrunk by (1 − period · lr · weight_decay) ^ (steps / period)."""
    shrunk = {}
    for period in (1, 4):
        model = small()
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


def test_wrapped_models():
    """Parameters of DataParallel and of a compiled model are found; the plan's names are those of the bare model."""
    bare = small()
    random_gradients(bare)
    for wrap in (nn.DataParallel, torch.compile):
        model = small()
        random_gradients(model)
        optimizer = nm.MuMuon(wrap(model))
        assert step_cost(wrap(model)) == step_cost(bare)
        optimizer.step()
        plain = copy.deepcopy(bare)
        random_gradients(plain)
        nm.MuMuon(plain).step()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(p, q)


def test_adamws_step_is_counted_in_float32():
    """bfloat16, a possible default type, holds no odd number beyond 256."""
    model = small()
    random_gradients(model)
    optimizer = nm.MuMuon(model)
    try:
        torch.set_default_dtype(torch.bfloat16)
        optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    steps = [state["step"] for state in optimizer.state.values() if "exp_avg" in state]
    assert steps and {step.dtype for step in steps} == {torch.float32}


def test_conjugated_gradients():
    ours, theirs = small(), small()
    for model in (ours, theirs):
        random_gradients(model)
    for p in ours.parameters():
        p.grad = p.grad.conj().resolve_conj().conj() if p.is_complex() else p.grad
    assert any(p.grad.is_conj() for p in ours.parameters() if p.is_complex())
    nm.MuMuon(ours).step()
    nm.MuMuon(theirs).step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)


def test_packing_does_not_matter(monkeypatch):
    """Blocks of all layers together, or few at a time."""
    results = []
    for size in (2**30, 100, 1):
        monkeypatch.setattr("neuralop_mup.muon.optimizer._CHUNK", {"cpu": size})
        model = small()
        random_gradients(model)
        nm.MuMuon(model).step()
        results.append(list(model.parameters()))
    for other in results[1:]:
        for p, q in zip(results[0], other, strict=True):
            assert torch.allclose(p, q, atol=1e-5)


def test_no_width_and_no_mode_factor_on_maps():
    for rule in ("log-modes", "operator-norm", "none", "standard"):
        model = small(rule=rule)
        plan = nm.summary(model)
        groups = nm.MuMuon(
            model, lr=0.02, aux_lr=1e-3, base_depth=None, lr_mult={"spectral": 2.0, "readout": 3.0}
        ).param_groups
        lr = {name: group["lr"] for group in groups for name in group["param_names"]}
        for row in plan.rows:
            want = {"spectral": 0.04, "hidden": 0.02, "readout": 3e-3 * row.lr_mult}.get(row.role, 1e-3 * row.lr_mult)
            assert lr[row.name] == pytest.approx(want, rel=1e-12), (rule, row.name)


# ---------------------------------------------------------------------------------- as any optimizer of torch


def test_names_defaults_and_schedulers():
    model = small()
    optimizer = nm.MuMuon(model, base_depth=None)
    assert [g["name"] for g in optimizer.param_groups] == ["hidden", "spectral", "aux input+vector", "aux readout"]
    start = [g["lr"] for g in optimizer.param_groups]
    assert start[:3] == [0.02, 0.02, AUX_LR]
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    for _ in range(2):
        random_gradients(model)
        optimizer.step()
        scheduler.step()
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([lr / 2 for lr in start])
    one_cycle = torch.optim.lr_scheduler.OneCycleLR(nm.MuMuon(model, base_depth=None), max_lr=start, total_steps=10)
    for _ in range(3):  # pct_start 0.3: the top comes after (0.3 · 10) − 1 = 2 steps
        assert {g["momentum"] for g in one_cycle.optimizer.param_groups} == {0.95}
        peak = [g["lr"] for g in one_cycle.optimizer.param_groups]
        random_gradients(model)
        one_cycle.optimizer.step()
        one_cycle.step()
    assert peak == pytest.approx(start)


def test_state_dict_resumes_bit_for_bit():
    case = BY_NAME["2d"]
    model = nm.parametrize(case.build(), base=case.base)
    optimizer = nm.MuMuon(model, weight_decay=0.01)
    train(case, model, optimizer, steps=2)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed = copy.deepcopy(model)
    other = nm.MuMuon(resumed, lr=0.5)
    other.load_state_dict(torch.load(file, weights_only=True))
    for m, o in ((model, optimizer), (resumed, other)):
        train(case, m, o, steps=2)
    assert differing(model, resumed) == 0


def test_state_is_one_buffer_for_maps():
    model = small()
    optimizer = nm.MuMuon(model)
    random_gradients(model)
    optimizer.step()
    for group in optimizer.param_groups:
        for p in group["params"]:
            big = [v for v in optimizer.state[p].values() if torch.is_tensor(v) and v.shape == p.shape]
            assert len(big) == (1 if group["layouts"] else 2)


def test_accumulated_and_averaged_gradients():
    """Two half batches, or the mean over two ranks, give the step of the whole batch."""
    x, y = BY_NAME["1d"].batch(size=4)
    whole, halves = small(), small()
    for model, parts in ((whole, [slice(0, 4)]), (halves, [slice(0, 2), slice(2, 4)])):
        optimizer = nm.MuMuon(model)
        for part in parts:
            ((model(x[part]) - y[part]).square().sum() / 4).backward()
        optimizer.step()
    for p, q in zip(whole.parameters(), halves.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-4)


def test_closure_and_parameters_without_gradient():
    model = small()
    optimizer = nm.MuMuon(model)
    before = copy.deepcopy(model)
    optimizer.step()
    assert differing(model, before) == 0 and not optimizer.state
    x, y = BY_NAME["1d"].batch()

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert first.requires_grad and differing(model, before) > 0


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


@pytest.mark.parametrize("period", [1, 4])
def test_coordinate_check_takes_it(period):
    """Updates are of one size from width 8 to 64; Adam without a rule has slopes near 1."""
    g = torch.Generator().manual_seed(0)
    batches = [{"x": torch.randn(2, 1, 32, generator=g), "y": torch.randn(2, 1, 32, generator=g)}]

    def build(width):
        return nm.parametrize(FNO((8,), 1, 1, width, n_layers=1), base={"hidden_channels": 8})

    def muon(model, lr):
        return nm.MuMuon(model, lr=lr, period=period)

    check = nm.coord_check(build, (8, 64), batches, lr=0.01, steps=(3,), seeds=6, optimizer=muon)
    assert all(abs(row["slope"]) < 0.3 for row in check.slopes if row["kind"] == "update"), check.to_markdown()


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["fno_blocks.convs.1.weight.tensor", "projection.fcs.1.bias"])
def test_a_bad_gradient_is_refused_and_nothing_changes(where, bad):
    model = small()
    optimizer = nm.MuMuon(model)
    random_gradients(model)
    optimizer.step()
    before, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    random_gradients(model, seed=1)
    dict(model.named_parameters())[where].grad.flatten()[-1] = bad
    with pytest.raises(nm.MupError, match=f"gradient of '{where}' is not finite"):
        optimizer.step()
    assert differing(model, before) == 0
    for key, value in optimizer.state_dict()["state"].items():
        for name, tensor in value.items():
            assert (
                (tensor == state["state"][key][name])
                if not torch.is_tensor(tensor)
                else torch.equal(tensor, state["state"][key][name])
            )


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"lr": -0.1}, "lr is -0.1"),
        ({"lr": math.nan}, "lr is nan"),
        ({"lr": 2}, "operator norm of each update"),
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
        nm.MuMuon(small(), **arguments)


def test_learning_rates_the_wrong_way_round_are_pointed_out():
    with pytest.warns(UserWarning, match="other way round"):
        nm.MuMuon(small(), lr=1e-3, aux_lr=0.02)


def test_models_it_does_not_take():
    with pytest.raises(nm.MupError, match="not parametrized"):
        nm.MuMuon(FNO((8,), 1, 1, 8))
    mlp = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nm.parametrize(mlp, base=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    with pytest.raises(nm.MupError, match="has no Fourier kernel"):
        nm.MuMuon(mlp)


class Odd(nn.Module):
    """Pairs of real numbers that do not lie last."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(2, 4, 4, 3) / 2)


nm.register_layer(Odd, {"kernel": nm.Param("spectral", ("pair", "in", "out", "modes_single"), stock=lambda s: 0.5)})


def test_an_unknown_complex_layout_is_refused():
    model = nm.parametrize(Odd(), base=Odd, rule="none")
    with pytest.raises(nm.MupError, match="'kernel'.*cannot read"):
        nm.MuMuon(model)


def test_a_parameter_has_one_group():
    model = small()
    optimizer = nm.MuMuon(model)
    with pytest.raises(nm.MupError, match="one group"):
        optimizer.add_param_group({"params": [next(model.parameters())]})
    extra = nn.Parameter(torch.ones(3))
    with pytest.raises(nm.MupError, match="two"):
        optimizer.add_param_group({"params": [extra], "param_names": ["extra"]})
    for layouts in (["io"], [], ["x"], ["b", "b"]):
        with pytest.raises(nm.MupError, match="do not fit"):
            optimizer.add_param_group({"params": [extra], "param_names": ["extra"], "lr": 0.1, "layouts": layouts})
    optimizer.add_param_group({"params": [extra], "param_names": ["extra"], "lr": 0.1})
    extra.grad = torch.ones(3)
    optimizer.step()
    assert torch.allclose(extra, torch.tensor(0.9), atol=1e-3)


def test_a_state_of_another_optimizer_is_refused():
    one, other = nm.MuMuon(small()), nm.MuMuon(small(separable=True))
    with pytest.raises(nm.MupError, match="layouts differ"):
        one.load_state_dict(other.state_dict())
    model = small()
    with pytest.raises(nm.MupError, match="layouts differ"):
        one.load_state_dict(nm.MuAdam(model).state_dict())
    with pytest.raises(nm.MupError, match="layouts differ"):
        one.load_state_dict({"model": {}})
    with pytest.raises(nm.MupError, match="layouts differ"):
        one.load_state_dict([])
    # The same parameters under another base: torch would take AdamW's learning rates from the file.
    groups = copy.deepcopy(one.param_groups)
    stock = nm.parametrize(FNO((8,), 2, 3, 12, n_layers=2), base={"hidden_channels": 6})
    with pytest.raises(nm.MupError, match="rule_mult of group 'aux readout'"):
        one.load_state_dict(nm.MuMuon(stock).state_dict())
    assert [g["lr"] for g in one.param_groups] == [g["lr"] for g in groups]


def test_sharded_parameters_are_refused():
    """FSDP2 and tensor parallelism make DTensors; a process group of one is enough to have one."""
    import torch.distributed as dist
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    model = small()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        skip = model.fno_blocks.fno_skips[0].conv
        skip.weight = nn.Parameter(distribute_tensor(skip.weight.detach(), DeviceMesh("cpu", [0]), [Shard(0)]))
        with pytest.raises(nm.MupError, match="DTensor"):
            nm.MuMuon(model)
    finally:
        dist.destroy_process_group()


# -------------------------------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize("name", ["1d", "2d", "separable", "tucker_factorized", "complex_data_1d", "legacy_dense", "uno"])
def test_predicted_cost_is_what_a_step_takes(name):
    """Operations as torch counts them in the products of a step; bytes as they lie in the state."""
    case = BY_NAME[name]
    model = nm.parametrize(case.build(), base=case.base)
    random_gradients(model)
    cost, adam = step_cost(model), nm.MuAdam(model)
    optimizer = nm.MuMuon(model, period=1)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    assert counter.get_total_flops() == cost.orthogonalize
    adam.step()
    for held, predicted in ((optimizer, cost.state_bytes), (adam, cost.adam_state_bytes)):
        tensors = [
            t for p in model.parameters() for t in held.state[p].values() if torch.is_tensor(t) and t.shape == p.shape
        ]
        assert sum(t.numel() * t.element_size() for t in tensors) == predicted
    assert cost.state_bytes < cost.adam_state_bytes


def test_a_period_divides_the_cost():
    """5 stored modes of n_modes 8: all have moved after 4 steps, each once but for the first, whose turn comes again."""
    model = small()
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
    whole, part = step_cost(model, 1).orthogonalize, step_cost(model, 4).orthogonalize
    hidden = step_cost(small(separable=True), 1).orthogonalize  # no products for its kernels
    assert part - hidden == pytest.approx((whole - hidden) / 4)


def test_check_optimizer_knows_that_maps_have_one_learning_rate_at_every_size():
    model = nm.parametrize(FNO((16,), 1, 1, 32), base={"hidden_channels": 8, "n_modes": (4,)})
    nm.check_optimizer(model, optimizer := nm.MuMuon(model))
    optimizer.param_groups[-1]["rule_mult"] *= 2
    with pytest.raises(nm.MupError, match="does not follow the plan"):
        nm.check_optimizer(model, optimizer)
