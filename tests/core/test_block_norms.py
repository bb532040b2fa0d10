"""The largest norm of random blocks, against Khatri's determinant in 40 digits, simulations and limits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuralop_mup.core.block_norms import largest_norm
from neuralop_mup.core.rules import Size, log_modes, operator_norm


@pytest.mark.parametrize(
    ("p", "q", "blocks", "expected"),
    [
        (1, 1, 1, math.sqrt(math.pi) / 2),  # mean of a modulus whose square is exponential
        (1, 1, 2, math.sqrt(math.pi) / 2 * (2 - 0.5**0.5)),  # the larger of two: E a + E b - E min, min² of rate 2
        # By Khatri (1964): P(norm² ≤ x) = det[γ(q-p+i+j-1, x)] / det[Γ(q-p+i+j-1)], i, j = 1 … p, with incomplete gamma
        # functions in mpmath's 40 digits, and E max = ∫ (1 - P(t²)^blocks) dt.
        (1, 4, 5, 2.527648),
        (2, 2, 8, 2.514003),
        (3, 5, 100, 4.249788),
        (4, 4, 64, 4.197421),
        (8, 8, 64, 5.849812),
    ],
)
def test_against_exact_numbers(p, q, blocks, expected):
    assert largest_norm(p, q, blocks) == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize(("p", "q", "blocks"), [(2, 2, 4096), (8, 8, 512), (4, 32, 64), (64, 64, 8), (128, 64, 8)])
def test_against_simulation(p, q, blocks):
    generator = torch.Generator().manual_seed(0)
    draws = [
        float(torch.linalg.matrix_norm(torch.randn(blocks, p, q, dtype=torch.complex64, generator=generator), 2).max())
        for _ in range(40)
    ]
    assert largest_norm(p, q, blocks) == pytest.approx(sum(draws) / len(draws), rel=0.02)


@pytest.mark.parametrize(("blocks", "rel"), [(8, 0.02), (1000, 0.005), (10**5, 0.002), (10**12, 0.001)])
def test_one_channel(blocks, rel):
    """√(ln N + γ): the square of a modulus is exponential, and the mean of the largest of N is ln N + γ."""
    assert largest_norm(1, 1, blocks) == pytest.approx(math.sqrt(math.log(blocks) + 0.5772157), rel=rel)


@pytest.mark.parametrize(("exponent", "gap"), [(3, 0.03), (12, 0.01), (60, 0.002)])
def test_one_channel_approaches_the_papers_rule(exponent, gap):
    """κ = √(ln N_base / ln N), where γ and the variance are small beside ln N."""
    sizes = [Size(1, 1, modes=(n,), blocks=n) for n in (10 ** (2 * exponent), 10**exponent)]
    assert operator_norm(*sizes) == pytest.approx(log_modes(*sizes), abs=gap)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 10**6), st.integers(1, 10**6))
def test_monotone_symmetric_and_within_the_bound(n_in, n_out, a, b):
    low, high = largest_norm(n_in, n_out, min(a, b)), largest_norm(n_in, n_out, max(a, b))
    assert low <= high and largest_norm(n_out, n_in, a) == largest_norm(n_in, n_out, a)
    assert high <= math.sqrt(n_in) + math.sqrt(n_out) + math.sqrt(2 * math.log(max(a, b)))
