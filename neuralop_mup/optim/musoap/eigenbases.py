"""Compute bases of channels, shared by all modes of a layer, as eigenvectors of running means of Gram matrices.

Bases are real. For real fields, mode −k has the conjugate block, so Σ_{±k} G_k G_k^H = 2 Re Σ_k G_k G_k^H. For complex
fields, real bases are a choice that halves the cost of a rotation.
"""

import torch

# This number times d is the rounding error of float32 sums of d numbers. Eigenvectors with smaller eigenvalues are
# arbitrary.
_ROUNDING = 2.0**-22


def first_basis(c: torch.Tensor) -> torch.Tensor:
    """Return the eigenvectors of Gram matrices (layers, d, d), sorted by decreasing eigenvalue."""
    return torch.linalg.eigh(c).eigenvectors.flip(-1)


def qr_iteration(c: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Perform one step of orthogonal iteration, orthonormal((C + ε) Q); return Q unchanged if C is zero.

    ε is the rounding error of float32. On a CPU, Householder QR takes a third of the time of :func:`orthonormal`. On other
    devices, :func:`orthonormal` needs no synchronization, so CUDA graphs can capture the step. With either method in
    float32, errors after 300 steps were 0.98 times those in float64 (Burgers, Korteweg–de Vries, Allen–Cahn, two seeds;
    individual runs range from 0.91 to 1.07).
    """
    scaled = c / c.abs().amax((1, 2), keepdim=True).clamp_min(torch.finfo(c.dtype).tiny)
    scaled.diagonal(dim1=1, dim2=2).add_(_ROUNDING * c.shape[-1])
    product = torch.bmm(scaled, q)
    new = torch.linalg.qr(product).Q if c.device.type == "cpu" else orthonormal(product)
    is_zero = (c == 0).all(2, keepdim=True).all(1, keepdim=True)
    return torch.where(is_zero, q, new)


def orthonormal(y: torch.Tensor) -> torch.Tensor:
    """Return the factor Q of the QR decomposition of ``y`` (layers, d, d), computed by Cholesky QR.

    Each round computes Yᵀ Y = L Lᵀ and Q = Y L^(−T). Two rounds with a small shift improve the condition number, and two
    more rounds give full accuracy. For the inputs of :func:`qr_iteration` in float32, this method is as accurate as
    Householder QR. Source: Fukaya et al., "Shifted Cholesky QR for computing the QR factorization of ill-conditioned
    matrices", 2020.
    """
    shift = _ROUNDING * y.shape[-1]
    for own in (shift, shift, 0.0, 0.0):
        y = y / torch.linalg.vector_norm(y, dim=1, keepdim=True)
        gram = torch.bmm(y.mT, y)
        gram.diagonal(dim1=1, dim2=2).add_(own)
        factor = torch.linalg.cholesky_ex(gram).L
        y = torch.linalg.solve_triangular(factor.mT, y, upper=True, left=False)
    return y
