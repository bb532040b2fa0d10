r"""Compute the expected largest operator norm of many random blocks, for the rule ``operator-norm``.

At initialisation, a Fourier kernel is block-diagonal, with N independent blocks of p × q complex Gaussian numbers. If F(t)
is the probability that the norm of one block is below t,

    E max = ∫ (1 - F(t)^N) dt.

F is known exactly (Khatri 1964). The squared singular values are a determinantal point process, so

    F(t) = det(I - M(t)),    M_jk(t) = ∫_t^∞ φ_j φ_k,    j, k < p ≤ q,

where φ_k are the orthonormal Laguerre functions of x = t² for the weight x^(q-p) e^(-x), computed by their three-term
recurrence. The recurrence is stable near and beyond the largest zero, unlike Khatri's determinant of incomplete gamma
functions.

For blocks with more than ``_EXACT`` rows, the norm is √p + √q + w τ with w = (1/√p + 1/√q)^(1/3) / 2. The distribution of τ
does not depend on size (Tracy–Widom, β = 2; Johansson 2000, Johnstone 2001), so it is computed from blocks with ``_EXACT``
rows and the same aspect ratio.
"""

import math
from functools import lru_cache

import numpy as np

_EXACT = 32  # rows; for larger blocks, τ changes the norm by less than 0.1 %
_POINTS = 400  # points of the grid in t; halving the spacing changes results by less than 1e-4


@lru_cache(maxsize=1024)
def largest_norm(n_in: int, n_out: int, blocks: int) -> float:
    """Return the expected largest operator norm of N independent in × out blocks of complex Gaussians with E|w|² = 1.

    Parameters
    ----------
    n_in, n_out : int
        Shape of one block.
    blocks : int
        Number N of blocks.

    Returns
    -------
    float
        Expected norm. It is about √(ln N + γ) for one channel and large N, and slightly above √in + √out for many channels.

    References
    ----------
    Khatri, "Distribution of the largest or the smallest characteristic root under null hypothesis concerning complex
    multivariate normal populations", Ann. Math. Stat. 35, 1964; Johnstone, "On the distribution of the largest
    eigenvalue in principal components analysis", Ann. Stat. 29, 2001.
    """
    p, q = sorted((n_in, n_out))
    if p <= _EXACT:
        return _exact(p, q, blocks)
    same_aspect = q * _EXACT / p
    position = (_exact(_EXACT, same_aspect, blocks) - _edge(_EXACT, same_aspect)) / _spread(_EXACT, same_aspect)
    return _edge(p, q) + position * _spread(p, q)


def _edge(p: int, q: float) -> float:
    return math.sqrt(p) + math.sqrt(q)


def _spread(p: int, q: float) -> float:
    """Return w, the scale of one block's norm near its edge."""
    return (1 / math.sqrt(p) + 1 / math.sqrt(q)) ** (1 / 3) / 2


def _exact(p: int, q: float, blocks: int) -> float:
    t, log_below = _log_below(p, q, max(math.log(blocks), 21.0))  # the same grid for all usual N keeps E max monotonic in N
    above = -np.expm1(float(blocks) * log_below)  # NumPy 1 does not support integers above 64 bits, so convert to float
    return float(t[0] + (t[1] - t[0]) * (above.sum() - (above[0] + above[-1]) / 2))


@lru_cache(maxsize=256)
def _log_below(p: int, q: float, log_blocks: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid of t that covers the largest norm of e^log_blocks blocks, and the values of ln F on this grid."""
    # The left tail is negligible at 8 w below the edge. For the right tail, P(norm > edge + s) ≤ exp(-s²) (Davidson & Szarek
    # 2001).
    t = np.linspace(max(0.0, _edge(p, q) - 8 * _spread(p, q)), _edge(p, q) + math.sqrt(log_blocks + 20), _POINTS)
    functions = _laguerre_functions(p, q - p, np.maximum(t, 1e-12) ** 2) * np.sqrt(2 * t)[:, None]  # dx = 2t dt
    products = functions[:, :, None] * functions[:, None, :]
    pieces = (products[1:] + products[:-1]) * ((t[1] - t[0]) / 2)
    above = np.concatenate([np.cumsum(pieces[::-1], axis=0)[::-1], np.zeros_like(products[:1])])
    sign, log_det = np.linalg.slogdet(np.eye(p) - above)
    trace = np.trace(above, axis1=1, axis2=2)
    # If det is zero, its sign is determined by rounding errors. In the far tail, 1 - det equals the trace but is below the
    # rounding error of det.
    log_below = np.where(trace < 1e-6, -trace, np.where(sign > 0, np.minimum(log_det, 0), -np.inf))
    return t, np.maximum.accumulate(log_below)


def _laguerre_functions(count: int, alpha: float, x: np.ndarray) -> np.ndarray:
    """Return φ_k(x) = √(k! / Γ(k+α+1)) x^(α/2) e^(-x/2) L_k^α(x) for k < count, in columns."""
    before, now = np.zeros_like(x), np.exp((alpha * np.log(x) - x - math.lgamma(alpha + 1)) / 2)
    columns = [now]
    for k in range(count - 1):
        after = (2 * k + 1 + alpha - x) * now - math.sqrt(k * (k + alpha)) * before
        before, now = now, after / math.sqrt((k + 1) * (k + 1 + alpha))
        columns.append(now)
    return np.stack(columns, axis=1)
