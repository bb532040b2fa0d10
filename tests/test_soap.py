"""MuSOAP: three steps written out by brute force, what its updates measure, its bases, and its states."""

import copy
import math

import pytest
import torch
from torch import nn

import neuralop_mup as nm
from cases import BY_NAME
from neuralop_mup.optim.matrix import soap
from neuralop_mup.optim.matrix.bases import first_basis, orthonormal, renewed
from neuralop_mup.optim.matrix.tensors import as_real
from support import differing, random_gradients, small_fno, train

KERNEL = "fno_blocks.convs.0.weight.tensor"


def kernel_of(model, dtype=None):
    kernel = model.get_parameter(KERNEL)
    kernel.data = kernel.data.to(dtype or kernel.dtype)
    return kernel


def step(model, optimizer, seed=0, scale=1.0):
    """On random gradients of the given scale."""
    random_gradients(model, seed)
    for p in model.parameters():
        p.grad *= scale
    optimizer.step()


def norms_of(change):
    """Operator norms of what a kernel (in, out, modes) has moved by, mode by mode."""
    return torch.linalg.matrix_norm(change.detach().flatten(2).permute(2, 0, 1), 2)


# --------------------------------------------------------------------------------------------------------- a step


@pytest.mark.parametrize("size", ["rms", "schatten"])
def test_both_sizes_are_the_operator_norm_of_random_entries(size):
    """At the first step every entry has modulus 1 and a random phase, or sign: 5 to 8 % below the limit at these widths."""
    model = small_fno(width=64)
    before = copy.deepcopy(model)
    step(model, nm.MuSOAP(model, lr=0.05, base_depth=None, period=1, size=size))
    kernel, hidden = (
        norms_of(model.get_parameter(name) - before.get_parameter(name)).mean()
        for name in (KERNEL, "fno_blocks.channel_mlp.0.fcs.0.weight")
    )
    assert kernel == pytest.approx(0.05, rel=0.1)
    assert hidden == pytest.approx(0.05 / math.sqrt(2), rel=0.1)  # 32 of 64 channels: √(out/in)


def test_low_rank_is_looked_for_again_in_every_mode():
    """With period 2 half of the modes at a step, when bases are renewed, and the others at the next."""
    model = small_fno(width=12)
    kernel = kernel_of(model)
    optimizer = nm.MuSOAP(model, momentum=0.0, refresh=10, size="schatten")
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        step(model, optimizer)
    assert (optimizer.state[kernel]["low_rank"] - 1).abs().max() < 0.1
    for due in (slice(0, None, 2), slice(1, None, 2)):
        before = optimizer.state[kernel]["low_rank"].clone()
        a, b = (torch.randn(12, kernel.shape[2], generator=generator, dtype=torch.cfloat) for _ in range(2))
        kernel.grad = torch.einsum("ik,ok->iok", a, b)
        optimizer.step()
        now = optimizer.state[kernel]["low_rank"]
        assert (now - before)[..., due].min() > 0.05 and ((now != before).sum() == now[..., due].numel())


@pytest.mark.parametrize("size, want", [("rms", lambda n: n**0.5 / 2), ("schatten", lambda n: n**0.25 / 2**0.75)])
@pytest.mark.parametrize("width", [4, 16, 36])
def test_an_update_of_rank_one_is_larger_in_operator_norm_than_random_entries_are(size, want, width):
    """In its own bases it has one entry u: operator norm |u|. Its size is |u| 2√n / n, or |u| 2√n / (2n³)^(1/4)."""
    model = small_fno(width=width)
    kernel = kernel_of(model, torch.cdouble)  # in single precision noise takes part in the other entries
    before = kernel.detach().clone()
    generator = torch.Generator().manual_seed(1)
    row, column = (torch.randn(width, generator=generator, dtype=torch.cdouble).real for _ in range(2))
    numbers = torch.randn(kernel.shape[2], generator=generator, dtype=torch.cdouble)
    kernel.grad = torch.einsum("i,o,k->iok", row + 0j, column + 0j, numbers)
    nm.MuSOAP(model, lr=0.05, base_depth=None, period=1, size=size, weight_decay=0.0).step()
    assert torch.allclose(norms_of(kernel - before), torch.tensor(0.05 * want(width), dtype=torch.double), rtol=1e-4)


def test_separable_kernels_have_one_size_a_mode():
    """Blocks are diagonal, so that the norm of a mode is its largest modulus: lr, for each mode."""
    model = small_fno(separable=True)
    before = kernel_of(model).detach().clone()
    step(model, nm.MuSOAP(model, lr=0.05, base_depth=None, period=1, weight_decay=0.0))
    assert torch.allclose((kernel_of(model) - before).abs().amax(0), torch.tensor(0.05), rtol=1e-4)


def test_a_gradient_of_low_rank_moves_no_other_direction():
    """Rounding errors in the null space of a gradient would otherwise be normalised like the rest."""
    model = small_fno(width=12)
    kernel, before = kernel_of(model), copy.deepcopy(model)
    random_gradients(model)
    generator = torch.Generator().manual_seed(1)
    rows, columns = (torch.randn(12, 2, generator=generator, dtype=torch.cfloat) for _ in range(2))
    optimizer = nm.MuSOAP(model, lr=0.05, base_depth=None, period=1, weight_decay=0.0)
    for _ in range(3):
        middle = torch.randn(2, 2, kernel.shape[2], generator=generator, dtype=torch.cfloat)
        kernel.grad = torch.einsum("ia,abk,ob->iok", rows, middle, columns)
        optimizer.step()
    values = torch.linalg.svdvals((kernel - kernel_of(before)).detach().permute(2, 0, 1))
    assert (values[:, 2] < 0.1 * values[:, 0]).all()


def test_first_gradients_that_are_zero_or_of_rank_one():
    model = small_fno()
    optimizer = nm.MuSOAP(model, lr=0.05)
    kernel = kernel_of(model)
    before = kernel.detach().clone()
    step(model, optimizer, scale=0.0)
    assert torch.equal(kernel, before)
    random_gradients(model)
    kernel.grad = kernel.grad[:1, :1] * torch.ones_like(kernel)
    optimizer.step()
    assert all(torch.isfinite(as_real(p)).all() for p in model.parameters())
    assert (kernel != before).any()


# ---------------------------------------------------------------------------------------------------------- bases


def gram(x):
    """Σ x xᵀ along the second axis."""
    return x.flatten(2) @ x.flatten(2).mT


def test_bases_become_eigenvectors():
    """Orthogonal iteration on a Gram matrix that stays the same: it is diagonal in the basis, largest first."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 5, 40, 1, 1, generator=generator, dtype=torch.float64)
    c = gram(x * torch.tensor([9, 5, 3, 2, 1]).view(5, 1, 1, 1))
    q = first_basis(torch.eye(5, dtype=c.dtype)[None])
    for _ in range(60):
        q = renewed(c, q)
    assert torch.allclose((first_basis(c).mT @ q).abs(), torch.eye(5, dtype=torch.float64)[None], atol=1e-6)
    values = (q.mT @ c @ q).diagonal(dim1=1, dim2=2)
    assert (values.diff() < 0).all()
    assert torch.allclose(q @ torch.diag_embed(values) @ q.mT, c, atol=1e-6 * c.abs().max())
    assert torch.equal(renewed(torch.zeros_like(c), q), q)


@pytest.mark.parametrize("d", [4, 64, 200])
@pytest.mark.parametrize("kind", ["full", "low rank", "decaying"])
def test_products_alone_are_as_accurate_as_householders(kind, d):
    """Cholesky QR, which runs where there is no CPU: orthogonal, and its columns Householder's but for their signs, whatever
    the eigenvalues; C + ε as :func:`renewed` has it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, d, 4 * d if kind == "full" else 3, generator=generator, dtype=torch.float64)
    if kind == "decaying":
        x = torch.linalg.qr(torch.randn(2, d, d, generator=generator, dtype=torch.float64)).Q
        x = x * torch.logspace(0, -3, d, dtype=torch.float64)
    c = x @ x.mT
    c = c / c.abs().amax() + 2.0**-24 * torch.eye(d, dtype=torch.float64)
    y = c @ torch.linalg.qr(torch.randn(2, d, d, generator=generator, dtype=torch.float64)).Q
    got, want = orthonormal(y), torch.linalg.qr(y).Q
    assert (got.mT @ got - torch.eye(d, dtype=torch.float64)).abs().max() < 1e-12
    assert ((got * want).sum(1).abs() - 1).abs().max() < 1e-5


@pytest.mark.parametrize("scale", [1e-28, 1e-18, 1e18, 1e28])
def test_bases_do_not_depend_on_the_size_of_gradients(scale):
    """The squares of Gram matrices, which are squares themselves, would leave float32."""
    generator = torch.Generator().manual_seed(0)
    c = gram(torch.randn(2, 5, 40, 1, 1, generator=generator))
    q = first_basis(gram(torch.randn(2, 5, 40, 1, 1, generator=generator)))
    assert torch.allclose(renewed(c * scale, q), renewed(c, q), atol=1e-5)


@pytest.mark.parametrize("size", ["rms", "schatten"])
def test_one_gradient_a_million_million_times_larger_is_survived(size):
    model = small_fno()
    optimizer = nm.MuSOAP(model, size=size)
    for seed in range(25):
        step(model, optimizer, seed, scale=1e12 if seed == 7 else 1)
    assert all(torch.isfinite(as_real(p)).all() for p in model.parameters())


@pytest.mark.parametrize("size", ["rms", "schatten"])
def test_gradients_a_million_million_times_smaller_than_before(size):
    """Without momentum they are as small beside second moments; an update whose fourth powers underflowed was 1e18."""
    model = small_fno()
    optimizer = nm.MuSOAP(model, lr=0.05, momentum=0.0, size=size, period=1, base_depth=None)
    for seed in range(3):
        before = kernel_of(model).detach().clone()
        step(model, optimizer, seed, scale=1e12 if seed == 0 else 1)
        norms = norms_of(kernel_of(model) - before)
        assert norms.amin() > 0.03 and norms.amax() < 0.1


def test_layers_and_quadrants_have_bases_of_their_own():
    """A joint kernel holds several; each has its own basis, which all its modes share."""
    case = BY_NAME["legacy_joint"]
    model = nm.parametrize(case.build(), base=case.base)
    optimizer = nm.MuSOAP(model, period=1)
    train(case, model, optimizer, steps=1)
    name, p = next((n, p) for n, p in model.named_parameters() if nm.summary(model)[n].role == "spectral")
    layers, n_in = p.shape[:2]
    state = optimizer.state[p]
    assert state["basis_1"].shape == (layers, n_in, n_in)
    for layer in range(layers):
        g = torch.view_as_complex(p.grad[layer])
        c = torch.einsum("io...,zo...->iz", g, g.conj()).real
        q = state["basis_1"][layer]
        diagonal = q.mT @ c @ q
        assert (diagonal - torch.diag(diagonal.diagonal())).abs().max() < 1e-4 * c.abs().max()


class Kernels(nn.Module):
    """Two kernels of as many inputs, outputs and modes, whose tensors have their axes in another order."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(4, 5, 6, dtype=torch.cfloat) / 4)
        self.last = nn.Parameter(self.first.detach().permute(2, 1, 0).clone())


AXES = ("in", "out", "modes_single")
nm.register_layer(
    Kernels,
    {"first": nm.Param("spectral", AXES, init=lambda s: 0.5), "last": nm.Param("spectral", AXES[::-1], init=lambda s: 0.5)},
)


def test_kernels_whose_axes_come_in_another_order():
    """They were put into one batch as if they were stored alike, which raised once momentum had moved."""
    model = nm.parametrize(Kernels(), base=Kernels, rule="none", init=False)
    before = copy.deepcopy(model)
    optimizer = nm.MuSOAP(model)
    for seed in range(3):
        random_gradients(model, seed)
        model.last.grad = model.first.grad.permute(2, 1, 0).clone()
        optimizer.step()
    torch.testing.assert_close(model.last, model.first.permute(2, 1, 0))
    assert differing(model, before) == 2


def test_axes_beyond_the_limit_keep_their_own_coordinates(monkeypatch):
    monkeypatch.setattr(soap, "MAX_BASIS", 8)
    model = small_fno(width=12)
    optimizer = nm.MuSOAP(model)
    step(model, optimizer)
    assert not any(key.startswith("basis") for key in optimizer.state[kernel_of(model)])
    assert any(key.startswith("basis") for state in optimizer.state.values() for key in state)  # channel MLPs are narrower


# ------------------------------------------------------------------------------------------------ memory and states


def test_settings_come_with_the_state_as_in_torch_and_what_does_not_fit_is_refused():
    model = small_fno()
    one, other = nm.MuSOAP(model, refresh=3), nm.MuSOAP(model, refresh=10)
    step(model, one)
    other.load_state_dict(one.state_dict())
    assert {g["refresh"] for g in other.param_groups} == {3}
    state = copy.deepcopy(one.state_dict())
    del next(entry for entry in state["state"].values() if "basis_0" in entry)["basis_0"]
    with pytest.raises(nm.MupError, match="other averages"):
        other.load_state_dict(state)
    state = one.state_dict()
    state["param_groups"][0]["size"] = "adam"  # which it had before it was released
    with pytest.raises(nm.MupError, match="saved with size='adam'"):
        other.load_state_dict(state)
    other.load_state_dict(one.state_dict())  # a second time, which torch's own names among the defaults once refused


def assert_goes_on_alike(model, optimizer, resumed, other):
    """Load one into the other: the next step of both is the same, bit for bit."""
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    resumed.load_state_dict(model.state_dict())
    step(model, optimizer, seed=12)
    step(resumed, other, seed=12)
    assert differing(model, resumed) == 0


@pytest.mark.parametrize("size", ["rms", "schatten"])
def test_bases_of_half_precision_stay_in_single_when_loaded(size):
    """torch casts states to their parameters' type: a run that was resumed went on with other bases."""

    def build():
        model = small_fno()
        for p in model.parameters():
            if not p.is_complex():
                p.data = p.data.bfloat16()
        return model

    model, resumed = build(), build()
    optimizer, other = nm.MuSOAP(model, size=size), nm.MuSOAP(resumed)
    for seed in range(12):
        step(model, optimizer, seed)
    assert_goes_on_alike(model, optimizer, resumed, other)


def test_a_state_that_is_empty_for_some_parameters():
    """``optimizer.state[p]`` makes an empty one of a parameter that has not moved, and it was refused when loaded."""
    model = small_fno()
    random_gradients(model)
    frozen = kernel_of(model)
    frozen.grad = None
    optimizer, other = nm.MuSOAP(model), nm.MuSOAP(copied := copy.deepcopy(model))
    optimizer.step()
    assert not optimizer.state[frozen]
    assert_goes_on_alike(model, optimizer, copied, other)


def test_compiled_step():
    """torch.compile takes the step, and leaves the update as it is; it raised in the middle of the first one."""
    ours, theirs = small_fno(width=4), small_fno(width=4)
    eager, compiled = nm.MuSOAP(ours), nm.MuSOAP(theirs)
    torch.compiler.reset()
    take = torch.compile(compiled.step, backend="aot_eager")
    for seed in range(3):
        step(ours, eager, seed)
        random_gradients(theirs, seed)
        take()
    assert differing(ours, theirs) == 0 and differing(ours, small_fno(width=4)) > 0
