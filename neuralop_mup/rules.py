r"""The theory: a parameter's role and its sizes, here and at base, become multipliers.

Everything is *relative to base*. With ``r_in = fan_in / base fan_in`` and ``r_out`` alike (a fixed dimension
has r = 1; a vector's fan-in is 1), the whole width rule is three lines, for every role:

====================  =========================================  ==================================
quantity              rule                                       why
====================  =========================================  ==================================
init std              ∝ r_in^(-1/2); readout: r_in^(-1)          sums of r_in independent terms;
                                                                 the output starts small
lr, Adam-like         × 1 / r_in                                 an update's r_in entries add up
                                                                 coherently
lr, SGD               × r_out / r_in                             besides, gradients shrink as 1/r_out
Adam's eps            × 1 / r_out (on request)                   gradients shrink as 1/r_out
====================  =========================================  ==================================

Fourier kernels take a further factor κ, the *mode factor*, on init std and on the Adam learning rate; see
:func:`mode_factor`. Their width part sees the channel contraction alone: a dense kernel contracts ``in_channels``
terms for each mode, a separable one a single term (fan_in = 1).

An init *multiplier* is what the stock initialisation must be multiplied with, i.e. the wanted change of std divided by
the change that the stock initialisation makes on its own (:func:`stock_std`).

========  ================================  ============  ==========  ===================
role      stock std                         init ×        Adam lr ×   SGD lr ×
========  ================================  ============  ==========  ===================
input     1/√fan_in (fixed)                 1             1           r_out
hidden    1/√fan_in                         1             1 / r_in    r_out / r_in
readout   1/√fan_in                         r_in^(-1/2)   1 / r_in    1 / r_in
vector    1/√fan_in of its layer, or Θ(1)   r^(1/2) or 1  1           r_out
spectral  √(2/(in+out))                     κ (in = out)  κ / r_in    r_out / r_in
spectral  1/√channels (separable)           κ √r          κ           r_out
factor    (kernel std / ∏ranks^p)^(1/n)     see below     κ / r_in    r_out / r_in
========  ================================  ============  ==========  ===================

The factors of a Tucker, CP or tensor-train kernel are spectral parameters with fans of their own: read from inputs
(channels and a mode) to outputs, each rank index is summed by exactly one factor, and a factor's fan-in is the product
of what it sums. Then ∏ fan_in = in · ∏ ranks, and factors of variance 1/fan_in reconstruct a kernel of variance 1/in,
as the dense rule wants. κ goes to one factor, the one with the output channels, so that the kernel and each part of its
update carry it once (derived in docs/layouts.md).

Sources: Yang & Hu et al., "Tensor Programs V", arXiv:2203.03466, Table 3 (widths, without multipliers in the forward);
Li, Yoo, Yang, "Maximal Update Parametrization and Zero-Shot Hyperparameter Transfer for Fourier Neural Operators",
ICML 2025, arXiv:2506.19396, Theorem 3.5 (modes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from neuralop_mup.errors import MupError, nearest

__all__ = [
    "ROLES",
    "RULES",
    "Multipliers",
    "Size",
    "check_rule",
    "factor_std",
    "mode_factor",
    "multipliers",
    "stock_std",
]

ROLES = ("input", "hidden", "readout", "vector", "spectral")
RULES = ("log-modes", "operator-norm", "none", "standard")
RULE_VERSION = 1


@dataclass(frozen=True)
class Size:
    """The numbers of one parameter that the rules read.

    Attributes
    ----------
    fan_in, fan_out : int
        Terms that one output entry sums, and output entries; for a vector ``fan_in = 1``.
    stock_std : float
        Standard deviation of neuralop's own initialisation (:func:`stock_std`).
    modes : tuple of int
        Fourier modes per sign on each axis, ``K_i = n_modes_i // 2``; empty for all but kernels (of a factorized
        kernel: all but the factor that carries κ).
    blocks : int
        Number N of the kernel's independent channel blocks, one for each stored mode.
    block : tuple of int
        Shape (in, out) of one such block; (1, 1) for a separable kernel.
    miss : float
        For a factor: its stock std over the one that would give the kernel its target std (1 but for TT).
    """

    fan_in: int
    fan_out: int
    stock_std: float = 1.0
    modes: tuple[int, ...] = ()
    blocks: int = 1
    block: tuple[int, int] = (1, 1)
    miss: float = 1.0


@dataclass(frozen=True)
class Multipliers:
    """What a rule makes of one parameter: factors on stock init, learning rates and Adam's eps (all 1 at base)."""

    init: float
    adam_lr: float
    sgd_lr: float
    eps: float
    kappa: float = 1.0


def check_rule(rule: str) -> str:
    """Return ``rule`` if it is one of :data:`RULES`, else raise :class:`MupError` offering the nearest."""
    if rule not in RULES:
        raise MupError(f"There is no rule {rule!r}: {nearest(str(rule), RULES)}")
    return rule


def stock_std(kind: str, fan_in: int, fan_out: int) -> float:
    """Standard deviation of a stock initialisation (root mean square; of the modulus where entries are complex).

    Parameters
    ----------
    kind : {"fan_in", "mean_fan", "fan_out", "constant"}
        ``fan_in``: torch's default for linear and convolution layers, weight and bias: U(±1/√fan_in), so
        1/√(3 fan_in); the fan-in of a convolution includes its stencil.
        ``mean_fan``: neuralop's SpectralConv, kernel and bias: √(2/(fan_in + fan_out)).
        ``fan_out``: the same where the kernel is separable, so in = out = channels: 1/√fan_out.
        ``constant``: ones and zeros (gates, norms): 1.
    fan_in, fan_out : int
        Fans of the layer.
    """
    if kind == "fan_in":
        return (3 * fan_in) ** -0.5
    if kind == "mean_fan":
        return (2 / (fan_in + fan_out)) ** 0.5
    if kind == "fan_out":
        return fan_out**-0.5
    if kind == "constant":
        return 1.0
    raise MupError(f"There is no stock init {kind!r}: {nearest(kind, ('fan_in', 'mean_fan', 'fan_out', 'constant'))}")


def factor_std(kernel_std: float, ranks: int, factors: int, rank_power: float) -> float:
    """Standard deviation that neuralop (tensorly-torch) gives to each factor of a factorized kernel.

    Parameters
    ----------
    kernel_std : float
        Standard deviation that the reconstructed kernel is meant to have.
    ranks : int
        Product of all ranks.
    factors : int
        Number of random factors, a Tucker core included.
    rank_power : float
        1/2 for Tucker and CP, whose reconstruction hits ``kernel_std``; 1 for TT, whose misses it by √ranks.
    """
    return (kernel_std / ranks**rank_power) ** (1 / factors)


def log_modes(modes: Sequence[int], base_modes: Sequence[int]) -> float:
    """κ = √(Σ log K_base,i / Σ log K_i) (Theorem 3.5, with d·log K read as a sum over axes).

    The largest of N = Θ(K^d) sub-Gaussian numbers grows as √(log N) = √(d log K), and so does the operator norm of a
    kernel, and of its update, at one channel.

    Parameters
    ----------
    modes, base_modes : sequence of int
        Modes per sign on each axis, K_i = n_modes_i // 2, here and at base.

    Raises
    ------
    MupError
        If every axis has K = 1: the logarithms sum to zero and the rule is undefined.
    """
    for what, ks in (("the model", modes), ("base", base_modes)):
        if any(k < 1 for k in ks):
            raise MupError(
                f"n_modes of {what} keeps K = {tuple(ks)} modes per sign, but every axis needs at least 1 "
                "(n_modes ≥ 2): give an even n_modes of 2 or more on each axis."
            )
        if all(k == 1 for k in ks):
            raise MupError(
                f"Under rule='log-modes' the mode factor divides by Σ log K, which is zero for {what}: K = "
                f"n_modes // 2 = {tuple(ks)} on axes {tuple(range(len(ks)))}. Take n_modes ≥ 4 on some axis, or "
                "rule='operator-norm', which is finite at K = 1."
            )
    return math.sqrt(sum(map(math.log, base_modes)) / sum(map(math.log, modes)))


def operator_norm(block: tuple[int, int], blocks: int, base_block: tuple[int, int], base_blocks: int) -> float:
    """κ = g_base / g with g = (√in + √out + √(2 ln N)) / √in, the finite-size form of :func:`log_modes`.

    A kernel is block-diagonal over modes, so its operator norm is that of its largest block; over N independent in×out
    Gaussian blocks of std σ its mean is at most σ (√in + √out + √(2 ln N)). The width rule takes care of the factor √in.
    At one channel and N → ∞ this is log-modes; at many channels it tends to no mode rule at all; it is finite at K = 1.
    (Davidson & Szarek 2001, Theorem II.13, for one real block; the Gaussian maximal inequality over blocks.)

    It is a bound, not an asymptotic: it overstates how much the log term matters at few channels, and so lets κ exceed 1
    by up to 15 % when only width grows, where simulated norms of complex blocks change by less than 3 %.

    Parameters
    ----------
    block, base_block : (int, int)
        Shape (in, out) of one mode's channel block, here and at base; (1, 1) for a separable kernel, whose channels do
        not mix: what counts is the norm of a channel over modes, as features are measured by their RMS over channels.
    blocks, base_blocks : int
        Number N of stored modes, here and at base.
    """

    def g(shape: tuple[int, int], n: int) -> float:
        m_in, m_out = shape
        return (math.sqrt(m_in) + math.sqrt(m_out) + math.sqrt(2 * math.log(n))) / math.sqrt(m_in)

    return g(base_block, base_blocks) / g(block, blocks)


def mode_factor(rule: str, size: Size, base: Size) -> float:
    """κ of one kernel: how its init std and Adam learning rate shrink as modes are added.

    Parameters
    ----------
    rule : {"log-modes", "operator-norm", "none"}
        :func:`log_modes`, :func:`operator_norm`, or κ = 1.
    size, base : Size
        The kernel here and at base.
    """
    if rule == "log-modes":
        return log_modes(size.modes, base.modes)
    if rule == "operator-norm":
        return operator_norm(size.block, size.blocks, base.block, base.blocks)
    return 1.0


def multipliers(role: str, size: Size, base: Size, rule: str) -> Multipliers:
    """Multipliers of one parameter (the table at the top of this module).

    Parameters
    ----------
    role : {"input", "hidden", "readout", "vector", "spectral"}
        What the parameter is.
    size, base : Size
        Its numbers here and at base.
    rule : {"log-modes", "operator-norm", "none", "standard"}
        ``standard`` is the standard parametrization: every multiplier is 1.

    Returns
    -------
    Multipliers
        All exactly 1 when ``size == base``.
    """
    check_rule(rule)
    if rule == "standard":
        return Multipliers(1.0, 1.0, 1.0, 1.0)
    r_in = size.fan_in / base.fan_in
    r_out = size.fan_out / base.fan_out
    kappa = mode_factor(rule, size, base) if size.modes else 1.0
    wanted = kappa * (1 / r_in if role == "readout" else r_in**-0.5)
    return Multipliers(
        init=wanted / (size.stock_std / base.stock_std),
        adam_lr=kappa / r_in,
        # The paper's mode rule is derived for Adam; SGD keeps the width rule alone.
        sgd_lr=r_out / r_in,
        eps=1 / r_out,
        kappa=kappa,
    )
