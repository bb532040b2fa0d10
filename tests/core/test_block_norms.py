"""The largest norm of random blocks: against Khatri's determinant in 40 digits, simulation, and both limits."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuralop_mup.core.block_norms import largest_norm
from neuralop_mup.core.rules import Size, log_modes, operator_norm


def khatri(p, q, blocks):
    """The same by a determinant of incomplete gamma functions (Khatri 1964), which float64 cannot do beyond a few rows.

    P(norm² ≤ x) = det[γ(q-p+i+j-1, x)] / det[Γ(q-p+i+j-1)], i, j = 1 … p, and E max = ∫ (1 - P(t²)^N) dt.
    """

    def determinant(x):
        entries = [mpmath.gammainc(q - p + k + 1, 0, x) for k in range(2 * p - 1)]
        return mpmath.det(mpmath.matrix([[entries[i + j] for j in range(p)] for i in range(p)]))

    with mpmath.workdps(40):
        whole = determinant(mpmath.inf)
        ends = mpmath.linspace(0, math.sqrt(p) + math.sqrt(q) + 6, 9)
        return float(mpmath.quad(lambda t: 1 - (determinant(t**2) / whole) ** blocks, ends))


@pytest.mark.parametrize(("p", "q", "blocks"), [(1, 1, 12), (1, 4, 5), (2, 2, 8), (3, 5, 100)])
def test_against_khatri(p, q, blocks):
    assert largest_norm(p, q, blocks) == pytest.approx(khatri(p, q, blocks), rel=2e-4)


@pytest.mark.parametrize(
    ("p", "q", "blocks", "expected"),
    [
        (1, 1, 1, math.sqrt(math.pi) / 2),  # mean of a modulus whose square is exponential
        (1, 1, 2, math.sqrt(math.pi) / 2 * (2 - 0.5**0.5)),  # and of the larger of two: E a + E b - E min, min² of rate 2
        (4, 4, 64, 4.197421),  # Khatri's determinant, as above but slower
        (8, 8, 64, 5.849812),
    ],
)
def test_by_hand(p, q, blocks, expected):
    assert largest_norm(p, q, blocks) == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize(
    ("p", "q", "blocks"), [(1, 1, 100_000), (2, 2, 4096), (8, 8, 512), (4, 32, 64), (64, 64, 8), (128, 64, 8)]
)
def test_against_simulation(p, q, blocks):
    generator = torch.Generator().manual_seed(0)
    draws = [
        float(torch.linalg.matrix_norm(torch.randn(blocks, p, q, dtype=torch.complex64, generator=generator), 2).max())
        for _ in range(40)
    ]
    assert largest_norm(p, q, blocks) == pytest.approx(sum(draws) / len(draws), rel=0.02)


def test_one_channel():
    """√(ln N + γ): the square of a modulus is exponential, and the largest of N of those is ln N + γ in the mean."""
    for blocks, rel in ((8, 0.02), (1000, 0.005), (10**5, 0.002), (10**12, 0.001)):
        assert largest_norm(1, 1, blocks) == pytest.approx(math.sqrt(math.log(blocks) + 0.5772157), rel=rel)
    # So the rule tends to the paper's: κ = √(ln N_base / ln N), where γ and the variance are nothing beside ln N.
    for exponent, gap in ((3, 0.03), (12, 0.01), (60, 0.002)):
        sizes = [Size(1, 1, modes=(n,), blocks=n) for n in (10 ** (2 * exponent), 10**exponent)]
        assert operator_norm(*sizes) == pytest.approx(log_modes(*sizes), abs=gap)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 10**6), st.integers(1, 10**6))
def test_monotone_symmetric_and_within_the_bound(n_in, n_out, a, b):
    low, high = largest_norm(n_in, n_out, min(a, b)), largest_norm(n_in, n_out, max(a, b))
    assert low <= high and largest_norm(n_out, n_in, a) == largest_norm(n_in, n_out, a)
    assert high <= math.sqrt(n_in) + math.sqrt(n_out) + math.sqrt(2 * math.log(max(a, b)))
