"""parametrize on single models, against numbers worked out by hand; test_cases.py has what holds for every model."""

import math
import warnings
from functools import partial

import mup
import pytest
import torch
from neuralop.models import FNO
from neuralop.training import AdamW as NeuralopAdamW

import neuralop_mup as nm
from support.cases import BY_NAME, FNO_CASES
from support.comparing import assert_same, rates
from support.models import parametrized

ONE, TWO = BY_NAME["1d"], BY_NAME["2d"]
R = 3  # width ratio of every case: 24 over 8


def _kappa(case):
    """√(Σ log K_base / Σ log K), K = n_modes // 2."""
    return math.sqrt(sum(math.log(n // 2) for n in case.base_modes) / sum(math.log(n // 2) for n in case.n_modes))


def _expected(case, name):
    """Adam lr and init multipliers of one parameter from its name alone, by the table in design and docs."""
    kappa = _kappa(case)
    if name.endswith("weight.tensor"):
        return (kappa, kappa * math.sqrt(R)) if case.kwargs.get("separable") else (kappa / R, kappa)
    if name == "projection.fcs.1.weight":
        return 1 / R, R**-0.5
    gate = name.endswith("weight") and "skips" in name and "conv." not in name
    if gate or "norm" in name or name in ("lifting.fcs.0.weight", "lifting.fcs.0.bias"):
        return 1, 1
    return (1, R**0.5) if name.endswith("bias") else (1 / R, 1)


@pytest.mark.parametrize("case", FNO_CASES, ids=lambda case: case.name)
def test_every_parameter(case):
    stock, model = case.build(), parametrized(case, rule="log-modes")
    optimizer = nm.MuAdamW(model, lr=1.0)
    assert len({g["name"] for g in optimizer.param_groups}) == len(optimizer.param_groups) <= 4
    of_each = rates(optimizer, model)
    for (name, p), q in zip(model.named_parameters(), stock.parameters(), strict=True):
        lr_mult, init_mult = _expected(case, name)
        assert of_each[name][0] == pytest.approx(lr_mult, rel=1e-9), name
        torch.testing.assert_close(p, q * init_mult, rtol=1e-5, atol=0, msg=name)


@pytest.mark.parametrize(("key", "kappa", "r_in"), [("2d", 0.97045, R), ("separable", 0.86785, 1)])
def test_operator_norm_reads_blocks_off_the_kernel(key, kappa, r_in):
    """n_modes (4, 4) → (8, 6): stored blocks N = 4·3 = 12 → 8·4 = 32. Norms by Khatri's determinant (test_block_norms.py).

    Dense, width 8 → 24: g = 5.52785/√8 = 1.95439 → 9.866/√24 = 2.0139 (simulated 9.877 ± 0.004), κ = 0.9705.
    Separable blocks are 1×1: g = 1.728546 → 1.991754, κ = 0.867851.
    """
    row = nm.summary(parametrized(BY_NAME[key], rule="operator-norm"))["fno_blocks.convs.0.weight.tensor"]
    assert row.lr_mult == pytest.approx(kappa / r_in, rel=5e-4)


def test_the_default_rule_and_weight_decay_is_the_optimizers_own():
    plan, model = nm.summary(parametrized(TWO)), parametrized(TWO, rule="operator-norm")
    assert plan == nm.summary(model) and plan.rule == "operator-norm"
    optimizer = torch.optim.AdamW(nm.param_groups(model, lr=1e-3), lr=1e-3, weight_decay=0.1)
    assert {g["weight_decay"] for g in optimizer.param_groups} == {0.1}


DECOUPLED = pytest.mark.skipif(
    "decoupled_weight_decay" not in torch.optim.Adam([torch.zeros(1)]).defaults, reason="older torch"
)


def test_base_from_positional_arguments():
    plan = nm.summary(nm.parametrize(FNO((16,), 1, 1, 24), base={"hidden_channels": 8}))
    assert plan["lifting.fcs.0.weight"].base_shape == (16, 2, 1)
    for wrong in (slice(0, 300), 0, "lifting.fcs.0.wieght"):
        with pytest.raises(nm.MupError, match="indexed by the name of a parameter, not by.*its text is str.plan"):
            plan[wrong]
    with pytest.raises(nm.MupError, match="did you mean 'lifting.fcs.0.weight'"):
        plan["lifting.fcs.0.wieght"]


def test_max_n_modes_counts_the_active_modes():
    model = parametrized(BY_NAME["max_n_modes"])
    row = nm.summary(model)["fno_blocks.convs.0.weight.tensor"]
    assert model.fno_blocks.convs[0].weight.tensor.shape == (24, 24, 10, 10)
    assert (row.shape, row.base_shape) == ((24, 24, 8, 4), (8, 8, 4, 3))


def test_mup_reads_our_file_and_we_read_mups(tmp_path):
    """One that mup itself wrote from a base and a delta model that differ in width."""
    ours, theirs = str(tmp_path / "base.bsh"), str(tmp_path / "mup.bsh")
    nm.save_base_shapes(ONE.build_base(), ours)
    shapes = {k: v.base_shape() for k, v in mup.shape.load_base_shapes(ours).items()}
    assert shapes["fno_blocks.convs.0.weight.tensor"] == [8, 8, 3]  # (in, out, n_modes // 2 + 1)
    assert shapes["projection.fcs.1.weight"] == [None, 16, None]
    mup.make_base_shapes(ONE.build_base(), ONE.build(hidden_channels=16, n_modes=(8,)), savefile=theirs)
    from_file, from_model = nm.parametrize(ONE.build(), base=theirs), parametrized(ONE)
    assert [r.lr_mult for r in nm.summary(from_file)] == [r.lr_mult for r in nm.summary(from_model)]


def test_undo_and_attach_without_rescaling():
    model = parametrized(TWO)
    rows = nm.summary(model).rows
    assert nm.unparametrize(model) is model and not nm.is_parametrized(model)
    assert not any(hasattr(p, "infshape") for p in model.parameters())
    nm.parametrize(model, base=TWO.build_base().requires_grad_(False), init=False)
    plan = nm.summary(model)
    assert not plan.init_applied and "init × not applied" in str(plan) and plan.rows == rows
    assert_same(model, parametrized(TWO))


def test_master_multipliers():
    plain, model = parametrized(TWO), parametrized(TWO, init_mult={"readout": 0.5})
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q * (0.5 if name == "projection.fcs.1.weight" else 1))
    with_mult, without = (rates(nm.MuAdamW(model, 0.01, **kw), model) for kw in ({"lr_mult": {"spectral": 2.0}}, {}))
    for row in nm.summary(model).rows:
        lr, decay = without[row.name]
        assert with_mult[row.name] == (pytest.approx(lr * (2 if row.role == "spectral" else 1)), decay)


@pytest.mark.parametrize("lr", [math.nan, math.inf, -1e-3, torch.tensor(math.nan)])
def test_check_optimizer_refuses_a_learning_rate_that_is_no_number(lr):
    model = parametrized(ONE)
    optimizer = nm.MuAdam(model)
    with pytest.raises(nm.MupError, match="no optimizer family 'foo'"):
        nm.check_optimizer(model, optimizer, "foo")
    optimizer.param_groups[0]["lr"] = lr
    with pytest.raises(nm.MupError, match="lr of the optimizer's group .* give a finite number"):
        nm.check_optimizer(model, optimizer)


@pytest.mark.parametrize("build", [nm.MuAdam, nm.MuAdamW, nm.MuSGD])
@pytest.mark.parametrize("setting", [{"lr": 3e-3}, {"weight_decay": 0.1}])
def test_a_partial_that_sets_what_the_groups_set_is_refused(build, setting):
    model, cls = parametrized(ONE), torch.optim.SGD if build is nm.MuSGD else torch.optim.AdamW
    (key,) = setting
    for impl in (partial(cls, **setting), partial(partial(cls, **setting), foreach=False)):
        with pytest.raises(nm.MupError, match=f"would replace: leave it out of the partial and give {key}="):
            build(model, impl=impl)
    assert build(model, impl=partial(cls, foreach=False)).defaults["foreach"] is False


@pytest.mark.parametrize(
    ("impl", "coupled"),
    [
        (torch.optim.Adam, True),
        (partial(torch.optim.Adam, betas=(0.8, 0.99)), True),
        (lambda groups, **kwargs: torch.optim.NAdam(groups, **kwargs), True),
        (torch.optim.RMSprop, True),
        (partial(torch.optim.NAdam, decoupled_weight_decay=True), False),
        pytest.param(partial(torch.optim.Adam, decoupled_weight_decay=True), False, marks=DECOUPLED),
        (torch.optim.AdamW, False),
        (NeuralopAdamW, False),
    ],
)
def test_decay_that_is_not_independent_is_warned_of(impl, coupled):
    """By what the optimizer does, not by how it was made."""
    model = parametrized(TWO)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nm.MuAdam(model, lr=0.01, weight_decay=0.1, impl=impl)
        nm.MuAdam(model, lr=0.01, impl=impl)  # no decay, no word
    assert [("use MuAdamW" in str(w.message), w.filename) for w in caught] == [(True, __file__)] * coupled


def test_summary_with_an_optimizer():
    """2 Fourier layers: updates of MuSOAP are √(4/2) · 0.02; AdamW's readout has 4e-3 / R."""
    model = parametrized(TWO)
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
    model = parametrized(TWO)
    x, y = TWO.batch()
    (100 * (model(x) - y).square().sum()).backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters()}
    kernels = [n for n in expected if "weight.tensor" in n]
    assert max(expected[n].abs().max() for n in kernels) > 0.01
    for n in kernels:
        expected[n] = torch.complex(expected[n].real.clamp(-0.01, 0.01), expected[n].imag.clamp(-0.01, 0.01))
    nm.clip_spectral_grad_value_(model, 0.01)
    assert all(torch.equal(p.grad, expected[n]) for n, p in model.named_parameters())


def test_clipping_sees_what_changed():
    for model in (parametrized(TWO), TWO.build()):
        nm.clip_spectral_grad_value_(model, 0.01)
        model.fno_blocks = TWO.build(n_layers=1).fno_blocks
        if nm.is_parametrized(model):
            with pytest.raises(nm.MupError, match="changed after parametrize"):
                nm.clip_spectral_grad_value_(model, 0.01)
    kernel = model.fno_blocks.convs[0].weight.tensor
    kernel.grad = torch.full_like(kernel, 3 + 4j)
    nm.clip_spectral_grad_value_(model, 0.01)
    assert kernel.grad.real.max() == kernel.grad.imag.max() == pytest.approx(0.01)


def test_unparametrize_takes_mups_own_shapes_off_too():
    model = FNO((8,), 1, 1, 8, n_layers=1)
    for p in model.parameters():
        p.infshape = None
    nm.parametrize(nm.unparametrize(model), base=model)
    with pytest.raises(nm.MupError, match="is not parametrized"):
        nm.unparametrize(FNO((8,), 1, 1, 8, n_layers=1))


def test_misspelt_arguments_are_told():
    model = ONE.build()
    with pytest.raises(nm.MupError, match="no argument 'init_mlt': did you mean 'init_mult'"):
        nm.parametrize(model, init_mlt={"kernel": 1.0})
    assert not nm.is_parametrized(model)
