"""Kernels over depth, against autograd's own Jacobians and against inner products worked out by hand."""

import copy

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from support.cases import BY_NAME
from support.models import in_double

# Grids on which modes are fewer than the grid's, all of them (the last is its own conjugate), and 2D, odd mode numbers too.
LAYOUTS = {
    "1d": ((6,), (16,), {}),
    "all modes": ((16,), (16,), {}),
    "odd modes": ((5,), (15,), {}),
    "2d": ((4, 6), (8, 10), {}),
    "2d odd modes": ((5, 5), (8, 9), {}),
    "2d all modes": ((8, 8), (8, 8), {}),
    "3d": ((4, 2, 4), (6, 4, 6), {}),
    "separable": ((4, 4), (8, 8), {"separable": True}),
    "tucker": ((4, 4), (8, 8), {"factorization": "tucker", "implementation": "reconstructed"}),
    "growing": ((4, 4), (8, 8), {"max_n_modes": (8, 8)}),
}


def model_of(n_modes, **kwargs):
    torch.manual_seed(0)
    return in_double(FNO(n_modes, 2, 3, 6, **{"n_layers": 3, **kwargs}))


def batch_of(grid, samples=3):
    return torch.randn(samples, 2, *grid, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(("n_modes", "grid", "kwargs"), LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("norm", ["forward", "backward", "ortho"])
def test_tangent_kernel_is_the_exact_one(n_modes, grid, kwargs, norm, monkeypatch):
    """Θ = ⟨∂f^α/∂R, ∂f^β/∂R⟩ over real and imaginary parts, by one backward pass a sample, in float64."""
    monkeypatch.setattr(torch, "cfloat", torch.complex128)  # neuralop's convolution asks for it whatever its weights are
    model, x = model_of(n_modes, **kwargs), batch_of(grid)
    kernels_of = {}
    for i, conv in enumerate(model.fno_blocks.convs):
        conv.fft_norm = norm
        if "factorization" in kwargs:  # Θ is of the kernel that factors make: put that one in their place
            whole = torch.nn.Parameter(conv.weight.to_tensor().detach())
            conv.weight.forward = conv.weight.to_tensor = lambda whole=whole: whole
            monkeypatch.setattr(type(conv.weight), "__getitem__", lambda self, index: self.to_tensor()[index])
            conv._contract = lambda x, w, separable=False: torch.einsum("bixy,ioxy->boxy", x, w)
            kernels_of[f"fno_blocks.convs.{i}"] = whole
        else:
            kernels_of[f"fno_blocks.convs.{i}"] = conv.weight.tensor
    rows = []
    for sample in x:
        f = model(sample[None]).mean()
        rows.append([torch.view_as_real(g).flatten() for g in torch.autograd.grad(f, list(kernels_of.values()))])
    tangent = nm.kernels(model, x).tangent
    assert list(tangent) == list(kernels_of)
    for value, *columns in zip(tangent.values(), *rows, strict=True):
        jacobian = torch.stack(columns)
        torch.testing.assert_close(value, jacobian @ jacobian.T, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("n_modes", "grid"), [((6,), (16,)), ((4, 6), (8, 10))])
def test_forward_backward_and_mixed_kernels(n_modes, grid, monkeypatch):
    """Φ from the features that enter a layer, Q and G from what the output does when something is added to what leaves it.

    Add ε s^α to what leaves the layer for sample β: f^β moves by ε Q^{αβ}. Add ε e, one entry: by ε g^β(e), and
    G^{αβ} = CN Σ g^α g^β, which for 6 channels on 16 points is 96 Σ g^α g^β.
    """
    monkeypatch.setattr(torch, "cfloat", torch.complex128)
    model, x = model_of(n_modes), batch_of(grid)
    found = nm.kernels(model, x)
    conv = model.fno_blocks.convs[1]
    seen = []
    with conv.register_forward_hook(lambda module, args, out: seen.append((args[0].detach(), out.detach()))):
        model(x)
    v, s = seen[0]
    width = v[0].numel()
    assert width == 6 * torch.Size(grid).numel()
    name = "fno_blocks.convs.1"
    phi = torch.stack([torch.stack([(a * b).mean() for b in v]) for a in v])
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


def test_the_model_is_left_as_it_is():
    model = FNO((6,), 2, 3, 6, n_layers=2, norm="batch_norm").train()
    model.projection.eval()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before, state = copy.deepcopy(model), torch.random.get_rng_state()
    nm.kernels(model, {"x": batch_of((16,)).float(), "y": None})
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert all(map(torch.equal, model.buffers(), before.buffers())) and all((p.grad == 1).all() for p in model.parameters())
    assert torch.equal(state, torch.random.get_rng_state()) and not model.fno_blocks.convs[0]._forward_hooks


def test_a_frozen_model_has_the_same_kernels():
    model, x = model_of((6,)), batch_of((16,))
    expected = nm.kernels(model, x)
    torch.testing.assert_close(nm.kernels(model.requires_grad_(False), x).mixed, expected.mixed)


def test_change_is_relative():
    model, x = model_of((6,)), batch_of((16,))
    before = nm.kernels(model, x)
    assert {r["value"] for r in before.change(before)} == {0.0}
    with torch.no_grad():  # the lifting's last layer is linear: twice the features, four times Φ of the first layer
        for p in model.lifting.fcs[-1].parameters():
            p.mul_(2)
    changes = {(r["layer"], r["kernel"]): r["value"] for r in nm.kernels(model, x).change(before)}
    assert len(changes) == 9
    assert changes["fno_blocks.convs.0", "forward"] == pytest.approx(3, rel=1e-6)


def shared_layers():
    model = model_of((6,))
    model.fno_blocks.convs[1] = model.fno_blocks.convs[0]
    return model


def of_case(name, output=lambda y: y.flatten(1).mean(1)):
    case = BY_NAME[name]
    return nm.kernels(case.build(), case.batch()[0], output=output)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: of_case("fnogno"), r"has 1 row.* and the output is 15 numbers.* so the rows are not the samples"),
        (lambda: of_case("codano"), "has 96 row.* so the rows are not the samples"),
        # Its first model is trained before, without gradients.
        (lambda: of_case("uqno", lambda y: y[1].flatten(1).mean(1)), "not follow from 'base_model.fno_blocks.convs.0'"),
        (lambda: nm.kernels(shared_layers(), batch_of((16,))), r"'fno_blocks.convs.0' of this FNO is called 2 times"),
        (lambda: of_output(lambda y: y.detach().flatten(1).mean(1)), "What output gives has no gradient"),
        (lambda: of_output(torch.mean), r"output gives \(\): give an output=.* to one real number a sample"),
        (lambda: nm.kernels(model_of((6,)), [1, 2]), "is a list"),
        (  # the others are known
            lambda: nm.kernels(model_of((4, 4)), batch_of((9, 8))).tangent,
            r"tangent kernel of 'fno_blocks.convs.0' is not known: .* even grid",
        ),
        (lambda: nm.kernels(torch.nn.Linear(2, 2), torch.ones(3, 2)), "has no Fourier layer"),
    ],
)
def test_what_has_no_kernels_is_told(call, told):
    with pytest.raises(nm.MupError, match=told):
        call()


def of_output(output):
    return nm.kernels(model_of((6,)), batch_of((16,)), output=output)


def test_a_model_of_several_inputs_has_kernels_of_its_samples():
    assert {k.shape for k in of_case("gino").forward.values()} == {(2, 2)}
