"""What MuMuon and MuSOAP have in common: as any optimizer of torch, and what can go wrong."""

import copy
import functools
import io
import math
from unittest import mock

import pytest
import torch
from neuralop.models import FNO
from torch import nn

import neuralop_mup as nm
from cases import BY_NAME, CASES
from neuralop_mup.core import registry
from neuralop_mup.optim.matrix.layouts import fourier_depth
from neuralop_mup.optim.matrix.newton_schulz import BAND
from neuralop_mup.optim.matrix.optimizer import AUX_LR
from neuralop_mup.optim.matrix.tensors import as_real
from support import differing, in_double, random_gradients, small_fno, train

KERNEL = "fno_blocks.convs.0.weight.tensor"

# In these tests every block moves at every step: ``period`` is 1.


def depth_of(model):
    return fourier_depth(model, {row.name: row for row in nm.summary(model).rows})


@pytest.fixture(params=[nm.MuMuon, nm.MuSOAP], ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def step(optimizer, model, seed=0):
    random_gradients(model, seed)
    optimizer.step()


def rms(m, n, values, real):
    """Frobenius norm of √(mn) / (√m + √n)."""
    return values.square().sum(-1).sqrt() * (math.sqrt(m) + math.sqrt(n)) / math.sqrt(m * n)


def schatten(m, n, values, real):
    """(Σσ⁴)^(1/4) as of random entries: E Σσ⁴ = mn (m + n), and mn (m + n + 1) of real ones."""
    return values.pow(4).sum(-1).pow(1 / 4) * (math.sqrt(m) + math.sqrt(n)) / (m * n * (m + n + real)) ** 0.25


MEASURES = pytest.mark.parametrize(
    ("build", "size", "within"),
    [
        (functools.partial(nm.MuMuon, damping=0.0), lambda m, n, values, real: values[..., 0], BAND + 1e-3),
        (functools.partial(nm.MuSOAP, size="rms", weight_decay=0.0), rms, 1e-3),
        (functools.partial(nm.MuSOAP, size="schatten", weight_decay=0.0), schatten, 1e-3),
    ],
    ids=["muon", "soap rms", "soap schatten"],
)


@MEASURES
@pytest.mark.parametrize(("width", "modes"), [(4, (8,)), (24, (8,)), (12, (32,)), (12, (6, 8))])
def test_size_of_every_update(build, size, within, width, modes):
    """lr √(out/in) in the optimizer's own measure, for each mode and each hidden map, at any scale of the gradient."""
    model = small_fno(width=width, modes=modes)
    before = copy.deepcopy(model)
    random_gradients(model)
    for p in model.parameters():
        p.grad *= 1e-6
    build(model, lr=0.05, base_depth=None, period=1).step()
    seen = set()
    for row in nm.summary(model).rows:
        if row.role in ("spectral", "hidden"):
            delta = (model.get_parameter(row.name) - before.get_parameter(row.name)).detach()
            blocks = delta.flatten(2).permute(2, 0, 1) if row.role == "spectral" else delta.flatten(1).mT[None]
            m, n = blocks.shape[1:]
            values = torch.linalg.svdvals(blocks) / (0.05 * math.sqrt(n / m))
            assert (size(m, n, values, not delta.is_complex()) - 1).abs().max() <= within, row.name
            seen.add((m, n))
    assert len(seen) > 1  # channel MLPs and the lifting are not square


@MEASURES
def test_modes_take_turns_and_move_as_far_as_if_they_had_not_waited(build, size, within):
    """Mode k moves at steps k, k + 3, …, by three times the size of lr; a map with one block at every step."""
    model = small_fno(width=4)
    optimizer = build(model, lr=0.05, base_depth=None, period=3)
    for seed in range(4):
        before = copy.deepcopy(model)
        step(optimizer, model, seed)
        moved = (model.get_parameter(KERNEL) - before.get_parameter(KERNEL)).detach().permute(2, 0, 1)
        want = torch.tensor([float(k % 3 == seed % 3) for k in range(len(moved))])
        assert (size(4, 4, torch.linalg.svdvals(moved) / (3 * 0.05), False) - want).abs().max() <= within
        hidden = "fno_blocks.channel_mlp.0.fcs.0.weight"
        assert not torch.equal(model.get_parameter(hidden), before.get_parameter(hidden))


def test_the_rest_is_torch_adamw_bit_for_bit(kind):
    ours, theirs = small_fno(), small_fno()
    optimizer = kind(ours, lr=0.0, aux_lr=3e-3, weight_decay=0.1, betas=(0.8, 0.9), period=1)
    adamw = nm.MuAdamW(theirs, lr=3e-3, weight_decay=0.1, betas=(0.8, 0.9))
    for seed in range(3):
        step(optimizer, ours, seed)
        step(adamw, theirs, seed)
    rest = [name for g in optimizer.param_groups if not g["layouts"] for name in g["param_names"]]
    assert 0 < len(rest) < len(list(ours.parameters()))
    for name in rest:
        assert torch.equal(ours.get_parameter(name), theirs.get_parameter(name)), name


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_every_model_of_the_table(kind, name):
    """Kernels by Muon, input, readout and vectors by AdamW, every parameter in one group; steps finite; all moves."""
    case = BY_NAME[name]
    model = nm.parametrize(case.build(), base=case.base)
    optimizer = kind(model, lr=0.02, base_depth=None, period=1)
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
    kernel = model.get_parameter(KERNEL)
    start = kernel.detach().clone()
    train(BY_NAME["1d"], model, kind(model, lr=0.05, weight_decay=0.5, base_depth=None, period=1), steps=3)
    active = kernel.grad.flatten(0, 1).abs().amax(0) > 0
    assert 0 < active.sum() < len(active)
    assert torch.equal(kernel[..., ~active], start[..., ~active])
    assert (kernel != start)[..., active].all()


def test_a_block_without_a_gradient_does_not_move(kind):
    """Modes that are used no more keep a momentum and get no update; half a gradient of zeros is a gradient."""
    model = small_fno(modes=(8,), max_n_modes=(16,))
    kernel = model.get_parameter(KERNEL)
    optimizer = kind(model, lr=0.05, weight_decay=0.5, period=1)
    for _ in range(2):
        step(optimizer, model)
    start = kernel.detach().clone()
    kernel.grad[..., 3:] = 0
    kernel.grad[0, :, 1] = 0
    optimizer.step()
    assert optimizer.state[kernel][optimizer.sharded_state[0]].abs().amin() > 0
    assert torch.equal(kernel[..., 3:], start[..., 3:])
    assert (kernel != start)[..., :3].all()


@pytest.mark.parametrize(("depth", "want"), [(1, 0.04), (4, 0.02), (16, 0.01)])
def test_learning_rate_goes_as_one_over_the_root_of_the_depth(kind, depth, want):
    """√(4 / 1) = 2, √(4 / 4) = 1, √(4 / 16) = ½, and the same decay; AdamW's groups have no depth."""
    model = small_fno(n_layers=depth)
    optimizer = kind(model, lr=0.02, aux_lr=1e-3, weight_decay=0.1, period=1)
    nm.check_optimizer(model, optimizer)
    for group in optimizer.param_groups:
        if group["layouts"]:
            assert group["lr"] == pytest.approx(want) and group["lr_mult"] == pytest.approx(want / 0.02)
            assert group["lr"] * group["weight_decay"] == pytest.approx(0.02 * 0.1)
        elif "readout" not in group["name"]:
            assert group["lr"] == 1e-3
    for base_depth, lr in ((None, 0.02), (1, 0.02 / math.sqrt(depth))):
        groups = kind(model, lr=0.02, base_depth=base_depth, period=1).param_groups
        assert [group["lr"] for group in groups if group["layouts"]] == pytest.approx([lr, lr])


# Those beside each other count once: of CODANO's two attentions the keys, queries and values, then a projection and two
# mixing layers each; of UQNO its two models of one layer.
@pytest.mark.parametrize(
    ("name", "depth"), [("uno", 3), ("legacy_joint", 2), ("tucker_factorized", 2), ("uqno", 1), ("codano", 2 * 4)]
)
def test_depth_is_the_number_of_fourier_layers(name, depth):
    case = BY_NAME[name]
    assert depth_of(nm.parametrize(case.build(), base=case.base)) == depth


def test_an_unknown_kernel_layer_counts_as_one():
    """Modules without n_modes hold a kernel each."""

    class Kernel(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(4, 4, 6, dtype=torch.cfloat))

    with mock.patch.dict(registry._REGISTRATIONS):
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


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_wrapped_models(kind, wrap):
    """Parameters of DataParallel and of a compiled model are found; the plan's names are those of the bare model."""
    model, bare = small_fno(), small_fno()
    step(kind(wrap(model), period=1), model)
    step(kind(bare, period=1), bare)
    assert differing(model, bare) == 0


def test_adamws_step_is_counted_in_float32(kind):
    """bfloat16, a possible default type, holds no odd number beyond 256."""
    model = small_fno()
    optimizer = kind(model)
    random_gradients(model)
    try:
        torch.set_default_dtype(torch.bfloat16)
        optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    steps = [state["step"] for state in optimizer.state.values() if torch.is_tensor(state["step"])]
    assert steps and {step.dtype for step in steps} == {torch.float32}


def test_conjugated_gradients(kind):
    ours, theirs = small_fno(), small_fno()
    random_gradients(ours)
    for p in ours.parameters():
        p.grad = p.grad.conj().resolve_conj().conj()
    assert any(p.grad.is_conj() for p in ours.parameters())
    kind(ours, period=1).step()
    step(kind(theirs, period=1), theirs)
    assert differing(ours, theirs) == 0


@pytest.mark.parametrize("size", [100, 1])
def test_packing_does_not_matter(kind, size, monkeypatch):
    """Blocks of all layers together, or few at a time."""
    together, apart = in_double(small_fno()), in_double(small_fno())
    step(kind(together, period=1), together)
    monkeypatch.setattr("neuralop_mup.optim.matrix.scratch._CHUNK", {"cpu": size})
    step(kind(apart, period=1), apart)
    torch.testing.assert_close(list(together.parameters()), list(apart.parameters()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", ["log-modes", "operator-norm", "none", "standard"])
def test_no_width_and_no_mode_factor_on_maps(kind, rule):
    model = small_fno(rule=rule)
    optimizer = kind(model, lr=0.02, aux_lr=1e-3, base_depth=None, lr_mult={"spectral": 2.0, "readout": 3.0}, period=1)
    lr = {name: group["lr"] for group in optimizer.param_groups for name in group["param_names"]}
    for row in nm.summary(model).rows:
        want = {"spectral": 0.04, "hidden": 0.02, "readout": 3e-3 * row.lr_mult}.get(row.role, 1e-3 * row.lr_mult)
        assert lr[row.name] == pytest.approx(want, rel=1e-12), row.name


def test_names_defaults_and_schedulers(kind):
    model = small_fno()
    optimizer = kind(model, base_depth=None, period=1)
    assert [g["name"] for g in optimizer.param_groups] == ["hidden", "spectral", "aux input+vector", "aux readout"]
    start = [g["lr"] for g in optimizer.param_groups]
    lr = {nm.MuMuon: 0.02, nm.MuSOAP: 0.03}[kind]
    assert start[:3] == [lr, lr, AUX_LR]
    one_cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=start, total_steps=10)
    for _ in range(3):  # pct_start 0.3: the top comes after (0.3 · 10) − 1 = 2 steps
        assert {g["momentum"] for g in optimizer.param_groups} == {0.95}
        peak = [g["lr"] for g in optimizer.param_groups]
        step(optimizer, model)
        one_cycle.step()
    assert peak == pytest.approx(start)


def test_state_dict_resumes_bit_for_bit(kind):
    """In the middle between two renewals of MuSOAP's bases, too."""
    case = BY_NAME["2d"]
    model = nm.parametrize(case.build(), base=case.base)
    optimizer = kind(model, weight_decay=0.01, **({"refresh": 4} if kind is nm.MuSOAP else {}))
    train(case, model, optimizer, steps=6)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed = copy.deepcopy(model)
    other = kind(resumed, lr=0.5)
    other.load_state_dict(torch.load(file, weights_only=True))
    train(case, model, optimizer, steps=4)
    train(case, resumed, other, steps=4)
    assert differing(model, resumed) == 0


def test_a_step_inside_autocast(kind):
    """As outside, where it belongs: MuSOAP's products were made in bfloat16, and it raised in the middle of the step."""
    outside, inside = small_fno(), small_fno()
    usual, within = kind(outside, period=1), kind(inside, period=1)
    for seed in range(3):
        step(usual, outside, seed)
        with torch.autocast("cpu", torch.bfloat16):
            step(within, inside, seed)
            assert torch.is_autocast_enabled("cpu")
    assert differing(outside, inside) == 0


def test_closure_and_parameters_without_gradient(kind):
    model = small_fno()
    optimizer = kind(model, period=1)
    before = copy.deepcopy(model)
    optimizer.step()
    assert differing(model, before) == 0 and not optimizer.state
    x, y = BY_NAME["1d"].batch()

    def closure():
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure).requires_grad and differing(model, before) > 0


def test_coordinate_check_takes_it(kind):
    """Updates are of one size from width 8 to 64; Adam without a rule has slopes near 1."""
    g = torch.Generator().manual_seed(0)
    batches = [{"x": torch.randn(2, 1, 32, generator=g), "y": torch.randn(2, 1, 32, generator=g)}]

    def build(width):
        return nm.parametrize(FNO((8,), 1, 1, width, n_layers=1), base={"hidden_channels": 8})

    check = nm.coord_check(build, (8, 64), batches, lr=0.01, steps=(3,), seeds=6, optimizer=kind)
    assert all(abs(row["slope"]) < 0.3 for row in check.slopes if row["kind"] == "update"), check.slopes


@pytest.mark.parametrize("first", [True, False], ids=["first step", "later"])
@pytest.mark.parametrize("where", ["fno_blocks.convs.1.weight.tensor", "projection.fcs.1.bias"])
@pytest.mark.parametrize(
    ("factor", "told"),
    [
        (math.nan, "is not finite.*changed: look at the loss and the batch"),
        (math.inf, "is not finite.*changed: look at the loss and the batch"),
        # Finite, but averages of its squares would not be: MuSOAP's bases were NaN some steps later.
        (1e25, "is finite, but so large .*changed: .*clip gradients"),
    ],
)
def test_a_bad_gradient_is_refused_and_nothing_changes(kind, where, factor, told, first):
    model = small_fno()
    optimizer = kind(model, period=1)
    if not first:
        step(optimizer, model)
    before, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict()["state"])
    random_gradients(model, seed=1)
    model.get_parameter(where).grad.flatten()[-1] *= factor
    with pytest.raises(nm.MupError, match=f"gradient of '{where}' {told}"):
        optimizer.step()
    assert differing(model, before) == 0
    torch.testing.assert_close(optimizer.state_dict()["state"], state, rtol=0, atol=0)


def test_a_gradient_in_double_precision_may_be_larger(kind):
    model = in_double(small_fno())
    optimizer = kind(model, period=1)
    random_gradients(model)
    for p in model.parameters():
        p.grad *= 1e30
    optimizer.step()
    assert all(torch.isfinite(as_real(p)).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ({"lr": 1e-3}, "size of an update, not Adam's learning rate"),
        ({"lr": 1e-3, "aux_lr": 0.02}, "other way round"),
    ],
)
@pytest.mark.filterwarnings("error::UserWarning")
def test_a_learning_rate_of_adams_size_is_told(kind, rates, told):
    kind(small_fno(), lr=5e-3)
    with pytest.warns(UserWarning, match=told):
        kind(small_fno(), **rates)


def test_models_it_does_not_take(kind):
    with pytest.raises(nm.MupError, match="not parametrized"):
        kind(FNO((8,), 1, 1, 8))
    mlp = nm.parametrize(nn.Sequential(nn.Linear(4, 4)), base=nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(nm.MupError, match=f"has no Fourier kernel, and {kind.__name__} is for those"):
        kind(mlp)


OF_BOTH = [
    ({"nesterov": "no"}, "nesterov is 'no'; give True or False"),
    ({"process_group": "x"}, "is no group of processes"),
    ({"foreach": "yes"}, "foreach is 'yes'; give True or False"),
    ({"capturable": 1}, "capturable is 1; give True or False"),
    ({"check": "later"}, "check is 'later': expected one of"),
    ({"lr": -0.1}, "lr is -0.1"),
    ({"lr": math.nan}, "lr is nan"),
    ({"lr": 2}, "lr is 2; .*size of each update"),
    ({"lr": "0.1"}, "lr is '0.1'"),
    ({"aux_lr": math.inf}, "aux_lr is inf"),
    ({"aux_lr": 8}, "it is AdamW's"),
    ({"momentum": 1.0}, "momentum is 1.0"),
    ({"betas": (0.9, 1.0)}, r"betas\[1\] is 1.0"),
    ({"betas": 0.9}, "betas is 0.9"),
    ({"period": 0}, "period is 0"),
    ({"period": 1.5}, "period is 1.5"),
    ({"base_depth": 0}, "base_depth is 0"),
    ({"eps": -1.0}, "eps is -1.0"),
    ({"weight_decay": math.nan}, "weight_decay is nan"),
    ({"lr_mult": {"kernel": 2}}, "no role 'kernel'"),
]


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        *((build, *row) for build in (nm.MuMuon, nm.MuSOAP) for row in OF_BOTH),
        (nm.MuMuon, {"damping": 1.5}, "damping is 1.5"),
        (nm.MuMuon, {"damping": True}, "damping is True"),
        (nm.MuSOAP, {"beta2": -0.1}, "beta2 is -0.1"),
        (nm.MuSOAP, {"basis_beta": math.nan}, "basis_beta is nan"),
        (nm.MuSOAP, {"refresh": 0}, "refresh is 0"),
        (nm.MuSOAP, {"size": "big"}, "size is 'big'"),
        (nm.MuSOAP, {"size": "adam"}, "size is 'adam'"),
    ],
)
def test_arguments_that_cannot_work(build, arguments, message):
    with pytest.raises(nm.MupError, match=message):
        build(small_fno(), **arguments)


class Pairs(nn.Module):
    """Kernels of 4 inputs, 4 outputs and 3 modes, one complex, the others in pairs of real numbers that lie anywhere."""

    def __init__(self):
        super().__init__()
        self.whole = nn.Parameter(torch.randn(4, 4, 3, dtype=torch.cfloat) / 2)
        pairs = torch.view_as_real(self.whole.detach())
        self.last, self.leading = nn.Parameter(pairs.clone()), nn.Parameter(pairs.permute(3, 0, 1, 2).clone())


KERNEL_AXES = ("in", "out", "modes_single")
nm.register_layer(
    Pairs,
    {
        "whole": nm.Param("spectral", KERNEL_AXES, init=lambda s: 0.5),
        "last": nm.Param("spectral", (*KERNEL_AXES, "pair"), init=lambda s: 0.5),
        "leading": nm.Param("spectral", ("pair", *KERNEL_AXES), init=lambda s: 0.5),
    },
)


def test_pairs_of_real_numbers_are_complex_ones_wherever_they_lie(kind):
    """AFNO's lead: real and imaginary parts were taken for two kernels."""
    model = nm.parametrize(Pairs(), base=Pairs, rule="none", init=False)
    start, optimizer = model.whole.detach().clone(), kind(model)
    for seed in range(3):
        random_gradients(model, seed)
        pairs = torch.view_as_real(model.whole.grad)
        model.last.grad, model.leading.grad = pairs.clone(), pairs.permute(3, 0, 1, 2).clone()
        optimizer.step()
    assert (model.whole != start).all()
    torch.testing.assert_close(torch.view_as_complex(model.last.detach()), model.whole.detach())
    torch.testing.assert_close(model.leading.detach().permute(1, 2, 3, 0), model.last.detach())


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"param_names": ["extra"]}, "two"),
        ({"lr": 0.1}, "has no param_names"),
        *(
            ({"param_names": ["extra"], "lr": 0.1, "layouts": layouts}, "do not fit")
            for layouts in (["io"], [], ["x"], ["b", "b"])
        ),
    ],
)
def test_a_parameter_has_one_group(kind, group, message):
    model = small_fno()
    optimizer = kind(model, period=1)
    with pytest.raises(nm.MupError, match="one group"):
        optimizer.add_param_group({"params": [next(model.parameters())]})
    extra = nn.Parameter(torch.ones(3))
    with pytest.raises(nm.MupError, match=message):
        optimizer.add_param_group({"params": [extra], **group})
    optimizer.add_param_group({"params": [extra], "param_names": ["extra"], "lr": 0.1})
    extra.grad = torch.ones(3)
    optimizer.step()
    assert torch.allclose(extra, torch.tensor(0.9), atol=1e-3)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda kind: kind(small_fno(separable=True)).state_dict(), "layouts differ"),
        (lambda kind: nm.MuAdam(small_fno()).state_dict(), "layouts differ"),
        (lambda kind: {"model": {}}, "layouts differ"),
        (lambda kind: [], "layouts differ"),
        # The same parameters under another base: torch would take AdamW's learning rates from the file.
        (
            lambda kind: kind(nm.parametrize(FNO((8,), 2, 3, 12, n_layers=2), base={"hidden_channels": 6})).state_dict(),
            "rule_mult of group 'aux readout'",
        ),
        (lambda kind: {nm.MuMuon: nm.MuSOAP, nm.MuSOAP: nm.MuMuon}[kind](small_fno()).state_dict(), "not of a Mu"),
    ],
)
def test_a_state_of_another_optimizer_is_refused(kind, state, message):
    optimizer = kind(small_fno())
    before = [g["lr"] for g in optimizer.param_groups]
    with pytest.raises(nm.MupError, match=message):
        optimizer.load_state_dict(state(kind))
    assert [g["lr"] for g in optimizer.param_groups] == before


def test_a_state_of_another_width_is_refused(kind):
    """Each of base size, so that their multipliers agree: MuMuon took it and failed at its next step."""
    models = [nm.parametrize(FNO((8,), 2, 3, w, n_layers=2), base={"hidden_channels": w}) for w in (6, 12)]
    one, other = (kind(model) for model in models)
    step(other, models[1])
    with pytest.raises(nm.MupError, match="saved from another model"):
        one.load_state_dict(other.state_dict())


def test_check_optimizer_knows_that_maps_have_one_learning_rate_at_every_size(kind):
    model = nm.parametrize(FNO((16,), 1, 1, 32), base={"hidden_channels": 8, "n_modes": (4,)})
    nm.check_optimizer(model, optimizer := kind(model, period=1))
    optimizer.param_groups[-1]["rule_mult"] *= 2
    with pytest.raises(nm.MupError, match="does not follow the plan"):
        nm.check_optimizer(model, optimizer)
