"""The rules against numbers worked out by hand, and a property of the shape algebra."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuralop_mup.core.rules import (
    SMALL_KERNELS,
    Multipliers,
    Size,
    check_rule,
    default_std,
    factor_std,
    length_factor,
    log_modes,
    mode_factor,
    multipliers,
    operator_norm,
    reason_of,
)
from support.errors import refused

# r = 4 in width (16 → 64), K 4 → 64 in 1D. log 64 / log 4 = 3, so log-modes gives κ = 1/√3 = 0.57735.
KAPPA = 0.5773502691896258


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("fan_in", 3**-0.5 / 2),  # U(±1/2)
        ("mean_fan", (2 / 13) ** 0.5),
        ("fan_out", 1 / 3),
        ("positive", 0.816496580927726 / 36),  # E|w|² = 2/3 of the square of the largest value
        ("constant", 1),
    ],
)
def test_default_std_by_hand(kind, expected):
    assert default_std(kind, 4, 9) == pytest.approx(expected, rel=1e-12)


def test_an_unknown_default_initialization():
    with refused("'fanin' 'fan_in'"):
        default_std("fanin", 1, 1)


def test_other_numbers_by_hand():
    # Tucker: a core and three factors, a kernel of std 0.5, ranks 2·2·4 = 16: (0.5 / 4)^(1/4). TT divides by all of 16.
    assert factor_std(0.5, 16, 4, 0.5) == pytest.approx(0.125**0.25, rel=1e-12)
    assert factor_std(0.5, 16, 2, 1) == pytest.approx(0.1767766952966369, rel=1e-12)
    assert length_factor(900, 100) == pytest.approx(1 / 3, rel=1e-12)
    assert SMALL_KERNELS == {"kernel": 0.1}
    assert Size(1, 1).default_std == 1


def _dense(m, k):
    return Size(m, m, default_std("mean_fan", m, m), modes=(k,), blocks=k + 1, block=(m, m))


def _separable(m, k):
    return Size(1, m, default_std("fan_out", 1, m), modes=(k,), blocks=k + 1)


def _positive(m, k):
    return Size(m, m, default_std("positive", m, m), modes=(k,), blocks=k + 1, block=(m, m), one_sign=True)


def _linear(fan_in, fan_out):
    return Size(fan_in, fan_out, default_std("fan_in", fan_in, fan_out))


GOLDEN = [
    # role, size at target, at base, (init, Adam lr, SGD lr)
    # lifting weight 3 → width: default std 1/√3 at both; only SGD's lr sees r_out = 4.
    ("input", _linear(3, 64), _linear(3, 16), (1, 1, 4)),
    # 1×1 map width → width: default std falls as 1/√r_in by itself; lr 1/4; SGD 4/4.
    ("hidden", _linear(64, 64), _linear(16, 16), (1, 1 / 4, 1)),
    # channel MLP's first layer, 64 → 96 from 16 → 8: r_in = 4, r_out = 12.
    ("hidden", _linear(64, 96), _linear(16, 8), (1, 1 / 4, 3)),
    # readout: wanted std × 1/4, stock gives × 1/2, so init × 1/2; lr × 1/4 under both families.
    ("readout", _linear(64, 1), _linear(16, 1), (1 / 2, 1 / 4, 1 / 4)),
    # bias of a hidden map: stock U(±1/√fan_in) loses a factor 2, which is given back.
    ("vector", Size(1, 64, default_std("fan_in", 64, 64)), Size(1, 16, default_std("fan_in", 16, 16)), (2, 1, 4)),
    # gate: ones at every width.
    ("vector", Size(1, 64), Size(1, 16), (1, 1, 4)),
    # dense kernel: stock √(2/(2m)) = 1/√m keeps σ√m, so init × κ; lr κ/4; SGD without κ: 4/4.
    ("spectral", _dense(64, 64), _dense(16, 4), (KAPPA, KAPPA / 4, 1)),
    # separable kernel: one term a channel, stock loses 1/√4 = 1/2, so init × 2κ; lr κ.
    ("spectral", _separable(64, 64), _separable(16, 4), (2 * KAPPA, KAPPA, 4)),
    # positive kernel: stock falls as 1/16, wanted κ/4, because terms of one sign add up.
    ("spectral", _positive(64, 64), _positive(16, 4), (4 * KAPPA, KAPPA / 4, 1)),
]


@pytest.mark.parametrize(("role", "size", "base", "expected"), GOLDEN)
def test_multipliers_by_hand(role, size, base, expected):
    m = multipliers(role, size, base, "log-modes")
    assert (m.init, m.adam_lr, m.sgd_lr) == pytest.approx(expected, rel=1e-12)
    assert m.kappa == pytest.approx(KAPPA if role == "spectral" else 1, rel=1e-12)
    assert multipliers(role, size, base, "standard") == Multipliers(1, 1, 1, 1)


def _modes(*ks):
    return Size(1, 1, modes=ks)


def _blocks(shape, n):
    return Size(1, 1, block=shape, blocks=n)


def test_log_modes_sums_over_axes():
    # K (2, 8) → (4, 16): Σ log K = log 16 → log 64, i.e. 4 log 2 → 6 log 2; κ = √(4/6) = 0.8165.
    assert log_modes(_modes(4, 16), _modes(2, 8)) == pytest.approx(math.sqrt(4 / 6), rel=1e-12)
    # The paper's own numbers, 3D: K = 3 → 24: κ = √(log 3 / log 24) = √(1.0986 / 3.1781) = 0.58795.
    assert log_modes(_modes(24, 24, 24), _modes(3, 3, 3)) == pytest.approx(0.58795, abs=1e-5)
    # An axis with K = 1, or K = 0 (only the mean), adds nothing. One that has another is needed, here and at base.
    for k in (0, 1):
        assert log_modes(_modes(k, 16), _modes(k, 4)) == pytest.approx(math.sqrt(1 / 2), rel=1e-12)
    for sizes in ((_modes(1, 1), _modes(2, 2)), (_modes(2, 2), _modes(0, 1))):
        with refused("log-modes operator-norm"):
            log_modes(*sizes)


def test_operator_norm_by_hand():
    # One channel, N = 1 → 2: √π/2 → √π/2 (2 - 1/√2); κ = 1 / 1.292893 = 0.773459 (test_block_norms.py has the rest).
    assert operator_norm(_blocks((1, 1), 2), _blocks((1, 1), 1)) == pytest.approx(0.773459, rel=2e-4)
    assert operator_norm(_modes(4), Size(1, 1)) == 1  # by default one block of one channel
    # in ≠ out: the norm is the same for (4, 16) and (16, 4), but a feature sums 4 terms or 16.
    sizes = _blocks((4, 16), 8), _blocks((16, 4), 8)
    assert operator_norm(*sizes) == pytest.approx(math.sqrt(4 / 16), rel=1e-12)


def test_sizes_have_the_defaults_of_a_vector():
    assert Size(3, 2) == Size(3, 2, 1.0, (), 1, (1, 1), False)


def test_rules_without_modes():
    for rule in ("none", "standard"):
        assert mode_factor(rule, _dense(64, 64), _dense(16, 4)) == 1


def test_the_reason_is_the_first_line_of_a_docstring():
    def own(size, base):
        """κ = 1, for a test.

        And a second paragraph.
        """
        return 1.0

    assert reason_of(own) == "κ = 1, for a test"
    assert reason_of(lambda size, base: 1.0) == ""
    assert (check_rule(own), check_rule(log_modes), check_rule("none")) == ("own", "log-modes", "none")


sizes = st.integers(1, 4096)
ks = st.integers(2, 64)


@given(st.tuples(sizes, sizes, sizes), st.tuples(ks, ks, ks), st.sampled_from(["log-modes", "operator-norm", "none"]))
def test_two_moves_compose(widths, modes, rule):
    """Multipliers from a to b and from b to c multiply to those from a to c."""
    a, b, c = (_dense(m, k) for m, k in zip(widths, modes, strict=True))
    ab, bc, ac = (multipliers("spectral", y, x, rule) for x, y in ((a, b), (b, c), (a, c)))
    for field in ("init", "adam_lr", "sgd_lr"):
        assert getattr(ab, field) * getattr(bc, field) == pytest.approx(getattr(ac, field), rel=1e-9)
