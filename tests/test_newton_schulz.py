"""Polar factors by polynomials, against exact decompositions in double precision."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from blocks import blocks, wide, with_values
from neuralop_mup.optim.matrix import newton_schulz
from neuralop_mup.optim.matrix.newton_schulz import BAND, FLOOR, STEPS

SHAPES = [(1, 1), (1, 5), (6, 1), (2, 2), (3, 7), (7, 3), (16, 16), (24, 40)]
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]


def orthogonalize(x, **settings):
    """Of blocks (batch, m, n), complex ones whole, of any side."""
    if x.shape[1] > x.shape[2]:
        return orthogonalize(x.mT, **settings).mT
    parts = torch.view_as_real(x.resolve_conj()).movedim(-1, 1) if x.is_complex() else x.unsqueeze(1)
    parts = parts.clone(memory_format=torch.contiguous_format)
    newton_schulz.orthogonalize(parts, **settings)
    return torch.view_as_complex(parts.movedim(1, -1).contiguous()) if x.is_complex() else parts[:, 0]


def value(step, x):
    """One polynomial on numbers."""
    powers = [x**2, x**4]
    for shifts in step.shifts:
        powers.append((powers[-1] + sum(by * power for by, power in zip(shifts, powers[-2::-1], strict=True))) ** 2)
    return x * (step.k[0] + sum(k * power for k, power in zip(step.k[1:], powers, strict=True)))


def deviation(step, low, high):
    """From 1, the most that the polynomial has between the two."""
    return (value(step, torch.linspace(low, high, 100_001, dtype=torch.float64)) - 1).abs().max().item()


def composed(x):
    """The polynomials on numbers, one after the other."""
    for step in STEPS:
        x = value(step, x)
    return x


# ----------------------------------------------------------------------------------------------- the polynomials


@pytest.mark.parametrize(("index", "degree", "beyond_best"), [(0, 9, 1.001), (1, 17, 1.04)])
def test_coefficients_are_the_best_of_their_degree(index, degree, beyond_best):
    """Least deviation from 1 on what is left to do, as a linear program; that of 17 has one coefficient too few for it."""
    low, high = FLOOR, 1.0
    for step in STEPS[:index]:
        reached = deviation(step, low, high)
        low, high = 1 - reached, 1 + reached
    x = np.unique(np.concatenate([np.geomspace(low, high, 800), np.linspace(low, high, 800)])) / high
    odd = np.polynomial.chebyshev.chebvander(x, degree)[:, 1::2]
    ones = np.ones((len(x), 1))
    best = linprog(
        [0.0] * odd.shape[1] + [1.0],
        A_ub=np.block([[odd, -ones], [-odd, -ones]]),
        b_ub=np.concatenate([ones, -ones]).ravel(),
        bounds=[(None, None)] * odd.shape[1] + [(0, None)],
    ).fun
    reached = deviation(STEPS[index], low, high)
    assert best * (1 - 1e-3) <= reached <= best * beyond_best
    if index + 1 == len(STEPS):
        assert 0.99 * BAND < reached < BAND


def test_small_values_are_raised_but_never_beyond_the_band():
    x = torch.linspace(0, FLOOR, 10_001, dtype=torch.float64)
    y = composed(x)
    assert (y[1:] > x[1:]).all() and y.max() <= 1 + BAND
    assert y[1] / x[1] == pytest.approx(math.prod(step.k[0] for step in STEPS), rel=1e-4)


# ------------------------------------------------------------------------------------------------ orthogonalization


@pytest.mark.parametrize("damping", [0.0, 0.7])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_polar_factor_against_exact_decomposition(shape, dtype, damping):
    """U p(Σ) V^H with the exact U, Σ, V in double precision: to rounding; and singular values in the band.

    With damping U (p(Σ) − 0.7 Σ / bound) V^H, at the root mean square of p(Σ); blocks of one direction are left as they are.
    """
    x = blocks(*shape, dtype)
    u, s, vh = torch.linalg.svd(wide(x), full_matrices=False)
    bound = s.pow(8).sum(-1, keepdim=True) ** 0.125
    values = torch.ones_like(s)
    if min(shape) > 1:
        plain = composed(s / bound)
        values = plain - damping * s / bound
        values = values * plain.norm(dim=-1, keepdim=True) / values.norm(dim=-1, keepdim=True)
    got = orthogonalize(x, damping=damping)
    assert got.dtype == dtype and got.shape == x.shape
    tolerance = 1e-2 if wide(x).dtype != dtype else 1e-10
    assert (wide(got) - (u * values[:, None, :]) @ vh).abs().max() < tolerance
    if not damping:
        reached = torch.linalg.svdvals(wide(got))[s / bound >= FLOOR]
        assert (reached - 1).abs().max() <= BAND + tolerance
    assert (orthogonalize(torch.zeros_like(x), damping=damping) == 0).all()


@pytest.mark.parametrize("n", [2, 8, 64])
def test_norms_of_random_blocks_after_damping(n):
    """Weak directions take what strong ones lose, so the norm is above the 1.2 of no damping (docs/explain/updates.md)."""
    x = torch.randn(8, n, n, dtype=torch.complex128, generator=torch.Generator().manual_seed(n))
    plain, damped = (torch.linalg.matrix_norm(orthogonalize(x, damping=d), 2) for d in (0.0, 0.7))
    assert plain.max() < 1 + BAND + 1e-6
    assert 1.3 < damped.mean() < 1.65


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("values", [[1.0], [1.0, 1.0], [1, 1e-2, 1e-4], [1, 1e-6, 1e-12], [1, 0.5, 0, 0]], ids=str)
def test_rank_deficient_and_ill_conditioned_blocks(values, dtype):
    """The largest singular value always reaches the band, the others stay below it and what is missing stays missing."""
    got = torch.linalg.svdvals(wide(orthogonalize(with_values(values, 8, 8, dtype))))[0]
    assert abs(got[0] - 1) <= BAND + 2e-3
    assert (got[sum(v > 0 for v in values) :] < 1e-4).all()
    assert (got <= 1 + BAND + 2e-3).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (5, 5), (3, 6)], ids=str)
def test_scale_does_not_matter(shape, dtype):
    x = blocks(*shape, dtype)
    expected = orthogonalize(x)
    for scale in (1e-37, 1e-30, 1e-10, 1e10, 1e30):
        assert torch.allclose(orthogonalize(x * scale), expected, atol=1e-2)
    x[2] = 0
    got = orthogonalize(x)
    assert (got[2] == 0).all() and torch.equal(got[[0, 1, 3, 4]], expected[[0, 1, 3, 4]])


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.booleans(), st.integers(0, 99))
def test_equivariant_under_rotations(m, n, is_complex, seed):
    """orthogonalize(U X V) = U orthogonalize(X) V for unitary U, V; and so for the adjoint."""
    dtype = torch.complex128 if is_complex else torch.float64
    x = blocks(m, n, dtype, 2, seed)
    u, v = (torch.linalg.qr(blocks(k, k, dtype, 1, seed + 1))[0] for k in (m, n))
    assert (orthogonalize(u @ x @ v) - u @ orthogonalize(x) @ v).abs().max() < 1e-9
    assert (orthogonalize(x.mH) - orthogonalize(x).mH).abs().max() < 1e-9
