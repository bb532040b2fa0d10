r"""Expected largest operator norm of many random blocks, for the rule ``operator-norm``.

A Fourier kernel at initialisation is block-diagonal, with N independent blocks of p × q complex Gaussian numbers. With F(t)
the probability that one block's norm is below t,

    E max = ∫ (1 - F(t)^N) dt.

F is known exactly (Khatri 1964). The squared singular values are a determinantal point process, so

    F(t) = det(I - M(t)),    M_jk(t) = ∫_t^∞ φ_j φ_k,    j, k < p ≤ q,

with φ_k the orthonormal Laguerre functions of x = t² for the weight x^(q-p) e^(-x), by their three-term recurrence. Near the
largest zero and beyond it is stable, unlike Khatri's determinant of incomplete gamma functions.

With more than ``_EXACT`` rows, the norm is √p + √q + w τ with w = (1/√p + 1/√q)^(1/3) / 2. The distribution of τ does not
depend on size (Tracy–Widom, β = 2; Johansson 2000, Johnstone 2001), so blocks with ``_EXACT`` rows and the same aspect ratio
give it.
"""

import math
from functools import lru_cache

import numpy as np

_EXACT = 32  # rows; with more, the edge in units of w changes by less than 0.1 % of the norm
_POINTS = 400  # of the grid in t; half the spacing changes results by less than 1e-4


@lru_cache(maxsize=1024)
def largest_norm(n_in: int, n_out: int, blocks: int) -> float:
    """Return the expected operator norm of the largest of N independent in × out blocks of complex Gaussians, E|w|² = 1.

    Parameters
    ----------
    n_in, n_out : int
        Shape of one block.
    blocks : int
        Number N of blocks.

    Returns
    -------
    float
        Expected norm: about √(ln N + γ) at one channel and large N, slightly above √in + √out at many channels.

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
    t, log_below = _log_below(p, q, max(math.log(blocks), 21.0))  # one grid for all usual N keeps E max monotone in N
    above = -np.expm1(float(blocks) * log_below)  # float: NumPy 1 has no integers above 64 bits
    return float(t[0] + (t[1] - t[0]) * (above.sum() - (above[0] + above[-1]) / 2))


@lru_cache(maxsize=256)
def _log_below(p: int, q: float, log_blocks: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid of t, wide enough for the largest norm of e^log_blocks blocks, and ln F on it."""
    # Lower end: 8 w are below any left tail. Upper end: P(norm > edge + s) ≤ exp(-s²) (Davidson & Szarek 2001).
    t = np.linspace(max(0.0, _edge(p, q) - 8 * _spread(p, q)), _edge(p, q) + math.sqrt(log_blocks + 20), _POINTS)
    functions = _laguerre_functions(p, q - p, np.maximum(t, 1e-12) ** 2) * np.sqrt(2 * t)[:, None]  # dx = 2t dt
    products = functions[:, :, None] * functions[:, None, :]
    pieces = (products[1:] + products[:-1]) * ((t[1] - t[0]) / 2)
    above = np.concatenate([np.cumsum(pieces[::-1], axis=0)[::-1], np.zeros_like(products[:1])])
    sign, log_det = np.linalg.slogdet(np.eye(p) - above)
    trace = np.trace(above, axis1=1, axis2=2)
    # If det is zero, rounding decides its sign. In the far tail 1 - det is lost in rounding and equals the trace.
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
