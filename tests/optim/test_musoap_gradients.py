"""What a step of MuSOAP does with gradients: bad ones, tiny ones, noise, and of what a device is asked for it."""

import copy
import math
import weakref
from unittest.mock import Mock

import pytest
import torch
from neuralop.models import FNO
from torch.utils._python_dispatch import TorchDispatchMode

import neuralop_mup as nm
from neuralop_mup.optim.musoap import optimizer as module
from neuralop_mup.optim.musoap.bases import orthonormal, renewed
from neuralop_mup.optim.musoap.blocks import as_real
from neuralop_mup.optim.musoap.checks import GradientCheck
from support.comparing import differing
from support.models import KERNEL, built, in_double, small_fno
from support.training import random_gradients, step


def bad_step(optimizer, model, seed=0, name=KERNEL, value=math.nan):
    random_gradients(model, seed)
    model.get_parameter(name).grad.flatten()[-1] *= value
    optimizer.step()


# --------------------------------------------------------------------------------------------------------- the policy


@pytest.mark.parametrize("first", [True, False], ids=["first step", "later"])
@pytest.mark.parametrize("where", ["fno_blocks.convs.1.weight.tensor", "projection.fcs.1.bias"])
@pytest.mark.parametrize(
    ("factor", "told"),
    [
        (math.nan, "is not finite.*changed: look at the loss and the batch"),
        (math.inf, "is not finite.*changed: look at the loss and the batch"),
        # Finite, but averages of its squares would not be: bases were NaN some steps later.
        (1e25, "is finite, but so large .*changed: .*clip gradients"),
    ],
)
def test_now_refuses_and_nothing_changes(where, factor, told, first):
    model, optimizer, before = built()
    if not first:
        step(optimizer, model)
        before.load_state_dict(model.state_dict())
    state = copy.deepcopy(optimizer.state_dict()["state"])
    with pytest.raises(nm.MupError, match=f"gradient of '{where}' {told}"):
        bad_step(optimizer, model, 1, where, factor)
    assert differing(model, before) == 0
    torch.testing.assert_close(optimizer.state_dict()["state"], state, rtol=0, atol=0)


def test_next_counts_a_bad_gradient_as_zero_and_raises_at_the_next_step():
    model, optimizer, before = built(check="next", weight_decay=0.0)
    random_gradients(model)
    kernel = model.get_parameter(KERNEL)
    kernel.grad = kernel.grad.fill_(math.nan).conj()  # a view, as autograd may leave it
    optimizer.step()
    assert differing(model, before) == 0
    with pytest.raises(nm.MupError, match="an earlier step was not finite.*counted as zero"):
        step(optimizer, model)
    step(optimizer, model)
    assert all(torch.isfinite(as_real(p)).all() for p in model.parameters())


@pytest.mark.parametrize("lag", [1, 2, 4, 7])
def test_no_fault_is_lost_however_far_the_device_lags(lag, monkeypatch):
    """An answer that had not been read was overwritten: of NaN at steps 3, 4 and 5 nothing was ever told."""

    def ask(self, count):  # of a device that is some steps behind
        self._answer, self._ready = count.clone(), Mock(query=Mock(side_effect=[False] * lag + [True]))

    monkeypatch.setattr(GradientCheck, "_ask", ask)
    model, optimizer, _ = built(check="next")
    told = []
    for i in range(30):
        try:
            (bad_step if i in (3, 4, 5) else step)(optimizer, model, i)
        except nm.MupError as error:
            told.append(str(error))
    assert told and optimizer.bad_steps == 3
    counts = [1 if "an earlier step" in text else int(text.split("of ")[1].split()[0]) for text in told]
    # A bad gradient at the very step that raises was not looked at.
    assert sum(counts) == 3


def test_skip_counts_and_never_raises():
    model, optimizer, before = built(check="skip", weight_decay=0.0)
    for seed in range(3):
        bad_step(optimizer, model, seed)
    assert differing(model, before) == 0 and optimizer.bad_steps == 3
    step(optimizer, model)
    assert differing(model, before) > 0 and optimizer.bad_steps == 3


def test_off_looks_at_nothing():
    model, optimizer, _ = built(check="off")
    step(optimizer, model)
    bad_step(optimizer, model)
    assert optimizer.state[model.get_parameter(KERNEL)]["exp_avg"].isnan().any()


@pytest.mark.parametrize("check", ["now", "next", "skip", "off"])
def test_gradients_that_are_views_of_another_kind(check):
    """Conjugated, as autograd leaves them, and expanded."""
    models = [small_fno() for _ in range(2)]
    optimizers = [nm.MuSOAP(model, check=check) for model in models]
    for seed in range(2):
        for i, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            random_gradients(model, seed)
            for p in model.parameters():
                if p.is_complex():
                    p.grad = p.grad.conj() if i else p.grad.conj().resolve_conj()
                elif p.ndim == 1:
                    p.grad = p.grad[:1].expand(p.shape) if i else p.grad[:1].expand(p.shape).clone()
            optimizer.step()
    assert differing(*models) == 0


# ----------------------------------------------------------------------------------------------- large, small and noise


@pytest.mark.parametrize(
    ("precision", "scale", "atol"),
    [
        *((in_double, scale, 1e-6) for scale in (1e-120, 1e-60, 1e-20, 1e30, 1e100)),
        *((lambda m: m, 2.0**n, 1e-5) for n in (-40, 40)),
    ],
)
def test_no_scale_matters(precision, scale, atol):
    """Kernels stopped below a gradient norm of 3e-18. A step is the same at every scale."""
    models = [precision(small_fno()) for _ in range(2)]
    for model, own in zip(models, (1.0, scale), strict=True):
        optimizer = nm.MuSOAP(model, lr=0.05, eps=0.0)
        for seed in range(3):
            step(optimizer, model, seed, own)
    torch.testing.assert_close(*(model.get_parameter(KERNEL) for model in models), rtol=0, atol=atol)


def test_gradients_a_million_million_times_larger_or_smaller_than_before():
    """An update whose fourth powers underflowed was 1e18."""
    model, optimizer, _ = built(lr=0.05, momentum=0.0, period=1, base_depth=None)
    for seed in range(25):
        before = model.get_parameter(KERNEL).detach().clone()
        step(optimizer, model, seed, 1e12 if seed in (0, 7) else 1)
        norms = torch.linalg.matrix_norm((model.get_parameter(KERNEL) - before).detach().permute(2, 0, 1), 2)
        assert norms.isfinite().all() and (seed > 2 or (norms.amin() > 0.03 and norms.amax() < 0.1))


@pytest.mark.parametrize("beta2", [0.0, 0.55])
def test_momentum_that_outlives_the_second_moments(beta2):
    """After 400 steps without a gradient 0.55 to that power is 0 in float32, where momentum is 1e-9 still."""
    model, optimizer, _ = built(small_fno(width=4, modes=(4,), n_layers=1), beta2=beta2)
    step(optimizer, model)
    for p in model.parameters():
        p.grad.zero_()
    for _ in range(400):
        optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("size", [2e3, 1e-4])
def test_parameters_in_half_precision_keep_their_averages_in_float32(size):
    """Squares of 2e3 overflow in float16, those of 1e-4 are 0: the step is that of the same numbers in float32."""
    ends = []
    for dtype in (torch.float16, torch.float32):
        model = small_fno()
        real = {name: p for name, p in model.named_parameters() if not p.is_complex()}
        for p in real.values():
            p.data = p.data.half().to(dtype)
        before = {name: p.detach().clone() for name, p in real.items()}
        optimizer, generator = nm.MuSOAP(model, lr=0.02, aux_lr=0.02), torch.Generator().manual_seed(0)
        for _ in range(3):
            for p in model.parameters():
                grad = size * torch.randn(p.shape, generator=generator, dtype=torch.promote_types(p.dtype, torch.float32))
                p.grad = grad if p.is_complex() else grad.half().to(p.dtype)
            optimizer.step()
        ends.append({name: (p - before[name]).detach().float() for name, p in real.items()})
    assert all(moved.isfinite().all() for moved in ends[0].values())
    torch.testing.assert_close(*ends, rtol=0.05, atol=2e-3)


def test_a_gradient_of_low_rank_moves_no_other_direction():
    """Rounding errors in the null space of a gradient would otherwise be normalised like the rest."""
    model, optimizer, before = built(lr=0.05, base_depth=None, period=1, weight_decay=0.0)
    kernel, generator = model.get_parameter(KERNEL), torch.Generator().manual_seed(1)
    rows, columns = (torch.randn(12, 2, generator=generator, dtype=torch.cfloat) for _ in range(2))
    for _ in range(3):
        middle = torch.randn(2, 2, kernel.shape[2], generator=generator, dtype=torch.cfloat)
        kernel.grad = torch.einsum("ia,abk,ob->iok", rows, middle, columns)
        optimizer.step()
    values = torch.linalg.svdvals((kernel - before.get_parameter(KERNEL)).detach().permute(2, 0, 1))
    assert (values[:, 2] < 0.1 * values[:, 0]).all()


def moved_modes(model, before):
    """Norm of how far each mode's block has moved."""
    return (model.get_parameter(KERNEL) - before.get_parameter(KERNEL)).detach().abs().square().sum((0, 1)).sqrt()


def test_modes_of_pure_noise_are_not_trained():
    """Gradients of 1e-13 beside 1e-3 are what rounding leaves: in a hundred steps they once moved by 5 from a norm of 2."""
    model, optimizer, before = built()
    kernel = model.get_parameter(KERNEL)
    scale = torch.where(torch.arange(kernel.shape[-1]) < 2, 1e-3, 1e-13)
    for seed in range(100):
        random_gradients(model, seed)
        kernel.grad = kernel.grad * scale
        optimizer.step()
    moved = moved_modes(model, before)
    assert moved[2:].max() < 1e-3 * moved[:2].min()


def test_what_half_precision_leaves_of_a_mode_is_not_trained():
    """Entries below 6e-8 are exactly zero, the others coarse: most of what is left of such a mode is noise."""
    model, optimizer, before = built(small_fno(width=16, modes=(16,)), period=1, weight_decay=0.0)
    kernel = model.get_parameter(KERNEL)
    random_gradients(model)
    scale = torch.where(torch.arange(kernel.shape[-1]) < 4, 1e-5, 1e-8)
    exact = kernel.grad / kernel.grad.abs().mean() * scale
    kernel.grad = torch.view_as_complex(torch.view_as_real(exact).half().float())
    optimizer.step()
    moved = moved_modes(model, before)
    assert moved[4:].max() < 0.1 * moved.max() and moved[:4].min() > 0.5 * moved.max()


# -------------------------------------------------------------------------------------------------------------- bases


@pytest.mark.parametrize("d", [4, 200])
@pytest.mark.parametrize("kind", ["full", "low rank", "one direction", "decaying"])
@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
def test_products_alone_are_as_accurate_as_householders(dtype, least, kind, d, monkeypatch):
    """Cholesky QR, which runs where there is no CPU: orthogonal, and its columns Householder's but for their signs, whatever
    the eigenvalues. In float32 it was NaN where all columns were alike, since ε was as small as their rounding."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, d, 4 * d if kind == "full" else 3, generator=generator, dtype=torch.float64)
    if kind == "decaying":
        x = torch.linalg.qr(torch.randn(2, d, d, generator=generator, dtype=torch.float64)).Q
        x = x * torch.logspace(0, -3, d, dtype=torch.float64)
    x = torch.ones_like(x) if kind == "one direction" else x
    q = torch.linalg.qr(torch.randn(2, d, d, generator=generator, dtype=torch.float64)).Q
    want = renewed(x @ x.mT, q)
    monkeypatch.setattr(torch.linalg, "qr", lambda y: Mock(Q=orthonormal(y)))
    got = renewed((x @ x.mT).to(dtype), q.to(dtype))
    assert (got.mT @ got - torch.eye(d, dtype=dtype)).abs().max() < least
    alike = slice(None) if dtype == torch.float64 else slice(1)  # of the others in float32 few are determined
    assert ((got * want).sum(1).abs() - 1)[:, alike].abs().max() < 1e-5


# ------------------------------------------------------------------------------------- what a step asks of its process


def test_a_step_inside_autocast_is_as_outside():
    """Products were made in bfloat16, and it raised in the middle of the step."""
    outside, usual, inside = built()
    within = nm.MuSOAP(inside)
    for seed in range(3):
        step(usual, outside, seed)
        with torch.autocast("cpu", torch.bfloat16):
            step(within, inside, seed)
            assert torch.is_autocast_enabled("cpu")
    assert differing(outside, inside) == 0


def test_precision_of_products_stays_as_the_user_has_it():
    """After a step under a global "tf32" a global "ieee" had no effect. One step may be inside another."""
    matmul = torch.backends.cuda.matmul
    try:
        torch.backends.fp32_precision = "tf32"
        with module.full_precision(), module.full_precision():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
        torch.backends.fp32_precision = "ieee"
        assert matmul.fp32_precision == "ieee"
        matmul.fp32_precision = "tf32"
        with module.full_precision():
            pass
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = torch.backends.fp32_precision = "none"


class Temporaries(TorchDispatchMode):
    """The most memory that new tensors held at a time."""

    def __init__(self):
        super().__init__()
        self.held, self.most = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        is_view = any(a.alias_info is not None and not a.alias_info.is_write for a in function._schema.arguments)
        if isinstance(out, torch.Tensor) and not is_view and not any(r.alias_info for r in function._schema.returns):
            storage = out.untyped_storage()
            self.held += storage.nbytes()
            self.most = max(self.most, self.held)
            weakref.finalize(storage, self._free, storage.nbytes())
        return out

    def _free(self, n):
        self.held -= n


def counted(model, n_steps, skip, monkeypatch, **settings):
    """Memory of steps as on a device that is no CPU."""
    monkeypatch.delitem(module._CHUNK, "cpu")
    monkeypatch.setattr(GradientCheck, "_ask", lambda *args: None)  # on a GPU the answer is read from the host's memory
    optimizer = nm.MuSOAP(model, foreach=True, check="next", **settings)
    found = []
    for seed in range(n_steps):
        random_gradients(model, seed)
        with Temporaries() as temporaries, torch.no_grad():
            optimizer._step()  # without the hook before it, which reads learning rates that are on a CPU
        found.append(temporaries)
    return found[skip:]


def test_temporaries(monkeypatch):
    """At most 2.51 times the bytes of one kernel, where kernels are large enough for a batch of their own.

    Half of its modes move at a step, in five buffers: 2.5. Here 0.0013 are numbers of each mode: shares, floors and norms.
    """
    monkeypatch.setitem(module._CHUNK, "elsewhere", 2**14)
    model = nm.parametrize(FNO((32, 32), 1, 1, 32, n_layers=2), base={"hidden_channels": 16})
    kernel = model.get_parameter("fno_blocks.convs.0.weight.tensor")
    steps = counted(model, 12, 2, monkeypatch)
    assert max(step.most for step in steps) <= 2.51 * kernel.numel() * kernel.element_size()
