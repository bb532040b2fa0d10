"""Gradients in a step of MuSOAP: bad, large, tiny, of low rank and noise; and what a step asks of its process."""

import copy
import math
from unittest.mock import Mock

import pytest
import torch

import neuralop_mup as nm
from neuralop_mup.optim.musoap.eigenbases import first_basis, orthonormal, qr_iteration
from neuralop_mup.optim.musoap.gradient_check import GradientCheck
from neuralop_mup.optim.musoap.precision import full_precision
from support.comparing import differing
from support.errors import refused
from support.models import KERNEL, built, in_double, small_fno
from support.training import random_gradients, step


def bad_step(optimizer, model, seed=0, name=KERNEL, value=math.nan):
    random_gradients(model, seed)
    model.get_parameter(name).grad.flatten()[-1] *= value
    optimizer.step()


def moved(model, before):
    """Return how far the blocks of the first kernel moved, as (modes, in, out)."""
    return (model.get_parameter(KERNEL) - before.get_parameter(KERNEL)).detach().permute(2, 0, 1)


# --------------------------------------------------------------------------------------------------------- the policy


@pytest.mark.parametrize("where", ["fno_blocks.convs.1.weight.tensor", "projection.fcs.1.bias"])
@pytest.mark.parametrize(
    ("factor", "names"),
    [
        (math.nan, "notfinite"),
        # Finite, but averages of its squares would not be: bases were NaN some steps later.
        (1e25, "squares clip"),
    ],
)
def test_now_refuses_a_step_and_changes_nothing(where, factor, names):
    model, optimizer, before = built()
    for seed in range(2):  # the first step and a later one
        state = copy.deepcopy(optimizer.state_dict()["state"])
        with refused(f"'{where}' {names}"):
            bad_step(optimizer, model, 1, where, factor)
        assert differing(model, before) == 0
        torch.testing.assert_close(optimizer.state_dict()["state"], state, rtol=0, atol=0)
        step(optimizer, model, seed)
        before.load_state_dict(model.state_dict())


def test_next_counts_a_bad_gradient_as_zero_and_raises_at_the_next_step():
    model, optimizer, before = built(check="next", weight_decay=0.0)
    random_gradients(model)
    kernel = model.get_parameter(KERNEL)
    kernel.grad = kernel.grad.fill_(math.nan).conj()  # a view, as autograd may leave it
    optimizer.step()
    with refused("earlierstep zero"):
        step(optimizer, model)
    assert differing(model, before) == 0
    step(optimizer, model)
    assert differing(model, before) > 0


@pytest.mark.parametrize("lag", [1, 4])
def test_no_bad_step_is_lost_where_the_device_lags(lag, monkeypatch):
    """A count that had not been read was overwritten: NaN at steps 3, 4 and 5 was never reported."""

    def send(self, count):
        self._count_on_host, self._ready = count.clone(), Mock(query=Mock(side_effect=[False] * lag + [True]))

    monkeypatch.setattr(GradientCheck, "_send", send)
    model, optimizer, _ = built(small_fno(width=4), check="next")
    messages = []
    for i in range(18):
        try:
            (bad_step if i in (3, 4, 5) else step)(optimizer, model, i)
        except nm.MupError as error:
            messages.append(str(error))
    assert messages and optimizer.bad_steps == 3
    # A bad gradient at the very step that raises is not checked.
    assert sum(1 if "an earlier step" in text else int(text.split("of ")[1].split()[0]) for text in messages) == 3


def test_skip_counts_and_never_raises():
    model, optimizer, before = built(check="skip", weight_decay=0.0)
    for seed in range(3):
        bad_step(optimizer, model, seed)
    assert differing(model, before) == 0
    step(optimizer, model)
    assert differing(model, before) > 0 and optimizer.bad_steps == 3


# ----------------------------------------------------------------------------------------------- large, small and noise


@pytest.mark.parametrize(
    ("precision", "scale", "atol"),
    [(in_double, 1e-120, 1e-6), (in_double, 1e100, 1e-6), (lambda m: m, 2.0**-40, 1e-5), (lambda m: m, 2.0**40, 1e-5)],
)
def test_a_step_is_the_same_at_every_scale(precision, scale, atol):
    """Kernels stopped below a gradient norm of 3e-18."""
    models = [precision(small_fno(width=4)) for _ in range(2)]
    for model, own in zip(models, (1.0, scale), strict=True):
        optimizer = nm.MuSOAP(model, lr=0.05, eps=0.0)
        for seed in range(3):
            step(optimizer, model, seed, own)
    torch.testing.assert_close(*(model.get_parameter(KERNEL) for model in models), rtol=0, atol=atol)


def test_gradients_a_million_million_times_larger_or_smaller_than_before():
    """An update whose fourth powers underflowed was 1e18."""
    model, optimizer, _ = built(lr=0.05, momentum=0.0, mode_stride=1, base_depth=None)
    for seed in range(25):
        before = copy.deepcopy(model)
        step(optimizer, model, seed, 1e12 if seed in (0, 7) else 1)
        norms = torch.linalg.matrix_norm(moved(model, before), 2)
        assert norms.isfinite().all() and (seed > 2 or 0.03 < norms.amin() < norms.amax() < 0.1)


def test_momentum_that_outlives_the_second_moments():
    model, optimizer, before = built(small_fno(width=4), beta2=0.0, mode_stride=1, weight_decay=0.0)
    step(optimizer, model)
    before.load_state_dict(model.state_dict())
    for p in model.parameters():
        p.grad.zero_()
    optimizer.step()
    assert torch.equal(model.get_parameter(KERNEL), before.get_parameter(KERNEL))


@pytest.mark.parametrize("size", [2e3, 1e-4])
def test_parameters_in_half_precision_keep_their_averages_in_float32(size):
    """Squares of 2e3 overflow in float16, those of 1e-4 are 0: the step is that of the same numbers in float32."""
    ends = []
    for dtype in (torch.float16, torch.float32):
        model = small_fno(width=4)
        real = [p for p in model.parameters() if not p.is_complex()]
        for p in real:
            p.data = p.data.half().to(dtype)
        before = [p.detach().clone() for p in real]
        optimizer, generator = nm.MuSOAP(model, lr=0.02, adamw_lr=0.02), torch.Generator().manual_seed(0)
        for _ in range(3):
            for p in real:
                p.grad = (size * torch.randn(p.shape, generator=generator)).half().to(p.dtype)
            optimizer.step()
        ends.append([(p - q).detach().float() for p, q in zip(real, before, strict=True)])
    torch.testing.assert_close(*ends, rtol=0.05, atol=2e-3)


def test_a_gradient_of_low_rank_moves_no_other_direction():
    """Rounding errors in the null space of a gradient would otherwise be normalised like the rest."""
    model, optimizer, before = built(lr=0.05, base_depth=None, mode_stride=1, weight_decay=0.0)
    kernel, generator = model.get_parameter(KERNEL), torch.Generator().manual_seed(1)
    rows, columns = (torch.randn(12, 2, generator=generator, dtype=torch.cfloat) for _ in range(2))
    for _ in range(3):
        middle = torch.randn(2, 2, kernel.shape[2], generator=generator, dtype=torch.cfloat)
        kernel.grad = torch.einsum("ia,abk,ob->iok", rows, middle, columns)
        optimizer.step()
    values = torch.linalg.svdvals(moved(model, before))
    assert (values[:, 2] < 0.1 * values[:, 0]).all()


def test_modes_of_pure_noise_are_not_trained():
    """Rounding leaves gradients of 1e-13 beside 1e-3: in a hundred steps such modes moved by 5 from a norm of 2."""
    model, optimizer, before = built()
    kernel = model.get_parameter(KERNEL)
    scale = torch.where(torch.arange(kernel.shape[-1]) < 2, 1e-3, 1e-13)
    for seed in range(30):
        random_gradients(model, seed)
        kernel.grad = kernel.grad * scale
        optimizer.step()
    norms = torch.linalg.matrix_norm(moved(model, before))
    assert norms[2:].max() < 1e-3 * norms[:2].min()


def test_what_half_precision_leaves_of_a_mode_is_not_trained():
    """Entries below 6e-8 are exactly zero, the others coarse: most of what is left of such a mode is noise."""
    model, optimizer, before = built(small_fno(width=16, modes=(16,)), mode_stride=1, weight_decay=0.0)
    kernel = model.get_parameter(KERNEL)
    random_gradients(model)
    scale = torch.where(torch.arange(kernel.shape[-1]) < 4, 1e-5, 1e-8)
    exact = kernel.grad / kernel.grad.abs().mean() * scale
    kernel.grad = torch.view_as_complex(torch.view_as_real(exact).half().float())
    optimizer.step()
    norms = torch.linalg.matrix_norm(moved(model, before))
    assert norms[4:].max() < 0.1 * norms.max() < 0.2 * norms[:4].min()


# -------------------------------------------------------------------------------------------------------------- bases


@pytest.mark.parametrize("kind", ["full", "low rank", "one direction", "decaying"])
@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
def test_cholesky_qr_is_as_accurate_as_householders(dtype, least, kind, monkeypatch):
    """It runs where there is no CPU: columns are orthonormal, and Householder's but for their signs.

    In float32 it was NaN where all columns were equal, since ε was as small as their rounding.
    """
    generator, d = torch.Generator().manual_seed(0), 100
    x = torch.randn(2, d, 4 * d if kind == "full" else 3, generator=generator, dtype=torch.float64)
    q, other = (torch.linalg.qr(torch.randn(2, d, d, generator=generator, dtype=torch.float64)).Q for _ in range(2))
    if kind == "decaying":
        x = other * torch.logspace(0, -3, d, dtype=torch.float64)
    x = torch.ones_like(x) if kind == "one direction" else x
    want = qr_iteration(x @ x.mT, q)
    monkeypatch.setattr(torch.linalg, "qr", lambda y: Mock(Q=orthonormal(y)))
    got = qr_iteration((x @ x.mT).to(dtype), q.to(dtype))
    assert (got.mT @ got - torch.eye(d, dtype=dtype)).abs().max() < least
    alike = slice(None) if dtype == torch.float64 else slice(1)  # float32 determines few of the others
    assert ((got * want).sum(1).abs() - 1)[:, alike].abs().max() < 1e-5


def test_bases_by_hand():
    """Eigenvalues 3 and 1 of the directions (1, 1) and (1, −1); zeros leave a basis as it is."""
    gram = torch.tensor([[[2.0, 1.0], [1.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]])
    first = first_basis(gram)
    assert first.abs()[0].tolist() == [[pytest.approx(0.5**0.5)] * 2] * 2
    assert first[0, :, 0].prod() > 0 > first[0, :, 1].prod()
    turned = torch.tensor([[0.6, -0.8], [0.8, 0.6]]).expand(2, 2, 2)
    new = qr_iteration(gram, turned)
    # (2 · 0.6 + 0.8, 0.6 + 2 · 0.8) = (2, 2.2)
    assert new[0, :, 0].abs().tolist() == pytest.approx([2 / 8.84**0.5, 2.2 / 8.84**0.5])
    assert torch.equal(new[1], turned[1])


# ------------------------------------------------------------------------------------- what a step asks of its process


def test_precision_of_products_stays_as_the_user_has_it():
    """After a step under a global "tf32" a global "ieee" had no effect. One step may be inside another."""
    matmul = torch.backends.cuda.matmul
    try:
        torch.backends.fp32_precision = "tf32"
        with pytest.raises(ZeroDivisionError), full_precision(), full_precision():
            assert matmul.fp32_precision == "ieee"
            raise ZeroDivisionError
        assert matmul.fp32_precision == "tf32"
        torch.backends.fp32_precision = "ieee"
        assert matmul.fp32_precision == "ieee"
        matmul.fp32_precision = "tf32"
        with full_precision():
            pass
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = torch.backends.fp32_precision = "none"
