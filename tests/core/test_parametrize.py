"""parametrize on single models, against numbers worked out by hand. test_cases.py has what holds for every model."""

import math
import warnings
from functools import partial

import mup
import numpy as np
import pytest
import torch
from neuralop.models import FNO
from neuralop.training import AdamW as NeuralopAdamW

import neuralop_mup as nm
from support.cases import BY_NAME, FNO_CASES
from support.comparing import assert_same, rates
from support.errors import of_category, refused
from support.models import KERNEL, parametrized

ONE, TWO = BY_NAME["1d"], BY_NAME["2d"]
R = 3  # width ratio of every case: 24 over 8


def _kappa(case):
    """√(Σ log K_base / Σ log K), K = n_modes // 2."""
    return math.sqrt(sum(math.log(n // 2) for n in case.base_modes) / sum(math.log(n // 2) for n in case.n_modes))


def _expected(case, name):
    """Return the multipliers of Adam's learning rate and of the initialization, by the table in the docs."""
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
def test_initialization_and_learning_rate_of_every_parameter(case):
    stock, model = case.build(), parametrized(case, rule="log-modes")
    optimizer = nm.MuAdamW(model, lr=1.0)
    assert len({g["name"] for g in optimizer.param_groups}) == len(optimizer.param_groups) <= 4
    lrs = rates(optimizer, model)
    for (name, p), q in zip(model.named_parameters(), stock.parameters(), strict=True):
        lr_mult, init_mult = _expected(case, name)
        assert lrs[name][0] == pytest.approx(lr_mult, rel=1e-9), name
        torch.testing.assert_close(p, q * init_mult, rtol=1e-5, atol=0, msg=name)


@pytest.mark.parametrize(("key", "kappa", "r_in"), [("2d", 0.97045, R), ("separable", 0.86785, 1)])
def test_operator_norm_of_a_kernel(key, kappa, r_in):
    """n_modes (4, 4) → (8, 6): stored blocks N = 4·3 = 12 → 8·4 = 32. Norms by Khatri's determinant (test_block_norms.py).

    Dense, width 8 → 24: g = 5.52785/√8 = 1.95439 → 9.866/√24 = 2.0139 (simulated 9.877 ± 0.004), κ = 0.9705.
    Separable blocks are 1×1: g = 1.728546 → 1.991754, κ = 0.867851.
    """
    row = nm.summary(parametrized(BY_NAME[key], rule="operator-norm"))[KERNEL]
    assert row.lr_mult == pytest.approx(kappa / r_in, rel=5e-4)


def test_defaults():
    """The rule is operator-norm, and the optimizer's own weight decay is kept."""
    model = parametrized(TWO)
    plan = nm.summary(model)
    assert plan == nm.summary(parametrized(TWO, rule="operator-norm")) and plan.rule == "operator-norm"
    optimizer = torch.optim.AdamW(nm.param_groups(model, lr=1e-3), lr=1e-3, weight_decay=0.1)
    assert {g["weight_decay"] for g in optimizer.param_groups} == {0.1}


def test_base_from_positional_arguments():
    plan = nm.summary(nm.parametrize(FNO((16,), 1, 1, 24), base={"hidden_channels": 8}))
    assert plan["lifting.fcs.0.weight"].base_shape == (16, 2, 1)


def test_max_n_modes_counts_the_active_modes():
    row = nm.summary(parametrized(BY_NAME["max_n_modes"]))[KERNEL]
    assert (row.shape, row.base_shape) == ((24, 24, 8, 4), (8, 8, 4, 3))


def test_mup_reads_our_file_and_we_read_mups(tmp_path):
    """mup's file comes from a base and a delta model that differ in width."""
    ours, theirs = str(tmp_path / "base.bsh"), str(tmp_path / "mup.bsh")
    nm.save_base_shapes(ONE.build_base(), ours)
    shapes = {k: v.base_shape() for k, v in mup.shape.load_base_shapes(ours).items()}
    assert shapes[KERNEL] == [8, 8, 3]  # (in, out, n_modes // 2 + 1)
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
    assert not plan.init_applied and plan.rows == rows
    assert_same(model, parametrized(TWO))


def test_multipliers_by_role():
    init_mult = {"readout": 0.5, "kernel": 0.25}
    plain, model = parametrized(TWO), parametrized(TWO, init_mult={**init_mult, "hidden": 1.0})
    assert nm.summary(model).init_mult == init_mult
    roles = {row.name: "kernel" if row.role == "spectral" else row.role for row in nm.summary(model)}
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q * init_mult.get(roles[name], 1))
    with_mult, without = (rates(nm.MuAdamW(model, 0.01, **kw), model) for kw in ({"lr_mult": {"spectral": 2.0}}, {}))
    for name, (lr, decay) in without.items():
        assert with_mult[name] == (pytest.approx(lr * (2 if roles[name] == "kernel" else 1)), decay)


@pytest.mark.parametrize("lr", [math.inf, torch.tensor(math.nan)])
def test_check_optimizer_refuses_a_learning_rate_that_is_no_number(lr):
    model = parametrized(ONE)
    optimizer = nm.MuAdam(model)
    with refused("'foo'"):
        nm.check_optimizer(model, optimizer, "foo")
    optimizer.param_groups[0]["lr"] = lr
    with refused("lr group"):
        nm.check_optimizer(model, optimizer)


@pytest.mark.parametrize(("build", "cls"), [(nm.MuAdamW, torch.optim.AdamW), (nm.MuSGD, torch.optim.SGD)])
def test_a_partial_that_sets_what_the_groups_set_is_refused(build, cls):
    model = parametrized(ONE)
    for key in ("lr", "weight_decay"):
        for impl in (partial(cls, **{key: 0.1}), partial(partial(cls, **{key: 0.1}), foreach=False)):
            with refused(f"partial {key}="):
                build(model, impl=impl)
    assert build(model, impl=partial(cls, foreach=False)).defaults["foreach"] is False


@pytest.mark.parametrize(
    ("impl", "coupled"),
    [
        (partial(torch.optim.Adam, betas=(0.8, 0.99)), True),
        (lambda groups, **kwargs: torch.optim.NAdam(groups, **kwargs), True),
        (torch.optim.RMSprop, True),
        (partial(torch.optim.NAdam, decoupled_weight_decay=True), False),
        (torch.optim.AdamW, False),
        (NeuralopAdamW, False),
    ],
)
def test_weight_decay_that_is_coupled_to_the_gradient_triggers_a_warning(impl, coupled):
    """What counts is what the optimizer does, not how it was built."""
    model = parametrized(ONE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nm.MuAdam(model, lr=0.01, weight_decay=0.1, impl=impl)
        nm.MuAdam(model, lr=0.01, impl=impl)
    assert [("MuAdamW" in str(w.message), w.filename) for w in of_category(caught)] == [(True, __file__)] * coupled


def test_summary_with_an_optimizer():
    """With 2 Fourier layers an update of MuSOAP has the size √(4/2) · 0.02. The learning rate of the readout is 4e-3 / R."""
    model = parametrized(TWO)
    plan = nm.summary(model, nm.MuSOAP(model, 0.02, 4e-3))
    lrs = plan.lrs
    assert lrs[KERNEL] == lrs["lifting.fcs.1.weight"] == "size 0.02828"
    assert (lrs["lifting.fcs.0.weight"], lrs["projection.fcs.1.weight"]) == ("0.004", f"{4e-3 / R:.4g}")
    assert {line.count("|") for line in plan.to_markdown().splitlines()} == {9}
    assert plan.to_json() == nm.summary(model).to_json()
    part = torch.optim.Adam(model.lifting.parameters(), 1e-3)
    assert nm.summary(model, part).lrs["projection.fcs.1.weight"] == "not in it"
    with refused("model"):
        nm.summary(model, torch.optim.Adam([torch.nn.Parameter(torch.ones(1))]))


@pytest.mark.parametrize("build", [lambda: parametrized(TWO), TWO.build])
def test_clip_spectral_gradients(build):
    """Only kernels are clipped, real and imaginary parts separately."""
    model, (x, y) = build(), TWO.batch()
    (100 * (model(x) - y).square().sum()).backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters()}
    kernels = [n for n in expected if "weight.tensor" in n]
    assert max(expected[n].abs().max() for n in kernels) > 0.01
    for n in kernels:
        expected[n] = torch.complex(expected[n].real.clamp(-0.01, 0.01), expected[n].imag.clamp(-0.01, 0.01))
    nm.clip_spectral_grad_value_(model, 0.01)
    assert all(torch.equal(p.grad, expected[n]) for n, p in model.named_parameters())


def test_a_misspelt_argument_is_refused():
    with refused("'init_mlt' 'init_mult'"):
        nm.parametrize(ONE.build(), init_mlt={"kernel": 1.0})


class LoRA(torch.nn.Module):
    """A frozen linear layer with a trainable update of rank 2."""

    def __init__(self, width):
        super().__init__()
        self.linear, self.down, self.up = (torch.nn.Linear(*sizes) for sizes in ((width, width), (width, 2), (2, width)))
        self.linear.requires_grad_(False)

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))


class Adapted(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.width, self.fno, self.mix = width, FNO((8,), 1, width, width), LoRA(width)
        self.fno.requires_grad_(False)


def test_frozen_parameters_are_allowed_for_trained_weights():
    plan = nm.summary(nm.parametrize(Adapted(), init=False))
    assert [plan[f"mix.{name}.weight"].role for name in ("linear", "down", "up")] == ["hidden", "readout", "input"]
    with refused("'fno.fno_blocks.convs.0' requires_grad=False init=False"):
        nm.parametrize(Adapted())


def test_sizes_of_numpy_are_sizes():
    model = nm.parametrize(FNO(np.array([8, 8]), 1, 1, np.int64(64)))
    assert nm.summary(model)["projection.fcs.1.weight"].lr_mult == 0.5
    assert nm.Plan.from_json(nm.summary(model).to_json()) == nm.summary(model) and model.state_dict()


def test_models_without_a_plan_keep_their_state_dict():
    other = torch.nn.Sequential(FNO((8,), 1, 1, 8))
    nm.parametrize(FNO((8,), 1, 1, 16))
    assert "_metadata" in other.state_dict()
    assert "_metadata" not in nm.parametrize(other).state_dict()
