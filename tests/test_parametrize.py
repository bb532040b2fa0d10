"""parametrize on every model of the table: learning rates and weights of each parameter, base in its three forms."""

import copy
import json
import math
import time
import warnings
from contextlib import nullcontext
from functools import partial

import mup
import pytest
import torch
from cases import BY_NAME, FNO_CASES
from neuralop.training import AdamW as NeuralopAdamW

import neuralop_mup as nm
from neuralop_mup.core.rules import RULES

R = 3  # width ratio of every case: 24 over 8


def _kappa(case):
    """√(Σ log K_base / Σ log K), K = n_modes // 2."""
    return math.sqrt(sum(math.log(n // 2) for n in case.base_modes) / sum(math.log(n // 2) for n in case.n_modes))


def _expected(case, name):
    """Adam lr and init multipliers of one parameter from its name alone, by the table in design and docs."""
    kappa = _kappa(case)
    separable = case.kwargs.get("separable", False)
    if name.endswith("weight.tensor"):
        return (kappa, kappa * math.sqrt(R)) if separable else (kappa / R, kappa)
    if name == "lifting.fcs.0.weight":
        return 1, 1
    if name == "projection.fcs.1.weight":
        return 1 / R, R**-0.5
    if (
        name == "lifting.fcs.0.bias"
        or "norm" in name
        or (name.endswith("weight") and "skips" in name and "conv." not in name)
    ):
        return 1, 1
    if name.endswith("bias"):
        return 1, R**0.5
    return 1 / R, 1


def test_every_parameter(fno_case):
    case = fno_case
    stock = dict(case.build().named_parameters())
    model = nm.parametrize(case.build(), base=case.base, rule="log-modes")
    lr = {id(p): g["lr"] for g in nm.param_groups(model, lr=1.0) for p in g["params"]}
    assert len(lr) == len(stock)
    for name, p in model.named_parameters():
        lr_mult, init_mult = _expected(case, name)
        assert lr[id(p)] == pytest.approx(lr_mult, rel=1e-9), name
        torch.testing.assert_close(p, stock[name] * init_mult, rtol=1e-5, atol=0, msg=name)


@pytest.mark.parametrize(("key", "kappa", "r_in"), [("2d", 0.97045, R), ("separable", 0.86785, 1)])
def test_operator_norm_reads_blocks_off_the_kernel(key, kappa, r_in):
    """n_modes (4, 4) → (8, 6): stored blocks N = 4·3 = 12 → 8·4 = 32. Norms by Khatri's determinant (test_block_norms.py).

    Dense, width 8 → 24: g = 5.52785/√8 = 1.95439 → 9.866/√24 = 2.0139 (simulated 9.877 ± 0.004), κ = 0.9705.
    Separable blocks are 1×1: g = 1.728546 → 1.991754, κ = 0.867851.
    """
    case = BY_NAME[key]
    row = nm.summary(nm.parametrize(case.build(), base=case.base, rule="operator-norm"))["fno_blocks.convs.0.weight.tensor"]
    assert row.lr_mult == pytest.approx(kappa / r_in, rel=5e-4)


def test_forward_keys_and_class_stay(case):
    model = nm.parametrize(case.build(), base=case.base)
    x, y = case.batch()
    assert case.output(model, x).shape == y.shape
    assert model.state_dict().keys() == case.build().state_dict().keys()


def test_kernel_std_reaches_its_target():
    """Measured std of the kernel: κ times what keeps σ√fan_in at base's value."""
    case = BY_NAME["2d"]
    model = nm.parametrize(case.build(), base=case.base, rule="log-modes")
    kernel = model.fno_blocks.convs[0].weight.tensor
    base = case.build_base().fno_blocks.convs[0].weight.tensor
    rms = kernel.abs().square().mean().sqrt() / base.abs().square().mean().sqrt()
    assert rms.item() == pytest.approx(_kappa(case) * R**-0.5, rel=0.05)


def test_the_default_rule():
    case = BY_NAME["2d"]
    plan, named = (nm.summary(nm.parametrize(case.build(), base=case.base, **kw)) for kw in ({}, {"rule": "operator-norm"}))
    assert plan == named and plan.rule == "operator-norm"


@pytest.mark.parametrize("rule", ["log-modes", "operator-norm", "none"])
def test_base_as_overrides_model_or_file(case, rule, tmp_path):
    path = tmp_path / "base.bsh"
    nm.save_base_shapes(case.build_base(), path)
    plans = [
        nm.summary(nm.parametrize(case.build(), base=base, rule=rule)).to_json()
        for base in (case.base, case.build_base(), path, str(path))
    ]
    assert len(set(plans)) == 1
    again = tmp_path / "again.bsh"  # saved from a parametrized model it is the same file
    nm.save_base_shapes(nm.parametrize(case.build(), base=case.base), again)
    assert again.read_text() == path.read_text()


def test_base_from_positional_arguments():
    from neuralop.models import FNO

    model = FNO((16,), 1, 1, 24)
    plan = nm.summary(nm.parametrize(model, base={"hidden_channels": 8}))
    assert plan["lifting.fcs.0.weight"].base_shape == (16, 2, 1)
    for wrong in (slice(0, 300), 0):
        with pytest.raises(nm.MupError, match="indexed by the name of a parameter, not by.*its text is str.plan"):
            plan[wrong]
    with pytest.raises(KeyError, match="weights"):
        plan["weights"]


def test_max_n_modes_counts_the_active_modes():
    case = BY_NAME["max_n_modes"]
    model = nm.parametrize(case.build(), base=case.base)
    row = nm.summary(model)["fno_blocks.convs.0.weight.tensor"]
    assert model.fno_blocks.convs[0].weight.tensor.shape == (24, 24, 10, 10)
    assert (row.shape, row.base_shape) == ((24, 24, 8, 4), (8, 8, 4, 3))


def test_mup_optimizers_arrive_at_our_learning_rates(case):
    """Of every parameter, under every rule and optimizer."""

    def settings(opt):
        return {id(p): (g["lr"], g["weight_decay"]) for g in opt.param_groups for p in g["params"]}

    for rule in RULES:
        model = nm.parametrize(case.build(), base=case.base, rule=rule)
        for optimizer in ("Adam", "AdamW", "SGD"):
            theirs = getattr(mup, f"Mu{optimizer}")(model.parameters(), lr=0.01, weight_decay=0.1)
            with pytest.warns(UserWarning, match="use MuAdamW") if optimizer == "Adam" else nullcontext():
                ours = getattr(nm, f"Mu{optimizer}")(model, lr=0.01, weight_decay=0.1)
            assert settings(theirs) == settings(ours), (rule, optimizer)
            assert len(settings(ours)) == len(list(model.parameters()))


def test_mup_reads_our_file(tmp_path):
    path = tmp_path / "base.bsh"
    case = BY_NAME["1d"]
    nm.save_base_shapes(case.build_base(), path)
    shapes = {k: v.base_shape() for k, v in mup.shape.load_base_shapes(str(path)).items()}
    assert shapes["fno_blocks.convs.0.weight.tensor"] == [8, 8, 3]  # (in, out, n_modes // 2 + 1)
    assert shapes["projection.fcs.1.weight"] == [None, 16, None]


def test_we_read_mups_file(tmp_path):
    """A file that mup itself wrote from a base and a delta model that differ in width."""
    case = BY_NAME["1d"]
    path = str(tmp_path / "mup.bsh")
    mup.make_base_shapes(case.build_base(), case.build(hidden_channels=16, n_modes=(8,)), savefile=path)
    from_file = nm.summary(nm.parametrize(case.build(), base=path))
    from_model = nm.summary(nm.parametrize(case.build(), base=case.base))
    assert [r.lr_mult for r in from_file.rows] == [r.lr_mult for r in from_model.rows]


def test_undo_and_attach_without_rescaling():
    case = BY_NAME["2d"]
    model = nm.parametrize(case.build(), base=case.base)
    weights = copy.deepcopy(model.state_dict())
    plan = nm.summary(model)
    assert nm.unparametrize(model) is model
    assert not nm.is_parametrized(model)
    assert not any(hasattr(p, "infshape") for p in model.parameters())
    nm.parametrize(model, base=case.base, init=False)
    assert not nm.summary(model).init_applied and "init × not applied" in str(nm.summary(model))
    assert nm.summary(model).rows == plan.rows
    for name, p in model.named_parameters():
        assert torch.equal(p, weights[name])


def test_master_multipliers():
    case = BY_NAME["2d"]
    plain = nm.parametrize(case.build(), base=case.base)
    model = nm.parametrize(case.build(), base=case.base, init_mult={"readout": 0.5})
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q * (0.5 if name == "projection.fcs.1.weight" else 1))

    def lrs(**kw):
        return {id(p): (g["lr"], g["weight_decay"]) for g in nm.param_groups(model, 0.01, **kw) for p in g["params"]}

    with_mult, without = (
        lrs(weight_decay=0.1, lr_mult={"spectral": 2.0}),
        lrs(weight_decay=0.1),
    )
    for row in nm.summary(model).rows:
        key = id(dict(model.named_parameters())[row.name])
        factor = 2 if row.role == "spectral" else 1
        assert with_mult[key] == (pytest.approx(factor * without[key][0]), without[key][1])


def test_weight_decay_is_independent(case):
    """lr · weight_decay of every parameter is what it is at base."""
    model = nm.parametrize(case.build(), base=case.base)
    for family in ("adam", "sgd"):
        for group in nm.param_groups(model, lr=0.01, optimizer=family, weight_decay=0.1):
            assert group["lr"] * group["weight_decay"] == pytest.approx(0.01 * 0.1)


@pytest.mark.parametrize("lr", [math.nan, math.inf, -1e-3, torch.tensor(math.nan)])
def test_check_optimizer_refuses_a_learning_rate_that_is_no_number(lr):
    case = BY_NAME["1d"]
    model = nm.parametrize(case.build(), base=case.base)
    optimizer = nm.MuAdam(model)
    with pytest.raises(nm.MupError, match="no optimizer family 'foo'"):
        nm.check_optimizer(model, optimizer, "foo")
    optimizer.param_groups[0]["lr"] = lr
    with pytest.raises(nm.MupError, match="lr of the optimizer's group .* give a finite number"):
        nm.check_optimizer(model, optimizer)


@pytest.mark.parametrize("build", [nm.MuAdam, nm.MuAdamW, nm.MuSGD])
@pytest.mark.parametrize("setting", [{"lr": 3e-3}, {"weight_decay": 0.1}])
def test_a_partial_that_sets_what_the_groups_set_is_refused(build, setting):
    case = BY_NAME["1d"]
    model = nm.parametrize(case.build(), base=case.base)
    (key,) = setting
    for impl in (partial(torch.optim.AdamW, **setting), partial(partial(torch.optim.AdamW, **setting), foreach=False)):
        with pytest.raises(nm.MupError, match=f"would replace: leave it out of the partial and give {key}="):
            build(model, impl=impl)
    assert build(model, impl=partial(torch.optim.AdamW, foreach=False)).defaults["foreach"] is False


@pytest.mark.parametrize(
    ("impl", "coupled"),
    [
        (torch.optim.Adam, True),
        (partial(torch.optim.Adam, betas=(0.8, 0.99)), True),
        (lambda groups, **kwargs: torch.optim.NAdam(groups, **kwargs), True),
        (torch.optim.RMSprop, True),
        (partial(torch.optim.NAdam, decoupled_weight_decay=True), False),
        (torch.optim.AdamW, False),
        (NeuralopAdamW, False),
    ],
)
def test_decay_that_is_not_independent_is_warned_of(impl, coupled):
    """By what the optimizer does, not by how it was made."""
    case = BY_NAME["2d"]
    model = nm.parametrize(case.build(), base=case.base)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nm.MuAdam(model, lr=0.01, weight_decay=0.1, impl=impl)
        nm.MuAdam(model, lr=0.01, impl=impl)  # no decay, no word
    assert [("use MuAdamW" in str(w.message), w.filename) for w in caught] == [(True, __file__)] * coupled


@pytest.mark.skipif("decoupled_weight_decay" not in torch.optim.Adam([torch.zeros(1)]).defaults, reason="older torch")
def test_adam_with_decoupled_decay_is_not_warned_of():
    case = BY_NAME["2d"]
    model = nm.parametrize(case.build(), base=case.base)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nm.MuAdam(model, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True)


def test_eps_scales_with_gradients():
    case = BY_NAME["2d"]
    model = nm.parametrize(case.build(), base=case.base)
    opt = nm.MuAdam(model, lr=0.01, eps=1e-6, scale_eps=True)
    eps = {id(p): g["eps"] for g in opt.param_groups for p in g["params"]}
    named = dict(model.named_parameters())
    assert eps[id(named["projection.fcs.1.weight"])] == 1e-6
    assert eps[id(named["lifting.fcs.0.weight"])] == pytest.approx(1e-6 / R)


def test_groups_are_few_named_and_deterministic(fno_case):
    case = fno_case
    model = nm.parametrize(case.build(), base=case.base)
    groups = nm.param_groups(model, lr=0.01)
    assert len(groups) <= 4
    names = [g["name"] for g in groups]
    assert len(set(names)) == len(names)
    assert names == [g["name"] for g in nm.param_groups(model, lr=0.01)]


def test_first_step_moves_each_entry_by_its_learning_rate(case):
    """Adam's first update is lr · sign(gradient): on a kernel, torch moves Re and Im by lr, neuralop the modulus."""
    model = nm.parametrize(case.build(), base=case.base)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    x, y = case.batch()
    (case.output(model, x) - y).abs().square().mean().backward()
    parameters = dict(model.named_parameters())
    for name, optimizer in {
        "torch Adam": nm.MuAdam(model, lr=1e-2, eps=1e-30),
        "torch AdamW": nm.MuAdamW(model, lr=1e-2, weight_decay=0, eps=1e-30),
        "neuralop AdamW": nm.MuAdamW(model, impl=NeuralopAdamW, lr=1e-2, weight_decay=0, eps=1e-30),
    }.items():
        with torch.no_grad():
            for n, p in parameters.items():
                p.copy_(before[n])
        optimizer.step()
        for row in nm.summary(model).rows:
            p = parameters[row.name]
            if p.grad is None:  # UQNO trains its residual model alone
                continue
            moved = p.grad != 0  # inactive modes have no gradient
            step = (p.detach() - before[row.name])[moved].abs()
            per_entry = math.sqrt(2) if p.is_complex() and name != "neuralop AdamW" else 1
            expected = torch.full_like(step, 1e-2 * row.lr_mult * per_entry)
            generic = (p.grad.real != 0) & (p.grad.imag != 0) if p.is_complex() else moved
            where = f"{name}: {row.name}"
            torch.testing.assert_close(step[generic[moved]], expected[generic[moved]], rtol=1e-3, atol=0, msg=where)


def test_schedulers_scale_every_group():
    model = nm.parametrize(BY_NAME["2d"].build(), base=BY_NAME["2d"].base)
    opt = nm.MuAdam(model, lr=0.01)
    before = [g["lr"] for g in opt.param_groups]
    scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.5)
    opt.step()
    scheduler.step()
    assert [g["lr"] for g in opt.param_groups] == [lr / 2 for lr in before]
    nm.check_optimizer(model, opt)


def test_summary_has_every_parameter_in_three_forms(case):
    model = nm.parametrize(case.build(), base=case.base)
    plan = nm.summary(model)
    rows = json.loads(plan.to_json())["rows"]
    names = [n for n, _ in model.named_parameters()]
    assert [r["name"] for r in rows] == names
    for name in names:
        assert name in str(plan)
        assert f"| {name} |" in plan.to_markdown()


def test_summary_with_an_optimizer():
    """2 Fourier layers: updates of MuSOAP are √(4/2) · 0.02; AdamW's readout has 4e-3 / R."""
    model = nm.parametrize(BY_NAME["2d"].build(), base=BY_NAME["2d"].base)
    plan = nm.summary(model, nm.MuSOAP(model, 0.02, 4e-3))
    lrs = plan.lrs
    assert lrs["fno_blocks.convs.0.weight.tensor"] == lrs["lifting.fcs.1.weight"] == "size 0.02828"
    assert (lrs["lifting.fcs.0.weight"], lrs["projection.fcs.1.weight"]) == ("0.004", f"{4e-3 / R:.4g}")
    assert "size 0.02828" in str(plan) and "| lr × | lr | why |" in plan.to_markdown().splitlines()[0]
    assert {line.count("|") for line in plan.to_markdown().splitlines()} == {9}
    assert not plan.differences(nm.summary(model)) and plan.to_json() == nm.summary(model).to_json()
    assert "| lr × | why |" in nm.summary(model).to_markdown() and "size" not in str(nm.summary(model))
    part = torch.optim.Adam(model.lifting.parameters(), 1e-3)
    assert nm.summary(model, part).lrs["projection.fcs.1.weight"] == "not in it"
    with pytest.raises(nm.MupError, match="holds no parameter of the model"):
        nm.summary(model, torch.optim.Adam([torch.nn.Parameter(torch.ones(1))]))


def test_clip_spectral_gradients():
    case = BY_NAME["2d"]
    model = nm.parametrize(case.build(), base=case.base)
    x, y = case.batch()
    (100 * (model(x) - y).square().sum()).backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters()}
    assert max(g.abs().max() for n, g in grads.items() if "weight.tensor" in n) > 0.01
    nm.clip_spectral_grad_value_(model, 0.01)
    for name, p in model.named_parameters():
        if "weight.tensor" in name:
            expected = torch.complex(grads[name].real.clamp(-0.01, 0.01), grads[name].imag.clamp(-0.01, 0.01))
            assert torch.equal(p.grad, expected)
        else:
            assert torch.equal(p.grad, grads[name])


@pytest.mark.parametrize("plan", [True, False])
def test_clipping_costs_nothing_and_sees_what_changed(plan):
    """Per call, with gradients or without: less than a hundredth of the smallest step there is (some 5 ms here)."""
    case = BY_NAME["2d"]
    model = case.build()
    if plan:
        nm.parametrize(model, base=case.base)
    nm.clip_spectral_grad_value_(model, 0.01)
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        nm.clip_spectral_grad_value_(model, 0.01)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1e-4
    model.fno_blocks = case.build(n_layers=1).fno_blocks
    (kernel,) = (p for name, p in model.named_parameters() if "weight.tensor" in name)
    kernel.grad = torch.full_like(kernel, 3 + 4j)
    if plan:
        with pytest.raises(nm.MupError, match="changed after parametrize"):
            nm.clip_spectral_grad_value_(model, 0.01)
    else:
        nm.clip_spectral_grad_value_(model, 0.01)
        assert kernel.grad.real.max() == kernel.grad.imag.max() == pytest.approx(0.01)


def test_cases_cover_what_the_issue_lists():
    keys = {k for c in FNO_CASES for k in c.kwargs}
    assert {"fno_skip", "channel_mlp_skip", "use_channel_mlp", "norm", "max_n_modes", "separable"} <= keys
    assert {len(c.n_modes) for c in FNO_CASES} == {1, 2, 3}
