"""The rules against numbers worked out by hand, and properties of the shape algebra."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuralop_mup.core.rules import (
    Size,
    default_std,
    log_modes,
    multipliers,
    operator_norm,
)

# r = 4 in width (16 → 64), K 4 → 64 in 1D. log 64 / log 4 = 3, so log-modes gives κ = 1/√3 = 0.57735.
KAPPA = 0.5773502691896258


def _dense(m, k):
    return Size(m, m, default_std("mean_fan", m, m), modes=(k,), blocks=k + 1, block=(m, m))


def _separable(m, k):
    return Size(1, m, default_std("fan_out", 1, m), modes=(k,), blocks=k + 1)


GOLDEN = [
    # role, size at target, at base, (init, Adam lr, SGD lr)
    # lifting weight 3 → width: default std 1/√3 at both; only SGD's lr sees r_out = 4.
    ("input", Size(3, 64, default_std("fan_in", 3, 64)), Size(3, 16, default_std("fan_in", 3, 16)), (1, 1, 4)),
    # 1×1 map width → width: default std falls as 1/√r_in by itself; lr 1/4; SGD 4/4.
    (
        "hidden",
        Size(64, 64, default_std("fan_in", 64, 64)),
        Size(16, 16, default_std("fan_in", 16, 16)),
        (1, 1 / 4, 1),
    ),
    # channel MLP's first layer, 64 → 32 from 16 → 8: r_in = r_out = 4.
    (
        "hidden",
        Size(64, 32, default_std("fan_in", 64, 32)),
        Size(16, 8, default_std("fan_in", 16, 8)),
        (1, 1 / 4, 1),
    ),
    # readout: wanted std × 1/4, stock gives × 1/2, so init × 1/2; lr × 1/4 under both families; gradients keep size.
    (
        "readout",
        Size(64, 1, default_std("fan_in", 64, 1)),
        Size(16, 1, default_std("fan_in", 16, 1)),
        (1 / 2, 1 / 4, 1 / 4),
    ),
    # bias of a hidden map: stock U(±1/√fan_in) loses a factor 2, which is given back.
    ("vector", Size(1, 64, default_std("fan_in", 64, 64)), Size(1, 16, default_std("fan_in", 16, 16)), (2, 1, 4)),
    # gate: ones at every width.
    ("vector", Size(1, 64, 1.0), Size(1, 16, 1.0), (1, 1, 4)),
    # dense kernel: stock √(2/(2m)) = 1/√m keeps σ√m, so init × κ; lr κ/4; SGD without κ: 4/4.
    ("spectral", _dense(64, 64), _dense(16, 4), (KAPPA, KAPPA / 4, 1)),
    # separable kernel: one term a channel, stock loses 1/√4 = 1/2, so init × 2κ; lr κ.
    ("spectral", _separable(64, 64), _separable(16, 4), (2 * KAPPA, KAPPA, 4)),
]


@pytest.mark.parametrize(("role", "size", "base", "expected"), GOLDEN)
def test_golden_log_modes(role, size, base, expected):
    m = multipliers(role, size, base, "log-modes")
    assert (m.init, m.adam_lr, m.sgd_lr) == pytest.approx(expected, rel=1e-12)


def _modes(*ks):
    return Size(1, 1, modes=ks)


def _blocks(shape, n):
    return Size(1, 1, block=shape, blocks=n)


def test_log_modes_sums_over_axes():
    # K (2, 8) → (4, 16): Σ log K = log 16 → log 64, i.e. 4 log 2 → 6 log 2; κ = √(4/6) = 0.8165.
    assert log_modes(_modes(4, 16), _modes(2, 8)) == pytest.approx(math.sqrt(4 / 6), rel=1e-12)
    # The paper's own numbers, 3D: K = 3 → 24: κ = √(log 3 / log 24) = √(1.0986 / 3.1781) = 0.58795.
    assert log_modes(_modes(24, 24, 24), _modes(3, 3, 3)) == pytest.approx(0.58795, abs=1e-5)
    # One axis with K = 1, or K = 0 (the mean alone), adds nothing but is allowed.
    for k in (0, 1):
        assert log_modes(_modes(k, 16), _modes(k, 4)) == pytest.approx(math.sqrt(1 / 2), rel=1e-12)


def test_operator_norm_by_hand():
    # One channel, N = 1 → 2: √π/2 → √π/2 (2 - 1/√2); κ = 1 / 1.292893 = 0.773459 (tests/test_block_norms.py has the rest).
    assert operator_norm(_blocks((1, 1), 2), _blocks((1, 1), 1)) == pytest.approx(0.773459, rel=2e-4)
    # in ≠ out: the norm is the same for (4, 16) and (16, 4), but a feature sums 4 terms or 16.
    sizes = _blocks((4, 16), 8), _blocks((16, 4), 8)
    assert operator_norm(*sizes) == pytest.approx(math.sqrt(4 / 16), rel=1e-12)


sizes = st.integers(1, 4096)
ks = st.integers(2, 64)


@given(st.tuples(sizes, sizes, sizes), st.tuples(ks, ks, ks), st.sampled_from(["log-modes", "operator-norm", "none"]))
def test_two_moves_compose(widths, modes, rule):
    """Going a → b → c multiplies to going a → c: the base is a choice of units, not of physics."""
    a, b, c = (_dense(m, k) for m, k in zip(widths, modes, strict=True))
    ab, bc, ac = (multipliers("spectral", y, x, rule) for x, y in ((a, b), (b, c), (a, c)))
    for field in ("init", "adam_lr", "sgd_lr"):
        assert getattr(ab, field) * getattr(bc, field) == pytest.approx(getattr(ac, field), rel=1e-9)
