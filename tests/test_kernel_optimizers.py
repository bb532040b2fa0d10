"""What MuMuon and MuSOAP have in common: as any optimizer of torch, and what can go wrong."""

import copy
import io
import math
import warnings
from unittest import mock

import pytest
import torch
from cases import BY_NAME, CASES
from neuralop.models import FNO
from support import differing, in_double, random_gradients, small_fno, train
from torch import nn

import neuralop_mup as nm
from neuralop_mup.core import registry
from neuralop_mup.optim.kernels.layouts import fourier_depth
from neuralop_mup.optim.kernels.optimizer import AUX_LR
from neuralop_mup.optim.kernels.tensors import as_real

# With these every block moves at every step.
EVERY = {nm.MuMuon: {"period": 1}, nm.MuSOAP: {"period": 1}}


def depth_of(model):
    return fourier_depth(model, {row.name: row for row in nm.summary(model).rows})


@pytest.fixture(params=list(EVERY), ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def test_the_rest_is_torch_adamw_bit_for_bit(kind):
    ours, theirs = small_fno(), small_fno()
    optimizer = kind(ours, lr=0.0, aux_lr=3e-3, weight_decay=0.1, betas=(0.8, 0.9), **EVERY[kind])
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
def test_every_model_of_the_table(kind, name):
    """Kernels by Muon, input, readout and vectors by AdamW, every parameter in one group; steps finite; all moves."""
    case = BY_NAME[name]
    model = nm.parametrize(case.build(), base=case.base)
    optimizer = kind(model, lr=0.02, base_depth=None, **EVERY[kind])
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


def test_inactive_modes_are_left_alone(kind):
    """Under max_n_modes they never have a gradient: no update, no decay; the active ones as without the others."""
    model = small_fno(max_n_modes=(16,))
    kernel = dict(model.named_parameters())["fno_blocks.convs.0.weight.tensor"]
    start = kernel.detach().clone()
    optimizer = kind(model, lr=0.05, weight_decay=0.5, base_depth=None, **EVERY[kind])
    x, y = BY_NAME["1d"].batch()
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    active = kernel.grad.flatten(0, 1).abs().amax(0) > 0
    assert 0 < active.sum() < len(active)
    assert torch.equal(kernel[..., ~active], start[..., ~active])
    assert (kernel != start)[..., active].all()


def test_a_block_without_a_gradient_does_not_move(kind):
    """Modes that are used no more keep a momentum and get no update; half a gradient of zeros is a gradient."""
    model = small_fno(modes=(8,), max_n_modes=(16,))
    kernel = dict(model.named_parameters())["fno_blocks.convs.0.weight.tensor"]
    optimizer = kind(model, lr=0.05, weight_decay=0.5, **EVERY[kind])
    for _ in range(2):
        random_gradients(model)
        optimizer.step()
    start = kernel.detach().clone()
    kernel.grad[..., 3:] = 0
    kernel.grad[0, :, 1] = 0
    optimizer.step()
    assert optimizer.state[kernel][optimizer.sharded_state[0]].abs().amin() > 0
    assert torch.equal(kernel[..., 3:], start[..., 3:])
    assert (kernel != start)[..., :3].all()


def test_learning_rate_goes_as_one_over_the_root_of_the_depth(kind):
    """√(4 / 1) = 2, √(4 / 4) = 1, √(4 / 16) = ½, and the same decay; AdamW's groups have no depth."""
    for depth, want in ((1, 0.04), (4, 0.02), (16, 0.01)):
        model = small_fno(n_layers=depth)
        optimizer = kind(model, lr=0.02, aux_lr=1e-3, weight_decay=0.1, **EVERY[kind])
        nm.check_optimizer(model, optimizer)
        for group in optimizer.param_groups:
            if group["layouts"]:
                assert group["lr"] == pytest.approx(want) and group["lr_mult"] == pytest.approx(want / 0.02)
                assert group["lr"] * group["weight_decay"] == pytest.approx(0.02 * 0.1)
            elif "readout" not in group["name"]:
                assert group["lr"] == 1e-3
        assert [g["lr"] for g in kind(model, lr=0.02, base_depth=None, **EVERY[kind]).param_groups if g["layouts"]] == [
            0.02,
            0.02,
        ]
        assert kind(model, lr=0.02, base_depth=1, **EVERY[kind]).param_groups[0]["lr"] == pytest.approx(
            0.02 / math.sqrt(depth)
        )


@pytest.mark.parametrize(("name", "depth"), [("uno", 3), ("legacy_joint", 2), ("tucker_factorized", 2), ("uqno", 2)])
def test_depth_is_the_number_of_fourier_layers(name, depth):
    case = BY_NAME[name]
    assert depth_of(nm.parametrize(case.build(), base=case.base)) == depth


def test_an_unknown_kernel_layer_counts_as_one():
    """Modules without n_modes hold a kernel each."""

    class Kernel(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(4, 4, 6, dtype=torch.cfloat))

    with mock.patch.dict(registry._ADAPTERS):
        nm.register_layer(Kernel, {"kernel": registry.Param("spectral", ("in", "out", "modes"), "mean_fan")})
        model = nn.Sequential(Kernel(), Kernel(), Kernel())
        assert depth_of(nm.parametrize(model, base=copy.deepcopy(model), init=False)) == 3


@pytest.mark.parametrize("name", ["1d", "separable", "legacy_dense"])
def test_states_of_kernels_take_less_memory_than_adams(kind, name):
    """Buffers of the kernels' size: one (MuMuon) or one and a half (MuSOAP), beside Adam's two."""
    case = BY_NAME[name]
    model = nm.parametrize(case.build(), base=case.base)
    random_gradients(model)
    taken = []
    for optimizer in (kind(model), nm.MuAdam(model)):
        optimizer.step()
        kernels = [p for n, p in model.named_parameters() if nm.summary(model)[n].role == "spectral"]
        buffers = [t for p in kernels for key, t in optimizer.state[p].items() if key.startswith(("exp_avg", "momentum"))]
        taken.append(sum(t.numel() * t.element_size() for t in buffers))
    assert taken[0] == taken[1] * {nm.MuMuon: 0.5, nm.MuSOAP: 0.75}[kind]


def test_wrapped_models(kind):
    """Parameters of DataParallel and of a compiled model are found; the plan's names are those of the bare model."""
    bare = small_fno()
    random_gradients(bare)
    for wrap in (nn.DataParallel, torch.compile):
        model = small_fno()
        random_gradients(model)
        optimizer = kind(wrap(model), **EVERY[kind])
        optimizer.step()
        plain = copy.deepcopy(bare)
        random_gradients(plain)
        kind(plain, **EVERY[kind]).step()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(p, q)


def test_adamws_step_is_counted_in_float32(kind):
    """bfloat16, a possible default type, holds no odd number beyond 256."""
    model = small_fno()
    random_gradients(model)
    optimizer = kind(model, **EVERY[kind])
    try:
        torch.set_default_dtype(torch.bfloat16)
        optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    steps = [state["step"] for state in optimizer.state.values() if torch.is_tensor(state["step"])]
    assert steps and {step.dtype for step in steps} == {torch.float32}


def test_conjugated_gradients(kind):
    ours, theirs = small_fno(), small_fno()
    for model in (ours, theirs):
        random_gradients(model)
    for p in ours.parameters():
        p.grad = p.grad.conj().resolve_conj().conj() if p.is_complex() else p.grad
    assert any(p.grad.is_conj() for p in ours.parameters() if p.is_complex())
    kind(ours, **EVERY[kind]).step()
    kind(theirs, **EVERY[kind]).step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)


def test_packing_does_not_matter(kind, monkeypatch):
    """Blocks of all layers together, or few at a time."""
    results = []
    for size in (2**30, 100, 1):
        monkeypatch.setattr("neuralop_mup.optim.kernels.optimizer._CHUNK", {"cpu": size})
        model = in_double(small_fno())
        random_gradients(model)
        kind(model, **EVERY[kind]).step()
        results.append(list(model.parameters()))
    for other in results[1:]:
        for p, q in zip(results[0], other, strict=True):
            assert torch.allclose(p, q, atol=1e-6)


def test_no_width_and_no_mode_factor_on_maps(kind):
    for rule in ("log-modes", "operator-norm", "none", "standard"):
        model = small_fno(rule=rule)
        plan = nm.summary(model)
        groups = kind(
            model, lr=0.02, aux_lr=1e-3, base_depth=None, lr_mult={"spectral": 2.0, "readout": 3.0}, **EVERY[kind]
        ).param_groups
        lr = {name: group["lr"] for group in groups for name in group["param_names"]}
        for row in plan.rows:
            want = {"spectral": 0.04, "hidden": 0.02, "readout": 3e-3 * row.lr_mult}.get(row.role, 1e-3 * row.lr_mult)
            assert lr[row.name] == pytest.approx(want, rel=1e-12), (rule, row.name)


def test_names_defaults_and_schedulers(kind):
    model = small_fno()
    optimizer = kind(model, base_depth=None, **EVERY[kind])
    assert [g["name"] for g in optimizer.param_groups] == ["hidden", "spectral", "aux input+vector", "aux readout"]
    start = [g["lr"] for g in optimizer.param_groups]
    lr = {nm.MuMuon: 0.02, nm.MuSOAP: 0.03}[kind]
    assert start[:3] == [lr, lr, AUX_LR]
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    for _ in range(2):
        random_gradients(model)
        optimizer.step()
        scheduler.step()
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([lr / 2 for lr in start])
    one_cycle = torch.optim.lr_scheduler.OneCycleLR(
        kind(model, base_depth=None, **EVERY[kind]), max_lr=start, total_steps=10
    )
    for _ in range(3):  # pct_start 0.3: the top comes after (0.3 · 10) − 1 = 2 steps
        assert {g["momentum"] for g in one_cycle.optimizer.param_groups} == {0.95}
        peak = [g["lr"] for g in one_cycle.optimizer.param_groups]
        random_gradients(model)
        one_cycle.optimizer.step()
        one_cycle.step()
    assert peak == pytest.approx(start)


def test_state_dict_resumes_bit_for_bit(kind):
    case = BY_NAME["2d"]
    model = nm.parametrize(case.build(), base=case.base)
    optimizer = kind(model, weight_decay=0.01, **EVERY[kind])
    train(case, model, optimizer, steps=2)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed = copy.deepcopy(model)
    other = kind(resumed, lr=0.5, **EVERY[kind])
    other.load_state_dict(torch.load(file, weights_only=True))
    for m, o in ((model, optimizer), (resumed, other)):
        train(case, m, o, steps=2)
    assert differing(model, resumed) == 0


def test_accumulated_and_averaged_gradients(kind):
    """Two half batches, or the mean over two ranks, give the step of the whole batch."""
    x, y = (part.double() for part in BY_NAME["1d"].batch(size=4))
    whole, halves = in_double(small_fno()), in_double(small_fno())
    for model, parts in ((whole, [slice(0, 4)]), (halves, [slice(0, 2), slice(2, 4)])):
        optimizer = kind(model, **EVERY[kind])
        for part in parts:
            ((model(x[part]) - y[part]).square().sum() / 4).backward()
        optimizer.step()
    for p, q in zip(whole.parameters(), halves.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6)


def test_a_step_inside_autocast(kind):
    """As outside, where it belongs: MuSOAP's products were made in bfloat16, and it raised in the middle of the step."""
    outside, inside = small_fno(), small_fno()
    usual, within = kind(outside, **EVERY[kind]), kind(inside, **EVERY[kind])
    for seed in range(3):
        random_gradients(outside, seed)
        random_gradients(inside, seed)
        usual.step()
        with torch.autocast("cpu", torch.bfloat16):
            within.step()
            assert torch.is_autocast_enabled("cpu")
    assert differing(outside, inside) == 0


def test_closure_and_parameters_without_gradient(kind):
    model = small_fno()
    optimizer = kind(model, **EVERY[kind])
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


def test_coordinate_check_takes_it(kind):
    """Updates are of one size from width 8 to 64; Adam without a rule has slopes near 1."""
    g = torch.Generator().manual_seed(0)
    batches = [{"x": torch.randn(2, 1, 32, generator=g), "y": torch.randn(2, 1, 32, generator=g)}]

    def build(width):
        return nm.parametrize(FNO((8,), 1, 1, width, n_layers=1), base={"hidden_channels": 8})

    check = nm.coord_check(build, (8, 64), batches, lr=0.01, steps=(3,), seeds=6, optimizer=kind)
    assert all(abs(row["slope"]) < 0.3 for row in check.slopes if row["kind"] == "update"), check.to_markdown()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["fno_blocks.convs.1.weight.tensor", "projection.fcs.1.bias"])
def test_a_bad_gradient_is_refused_and_nothing_changes(kind, where, bad):
    model = small_fno()
    optimizer = kind(model, **EVERY[kind])
    random_gradients(model)
    optimizer.step()
    before, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    random_gradients(model, seed=1)
    dict(model.named_parameters())[where].grad.flatten()[-1] = bad
    with pytest.raises(nm.MupError, match=f"gradient of '{where}' is not finite.*changed: look at the loss and the batch"):
        optimizer.step()
    assert differing(model, before) == 0
    for key, value in optimizer.state_dict()["state"].items():
        for name, tensor in value.items():
            assert (
                (tensor == state["state"][key][name])
                if not torch.is_tensor(tensor)
                else torch.equal(tensor, state["state"][key][name])
            )


@pytest.mark.parametrize("first", [True, False], ids=["first step", "later"])
@pytest.mark.parametrize("where", ["fno_blocks.convs.1.weight.tensor", "projection.fcs.1.bias"])
def test_a_gradient_whose_squares_overflow_is_refused_and_nothing_changes(kind, where, first):
    """Finite, but averages of its squares would not be: MuSOAP's bases were NaN some steps later."""
    model = small_fno()
    optimizer = kind(model, **EVERY[kind])
    random_gradients(model)
    if not first:
        optimizer.step()
    before, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict()["state"])
    dict(model.named_parameters())[where].grad *= 1e21
    with pytest.raises(nm.MupError, match=f"gradient of '{where}' is finite, but so large .*changed: .*clip gradients"):
        optimizer.step()
    assert differing(model, before) == 0
    torch.testing.assert_close(optimizer.state_dict()["state"], state, rtol=0, atol=0)


def test_a_gradient_in_double_precision_may_be_larger(kind):
    model = in_double(small_fno())
    optimizer = kind(model, **EVERY[kind])
    random_gradients(model)
    for p in model.parameters():
        p.grad *= 1e30
    optimizer.step()
    assert all(torch.isfinite(as_real(p)).all() for p in model.parameters())


def test_a_learning_rate_of_adams_size_is_told(kind):
    with pytest.warns(UserWarning, match="size of an update, not Adam's learning rate"):
        kind(small_fno(), lr=1e-3, **EVERY[kind])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind(small_fno(), lr=5e-3, **EVERY[kind])


def test_learning_rates_the_wrong_way_round_are_pointed_out(kind):
    with pytest.warns(UserWarning, match="other way round"):
        kind(small_fno(), lr=1e-3, aux_lr=0.02, **EVERY[kind])


def test_models_it_does_not_take(kind):
    with pytest.raises(nm.MupError, match="not parametrized"):
        nm.MuMuon(FNO((8,), 1, 1, 8))
    mlp = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nm.parametrize(mlp, base=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    with pytest.raises(nm.MupError, match="has no Fourier kernel"):
        kind(mlp, **EVERY[kind])


@pytest.mark.parametrize(
    ("argument", "message"),
    [({"nesterov": "no"}, "nesterov is 'no'; give True or False"), ({"process_group": "x"}, "is no group of processes")],
)
def test_arguments_of_another_kind(kind, argument, message):
    with pytest.raises(nm.MupError, match=message):
        kind(small_fno(), **argument)


class Odd(nn.Module):
    """Pairs of real numbers that do not lie last."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(2, 4, 4, 3) / 2)


nm.register_layer(Odd, {"kernel": nm.Param("spectral", ("pair", "in", "out", "modes_single"), init=lambda s: 0.5)})


def test_an_unknown_complex_layout_is_refused(kind):
    model = nm.parametrize(Odd(), base=Odd, rule="none")
    with pytest.raises(nm.MupError, match="'kernel'.*cannot read"):
        kind(model, **EVERY[kind])


def test_a_parameter_has_one_group(kind):
    model = small_fno()
    optimizer = kind(model, **EVERY[kind])
    with pytest.raises(nm.MupError, match="one group"):
        optimizer.add_param_group({"params": [next(model.parameters())]})
    extra = nn.Parameter(torch.ones(3))
    with pytest.raises(nm.MupError, match="two"):
        optimizer.add_param_group({"params": [extra], "param_names": ["extra"]})
    with pytest.raises(nm.MupError, match="has no param_names"):
        optimizer.add_param_group({"params": [extra], "lr": 0.1})
    for layouts in (["io"], [], ["x"], ["b", "b"]):
        with pytest.raises(nm.MupError, match="do not fit"):
            optimizer.add_param_group({"params": [extra], "param_names": ["extra"], "lr": 0.1, "layouts": layouts})
    optimizer.add_param_group({"params": [extra], "param_names": ["extra"], "lr": 0.1})
    extra.grad = torch.ones(3)
    optimizer.step()
    assert torch.allclose(extra, torch.tensor(0.9), atol=1e-3)


def test_a_state_of_another_optimizer_is_refused(kind):
    one, other = kind(small_fno(), **EVERY[kind]), kind(small_fno(separable=True), **EVERY[kind])
    with pytest.raises(nm.MupError, match="layouts differ"):
        one.load_state_dict(other.state_dict())
    model = small_fno()
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
        one.load_state_dict(kind(stock, **EVERY[kind]).state_dict())
    assert [g["lr"] for g in one.param_groups] == [g["lr"] for g in groups]


def test_a_state_of_another_width_is_refused(kind):
    """Each of base size, so that their multipliers agree: MuMuon took it and failed at its next step."""
    models = [nm.parametrize(FNO((8,), 2, 3, w, n_layers=2), base={"hidden_channels": w}) for w in (6, 12)]
    one, other = (kind(model, **EVERY[kind]) for model in models)
    random_gradients(models[1])
    other.step()
    with pytest.raises(nm.MupError, match="saved from another model"):
        one.load_state_dict(other.state_dict())


def test_check_optimizer_knows_that_maps_have_one_learning_rate_at_every_size(kind):
    model = nm.parametrize(FNO((16,), 1, 1, 32), base={"hidden_channels": 8, "n_modes": (4,)})
    nm.check_optimizer(model, optimizer := kind(model, **EVERY[kind]))
    optimizer.param_groups[-1]["rule_mult"] *= 2
    with pytest.raises(nm.MupError, match="does not follow the plan"):
        nm.check_optimizer(model, optimizer)
