r"""A fully connected network at proportional depth and width, and the stochastic differential equations of its kernels.

A network of depth d and width n with shaped leaky ReLU (section 1 of the source), for samples x in :math:`\mathbb R^{n_0}`:

.. math:: h_1 = \tfrac{1}{\sqrt{n_0}} W_0 x,\qquad h_{l+1} = \sqrt{\tfrac cn}\, W_l\, \phi_s(h_l),\qquad
   f = \tfrac{1}{\sqrt n} W_d h_d,

.. math:: \phi_s(x) = s_+ \max(x, 0) + s_- \min(x, 0),\qquad s_\pm = 1 + \tfrac{c_\pm}{\sqrt n},\qquad
   c^{-1} = \mathbb E\,\phi_s(w)^2 = \tfrac12 (s_+^2 + s_-^2),

with standard normal weights. Its kernels between samples α and β are

.. math:: \Phi_l^{\alpha\beta} = \tfrac cn \langle \phi_s(h_l^\alpha), \phi_s(h_l^\beta)\rangle,\qquad
   G_l^{\alpha\beta} = \langle \partial_{h_l} f^\alpha, \partial_{h_l} f^\beta\rangle,\qquad
   Q_l^{\alpha\beta} = \langle h_l^\alpha, \partial_{h_l} f^\beta\rangle .

In the limit :math:`n, d \to \infty` with :math:`d/n = \bar\tau` and :math:`\tau = l/n` they solve stochastic differential
equations. With :math:`\kappa = (c_+ - c_-)^2/4`, :math:`u \sim N(0, \Phi_\tau)` and
:math:`S^{\alpha\gamma\beta\delta} = \mathbb E\, u_\alpha u_\gamma \operatorname{sgn} u_\beta \operatorname{sgn} u_\delta`:

.. math:: d\Phi^{\alpha\beta} = \kappa\,(S^{\alpha\beta\alpha\beta} - \Phi^{\alpha\beta})\, d\tau + dM^\Phi,
   \qquad d[M^\Phi_{\alpha\beta}, M^\Phi_{\gamma\delta}] =
   (\Phi^{\alpha\gamma}\Phi^{\beta\delta} + \Phi^{\alpha\delta}\Phi^{\beta\gamma})\, d\tau .

Then :math:`f \sim N(0, \Phi_{\bar\tau})`, and G and Q start at :math:`\tau = \bar\tau` with :math:`G^{\alpha\beta} = 1` and
:math:`Q^{\alpha\beta} = f^\alpha`. Backward in depth, with :math:`ds = -d\tau` and m samples:

.. math:: dG = \bigl(Q^{\mathsf T}\Phi^{-1} Q - m\,G
   + \kappa\,(\tfrac2\pi \arcsin\rho - 1) \odot G\bigr)\, ds + dM^G,

.. math:: dQ^{\alpha\beta} = \kappa \sum_{\gamma\delta} (S^{\gamma\alpha\gamma\beta} - S^{\gamma\alpha\gamma\alpha})
   (\Phi^{-1})^{\gamma\delta} Q^{\delta\beta}\, ds + dM^Q .

:math:`M^G` has the covariance of :math:`M^\Phi` with G in place of Φ. :math:`M^Q` has
:math:`\kappa\, G^{\beta\delta}\,
(S^{\alpha\gamma\beta\delta} - S^{\alpha\gamma\beta\gamma} - S^{\alpha\gamma\alpha\delta} + S^{\alpha\gamma\alpha\gamma})`
between the entries αβ and γδ. The three are independent.

Sources: STAT 946, lecture 19 (Marty Mukherjee, 24 November 2025), sections 1 to 6, notes on Li, Noci, Hanin, "Feature
Learning in the Proportional Limit" (in progress). Li, Nica, Roy, "The Neural Covariance SDE", NeurIPS 2022,
arXiv:2206.02768, Theorem 3.2, for the equation of Φ. The notes leave the covariance of Q open, give Q no drift, and print
the drift of G with errors. We derived the forms above from the conditioning on layers that the notes describe. A test
compares them with simulated networks.
"""

import math
from typing import NamedTuple

import torch
from torch import nn

from neuralop_mup.validation import check_count, check_positive


class DepthKernels(NamedTuple):
    """Kernels along depth.

    Attributes
    ----------
    forward, backward, mixed : torch.Tensor
        Φ, G and Q, of shape (positions, samples, samples) for one network and (positions, paths, samples, samples) for
        simulated paths, in float64. Position l of a network holds Φ_l, G_{l+1} and Q_{l+1} for l = 0 … d, with Φ_0 the inner
        products of the inputs over n_0, G_{d+1} = 1 and Q_{d+1} = f.

    Examples
    --------
    >>> import torch
    >>> import neuralop_mup as nm
    >>> kernels = nm.ShapedMLP(4, width=32, depth=16).kernels(torch.randn(3, 4))
    >>> kernels.forward.shape
    torch.Size([17, 3, 3])
    """

    forward: torch.Tensor
    backward: torch.Tensor
    mixed: torch.Tensor

    @property
    def tangent(self) -> torch.Tensor:
        r"""Mean of G Φ over depth: the neural tangent kernel divided by the number of weight matrices.

        It converges to :math:`\bar\tau^{-1} \int_0^{\bar\tau} G_\tau \Phi_\tau\, d\tau` (section 6.1 of the source).

        Returns
        -------
        torch.Tensor
            Shape (samples, samples), or (paths, samples, samples).

        Examples
        --------
        >>> kernels.tangent.shape
        torch.Size([3, 3])
        """
        return (self.forward * self.backward).mean(0)


class ShapedMLP(nn.Module):
    r"""Fully connected network with shaped leaky ReLU, for widths and depths that grow in proportion.

    The module's docstring has the formulas (section 1 of the source). Under gradient descent on the sum of the samples'
    losses, the output changes by Θ(1) per unit of time at every depth if the learning rate is η = η₀ / d (section 2): see
    :meth:`lr`.

    Parameters
    ----------
    in_features : int
        n₀.
    width, depth : int
        n and d. The network has d + 1 weight matrices.
    c_plus, c_minus : float, default 0.0 and -1.0
        Shape of the activation. Equal values give a linear network.

    Examples
    --------
    >>> import torch
    >>> import neuralop_mup as nm
    >>> model = nm.ShapedMLP(4, width=32, depth=16)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=model.lr(0.1))
    >>> model(torch.randn(3, 4)).shape
    torch.Size([3])
    """

    def __init__(self, in_features: int, width: int, depth: int, c_plus: float = 0.0, c_minus: float = -1.0) -> None:
        super().__init__()
        check_count("depth", depth)
        self.depth = depth
        sizes = [(width, in_features), *[(width, width)] * (depth - 1), (1, width)]
        self.weights = nn.ParameterList(torch.randn(size) for size in sizes)
        self.slopes = tuple(1 + c / math.sqrt(width) for c in (c_plus, c_minus))

    def lr(self, base: float) -> float:
        """Return the learning rate η₀ / d.

        Parameters
        ----------
        base : float
            η₀, which transfers over depth and width.

        Returns
        -------
        float
            The learning rate of gradient descent.

        Examples
        --------
        >>> nm.ShapedMLP(4, width=32, depth=16).lr(0.8)
        0.05
        """
        return base / self.depth

    def activation(self, h: torch.Tensor) -> torch.Tensor:
        """Return √c φ_s(h).

        Parameters
        ----------
        h : torch.Tensor
            Features of any shape.

        Returns
        -------
        torch.Tensor
            The same shape. The mean square is kept for standard normal features.

        Examples
        --------
        >>> nm.ShapedMLP(4, 16, 4, c_plus=4.0, c_minus=-4.0).activation(torch.tensor([-1.0, 1.0]))
        tensor([0.0000, 1.4142])
        """
        above, below = self.slopes
        return math.sqrt(2 / (above**2 + below**2)) * (above * h.clamp(min=0) + below * h.clamp(max=0))

    def features(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return h_1, …, h_d and the output.

        Parameters
        ----------
        x : torch.Tensor
            Inputs, shape (samples, in_features).

        Returns
        -------
        list of torch.Tensor
            d tensors of shape (samples, width) and one of shape (samples, 1).

        Examples
        --------
        >>> len(nm.ShapedMLP(4, width=32, depth=16).features(torch.randn(3, 4)))
        17
        """
        first, *middle, last = self.weights
        found = [x @ first.T / math.sqrt(x.shape[1])]
        for weight in middle:
            found.append(self.activation(found[-1]) @ weight.T / math.sqrt(len(weight)))
        return [*found, found[-1] @ last.T / math.sqrt(last.shape[1])]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.features(x)[-1].squeeze(1)

    def kernels(self, x: torch.Tensor) -> DepthKernels:
        """Compute Φ, G and Q at every layer.

        Parameters
        ----------
        x : torch.Tensor
            Inputs, shape (samples, in_features).

        Returns
        -------
        DepthKernels
            d + 1 positions.

        Examples
        --------
        >>> nm.ShapedMLP(4, width=32, depth=16).kernels(torch.randn(3, 4)).mixed.shape
        torch.Size([17, 3, 3])
        """
        with torch.enable_grad():
            *features, f = self.features(x)
            gradients = torch.autograd.grad(f.sum(), features)
        h, g = (torch.stack(list(each)).detach().double() for each in (features, gradients))
        a = torch.cat([self.activation(h[:-1]), h[-1:]])  # the last layer has no activation
        phi = a @ a.mT / h.shape[-1]
        f = f.detach().double().expand(1, -1, len(x))
        return DepthKernels(
            forward=torch.cat([(x @ x.T / x.shape[1]).double()[None], phi]),
            backward=torch.cat([g @ g.mT, torch.ones_like(f)]),
            mixed=torch.cat([h @ g.mT, f]),
        )


def simulate_kernels(
    gram: torch.Tensor,
    ratio: float,
    c_plus: float = 0.0,
    c_minus: float = -1.0,
    *,
    paths: int = 1000,
    steps: int = 100,
    generator: torch.Generator | None = None,
) -> DepthKernels:
    r"""Simulate the stochastic differential equations of Φ, G and Q by Euler and Maruyama's method.

    The module's docstring has the equations.

    Parameters
    ----------
    gram : torch.Tensor
        Φ at τ = 0, of shape (samples, samples): the inner products of the inputs, over their number of features. It must
        have full rank.
    ratio : float
        :math:`\bar\tau`, depth over width.
    c_plus, c_minus : float, default 0.0 and -1.0
        Shape of the activation.
    paths, steps : int, default 1000 and 100
        Number of independent paths, and of steps in depth.
    generator : torch.Generator, optional
        Source of randomness.

    Returns
    -------
    DepthKernels
        Paths at τ = 0 (first position) to :math:`\bar\tau` (last position).

    Raises
    ------
    MupError
        If the ratio or a number is not positive.

    Examples
    --------
    The mean of Φ of a sample does not depend on depth, and its second moment is :math:`e^{2\tau}`:

    >>> import torch
    >>> import neuralop_mup as nm
    >>> kernels = nm.simulate_kernels(torch.ones(1, 1), 0.5, generator=torch.Generator().manual_seed(0))
    >>> kernels.forward.shape
    torch.Size([101, 1000, 1, 1])
    """
    check_positive("ratio", ratio)
    check_count("paths", paths)
    check_count("steps", steps)
    m, dt, kappa = len(gram), ratio / steps, (c_plus - c_minus) ** 2 / 4

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(paths, *shape, generator=generator, dtype=torch.float64)

    def noise(x: torch.Tensor) -> torch.Tensor:
        z, root = normal(m, m), _root(x)
        return root @ (z + z.mT) @ root * math.sqrt(dt / 2)

    phi = [gram.double().expand(paths, m, m)]
    for _ in range(steps):
        drift = kappa * (_moments(phi[-1]).diagonal(dim1=1, dim2=3).diagonal(dim1=1, dim2=2) - phi[-1])
        phi.append(phi[-1] + drift * dt + noise(phi[-1]))
    g = [torch.ones_like(phi[0])]
    q = [(_root(phi[-1]) @ normal(m, 1)).expand(paths, m, m)]
    for now in reversed(phi[1:]):
        s, solved = _moments(now), torch.linalg.solve(now, q[-1])
        signs = 2 / math.pi * _correlation(now).asin()
        drift = q[-1].mT @ solved + (kappa * (signs - 1) - m) * g[-1]
        g_next = g[-1] + drift * dt + noise(g[-1])
        # Products of (sgn u_β − sgn u_α) u_α with |u_γ| and with (sgn u_δ − sgn u_γ) u_γ.
        with_abs = torch.einsum("pcacb->pabc", s) - torch.einsum("pcaca->pac", s)[:, :, None]
        pairs = torch.einsum("pacbd->pabcd", s) - torch.einsum("pacbc->pabc", s)[..., None]
        pairs = pairs - pairs.diagonal(dim1=1, dim2=2).permute(0, 3, 1, 2)[:, :, None]
        root = _root((kappa * pairs * g[-1][:, None, :, None]).flatten(3).flatten(1, 2))
        drift = kappa * torch.einsum("pabc,pcb->pab", with_abs, solved)
        q.append(q[-1] + drift * dt + (root @ normal(m * m, 1)).view(paths, m, m) * math.sqrt(dt))
        g.append(g_next)
    return DepthKernels(torch.stack(phi), torch.stack(g[::-1]), torch.stack(q[::-1]))


def _root(x: torch.Tensor) -> torch.Tensor:
    """Return the symmetric root of a covariance. Rounding and steps of finite size make some eigenvalues negative."""
    values, vectors = torch.linalg.eigh(x)
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2) @ vectors.mT


def _correlation(phi: torch.Tensor) -> torch.Tensor:
    std = phi.diagonal(dim1=-2, dim2=-1).sqrt()
    return (phi / (std[..., :, None] * std[..., None, :])).clamp(-1, 1)


def _moments(phi: torch.Tensor) -> torch.Tensor:
    """Return S[α, γ, β, δ] = E u_α u_γ sgn u_β sgn u_δ for u ~ N(0, Φ), by Stein's lemma."""
    a = phi / phi.diagonal(dim1=-2, dim2=-1).sqrt()[..., None, :]
    a_b, a_d, c_b, c_d = a[..., None, :, None], a[..., None, None, :], a[..., None, :, :, None], a[..., None, :, None, :]
    rho = _correlation(phi)[..., None, None, :, :]
    root = (1 - rho**2).sqrt()
    # At ρ = ±1 the quotient vanishes.
    slopes = (a_b * c_d + a_d * c_b - rho * (a_b * c_b + a_d * c_d)) / root.clamp(min=1e-7) * (root > 1e-6)
    return 2 / math.pi * (phi[..., None, None] * rho.asin() + slopes)
