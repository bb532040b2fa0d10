"""The shaped network against autograd, and its kernels against the stochastic differential equations."""

import itertools
import math

import pytest
import torch

import neuralop_mup as nm
from neuralop_mup.contrib.proportional_limit import _moments
from support.errors import refused

X = torch.tensor([[1.0, -1.0, 2.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
GRAM = X @ X.T / 4  # 1.5, 0.5 and 1


def network(width=6, depth=4, seed=0, **shape):
    torch.manual_seed(seed)
    return nm.ShapedMLP(4, width, depth, **shape).double()


def test_network_follows_the_formulas():
    """Width 4, c₊ = 2 and c₋ = −2: s₊ = 2, s₋ = 0, c = 2 / 4, and √c φ_s(h) = √2 max(h, 0)."""
    model, x = network(width=4, depth=2, c_plus=2.0, c_minus=-2.0), X.double()
    first, second, last = model.weights
    h1 = x @ first.T / 2
    h2 = math.sqrt(2) * h1.clamp(min=0) @ second.T / 2
    torch.testing.assert_close(model(x), (h2 @ last.T / 2).squeeze(1))


def test_activation_keeps_the_mean_square():
    h = torch.randn(400_000, generator=torch.Generator().manual_seed(0))
    assert network(width=4, c_plus=1.0, c_minus=-3.0).activation(h).square().mean() == pytest.approx(1, rel=0.01)


def test_kernels_against_jacobians():
    """The tangent kernel is Σ_l G_{l+1} Φ_l (section 2). Q^{αα} is f^α at every layer, since the network is homogeneous."""
    model, x = network(c_plus=1.0), X.double()
    kernels = model.kernels(x)
    assert kernels.forward.shape == kernels.backward.shape == kernels.mixed.shape == (5, 2, 2)
    rows = []
    for sample in x:
        gradients = torch.autograd.grad(model(sample[None]).sum(), list(model.weights))
        rows.append(torch.cat([g.ravel() for g in gradients]))
    jacobian = torch.stack(rows)
    torch.testing.assert_close(kernels.tangent, jacobian @ jacobian.T / 5)
    torch.testing.assert_close(kernels.mixed.diagonal(dim1=1, dim2=2), model(x).expand(5, -1))
    torch.testing.assert_close(kernels.forward[0], GRAM.double())
    h2 = model.features(x)[1].detach()
    (g2,) = torch.autograd.grad(model.features(x)[-1][0], [model.weights[1]])  # ∂f/∂W_1 of the first sample
    features = model.activation(model.features(x)[0][0]) / math.sqrt(6)
    gradient = g2 @ features / features.square().sum()  # ∂f/∂h_2
    torch.testing.assert_close(kernels.mixed[1, :, 0], h2 @ gradient)


def test_moments_of_signs_against_samples():
    """S[α, γ, β, δ] = E u_α u_γ sgn u_β sgn u_δ, with repeated indices as well."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    u = torch.randn(200_000, 4, generator=generator, dtype=torch.float64) @ root.T
    found = _moments(root @ root.T)
    for a, c, b, d in itertools.product(range(3), repeat=4):
        samples = u[:, a] * u[:, c] * u[:, b].sign() * u[:, d].sign()
        assert abs(samples.mean() - found[a, c, b, d]) < 5 * samples.std() / 200_000**0.5


def mean_and_error(samples):
    return samples.mean(0), samples.std(0) / len(samples) ** 0.5


def test_moments_of_a_linear_network_are_known_exactly():
    """Without shape (c₊ = c₋) Φ is a matrix geometric Brownian motion.

    E Φ is constant, and E (Φ¹¹)² grows as e^{2τ}. With a = E Φ¹¹Φ²² and b = E (Φ¹²)², a' = 2 b and b' = a + b. Therefore
    a + 2 b grows as e^{2τ}, and a − b falls as e^{−τ}.
    """
    tau = 0.3
    generator = torch.Generator().manual_seed(0)
    phi = nm.simulate_kernels(GRAM, tau, 1.0, 1.0, paths=8000, steps=25, generator=generator).forward[-1]
    a0, b0 = 1.5, 0.25
    total, difference = (a0 + 2 * b0) * math.exp(2 * tau), (a0 - b0) * math.exp(-tau)
    exact = {
        "mean": (phi, GRAM.double()),
        "square": (phi[:, 0, 0].square(), torch.tensor(2.25 * math.exp(2 * tau))),
        "product": (phi[:, 0, 0] * phi[:, 1, 1], torch.tensor((total + 2 * difference) / 3)),
        "mixed": (phi[:, 0, 1].square(), torch.tensor((total - difference) / 3)),
    }
    for name, (samples, value) in exact.items():
        mean, error = mean_and_error(samples)
        assert ((mean - value).abs() < 4 * error + 0.01).all(), (name, mean, value, error)


def test_networks_have_the_moments_of_the_equations():
    """Φ, G and Q of 800 networks of width 48 and depth 12, against 3,000 paths. c± = ±1.5, so that each drift shows.

    Every mean agrees within four standard errors and 2 %, the size of corrections at this width. Without its drift, Q would
    miss by five standard errors: the last assertion.
    """
    ratio, shape = 0.25, (1.5, -1.5)
    torch.manual_seed(0)
    networks = [nm.ShapedMLP(4, 48, 12, *shape).kernels(X) for _ in range(800)]
    phi, g, q = (torch.stack(each, 1) for each in zip(*networks, strict=True))
    equations = nm.simulate_kernels(GRAM, ratio, *shape, paths=3000, steps=16, generator=torch.Generator().manual_seed(1))

    def moments(phi, g, q):
        change = q[0] - q[-1]
        return {
            "Φ": phi[-1],
            "Φ²": phi[-1].square(),
            "G": g[0],
            "G²": g[0].square(),
            "Q²": q[0].square(),
            "change of Q": change.square(),
            "drift of Q": change * q[-1],
            "GΦ": (g * phi).mean(0),
        }

    ours, theirs = moments(phi, g, q), moments(*equations)
    for name, samples in ours.items():
        (mean, error), (expected, other) = mean_and_error(samples), mean_and_error(theirs[name])
        assert ((mean - expected).abs() <= 4 * (error**2 + other**2).sqrt() + 0.02 * expected.abs() + 1e-6).all(), name
    mean, error = mean_and_error(ours["drift of Q"])
    assert mean[0, 1] < -5 * error[0, 1]


def test_the_learning_rate_per_depth_keeps_the_change_of_the_output():
    """One step of gradient descent on the loss −f at η = η₀ / d. The mean change over η₀ is E Σ G Φ / d ≈ Φ_0 = 1.5."""

    def change(width, depth):
        changes = []
        for _ in range(150):
            model = nm.ShapedMLP(4, width, depth, 0.5, -0.5)
            before = model(X[:1])
            torch.autograd.backward(-before)
            with torch.no_grad():
                torch.optim.SGD(model.parameters(), lr=model.lr(1e-3)).step()
                changes.append((model(X[:1]) - before).item() / 1e-3)
        return mean_and_error(torch.tensor(changes))

    torch.manual_seed(0)
    for width, depth in ((16, 4), (64, 16)):
        mean, error = change(width, depth)
        assert abs(mean - 1.5 * (depth + 1) / depth) < 4 * error and error < 0.15


def test_wrong_input():
    with refused("ratio -1"):
        nm.simulate_kernels(GRAM, -1)
    with refused("depth 0"):
        nm.ShapedMLP(4, 8, 0)
