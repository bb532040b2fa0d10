"""Kernels over depth against autograd's Jacobians and finite differences."""

import copy

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from support.errors import refused
from support.models import in_double

# Modes, grid, options of the FNO and norm of the transform. Odd numbers of modes; fewer modes than the grid has, or all of
# them, where the last is its own conjugate.
LAYOUTS = {
    "1d odd": ((5,), (15,), {}, "ortho"),
    "1d all modes": ((16,), (16,), {}, "backward"),
    "2d odd": ((5, 5), (8, 9), {}, "forward"),
    "2d all modes": ((8, 8), (8, 8), {}, "ortho"),
    "3d": ((4, 2, 4), (6, 4, 6), {}, "forward"),
    "separable": ((4, 4), (8, 8), {"separable": True}, "forward"),
    "growing": ((4, 4), (8, 8), {"max_n_modes": (8, 8)}, "forward"),
}


@pytest.fixture
def _complex_double(monkeypatch):
    monkeypatch.setattr(torch, "cfloat", torch.complex128)  # neuralop's convolution uses it whatever its weights are


def fno(n_modes=(6,), **kwargs):
    torch.manual_seed(0)
    return in_double(FNO(n_modes, 2, 3, 6, n_layers=3, **kwargs))


def batch_of(grid=(16,), samples=3):
    return torch.randn(samples, 2, *grid, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.usefixtures("_complex_double")
@pytest.mark.parametrize(("n_modes", "grid", "kwargs", "norm"), LAYOUTS.values(), ids=LAYOUTS)
def test_tangent_kernel_is_the_product_of_jacobians(n_modes, grid, kwargs, norm):
    """Θ = ⟨∂f^α/∂R, ∂f^β/∂R⟩ over real and imaginary parts, with one backward pass per sample, in float64."""
    model, x = fno(n_modes, **kwargs), batch_of(grid)
    for conv in model.fno_blocks.convs:
        conv.fft_norm = norm
    weights = [conv.weight.tensor for conv in model.fno_blocks.convs]
    rows = []
    for sample in x:
        gradients = torch.autograd.grad(model(sample[None]).mean(), weights)
        rows.append([torch.view_as_real(g).flatten() for g in gradients])
    tangent = nm.kernels(model, x).tangent
    assert list(tangent) == [f"fno_blocks.convs.{i}" for i in range(3)]
    for value, *columns in zip(tangent.values(), *rows, strict=True):
        jacobian = torch.stack(columns)
        torch.testing.assert_close(value, jacobian @ jacobian.T, rtol=1e-9, atol=0)


@pytest.mark.usefixtures("_complex_double")
@pytest.mark.parametrize(("n_modes", "grid"), [((6,), (16,)), ((2, 4), (4, 6))])
def test_forward_backward_and_mixed_kernels(n_modes, grid):
    """Φ from the features that enter a layer, Q and G from how the output changes when something is added to its features.

    Add ε s^α to the layer's output for sample β: f^β changes by ε Q^{αβ}. Add ε e, one entry: f^β changes by ε g^β(e), and
    G^{αβ} = CN Σ g^α g^β, which for 6 channels on 16 points is 96 Σ g^α g^β.
    """
    model, x, name = fno(n_modes), batch_of(grid), "fno_blocks.convs.1"
    found = nm.kernels(model, x)
    conv = model.get_submodule(name)
    seen = []
    with conv.register_forward_hook(lambda module, args, out: seen.append((args[0].detach(), out.detach()))):
        model(x)
    v, s = seen[0]
    width = v[0].numel()
    phi = torch.einsum("acx,bcx->ab", v.flatten(2), v.flatten(2)) / (6 * torch.Size(grid).numel())
    torch.testing.assert_close(found.forward[name], phi, rtol=1e-12, atol=0)

    def derivative(direction):
        values = []
        for eps in (1e-4, -1e-4):
            with torch.no_grad(), conv.register_forward_hook(lambda module, args, out, eps=eps: out + eps * direction):
                values.append(model(x).flatten(1).mean(1))
        return (values[0] - values[1]) / 2e-4

    mixed = torch.stack([derivative(sample[None].expand_as(s)) for sample in s])
    torch.testing.assert_close(found.mixed[name], mixed, rtol=1e-6, atol=1e-12)
    g = torch.stack([derivative(e.reshape(s[:1].shape).expand_as(s)) for e in torch.eye(width, dtype=s.dtype)], dim=1)
    torch.testing.assert_close(found.backward[name], width * g @ g.T, rtol=1e-6, atol=1e-12)


def test_the_model_is_left_unchanged():
    model = FNO((6,), 2, 3, 6, n_layers=2, norm="batch_norm").train()
    model.projection.eval()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before, state = copy.deepcopy(model), torch.random.get_rng_state()
    nm.kernels(model, {"x": batch_of().float(), "y": None})
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert all(map(torch.equal, model.buffers(), before.buffers())) and all((p.grad == 1).all() for p in model.parameters())
    assert torch.equal(state, torch.random.get_rng_state()) and not model.fno_blocks.convs[0]._forward_hooks


def test_change_is_relative():
    model, x = fno(), batch_of()
    before = nm.kernels(model, x)
    with torch.no_grad():  # the lifting's last layer is linear: twice the features, four times Φ of the first layer
        for p in model.lifting.fcs[-1].parameters():
            p.mul_(2)
    changes = {(r["layer"], r["kernel"]): r["value"] for r in nm.kernels(model, x).change(before)}
    assert changes["fno_blocks.convs.0", "forward"] == pytest.approx(3, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: nm.kernels(fno(), batch_of(), output=lambda y: y.detach().flatten(1).mean(1)), "output gradient"),
        (lambda: nm.kernels(fno(), batch_of(), output=torch.mean), "output=…"),
        (lambda: nm.kernels(fno(), [1, 2]), "list"),
        (lambda: nm.kernels(fno((4, 4)), batch_of((9, 8))).tangent, "'fno_blocks.convs.0' (9,8)"),  # Φ, G and Q are known
        (lambda: nm.kernels(torch.nn.Linear(2, 2), torch.ones(3, 2)), "Linear"),
    ],
)
def test_models_without_these_kernels(call, names):
    with refused(names):
        call()
